r"""Distributionally robust means: the largest $\mathbb E_Q f$ over distributions $Q$ near $Q_0$.

`values` of shape [..., m] hold $f$ on $m$ points, `reference` (same shape or [m], default uniform)
the masses of $Q_0$; a point of mass zero plays no part. The balls return a `Robust` value in double
precision whose gradient with respect to `values` is the worst case $Q^*$ (the envelope theorem):
the multiplier is held fixed.

For a training step `kl_temperature` and `chi2_ball` also take the logarithms of the masses,
`log_reference` of shape [..., m], as `hnlib.negatives` makes them: not validated, solved
in float64 and returned in the dtype of the values; rows without mass are undefined.

Iterations stop when all rows have settled. On an accelerator their number is fixed, nothing waits
for the device, and a row that needs more is an error kept for `hnlib._checks.deferred`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from hnlib import _checks
from hnlib._checks import Positive, checked, one_of

__all__ = ["Robust", "chi2_ball", "kl_ball", "kl_temperature"]

STEPS = 30  # of an iteration that may not ask whether it has settled; on similarities 4 to 8 do
UNSETTLED = "the worst case of a row was not found; compute it in float64, on the CPU"


@dataclass(frozen=True, eq=False)
class Robust:
    r"""The worst case of every row.

    Attributes
    ----------
    value : Tensor of shape [...]
        The largest mean.
    alpha : Tensor of shape [...]
        Its multiplier, 0 where the ball reaches the largest points.
    weights : Tensor of shape [..., m]
        The distribution $Q^*$ that attains it.
    """

    value: Tensor
    alpha: Tensor
    weights: Tensor


@checked
def kl_ball(values: Tensor, reference: Tensor | None = None, eta: Positive = 0.1) -> Robust:
    r"""Find the worst case in a Kullback–Leibler ball, one ball for each row.

    $$\sup_{\mathrm{KL}(Q\|Q_0) \le \eta} \mathbb E_Q f
      = \min_{\alpha > 0}\ \alpha\log\mathbb E_{Q_0} e^{f/\alpha} + \alpha\eta$$

    Parameters
    ----------
    values : Tensor of shape [..., m]
        $f$.
    reference : Tensor of shape [..., m] or [m], optional
        Masses of $Q_0$, default uniform.
    eta : float, default 0.1
        Radius $\eta > 0$.

    Returns
    -------
    Robust
        $Q^* \propto Q_0 e^{f/\alpha^*}$; if $\eta \ge \log 1/Q_0(\arg\max f)$ then $\alpha^* = 0$
        and $Q^*$ is $Q_0$ on the largest points.

    Raises
    ------
    ValueError
        If the values are not finite, the masses do not sum to one or the radius is not positive.

    References
    ----------
    .. [adnce] Wu et al., *Understanding Contrastive Learning via Distributionally Robust
       Optimization*, NeurIPS 2023, Theorem 3.2 and its eq. (4), read anchor by anchor.
    """
    f, log_q0 = _prepare(values, reference)
    weights, alpha = _kl_worst_case(f.detach(), log_q0, eta)
    return Robust((weights * f).sum(-1), alpha, weights)


@checked
def kl_temperature(
    values: Tensor,
    reference: Tensor | None = None,
    eta: Positive = 0.1,
    order: Annotated[int, partial(one_of, choices=(0, 1, 2, 3))] = 0,
    log_reference: Tensor | None = None,
) -> Tensor:
    r"""Return the temperature $\alpha^*(\eta)$ of each row's Kullback–Leibler ball.

    Parameters
    ----------
    values, reference, eta
        As in `kl_ball`.
    order : {0, 1, 2, 3}, default 0
        0: exact, as the `alpha` of `kl_ball`; 1, 2, 3: the first terms of its expansion, cut at 0
        where they turn negative.
    log_reference : Tensor of shape [..., m], optional
        Logarithms of the masses, in place of `reference`.

    Returns
    -------
    Tensor of shape [...]
        Temperatures, without gradient.

    Raises
    ------
    ValueError
        As in `kl_ball`, or if `order` is another number.

    Notes
    -----
    With the cumulants $\kappa_k$ of $f$ under $Q_0$,

    $$\alpha^*(\eta) = \sqrt{\frac{\kappa_2}{2\eta}} + \frac{\kappa_3}{3\kappa_2}
      + \Big(\frac{\kappa_4}{8\kappa_2} - \frac{\kappa_3^2}{6\kappa_2^2}\Big)
      \sqrt{\frac{2\eta}{\kappa_2}} + O(\eta).$$

    The first term is Corollary 3.4 of Wu et al. (NeurIPS 2023); the others are ours.
    """
    f, log_q0 = _prepare(values, reference, log_reference)
    if order == 0:
        return _by_rows(_kl_worst_case, f, log_q0, eta)[1]
    g, q0 = f.detach().double(), log_q0.double().softmax(-1)
    centred = g - (q0 * g).sum(-1, keepdim=True)
    k2, k3, fourth = ((q0 * centred**k).sum(-1) for k in (2, 3, 4))
    terms = (
        (k2 / (2 * eta)).sqrt(),
        k3 / (3 * k2),
        ((fourth - 3 * k2**2) / (8 * k2) - k3**2 / (6 * k2**2)) * (2 * eta / k2).sqrt(),
    )
    return torch.where(k2 > 0, sum(terms[:order]), 0.0).clamp_min(0).to(f.dtype)


@checked
def chi2_ball(
    values: Tensor,
    reference: Tensor | None = None,
    eta: Positive = 0.1,
    log_reference: Tensor | None = None,
) -> Robust:
    r"""Find the worst case in a $\chi^2$ ball for each row.

    The ball is $\frac12 \mathbb E_{Q_0}(\mathrm dQ/\mathrm dQ_0 - 1)^2 \le \eta$.

    Parameters
    ----------
    values, reference, eta
        As in `kl_ball`.
    log_reference : Tensor of shape [..., m], optional
        Logarithms of the masses, in place of `reference`.

    Returns
    -------
    Robust
        $Q^* \propto Q_0 (f - \ell)_+$; while no weight is cut,
        $\eta \le \mathrm{Var} f / 2(\mathbb E f - \min f)^2$, the value is
        $\mathbb E f + \sqrt{2\eta\mathrm{Var} f}$.

    Raises
    ------
    ValueError
        As `kl_ball`.

    References
    ----------
    .. [adnce] Wu et al., *Understanding Contrastive Learning via Distributionally Robust
       Optimization*, NeurIPS 2023, Theorem 3.5, here made exact.
    """
    f, log_q0 = _prepare(values, reference, log_reference)
    weights, alpha = _by_rows(_chi2_worst_case, f, log_q0, eta)
    return Robust((weights * f).sum(-1), alpha, weights)


def _prepare(values, reference, log_reference=None):
    """Return f and the logarithms of the masses, of the same shape."""
    if log_reference is not None:
        return values, log_reference.detach()
    f = torch.as_tensor(values).double()
    _checks.raise_if(~f.detach().isfinite().all()[None], "values must be finite")
    if reference is None:
        return f, torch.full_like(f, -math.log(f.shape[-1])).detach()
    q0 = torch.as_tensor(reference).to(f).detach().expand(f.shape)
    total = q0.sum(-1).reshape(-1)
    bad = (q0 < 0).any(-1).reshape(-1) | ((total - 1).abs() > 1e-6)
    message = "reference must not be negative and sum to one, got a sum of {value:.6g}"
    _checks.raise_if(bad, message, total)
    return f, q0.log()


def _by_rows(solve, f, log_q0, eta):
    """Solve in double precision; on the CPU a few rows at a time, which its cache holds."""
    m = f.shape[-1]
    rows = max(1, 2**17 // m) if _checks.on_cpu(f) else f.numel()
    parts = zip(*(x.detach().reshape(-1, m).split(rows) for x in (f, log_q0)))
    solved = zip(*(solve(g.double(), h.double(), eta) for g, h in parts))
    return [torch.cat(x).to(f.dtype).reshape((*f.shape[:-1], *x[0].shape[1:])) for x in solved]


def _below_top(f, q0):
    """Return f minus its largest value where there is mass, else 0, and the masses of the top."""
    g = torch.where(q0 > 0, f, -torch.inf)
    g = g.sub_(g.amax(-1, keepdim=True)).masked_fill_(q0 == 0, 0.0)
    return g, torch.where(g == 0, q0, 0.0)


def _kl_worst_case(f, log_q0, eta):
    r"""Return weights and multiplier of the tilt whose divergence from Q0 is eta.

    If there is none, the ball is so large that the largest f takes all weight. The divergence at
    the sharpness $s = 1/\alpha$ has the slope $s\,\mathrm{Var}$ of the tilt, and its root is nearly
    linear: Newton's method on the root, inside a bracket, from two terms of `kl_temperature`.
    """
    q0 = log_q0.softmax(-1)
    g, top = _below_top(f, q0)
    centred = g - (q0 * g).sum(-1, keepdim=True)
    power = q0 * centred.square()
    variance, third = power.sum(-1), power.mul_(centred).sum(-1)
    inside = (eta < -top.sum(-1).log()) & (variance > 0)
    first = (variance / (2 * eta)).sqrt()
    start = torch.maximum(first + third / (3 * variance), first / 4)
    s = torch.where(variance > 0, 1 / start, 1.0)
    low, high, going = torch.zeros_like(s), torch.full_like(s, torch.inf), inside
    waits = _checks.on_cpu(g)
    for _ in range(200 if waits else STEPS):  # 2**200: beyond any gap between distinct doubles
        short, gain = _newton_step(g, q0, s, eta)
        low, high = torch.where(short, s, low), torch.where(short, high, s)
        last = gain.abs() <= 1e-8 * s  # Newton's error is of the order of its step squared
        within = last | (s + gain > low) & (s + gain < high) & (gain < 3 * s)
        halved = torch.where(high.isfinite(), (low + high) / 2, 2 * s)
        s = torch.where(going, torch.where(within, s + gain, halved), s)
        going = going & ~last & (high - low > 1e-15 * low)
        if waits and not going.any():
            break
    _checks.raise_if(going.reshape(-1), UNSETTLED)
    tilt = torch.softmax(log_q0 + torch.where(inside, s, 1.0)[..., None] * g, -1)
    weights = torch.where(inside[..., None], tilt, top / top.sum(-1, keepdim=True))
    return weights, torch.where(inside, 1 / s, 0.0)


def _newton_step(g, q0, s, eta):
    """Return whether the divergence at s falls short of eta, and the step of Newton's method."""
    x = s[..., None] * g  # at most 0, and 0 on the top: no sum over- or underflows
    tilt = (x * math.log2(math.e)).exp2_().mul_(q0)  # a third of the time of exp
    total = tilt.sum(-1)
    mean = tilt.mul_(x).sum(-1) / total
    square = tilt.mul_(x).sum(-1) / total
    kl = (mean - total.log()).clamp_min(0)
    slope = (square - mean.square()).clamp_min(0) / s
    gain = 2 * kl.sqrt() * (eta**0.5 - kl.sqrt()) / slope
    return kl < eta, torch.where(kl > 0, gain, torch.inf)  # of a divergence lost in rounding: more


def _chi2_worst_case(f, log_q0, eta):
    r"""Return weights and multiplier of $q_0 (f - \ell)_+$ of radius eta.

    Over a fixed set of points the level is the root of a quadratic. Where that set holds every
    point above the true level, the root is no higher than that level: so the roots climb, starting
    from all points, until no further point drops out.
    """
    q0 = log_q0.softmax(-1)
    g, top = _below_top(f, q0)
    mean = (q0 * g).sum(-1, keepdim=True)
    variance = (q0 * (g - mean).square_()).sum(-1, keepdim=True)
    inside = (eta < (1 / top.sum(-1, keepdim=True) - 1) / 2) & (variance > 0)
    level, before = mean - (variance / (2 * eta)).sqrt(), torch.ones_like(mean)
    waits = _checks.on_cpu(g)
    for _ in range(g.shape[-1] + 1 if waits else STEPS):
        x = (g - level).clamp_min_(0)
        weighted = q0 * x
        first = weighted.sum(-1, keepdim=True)
        second = weighted.mul_(x).sum(-1, keepdim=True)
        mass = x.sign_().mul_(q0).sum(-1, keepdim=True)
        # the root relative to this level, in the form that keeps its digits where it is near
        excess = ((1 + 2 * eta) * mass - 1).clamp_min(1e-300)
        short = ((1 + 2 * eta) * first.square() - second) / excess
        gain = short / (first + ((mass * second - first.square()).clamp_min(0) / excess).sqrt())
        fell = inside & (mass < before) & (gain > 1e-9 * first)
        level, before = level + gain, mass
        if waits and not fell.any():
            break
    _checks.raise_if(fell.reshape(-1), UNSETTLED)
    excess = torch.where(inside, q0 * (g - level).clamp_min_(0), top)
    alpha = excess.sum(-1, keepdim=True)
    return excess / alpha, torch.where(inside, alpha, 0.0).squeeze(-1)
