"""Check options and batches: at once on a CPU, at the end of an epoch on an accelerator."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from numbers import Integral, Real
from typing import Annotated, ClassVar, get_args, get_type_hints

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor


def number(name: str, value, holds: Callable, rule: str) -> None:
    """Raise ValueError unless `holds` is true of the number, or of every entry of the tensor."""
    if isinstance(value, Tensor):
        value = value.detach().reshape(-1)
        raise_if(~holds(value), f"{name} must {rule}, got {{value:g}}", value)
    elif not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, got {value!r}")
    elif not holds(value):
        raise ValueError(f"{name} must {rule}, got {value:g}")


positive = partial(number, holds=lambda x: (x > 0) & (x < math.inf), rule="be positive and finite")
finite = partial(
    number, holds=lambda x: (x > -math.inf) & (x < math.inf), rule="be a finite number"
)
fraction = partial(number, holds=lambda x: (x >= 0) & (x < 1), rule="lie in [0, 1)")


def integer(name: str, value, least: int) -> None:
    """Raise ValueError unless the value is an integer of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def at_least(least: float) -> Callable:
    """Return a check that a number, or every entry of a tensor, is finite and >= `least`."""
    rule = f"be finite and >= {least:g}"
    return partial(number, holds=lambda x: (x >= least) & (x < math.inf), rule=rule)


def one_of(name: str, value, choices: tuple) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in choices or isinstance(value, bool):  # True is 1
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def flag(name: str, value) -> None:
    """Raise ValueError unless the value is a bool: the string "False" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


# What may stand in the annotation of an option: a type with a check of (name, value)
Positive = Annotated[float | Tensor, positive]
Finite = Annotated[float | Tensor, finite]
Fraction = Annotated[float | Tensor, fraction]
Flag = Annotated[bool, flag]
OnEmpty = Annotated[str, partial(one_of, choices=("raise", "skip"))]
OnFailure = Annotated[str, partial(one_of, choices=("raise", "warn"))]
Reduction = Annotated[str, partial(one_of, choices=("mean", "none"))]


def rules(function: Callable) -> dict[str, Callable]:
    """Return the checks in the annotations of a function's parameters, or of a class's fields."""
    found = {}
    for name, hint in get_type_hints(function, include_extras=True).items():
        for part in (hint, *get_args(hint)):  # those of a union, such as `Positive | None`, too
            for rule in getattr(part, "__metadata__", ()):
                found[name] = partial(_unless_none, rule) if part is not hint else rule
    return found


def _unless_none(rule: Callable, name: str, value) -> None:
    if value is not None:
        rule(name, value)


def check(known: dict[str, Callable], options: dict) -> None:
    """Apply the rules to the options that have one."""
    for name, rule in known.items():
        if name in options:
            rule(name, options[name])


def checked(function: Callable) -> Callable:
    """Check the arguments of each call by the rules in the function's annotations."""
    known, names = rules(function), tuple(inspect.signature(function).parameters)

    @wraps(function)
    def call(*values, **options):
        check(known, dict(zip(names, values)) | options)
        return function(*values, **options)

    return call


def renamed(**names: str) -> Callable:
    """Let a function take options under their old names, as in ``renamed(old="new")``.

    Each such call gives a FutureWarning. It raises TypeError if the option is given twice.
    """

    def decorate(function: Callable) -> Callable:
        @wraps(function)
        def call(*values, **options):
            for old, new in names.items():
                if old not in options:
                    continue
                if new in options:
                    raise TypeError(f"{old} is the old name of {new}; give {new} alone")
                rule = f"{old} is called {new} now; a later version drops the old name"
                warnings.warn(f"{function.__name__}: {rule}", FutureWarning, stacklevel=2)
                options[new] = options.pop(old)
            return function(*values, **options)

        return call

    return decorate


class Checked:
    """Base class of frozen dataclasses: each is checked by the rules in its annotations."""

    _rules: ClassVar[dict[str, Callable]]

    def __init_subclass__(cls):
        """Read the rules once, while the module of the class is at hand."""
        cls._rules = rules(cls)

    def __post_init__(self):
        """Check the options."""
        check(self._rules, vars(self))


def shapes(fits: bool, rule: str, *tensors: Tensor) -> None:
    """Raise ValueError "rule, got ..." with the shapes of the tensors unless they fit."""
    if not fits:
        raise ValueError(f"{rule}, got {', '.join(str(tuple(x.shape)) for x in tensors)}")


def mask(name: str, value: Tensor, like: Tensor) -> None:
    """Raise ValueError unless the value is a boolean mask of the shape of `like`."""
    if value.dtype != torch.bool or value.shape != like.shape:
        rule = f"{name} must be a boolean mask of shape {tuple(like.shape)}"
        raise ValueError(f"{rule}, got {value.dtype} of shape {tuple(value.shape)}")


def labels(values, count: int, kind: str) -> Tensor:
    """Return the labels as integers; raise ValueError unless there are `count` whole numbers."""
    values = torch.as_tensor(values)
    if values.is_floating_point() or values.shape != (count,):
        rule = f"labels of {count} {kind} must be integers of shape ({count},)"
        raise ValueError(f"{rule}, got {values.dtype} of shape {tuple(values.shape)}")
    return values.long()


def per_anchor(name: str, value, n: int):
    """Return a number unchanged, and one value per anchor as a column of shape [n, 1]."""
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    shapes(value.shape == (n,), f"{name} must be a number or have shape ({n},)", value)
    return value[:, None]


def outside_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context without autocast, also for devices that have none."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def transformed() -> bool:
    """Return whether a transform of torch.func is at work, which may change nothing outside."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]


def traced() -> bool:
    """Return whether a compiler or torch.func is at work: nothing may keep a tensor made then."""
    return torch.compiler.is_compiling() or transformed()


def in_backward() -> bool:
    """Return whether a backward pass is at work, in which checkpointing repeats forward passes."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage]


def on_cpu(x: Tensor) -> bool:
    """Return whether values can be read at no cost: on a CPU, not compiled and not of a vmap."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    while is_functorch_wrapped_tensor(x):  # vmap may lie below a gradient
        if is_batchedtensor(x):
            return False
        x = get_unwrapped(x)
    return True


def raise_if(bad: Tensor, message: str, value: Tensor | None = None) -> None:
    """Raise ValueError if any entry of `bad` of shape [n] is true.

    The message may contain {row}, the first such entry, and {value}, that entry of `value`. On an
    accelerator, where reading it would stall every step, and where it is compiled, the innermost
    `deferred` keeps the condition until it is asked.
    """
    if on_cpu(bad):
        if bad.any():
            row = int(bad.nonzero()[0])
            shown = row if value is None else value[row].item()
            raise ValueError(message.format(row=row, value=shown))
    elif _deferred and (bad.device.type not in ("cpu", "meta") or torch.compiler.is_compiling()):
        _deferred[-1].add(bad, message, value)


class Deferred:
    """Conditions met on an accelerator or compiled, which stay there until `raise_if_any`."""

    def __init__(self):
        self._met: dict[str, tuple[Tensor, ...]] = {}

    def add(self, bad: Tensor, message: str, value: Tensor | None = None) -> None:
        """Keep the first true entry of `bad` of shape [n], unless one has already been kept.

        What is kept is written in place: a CUDA graph repeats the writing alone.
        """
        row = bad.int().argmax()
        value = row.clone() if value is None else value.detach().index_select(0, row[None])[0]
        if message not in self._met:
            self._met[message] = bad.any(), row, value
            return
        met, *first = self._met[message]
        for kept, new in zip(first, (row, value)):
            kept.copy_(torch.where(met, kept, new))
        met.logical_or_(bad.any())

    def raise_if_any(self) -> None:
        """Raise ValueError with the message of the first condition met; then forget them all."""
        try:
            for message, (bad, row, value) in self._met.items():
                if bad.item():
                    raise ValueError(message.format(row=row.item(), value=value.item()))
        finally:
            self.forget()

    def forget(self) -> None:
        """Forget the conditions met so far, in place."""
        for bad, *_ in self._met.values():
            bad.zero_()


_deferred: list[Deferred] = []


@contextmanager
def deferred(conditions: Deferred | None = None) -> Iterator[Deferred]:
    """Collect the conditions that `raise_if` meets on an accelerator, to be raised later."""
    _deferred.append(conditions or Deferred())
    try:
        yield _deferred[-1]
    finally:
        _deferred.pop()
