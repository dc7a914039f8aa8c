"""Made-up sentences of a few topics, for tests and small runs."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

WORDS = tomllib.loads(Path(__file__).with_name("topics.toml").read_text("utf-8"))
TOPICS = tuple(WORDS["topics"].values())


def sentence(rng: np.random.Generator, topic: int, mood: int) -> str:
    """Make a sentence of a topic, in a mood. A word may be of any topic: alone it says little."""

    def pick(texts: Sequence[str]) -> str:  # as `rng.choice`, which is slow
        return texts[int(rng.integers(len(texts)))]

    def word(part: int, given: int, share: float = 0.6) -> str:
        drawn = given if rng.random() < share else rng.integers(len(TOPICS))
        return pick(TOPICS[drawn].split("|")[part].split())

    n, m, v = word(0, topic), word(0, topic), word(1, topic)
    a, w = pick(WORDS["moods"][mood].split()), pick(WORDS["when"])
    return pick(WORDS["patterns"]).format(n=n, m=m, a=a, v=v, w=w)


def topics(documents: int = 60, length: int = 30, seed: int = 0) -> list[list[str]]:
    """Generate documents, each on one of the `TOPICS`; the mood changes every few sentences."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(documents):
        moods = np.cumsum(rng.random(length) < 0.2) % 2
        made.append([sentence(rng, i % len(TOPICS), int(mood)) for mood in moods])
    return made
