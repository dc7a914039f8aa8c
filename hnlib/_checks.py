"""Checks of options and of batches, at once on the CPU and later on an accelerator; and what the
surroundings allow."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from numbers import Integral, Real

import torch
from torch import Tensor

# what torch.func is doing has no public name
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]

SMALL = 1e-18  # of options; they and their inverses have squares in single precision


def positive(name: str, value) -> None:
    """ValueError unless the number, or every entry of the tensor, is positive and finite."""
    what = f"be positive and finite, and not below {SMALL}"
    must(name, value, lambda x: (x >= SMALL) & (x < math.inf), what)


def finite(name: str, value) -> None:
    """ValueError unless the number, or every entry of the tensor, is finite."""
    must(name, value, lambda x: (x > -math.inf) & (x < math.inf), "be a finite number")


def whole(name: str, value, least: int) -> None:
    """ValueError unless it is a whole number, and at least that."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={shown(value)} must be a whole number")
    must(name, value, lambda x: x >= least, f"be at least {least}")


def must(name: str, value, fits: Callable, what: str) -> None:
    """ValueError "name=value must what" unless the number, or every entry of the tensor, fits."""
    tensor = isinstance(value, Tensor) and not value.is_complex() and value.dtype != torch.bool
    if isinstance(value, bool) or not (tensor or isinstance(value, Real)):
        raise ValueError(f"{name}={shown(value)} must {what}; pass a number")
    if isinstance(value, Tensor):
        value = value.detach().reshape(-1)
        refuse(~fits(value), f"{name}={{value:g}} must {what}", value)
    elif 1 / SMALL < abs(value) < math.inf:
        raise ValueError(f"{name}={shown(value)} is too large; give a number up to {1 / SMALL:g}")
    elif not fits(value):
        raise ValueError(f"{name}={value:g} must {what}")


def single(name: str, value, remedy: str) -> None:
    """ValueError, which ends with the remedy, for a tensor with several values."""
    if isinstance(value, Tensor) and value.ndim:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; {remedy}")


def number(name: str, value, fits: Callable, what: str) -> None:
    """As `must`, of one number."""
    single(name, value, "give one number")
    must(name, value, fits, what)


def one_of(name: str, value, known: tuple[str, ...]) -> None:
    """ValueError unless the value is one of the words."""
    if not isinstance(value, str) or value not in known:
        *others, last = (f'"{word}"' for word in known)
        raise ValueError(f"{name}={shown(value)} is unknown; use {', '.join(others)} or {last}")


def shown(value) -> str:
    """A value of any kind in a sentence: on one line, and not a long one."""
    return textwrap.shorten(repr(value), 80)


def flag(name: str, value) -> None:
    """ValueError unless it is true or false: the word "False", for one, would count as true."""
    if not isinstance(value, bool):
        raise ValueError(
            f"{name}={shown(value)} must be True or False (on a command line true or false)"
        )


def floating(**given) -> None:
    """ValueError unless all are tensors of floating-point numbers."""
    for name, x in given.items():
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{name} must be a tensor of floating-point numbers; got {kind}")


def mask(name: str, value, like: Tensor) -> None:
    """ValueError unless it is a boolean mask of the shape of the other."""
    kind, shape = getattr(value, "dtype", type(value).__name__), getattr(value, "shape", ())
    if kind != torch.bool or shape != like.shape:
        raise ValueError(
            f"{name} must be a boolean mask of shape {tuple(like.shape)}; "
            f"got {kind} of shape {tuple(shape)}"
        )


def as_tensor(name: str, value) -> Tensor:
    """The value as a tensor. ValueError unless it holds real numbers."""
    try:
        x = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name}={shown(value)} must be a tensor of real numbers") from error
    if x.is_complex():
        raise ValueError(f"{name} must be a tensor of real numbers; got {x.dtype}")
    return x


def labels(values, count: int, kind: str) -> Tensor:
    """The labels of `count` things. ValueError unless they are whole numbers, one for each."""
    values = as_tensor("labels", values)
    if values.shape != (count,):
        raise ValueError(
            f"labels have shape {tuple(values.shape)}; "
            f"{count} {kind} need labels of shape ({count},)"
        )
    if values.is_floating_point():
        raise ValueError(f"labels are {values.dtype}; give whole numbers, as labels.long() does")
    return values.long()


def per_anchor(name: str, value, n: int):
    """A number as it is; one value for each of `n` anchors as a column $[n,1]$, for their rows."""
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    if value.shape != (n,):
        shape = tuple(value.shape)
        raise ValueError(f"{name} has shape {shape}; give one number, or one per anchor ({n},)")
    return value[:, None]


def outside_autocast(device: torch.device) -> AbstractContextManager:
    """A block without autocast; where a device has none, there is nothing to leave."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def transformed() -> bool:
    """Whether torch.compile traces or torch.func transforms: then custom gradients and what is kept
    between calls stand aside, for plain operations are followed to every order."""
    return torch.compiler.is_compiling() or functorch.peek_interpreter_stack() is not None


def readable(x: Tensor) -> bool:
    """Whether `x` may be looked at: on the CPU, not traced, and not one of a batch under vmap."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return False
        x = functorch.get_unwrapped(x)
    return True


def refuse(bad: Tensor, sentence: str, value: Tensor | None = None) -> None:
    """ValueError if any entry of `bad` $[n]$ is true; the sentence may name its {row}, and {value}.

    That is so where `bad` is `readable`. An accelerator would stall in every step: there the
    condition is kept by the innermost `deferred`, if there is one, until that is asked.
    """
    if readable(bad):
        if bad.any():
            row = int(bad.nonzero()[0])
            shown = row if value is None else value[row].item()
            raise ValueError(sentence.format(row=row, value=shown))
    elif _deferred and bad.device.type not in ("cpu", "meta") and not transformed():
        _deferred[-1].add(bad, sentence, value)


class Deferred:
    """Conditions that an accelerator has met; they stay there until `raise_if_any`."""

    def __init__(self):
        self._met: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def add(self, bad: Tensor, sentence: str, value: Tensor | None = None) -> None:
        """Keep the first row of `bad` $[n]$ that is true, and its value, unless there is one."""
        row = bad.int().argmax()
        value = row if value is None else value.detach().index_select(0, row[None])[0]
        met = bad.any(), row, value
        if (before := self._met.get(sentence)) is not None:
            first = (torch.where(before[0], a, b) for a, b in zip(before[1:], met[1:]))
            met = before[0] | met[0], *first
        self._met[sentence] = met

    def raise_if_any(self) -> None:
        """ValueError with the sentence of the first condition met; then all are forgotten."""
        met, self._met = self._met, {}
        for sentence, (bad, row, value) in met.items():
            if bad.item():
                raise ValueError(sentence.format(row=row.item(), value=value.item()))


_deferred: list[Deferred] = []


@contextmanager
def deferred() -> Iterator[Deferred]:
    """Collect what `refuse` meets on accelerators inside the block; a training loop raises it once
    an epoch."""
    _deferred.append(Deferred())
    try:
        yield _deferred[-1]
    finally:
        _deferred.pop()
