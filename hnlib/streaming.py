r"""A loss without the similarity matrix: some anchors at a time, for batches of any size.

The losses of some anchors need their rows of the matrix [n, m] alone. So rows are made, their
gradient is added to that of the embeddings, and they are forgotten: memory is that of a few million
similarities instead of $nm$, and values and gradients are those of the method. Transport and
UnReMix compare all anchors of a batch, so they need the matrix.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hnlib import _checks
from hnlib.contrast import (
    Contrast,
    check_pairs,
    check_reversible,
    check_views,
    in_one_precision,
    inner_products,
    unit_rows,
)
from hnlib.masks import own_masks
from hnlib.methods import Method

__all__ = ["streamed"]

SIMILARITIES = 2**21  # at a time: 8 MB in each of some ten matrices


class streamed:
    """The loss of a method, computed some anchors at a time.

    For batches whose matrix of similarities does not fit into memory. Called as the method is, on
    two views and, if it needs them, `labels`; `pairs` takes queries and keys. The encoder runs once
    (twice with GradCache), and the loss has no second derivative.

    Parameters
    ----------
    method : hnlib.methods.Method
        Its loss of an anchor must not depend on the other anchors. Options may be tensors that are
        learned, such as the temperature.
    rows : int, optional
        Anchors at a time; default as many as have `SIMILARITIES` similarities.

    Raises
    ------
    ValueError
        If the method compares the anchors of a batch; when called, as the method, but an error
        counts anchors from the first of those that are computed together.

    Examples
    --------
    >>> import torch
    >>> from hnlib import methods, streaming
    >>> method = methods.build("hcl", beta=1.0)
    >>> z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> torch.isclose(streaming.streamed(method, rows=3)(z1, z2), method(z1, z2))
    tensor(True)

    Two towers in both directions, with a temperature that is learned:

    >>> log_scale = torch.tensor(2.66, requires_grad=True)
    >>> method = methods.build("simclr", temperature=(-log_scale).exp())
    >>> streaming.streamed(method, rows=3).pairs(z1, z2, both=True).backward()
    >>> log_scale.grad is not None
    True
    """

    def __init__(self, method: Method, rows: int | None = None):
        if rows is not None:
            _checks.integer("rows", rows, 1)
        self.method, self.rows = method, rows
        self._refuse()

    def __call__(self, z1: Tensor, z2: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the loss of two views.

        Parameters
        ----------
        z1, z2 : Tensor of shape [B, d]
            Embeddings of the views.
        labels : integers of shape [B], optional
            Classes; supervised methods need them, others ignore them.

        Returns
        -------
        Tensor of shape []
            The loss.
        """
        check_views(z1, z2)
        y, images = None, len(z1)
        if self.method.entry.supervised and labels is not None:
            y = _checks.labels(labels, images, "images").to(z1.device).repeat(2)
        z = _Rows.of(torch.cat([z1, z2]))  # [2B, d]

        def contrast(own: Tensor, similarity: Tensor) -> Contrast:
            masks = own_masks(own, 2 * images, images, similarity.dtype)  # [rows, 2B]
            found = Contrast(similarity, masks, 2 * images - 2)
            if y is None:
                return found
            same = y[own, None] == y
            positives = self.method.options.get("positives", "class")
            return found.with_labels(same, y[own], y, positives)

        return self._mean(z, z, contrast)

    def pairs(
        self,
        queries: Tensor,
        keys: Tensor,
        positives: Tensor | None = None,
        labels: Tensor | None = None,
        both: bool = False,
        excluded: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of queries and keys.

        Parameters
        ----------
        queries, keys, positives, labels, both, excluded
            As in `hnlib.methods.Method.pairs`: queries [n, d], keys [m, d] with m ≥ n, of which the
            first n are answers. The masks [n, m] take a byte for each pair.

        Returns
        -------
        Tensor of shape []
            The loss.
        """
        check_pairs(queries, keys)
        n, m = len(queries), len(keys)
        queries, keys = in_one_precision(queries, keys)
        own, others = _Rows.of(queries, "of the queries"), _Rows.of(keys, "of the keys")
        for name, mask in (("positives", positives), ("excluded", excluded)):
            if mask is not None:
                _checks.mask(name, mask, torch.empty(n, m, device="meta"))
        y = None if labels is None else _checks.labels(labels, m, "keys").to(keys.device)
        if not both:
            return self._of_queries(own, others, positives, y, excluded)
        check_reversible(n, m, labels)
        turned = [None if mask is None else mask.T for mask in (positives, excluded)]
        there = self._of_queries(own, others, positives, None, excluded)
        return (there + self._of_queries(others, own, turned[0], None, turned[1])) / 2

    def _of_queries(
        self,
        queries: _Rows,
        keys: _Rows,
        positives: Tensor | None,
        y: Tensor | None,
        excluded: Tensor | None,
    ) -> Tensor:
        """Return the mean loss of the queries."""
        m = len(keys.unit)
        of_class = self.method.options.get("positives", "class") == "class"

        def contrast(own: Tensor, similarity: Tensor) -> Contrast:
            masks = own_masks(own, m, 0, similarity.dtype)  # [rows, m]
            found = Contrast(similarity, masks, m - 1).with_answers(
                None if positives is None else positives[own],
                None if y is None else (y[own], y),
                of_class,
            )
            return found if excluded is None else found.without(excluded[own]).rescaled()

        return self._mean(queries, keys, contrast, skip=excluded is not None)

    def _mean(
        self,
        rows: _Rows,
        others: _Rows,
        contrast: Callable[[Tensor, Tensor], Contrast],
        skip: bool = False,
    ) -> Tensor:
        """Return the mean loss of n anchors among m candidates, which may be the same rows.

        ``contrast(own, similarity)`` is that of the anchors `own` [k], with similarities [k, m].
        """
        self._refuse()
        method, n, m = copy.copy(self.method), len(rows.unit), len(others.unit)
        given = {k: x for k, x in method.options.items() if isinstance(x, Tensor)}
        for name, x in given.items():
            _checks.per_anchor(name, x, n)
        # leaves: one option may be made of another, and autograd adds its part to that later
        leaves = {k: x.detach().requires_grad_(x.requires_grad) for k, x in given.items()}
        outer, inner = (
            [x for x in (*method.parameters(), *options.values()) if x.requires_grad]
            for options in (given, leaves)
        )
        ends = [rows] if rows is others else [rows, others]
        inputs = [*(end.given for end in ends), *outer]
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        sums = [torch.zeros_like(x) for x in (*(end.unit for end in ends), *outer)]
        of_rows, of_others, of_outer = sums[0], sums[len(ends) - 1], sums[len(ends) :]
        total, skipped = rows.unit.new_zeros(()), method.skipped.clone()
        whole = torch.arange(n, device=total.device), rows.unit, of_rows
        many = self.rows or max(1, SIMILARITIES // m)
        for own, anchors, of_anchors in zip(*(x.split(many) for x in whole)):
            if leaves:
                method.change(**{k: x[own] if x.ndim else x for k, x in leaves.items()})
            similarity = inner_products(anchors, others.unit).requires_grad_(wanted)  # [k, m]
            part = method.loss(contrast(own, similarity), reduction="none", skip=skip).sum()
            total += part.detach()
            if not wanted:
                continue
            found = torch.autograd.grad(part, [similarity, *inner], allow_unused=True)
            with _checks.outside_autocast(total.device):
                if rows.given.requires_grad:
                    of_anchors.addmm_(found[0], others.unit)
                if others.given.requires_grad:  # not those of a queue
                    of_others.addmm_(found[0].T, anchors)
            for gradient, x in zip(of_outer, found[1:]):
                gradient += 0 if x is None else x
        count = (n + skipped - method.skipped).clamp_min(1)
        for end, gradient in zip(ends, sums):
            end.through_norm(gradient)
        return _Known.apply(total / count, [x.div_(count) for x in sums], *inputs)

    def _refuse(self) -> None:
        if compares_anchors(self.method):
            raise ValueError(
                f"{self.method.name} cannot be streamed with these options, which compare the "
                "anchors of a batch; call the method itself"
            )


class _Rows(NamedTuple):
    """Embeddings with and without their lengths, without a graph that would keep copies of them."""

    given: Tensor  # [n, d], with gradient
    unit: Tensor  # [n, d]
    norm: Tensor  # [n, 1]

    @classmethod
    def of(cls, z: Tensor, *parts: str) -> _Rows:
        unit, norm = unit_rows(z.detach(), *parts)
        return cls(z, unit, norm[:, None])

    def through_norm(self, gradient: Tensor) -> None:
        """Make of the gradient in unit rows that in the given ones, in place."""
        for g, z, norm in zip(*(x.split(2**12) for x in (gradient, self.unit, self.norm))):
            g.sub_((g * z).sum(1, keepdim=True) * z).div_(norm)


def compares_anchors(method: Method) -> bool:
    """Return whether the loss of an anchor of the method depends on the other anchors."""
    entry, options = method.entry, method.options
    parts = [part for part in (method.log_weights, method.logit) if part]
    couples = any(part.couples for part in parts) or entry.features or entry.synthetic
    means = isinstance(options.get("loudness"), str) or options.get("average") == "pairs"
    return bool(couples or means)


class _Known(torch.autograd.Function):
    """A value with gradients that were made with it."""

    @staticmethod
    def forward(ctx, value, gradients, *inputs):
        ctx.gradients = gradients
        return value

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            raise RuntimeError("a streamed loss has no second derivative; call the method itself")
        return None, None, *(grad * x for x in ctx.gradients)
