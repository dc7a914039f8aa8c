r"""Distributionally robust means: the largest $\mathbb E_Qf$ over laws $Q$ near a reference $Q_0$.

`values` $[\dots,m]$ holds $f$ on $m$ atoms, `reference` (same shape or $[m]$, default uniform) the
masses of $Q_0$; an atom of mass zero plays no part. The balls return a `Robust` value in double
precision whose gradient with respect to `values` is the worst-case law $Q^*$ (the envelope
theorem): the multiplier is held fixed.

For a training step `kl_temperature` and `chi2_ball` also take the logarithms of the masses,
`log_reference` $[\dots,m]$, as `hnlib.negatives` makes them: trusted, solved in double precision a
few rows at a time, the result in the type of the values; rows without mass come out as anything.

Iterations stop when all rows have settled. On an accelerator their number is fixed, nothing waits,
and a row that needs more is an error kept for `hnlib._checks.deferred`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hnlib import _checks

BLOCK = 2**17  # atoms solved together on the CPU: 1 MB in double precision, which its cache holds
ROUGH = 1e-4  # of radii, the least to which single precision comes close
STEPS = 30  # of an iteration that may not ask whether it has settled; on similarities 4 to 8 do


@dataclass(frozen=True, eq=False)
class Robust:
    r"""The `value` $[\dots]$, the law that attains it and its multiplier.

    `alpha` $[\dots]$ is $0$ where the ball reaches the largest atoms; `weights` $[\dots,m]$ is
    $Q^*$.
    """

    value: Tensor
    alpha: Tensor
    weights: Tensor


def kl_ball(values: Tensor, reference: Tensor | None = None, eta: float = 0.1) -> Robust:
    r"""The worst case in a Kullback–Leibler ball, one ball for each row.

    $$\sup_{\mathrm{KL}(Q\|Q_0)\le\eta}\mathbb E_Qf=\min_{\alpha>0}\ \alpha\log\mathbb
      E_{Q_0}e^{f/\alpha}+\alpha\eta$$

    `eta` $>0$. $Q^*\propto Q_0e^{f/\alpha^*}$; if $\eta\ge\log1/Q_0(\arg\max f)$ then $\alpha^*=0$
    and $Q^*$ is $Q_0$ on the largest atoms. Source: dro-adnce, Theorem 3.2 and its eq. (4), read
    anchor by anchor.
    """
    f, log_q0 = _prepare(values, reference)
    radius = _radius(eta)
    weights, alpha = _kl_law(f.detach(), log_q0, radius)
    return Robust(_kl_dual(f, log_q0, alpha, weights) + alpha * radius, alpha, weights)


def shared_kl_ball(values: Tensor, reference: Tensor | None = None, eta: float = 0.1) -> Robust:
    r"""The worst case under one budget for all rows, $\frac1n\sum_i\mathrm{KL}(Q_i\|Q_0)\le\eta$:
    one $\alpha$.

    `values` $[n,m]$, `eta` $>0$. `value` is per row, $\mathbb E_{Q_i^*}f_i$; its mean is the
    optimum, and equals
    $\min_\alpha\frac1n\sum_i\alpha\log\mathbb E_{Q_0}e^{f_i/\alpha}+\alpha\eta$: InfoNCE with one
    temperature. Ours.
    """
    f, log_q0 = _prepare(values, reference)
    if f.ndim != 2:
        raise ValueError(f"a shared budget needs values [n, m]; got shape {tuple(f.shape)}")
    weights, alpha = _kl_law(f.detach(), log_q0, _radius(eta), lambda x: x.mean(0, keepdim=True))
    return Robust((weights * f).sum(-1), alpha.expand(len(f)), weights)


def kl_penalised(
    values: Tensor, reference: Tensor | None = None, tau: float | Tensor = 0.5
) -> Robust:
    r"""The penalised worst case $\sup_Q\mathbb E_Qf-\tau\,\mathrm{KL}(Q\|Q_0)=\tau\log\mathbb
    E_{Q_0}e^{f/\tau}$.

    `tau` $>0$, a number or one per row $[\dots]$; attained at $Q^*\propto Q_0e^{f/\tau}$. This is
    InfoNCE's treatment of its negatives at temperature $\tau$ (Donsker and Varadhan, 1983).
    """
    f, log_q0 = _prepare(values, reference)
    _checks.positive("tau", tau)
    alpha = torch.as_tensor(tau, dtype=torch.float64, device=f.device).detach()
    if alpha.ndim and alpha.shape != f.shape[:-1]:
        raise ValueError(
            f"tau has shape {tuple(alpha.shape)}; give one number, or one per row "
            f"{tuple(f.shape[:-1])}"
        )
    alpha = alpha.expand(f.shape[:-1])
    weights = torch.softmax(log_q0 + f.detach() / alpha[..., None], -1)
    return Robust(_kl_dual(f, log_q0, alpha, weights), alpha, weights)


def kl_temperature(
    values: Tensor,
    reference: Tensor | None = None,
    eta: float = 0.1,
    order: int = 0,
    log_reference: Tensor | None = None,
) -> Tensor:
    r"""The temperature $\alpha^*(\eta)$ of each row's Kullback–Leibler ball, or its expansion,
    $[\dots]$.

    $$\alpha^*(\eta)=\sqrt{\frac{\kappa_2}{2\eta}}+\frac{\kappa_3}{3\kappa_2}
    +\Big(\frac{\kappa_4}{8\kappa_2}-\frac{\kappa_3^2}{6\kappa_2^2}\Big)
    \sqrt{\frac{2\eta}{\kappa_2}}+O(\eta)$$

    with the cumulants $\kappa_k$ of $f$ under $Q_0$. `order` 0: exact, as `kl_ball`'s `alpha` ($0$
    where the ball reaches the largest atoms); 1, 2, 3: the first terms, cut at $0$ where they turn
    negative. No gradient. ValueError: another `order`, an `eta` that is not one number $>0$.
    Source: order 1 dro-adnce, Corollary 3.4; the rest is ours.
    """
    if isinstance(order, bool) or not isinstance(order, int) or order not in range(4):
        raise ValueError(
            f"order={_checks.shown(order)} is unknown; "
            "use 0 for the exact temperature, or 1, 2, 3 terms"
        )
    f, log_q0 = _prepare(values, reference, log_reference)
    return _by_rows(f.detach(), log_q0, _radius(eta), str(order))[0]


def chi2_ball(
    values: Tensor,
    reference: Tensor | None = None,
    eta: float = 0.1,
    log_reference: Tensor | None = None,
) -> Robust:
    r"""The worst case in a $\chi^2$ ball for each row, $\frac12\mathbb E_{Q_0}(\mathrm dQ/\mathrm
    dQ_0-1)^2\le\eta$.

    `eta` $>0$. $Q^*\propto Q_0(f-\ell)_+$; while no weight is cut, $\eta\le\mathrm{Var}f/2(\mathbb
    Ef-\min f)^2$, the value is $\mathbb Ef+\sqrt{2\eta\mathrm{Var}f}$. Source: dro-adnce, Theorem
    3.5 made exact.
    """
    f, log_q0 = _prepare(values, reference, log_reference)
    weights, alpha = _by_rows(f.detach(), log_q0, _radius(eta), "chi2")
    return Robust((weights * f).sum(-1), alpha, weights)


def _by_rows(f, log_q0, eta, law) -> list[Tensor]:
    solve = _traced if torch.compiler.is_compiling() else _solve
    return [x.reshape(f.shape[: f.ndim - 2 + x.ndim]) for x in solve(f, log_q0, eta, law)]


def _solve(f: Tensor, log_q0: Tensor, eta: float, law: str) -> list[Tensor]:
    """Rows in double precision; a few at a time on the CPU, to stay within its cache."""
    m = f.shape[-1]
    rows = max(1, BLOCK // m) if _checks.readable(f) else f.numel()
    if law == "0" and f.dtype == torch.float32 and eta >= ROUGH and _checks.readable(f):
        law = "rough"
    blocks = zip(*(x.reshape(-1, m).split(rows) for x in (f, log_q0)), strict=True)
    solved = [_LAWS[law](g.double(), h.double(), eta) for g, h in blocks]
    return [torch.cat([x.to(f.dtype) for x in part]) for part in zip(*solved, strict=True)]


_traced = torch.library.custom_op("hnlib::robust", _solve, mutates_args=())


@_traced.register_fake
def _(f, log_q0, eta, law):
    rows = f.reshape(-1, f.shape[-1])
    return [rows.new_empty(rows.shape)] * (law == "chi2") + [rows.new_empty(len(rows))]


def _temperature(f, log_q0, eta, rough=False):
    q0 = log_q0.softmax(-1)
    s, inside = _kl_sharpness(*_below_top(f, q0), q0, eta, rough=rough)
    return (torch.where(inside, 1 / s, 0.0),)


def _expansion(f, log_q0, eta, order):
    q0 = log_q0.softmax(-1)
    centred = f - (q0 * f).sum(-1, keepdim=True)
    power = q0 * centred
    k2, k3, fourth = ((power := power * centred).sum(-1) for _ in range(3))
    terms = (
        (k2 / (2 * eta)).sqrt(),
        k3 / (3 * k2),
        ((fourth - 3 * k2**2) / (8 * k2) - k3**2 / (6 * k2**2)) * (2 * eta / k2).sqrt(),
    )
    return (torch.where(k2 > 0, sum(terms[:order]), 0.0).clamp_min(0),)


def _chi2_law(f, log_q0, eta):
    r"""Weights and multiplier of the law $q_0(f-\ell)_+$ of radius eta.

    Over a fixed set of atoms the level is the root of a quadratic. Where that set holds every atom
    above the true level, the root is no higher than the true level: so from all atoms on the roots
    climb, until no more atom falls.
    """
    q0 = log_q0.softmax(-1)
    g, top = _below_top(f, q0)
    mean = (q0 * g).sum(-1, keepdim=True)
    variance = (q0 * (g - mean).square_()).sum(-1, keepdim=True)
    inside = (eta < (1 / top.sum(-1, keepdim=True) - 1) / 2) & (variance > 0)
    level, before = mean - (variance / (2 * eta)).sqrt(), torch.ones_like(mean)
    waits = _checks.readable(g)
    for _ in range(g.shape[-1] + 1 if waits else STEPS):
        x = (g - level).clamp_min_(0)
        first = (y := q0 * x).sum(-1, keepdim=True)
        second = y.mul_(x).sum(-1, keepdim=True)
        mass = x.sign_().mul_(q0).sum(-1, keepdim=True)
        # the root relative to this level, in the form that keeps its digits where it is near
        room = ((1 + 2 * eta) * mass - 1).clamp_min(1e-300)
        short = ((1 + 2 * eta) * first.square() - second) / room
        gain = short / (first + ((mass * second - first.square()).clamp_min(0) / room).sqrt())
        fell = inside & (mass < before) & (gain > 1e-9 * first)
        level, before = level + gain, mass
        if waits and not fell.any():
            break
    _checks.refuse(fell.reshape(-1), _UNSETTLED)
    excess = torch.where(inside, q0 * (g - level).clamp_min_(0), top)
    alpha = excess.sum(-1, keepdim=True)
    return excess / alpha, torch.where(inside, alpha, 0.0).squeeze(-1)


_LAWS = {str(order): partial(_expansion, order=order) for order in (1, 2, 3)}
_LAWS |= {"0": _temperature, "rough": partial(_temperature, rough=True), "chi2": _chi2_law}
_UNSETTLED = "row {row}: the law of its ball was not found; compute it in float64, on the CPU"


def _prepare(values, reference, log_reference=None):
    if log_reference is not None:
        return values, log_reference.detach()
    f = _checks.as_tensor("values", values).double()
    sentence = f"values must be finite with at least one atom; got shape {tuple(f.shape)}"
    if f.ndim == 0 or f.numel() == 0:
        raise ValueError(sentence)
    _checks.refuse(~f.detach().isfinite().all().reshape(1), sentence)
    if reference is None:
        return f, torch.full_like(f, -math.log(f.shape[-1])).detach()
    q0 = _checks.as_tensor("reference", reference).to(f).detach()
    if q0.shape not in (f.shape, f.shape[-1:]):
        shapes = f"values {tuple(f.shape)} need that or ({f.shape[-1]},)"
        raise ValueError(f"the reference has shape {tuple(q0.shape)}; {shapes}")
    total = q0.sum(-1).reshape(-1)
    bad = ~((q0 >= 0).all(-1).reshape(-1) & ((total - 1).abs() < 1e-6))
    sentence = "the reference must not be negative and must sum to one (a sum is {value:.6g})"
    _checks.refuse(bad, f"{sentence}; normalise it", total)
    return f, q0.expand(f.shape).log()


def _radius(eta):
    _checks.single("eta", eta, "give one radius for all rows")
    what = "be positive and finite: it is the radius of the ball, which is lost below 1e-12"
    _checks.must("eta", eta, lambda x: (x >= 1e-12) & (x < math.inf), what)
    return eta.detach() if isinstance(eta, Tensor) else float(eta)


def _below_top(f, q0):
    """f less its largest value on an atom with mass, 0 on atoms without; the masses of that top."""
    g = torch.where(q0 > 0, f, -torch.inf)
    g = g.sub_(g.amax(-1, keepdim=True)).masked_fill_(q0 == 0, 0.0)
    return g, torch.where(g == 0, q0, 0.0)


def _kl_law(f, log_q0, eta, pool=lambda divergence: divergence):
    """Weights and multiplier of the tilt whose (pooled) divergence from the reference is eta."""
    q0 = log_q0.softmax(-1)
    g, top = _below_top(f, q0)
    s, inside = _kl_sharpness(g, top, q0, eta, pool)
    tilt = torch.softmax(log_q0 + s[..., None] * g, -1)
    weights = torch.where(inside[..., None], tilt, top / top.sum(-1, keepdim=True))
    return weights, torch.where(inside, 1 / s, 0.0)


def _kl_sharpness(g, top, q0, eta, pool=lambda divergence: divergence, rough=False):
    r"""The sharpness $s=1/\alpha$ of that tilt, and whether it exists: else the ball holds the top.

    The divergence at $s$ has the slope $s\,\mathrm{Var}$ of the tilt, and its root is nearly
    linear: Newton's method on the root, inside a bracket, from two terms of `kl_temperature`;
    `rough`: in single precision first, to begin nearer.
    """
    centred = g - (q0 * g).sum(-1, keepdim=True)
    power = q0 * centred
    variance, third = (pool((power := power.mul_(centred)).sum(-1)) for _ in range(2))
    inside = (eta < pool(-top.sum(-1).log())) & (variance > 0)
    first = (variance / (2 * eta)).sqrt()
    start = torch.maximum(first + third / (3 * variance), first / 4)
    s = torch.where(variance > 0, 1 / start, 1.0)
    if rough:  # but where that overflows
        near, lost = _newton(g.float(), q0.float(), s, eta, pool, inside, 1e-3)
        s = torch.where(lost | ~near.isfinite(), s, near)
    s, going = _newton(g, q0, s, eta, pool, inside, 1e-8)
    _checks.refuse(going.reshape(-1), _UNSETTLED)
    return torch.where(inside, s, 1.0), inside


def _newton(g, q0, s, eta, pool, inside, tolerance: float):
    """The sharpness from a start s, and where it has not settled: Newton's error is of the order of
    its step squared, so after a relative one of `tolerance` its square is left."""
    low, high, going = torch.zeros_like(s), torch.full_like(s, torch.inf), inside
    waits = _checks.readable(g)
    for _ in range(200 if waits else STEPS):  # 2**200: beyond any gap between distinct doubles
        short, gain = _kl_newton(g, q0, s, eta, pool)
        low, high = torch.where(short, s, low), torch.where(short, high, s)
        last = gain.abs() <= tolerance * s
        within = last | (s + gain > low) & (s + gain < high) & (gain < 3 * s)
        halved = torch.where(high.isfinite(), (low + high) / 2, 2 * s)
        s = torch.where(going, torch.where(within, s + gain, halved), s)
        going = going & ~last & (high - low > 1e-15 * low)
        if waits and not going.any():
            break
    return s, going


def _kl_newton(g, q0, s, eta, pool):
    """Whether the divergence at s falls short of eta, and the step that Newton's method takes."""
    x = s[..., None].to(g) * g  # at most 0, and 0 on the top: no sum over- or underflows
    tilt = (x * math.log2(math.e)).exp2_().mul_(q0)  # a third of the time of exp
    total = tilt.sum(-1)
    mean = tilt.mul_(x).sum(-1) / total
    square = tilt.mul_(x).sum(-1) / total
    kl = pool(mean - total.log()).clamp_min(0)
    slope = pool((square - mean.square()).clamp_min(0)) / s
    gain = 2 * kl.sqrt() * (eta**0.5 - kl.sqrt()) / slope
    return kl < eta, torch.where(kl > 0, gain, torch.inf)  # of a divergence lost in rounding: more


def _kl_dual(f, log_q0, alpha, weights):
    """$\\alpha\\log E e^{f/\\alpha}$ with alpha held fixed; at alpha = 0 the largest value."""
    a = alpha[..., None].detach()
    smooth = a.squeeze(-1) * torch.logsumexp(log_q0 + f / torch.where(a > 0, a, 1.0), -1)
    return torch.where(a.squeeze(-1) > 0, smooth, (weights * f).sum(-1))
