"""Debiasing: contrasts of given cosines, and every draw from a finite distribution."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from hnlib.contrast import Contrast


def space(s, s_plus, allowed=None):
    """Contrast anchors with candidates at cosines s [n, m]; the positive [n] is last."""
    s, s_plus = (torch.as_tensor(np.asarray(x, float)) for x in (s, s_plus))
    allowed = torch.as_tensor(np.ones(s.shape, bool) if allowed is None else allowed)
    last = torch.arange(s.shape[1] + 1).expand(len(s), -1) == s.shape[1]
    allowed = torch.nn.functional.pad(allowed, (0, 1), value=False)
    return Contrast.from_similarity(torch.cat([s, s_plus[:, None]], 1), last, allowed)


def all_draws(s, p, N):
    """Return every ordered draw [m^N, N] from cosines s [m], and its probability."""
    index = np.array(list(itertools.product(range(len(s)), repeat=N)))
    return s[index], p[index].prod(1)
