r"""Losses that score an anchor's positives against its weighted negatives.

All take a `Contrast` and the log-weights $\log w_{ij}$ of `hnlib.negatives` and return the mean
over anchors (``reduction="mean"``) or one value per anchor (``"none"``). An anchor with several
positives contributes the average over them. An anchor whose weights are all $-\infty$ (no negative,
``on_empty="skip"``) is left out of the mean and is 0 in the vector; if all are, the mean is 0 with
gradient 0.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from hnlib import _checks
from hnlib._checks import Finite, Positive, Reduction, checked, per_anchor
from hnlib.contrast import Contrast
from hnlib.info_nce import averaged, check_weights, info_nce, log_scale, softplus, weighted_mean
from hnlib.unremix import THIRDS, Gradient, Mixture, unremix_score

__all__ = ["averaged", "basic", "check_weights", "info_nce", "log_scale", "mean_variance"]
__all__ += ["pairwise", "sigmoid", "signed", "soft_targets", "softplus", "weighted_mean"]

Share = Annotated[
    float, partial(_checks.number, holds=lambda x: (x >= 0) & (x <= 1), rule="lie in [0, 1]")
]


@checked
def signed(
    contrast: Contrast,
    log_w: Tensor,
    temperature: Positive = 0.5,
    mixture: Mixture = THIRDS,
    gradient: Gradient = "pseudo-label",
    reduction: Reduction = "mean",
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
    check_weights(contrast, log_w)
    w = unremix_score(contrast, mixture, gradient, temperature)
    s = contrast.similarity
    s = s / per_anchor("temperature", temperature, len(s))
    positive, s = contrast.masks.at_positives(s), s.masked_fill(log_w == -torch.inf, -torch.inf)
    top = torch.maximum(positive, s.amax(1, keepdim=True)).detach()
    mass = (w * (s - top).exp()).sum(1, keepdim=True)
    loss = ((positive - top).exp() + mass).log() + top - positive
    return averaged(loss, contrast, torch.zeros_like(mass[:, 0]), reduction)


@checked
def basic(contrast: Contrast, log_w: Tensor, reduction: Reduction = "mean") -> Tensor:
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
    check_weights(contrast, log_w)
    s = contrast.similarity
    loss = weighted_mean(log_w, s) - contrast.masks.at_positives(s)
    return averaged(loss, contrast, log_w.amax(1), reduction)


@checked
def mean_variance(
    contrast: Contrast, log_w: Tensor, temperature: Positive = 0.5, reduction: Reduction = "mean"
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
    check_weights(contrast, log_w)
    s = contrast.similarity
    temperature = per_anchor("temperature", temperature, len(s))
    mean = weighted_mean(log_w, s)
    variance = weighted_mean(log_w, (s - mean).square())
    loss = mean + variance / (2 * temperature) - contrast.masks.at_positives(s)
    return averaged(loss, contrast, log_w.amax(1), reduction)


@checked
def sigmoid(
    contrast: Contrast,
    log_w: Tensor,
    temperature: Positive = 0.5,
    bias: Finite | None = None,
    scale: Positive | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Compute the sigmoid loss of SigLIP: every pair is a separate decision.

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
    $$\mathrm{sp}(-s_i^+/t - b) + Q \sum_j w_{ij}\,\mathrm{sp}(s_{ij}/t + b),\qquad
    \mathrm{sp}(x) = \log(1 + e^x)$$

    References
    ----------
    .. [siglip] Zhai et al., *Sigmoid Loss for Language Image Pre-Training*, ICCV 2023.
    """
    check_weights(contrast, log_w)
    s, log_q = contrast.similarity, log_scale(contrast, scale)
    bias = -log_q if bias is None else per_anchor("bias", bias, len(s))
    logits = s / per_anchor("temperature", temperature, len(s)) + bias
    loss = softplus(-contrast.masks.at_positives(logits))
    loss = loss + weighted_mean(log_w + log_q, softplus(logits))
    return averaged(loss, contrast, log_w.amax(1), reduction)


@checked
def pairwise(
    contrast: Contrast, log_w: Tensor, temperature: Positive = 0.5, reduction: Reduction = "mean"
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
    check_weights(contrast, log_w)
    s = contrast.similarity
    s = s / per_anchor("temperature", temperature, len(s))
    chosen = contrast.masks.at_positives(s).split(1, 1)
    loss = torch.cat([weighted_mean(log_w, softplus(s - positive)) for positive in chosen], 1)
    return averaged(loss, contrast, log_w.amax(1), reduction)


@checked
def supcon(
    contrast: Contrast, log_w: Tensor, temperature: Positive = 0.5, reduction: Reduction = "mean"
) -> Tensor:
    r"""Compute SupCon: each positive competes with the other positives, too.

    `info_nce` with several positives compares each with the negatives alone. Here the class-mates
    stand in the denominator as well, so the loss also evens out their similarities, and it cannot
    fall below the logarithm of their number.

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
    With the positives $P(i)$ and the negatives $N(i)$ of an anchor,

    $$-\frac1{|P(i)|} \sum_{p \in P(i)} \log \frac{e^{s_{ip}/t}}
    {\sum_{q \in P(i)} e^{s_{iq}/t} + |N(i)| \sum_{j \in N(i)} w_{ij} e^{s_{ij}/t}}$$

    With uniform weights this is $L_{out}$ of the paper. With one positive it is InfoNCE with
    $Q = |N(i)|$.

    References
    ----------
    .. [supcon] Khosla et al., *Supervised Contrastive Learning*, NeurIPS 2020, eq. (2).
    """
    check_weights(contrast, log_w)
    s = contrast.similarity
    s = s / per_anchor("temperature", temperature, len(s))
    counts = contrast.negative_counts.clamp_min(1).to(s)
    weighted = s + log_w + counts.log()[:, None]
    denominator = torch.where(contrast.positives, s, weighted).logsumexp(1, keepdim=True)
    loss = denominator - contrast.masks.at_positives(s)
    return averaged(loss, contrast, log_w.amax(1), reduction)


@checked
def soft_targets(
    contrast: Contrast,
    log_w: Tensor,
    temperature: Positive = 0.5,
    teacher_temperature: Positive = 0.5,
    share: Share = 0.5,
    scale: Positive | None = None,
    reduction: Reduction = "mean",
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
    check_weights(contrast, log_w)
    s, prior = contrast.similarity, log_w + log_scale(contrast, scale)
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
    return averaged(torch.cat(losses, 1), contrast, log_w.amax(1), reduction)
