"""The kinds of data that runs train on: one package each.

`PACKAGE/config.py` has the dataclass of its runs as `Run` and needs no torch; `PACKAGE/task.py` has
the class `Task` that trains and measures them; `PACKAGE/data.py` has `load`.
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
    "own": "hnlib.own",
}
#: The kind of a record of costs and the like, which is of no run
MEASUREMENT = "measurement"


@functools.cache
def run_class(kind: str) -> type[Configuration]:
    """Return the dataclass of the runs of a kind."""
    return import_module(f"{KINDS[kind]}.config").Run


def task_class(kind: str):
    """Return the task of the runs of a kind (see `hnlib.training.task.Task`)."""
    return import_module(f"{KINDS[kind]}.task").Task


def check(kind: str | None) -> str | None:
    """Return the kind of a record; ValueError unless that is one of runs, or of a measurement."""
    if kind not in (*KINDS, MEASUREMENT):
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, {MEASUREMENT}, got {kind!r}")
    return kind
