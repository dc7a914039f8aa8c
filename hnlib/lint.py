"""Look for mistakes in a contrastive training: `lint(loss, z1, z2)` calls a loss as it does.

The loss is a black box. Three probes tell mistakes apart: which key pulls a query where all rows
are orthogonal, whether lengths change the value, and how the value falls as rows that are no pair
move apart, from which the temperature of a softmax follows. The batch itself shows equal keys,
equal views, shuffled pairs; two processes show what becomes of the gradient.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import MethodType

import torch
from torch import Tensor, nn

from hnlib import _checks
from hnlib._lint_checks import CHECKS, OF_CURVE, OF_PAIRS, floor
from hnlib._lint_rows import anchored, graded
from hnlib._loss_probes import probed
from hnlib._loss_program import TWO, Program
from hnlib.loss_modules import Method

__all__ = ["Findings", "lint", "watch"]


@dataclass(frozen=True)
class Findings:
    """What `lint` found; `str()` has one line for each cause and is empty if all is well.

    Parameters
    ----------
    sentences : dict
        What is wrong and what to do, by cause; what explains most comes first.
    """

    sentences: dict[str, str]

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes in their order."""
        return tuple(self.sentences)

    def __bool__(self) -> bool:
        return bool(self.sentences)

    def __str__(self) -> str:
        return "\n".join(f"{cause}: {says}" for cause, says in self.sentences.items())


def lint(
    loss: Callable,
    *arguments,
    inputs: Sequence[Sequence[Hashable] | Tensor] | None = None,
    model: nn.Module | None = None,
    **named,
) -> Findings:
    r"""Look for silent mistakes in a contrastive training.

    Parameters
    ----------
    loss : callable
        Returns a scalar. A module is copied first, so its state does not change.
    *arguments, **named
        What the training passes to the loss in one batch. Embeddings are float tensors. The first,
        [n, d], are queries or first views; row i of the second, [m, d] with m ≥ n, answers row i.
        Rows beyond n and further tensors are negatives, [n, k, d] if each query has its own. A
        single tensor is [2n, d], all first views and then all second ones, or [n, views, d]; with
        2n labels its rows have any order.
        A vector of n scores, or of 1 and 0, may say which rows are pairs.
    inputs : sequence, optional
        What the rows of each embedding were made of: texts, ids, or a tensor; of a queue, which is
        the last, it may be left out. Rows of equal inputs are equal keys, even if dropout embeds
        them differently, and equal rows of different inputs are a mistake of the encoder.
    model : Module, optional
        The encoder, or both, if it has a learned scale. Embeddings that still have their graph also
        show whether a part of it gets no gradient; with `inputs` that are tensors which it takes,
        it is also asked whether batch statistics tell pairs apart.

    Returns
    -------
    Findings
        A sentence for each cause; empty if all is well.

    Raises
    ------
    ValueError
        If no argument is an embedding, a query stands alone or is several rows, or the loss returns
        no scalar.

    Notes
    -----
    Under `torch.distributed` every process calls it with its part of the batch, and the gradient
    is compared with that of the whole batch, as `DistributedDataParallel` averages it.

    Examples
    --------
    >>> import torch
    >>> from torch.nn.functional import cross_entropy, normalize
    >>> from hnlib.lint import lint
    >>> loss = lambda q, k: cross_entropy(q @ k.T / 0.07, torch.arange(len(q)))
    >>> q, noise = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(0))
    >>> lint(loss, q, q + noise).causes  # rows are not normalised
    ('lengths',)
    >>> bool(lint(loss, normalize(q), normalize(q + noise)))
    False
    """
    program = Program(loss, arguments, named)
    if program.layout == "stacked" and any(program.given[k].ndim == 3 for k in program.slots[1:]):
        raise ValueError(f"{TWO}, got embeddings of tokens, of which each row has several")
    if inputs is not None and program.layout == "halves" and len(inputs) == 1:
        inputs = [inputs[0][: program.n], inputs[0][program.n :]]
    rows = [len(z) for z in program.columns]
    given = [len(x) for x in inputs or ()]
    if inputs is not None and (not given or given != rows[: len(given)]):
        raise ValueError(f"inputs must have {rows} rows, as the embeddings have, got {given}")
    value, gradients, scales = program.gradients(program.columns, model)
    if not math.isfinite(value) or not all(bool(g.isfinite().all()) for g in gradients):
        says = f"loss {value:g} or its gradient; look for log(0), 0/0 (a row of zeros, a class of "
        return Findings({"not finite": says + "one row) and half precision (exp, a mask of −1e9)"})
    if not gradients:
        says = "no embedding gets one; look for detach, no_grad, .data, .item(), argmax"
        return Findings({"no gradient": says})
    if program.n == 1:
        if rows == [1, 1] and not any(bool((g != 0).any()) for g in gradients):
            says = f"one pair is its own only candidate, the loss is {value:.3g} with no gradient"
            remedy = "embed more pairs at once; accumulated gradients bring no negatives"
            return Findings({"no negatives": f"{says}; {remedy}"})
        raise ValueError(f"{TWO}, got embeddings of {rows} rows")
    batch = probed(program, value, gradients, scales, inputs, model)
    idle = OF_PAIRS | OF_CURVE if anchored(program) else OF_PAIRS if graded(batch) else set()
    checks = {k: check for k, check in CHECKS.items() if k not in idle}
    found = {cause: check(batch) for cause, check in checks.items()}
    found = {cause: says for cause, says in found.items() if says}
    won = None if found else floor(batch)  # else it is a consequence
    return Findings({"floor": won} if won else found)


def watch(loss: Callable, every: int = 1000, look: Callable[..., Findings] = lint) -> Callable:
    """Let `lint` look at the first batch of a training, and at one of so many after it.

    Each cause is a warning, once. For plain loops, and for a LightningModule that calls its loss.

    Parameters
    ----------
    loss : callable
        A loss as `lint` takes it.
    every : int, default 1000
        Calls between two looks.
    look : callable, default `lint`
        What is called with the loss and its arguments, for losses that take no embeddings.

    Returns
    -------
    callable
        To be called in place of the loss; a module is returned itself.

    Raises
    ------
    ValueError
        If `every` is not a positive integer.

    Examples
    --------
    >>> import torch
    >>> from hnlib import methods
    >>> from hnlib.lint import watch
    >>> loss = watch(methods.build("simclr", temperature=0.1))
    >>> z = torch.randn(8, 32, requires_grad=True)
    >>> value = loss(z, z + 0.1 * torch.randn(8, 32))  # nothing is said
    """
    schedule = Schedule(every)
    if isinstance(loss, nn.Module):

        def hook(module, given, named):
            schedule.look(lambda: look(module, *given, **named))

        def pairs(self, *given, **named):
            call = functools.partial(type(self).pairs, self)
            schedule.look(lambda: look(call, *given, **named))
            return call(*given, **named)

        loss.register_forward_pre_hook(hook, with_kwargs=True)
        if isinstance(loss, Method):  # its other call, which no hook sees
            loss.pairs = MethodType(pairs, loss)  # bound, so that a copy has its own
        return loss

    @functools.wraps(loss)
    def watched(*given, **named):
        schedule.look(lambda: look(loss, *given, **named))
        return loss(*given, **named)

    return watched


class Schedule:
    """When to look, and what has been said: the first of `every` calls, and each cause once."""

    def __init__(self, every: int):
        _checks.integer("every", every, 1)
        self.every, self.calls, self.busy, self.told = every, 0, False, set()

    def look(self, find: Callable[[], Findings]) -> None:
        """Warn of what `find` finds, if it is time; a look never ends a training."""
        if self.busy or not torch.is_grad_enabled():
            return
        step, self.calls = self.calls, self.calls + 1
        if step % self.every:
            return
        self.busy = True  # the loss that is examined may itself be watched
        try:
            found = find()
        except Exception as error:
            found = Findings({"not examined": f"the loss cannot be called by itself: {error}"})
        finally:
            self.busy = False
        for cause, says in found.sentences.items():
            if cause not in self.told:
                self.told.add(cause)
                warnings.warn(f"step {step}, {cause}: {says}", stacklevel=4)
