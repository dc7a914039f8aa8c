r"""InfoNCE without the similarity matrix: block by block, for batches of any size.

For weights that are functions of one similarity,
$\log w_{ij} = f(s_{ij}) - \operatorname{logsumexp}_{k \in N(i)} f(s_{ik})$, an anchor needs two
numbers of its negatives, $\operatorname{logsumexp}_j(f(s_{ij}) + s_{ij}/t)$ and
$\operatorname{logsumexp}_j f(s_{ij})$. Both accumulate over the blocks, and the backward pass
computes every block again. Memory is $O(nd)$ instead of $O(nm)$; values and gradients are those of
`hnlib.objectives.info_nce`. Weights that compare all candidates (transport, a $\chi^2$ ball,
UnReMix, the centred tilt) have no such $f$.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from hnlib import _checks, negatives, objectives
from hnlib.contrast import Contrast, Masks, check_views, unit_rows
from hnlib.negatives import SimilarityWeighting, uniform


@_checks.checked
def info_nce(
    z1: Tensor,
    z2: Tensor,
    weights: SimilarityWeighting | None = None,
    temperature: _checks.Positive = 0.5,
    tau_plus: float | Tensor = 0.0,
    scale: float | None = None,
    labels: Tensor | None = None,
    reduction: str = "mean",
    block: Annotated[int, partial(_checks.integer, least=1)] | None = None,
    loudness: float | str = 1.0,
) -> Tensor:
    r"""Compute `hnlib.objectives.info_nce` in memory $O(nd)$: same value, same gradient.

    For batches whose matrix of similarities does not fit into memory: the backward pass computes
    the similarities again. The encoder runs once (twice with GradCache). `streamed` takes a method.

    Parameters
    ----------
    z1, z2 : Tensor of shape [B, d]
        Two views, as in `Contrast.from_views`.
    weights : SimilarityWeighting, optional
        `negatives.uniform` (the default), `tilted`, `thresholded` or `gaussian`, with options that
        are numbers.
    temperature : float, default 0.5
        Temperature $t > 0$, one for all anchors.
    tau_plus, scale, reduction
        As in `hnlib.objectives.info_nce`.
    labels : Tensor of shape [B], optional
        Classes. Negatives are those of other classes; the positive is the other view.
    block : int, optional
        Side of the blocks; default 512, or 4096 on an accelerator.
    loudness
        As in `hnlib.objectives.info_nce`.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an argument is out of range, weights are not a function of one similarity, or an anchor
        has no negative and the weights have ``on_empty="raise"``.
    RuntimeError
        If a second derivative is requested.

    Examples
    --------
    >>> import torch
    >>> from hnlib import methods, negatives, streaming
    >>> z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> loss = streaming.info_nce(z1, z2, negatives.tilted(beta=1.0), temperature=0.5)
    >>> torch.isclose(loss, methods.build("hcl", beta=1.0, tau_plus=0.0)(z1, z2))
    tensor(True)
    """
    if isinstance(temperature, Tensor) and (temperature.ndim or temperature.requires_grad):
        raise ValueError("streaming needs a temperature that is one number, without gradient")
    weights = uniform() if weights is None else weights
    if not _is_streamable(weights):
        raise ValueError(
            "weights must be negatives.uniform, tilted, thresholded or gaussian with options that "
            f"are numbers, got {weights}"
        )
    if block is None:
        block = 512 if z1.device.type == "cpu" else 4096
    check_views(z1, z2)
    batch = len(z1)
    if labels is not None:
        labels = _checks.labels(labels, batch, "images").to(z1.device).repeat(2)
    with _checks.outside_autocast(z1.device):
        z, _ = unit_rows(torch.cat([z1, z2]))
        blocks = _Blocks(z.detach(), labels, block)
        soft = _SoftMaximum.apply(z, blocks, weights, 1 / float(temperature))
        empty = soft.detach() == -torch.inf
        if weights.on_empty == "raise":
            message = "anchor {row} has no negative of positive weight; use a batch with more "
            _checks.raise_if(empty, f"{message}classes or a lower threshold, {negatives.SKIP}")
        # An anchor's negatives act like one whose similarity is t times their log-sum-exp: [n, 2].
        positive = (z * z.roll(batch, 0)).sum(1)
        pair = torch.stack([positive, torch.where(empty, 0.0, soft) * temperature], 1)
        positives = torch.zeros_like(pair, dtype=torch.bool)
        positives[:, 0] = True
        first = torch.zeros_like(empty, dtype=torch.long)
        contrast = Contrast(pair, Masks(positives, ~positives, pair.dtype, first), 2 * batch - 2)
        log_w = torch.zeros_like(pair).masked_fill_(positives | empty[:, None], -torch.inf)
        options = dict(reduction=reduction, loudness=loudness)
        return objectives.info_nce(contrast, log_w, temperature, tau_plus, scale, **options)


def streamed(method, block: int | None = None) -> Callable[..., Tensor]:
    """Return the loss of a method of the catalogue, streamed.

    Parameters
    ----------
    method : hnlib.methods.Method
        The method must be InfoNCE with one positive and weights that are a function of one
        similarity.
    block : int, optional
        As in `info_nce`.

    Returns
    -------
    callable
        Called as the method is, on two views and, if it needs them, `labels`.

    Raises
    ------
    ValueError
        If the method cannot be streamed.
    """
    entry, options, name = method.entry, method.options, method.name
    if not (
        entry.objective is objectives.info_nce
        and entry.synthetic is None
        and entry.logit is None
        and _is_streamable(method.log_weights)
        and options.get("positives", "view") == "view"
        and not options.get("hardness_strength")
    ):
        raise ValueError(
            f"{name} cannot be streamed with these options: it takes InfoNCE of s/t, uniform, "
            'tilted, thresholded or gaussian weights and one positive (positives="view"); '
            "call the method itself"
        )
    bound = method.objective.keywords.items()
    chosen = {k: v for k, v in bound if k not in ("average", "hardness_strength")}
    loss = partial(info_nce, weights=method.log_weights, block=block, **chosen)

    def call(z1: Tensor, z2: Tensor, labels: Tensor | None = None) -> Tensor:
        if entry.supervised and labels is None:
            raise ValueError(f"{name} needs labels; call it as loss(z1, z2, labels)")
        return loss(z1, z2, labels=labels if entry.supervised else None)

    return call


def _is_streamable(weights) -> bool:
    per_anchor = any(isinstance(value, Tensor) for value in vars(weights).values())
    return isinstance(weights, SimilarityWeighting) and not per_anchor


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The similarities of two views [n, n] in blocks.

    Blocks below the diagonal are the transposes of those above, and are left out.
    """

    z: Tensor
    labels: Tensor | None
    side: int

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor]]:
        n = len(self.z)
        for i in range(0, n, self.side):
            rows = slice(i, min(i + self.side, n))
            for j in range(i, n, self.side):
                columns = slice(j, min(j + self.side, n))
                yield rows, columns, self.z[rows] @ self.z[columns].T

    def mask(self, f: Tensor, rows: slice, columns: slice) -> Tensor:
        """Write −inf for the anchor, its other view and, with labels, its class."""
        batch = len(self.z) // 2
        for offset in (0, batch, -batch):
            f.diagonal(offset + rows.start - columns.start).fill_(-torch.inf)
        if self.labels is not None:
            f.masked_fill_(self.labels[rows, None] == self.labels[columns], -torch.inf)
        return f

    def log_counts(self) -> Tensor:
        """Return the logarithms of the numbers of negatives."""
        n = len(self.z)
        count = torch.full((n,), n - 2, device=self.z.device)
        if self.labels is not None:
            ranked = self.labels.sort().values  # `unique` would wait for the number of classes
            end, start = (torch.searchsorted(ranked, self.labels, right=r) for r in (True, False))
            count = n - (end - start)
        return count.to(self.z.dtype).log()


def accumulate(total: Tensor, rows: slice, x: Tensor) -> None:
    r"""Add $\sum_j e^{x_{ij}}$ over a block to the sums of some rows, with logarithms `total`."""
    total[rows] = torch.logaddexp(total[rows], x.logsumexp(1))


class _SoftMaximum(torch.autograd.Function):
    r"""$\log\sum_j w_{ij} e^{s_{ij}/t}$ of shape [n], $-\infty$ without negatives.

    With the shares $p \propto we^{s/t}$ and $w$, the derivative in $s_{ij}$ is
    $p_{ij}/t + (p_{ij} - w_{ij}) f'(s_{ij})$, where the second term counts only if gradients flow
    through the weights.
    """

    @staticmethod
    def forward(ctx, z: Tensor, blocks, weights, inverse_t):
        above, below = z.new_full((2, len(z)), -torch.inf)
        for rows, columns, s in blocks:
            f, x = _logits(blocks, weights, inverse_t, rows, columns, s)
            for total, y in ((above, x), (below, f)):
                if y is not None:
                    accumulate(total, rows, y)
                    if rows != columns:
                        accumulate(total, columns, y.T)
        below = blocks.log_counts() if isinstance(weights, uniform) else below
        ctx.blocks, ctx.weights, ctx.inverse_t = blocks, weights, inverse_t
        ctx.save_for_backward(above, below)
        return torch.where(below == -torch.inf, -torch.inf, above - below)

    @staticmethod
    def backward(ctx, grad: Tensor):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a streamed loss has no second derivative; use the dense loss, "
                "hnlib.objectives.info_nce or the method itself, on a smaller batch"
            )
        with _checks.outside_autocast(grad.device):
            sums = *ctx.saved_tensors, grad
            return _gradient(ctx.blocks, ctx.weights, ctx.inverse_t, sums), None, None, None


def _gradient(blocks, weights, inverse_t: float, sums) -> Tensor:
    empty = sums[1] == -torch.inf  # their shares are e^{-inf} = 0, not e^{-inf + inf}
    sums = [x.masked_fill(empty, 0.0) for x in sums]
    z, gradient = blocks.z, torch.zeros_like(blocks.z)

    def in_s(f, x, slope, above, below, grad):
        p = (x - above).exp_()
        if slope is None:
            return p.mul_(grad * inverse_t)
        w = (f - below).exp_()
        return torch.sub(p, w).mul_(slope).add_(p, alpha=inverse_t).mul_(grad)

    for rows, columns, s in blocks:
        f, x = _logits(blocks, weights, inverse_t, rows, columns, s)
        slope = weights.slope(s) if weights.weights_gradient else None
        g = in_s(f, x, slope, *(y[rows, None] for y in sums))
        if rows != columns:
            g += in_s(f, x, slope, *(y[columns] for y in sums))
        gradient[rows] += g @ z[columns]
        gradient[columns] += g.T @ z[rows]
    return gradient


def _logits(blocks, weights, inverse_t: float, rows: slice, columns: slice, s: Tensor):
    """Return $f(s)$, None for uniform weights, and $f(s) + s/t$, both −inf if not admissible."""
    if isinstance(weights, uniform):
        return None, blocks.mask(s * inverse_t, rows, columns)
    f, scale = weights.score(s)
    f = blocks.mask(s * scale if f is s else f.mul_(scale), rows, columns)
    return f, torch.add(f, s, alpha=inverse_t)
