"""Debiasing: contrasts of given cosines, random classes, every draw from a finite distribution."""

from __future__ import annotations

import itertools
import math

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


def labelled(rng, n, m=12):
    """Return random cosines s [n, m], masks of the own class, β and t [n]; edge cases first."""
    s, share = rng.uniform(-1, 1, (n, m)), rng.uniform(0.1, 0.9, (n, 1))
    own = rng.random((n, m)) < share
    own[:, 0], own[:, 1] = True, False
    s = np.clip(s + own * rng.uniform(-0.5, 1.5, (n, 1)), -1, 1)
    s[0], own[1, 1:], own[2] = 0.3, False, True  # no spread; one class-mate; one other
    own[2, 1] = False
    beta, t = rng.uniform(0, 4, n), rng.uniform(0.3, 1.2, n)
    beta[3] = 0.0
    return s, own, beta, t


def figure_13(pos, neg, beta, t, tau, slips=("linear", "broadcast", "clamp")):
    """Return what Figure 13 computes for one anchor, pos = g(x+), neg = g [N]."""
    N = len(neg)
    power = neg**beta / (neg**beta).mean()
    tilt = beta * neg / neg.mean() if "linear" in slips else power
    copies = N if "broadcast" in slips else 1  # the positive stands inside the sum
    total = ((tilt * neg).sum() - copies * N * tau * pos) / (1 - tau)
    floor = math.exp(-1 / t) * (1 if "clamp" in slips else N)
    return math.log1p(max(total, floor) / pos)
