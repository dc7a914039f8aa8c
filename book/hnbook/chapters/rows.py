"""Anchors as rows of similarities, the positive first, and what a loss does to each."""

from __future__ import annotations

import torch
from torch import Tensor

from hnlib.contrast import Contrast


def anchors(s: Tensor) -> Contrast:
    """Return the contrast of rows of similarities [n, 1 + m]; its scale is m."""
    s = torch.as_tensor(s).clone().requires_grad_()
    first = torch.arange(s.shape[1]).expand(s.shape) == 0
    return Contrast.from_similarity(s, first, ~first, scale=s.shape[1] - 1)


def pulls(contrast: Contrast, loss, **options) -> Tensor:
    """Return the derivatives of the sum of the losses in all similarities [n, m]."""
    each = loss(contrast, reduction="none", **options).sum()
    return torch.autograd.grad(each, contrast.similarity)[0]


def balance(method, s: Tensor) -> Tensor:
    """Return push over pull [n] of rows of similarities."""
    g = pulls(anchors(s), method.loss)
    return g[:, 1:].sum(1) / -g[:, 0]
