"""The kinds of data that runs train on: one package each.

`PACKAGE/config.py` has the dataclass of its runs as `Run` and needs no torch; `PACKAGE/task.py` has
the class `Task` that trains and measures them; `PACKAGE/data.py` has `load` and `describe`.
"""

from __future__ import annotations

import functools
from importlib import import_module

from hnlib.training.config import Configuration

KINDS = {
    "images": "hnlib.images",
    "graphs": "hnlib.graphs",
    "sentences": "hnlib.sentences",
    "retrieval": "hnlib.retrieval",
}


@functools.cache
def run_class(kind: str) -> type[Configuration]:
    """Return the dataclass of the runs of a kind."""
    return import_module(f"{KINDS[kind]}.config").Run


def task_class(kind: str):
    """Return the task of the runs of a kind (see `hnlib.training.task.Task`)."""
    return import_module(f"{KINDS[kind]}.task").Task


@functools.cache
def scores() -> dict[str, str]:
    """Return the metrics that lists of runs show, with their titles."""
    return {name: title for kind in KINDS for name, title in run_class(kind).scores.items()}


def kind_of(record: dict) -> str:
    """Return the kind of run that a record is of, or "measurement"."""
    before = {"image_shape": "images", "graphs": "graphs", "sentences": "sentences"}
    guess = next((kind for key, kind in before.items() if key in record), "measurement")
    kind = record.get("kind", guess)  # older records do not name it
    if kind not in (*KINDS, "measurement"):
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, measurement, got {kind!r}")
    return kind
