"""For robust losses: contrasts with given similarities, two adversaries, and a cone solver."""

from __future__ import annotations

import math
import warnings

import cvxpy as cp
import numpy as np
import torch
from scipy.optimize import brentq

from hnlib.contrast import Contrast
from hnlib.robust import Robust

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


def _rows(values, reference):
    """Return f and the logarithms of the masses, by default uniform ones, of the same shape."""
    f = torch.as_tensor(values).double()
    uniform = torch.ones(f.shape[-1])
    q0 = torch.as_tensor(uniform if reference is None else reference).to(f).detach()
    return f, (q0 / q0.sum(-1, keepdim=True)).expand(f.shape).log()


def kl_penalised(values, reference=None, tau=0.5) -> Robust:
    r"""Find the worst case of rows [..., m] at a price, $\sup_Q E_Q f - \tau KL(Q\|Q_0)$.

    It is $\tau\log E_{Q_0}e^{f/\tau}$ (Donsker and Varadhan, 1983), which is how InfoNCE treats its
    negatives at temperature $\tau$, a positive number or [...]; attained at $Q_0e^{f/\tau}$.
    """
    f, log_q0 = _rows(values, reference)
    alpha = torch.as_tensor(tau, dtype=torch.float64).detach().expand(f.shape[:-1])
    x = log_q0 + f / alpha[..., None]
    return Robust(alpha * x.logsumexp(-1), alpha, x.detach().softmax(-1))


def shared_kl_ball(values, reference=None, eta=0.1) -> Robust:
    r"""Find the worst case of rows [n, m] whose divergences from $Q_0$ are eta on average.

    One multiplier serves all rows, 0 where eta suffices for the largest points of each. `value` [n]
    is a row's mean; the mean of these is InfoNCE with one temperature.
    """
    f, log_q0 = _rows(values, reference)
    g = torch.where(log_q0 > -torch.inf, f.detach(), -torch.inf)
    g = (g - g.amax(-1, keepdim=True)).clamp_min(-1e300)  # 0 at the top: nothing overflows

    def tilted(log_s):
        return (log_q0 + math.exp(log_s) * g).softmax(-1)

    def excess(log_s):
        q, s = tilted(log_s), math.exp(log_s)
        spent = s * (q * g).sum(-1) - (log_q0 + s * g).logsumexp(-1)
        return float(spent.mean()) - eta

    top = torch.where(g == 0, log_q0, -torch.inf)
    if eta >= -top.logsumexp(-1).mean():
        weights, alpha = top.softmax(-1), 0.0
    else:
        root = brentq(excess, -30, 60, xtol=1e-13)
        weights, alpha = tilted(root), math.exp(-root)
    return Robust((weights * f).sum(-1), f.new_full(f.shape[:1], alpha).detach(), weights)


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
