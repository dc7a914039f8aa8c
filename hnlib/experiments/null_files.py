"""The file of your loss, as `hnlib null` and pages read it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from hnlib._files import named
from hnlib.profile import configurations, run_file
from hnlib.training.config import canonical

PROBE = 64  # pairs, and dimensions, with which a loss is tried: the smallest batch of the tasks


class Given(nn.Module):
    """A loss(a, b, **options) of pairs as a method for training; its parameters are trained, too.

    A class is called with the options, and its instance with the embeddings.
    """

    def __init__(self, loss: Callable, name: str, options: dict):
        super().__init__()
        self.name, self.options, made = name, options, isinstance(loss, type)
        # an instance is copied: no training goes on with the state of another
        self.function = loss(**options) if made else copy.deepcopy(loss)
        self.passed = {} if made else options

    def pairs(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the loss of queries [n, d] whose answers are the keys [n, d] of the same row."""
        a, b = (functional.normalize(x.float(), dim=1) for x in (queries, keys))
        value = self.function(a, b, **self.passed)
        # a hinge that every pair satisfies may return a constant
        return value if value.requires_grad else value + 0 * a.sum()

    def forward(self, a: Tensor, b: Tensor, labels: Tensor | None = None, **_) -> Tensor:
        """Return the loss of pairs."""
        return self.pairs(a, b)


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss read from a file; its name has the digest of all its code."""

    path: Path
    name: str
    function: Callable
    configurations: tuple[dict, ...]

    def method(self, options: dict) -> Given:
        """Return the loss with options as a method that `train` takes."""
        return Given(self.function, self.name, options)


def read(path: Path | str) -> Loss:
    """Run a file and return its loss.

    Raises
    ------
    ValueError
        If it has no `loss`, its `CONFIGURATIONS` are not one to eight dictionaries, two are alike,
        or the loss wants more than two embeddings or does not return a finite scalar.
    OSError
        If the file cannot be read.
    """
    path = Path(path)
    names, name = run_file(str(path)), named(path)
    function, listed = names.get("loss"), configurations(names, path)
    if not callable(function):
        raise ValueError(f"{path} must define loss(a, b, **options)")
    for i, options in enumerate(listed):
        what = f"{path}, configuration {i} {options}"
        try:
            if canonical(options) in map(canonical, listed[:i]):
                raise ValueError(f"CONFIGURATIONS[{i}] of {path} is there already: {options}")
        except TypeError as error:
            raise ValueError(f"{what}: options must be numbers, texts or lists ({error})") from None
        _try(function, options, what)
    return Loss(path, name, function, tuple(listed))


def method_of(path: str | None, name: str, run) -> Given | None:
    """Return the loss of a run, read from its file in each process, or None for the catalogue's."""
    return None if path is None or run.method != name else _own(path, name).method(run.options)


@functools.cache
def _own(path: str, name: str) -> Loss:
    """Return the loss of a file, read once; ValueError if it has another name by now."""
    loss = read(path)
    if loss.name != name:
        raise ValueError(f"{path} was edited after its runs were planned; start again")
    return loss


def _try(function: Callable, options: dict, what: str) -> None:
    """Raise ValueError unless the loss takes two embeddings and returns a finite scalar."""
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(2, PROBE, PROBE, generator=generator, requires_grad=True)
    try:
        made = Given(function, "", options)
        _bind(getattr(made.function, "forward", made.function), batch, made.passed)
        # a queue that keeps its graph fails in the second step; there answers are near
        for a, b in (batch, batch[0] + 0.1 * batch):
            value = made.pairs(a, b)
            if value.shape != () or not value.isfinite():
                shape = f"{tuple(value.shape)}: return its mean"
                got = shape if value.shape else value.item()
                raise ValueError(f"loss must return a finite scalar, got {got}")
            value.backward()
        if not batch.grad.any():
            raise ValueError("the loss has no gradient; look for detach or no_grad")
    except Exception as error:
        raise ValueError(f"{what}: {type(error).__name__}: {error}") from error


def _bind(called: Callable, batch: Tensor, options: dict) -> None:
    """Raise TypeError if a loss wants more than two embeddings and its options."""
    try:
        with suppress(ValueError):  # a builtin has no signature
            inspect.signature(called).bind(*batch, **options)
    except TypeError as error:
        raise TypeError(
            f"{error}; a loss gets the embeddings a and b of pairs and its options alone: "
            "no labels, which a temperature does not see, and no third input, because the "
            "negatives of a row are the other rows of b"
        ) from None
