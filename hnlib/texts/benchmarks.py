"""Benchmarks of sentence embeddings: published sets for transfer and for similarity."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hnlib._checks import one_of
from hnlib._files import data_folder, downloads
from hnlib.texts.registry import GENERATED
from hnlib.texts.topics import TOPICS, sentence

PUBLISHED = downloads("sentences")
HEADS = ("Quality", "pair_ID")  # begin the line with the names of the columns
KINDS = ("input", "gs")  # of the files of one year: pairs of sentences, and their degrees


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Sentences, or pairs of them (`second`), with labels int64 or, where `graded`, similarities.

    `train` counts the examples before the test part; 0 means no test part, and folds are used.
    """

    name: str
    first: list[str] = field(repr=False)
    y: np.ndarray = field(repr=False)
    second: list[str] | None = field(default=None, repr=False)
    train: int = 0

    @property
    def graded(self) -> bool:
        """Return whether `y` are degrees of similarity."""
        return self.y.dtype.kind == "f"


def load(name: str, root: Path | str | None = None) -> Benchmark:
    """Load one of the `PUBLISHED` sets, from `root/sentences`, or one of the `GENERATED`.

    MR, CR, SUBJ, MPQA: labels 0, 1. TREC: six classes. MSRP: pairs, 1 for a paraphrase. SICK, STS-B
    and STS12 to STS16: graded pairs of the test part, those of a year together; "sick_pearson" has
    SICK's training part before it. Empty lines of a set are skipped.
    """
    if name in GENERATED:
        return _generated(name)
    one_of("task", name, (*PUBLISHED, *GENERATED))
    folder, about = data_folder(root, "sentences"), PUBLISHED[name]
    try:
        contents = [path.read_bytes() for path in _paths(folder, about["files"])]
        digest = hashlib.sha256(b"".join(contents)).hexdigest()[:16]
        if digest != about["digest"]:
            raise ValueError(f"damaged or another edition, of digest {digest}")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name} is not in {folder} ({error}); put its files there, from {about['source']}"
        ) from error
    return _read(name, [_lines(content) for content in contents])


def _paths(folder: Path, files: list[str]) -> list[Path]:
    """Return the paths of `files`; a folder stands for its pairs of sentences and degrees."""
    if not files[0].endswith("-en-test"):
        return [folder / file for file in files]
    inputs = sorted((folder / files[0]).glob("STS.input.*.txt"))
    return [path.with_name(path.name.replace("input", kind)) for path in inputs for kind in KINDS]


def _lines(content: bytes) -> list[str]:
    """Return lines split only at newlines: a line of Latin-1 may hold other separators."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _read(name: str, parts: list[list[str]]) -> Benchmark:
    first_size = len(parts[0])
    if name == "trec":
        kinds, texts = zip(*(line.split(" ", 1) for part in parts for line in part))
        y = np.unique([kind.split(":")[0] for kind in kinds], return_inverse=True)[1]
        return Benchmark(name, list(texts), y, train=first_size)
    if name in ("mr", "cr", "subj", "mpqa"):  # a file for each class
        first, second = ([line for line in part if line.strip()] for part in parts)
        return Benchmark(name, first + second, np.repeat([0, 1], [len(first), len(second)]))
    table = [line.split("\t") for part in parts for line in part]
    if columns := PUBLISHED[name].get("columns"):
        rows = [[row[k] for k in columns] for row in table if row[0] not in HEADS]
    else:  # files of pairs and of degrees in turn; a pair without a degree was not judged
        pairs, degrees = (itertools.chain(*parts[k::2]) for k in (0, 1))
        both = zip((line.split("\t") for line in pairs), degrees, strict=True)
        rows = [(*pair[:2], degree) for pair, degree in both if degree.strip()]
    first, second, y = (list(column) for column in zip(*rows))
    train = first_size - 1 if name in ("msrp", "sick_pearson") else 0
    return Benchmark(name, first, np.array(y, int if name == "msrp" else float), second, train)


def _generated(name: str, n: int = 300, seed: int = 1) -> Benchmark:
    rng, topics = np.random.default_rng(seed), len(TOPICS)
    y = np.arange(n) % topics
    first = [sentence(rng, topic, i // topics % 2) for i, topic in enumerate(y)]
    if name == "topic":
        return Benchmark(name, first, y)
    other = np.where(rng.random(n) < 0.5, y, rng.integers(topics, size=n))
    moods = rng.integers(2, size=n)
    second = [sentence(rng, topic, mood) for topic, mood in zip(other, moods)]
    degrees = 2.0 * (other == y) + (moods == np.arange(n) // topics % 2)
    return Benchmark(name, first, degrees, second)
