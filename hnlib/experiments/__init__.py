"""Experiments as data: a file says which runs are compared and how; records answer it."""

import hnlib.training  # noqa: F401  # first: without its packages it says what to install
from hnlib.experiments.experiment import (
    Experiment,
    by_processor,
    digest,
    forget,
    load,
    names,
    train,
)
from hnlib.experiments.predictions import together

__all__ = ["Experiment", "by_processor", "digest", "forget", "load", "names", "together", "train"]
