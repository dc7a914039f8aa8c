"""For robust losses: contrasts with given similarities, and an independent cone solver."""

from __future__ import annotations

import warnings

import cvxpy as cp
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
