"""`train` in one call: fields of the run, options of the method and settings of the execution."""

from dataclasses import fields

import torch

from hnlib.training import kinds
from hnlib.training import train as training
from hnlib.training.config import Execution, defaults

NAMES = ("dataset", "method", "encoder")  # of what may also be an object


def train(kind="images", options=None, **given):
    """Train a run of a kind of data; what is no field and no setting is an option."""
    run = kinds.run_class(kind)
    names = {field.name for field in fields(Execution)}
    settings = {name: given.pop(name) for name in names & given.keys()}
    objects = {name: given.pop(name) for name in NAMES if is_object(given.get(name))}
    chosen = {name: given.pop(name) for name in defaults(run).keys() & given.keys()}
    return training.train(run(**chosen, options=(options or {}) | given), **objects, **settings)


def is_object(value):
    return not isinstance(value, str | None)


def same_weights(a, b):
    """Return whether two runs have the same weights, to the bit."""
    a, b = a.model.state_dict(), b.model.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
