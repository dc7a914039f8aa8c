"""Anchors as rows of similarities, the positive first, and what a loss does to each."""

from __future__ import annotations

import torch
from torch import Tensor

from hnlib.contrast import Contrast


def anchors(s: Tensor, plus: Tensor | float | None = None) -> Contrast:
    """Return the contrast of rows of similarities [n, 1 + m], the positive first; its scale is m.

    Whole rows are a leaf of the graph, for `pulls`. The positives, one number or [n], may also be
    given apart from the negatives s [n, m]; then nothing needs a gradient.
    """
    s = torch.as_tensor(s)
    if plus is not None:
        plus = torch.as_tensor(plus, dtype=s.dtype).expand(len(s))
        s = torch.cat([plus[:, None], s], 1)
    leaf = s.clone().requires_grad_(plus is None)
    first = torch.arange(s.shape[1]).expand(s.shape) == 0
    return Contrast.from_similarity(leaf, first, ~first, scale=s.shape[1] - 1)


def pulls(contrast: Contrast, loss, **options) -> Tensor:
    """Return the derivatives of the sum of the losses in all similarities [n, m]."""
    each = loss(contrast, reduction="none", **options).sum()
    return torch.autograd.grad(each, contrast.similarity)[0]


def balance(method, s: Tensor) -> Tensor:
    """Return push over pull [n] of rows of similarities."""
    g = pulls(anchors(s), method.loss)
    return g[:, 1:].sum(1) / -g[:, 0]
