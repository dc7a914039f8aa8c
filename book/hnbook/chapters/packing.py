"""Packing: points on circle and simplex, and the losses of their classes."""

from __future__ import annotations

import math

import numpy as np
import torch

from hnlib import negatives, objectives
from hnlib.contrast import Contrast


def unit(x):
    """Normalise rows."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def on_circle(degrees):
    """Return the points of the unit circle at these angles."""
    angle = np.radians(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], -1)


def nearest(v):
    """Return the squared distance of every point to its nearest neighbour; v [..., n, d]."""
    s = v @ np.swapaxes(v, -1, -2)
    n = s.shape[-1]
    s[..., range(n), range(n)] = -np.inf
    return 2 - 2 * s.max(-1)


def simplex(c):
    """Return the regular simplex with c corners in c - 1 dimensions."""
    return np.linalg.svd(np.eye(c) - 1 / c)[0][:, : c - 1] * math.sqrt(c / (c - 1))


def space(z, y):
    """Return a contrast on the points z [n, d] with classes y [n]."""
    s, same = torch.as_tensor(z @ z.T), torch.as_tensor(y[:, None] == y)
    return Contrast.from_similarity(s, same, ~same)


def tilted_loss(contrast, beta, t, q=1.0):
    """Return the loss with tilted negatives."""
    log_w = negatives.tilted(beta, t)(contrast)
    return float(objectives.info_nce(contrast, log_w, t, scale=q))


def worst_similarity(contrast):
    """Return M(x), the largest similarity to another class, candidate by candidate."""
    return torch.where(contrast.admissible, contrast.similarity, -2).amax(1)


def worst_loss(contrast, t, q=1.0):
    """Return L*(f), written out over every pair of anchor and positive."""
    s, same, m = contrast.similarity, contrast.positives, worst_similarity(contrast)
    per_pair = torch.log1p(q * ((m[:, None] - s) / t).exp())
    return float((torch.where(same, per_pair, 0).sum(1) / same.sum(1)).mean())
