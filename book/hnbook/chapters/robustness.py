"""For robust losses: contrasts with given similarities, and an independent cone solver."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import torch

from hnlib.contrast import Contrast


def facing(positive, f):
    """Return a contrast of n anchors with one positive [n] and m negatives [n, m] each."""
    similarity = torch.cat([positive[:, None], f], 1)
    role = torch.zeros_like(similarity, dtype=torch.bool)
    role[:, 0] = True
    return Contrast.from_similarity(similarity, positives=role, admissible=~role)


def solve(objective, *constraints, minimise=False):
    """Solve by an independent route, a cone solver, at a tolerance below what it can reach."""
    goal = cp.Minimize if minimise else cp.Maximize
    problem = cp.Problem(goal(objective), list(constraints))
    tight = dict(tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        return problem.solve(solver=cp.CLARABEL, **tight)


def cone_ball(f, eta, q0=None):
    """Return the largest mean of f [m] within eta nats of q0 (by default uniform), and the law."""
    f, law = np.asarray(f), cp.Variable(len(f), nonneg=True)
    q0 = np.full(len(f), 1 / len(f)) if q0 is None else q0
    divergence = cp.sum(cp.rel_entr(law, q0))
    value = solve(f @ law, cp.sum(law) == 1, divergence <= eta)
    return value, law.value
