r"""InfoNCE without the matrix: blocks of similarities, used and forgotten, for batches and banks of
any size.

For weights that are functions of one similarity,
$\log w_{ij}=f(s_{ij})-\operatorname{logsumexp}_{k\in N(i)}f(s_{ik})$, an anchor needs two numbers
of all its negatives, $\operatorname{logsumexp}_j(f(s_{ij})+s_{ij}/t)$ and
$\operatorname{logsumexp}_jf(s_{ij})$. Both grow with the block; the backward pass computes each
block again. Memory $O(nd)$ instead of $O(nm)$; values and gradients are those of
`hnlib.objectives.info_nce`. Weights that look at all candidates together (transport, a $\chi^2$
ball, UnReMix, the centred tilt) have no such $f$.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hnlib import _checks, negatives, objectives
from hnlib.contrast import Contrast, Masks, check_queue, check_views, in_one_precision, unit_rows
from hnlib.negatives import LogWeights, Score


def info_nce(
    z1: Tensor,
    z2: Tensor,
    weights: LogWeights | None = None,
    temperature: float = 0.5,
    tau_plus: float | Tensor = 0.0,
    scale: float | None = None,
    queue: Tensor | None = None,
    labels: Tensor | None = None,
    on_empty: str = "raise",
    reduction: str = "mean",
    block: int | None = None,
    accumulator: type[LogSumExp] | None = None,
) -> Tensor:
    r"""`hnlib.objectives.info_nce` in memory $O(nd)$: the same value, the same gradient.

    Two views `z1`, `z2` $[B,d]$ as in `Contrast.from_views`; with a `queue` $[K,d]$ queries, keys
    and older keys as in `Contrast.from_queue`. `weights`: `negatives.uniform` (the default),
    `tilted`, `thresholded` or `gaussian`, or any value with such a `.score`; it is not called. With
    `labels` $[B]$ the negatives are those of other classes and the positive is the other view
    (`positives="view"`); not with a queue. `block`: side of the blocks, default 512, on an
    accelerator 4096; beyond the embeddings and their gradients the memory is a few blocks.
    `accumulator`: how the sums of the blocks are kept, default `LogSumExp`. Other arguments as
    there and in `hnlib.negatives`, `temperature` a number. ValueError: as there; a temperature or
    an option of the weights for each anchor; weights without `.score`; a block below 1; inside
    torch.func. RuntimeError: a second derivative is asked for.
    """
    _checks.floating(z1=z1, z2=z2)
    _checks.single("temperature", temperature, "streaming takes one for all anchors")
    if isinstance(temperature, Tensor) and temperature.requires_grad:
        raise ValueError(
            "a temperature that is learned would get no gradient through the blocks; pass a number"
        )
    _checks.positive("temperature", temperature)
    negatives.check_on_empty("on_empty", on_empty)
    if accumulator is not None and not callable(accumulator):
        raise ValueError(f"accumulator={_checks.shown(accumulator)} must be a class like LogSumExp")
    score = getattr(negatives.uniform() if weights is None else weights, "score", None)
    if not isinstance(score, Score):
        raise ValueError(
            f"weights={_checks.shown(weights)} are no function of one similarity alike for all "
            "anchors; use negatives.uniform, tilted, thresholded or gaussian, their options numbers"
        )
    if _checks.transformed() and not torch.compiler.is_compiling():
        raise ValueError(f"torch.func cannot follow the blocks; {_DENSE}")
    with _checks.outside_autocast(z1.device):
        cells, size = _cells(z1, z2, queue, labels, block)
        rule = score, 1 / float(temperature), LogSumExp if accumulator is None else accumulator
        soft = _Soft.apply(cells.anchors, cells.candidates, cells, *rule)
        empty = soft.detach() == -torch.inf
        if (score.cuts or labels is not None) and on_empty == "raise":
            sentence = f"anchor {{row}} has no negative of positive weight; {negatives.SKIP}"
            _checks.refuse(empty, sentence)
        # All negatives of an anchor count as one at t times their soft maximum: what is left is a
        # contrast [n, 2].
        keys = cells.candidates[: len(z1)] if queue is not None else cells.anchors.roll(len(z1), 0)
        positive = (cells.anchors * keys).sum(1)
        pair = torch.stack([positive, torch.where(empty, 0.0, soft) * temperature], 1)
        own = torch.zeros_like(pair, dtype=torch.bool)
        own[:, 0] = True
        first = torch.zeros_like(empty, dtype=torch.long)
        contrast = Contrast(pair, Masks(own, ~own, pair.dtype, first), size)
        log_w = torch.zeros_like(pair).masked_fill_(own | empty[:, None], -torch.inf)
        return objectives.info_nce(
            contrast, log_w, temperature, tau_plus, scale, reduction=reduction
        )


_DENSE = "use the dense loss, hnlib.objectives.info_nce or the method itself, on a smaller batch"


def streamed(
    method, block: int | None = None, accumulator: type[LogSumExp] | None = None
) -> Callable[..., Tensor]:
    """The loss of a method of the catalogue, streamed: `streamed(methods.build("hcl",
    beta=2.0))(z1, z2)`.

    Called as the method is, on two views and, where it learns from labels, `labels`; a `queue` may
    be named too. ValueError: another objective than InfoNCE, weights that are no function of one
    similarity, several positives.
    """
    entry, options = method.entry, method.options
    if entry.objective is not objectives.info_nce:
        raise ValueError(
            f"{method.name} is not InfoNCE but {entry.objective.__name__}; call the method itself"
        )
    if entry.made_up is not None:
        raise ValueError(
            f"{method.name} makes up negatives for each anchor, which cannot be streamed; call the "
            "method itself"
        )
    if method.log_weights.score is None:
        raise ValueError(
            f"the weights of {method.name} ({entry.negatives.__name__}) are no function of one "
            "similarity and cannot be streamed; call the method itself"
        )
    if entry.supervised and options["positives"] != "view":
        raise ValueError(
            f'{method.name} has every candidate of the class for a positive; pass positives="view"'
        )
    if options.get("hardness_strength"):
        raise ValueError(
            f"hardness_strength={options['hardness_strength']:g} cannot be streamed; hcl with "
            "beta=hardness_strength·temperature, tau_plus=0 and weights_gradient=False is its "
            "normalised form"
        )
    known = inspect.signature(info_nce).parameters
    loss = partial(
        info_nce,
        weights=method.log_weights,
        block=block,
        accumulator=accumulator,
        **{key: value for key, value in options.items() if key in known},
    )

    def call(
        z1: Tensor, z2: Tensor, labels: Tensor | None = None, queue: Tensor | None = None
    ) -> Tensor:
        if entry.supervised and labels is None:
            raise ValueError(f"{method.name} learns from labels; call it as loss(z1, z2, labels)")
        return loss(z1, z2, labels=labels if entry.supervised else None, queue=queue)

    return call


@dataclass(frozen=True, eq=False)
class _Cells:
    """The pairs (anchor, candidate) in blocks. Not admissible: the diagonals `own`, and candidates
    of the same class.

    Where the candidates are the anchors, blocks below the diagonal are the transposes of those
    above and left out.
    """

    anchors: Tensor
    candidates: Tensor
    own: tuple[int, ...]
    labels: Tensor | None
    symmetric: bool
    block: int

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor]]:
        n, m = len(self.anchors), len(self.candidates)
        for i in range(0, n, self.block):
            rows = slice(i, min(i + self.block, n))
            for j in range(i if self.symmetric else 0, m, self.block):
                columns = slice(j, min(j + self.block, m))
                yield rows, columns, self.anchors[rows] @ self.candidates[columns].T

    def mask(self, f: Tensor, rows: slice, columns: slice) -> Tensor:
        """Write -inf where the pair is not admissible; an own diagonal of the matrix is one of the
        block, or misses."""
        for offset in self.own:
            f.diagonal(offset + rows.start - columns.start).fill_(-torch.inf)
        if self.labels is not None:
            f.masked_fill_(self.labels[rows, None] == self.labels[columns], -torch.inf)
        return f

    def log_counts(self) -> Tensor:
        n, m = len(self.anchors), len(self.candidates)
        left = torch.full((n,), m - (2 if self.symmetric else 1), device=self.anchors.device)
        if self.labels is not None:
            ranked = self.labels.sort().values  # `unique` would wait for the number of classes
            alike = (torch.searchsorted(ranked, self.labels, right=r) for r in (True, False))
            left = m - torch.sub(*alike)
        return left.to(self.anchors.dtype).log()


def _cells(z1, z2, queue, labels, block) -> tuple[_Cells, int]:
    """Unit rows and their roles, checked as `Contrast` checks them; and the default scale."""
    if block is None:
        block = 512 if z1.device.type == "cpu" else 4096
    _checks.whole("block", block, least=1)
    if queue is not None:
        if labels is not None:
            raise ValueError(
                "labels with a queue make several positives; "
                "use Contrast.from_queue and the dense loss"
            )
        check_queue(z1, z2, queue)
        z1, z2 = in_one_precision(z1, torch.cat([z2, queue]))
        anchors = unit_rows(z1, "of the queries")[0]
        candidates = unit_rows(z2, "of keys and queue")[0]
        return _Cells(anchors, candidates, (0,), None, False, block), len(candidates) - 1
    check_views(z1, z2)
    batch = len(z1)
    z, _ = unit_rows(torch.cat([z1, z2]))
    if labels is not None:
        labels = _checks.labels(labels, batch, "images").to(z.device).repeat(2)
    return _Cells(z, z, (0, batch, -batch), labels, True, block), 2 * batch - 2


class LogSumExp:
    r"""$\log\sum_je^{x_{ij}}$ by rows, block after block: the largest so far, and the sum relative
    to it."""

    def __init__(self, like: Tensor):
        lowest = torch.finfo(like.dtype).min  # not -inf: -inf + inf is NaN
        self.largest = torch.full_like(like[:, 0], lowest)
        self.total = torch.zeros_like(self.largest)

    def add(self, rows: slice, x: Tensor) -> None:
        before = self.largest[rows]
        largest = torch.maximum(before, x.amax(1))
        terms = (x - largest[:, None]).exp_().sum(1)
        self.total[rows] = self.total[rows] * (before - largest).exp() + terms
        self.largest[rows] = largest

    def value(self) -> Tensor:
        return self.largest + self.total.log()


class _Soft(torch.autograd.Function):
    r"""$\log\sum_jw_{ij}e^{s_{ij}/t}$ $[n]$, $-\infty$ without negatives. With the shares $p\propto
    we^{s/t}$ and $w$,

    $\partial/\partial s_{ij}=p_{ij}/t+(p_{ij}-w_{ij})f'(s_{ij})$, the second term where gradient
    flows through weights.
    """

    @staticmethod
    def forward(ctx, anchors: Tensor, candidates: Tensor, cells, score, inverse_t, accumulator):
        above, below = accumulator(anchors), accumulator(anchors)
        for rows, columns, s in cells:
            f, x = _logits(cells, score, inverse_t, rows, columns, s)
            mirrored = cells.symmetric and rows != columns
            for total, y in ((above, x), (below, f)):
                if y is not None:
                    total.add(rows, y)
                    if mirrored:
                        total.add(columns, y.T)
        above = above.value()
        below = cells.log_counts() if score.value is None else below.value()
        ctx.cells, ctx.score, ctx.inverse_t = cells, score, inverse_t
        ctx.save_for_backward(above, below)
        empty = below == -torch.inf
        return torch.where(empty, -torch.inf, above - below)

    @staticmethod
    def backward(ctx, grad: Tensor):
        if torch.is_grad_enabled():
            raise RuntimeError(f"a streamed loss has no second derivative; {_DENSE}")
        with _checks.outside_autocast(grad.device):
            return *_gradients(ctx, grad), None, None, None, None


def _gradients(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    cells, score, inverse_t = ctx.cells, ctx.score, ctx.inverse_t
    above, below = ctx.saved_tensors
    empty = below == -torch.inf  # their shares are e^{-inf} = 0, not e^{-inf + inf}
    above, below, grad = (x.masked_fill(empty, 0.0)[:, None] for x in (above, below, grad))
    needs_anchors, needs_candidates = ctx.needs_input_grad[:2]
    grad_a = torch.zeros_like(cells.anchors) if needs_anchors else None
    grad_c = grad_a
    if not cells.symmetric:
        grad_c = torch.zeros_like(cells.candidates) if needs_candidates else None

    def in_s(rows, f, x, slope):
        p = (x - above[rows]).exp_()
        if slope is None:
            return p.mul_(grad[rows] * inverse_t)
        w = (f - below[rows]).exp_()
        return torch.sub(p, w).mul_(slope).add_(p, alpha=inverse_t).mul_(grad[rows])

    for rows, columns, s in cells:
        f, x = _logits(cells, score, inverse_t, rows, columns, s)
        slope = None if score.slope is None else score.slope(s)
        g = in_s(rows, f, x, slope)
        if cells.symmetric and rows != columns:
            flip = slope.T if isinstance(slope, Tensor) else slope
            g += in_s(columns, f.T if f is not None else None, x.T, flip).T
        if grad_a is not None:
            grad_a[rows] += g @ cells.candidates[columns]
        if grad_c is not None and (not cells.symmetric or rows != columns):
            grad_c[columns] += g.T @ cells.anchors[rows]
        elif cells.symmetric:
            grad_a[rows] += g.T @ cells.anchors[rows]
    return grad_a, None if cells.symmetric else grad_c


def _logits(cells: _Cells, score: Score, inverse_t: float, rows: slice, columns: slice, s: Tensor):
    """$f(s)$ and $f(s)+s/t$ on a block, $-\\infty$ where not admissible; no $f$ where it is
    constant."""
    if score.value is None:
        return None, cells.mask(s * inverse_t, rows, columns)
    f = cells.mask(score.value(s), rows, columns)
    return f, torch.add(f, s, alpha=inverse_t)
