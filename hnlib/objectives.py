r"""Functionals that score an anchor's positive against its weighted negatives.

All take a `Contrast` and the log-weights $\log w_{ij}$ of `hnlib.negatives` and return the mean
over anchors (`reduction="mean"`) or one value per anchor $[n]$ (`"none"`). An anchor with several
positives contributes the average over them. An anchor whose weights are all $-\infty$ (no negative,
`on_empty="skip"`) is left out of the mean and is 0 in the vector.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from hnlib import _checks, robust
from hnlib.contrast import Contrast


def info_nce(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float | Tensor = 0.5,
    tau_plus: float | Tensor = 0.0,
    scale: float | None = None,
    average: str = "anchors",
    reduction: str = "mean",
    hardness_strength: float = 0.0,
) -> Tensor:
    r"""InfoNCE with weighted negatives, scale $Q$ and class prior $\tau^+$.

    $$\log\Big(1+Q\,e^{-s_i^+/t}\max\Big\{
    \frac{\sum_jw_{ij}e^{s_{ij}/t}-\tau^+e^{s_i^+/t}}{1-\tau^+},\,e^{-1/t}\Big\}\Big)$$

    (for $\tau^+=0$ the maximum never acts and the term is the plain sum). `temperature` $t>0$ and
    `tau_plus` $\in[0,1)$ are numbers or $[n]$; `scale` $Q>0$, default `contrast.scale`. `average`:
    over an anchor's positives first ("anchors") or over all pairs alike ("pairs", as released
    supervised code does; mean only). `hardness_strength` $\alpha\ge0$ multiplies $w_{ij}$ by
    $e^{\alpha s_{ij}}$, without gradient and without normalising again: with uniform weights the
    option of that name of sentence-transformers. Computed in the log domain: finite at $t=0.01$.
    Source: hcl, eq. (4) and Fig. 13 (released code); h-scl, eq. (3); $\tau^+$: Chuang et al.
    (2020); $\alpha$: Lan et al. (2025), eq. (5).
    """
    s, pairs, n = contrast.similarity, contrast.pairs, len(contrast.similarity)
    _check_weights(contrast, log_w)
    _checks.positive("temperature", temperature)
    of_row = _checks.per_anchor("temperature", temperature, n)
    _checks.per_anchor("tau_plus", tau_plus, n)
    _check_prior(tau_plus)
    q = contrast.scale if scale is None else scale
    _checks.positive("scale", q)
    harder = "be finite and at least 0: below, the easiest negatives would weigh most"
    _checks.number(
        "hardness_strength", hardness_strength, lambda x: (x >= 0) & (x < math.inf), harder
    )
    if hardness_strength:
        log_w = log_w + hardness_strength * s.detach()
    negatives, positive, _ = _log_sums(log_w, s, 1 / of_row, pairs.cells)
    positive = pairs.gather(s) if positive is None else positive
    kept = _kept(negatives)
    inverse_t = pairs.spread(1 / temperature) if of_row is not temperature else 1 / temperature
    negatives, positive = pairs.spread(negatives), positive * inverse_t
    if isinstance(tau_plus, Tensor) or tau_plus > 0:
        below_one = 1 - torch.finfo(s.dtype).eps  # float32 takes 1 - 1e-9 for 1
        if isinstance(tau_plus, Tensor):
            prior = tau_plus.to(s).clamp_max(below_one)
        else:  # made there: no wait for the device
            prior = s.new_full((), min(tau_plus, below_one))
        prior = pairs.spread(prior) if prior.ndim else prior
        negatives = _debias(negatives, positive, prior, inverse_t)
    loss = _softplus(negatives - positive + math.log(q))
    return _average(loss, contrast, kept, average, reduction)


def exact_debiased(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float = 0.5,
    beta: float = 1.0,
    tau_plus: float = 0.1,
    scale: float | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""InfoNCE over the tilted law of the *other* classes: `info_nce` with the class mass of the
    tilt, guarded.

    $$\log\Big(1+Q\,e^{-s_i^+/t}\,
    \frac{\max\{\sum_jw_{ij}e^{s_{ij}/t}-\pi_ie^{s_i^+/t},\ \sum_jw_{ij}k_{ij}e^{s_{ij}/t}\}}
    {\max\{1-\pi_i,\ \sum_jw_{ij}k_{ij}\}}\Big),\qquad
    \pi_i=\frac{\tau^+e^{\beta s_i^+/t}}{|N(i)|^{-1}\sum_{j\in N(i)}e^{\beta s_{ij}/t}}$$

    `log_w` $[n,m]$ are the weights of `negatives.tilted(beta, temperature)`; $\pi_i$ estimates the
    mass that they put on the anchor's class from its one positive, and may exceed 1. The guard:
    $k_{ij}\in[0,1]$ is 0 on the
    $\tau^+|N(i)|$ most similar candidates (the last of them in part) and 1 on the rest, so the
    right-hand terms are what is left when the class takes all it can; no class of mass $\tau^+$
    leaves less. `guarded` says where the guard acts. `beta` $\ge0$, `temperature` $>0$, `tau_plus`
    $\in[0,1)$ are numbers. Where `log_w` carries no gradient,
    $\pi$ does not.
    ValueError: options out of range; other weights than that tilt, of which $\pi_i$ says nothing
    (on an accelerator when a training loop asks for it). Source: hcl, eq. (4), corrected; ours.
    """
    q = contrast.scale if scale is None else scale
    _checks.positive("scale", q)
    log_mass, positive, *logs = _exact_parts(contrast, log_w, temperature, beta, tau_plus)
    total, trimmed, left = (contrast.pairs.spread(x) for x in logs)
    above = _log_difference(total, log_mass + positive, trimmed)
    below = _log_difference(torch.zeros_like(log_mass), log_mass, left)
    loss = _softplus(above - below - positive + math.log(q))
    return _average(loss, contrast, _kept(log_w.amax(1)), "anchors", reduction)


def guarded(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float = 0.5,
    beta: float = 1.0,
    tau_plus: float = 0.1,
) -> Tensor:
    r"""Where the guard of `exact_debiased` acts, by more than rounding $[n]$ (bool).

    On the denominator it acts where the positive is closer than the hardest $\tau^+$ share of the
    candidates, in the mean of $e^{\beta s_{ij}/t}$ over that share (never at $\beta=0$); on the
    numerator in the mean of
    $e^{(\beta+1)s_{ij}/t}$. With several positives: where it acts for any of them. Arguments as
    there.
    """
    with torch.no_grad():
        log_mass, positive, *logs = _exact_parts(contrast, log_w, temperature, beta, tau_plus)
    pairs, kept = contrast.pairs, _kept(log_w.amax(1))
    total, trimmed, left = (pairs.spread(x) for x in logs)
    below = 1 - log_mass.exp() < (1 - 1e-5) * left.exp()
    share = (log_mass + positive - total).exp()  # of the numerator, that the class is said to hold
    above = 1 - share < (1 - 1e-5) * (trimmed - total).exp()
    return (pairs.total((below | above).to(share)) > 0) & kept


def kl_budget(
    contrast: Contrast,
    log_w: Tensor,
    eta: float = 0.5,
    order: int = 0,
    floor: float = 0.01,
    scale: float | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""InfoNCE at each anchor's own temperature,
    $t_i\log\big(1+Q\sum_jw_{ij}e^{(s_{ij}-s_i^+)/t_i}\big)$.

    $t_i=\max\{\alpha_i^*(\eta),t_0\}$ is the multiplier of a Kullback–Leibler ball of radius `eta`
    $>0$ around $w_i$, or its expansion of `order` 1, 2 or 3 (0: exact, see
    `robust.kl_temperature`); `floor` $t_0>0$ is for anchors whose ball holds the hardest negative
    alone. The temperatures carry no gradient: by the envelope theorem the gradient is that of the
    robust loss $\sup_{\mathrm{KL}(q\|w_i)\le\eta}\mathbb E_qs_{ij}-s_i^+$, but for the positive's
    share of the denominator. ValueError: an `eta`, `order` or `floor` out of range. Source:
    dro-adnce, Theorem 3.2, read anchor by anchor. Ours; the temperatures of Qiu et al. (2023) are
    learned.
    """
    temperature = budget_temperature(contrast, log_w, eta, order, floor)
    loss = info_nce(contrast, log_w, temperature, scale=scale, reduction="none") * temperature
    kept = _kept(log_w.amax(1))
    _checks.one_of("reduction", reduction, ("mean", "none"))
    return loss if reduction == "none" else loss.sum() / kept.sum().clamp_min(1)


def budget_temperature(
    contrast: Contrast, log_w: Tensor, eta: float = 0.5, order: int = 0, floor: float = 0.01
) -> Tensor:
    r"""The temperatures $t_i$ of `kl_budget` $[n]$, without gradient. Arguments as there."""
    _check_weights(contrast, log_w)
    _checks.single("floor", floor, "give one number for all anchors")
    _checks.positive("floor", floor)
    kept = _kept(log_w.amax(1))
    t = robust.kl_temperature(contrast.similarity, eta=eta, order=order, log_reference=log_w)
    return torch.where(kept, t, 1.0).clamp_min(floor).to(contrast.similarity.dtype)


def basic(
    contrast: Contrast, log_w: Tensor, average: str = "anchors", reduction: str = "mean"
) -> Tensor:
    r"""The basic contrastive loss $\sum_jw_{ij}s_{ij}-s_i^+$ (BCL; with detached tilted weights
    $\alpha$-CL-direct).

    Source: hcl-ot, eq. (9); dro-adnce, $L_{basic}$.
    """
    _check_weights(contrast, log_w)
    s, pairs = contrast.similarity, contrast.pairs
    value = pairs.spread(_moment(log_w, s)) - pairs.gather(s)
    return _average(value, contrast, _kept(log_w.amax(1)), average, reduction)


def mean_variance(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float | Tensor = 0.5,
    average: str = "anchors",
    reduction: str = "mean",
) -> Tensor:
    r"""Mean plus variance of the negatives: $\bar s_i+\mathrm{Var}_i/2t-s_i^+$, moments under $w_i$
    (MW).

    `temperature` $t>0$, a number or $[n]$. Source: dro-adnce, eq. (8), Theorem 3.5.
    """
    _check_weights(contrast, log_w)
    _checks.positive("temperature", temperature)
    _checks.per_anchor(
        "temperature", temperature, len(contrast.similarity)
    )  # refuses another shape
    s, pairs = contrast.similarity, contrast.pairs
    w = _exp(log_w)
    mean = (w * s).sum(1)
    variance = (w * (s - mean[:, None]).square()).sum(1)
    value = pairs.spread(mean + variance / (2 * temperature)) - pairs.gather(s)
    return _average(value, contrast, _kept(log_w.amax(1)), average, reduction)


def jensen_shannon(
    contrast: Contrast,
    log_w: Tensor,
    tau_plus: float = 0.0,
    average: str = "anchors",
    reduction: str = "mean",
) -> Tensor:
    r"""The Jensen–Shannon objective of InfoGraph with weighted negatives and class prior $\tau^+$.

    $$\mathrm{sp}(-s_i^+)+\max\Big\{
      \frac{\sum_jw_{ij}\,\mathrm{sp}(s_{ij})-\tau^+\mathrm{sp}(s_i^+)}{1-\tau^+},\,0\Big\},
      \qquad\mathrm{sp}(x)=\log(1+e^x)$$

    (for $\tau^+=0$ the maximum never acts). `tau_plus` $\in[0,1)$. Similarities are scores of any
    size. An anchor with several positives contributes the mean of this over them. Without the
    maximum the objective has no lower bound. ValueError: `tau_plus` out of range, weights of
    another shape. Source: Sun et al. (2020); weights: hcl, App. B.2; the prior: hcl's released
    code, its sign corrected.
    """
    _check_weights(contrast, log_w)
    _checks.single("tau_plus", tau_plus, "give one number for all anchors")
    _check_prior(tau_plus)
    positive = contrast.pairs.gather(contrast.similarity)
    negative = contrast.pairs.spread(_moment(log_w, _softplus(contrast.similarity)))
    if tau_plus:
        negative = ((negative - tau_plus * _softplus(positive)) / (1 - tau_plus)).clamp_min(0.0)
    return _average(
        _softplus(-positive) + negative, contrast, _kept(log_w.amax(1)), average, reduction
    )


def _softplus(x: Tensor) -> Tensor:
    return functional.softplus(x, threshold=40.0)  # torch's own, 20, is 2e-9 off in float64


class _LogSums(torch.autograd.Function):
    r"""$\log\sum_jk_{ij}e^{x_{ij}}$, $x_{ij}=\log w_{ij}+s_{ij}/t$, by rows, and what $s$ and
    $\log w$ are at `cells`; `largest` $c_i$ is that of $x_{ij}$ where $k_{ij}$ = `kept` $>0$.

    $k_{ij}e^{x_{ij}-c_i}$ and its sums are outputs too. Kept, they make the backward pass one
    multiplication, into which the gradient at `cells` is added; and as outputs they have
    derivatives themselves, so that the backward pass has some of every order. $c_i$ is a constant.
    """

    @staticmethod
    def forward(ctx, log_w, s, inverse_t: float | Tensor, cells, kept, largest):
        if isinstance(inverse_t, Tensor):
            x = torch.addcmul(log_w, s, inverse_t.to(s))
        else:
            x = torch.add(log_w, s, alpha=inverse_t).contiguous()
        if kept is None:
            lowest = torch.finfo(x.dtype).min  # a row that is all -inf stays -inf
            largest = x.amax(1).clamp_min(lowest)
            # exp_ takes five times as long where a weight is zero
            x.sub_(largest[:, None]).mul_(math.log2(math.e)).exp2_()
        else:  # 1, not 0: rounding cuts nothing
            x.sub_(largest[:, None]).clamp_max_(1.0).mul_(math.log2(math.e)).exp2_().mul_(kept)
        total = x.sum(1)
        ctx.inverse_t = inverse_t
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, total, cells)
        chosen = (None, None) if cells is None else (_at(s, cells), _at(log_w, cells))
        return largest + total.log(), *chosen, x, total

    @staticmethod
    def backward(ctx, grad, grad_s_at, grad_w_at, grad_x, grad_total):
        x, total, cells = ctx.saved_tensors
        share = torch.zeros_like(total)
        if grad is not None:
            share = grad / total.masked_fill(total == 0, 1.0)
        if grad_total is not None:
            share = share + grad_total
        inner = share[:, None] if grad_x is None else share[:, None] + grad_x
        grads: list[Tensor | None] = [None, None]
        for k, scale, at in ((0, 1.0, grad_w_at), (1, ctx.inverse_t, grad_s_at)):
            if ctx.needs_input_grad[k]:
                grads[k] = here = x * (inner * scale)
                if at is not None:
                    here.view(-1).index_add_(0, cells, at)
        return *grads, None, None, None, None


def _at(matrix: Tensor, cells: Tensor) -> Tensor:
    return matrix.flatten().index_select(0, cells)


def _log_sums(log_w, s, inverse_t: float | Tensor, cells=None, kept=None, largest=None):
    r"""$\log\sum_jk_{ij}w_{ij}e^{s_{ij}/t}$ $[n]$, and $s$ and $\log w$ at the cells, if given."""
    learned = isinstance(inverse_t, Tensor) and _varies(inverse_t)
    if not learned and not _checks.transformed():
        return _LogSums.apply(log_w, s, inverse_t, cells, kept, largest)[:3]
    chosen = (None, None) if cells is None else (_at(s, cells), _at(log_w, cells))
    filled, empty = _fill_skipped(log_w if kept is None else log_w + kept.log())
    log_sum = torch.logsumexp(s * inverse_t + filled, 1).masked_fill(empty, -torch.inf)
    return log_sum, *chosen


def _check_prior(tau_plus: float | Tensor) -> None:
    share = "lie in [0, 1): it is the share of the anchor's own class"
    _checks.must("tau_plus", tau_plus, lambda x: (x >= 0) & (x < 1), share)


def _check_weights(contrast: Contrast, log_w: Tensor) -> None:
    _checks.floating(log_w=log_w)
    if log_w.shape != contrast.similarity.shape:
        raise ValueError(
            f"log_w has shape {tuple(log_w.shape)}; "
            f"this contrast needs {tuple(contrast.similarity.shape)}: weights are made by "
            "hnlib.negatives from the same contrast"
        )


def _kept(largest: Tensor) -> Tensor:
    """The anchors that have a negative, by their largest log-weight, or a sum of them $[n]$."""
    largest = largest.detach()
    _checks.refuse(
        ~(largest < torch.inf),
        "the negatives of anchor {row} weigh {value:g}: log_w must hold no NaN and no inf, and a "
        "temperature must not be so small that what it divides is lost",
        largest,
    )
    return largest != -torch.inf


def _fill_skipped(log_w: Tensor) -> tuple[Tensor, Tensor]:
    """`log_w` with zeros in the rows of skipped anchors, where `logsumexp` has NaN for a gradient;
    and those rows."""
    empty = log_w.detach().amax(1) == -torch.inf
    return log_w.masked_fill(empty[:, None], 0.0), empty


def _moment(log_w: Tensor, x: Tensor) -> Tensor:
    return (_exp(log_w) * x).sum(1)


def _exp(log_w: Tensor) -> Tensor:
    """The weights: torch's own `exp` takes nine times as long where one in ten is zero."""
    return (log_w * math.log2(math.e)).exp2()


def _debias(
    negatives: Tensor, positive: Tensor, tau_plus: Tensor, inverse_t: float | Tensor
) -> Tensor:
    r"""$\log\max\{(e^{A}-\tau^+e^{B})/(1-\tau^+),\,e^{-1/t}\}$ without leaving the log domain.

    Where the difference is not positive the floor rules; the clamps only keep what is then
    discarded, and its gradient, finite.
    """
    share = (positive - negatives + tau_plus.log()).clamp_max(0.0).exp()
    left = (1 - share).clamp_min(torch.finfo(share.dtype).tiny).log()
    value = negatives + left - torch.log1p(-tau_plus)
    floored = (tau_plus > 0) & ((share == 1) | (value <= -inverse_t))  # NaN stays NaN
    return torch.where(floored, -inverse_t, value)


def _exact_parts(contrast: Contrast, log_w: Tensor, temperature, beta, tau_plus):
    r"""Of `exact_debiased`, for each pair $\log\pi$ and $s_i^+/t$, and for each anchor the logs of
    $\sum_jw_{ij}e^{s_{ij}/t}$, $\sum_jw_{ij}k_{ij}e^{s_{ij}/t}$ and $\sum_jw_{ij}k_{ij}$."""
    _check_weights(contrast, log_w)
    for name, value in (("temperature", temperature), ("beta", beta), ("tau_plus", tau_plus)):
        _checks.single(name, value, "exact debiasing takes one number for all anchors")
    _checks.positive("temperature", temperature)
    easiest = "be at least 0: below, the guard would have to trim the easiest candidates"
    _checks.must("beta", beta, lambda x: x >= 0, easiest)
    _checks.finite("beta", beta)
    _check_prior(tau_plus)
    if not contrast.never_empty:
        log_w, _ = _fill_skipped(log_w)
    s, pairs, tilt = contrast.similarity, contrast.pairs, beta / temperature
    # without labels at most two candidates are an anchor's own: one of the first three will do
    heavy = log_w.detach()[:, : 3 if contrast.never_empty else None].argmax(1)
    heavy = heavy + torch.arange(0, s.numel(), s.shape[1], device=s.device)
    cells = heavy if pairs.cells is None else torch.cat([heavy, pairs.cells])
    total, *chosen = _log_sums(log_w, s, 1 / temperature, cells)
    (at, positive), (weights, _) = (x.tensor_split([len(s)]) for x in chosen)
    positive = pairs.gather(s) if pairs.cells is None else positive
    held, at = (x if _varies(log_w) else x.detach() for x in (positive, at))
    level = at * tilt - weights
    _check_tilt(contrast, log_w, level, beta, temperature)
    log_counts = contrast.negative_counts.clamp_min(1).to(s.dtype).log()
    log_mass = held * tilt - pairs.spread(level - log_counts)
    if not tau_plus:  # nothing is trimmed
        return log_mass - torch.inf, positive / temperature, total, total, torch.zeros_like(total)
    kept, edge = _trim(contrast, tau_plus)
    largest = edge * tilt - level.detach()  # of log_w where something is kept
    trimmed = _log_sums(log_w, s, 1 / temperature, None, kept, largest + edge / temperature)[0]
    left = _log_sums(log_w, s.detach(), 0.0, None, kept, largest)[0]
    return log_mass + math.log(tau_plus), positive / temperature, total, trimmed, left


def _check_tilt(contrast, log_w, level, beta: float, temperature: float) -> None:
    r"""ValueError where `level` $[n]$ is not $\log\sum_{j\in N(i)}e^{\beta s_{ij}/t}$, as far as
    some rows and columns tell; other weights differ from the tilt nearly everywhere."""
    s, log_w, counts = contrast.similarity.detach(), log_w.detach(), contrast.negative_counts
    rows, columns = (slice(None, None, max(1, x // 64)) for x in s.shape)
    gap = s[:, columns] * (beta / temperature) - log_w[:, columns] - level.detach()[:, None]
    gap = torch.where(contrast.admissible[:, columns], gap, 0.0).abs().amax()
    mass = torch.where(counts[rows] > 0, torch.logsumexp(log_w[rows], 1), 0.0)
    gap = torch.maximum(gap, mass.abs().amax())[None]
    _checks.refuse(
        ~(gap <= 1e-3 + 1e-6 * beta / temperature),  # what float32 leaves open
        f"log_w is not the tilt of beta={beta:g} and temperature={temperature:g}, but "
        "{value:.2g} off; pass negatives.tilted(beta, temperature)(contrast)",
        gap,
    )


def _varies(x: Tensor) -> bool:
    """Whether some derivative is followed through `x`, backward or forward, in torch.func too."""
    if x.requires_grad or torch.compiler.is_compiling():
        return x.requires_grad
    if forward_ad.unpack_dual(x).tangent is not None:
        return True
    functorch = _checks.functorch
    return functorch.is_functorch_wrapped_tensor(x) and _varies(functorch.get_unwrapped(x))


def _trim(contrast: Contrast, tau_plus: float) -> tuple[Tensor, Tensor]:
    r"""$k_{ij}$ of `exact_debiased` $[n,m]$, and the largest similarity of which something is kept
    $[n]$; candidates that tie there share what is left.

    In arithmetic where comparisons would do: on a CPU a boolean matrix costs several of numbers.
    """
    s, uniform = contrast.similarity.detach(), contrast.uniform_log_weights
    lowest = torch.finfo(s.dtype).min  # not -inf, of which differences are NaN
    # s where admissible, -inf elsewhere
    masked = s + (uniform - uniform.amax(1, keepdim=True).clamp_min(lowest))
    # something stays, also where float32 takes tau_plus for 1
    trimmed = min(tau_plus, 1 - 1e-6) * contrast.negative_counts[:, None].to(s.dtype)
    place = s.shape[1] - 1 - trimmed.long()
    edge = _in_order(masked, place)
    edge = edge.masked_fill(edge == -torch.inf, 0.0)  # of an anchor without negatives
    side = masked.sub_(edge).neg_().sign_()  # 1 below the edge, 0 at it, -1 above
    below, at = side.clamp_min(0), side.abs_().neg_().add_(1)
    above = s.shape[1] - (below.sum(1, keepdim=True) + (ties := at.sum(1, keepdim=True)))
    share = 1 - (trimmed - above) / ties.clamp_min(1)
    return below.add_(at.mul_(share)), edge.squeeze(1)


def _in_order(x: Tensor, place: Tensor) -> Tensor:
    """The entries of each row at `place` $[n,1]$ of its ascending order."""
    if x.device.type != "cpu" or _checks.transformed():
        return x.sort(1).values.gather(1, place)
    rows, places = x.numpy().copy(), place.unique().tolist()
    threads = min(torch.get_num_threads(), 1 + len(rows) // 64)
    with ThreadPoolExecutor(threads) as pool:  # numpy is several times as fast as torch, on one
        list(pool.map(lambda part: part.partition(places, 1), np.array_split(rows, threads)))
    return torch.from_numpy(rows).gather(1, place)


def _log_difference(a: Tensor, b: Tensor, floor: Tensor) -> Tensor:
    r"""$\log\max\{e^a-e^b,\,e^{\text{floor}}\}$, however low the floor; the inner `where` keeps
    gradients finite."""
    below = b < a
    left = torch.log(-torch.expm1(torch.where(below, b - a, -1.0)))
    return torch.where(below, torch.maximum(a + left, floor), floor)


def _average(
    loss: Tensor, contrast: Contrast, kept: Tensor, average: str, reduction: str
) -> Tensor:
    """From one value per (anchor, positive) pair to one per anchor, to one."""
    _checks.one_of("average", average, ("anchors", "pairs"))
    _checks.one_of("reduction", reduction, ("mean", "none"))
    if average == "pairs" and reduction == "none":
        raise ValueError(
            'average="pairs" is one number for all pairs; '
            'with reduction="none" use average="anchors"'
        )
    pairs = contrast.pairs
    per_anchor = torch.where(kept, pairs.total(loss), 0.0)
    if average == "pairs":
        return per_anchor.sum() / torch.where(kept, pairs.counts, 0).sum().clamp_min(1)
    per_anchor = per_anchor / pairs.counts
    return per_anchor if reduction == "none" else per_anchor.sum() / kept.sum().clamp_min(1)
