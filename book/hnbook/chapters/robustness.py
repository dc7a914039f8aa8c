"""For robust losses: contrasts with given similarities, and an independent cone solver."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import torch

from hnlib.contrast import Contrast

DIVERGENCES = {  # phi as an expression in the density, phi''(1), phi'''(1)
    "KL": (lambda r: -cp.entr(r), 1.0, -1.0),
    "reverse KL": (lambda r: -cp.log(r), 1.0, -2.0),
    "χ²": (lambda r: cp.square(r - 1) / 2, 1.0, 0.0),
    "Hellinger": (lambda r: r + 1 - 2 * cp.sqrt(r), 0.5, -0.75),
}


def draw(seed, *shape):
    """Return similarities, uniform on [-1, 1]."""
    return 2 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) - 1


def facing(positive, f):
    """Return a contrast of n anchors with one positive [n] and m negatives [n, m] each."""
    similarity = torch.cat([positive[:, None], f], 1)
    role = torch.arange(similarity.shape[1]).expand(similarity.shape) == 0
    return Contrast.from_similarity(similarity, positives=role, admissible=~role)


def law_of(rule, f):
    """Return the weights that a rule of hnlib.negatives gives to similarities [n, m]."""
    return rule(facing(torch.ones(len(f)), f))[:, 1:].exp()


def solve(objective, *constraints, minimise=False):
    """Solve by an independent route, a cone solver, at a tolerance below what it can reach."""
    goal = cp.Minimize if minimise else cp.Maximize
    problem = cp.Problem(goal(objective), list(constraints))
    tight = dict(tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        return problem.solve(solver=cp.CLARABEL, **tight)


def cone(f, q0=None, eta=None, price=0.0, divergence="KL"):
    """Return the largest mean of f [m] less the price of divergence from q0, and where it is.

    The law may not be further than eta from q0, by default the uniform one. Returns the value, the
    law and the multiplier of eta.
    """
    f = np.asarray(f)
    q0 = np.full(len(f), 1 / len(f)) if q0 is None else q0
    density = cp.Variable(len(f), nonneg=True)
    far = q0 @ DIVERGENCES[divergence][0](density)
    limits = [q0 @ density == 1] + ([] if eta is None else [far <= eta])
    value = solve((q0 * f) @ density - price * far, *limits)
    return value, q0 * density.value, limits[-1].dual_value
