"""Check options and batches: at once on a CPU, after the epoch on an accelerator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from numbers import Integral, Real

import torch
from torch import Tensor


def must(name: str, value, holds: Callable, rule: str) -> None:
    """Raise ValueError unless `holds` is true of the number, or of every entry of the tensor."""
    if isinstance(value, Tensor):
        value = value.detach().reshape(-1)
        refuse(~holds(value), f"{name} must {rule}, got {{value:g}}", value)
    elif not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, got {value!r}")
    elif not holds(value):
        raise ValueError(f"{name} must {rule}, got {value:g}")


def positive(name: str, value) -> None:
    """Raise ValueError unless the number, or every entry of the tensor, is positive and finite."""
    must(name, value, lambda x: (x > 0) & (x < math.inf), "be positive and finite")


def finite(name: str, value) -> None:
    """Raise ValueError unless the number, or every entry of the tensor, is finite."""
    must(name, value, lambda x: (x > -math.inf) & (x < math.inf), "be a finite number")


def whole(name: str, value, least: int) -> None:
    """Raise ValueError unless the value is an integer of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def one_of(name: str, value, choices: tuple) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in choices or isinstance(value, bool):  # True is 1
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def flag(name: str, value) -> None:
    """Raise ValueError unless the value is a bool: the string "False" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def shapes(fits: bool, rule: str, *tensors: Tensor) -> None:
    """Raise ValueError "rule, got ..." with the shapes of the tensors unless they fit."""
    if not fits:
        raise ValueError(f"{rule}, got {', '.join(str(tuple(x.shape)) for x in tensors)}")


def mask(name: str, value: Tensor, like: Tensor) -> None:
    """Raise ValueError unless the value is a boolean mask of the shape of `like`."""
    fits = value.dtype == torch.bool and value.shape == like.shape
    shapes(fits, f"{name} must be a boolean mask of shape {tuple(like.shape)}", value)


def labels(values, count: int, kind: str) -> Tensor:
    """Return the labels as integers; raise ValueError unless there are `count` whole numbers."""
    values = torch.as_tensor(values)
    fits = values.shape == (count,) and not values.is_floating_point()
    shapes(fits, f"labels of {count} {kind} must be integers of shape ({count},)", values)
    return values.long()


def per_anchor(name: str, value, n: int):
    """Return a number as it is, and one value per anchor as a column of shape [n, 1]."""
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    shapes(value.shape == (n,), f"{name} must be a number or have shape ({n},)", value)
    return value[:, None]


def outside_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context without autocast, also for devices that have none."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def readable(x: Tensor) -> bool:
    """Whether values of `x` can be read without waiting: on a CPU and not traced by a compiler."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def refuse(bad: Tensor, message: str, value: Tensor | None = None) -> None:
    """Raise ValueError if any entry of `bad` of shape [n] is true.

    The message may contain {row}, the first such entry, and {value}, that entry of `value`. On an
    accelerator, which would stall in every step, the innermost `deferred` keeps the condition until
    it is asked.
    """
    if readable(bad):
        if bad.any():
            row = int(bad.nonzero()[0])
            shown = row if value is None else value[row].item()
            raise ValueError(message.format(row=row, value=shown))
    elif _deferred and bad.device.type not in ("cpu", "meta"):
        _deferred[-1].add(bad, message, value)


class Deferred:
    """Conditions met on an accelerator, which stay there until `raise_if_any`."""

    def __init__(self):
        self._met: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def add(self, bad: Tensor, message: str, value: Tensor | None = None) -> None:
        """Keep the first true entry of `bad` of shape [n], unless one is kept for the message."""
        row = bad.int().argmax()
        value = row if value is None else value.detach().index_select(0, row[None])[0]
        met = bad.any(), row, value
        if (before := self._met.get(message)) is not None:
            first = (torch.where(before[0], a, b) for a, b in zip(before[1:], met[1:]))
            met = before[0] | met[0], *first
        self._met[message] = met

    def raise_if_any(self) -> None:
        """Raise ValueError with the message of the first condition met; then forget them all."""
        met, self._met = self._met, {}
        for message, (bad, row, value) in met.items():
            if bad.item():
                raise ValueError(message.format(row=row.item(), value=value.item()))


_deferred: list[Deferred] = []


@contextmanager
def deferred() -> Iterator[Deferred]:
    """Collect what `refuse` meets on accelerators in the block; a training loop raises it once."""
    _deferred.append(Deferred())
    try:
        yield _deferred[-1]
    finally:
        _deferred.pop()
