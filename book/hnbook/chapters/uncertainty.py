"""Uncertainty: random batches through a last layer, and the loss of a mixture of three scores."""

from __future__ import annotations

import numpy as np
import torch

from hnlib import negatives
from hnlib.contrast import Contrast


def gap(a, b):
    """Return the largest difference of two arrays."""
    return np.abs(np.asarray(a) - np.asarray(b)).max()


def random_batch(rng, images, k=6, d=4, jitter=0.3):
    """Return two views of a batch through one last layer W [d, k] as a contrast, and W."""
    h = torch.randn(images, k, generator=rng)
    views = [h + jitter * torch.randn(images, k, generator=rng) for _ in range(2)]
    W = torch.randn(d, k, generator=rng)
    return Contrast.from_views(*(v @ W.T for v in views), features=views), W


def totals(contrast, t=0.5):
    """Return A [n, 3], by hnlib's scores, and the positives' exponentials [n]."""
    e = torch.exp(contrast.similarity / t) * contrast.admissible
    A = torch.einsum("kij,ij->ik", negatives.unremix_components(contrast), e)
    return A, torch.exp(contrast.positive_similarity / t)


def mixture_loss(mixtures, A, P):
    """Return the loss of many mixtures [q, 3] of the printed scores."""
    return torch.log(1 + (mixtures @ A.T) / P).mean(1)
