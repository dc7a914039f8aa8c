"""Experiments as data: a file says which runs are compared and how; records answer it."""

from hnlib.experiments.experiment import (
    Experiment,
    by_processor,
    digest,
    load,
    missing,
    names,
    together,
    verdicts,
)

__all__ = [
    "Experiment",
    "by_processor",
    "digest",
    "load",
    "missing",
    "names",
    "together",
    "verdicts",
]
