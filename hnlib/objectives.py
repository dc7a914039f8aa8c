r"""Losses that score an anchor's positives against its weighted negatives.

All take a `Contrast` and the log-weights $\log w_{ij}$ of `hnlib.negatives` and return the mean
over anchors (``reduction="mean"``) or one value per anchor (``"none"``). An anchor with several
positives contributes the average over them. An anchor whose weights are all $-\infty$ (no negative,
``on_empty="skip"``) is left out of the mean and is 0 in the vector; if all are, the mean is 0 with
gradient 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hnlib import robust
from hnlib._checks import check, on_cpu, per_anchor, raise_if, shapes
from hnlib.contrast import Contrast
from hnlib.negatives import unremix_score


def info_nce(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float | Tensor = 0.5,
    tau_plus: float | Tensor = 0.0,
    scale: float | Tensor | None = None,
    average: str = "anchors",
    reduction: str = "mean",
    hardness_strength: float = 0.0,
    loudness: float | str = 1.0,
) -> Tensor:
    r"""Compute InfoNCE with weighted negatives, scale $Q$ and class prior $\tau^+$.

    Each anchor has to tell its positive from its negatives: the loss is minus the logarithm of the
    positive's share in a softmax of similarities over the temperature, where negative $j$ counts
    $Q w_{ij}$ times. With uniform weights it is NT-Xent (SimCLR) on two views, and
    MultipleNegativesRankingLoss with a scale of $1/t$ on pairs. Tilted weights make it HCL, a class
    prior debiases it, and a loudness of 0 makes it DCL.

    Parameters
    ----------
    contrast : Contrast
        Similarities of n anchors and m candidates.
    log_w : Tensor of shape [n, m]
        Log-weights of the negatives.
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$.
    tau_plus : float or Tensor of shape [n], default 0.0
        Class prior $\tau^+ \in [0, 1)$, the share of negatives taken to be of the anchor's class.
    scale : float or Tensor of shape [n], optional
        Scale $Q > 0$; default `contrast.scale`.
    average : {"anchors", "pairs"}, default "anchors"
        Whether each anchor counts equally, or each pair of anchor and positive, as in released
        supervised code (with ``reduction="mean"`` only).
    reduction : {"mean", "none"}, default "mean"
        Whether to return the mean or one value per anchor.
    hardness_strength : float, default 0.0
        $\alpha \ge 0$ multiplies $w_{ij}$ by $e^{\alpha s_{ij}}$, without gradient and without
        normalising again; with uniform weights the option of that name in sentence-transformers
        [lan]_.
    loudness : float or {"relative", "mean", "shuffled"}, default 1.0
        Power $k$, 0 or at least 1: the gradient of an anchor is $(1 - p_i)^k$ times that of its
        log-ratio, where $p_i$ is the softmax share of its positive. 1 is InfoNCE, 0 leaves the
        positive out of the denominator [yeh]_, $1 + \varphi$ is a focal weight [focal]_. The names
        split InfoNCE's $c_i = 1 - p_i$: "relative", $c_i/\bar c$, keeps how loud the anchors of a
        batch are compared with each other; "mean", $\bar c$ for all, keeps how loud the batch is
        compared with others; "shuffled" gives each anchor the $c$ of the anchor before it.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range or has another shape, or a weight is NaN or infinite.

    Notes
    -----
    $$\log\Big(1 + Q\,e^{-s_i^+/t} \max\Big\{
    \frac{\sum_j w_{ij} e^{s_{ij}/t} - \tau^+ e^{s_i^+/t}}{1 - \tau^+},\, e^{-1/t}\Big\}\Big)$$

    For $\tau^+ = 0$ the maximum never acts and the term is the plain sum. Computed in the log
    domain: finite at $t = 0.01$ in float32. Writing the term as $\log(1 + e^{x_i})$, so that
    $p_i = 1/(1 + e^{x_i})$, a `loudness` of 0 returns $x_i$, $k > 1$ returns
    $(1 - p_i)^{k-1}\log(1 + e^{x_i})$ and a name returns $x_i$ times its factor. These powers and
    factors are held fixed.

    References
    ----------
    .. [hcl] Robinson et al., *Contrastive Learning with Hard Negative Samples*, ICLR 2021, eq. (4)
       and Fig. 13 (released code).
    .. [hscl] Jiang et al., *Supervised Contrastive Learning with Hard Negative Samples*, 2024,
       eq. (3).
    .. [dcl] Chuang et al., *Debiased Contrastive Learning*, NeurIPS 2020, for $\tau^+$.
    .. [lan] Lan et al., 2025, eq. (5), for $\alpha$.
    .. [yeh] Yeh et al., *Decoupled Contrastive Learning*, ECCV 2022, eq. (6), for $k = 0$.
    .. [focal] Zhao et al., *KaLM-Embedding-V2*, 2025, for $k > 1$.

    Examples
    --------
    With uniform weights the loss is cross-entropy over the other view and all negatives.

    >>> import torch
    >>> from hnlib import negatives, objectives
    >>> from hnlib.contrast import Contrast
    >>> z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> contrast = Contrast.from_views(z1, z2)
    >>> loss = objectives.info_nce(contrast, negatives.uniform()(contrast), temperature=0.5)
    >>> logits = (contrast.similarity / 0.5).fill_diagonal_(-torch.inf)
    >>> torch.isclose(loss, torch.nn.functional.cross_entropy(logits, torch.arange(16).roll(8)))
    tensor(True)
    """
    options = dict(temperature=temperature, tau_plus=tau_plus, hardness_strength=hardness_strength)
    check(scale=scale, loudness=loudness, **options)
    _check_weights(contrast, log_w)
    s = contrast.similarity  # [n, m]
    temperature = per_anchor("temperature", temperature, len(s))  # a number, or [n, 1]
    tau_plus = per_anchor("tau_plus", tau_plus, len(s))
    if hardness_strength:
        log_w = log_w + hardness_strength * s.detach()
    # log of the negatives' weighted sum [n, 1], and s+/t of the k positives [n, k]
    negatives, chosen = _log_sums(log_w, s, 1 / temperature, contrast.masks.columns[0])
    total = negatives[:, 0]  # [n]
    if isinstance(tau_plus, Tensor) or tau_plus > 0:
        negatives = _debias(negatives, chosen, tau_plus, temperature)  # [n, k]
    ratio = negatives - chosen + _log_scale(contrast, scale)  # [n, k]: negatives over positive
    if isinstance(loudness, str):
        loss = ratio * _loudness_control(ratio.detach().sigmoid(), loudness)
    else:
        loss = _softplus(ratio) if loudness else ratio
        if loudness > 1:
            loss = loss * ratio.detach().sigmoid() ** (loudness - 1)
    return _average(loss, contrast, total, reduction, average)


def _loudness_control(c: Tensor, name: str) -> Tensor:
    """Return the factor that a name of `loudness` makes of InfoNCE's c [n, k]."""
    if name == "shuffled":
        return c.roll(1, 0)
    mean = c.mean()
    return c / mean.clamp_min(torch.finfo(c.dtype).tiny) if name == "relative" else mean


def signed(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float | Tensor = 0.5,
    mixture: tuple[float, float, float] | Tensor = (1 / 3, 1 / 3, 1 / 3),
    gradient: str = "pseudo-label",
    reduction: str = "mean",
) -> Tensor:
    r"""Compute UnReMix's loss as printed, with weights of either sign that are not normalised.

    Parameters
    ----------
    contrast : Contrast
        As in `negatives.unremix_components`.
    log_w : Tensor of shape [n, m]
        Log-weights of `negatives.uniform`: a candidate counts where its weight is not zero.
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$.
    mixture, gradient
        As in `negatives.unremix`; gradient flows through the mixture.
    reduction
        As in `info_nce`.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range, or as in `negatives.unremix_components`.

    Notes
    -----
    $$\log\Big(e^{s_i^+/t} + \sum_{j \in N(i)} w_{ij} e^{s_{ij}/t}\Big) - s_i^+/t,\qquad
    w_{ij} = \lambda_1 u_{ij} + \lambda_2 s_{ij} + \lambda_3 r_{ij}$$

    Where the bracket is not positive the loss is NaN. For fixed embeddings, the loss is least at a
    vertex of the mixtures, and a learned mixture finds it. `negatives.unremix` clamps and
    normalises these weights.

    References
    ----------
    .. [unremix] Tabassum et al., *Hard Negative Sampling Strategies for Contrastive Representation
       Learning*, 2022, Algorithm 1.
    """
    _check_weights(contrast, log_w)
    check(temperature=temperature, reduction=reduction)
    w = unremix_score(contrast, mixture, gradient, temperature)
    s = contrast.similarity
    s = s / per_anchor("temperature", temperature, len(s))
    positive, s = contrast.masks.at_positives(s), s.masked_fill(log_w == -torch.inf, -torch.inf)
    top = torch.maximum(positive, s.amax(1, keepdim=True)).detach()
    mass = (w * (s - top).exp()).sum(1, keepdim=True)
    loss = ((positive - top).exp() + mass).log() + top - positive
    return _average(loss, contrast, torch.zeros_like(mass[:, 0]), reduction)


def exact_debiased(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float = 0.5,
    beta: float = 1.0,
    tau_plus: float = 0.1,
    scale: float | Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Compute InfoNCE over the tilted distribution of the *other* classes.

    This is `info_nce` with the class mass of the tilt instead of the prior, and with a guard.

    Parameters
    ----------
    contrast : Contrast
        Similarities of n anchors and m candidates.
    log_w : Tensor of shape [n, m]
        The weights ``negatives.tilted(beta, temperature)(contrast)``, and no others. The class mass
        has a gradient if they have one.
    temperature : float, default 0.5
        Temperature $t > 0$.
    beta : float, default 1.0
        Concentration $\beta \ge 0$ of the tilt.
    tau_plus : float, default 0.1
        Class prior $\tau^+ \in [0, 1)$.
    scale, reduction
        As in `info_nce`.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    $$\log\Big(1 + Q\,e^{-s_i^+/t}\,
    \frac{\max\{\sum_j w_{ij} e^{s_{ij}/t} - \pi_i e^{s_i^+/t},\
    \sum_j w_{ij} k_{ij} e^{s_{ij}/t}\}}
    {\max\{1 - \pi_i,\ \sum_j w_{ij} k_{ij}\}}\Big),\\
    \pi_i = \frac{\tau^+ e^{\beta s_i^+/t}}{|N(i)|^{-1} \sum_{j \in N(i)} e^{\beta s_{ij}/t}}$$

    $\pi_i$ estimates the mass that the weights put on the anchor's class from its one positive, and
    may exceed 1. The guard: $k_{ij} \in [0, 1]$ is 0 on the $\tau^+ |N(i)|$ most similar candidates
    (the last of them in part) and 1 on the rest, so the right-hand terms are what is left when the
    class takes all it can; no class of mass $\tau^+$ leaves less. `guarded` says where it acts.

    References
    ----------
    .. [hcl] Robinson et al., *Contrastive Learning with Hard Negative Samples*, ICLR 2021, eq. (4),
       here corrected.
    """
    check(scale=scale)
    log = _class_mass(contrast, log_w, temperature, beta, tau_plus)
    above = _log_difference(log.total, log.share + log.positive, log.total_left)
    below = _log_difference(torch.zeros_like(log.share), log.share, log.left)
    loss = _softplus(above - below - log.positive + _log_scale(contrast, scale))
    return _average(loss, contrast, log_w.amax(1), reduction)


def guarded(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float = 0.5,
    beta: float = 1.0,
    tau_plus: float = 0.1,
) -> Tensor:
    r"""Return where the guard of `exact_debiased` acts by more than rounding.

    Parameters
    ----------
    contrast, log_w, temperature, beta, tau_plus
        As in `exact_debiased`.

    Returns
    -------
    bool Tensor of shape [n]
        True if the guard acts for any of the anchor's positives.

    Notes
    -----
    On the denominator it acts where the positive is closer than the hardest $\tau^+$ share of the
    candidates, in the mean of $e^{\beta s_{ij}/t}$ over that share (never at $\beta = 0$); on the
    numerator in the mean of $e^{(\beta+1) s_{ij}/t}$.
    """
    with torch.no_grad():
        log = _class_mass(contrast, log_w, temperature, beta, tau_plus)
    below = 1 - log.share.exp() < (1 - 1e-5) * log.left.exp()
    of_numerator = (log.share + log.positive - log.total).exp()
    above = 1 - of_numerator < (1 - 1e-5) * (log.total_left - log.total).exp()
    acts = contrast.masks.total((below | above).to(log.share)) > 0
    return acts & _has_negative(log_w.amax(1))


def kl_budget(
    contrast: Contrast,
    log_w: Tensor,
    eta: float = 0.5,
    order: int = 0,
    floor: float = 0.01,
    scale: float | Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Compute InfoNCE at each anchor's own temperature, the price of a Kullback–Leibler budget.

    Parameters
    ----------
    contrast : Contrast
        Similarities of n anchors and m candidates.
    log_w : Tensor of shape [n, m]
        Log-weights of the negatives, the centre of the ball.
    eta : float, default 0.5
        Radius $\eta > 0$ of the ball.
    order : {0, 1, 2, 3}, default 0
        Terms of the expansion of the temperature in $\eta$; 0 is the exact temperature (see
        `robust.kl_temperature`).
    floor : float, default 0.01
        Least temperature $t_0 > 0$, for anchors whose ball holds the hardest negative alone.
    scale, reduction
        As in `info_nce`.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    $$t_i \log\Big(1 + Q \sum_j w_{ij} e^{(s_{ij} - s_i^+)/t_i}\Big),\qquad
    t_i = \max\{\alpha_i^*(\eta),\, t_0\}$$

    where $\alpha_i^*$ is the multiplier of a Kullback–Leibler ball of radius $\eta$ around $w_i$.
    The temperatures carry no gradient: by the envelope theorem the gradient is that of the robust
    loss $\sup_{\mathrm{KL}(q \| w_i) \le \eta} \mathbb E_q s_{ij} - s_i^+$, but for the positive's
    share of the denominator. The temperatures of Qiu et al. (2023) are learned.

    References
    ----------
    .. [adnce] Wu et al., *Understanding Contrastive Learning via Distributionally Robust
       Optimization*, NeurIPS 2023, Theorem 3.2, here read anchor by anchor.
    """
    temperature = budget_temperature(contrast, log_w, eta, order, floor)
    loss = info_nce(contrast, log_w, temperature, scale=scale, reduction="none") * temperature
    check(reduction=reduction)
    count = _has_negative(log_w.amax(1)).sum().clamp_min(1)
    return loss if reduction == "none" else loss.sum() / count


def budget_temperature(
    contrast: Contrast, log_w: Tensor, eta: float = 0.5, order: int = 0, floor: float = 0.01
) -> Tensor:
    r"""Return the temperatures $t_i$ of `kl_budget`, without gradient.

    Parameters
    ----------
    contrast, log_w, eta, order, floor
        As in `kl_budget`.

    Returns
    -------
    Tensor of shape [n]
        The temperatures.
    """
    _check_weights(contrast, log_w)
    check(floor=floor)
    t = robust.kl_temperature(contrast.similarity, eta=eta, order=order, log_reference=log_w)
    t = torch.where(_has_negative(log_w.amax(1)), t, 1.0)
    return t.clamp_min(floor).to(contrast.similarity.dtype)


def basic(contrast: Contrast, log_w: Tensor, reduction: str = "mean") -> Tensor:
    r"""Compute the basic contrastive loss $\sum_j w_{ij} s_{ij} - s_i^+$.

    With tilted weights this is BCL; if they are detached, $\alpha$-CL-direct.

    Parameters
    ----------
    contrast, log_w, reduction
        As in `info_nce`.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    References
    ----------
    .. [hclot] Jiang et al., *Hard Negative Sampling via Regularized Optimal Transport for
       Contrastive Representation Learning*, IJCNN 2023, eq. (9).
    .. [adnce] Wu et al., *Understanding Contrastive Learning via Distributionally Robust
       Optimization*, NeurIPS 2023, $L_{basic}$.
    """
    _check_weights(contrast, log_w)
    s = contrast.similarity
    loss = _mean(log_w, s) - contrast.masks.at_positives(s)
    return _average(loss, contrast, log_w.amax(1), reduction)


def mean_variance(
    contrast: Contrast, log_w: Tensor, temperature: float | Tensor = 0.5, reduction: str = "mean"
) -> Tensor:
    r"""Compute mean plus variance of the negatives, $\bar s_i + \mathrm{Var}_i/2t - s_i^+$ (MW).

    Parameters
    ----------
    contrast, log_w, reduction
        As in `info_nce`; the moments are those under $w_i$.
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range.

    References
    ----------
    .. [adnce] Wu et al., *Understanding Contrastive Learning via Distributionally Robust
       Optimization*, NeurIPS 2023, eq. (8) and Theorem 3.5.
    """
    _check_weights(contrast, log_w)
    check(temperature=temperature)
    s = contrast.similarity
    temperature = per_anchor("temperature", temperature, len(s))
    mean = _mean(log_w, s)
    variance = _mean(log_w, (s - mean).square())
    loss = mean + variance / (2 * temperature) - contrast.masks.at_positives(s)
    return _average(loss, contrast, log_w.amax(1), reduction)


def sigmoid(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float | Tensor = 0.5,
    bias: float | Tensor | None = None,
    scale: float | Tensor | None = None,
    reduction: str = "mean",
    power: float = 1.0,
) -> Tensor:
    r"""Compute the sigmoid loss of SigLIP and gBCE: every pair is a separate decision.

    Parameters
    ----------
    contrast, log_w, reduction
        As in `info_nce`.
    temperature : float or Tensor of shape [] or [n], default 0.5
        Temperature $t > 0$; a tensor may carry a gradient.
    bias : float or Tensor of shape [] or [n], optional
        Bias $b$; a tensor may carry a gradient. Default $-\log Q$, the log-odds of a positive. At a
        low temperature choose $-1/t$, at which no similarity saturates.
    scale : float or Tensor of shape [n], optional
        Scale $Q > 0$; default `contrast.scale`.
    power : float, default 1.0
        Power $\kappa > 0$ of the positive's probability. Where a sample of the negatives stands for
        all, the power that restores the probabilities is the share that is sampled [gbce]_.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    $$\kappa\,\mathrm{sp}(-s_i^+/t - b) + Q \sum_j w_{ij}\,\mathrm{sp}(s_{ij}/t + b),\qquad
    \mathrm{sp}(x) = \log(1 + e^x)$$

    References
    ----------
    .. [siglip] Zhai et al., *Sigmoid Loss for Language Image Pre-Training*, ICCV 2023.
    .. [gbce] Petrov and Macdonald, *gSASRec: Reducing Overconfidence in Sequential Recommendation
       Trained with Negative Sampling*, RecSys 2023.
    """
    _check_weights(contrast, log_w)
    check(temperature=temperature, bias=bias, scale=scale, power=power)
    s, log_scale = contrast.similarity, _log_scale(contrast, scale)
    bias = -log_scale if bias is None else per_anchor("bias", bias, len(s))
    logits = s / per_anchor("temperature", temperature, len(s)) + bias
    loss = power * _softplus(-contrast.masks.at_positives(logits))
    loss = loss + _mean(log_w + log_scale, _softplus(logits))
    return _average(loss, contrast, log_w.amax(1), reduction)


def pairwise(
    contrast: Contrast, log_w: Tensor, temperature: float | Tensor = 0.5, reduction: str = "mean"
) -> Tensor:
    r"""Compute BPR: each negative is compared with the positive separately.

    Parameters
    ----------
    contrast, log_w, reduction
        As in `info_nce`.
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    $$\sum_j w_{ij} \log\big(1 + e^{(s_{ij} - s_i^+)/t}\big)$$

    With one negative this is InfoNCE. With several, each negative is pushed by $\sigma$ of its own
    difference, whatever the others do.

    References
    ----------
    .. [bpr] Rendle et al., *BPR: Bayesian Personalized Ranking from Implicit Feedback*, UAI 2009.
    """
    _check_weights(contrast, log_w)
    check(temperature=temperature)
    s = contrast.similarity
    s = s / per_anchor("temperature", temperature, len(s))
    chosen = contrast.masks.at_positives(s).split(1, 1)
    loss = torch.cat([_mean(log_w, _softplus(s - positive)) for positive in chosen], 1)
    return _average(loss, contrast, log_w.amax(1), reduction)


def warp(contrast: Contrast, log_w: Tensor, margin: float = 0.1, reduction: str = "mean") -> Tensor:
    r"""Compute WARP: negatives within a margin of the positive push equally, weighted by its rank.

    Parameters
    ----------
    contrast, log_w, reduction
        As in `info_nce`.
    margin : float, default 0.1
        Margin $\mu$ between similarities.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    With $h_{ij} = (s_{ij} - s_i^+ + \mu)_+$ and the rank
    $r_i = Q\sum_j w_{ij}\mathbb 1[h_{ij} > 0]$, which has no gradient,

    $$\Big(1 + \tfrac12 + \dots + \tfrac1{r_i}\Big)
    \frac{\sum_j w_{ij} h_{ij}}{\sum_j w_{ij}\mathbb 1[h_{ij} > 0]}$$

    with the harmonic numbers continued by the digamma function. The paper draws negatives until one
    has $h_{ij} > 0$ and estimates $r_i$ by the number of draws; here all are examined.

    References
    ----------
    .. [warp] Weston et al., *WSABIE: Scaling Up to Large Vocabulary Image Annotation*, IJCAI 2011.
    """
    _check_weights(contrast, log_w)
    check(margin=margin)
    s, losses = contrast.similarity, []
    for positive in contrast.masks.at_positives(s).split(1, 1):
        excess = (s - positive + margin).clamp_min(0.0)
        share = _mean(log_w, (excess > 0).to(s))  # [n, 1]
        rank = (share.clamp_min(torch.finfo(s.dtype).tiny).log() + _log_scale(contrast, None)).exp()
        loud = torch.digamma(rank.detach() + 1) - torch.digamma(torch.ones_like(rank))
        losses.append(loud * _mean(log_w, excess) / share.clamp_min(torch.finfo(s.dtype).tiny))
    return _average(torch.cat(losses, 1), contrast, log_w.amax(1), reduction)


def soft_targets(
    contrast: Contrast,
    log_w: Tensor,
    temperature: float | Tensor = 0.5,
    teacher_temperature: float | Tensor = 0.5,
    share: float = 0.5,
    scale: float | Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Compute the divergence from a teacher's softmax, mixed with the marked answer.

    Parameters
    ----------
    contrast : Contrast
        With the scores $g_{ij}$ of a `teacher`; without them the student is its own teacher.
    log_w, reduction
        As in `info_nce`.
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$ of the student.
    teacher_temperature : float or Tensor of shape [n], default 0.5
        Temperature $t_T > 0$ of the teacher, in the unit of its scores.
    share : float, default 0.5
        Share $\lambda \in [0, 1]$ of the target that the positive gets; 1 is InfoNCE.
    scale : float or Tensor of shape [n], optional
        Scale $Q > 0$; default `contrast.scale`.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    $$\mathrm{KL}\big(\lambda e_+ + (1 - \lambda)\,\tau_i \,\big\Vert\, p_i\big)$$

    with the softmax of the student, $p_i \propto (e^{s_i^+/t},\ Q w_{ij} e^{s_{ij}/t})$, and of the
    teacher, $\tau_i \propto (e^{g_i^+/t_T},\ Q w_{ij} e^{g_{ij}/t_T})$.

    The target has no gradient. A candidate is pushed where the student rates it above the target
    and pulled where below.

    References
    ----------
    .. [hinton] Hinton et al., *Distilling the Knowledge in a Neural Network*, 2015.
    """
    _check_weights(contrast, log_w)
    check(temperature=temperature, teacher_temperature=teacher_temperature, share=share)
    check(scale=scale)
    s, prior = contrast.similarity, log_w + _log_scale(contrast, scale)
    g = s.detach() if contrast.teacher is None else contrast.teacher.detach().to(s)

    def log_softmax(x: Tensor, name: str, t: float | Tensor) -> list[Tensor]:
        """Return a list with [n, 1 + m] for each positive: it, then the negatives."""
        x = x / per_anchor(name, t, len(s))
        chosen = contrast.masks.at_positives(x).split(1, 1)
        return [torch.cat([own, x + prior], 1).log_softmax(1) for own in chosen]

    losses = []
    student = log_softmax(s, "temperature", temperature)
    teacher = log_softmax(g, "teacher_temperature", teacher_temperature)
    for log_p, log_tau in zip(student, teacher):
        target = ((1 - share) * log_tau.exp()).detach()
        target = torch.cat([target[:, :1] + share, target[:, 1:]], 1)
        terms = torch.special.xlogy(target, target) - target * log_p
        losses.append(torch.where(target > 0, terms, 0.0).sum(1, keepdim=True))
    return _average(torch.cat(losses, 1), contrast, log_w.amax(1), reduction)


def jensen_shannon(
    contrast: Contrast, log_w: Tensor, tau_plus: float = 0.0, reduction: str = "mean"
) -> Tensor:
    r"""Compute InfoGraph's Jensen–Shannon objective with weighted negatives and a class prior.

    Parameters
    ----------
    contrast, log_w, reduction
        As in `info_nce`; similarities are scores of any size.
    tau_plus : float or Tensor of shape [n], default 0.0
        Class prior $\tau^+ \in [0, 1)$.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    $$\mathrm{sp}(-s_i^+) + \max\Big\{
      \frac{\sum_j w_{ij}\,\mathrm{sp}(s_{ij}) - \tau^+ \mathrm{sp}(s_i^+)}{1 - \tau^+}, 0\Big\},\\
      \mathrm{sp}(x) = \log(1 + e^x)$$

    For $\tau^+ = 0$ the maximum never acts; without it the objective has no lower bound.

    References
    ----------
    .. [infograph] Sun et al., *InfoGraph: Unsupervised and Semi-supervised Graph-Level
       Representation Learning via Mutual Information Maximization*, ICLR 2020.
    .. [hcl] Robinson et al., *Contrastive Learning with Hard Negative Samples*, ICLR 2021,
       App. B.2; the prior is that of the released code with its sign corrected.
    """
    _check_weights(contrast, log_w)
    check(tau_plus=tau_plus)
    prior = per_anchor("tau_plus", tau_plus, len(log_w))
    chosen = contrast.masks.at_positives(contrast.similarity)
    negative = _mean(log_w, _softplus(contrast.similarity))
    if isinstance(prior, Tensor) or prior > 0:
        negative = ((negative - prior * _softplus(chosen)) / (1 - prior)).clamp_min(0.0)
    loss = _softplus(-chosen) + negative
    return _average(loss, contrast, log_w.amax(1), reduction)


def _log_scale(contrast: Contrast, scale: float | Tensor | None) -> float | Tensor:
    r"""Return $\log Q$, a number or a column."""
    scale = contrast.scale if scale is None else scale
    if not isinstance(scale, Tensor):
        return math.log(scale)
    s = contrast.similarity
    return per_anchor("scale", scale.to(s).log(), len(s))


def _softplus(x: Tensor) -> Tensor:
    return functional.softplus(x, threshold=40.0)  # torch's own, 20, is 2e-9 off in float64


def _mean(log_w: Tensor, x: Tensor) -> Tensor:
    """Return the weighted means of the rows, of shape [n, 1]."""
    # torch's own `exp` takes nine times as long where one weight in ten is zero
    return ((log_w * math.log2(math.e)).exp2() * x).sum(1, keepdim=True)


class _LogSums(torch.autograd.Function):
    r"""$\log\sum_j k_{ij} e^{x_{ij}}$, $x_{ij} = \log w_{ij} + s_{ij}/t$, and $s$ at some columns.

    `remaining` is $k_{ij}$, None for ones, and the column `edge` has the largest $x$ with $k>0$.
    The terms $k_{ij} e^{x_{ij} - c_i}$, with the constant $c_i$ the largest $x$, and
    their sums are outputs too. They make the backward pass one multiplication, and as outputs they
    have derivatives themselves, so that there are second derivatives.
    """

    @staticmethod
    def forward(ctx, log_w, s, inverse_t: float | Tensor, columns, remaining, edge):
        if isinstance(inverse_t, Tensor):
            x = torch.addcmul(log_w, s, inverse_t.to(s))
        else:
            x = torch.add(log_w, s, alpha=inverse_t).contiguous()  # [n, m]
        largest = x.amax(1, keepdim=True) if edge is None else x.gather(1, edge)
        largest = largest.clamp_min(torch.finfo(x.dtype).min)  # a row of -inf stays one
        x.sub_(largest) if remaining is None else x.sub_(largest).clamp_max_(1.0)  # 1: rounding
        x.mul_(math.log2(math.e)).exp2_()  # exp_ takes five times as long where a weight is zero
        if remaining is not None:
            x.mul_(remaining)
        total = x.sum(1, keepdim=True)  # [n, 1]
        ctx.inverse_t = inverse_t
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, total, columns)
        return largest + total.log(), s.gather(1, columns), x, total

    @staticmethod
    def backward(ctx, grad, grad_chosen, grad_x, grad_total):
        x, total, columns = ctx.saved_tensors
        share = torch.zeros_like(total)
        if grad is not None:
            share = grad / total.masked_fill(total == 0, 1.0)
        if grad_total is not None:
            share = share + grad_total
        inner = share if grad_x is None else share + grad_x
        # [n, m] both: the terms' shares of the sum, times the incoming gradient
        in_log_w = x * inner if ctx.needs_input_grad[0] else None
        in_s = x * (inner * ctx.inverse_t) if ctx.needs_input_grad[1] else None
        if in_s is not None and grad_chosen is not None:
            in_s.scatter_add_(1, columns, grad_chosen)
        return in_log_w, in_s, None, None, None, None


def _log_sums(log_w: Tensor, s: Tensor, inverse_t, columns: Tensor, remaining=None, edge=None):
    r"""Return $\log\sum_j k_{ij} w_{ij} e^{s_{ij}/t}$ of shape [n, 1], and $s/t$ at the columns."""
    if isinstance(inverse_t, Tensor) and inverse_t.requires_grad:  # a learned temperature
        s, inverse_t = s * inverse_t, 1.0
    log_sum, chosen, _, _ = _LogSums.apply(log_w, s, inverse_t, columns, remaining, edge)
    return log_sum, chosen * inverse_t


def _check_weights(contrast: Contrast, log_w: Tensor) -> None:
    needed = tuple(contrast.similarity.shape)
    shapes(log_w.shape == needed, f"log_w must have the contrast's shape {needed}", log_w)


def _has_negative(largest: Tensor) -> Tensor:
    """Return which anchors have a negative, from the largest log-weight or a sum [n] of them."""
    largest = largest.detach()
    raise_if(
        ~(largest < torch.inf),
        "the negatives of anchor {row} weigh {value:g}: log_w must hold no NaN and no inf, and a "
        "temperature must not be so small that what it divides is lost",
        largest,
    )
    return largest != -torch.inf


def _debias(negatives: Tensor, chosen: Tensor, prior, temperature) -> Tensor:
    r"""$\log\max\{(e^A - \tau^+ e^B)/(1 - \tau^+),\, e^{-1/t}\}$ without leaving the log domain.

    Where the difference is not positive, the floor applies; the clamps only keep the discarded
    value and its gradient finite.
    """
    below_one = 1 - torch.finfo(chosen.dtype).eps  # float32 takes 1 - 1e-9 for 1
    if isinstance(prior, Tensor):
        prior = prior.to(chosen).clamp_max(below_one)
    else:  # a tensor made on the device: copying a number there would wait
        prior = chosen.new_full((), min(prior, below_one))
    share = (chosen - negatives + prior.log()).clamp_max(0.0).exp()  # [n, k] of the class
    left = (1 - share).clamp_min(torch.finfo(share.dtype).tiny).log()
    value = negatives + left - torch.log1p(-prior)
    floor = -1 / temperature
    floored = (prior > 0) & ((share == 1) | (value <= floor))  # NaN stays NaN
    return torch.where(floored, floor, value)


class _ClassMass(NamedTuple):
    r"""Logarithms of the terms of `exact_debiased`."""

    share: Tensor  # [n, k] of $\pi$
    positive: Tensor  # [n, k] of $e^{s^+/t}$
    total: Tensor  # [n, 1] of $\sum we^{s/t}$
    total_left: Tensor  # [n, 1] of $\sum wke^{s/t}$
    left: Tensor  # [n, 1] of $\sum wk$


def _class_mass(contrast: Contrast, log_w: Tensor, temperature, beta, tau_plus) -> _ClassMass:
    """Return the terms of `exact_debiased`."""
    _check_weights(contrast, log_w)
    temperature, beta, tau_plus = float(temperature), float(beta), float(tau_plus)
    check(temperature=temperature, tau_plus=tau_plus, beta=beta)
    if beta < 0:  # the guard would have to trim the easiest candidates
        raise ValueError(f"beta must be at least 0, got {beta:g}")
    s, columns, tilt = contrast.similarity, contrast.masks.columns[0], beta / temperature
    held = s if log_w.requires_grad else s.detach()
    if not contrast.masks.never_empty:  # zeros keep gradients finite until such rows are left out
        log_w = log_w.masked_fill(log_w.detach().amax(1, keepdim=True) == -torch.inf, 0.0)
    remaining, edge = _remaining(contrast, tau_plus)
    log_count = contrast.negative_counts[:, None].clamp_min(1).to(s.dtype).log()
    # as log w = βs/t − log |N| − log mean at any admissible column
    log_mean = tilt * held.gather(1, edge) - log_w.gather(1, edge) - log_count
    total, positive = _log_sums(log_w, s, 1 / temperature, columns)
    log_prior = math.log(tau_plus) if tau_plus else -math.inf
    total_left, _ = _log_sums(log_w, s, 1 / temperature, columns, remaining, edge)
    left, _ = _log_sums(log_w, s.detach(), 0.0, columns, remaining, edge)
    share = tilt * held.gather(1, columns) - log_mean + log_prior
    return _ClassMass(share, positive, total, total_left, left)


def _remaining(contrast: Contrast, tau_plus: float) -> tuple[Tensor, Tensor]:
    r"""Return $k_{ij}$ of `exact_debiased`, and a column of the hardest that is not all trimmed.

    Candidates tied there share what is left. On a CPU arithmetic is faster than comparisons.
    """
    s = contrast.similarity.detach().masked_fill(~contrast.admissible, -torch.inf)
    # something stays, also where float32 takes tau_plus for 1
    trimmed = min(tau_plus, 1 - 1e-6) * contrast.negative_counts[:, None].to(s.dtype)
    # NumPy sorts several times as fast as torch
    ordered = torch.from_numpy(np.sort(s.numpy(), 1)) if on_cpu(s) else s.sort(1).values
    edge = ordered.gather(1, s.shape[1] - 1 - trimmed.long())
    side = (edge.clamp_min(torch.finfo(s.dtype).min) - s).sign_()  # 1 below the edge, 0 at it
    below, tied = side.clamp_min(0), side.abs_().neg_().add_(1)
    ties = tied.sum(1, keepdim=True)
    above = s.shape[1] - below.sum(1, keepdim=True) - ties
    share = 1 - (trimmed - above) / ties.clamp_min(1)
    column = tied.argmax(1, keepdim=True)
    return below.addcmul_(tied, share), column


def _log_difference(a: Tensor, b: Tensor, floor: Tensor) -> Tensor:
    r"""$\log\max\{e^a - e^b, e^{\text{floor}}\}$; the inner `where` keeps gradients finite."""
    below = b < a
    left = torch.log(-torch.expm1(torch.where(below, b - a, -1.0)))
    return torch.where(below, torch.maximum(a + left, floor), floor)


def _average(
    loss: Tensor, contrast: Contrast, largest: Tensor, reduction: str, average: str = "anchors"
) -> Tensor:
    """Average values [n, k], one for each positive, over positives and over anchors.

    `largest` [n] are the anchors' largest log-weights, or sums of them.
    """
    has_negative = _has_negative(largest)
    check(average=average, reduction=reduction)
    if average == "pairs" and reduction == "none":
        raise ValueError('average="pairs" needs reduction="mean": it is one number for all pairs')
    total = contrast.masks.total
    per_anchor = torch.where(has_negative, total(loss), 0.0)
    counts = total(torch.ones_like(loss))
    if average == "pairs":
        return per_anchor.sum() / torch.where(has_negative, counts, 0).sum().clamp_min(1)
    per_anchor = per_anchor / counts
    return per_anchor if reduction == "none" else per_anchor.sum() / has_negative.sum().clamp_min(1)
