"""The recorded evidence: experiments, and measurements other than runs."""

import difflib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hnlib import _files
from hnlib.training import records


def path(name: str) -> Path:
    """Return a file or folder of the evidence; a chapter is stale when the file changes."""
    found = _files.evidence(name)
    if found.is_file():
        records.depend(found)
    return found


def one_of(choices: Iterable[str], name: str, what: str) -> str:
    """Return a name that a file uses; ValueError names the nearest choice if it is unknown."""
    choices = [*choices]
    if name not in choices:
        near = difflib.get_close_matches(name, choices, 1) or choices[:1]
        hint = f"the nearest is {near[0]!r}" if near else "none is left to choose from"
        raise ValueError(f"{what} {name!r}; {hint}")
    return name


def measurement(name: str) -> dict:
    """Return measured numbers, from `NAME.json`."""
    return json.loads(path(f"{name}.json").read_text(encoding="utf-8"))


def stages() -> dict[str, np.ndarray]:
    """Return recorded batches by data and stage: two views of unit embeddings [2, pairs, d]."""
    with np.load(path("stages.npz")) as file:
        return dict(file)
