"""Entropic transport: given and random points, and two independent solvers."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import ot
import torch

from hnlib import transport
from hnlib.contrast import Contrast


def directions(*degrees):
    """Return the unit vectors [n, 2] at these angles."""
    angle = torch.deg2rad(torch.tensor(degrees))
    return torch.stack([angle.cos(), angle.sin()], 1)


def space(z, allowed=None):
    """Return a contrast on given unit vectors [n, d]; by default every cell is allowed."""
    n = len(z)
    allowed = torch.ones(n, n, dtype=torch.bool) if allowed is None else allowed
    itself = torch.eye(n, dtype=torch.bool)
    return Contrast.from_similarity(z @ z.T, itself, allowed, candidates=z)


def total_variation(first, second):
    """Return the distance of two distributions, along the last axis."""
    return (first - second).abs().sum(-1) / 2


def kl(first, second):
    """Return the divergence of two distributions, along the last axis."""
    return torch.xlogy(first, first).sum(-1) - torch.xlogy(first, second).sum(-1)


def cone(c, p, q, allowed, epsilon, anchors=True, candidates=True, accuracy=1e-10):
    """Return the plan [n, m] and the optimal value, by CLARABEL; marginals may be free."""
    c, p, q, allowed = (np.asarray(x) for x in (c, p, q, allowed))
    i, j = allowed.nonzero()
    x = cp.Variable(len(i), nonneg=True)
    row_sums = (i == np.arange(len(p))[:, None]).astype(float) @ x
    column_sums = (j == np.arange(len(q))[:, None]).astype(float) @ x
    objective = c[allowed] @ x + epsilon * cp.sum(cp.rel_entr(x, p[i] * q[j]))
    constraints = [row_sums == p] if anchors else [cp.sum(x) == 1]
    constraints += [column_sums == q] if candidates else []
    problem = cp.Problem(cp.Minimize(objective), constraints)
    tolerances = dict.fromkeys(["tol_gap_abs", "tol_gap_rel", "tol_feas"], accuracy)
    value = problem.solve(cp.CLARABEL, **tolerances)
    plan = np.zeros(c.shape)
    plan[allowed] = x.value
    return torch.tensor(plan), value


def by_pot(cost, epsilon, allowed=None):
    """Return rows of the plan by the package POT, uniform masses; 1e6 forbids a cell."""
    p = np.full(len(cost), 1 / len(cost))
    cost = cost.numpy() + (0 if allowed is None else np.where(allowed, 0.0, 1e6))
    options = dict(stopThr=1e-14, numItermax=100_000)
    return len(cost) * torch.tensor(ot.sinkhorn(p, p, cost, epsilon, **options))


def sphere(rng, n, d):
    """Return n random unit vectors in dimension d."""
    points = torch.tensor(rng.standard_normal((n, d)))
    return torch.nn.functional.normalize(points, dim=1)


def random_space(rng, n, d=3, mean=0.7):
    """Return unit vectors with a common direction, so that the batch mean is not zero."""
    points = sphere(rng, n, d) + mean * sphere(rng, 1, d)
    return torch.nn.functional.normalize(points, dim=1)


def masses(rng, n):
    """Return random masses [n]."""
    return torch.tensor(rng.dirichlet(np.full(n, 2.0)))


def random_masked(rng, n, m):
    """Return a cost, the marginals of a random full plan on a random mask, and the mask."""
    allowed = rng.random((n, m)) < 0.6
    allowed[np.arange(max(n, m)) % n, np.arange(max(n, m)) % m] = True
    full = np.where(allowed, rng.random((n, m)) + 0.1, 0)
    full /= full.sum()
    drawn = rng.random((n, m)), full.sum(1), full.sum(0), allowed
    return tuple(torch.tensor(x) for x in drawn)


def couple(z, p, epsilon, allowed=None):
    """Transport unit vectors to themselves by the library's symmetric solver."""
    options = dict(mask=allowed, symmetric=True, tol=1e-12, max_iterations=100_000)
    return transport.sinkhorn(1 - z @ z.T, p, p, epsilon, **options)
