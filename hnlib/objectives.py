r"""Functionals that score an anchor's positive against its weighted negatives.

All take a `Contrast` and the log-weights $\log w_{ij}$ of `hnlib.negatives` and return the mean over anchors
(`reduction="mean"`) or one value per anchor $[n]$ (`"none"`). An anchor with several positives contributes the average
over them. An anchor whose weights are all $-\infty$ (no negative, `on_empty="skip"`) is left out of the mean and is 0
in the vector.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hnlib import robust
from hnlib.contrast import Contrast
from hnlib.negatives import _per_anchor, _positive


def info_nce(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float | Tensor = 0.5,
    tau_plus: float | Tensor = 0.0,
    scale: float | None = None,
    average: str = "anchors",
    reduction: str = "mean",
) -> Tensor:
    r"""InfoNCE with weighted negatives, scale $Q$ and class prior $\tau^+$.

    $$\log\Big(1+Q\,e^{-s_i^+/t}\max\Big\{\frac{\sum_jw_{ij}e^{s_{ij}/t}-\tau^+e^{s_i^+/t}}{1-\tau^+},\,e^{-1/t}\Big\}\Big)$$

    (for $\tau^+=0$ the maximum never acts and the term is the plain sum). `temperature` $t>0$ and
    `tau_plus` $\in[0,1)$ are numbers or $[n]$; `scale` $Q>0$, default `contrast.scale`. `average`: over an anchor's
    positives first ("anchors") or over all pairs alike ("pairs", as released supervised code does; mean only).
    Computed in the log domain: finite at $t=0.01$.
    Source: hcl, eq. (4) and Fig. 13 (released code); h-scl, eq. (3); $\tau^+$: Chuang et al. (2020).
    """
    s = contrast.similarity
    _check_weights(contrast, log_w)
    _positive("temperature", temperature)
    for name, value in (("temperature", temperature), ("tau_plus", tau_plus)):
        _per_anchor(name, value, contrast)  # refuses another shape
    low, high = (tau_plus.min(), tau_plus.max()) if isinstance(tau_plus, Tensor) else (tau_plus, tau_plus)
    if not (low >= 0 and high < 1):
        worst = float(high if high >= 1 else low)
        raise ValueError(f"tau_plus={worst:g} must lie in [0, 1): it is the share of the anchor's own class")
    q = contrast.scale if scale is None else scale
    _positive("scale", q)
    rows, inverse_t = contrast.positive_pairs[0], 1 / temperature
    if isinstance(temperature, Tensor):
        filled, empty = _fill_skipped(log_w)
        negatives = torch.logsumexp(s * _per_anchor("temperature", inverse_t, contrast) + filled, 1)
        negatives = negatives.masked_fill(empty, -torch.inf)
        inverse_t, positive = inverse_t[rows] if temperature.ndim else inverse_t, contrast.positive_similarity
    else:
        negatives, positive = _Terms.apply(s, inverse_t, log_w, contrast.positive_index)
    kept = negatives != -torch.inf  # NaN is kept: it must show
    negatives, positive = negatives.index_select(0, rows), positive * inverse_t
    if isinstance(tau_plus, Tensor) or tau_plus > 0:
        below_one = 1 - torch.finfo(s.dtype).eps  # float32 takes 1 - 1e-9 for 1
        prior = tau_plus.to(s).clamp_max(below_one) if isinstance(tau_plus, Tensor) else s.new_full(
            (), min(tau_plus, below_one))  # made there: no wait for the device
        negatives = _debias(negatives, positive, prior[rows] if prior.ndim else prior, inverse_t)
    return _average(_softplus(negatives - positive + math.log(q)), contrast, kept, average, reduction)


def exact_debiased(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float = 0.5,
    beta: float = 1.0,
    tau_plus: float = 0.1,
    scale: float | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""InfoNCE over the tilted law of the *other* classes: `info_nce` with the class mass of the tilt, guarded.

    $$\log\Big(1+Q\,e^{-s_i^+/t}\,
    \frac{\max\{\sum_jw_{ij}e^{s_{ij}/t}-\pi_ie^{s_i^+/t},\ \sum_jw_{ij}k_{ij}e^{s_{ij}/t}\}}
    {\max\{1-\pi_i,\ \sum_jw_{ij}k_{ij}\}}\Big),\qquad
    \pi_i=\frac{\tau^+e^{\beta s_i^+/t}}{|N(i)|^{-1}\sum_{j\in N(i)}e^{\beta s_{ij}/t}}$$

    `log_w` $[n,m]$ are the weights of `negatives.tilted(beta, temperature)`; $\pi_i$ estimates the mass that they put
    on the anchor's class from its one positive, and may exceed 1. The guard: $k_{ij}\in[0,1]$ is 0 on the
    $\tau^+|N(i)|$ most similar candidates (the last of them in part) and 1 on the rest, so the right-hand terms are
    what is left when the class takes all it can; no class of mass $\tau^+$ leaves less. `guarded` says where the guard
    acts. `beta` $\ge0$, `temperature` $>0$, `tau_plus` $\in[0,1)$ are numbers. Where `log_w` carries no gradient,
    $\pi$ does not.
    ValueError: options out of range; on the CPU other weights than that tilt, of which $\pi_i$ says nothing (on an
    accelerator the question would stall every step).
    Source: hcl, eq. (4), corrected; ours.
    """
    log_mass, kept = _class_mass(contrast, log_w, temperature, beta, tau_plus)
    log_w, empty = _fill_skipped(log_w)
    hard = log_w + contrast.similarity / temperature
    rows, q = contrast.positive_pairs[0], contrast.scale if scale is None else scale
    _positive("scale", q)
    positive = contrast.positive_similarity / temperature
    above = _log_difference(torch.logsumexp(hard, 1)[rows], log_mass + positive, torch.logsumexp(hard + kept, 1)[rows])
    below = _log_difference(torch.zeros_like(log_mass), log_mass, torch.logsumexp(log_w + kept, 1)[rows])
    loss = _softplus(above - below - positive + math.log(q))
    return _average(loss, contrast, ~empty, "anchors", reduction)


def guarded(
    contrast: Contrast, log_w: Tensor, temperature: float = 0.5, beta: float = 1.0, tau_plus: float = 0.1
) -> Tensor:
    r"""Where the guard of `exact_debiased` acts, by more than rounding $[n]$ (bool).

    On the denominator it acts where the positive is closer than the hardest $\tau^+$ share of the candidates, in the
    mean of $e^{\beta s_{ij}/t}$ over that share (never at $\beta=0$); on the numerator in the mean of
    $e^{(\beta+1)s_{ij}/t}$. With several positives: where it acts for any of them. Arguments as there.
    """
    log_w = log_w.detach()
    log_mass, kept = _class_mass(contrast, log_w, temperature, beta, tau_plus)
    hard, rows = log_w + contrast.similarity.detach() / temperature, contrast.positive_pairs[0]
    total = torch.logsumexp(hard, 1)
    positive = contrast.positive_similarity.detach() / temperature
    below = 1 - log_mass.exp() < (1 - 1e-5) * torch.logsumexp(log_w + kept, 1).exp()[rows]
    share = (log_mass + positive - total[rows]).exp()  # of the numerator, that the class is said to hold
    above = 1 - share < (1 - 1e-5) * (torch.logsumexp(hard + kept, 1) - total).exp()[rows]
    acts = (below | above) & (total > -torch.inf)[rows]
    return torch.zeros_like(log_w[:, 0], dtype=torch.bool).index_put((rows[acts],), acts[acts])


def kl_budget(
    contrast: Contrast,
    log_w: Tensor,
    eta: float = 0.5,
    order: int = 0,
    floor: float = 0.01,
    scale: float | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""InfoNCE at each anchor's own temperature, $t_i\log\big(1+Q\sum_jw_{ij}e^{(s_{ij}-s_i^+)/t_i}\big)$.

    $t_i=\max\{\alpha_i^*(\eta),t_0\}$ is the multiplier of a Kullback–Leibler ball of radius `eta` $>0$ around $w_i$,
    or its expansion of `order` 1, 2 or 3 (0: exact, see `robust.kl_temperature`); `floor` $t_0>0$ is for anchors whose
    ball holds the hardest negative alone. The temperatures carry no gradient: by the envelope theorem the gradient is
    that of the robust loss $\sup_{\mathrm{KL}(q\|w_i)\le\eta}\mathbb E_qs_{ij}-s_i^+$, but for the positive's share
    of the denominator. ValueError: an `eta`, `order` or `floor` out of range.
    Source: dro-adnce, Theorem 3.2, read anchor by anchor. Ours; the temperatures of Qiu et al. (2023) are learned.
    """
    temperature = budget_temperature(contrast, log_w, eta, order, floor)
    loss = info_nce(contrast, log_w, temperature, scale=scale, reduction="none") * temperature
    kept = log_w.amax(1) != -torch.inf
    if reduction not in ("mean", "none"):
        raise ValueError(f'reduction={reduction!r} is unknown; use "mean" or "none"')
    return loss if reduction == "none" else loss.sum() / kept.sum().clamp_min(1)


def budget_temperature(
    contrast: Contrast, log_w: Tensor, eta: float = 0.5, order: int = 0, floor: float = 0.01
) -> Tensor:
    r"""The temperatures $t_i$ of `kl_budget` $[n]$, without gradient. Arguments as there."""
    _check_weights(contrast, log_w)
    _positive("floor", floor)
    kept = log_w.amax(1) != -torch.inf
    reference = torch.where(kept[:, None], log_w.detach().double(), 0.0).softmax(1)
    t = robust.kl_temperature(contrast.similarity, reference, eta, order)
    return torch.where(kept, t, 1.0).clamp_min(floor).to(contrast.similarity.dtype)


def basic(contrast: Contrast, log_w: Tensor, average: str = "anchors", reduction: str = "mean") -> Tensor:
    r"""The basic contrastive loss $\sum_jw_{ij}s_{ij}-s_i^+$ (BCL; with detached tilted weights $\alpha$-CL-direct).

    Source: hcl-ot, eq. (9); dro-adnce, $L_{basic}$.
    """
    _check_weights(contrast, log_w)
    mean = _moment(log_w, contrast.similarity)
    value = mean[contrast.positive_pairs[0]] - contrast.positive_similarity
    return _average(value, contrast, log_w.amax(1) != -torch.inf, average, reduction)


def mean_variance(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float | Tensor = 0.5,
    average: str = "anchors",
    reduction: str = "mean",
) -> Tensor:
    r"""Mean plus variance of the negatives: $\bar s_i+\mathrm{Var}_i/2t-s_i^+$, moments under $w_i$ (MW).

    `temperature` $t>0$, a number or $[n]$. Source: dro-adnce, eq. (8), Theorem 3.5.
    """
    _check_weights(contrast, log_w)
    _positive("temperature", temperature)
    _per_anchor("temperature", temperature, contrast)  # refuses another shape
    mean = _moment(log_w, contrast.similarity)
    variance = _moment(log_w, (contrast.similarity - mean[:, None]).square())
    value = (mean + variance / (2 * temperature))[contrast.positive_pairs[0]] - contrast.positive_similarity
    return _average(value, contrast, log_w.amax(1) != -torch.inf, average, reduction)


def jensen_shannon(
    contrast: Contrast, log_w: Tensor, tau_plus: float = 0.0, average: str = "anchors", reduction: str = "mean"
) -> Tensor:
    r"""The Jensen–Shannon objective of InfoGraph with weighted negatives and class prior $\tau^+$.

    $$\mathrm{sp}(-s_i^+)+\max\Big\{\frac{\sum_jw_{ij}\,\mathrm{sp}(s_{ij})-\tau^+\mathrm{sp}(s_i^+)}{1-\tau^+},\,0\Big\},
      \qquad\mathrm{sp}(x)=\log(1+e^x)$$

    (for $\tau^+=0$ the maximum never acts). `tau_plus` $\in[0,1)$. Similarities are scores of any size. An anchor with
    several positives contributes the mean of this over them. Without the maximum the objective has no lower bound.
    ValueError: `tau_plus` out of range, weights of another shape.
    Source: Sun et al. (2020); weights: hcl, App. B.2; the prior: hcl's released code, its sign corrected.
    """
    _check_weights(contrast, log_w)
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau_plus={tau_plus:g} must lie in [0, 1): it is the share of the anchor's own class")
    rows, positive = contrast.positive_pairs[0], contrast.positive_similarity
    negative = _moment(log_w, _softplus(contrast.similarity))[rows]
    if tau_plus:
        negative = ((negative - tau_plus * _softplus(positive)) / (1 - tau_plus)).clamp_min(0.0)
    return _average(_softplus(-positive) + negative, contrast, log_w.amax(1) != -torch.inf, average, reduction)


def _softplus(x: Tensor) -> Tensor:
    return functional.softplus(x, threshold=40.0)  # torch's own threshold, 20, is 2e-9 off in double precision


class _Terms(torch.autograd.Function):
    r"""$\log\sum_jw_{ij}e^{s_{ij}/t}$ by rows, and the similarities of the positives (flat indices), in few passes.

    Keeping the exponentials makes the backward pass one multiplication, into which the positives' gradient is added.
    """

    @staticmethod
    def forward(ctx, s: Tensor, inverse_t: float, log_w: Tensor, positive_index: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.add(log_w, s, alpha=inverse_t)
        largest = x.amax(1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)  # a row that is all -inf stays -inf
        total = x.sub_(largest).exp_().sum(1)
        ctx.inverse_t = inverse_t
        ctx.save_for_backward(x, total, positive_index)
        return largest.squeeze(1) + total.log(), s.flatten().index_select(0, positive_index)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor, grad_positive: Tensor):
        x, total, positive_index = ctx.saved_tensors
        share = grad / total.clamp_min(torch.finfo(total.dtype).tiny)
        needs_s, _, needs_w, _ = ctx.needs_input_grad
        grad_w = x * share[:, None] if needs_w else None
        grad_s = None
        if needs_s:
            grad_s = x * (share * ctx.inverse_t)[:, None]
            grad_s.view(-1).index_add_(0, positive_index, grad_positive)
        return grad_s, None, grad_w, None


def _check_weights(contrast: Contrast, log_w: Tensor) -> None:
    if log_w.shape != contrast.similarity.shape:
        raise ValueError(
            f"log_w has shape {tuple(log_w.shape)}; this contrast needs {tuple(contrast.similarity.shape)}: "
            "weights are made by hnlib.negatives from the same contrast"
        )


def _fill_skipped(log_w: Tensor) -> tuple[Tensor, Tensor]:
    """`log_w` with zeros in the rows of skipped anchors, where `logsumexp` has NaN for a gradient; and those rows."""
    empty = log_w.detach().amax(1) == -torch.inf
    return log_w.masked_fill(empty[:, None], 0.0), empty


def _moment(log_w: Tensor, x: Tensor) -> Tensor:
    return (log_w.exp() * x).sum(1)


def _debias(negatives: Tensor, positive: Tensor, tau_plus: Tensor, inverse_t: float | Tensor) -> Tensor:
    r"""$\log\max\{(e^{A}-\tau^+e^{B})/(1-\tau^+),\,e^{-1/t}\}$ without leaving the log domain.

    Where the difference is not positive the floor rules; the clamps only keep what is then discarded, and its gradient,
    finite.
    """
    share = (positive - negatives + tau_plus.log()).clamp_max(0.0).exp()
    left = (1 - share).clamp_min(torch.finfo(share.dtype).tiny).log()
    value = negatives + left - torch.log1p(-tau_plus)
    return torch.where((tau_plus > 0) & ((share == 1) | (value <= -inverse_t)), -inverse_t, value)  # NaN stays NaN


def _class_mass(contrast: Contrast, log_w: Tensor, temperature: float, beta: float, tau_plus: float):
    r"""$\log\pi$ for every (anchor, positive) pair, and $\log k_{ij}$ $[n,m]$: see `exact_debiased`."""
    _check_weights(contrast, log_w)
    for name, value in (("temperature", temperature), ("beta", beta), ("tau_plus", tau_plus)):
        if isinstance(value, Tensor) and value.ndim:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; exact debiasing takes one number for all anchors")
    _positive("temperature", temperature)
    if not (beta >= 0 and math.isfinite(beta)):
        raise ValueError(f"beta={beta} must be at least 0: below, the guard would have to trim the easiest candidates")
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau_plus={tau_plus:g} must lie in [0, 1): it is the share of the anchor's own class")
    s = contrast.similarity if log_w.requires_grad else contrast.similarity.detach()
    tilt = torch.add(contrast.uniform_log_weights, s, alpha=beta / temperature)
    rows = contrast.positive_pairs[0]
    positive = s.flatten().index_select(0, contrast.positive_index) * (beta / temperature)
    if not contrast.never_empty:
        tilt, _ = _fill_skipped(tilt)
    total = torch.logsumexp(tilt, 1)
    if s.device.type == "cpu":  # on an accelerator the question would stall the step
        some = slice(None, None, max(1, s.shape[1] // 64))  # other weights differ nearly everywhere
        gap = log_w.detach()[:, some] - tilt.detach()[:, some] + total.detach()[:, None]
        gap = torch.where(contrast.admissible[:, some], gap, 0.0).abs().amax()
        if gap > 1e-3 + 1e-6 * beta / temperature:  # what float32 leaves open
            raise ValueError(f"log_w is not the tilt of beta={beta:g} and temperature={temperature:g}, but {gap:.2g} "
                             "off; pass negatives.tilted(beta, temperature)(contrast)")
    log_mass = positive - total[rows] + (math.log(tau_plus) if tau_plus else -torch.inf)
    # something stays, also where float32 takes tau_plus for 1
    trimmed = min(tau_plus, 1 - 1e-6) * contrast.negative_counts[:, None].to(s.dtype)
    kept = torch.zeros_like(s)
    if tau_plus:
        most = s.shape[1] if not contrast.never_empty else math.ceil(tau_plus * s.shape[1])
        hardest = s.detach().masked_fill(~contrast.admissible, -torch.inf).topk(most, 1).indices
        removed = (trimmed - torch.arange(most, device=s.device)).clamp(0, 1)
        kept.scatter_(1, hardest, torch.log1p(-removed))
    return log_mass, kept


def _log_difference(a: Tensor, b: Tensor, floor: Tensor) -> Tensor:
    r"""$\log\max\{e^a-e^b,\,e^{\text{floor}}\}$, however low the floor; the inner `where` keeps gradients finite."""
    below = b < a
    left = torch.log(-torch.expm1(torch.where(below, b - a, -1.0)))
    return torch.where(below, torch.maximum(a + left, floor), floor)


def _average(loss: Tensor, contrast: Contrast, kept: Tensor, average: str, reduction: str) -> Tensor:
    """From one value per (anchor, positive) pair to one per anchor, to one."""
    if average not in ("anchors", "pairs"):
        raise ValueError(f'average={average!r} is unknown; use "anchors" or "pairs"')
    if reduction not in ("mean", "none"):
        raise ValueError(f'reduction={reduction!r} is unknown; use "mean" or "none"')
    if average == "pairs" and reduction == "none":
        raise ValueError('average="pairs" is one number for all pairs; with reduction="none" use average="anchors"')
    rows, n = contrast.positive_pairs[0], len(contrast.similarity)
    if average == "pairs":
        return torch.where(kept[rows], loss, 0.0).sum() / kept[rows].sum().clamp_min(1)
    if len(rows) > n:  # several positives: average over each anchor's first
        positives = torch.bincount(rows, minlength=n).to(loss.dtype)
        loss = torch.zeros(n, dtype=loss.dtype, device=loss.device).index_add(0, rows, loss) / positives
    per_anchor = torch.where(kept, loss, 0.0)
    return per_anchor if reduction == "none" else per_anchor.sum() / kept.sum().clamp_min(1)
