r"""A loss without the similarity matrix: some anchors at a time, for batches of any size.

The losses of some anchors need their rows of the matrix [n, n] alone. So rows are made, their
gradient is added to that of the embeddings, and they are forgotten: memory is that of a few million
similarities instead of $n^2$, and values and gradients are those of the method. Transport and
UnReMix compare all anchors of a batch, so they need the matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hnlib import _checks
from hnlib.contrast import Contrast, Masks, check_views, inner_products, unit_rows
from hnlib.methods import Method
from hnlib.negatives import semi_relaxed_ot

__all__ = ["streamed"]

SIMILARITIES = 2**20  # at a time: 4 MB in each of some twenty matrices


def streamed(method: Method, rows: int | None = None) -> Callable[..., Tensor]:
    """Return the loss of a method, computed some anchors at a time.

    For batches whose matrix of similarities does not fit into memory. The encoder runs once (twice
    with GradCache), and the loss has no second derivative.

    Parameters
    ----------
    method : hnlib.methods.Method
        Its loss of an anchor must not depend on the other anchors.
    rows : int, optional
        Anchors at a time; default as many as have `SIMILARITIES` similarities.

    Returns
    -------
    callable
        Called as the method is, on two views and, if it needs them, `labels`.

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
    """
    entry, options = method.entry, method.options
    couples = isinstance(method.log_weights, semi_relaxed_ot) or entry.features or entry.synthetic
    if couples or isinstance(options.get("loudness"), str):
        raise ValueError(
            f"{method.name} cannot be streamed with these options, which compare the anchors of a "
            "batch; call the method itself"
        )

    def of_rows(z: Tensor, own: Tensor, labels: Tensor | None) -> Tensor:
        """Return the sum of the losses of the anchors `own`."""
        n = len(z)
        columns, other = torch.arange(n, device=z.device), (own + n // 2) % n
        positives = columns == other[:, None]  # [rows, n]
        admissible = ~positives & (columns != own[:, None])
        masks = Masks(positives, admissible, z.dtype, other, never_empty=True)
        contrast = Contrast(inner_products(z[own], z), masks, n - 2)
        if labels is not None:
            y = labels[own]
            contrast = contrast.with_labels(y[:, None] == labels, y, labels, options["positives"])
        return method.loss(contrast, reduction="none").sum()

    def loss(z1: Tensor, z2: Tensor, labels: Tensor | None = None) -> Tensor:
        check_views(z1, z2)
        y = None
        if entry.supervised and labels is not None:
            y = _checks.labels(labels, len(z1), "images").to(z1.device).repeat(2)
        z, _ = unit_rows(torch.cat([z1, z2]))
        n, skipped = len(z), method.skipped.clone()
        points = z.detach().requires_grad_(torch.is_grad_enabled())
        inputs = [points, *method.parameters()]
        gradients = [torch.zeros_like(x) for x in inputs]
        total = z.new_zeros(())
        for own in torch.arange(n, device=z.device).split(rows or max(1, SIMILARITIES // n)):
            part = of_rows(points, own, y)
            total += part.detach()
            if part.requires_grad:
                for gradient, more in zip(gradients, torch.autograd.grad(part, inputs)):
                    gradient += more
        count = (n + skipped - method.skipped).clamp_min(1)
        gradients = [x / count for x in gradients]
        return _Known.apply(total / count, gradients, z, *method.parameters())

    return loss


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
