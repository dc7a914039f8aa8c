"""Experiments as data: a file says which runs are compared and how; records answer it."""

import hnlib.training  # noqa: F401  # first: without its packages it says what to install
from hnlib.experiments.compared import beside
from hnlib.experiments.design import Design, digest, load, load_all, names
from hnlib.experiments.execution import model, train, train_all
from hnlib.experiments.findings import edges, effect, effects, lines, map_of, together, waiting
from hnlib.experiments.found_records import Found, by_processor, found, recorded
from hnlib.experiments.plans import plan
from hnlib.experiments.predictions import outcome, verdicts

__all__ = [
    "Design",
    "Found",
    "beside",
    "by_processor",
    "digest",
    "edges",
    "effect",
    "effects",
    "found",
    "lines",
    "load",
    "load_all",
    "map_of",
    "model",
    "names",
    "outcome",
    "plan",
    "recorded",
    "together",
    "train",
    "train_all",
    "verdicts",
    "waiting",
]
