r"""Distributionally robust means: the largest $\mathbb E_Qf$ over laws $Q$ near a reference $Q_0$.

`values` $[\dots,m]$ holds $f$ on $m$ atoms, `reference` (same shape or $[m]$, default uniform) the masses of $Q_0$; an
atom of mass zero plays no part. The balls return a `Robust` value in double precision whose gradient with respect to
`values` is the worst-case law $Q^*$ (the envelope theorem): the multiplier is held fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Robust:
    r"""The `value` $[\dots]$, the law that attains it and its multiplier.

    `alpha` $[\dots]$ is $0$ where the ball reaches the largest atoms; `weights` $[\dots,m]$ is $Q^*$.
    """

    value: Tensor
    alpha: Tensor
    weights: Tensor


def kl_ball(values: Tensor, reference: Tensor | None = None, eta: float = 0.1) -> Robust:
    r"""The worst case in a Kullback–Leibler ball, one ball for each row.

    $$\sup_{\mathrm{KL}(Q\|Q_0)\le\eta}\mathbb E_Qf=\min_{\alpha>0}\ \alpha\log\mathbb E_{Q_0}e^{f/\alpha}+\alpha\eta$$

    `eta` $>0$. $Q^*\propto Q_0e^{f/\alpha^*}$; if $\eta\ge\log1/Q_0(\arg\max f)$ then $\alpha^*=0$ and $Q^*$ is $Q_0$
    on the largest atoms. Source: dro-adnce, Theorem 3.2 and its eq. (4), read anchor by anchor.
    """
    f, log_q0 = _prepare(values, reference)
    eta = _radius(eta)
    weights, alpha = _kl_solve(f.detach(), log_q0, eta, lambda divergence: divergence)
    return Robust(_kl_dual(f, log_q0, alpha, weights) + alpha * eta, alpha, weights)


def shared_kl_ball(values: Tensor, reference: Tensor | None = None, eta: float = 0.1) -> Robust:
    r"""The worst case under one budget for all rows, $\frac1n\sum_i\mathrm{KL}(Q_i\|Q_0)\le\eta$: one $\alpha$.

    `values` $[n,m]$, `eta` $>0$. `value` is per row, $\mathbb E_{Q_i^*}f_i$; its mean is the optimum, and equals
    $\min_\alpha\frac1n\sum_i\alpha\log\mathbb E_{Q_0}e^{f_i/\alpha}+\alpha\eta$: InfoNCE with one temperature. Ours.
    """
    f, log_q0 = _prepare(values, reference)
    if f.ndim != 2:
        raise ValueError(f"a shared budget needs values [n, m]; got shape {tuple(f.shape)}")
    weights, alpha = _kl_solve(f.detach(), log_q0, _radius(eta), lambda divergence: divergence.mean(0, keepdim=True))
    return Robust((weights * f).sum(-1), alpha.expand(len(f)), weights)


def kl_penalised(values: Tensor, reference: Tensor | None = None, tau: float | Tensor = 0.5) -> Robust:
    r"""The penalised worst case $\sup_Q\mathbb E_Qf-\tau\,\mathrm{KL}(Q\|Q_0)=\tau\log\mathbb E_{Q_0}e^{f/\tau}$.

    `tau` $>0$, a number or one per row $[\dots]$; attained at $Q^*\propto Q_0e^{f/\tau}$. This is InfoNCE's treatment
    of its negatives at temperature $\tau$ (Donsker and Varadhan, 1983).
    """
    f, log_q0 = _prepare(values, reference)
    alpha = torch.as_tensor(tau, dtype=torch.float64, device=f.device).detach()
    if alpha.ndim and alpha.shape != f.shape[:-1]:
        raise ValueError(f"tau has shape {tuple(alpha.shape)}; give one number, or one per row {tuple(f.shape[:-1])}")
    if not ((alpha > 0) & alpha.isfinite()).all():
        bad = alpha[~((alpha > 0) & alpha.isfinite())].flatten()[0]
        raise ValueError(f"tau={float(bad):g} must be positive and finite")
    alpha = alpha.expand(f.shape[:-1])
    weights = torch.softmax(log_q0 + f.detach() / alpha[..., None], -1)
    return Robust(_kl_dual(f, log_q0, alpha, weights), alpha, weights)


def kl_temperature(
    values: Tensor, reference: Tensor | None = None, eta: float = 0.1, order: int = 0
) -> Tensor:
    r"""The temperature $\alpha^*(\eta)$ of each row's Kullback–Leibler ball, or its expansion, $[\dots]$.

    $$\alpha^*(\eta)=\sqrt{\frac{\kappa_2}{2\eta}}+\frac{\kappa_3}{3\kappa_2}
    +\Big(\frac{\kappa_4}{8\kappa_2}-\frac{\kappa_3^2}{6\kappa_2^2}\Big)\sqrt{\frac{2\eta}{\kappa_2}}+O(\eta)$$

    with the cumulants $\kappa_k$ of $f$ under $Q_0$. `order` 0: exact, as `kl_ball`'s `alpha` ($0$ where the ball
    reaches the largest atoms); 1, 2, 3: the first terms, cut at $0$ where they turn negative. No gradient.
    ValueError: another `order`, an `eta` that is not one number $>0$.
    Source: order 1 dro-adnce, Corollary 3.4; the rest is ours.
    """
    if order not in (0, 1, 2, 3):
        raise ValueError(f"order={order} is unknown; use 0 for the exact temperature, or 1, 2, 3 terms")
    f, log_q0 = _prepare(values.detach(), reference)
    eta = _radius(eta)
    if not order:
        return _kl_solve(f, log_q0, eta, lambda divergence: divergence)[1]
    q0 = log_q0.exp()
    centred = f - (q0 * f).sum(-1, keepdim=True)
    k2, k3, fourth = ((q0 * centred**k).sum(-1) for k in (2, 3, 4))
    k4 = fourth - 3 * k2**2
    terms = ((k2 / (2 * eta)).sqrt(), k3 / (3 * k2), (k4 / (8 * k2) - k3**2 / (6 * k2**2)) * (2 * eta / k2).sqrt())
    return torch.where(k2 > 0, sum(terms[:order]), 0.0).clamp_min(0)


def chi2_ball(values: Tensor, reference: Tensor | None = None, eta: float = 0.1) -> Robust:
    r"""The worst case in a $\chi^2$ ball for each row, $\frac12\mathbb E_{Q_0}(\mathrm dQ/\mathrm dQ_0-1)^2\le\eta$.

    `eta` $>0$. $Q^*\propto Q_0(f-\ell)_+$; while no weight is cut, $\eta\le\mathrm{Var}f/2(\mathbb Ef-\min f)^2$, the
    value is $\mathbb Ef+\sqrt{2\eta\mathrm{Var}f}$. Source: dro-adnce, Theorem 3.5 made exact.
    """
    f, log_q0 = _prepare(values, reference)
    eta, q0 = _radius(eta), log_q0.exp()
    g = _below_top(f.detach(), log_q0)
    top = torch.where(g == 0, q0, 0.0)
    reached = eta < (1 / top.sum(-1, keepdim=True) - 1) / 2
    # Over a fixed set of atoms the level l is the root of a quadratic. Where that set holds every atom above the true
    # level, the root is no higher than the true level: so from all atoms on the roots climb, until no more atom falls.
    above = torch.ones_like(g, dtype=torch.bool)
    while True:
        kept = torch.where(above, q0, 0.0)
        mass = kept.sum(-1, keepdim=True)
        mean = (kept * g).sum(-1, keepdim=True) / mass
        variance = (kept * (g - mean).square()).sum(-1, keepdim=True) / mass
        level = mean - (variance / (mass * (1 + 2 * eta) - 1).clamp_min(1e-300)).sqrt()
        fewer = above & (g > level) | (g == 0)
        if torch.equal(fewer, above):
            break
        above = fewer
    reached &= variance > 0
    excess = torch.where(reached, kept * (g - level), top)
    alpha = excess.sum(-1, keepdim=True)
    weights = excess / alpha
    return Robust((weights * f).sum(-1), torch.where(reached, alpha, 0.0).squeeze(-1), weights)


def _prepare(values, reference):
    f = values.double()
    if f.ndim == 0 or f.numel() == 0 or not f.isfinite().all():
        raise ValueError(f"values must be finite with at least one atom; got shape {tuple(f.shape)}")
    if reference is None:
        return f, torch.full_like(f, -math.log(f.shape[-1])).detach()
    q0 = torch.as_tensor(reference, device=f.device).double().detach()
    if q0.shape not in (f.shape, f.shape[-1:]):
        shapes = f"values {tuple(f.shape)} need that or ({f.shape[-1]},)"
        raise ValueError(f"the reference has shape {tuple(q0.shape)}; {shapes}")
    total = q0.sum(-1)
    if not ((q0 >= 0).all() and (total - 1).abs().max() < 1e-6):
        worst = float(total.flatten()[(total - 1).abs().argmax()])
        raise ValueError(f"the reference must not be negative and must sum to one (a sum is {worst:.6g}); normalise it")
    return f, q0.expand(f.shape).log()


def _radius(eta):
    if isinstance(eta, Tensor) and eta.ndim:
        raise ValueError(f"eta has shape {tuple(eta.shape)}; give one radius for all rows")
    if not (eta > 0 and math.isfinite(eta)):
        raise ValueError(f"eta={eta} must be positive and finite: it is the radius of the ball")
    return float(eta)


def _below_top(f, log_q0):
    """f less its largest value on an atom that has mass; 0 on atoms without."""
    massive = log_q0 > -torch.inf
    return torch.where(massive, f - f.masked_fill(~massive, -torch.inf).amax(-1, keepdim=True), 0.0)


def _kl_solve(f, log_q0, eta, pool):
    r"""Weights and multiplier of the tilt whose (pooled) divergence from the reference is eta.

    The divergence at sharpness $s=1/\alpha$ has the slope $s\,\mathrm{Var}$ of the tilt, and its root is nearly linear:
    Newton's method on the root, inside a bracket, from the value that holds for small radii.
    """
    g, q0 = _below_top(f, log_q0), log_q0.exp()

    def divergence(s):  # and its slope; g <= 0, and 0 on the top: no sum over- or underflows
        x = s[..., None] * g
        tilt = q0 * x.exp()
        total = tilt.sum(-1)
        mean, square = (tilt * x).sum(-1) / total, (tilt * x * x).sum(-1) / total
        return pool(mean - total.log()).clamp_min(0), pool((square - mean.square()).clamp_min(0)) / s

    variance = pool((q0 * (g - (q0 * g).sum(-1, keepdim=True)).square()).sum(-1))
    log_top = torch.where(g == 0, log_q0, -torch.inf)
    reached = eta < pool(-torch.logsumexp(log_top, -1))  # else the ball holds the largest atoms alone
    s = torch.where(variance > 0, (2 * eta / variance.clamp_min(1e-300)).sqrt(), 1.0)
    low, high = torch.zeros_like(s), torch.full_like(s, torch.inf)
    for _ in range(200):  # 2**200: beyond any gap between distinct doubles of one magnitude
        kl, slope = divergence(s)
        short = kl < eta
        low, high = torch.where(short, s, low), torch.where(short, high, s)
        settled = ((kl - eta).abs() <= 4e-16 + 1e-14 * eta) | (high - low <= 4e-16 * low) | ~reached
        if settled.all():
            break
        newton = s + 2 * kl.sqrt() * (math.sqrt(eta) - kl.sqrt()) / slope
        halved = torch.where(high.isfinite(), (low + high) / 2, 2 * s)
        inside = (newton > low) & (newton < high) & (newton < 4 * s)
        s = torch.where(settled, s, torch.where(inside, newton, halved))
    s = torch.where(reached, s, 1.0)
    tilt = torch.softmax(log_q0 + s[..., None] * g, -1)
    weights = torch.where(reached[..., None], tilt, torch.softmax(log_top, -1))
    return weights, torch.where(reached, 1 / s, 0.0)


def _kl_dual(f, log_q0, alpha, weights):
    """$\\alpha\\log E e^{f/\\alpha}$ with alpha held fixed; at alpha = 0 the largest value."""
    a = alpha[..., None].detach()
    smooth = a.squeeze(-1) * torch.logsumexp(log_q0 + f / torch.where(a > 0, a, 1.0), -1)
    return torch.where(a.squeeze(-1) > 0, smooth, (weights * f).sum(-1))
