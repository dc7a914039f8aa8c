"""InfoNCE with weighted negatives, and what it shares with every other objective."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from hnlib import _checks
from hnlib._checks import Fraction, Positive, Reduction, checked, per_anchor, raise_if
from hnlib._log_sums import log_sums
from hnlib.contrast import Contrast


def _loudness(name: str, value) -> None:
    if isinstance(value, str):
        return _checks.one_of(name, value, ("relative", "mean", "shuffled"))
    rule = "be 0 or at least 1"
    return _checks.number(name, value, lambda x: (x == 0) | ((x >= 1) & (x < math.inf)), rule)


@checked
def info_nce(
    contrast: Contrast,
    log_w: Tensor,
    temperature: Positive = 0.5,
    tau_plus: Fraction = 0.0,
    scale: Positive | None = None,
    average: Annotated[str, partial(_checks.one_of, choices=("anchors", "pairs"))] = "anchors",
    reduction: Reduction = "mean",
    hardness_strength: Annotated[float, _checks.at_least(0)] = 0.0,
    loudness: Annotated[float | str, _loudness] = 1.0,
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
    check_weights(contrast, log_w)
    s = contrast.similarity  # [n, m]
    temperature = per_anchor("temperature", temperature, len(s))  # a number, or [n, 1]
    tau_plus = per_anchor("tau_plus", tau_plus, len(s))
    if hardness_strength:
        log_w = log_w + hardness_strength * s.detach()
    # log of the negatives' weighted sum [n, 1], and s+/t of the k positives [n, k]
    negatives, chosen = log_sums(log_w, s, 1 / temperature, contrast.masks.columns[0])
    total = negatives[:, 0]  # [n]
    if isinstance(tau_plus, Tensor) or tau_plus > 0:
        negatives = _debias(negatives, chosen, tau_plus, temperature)  # [n, k]
    ratio = negatives - chosen + log_scale(contrast, scale)  # [n, k]: negatives over positive
    if isinstance(loudness, str):
        c = ratio.detach().sigmoid()
        mean, tiny = c.mean(), torch.finfo(c.dtype).tiny
        factors = {"shuffled": c.roll(1, 0), "mean": mean, "relative": c / mean.clamp_min(tiny)}
        loss = ratio * factors[loudness]
    else:
        loss = softplus(ratio) if loudness else ratio
        if loudness > 1:
            loss = loss * ratio.detach().sigmoid() ** (loudness - 1)
    return averaged(loss, contrast, total, reduction, average)


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


def log_scale(contrast: Contrast, scale: float | Tensor | None) -> float | Tensor:
    r"""Return $\log Q$, a number or a column."""
    scale = contrast.scale if scale is None else scale
    if not isinstance(scale, Tensor):
        return math.log(scale)
    s = contrast.similarity
    return per_anchor("scale", scale.to(s).log(), len(s))


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x)."""
    return functional.softplus(x, threshold=40.0)  # torch's own, 20, is 2e-9 off in float64


def weighted_mean(log_w: Tensor, x: Tensor) -> Tensor:
    """Return the weighted means of the rows, of shape [n, 1]."""
    # torch's own `exp` takes nine times as long where one weight in ten is zero
    return ((log_w * math.log2(math.e)).exp2() * x).sum(1, keepdim=True)


def check_weights(contrast: Contrast, log_w: Tensor) -> None:
    """Raise ValueError unless the log-weights have the shape of the contrast."""
    needed = tuple(contrast.similarity.shape)
    _checks.shapes(log_w.shape == needed, f"log_w must have the contrast's shape {needed}", log_w)


def averaged(
    loss: Tensor, contrast: Contrast, largest: Tensor, reduction: str, average: str = "anchors"
) -> Tensor:
    """Average values [n, k], one for each positive, over positives and over anchors.

    `largest` [n] are the anchors' largest log-weights, or sums of them.
    """
    largest = largest.detach()
    raise_if(
        ~(largest < torch.inf),
        "the negatives of anchor {row} weigh {value:g}: log_w must hold no NaN and no inf, and a "
        "temperature must not be so small that what it divides is lost",
        largest,
    )
    has_negative = largest != -torch.inf
    if average == "pairs" and reduction == "none":
        raise ValueError('average="pairs" needs reduction="mean": it is one number for all pairs')
    total = contrast.masks.total
    per_anchor = torch.where(has_negative, total(loss), 0.0)
    counts = total(torch.ones_like(loss))
    if average == "pairs":
        return per_anchor.sum() / torch.where(has_negative, counts, 0).sum().clamp_min(1)
    per_anchor = per_anchor / counts
    return per_anchor if reduction == "none" else per_anchor.sum() / has_negative.sum().clamp_min(1)
