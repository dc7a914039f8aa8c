"""What a distribution over negatives is: the base classes, uniform weights, normalisation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hnlib._checks import Checked, Flag, OnEmpty, raise_if
from hnlib.contrast import Contrast

#: The remedy at the end of errors about an anchor without negatives.
SKIP = 'or on_empty="skip" to leave such anchors out and count them'


@dataclass(frozen=True, eq=False)
class Weighting(Checked):
    """Base class of the weightings: frozen dataclasses whose fields are their options.

    Names are in lower case because weightings are used like functions.

    Parameters
    ----------
    on_empty : {"raise", "skip"}, default "raise"
        What happens to an anchor without an admissible negative; given by name.
    """

    on_empty: OnEmpty = field(default="raise", kw_only=True)

    @property
    def couples(self) -> bool:
        """Whether the weights of an anchor depend on the other anchors of the batch."""
        return False

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights of shape [n, m]."""
        raise NotImplementedError

    def counted(self, contrast: Contrast) -> tuple[Tensor, int | Tensor]:
        """Return the log-weights, and how many iterations behind them missed their tolerance."""
        return self(contrast), 0

    def skipping(self) -> Weighting:
        """Return this weighting with ``on_empty="skip"``."""
        return replace(self, on_empty="skip")


class SimilarityWeighting(Weighting):
    r"""Base class of $w_{ij} \propto e^{c_i f(s_{ij})}$, a function of one similarity.

    A subclass defines `score`.
    """

    weights_gradient: Flag = False

    def score(self, s: Tensor) -> tuple[Tensor, float | Tensor]:
        """Return $f$ of similarities and the factor $c$, a number or a column."""
        raise NotImplementedError

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights of shape [n, m]."""
        s = contrast.similarity if self.weights_gradient else contrast.similarity.detach()
        log_w = normalise(*self.score(s), contrast, self.on_empty)
        return log_w if self.weights_gradient else log_w.detach()  # a learned temperature's, too


@dataclass(frozen=True)
class uniform(Weighting):
    r"""Uniform negatives, $w_{ij} = 1/|N(i)|$.

    Used by SimCLR; with class labels, by SCL.

    Raises
    ------
    ValueError
        When called, if an anchor has no admissible negative and ``on_empty="raise"``.
    """

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights of shape [n, m]."""
        refuse_empty(contrast, self.on_empty)
        return contrast.uniform_log_weights


def normalise(
    score: Tensor, scale: float | Tensor, contrast: Contrast, on_empty: str = "raise"
) -> Tensor:
    r"""Return $\log w_{ij}$ of $w_{ij} \propto e^{c_i x_{ij}}$ on $N(i)$, for new weightings.

    Parameters
    ----------
    score : Tensor of shape [n, m]
        $x$, finite also outside $N(i)$. Gradient flows through it.
    scale : float or Tensor of shape [n, 1]
        $c$. Gradient flows through it.
    contrast : Contrast
        What is weighted.
    on_empty : {"raise", "skip"}, default "raise"
        What happens to an anchor without an admissible negative.

    Returns
    -------
    Tensor of shape [n, m]
        Log-weights; each row has logsumexp 0 over the admissible negatives and −inf elsewhere.

    Raises
    ------
    ValueError
        If an anchor has no admissible negative and ``on_empty="raise"``.
    """
    refuse_empty(contrast, on_empty)
    if isinstance(scale, Tensor):
        score, scale = score * scale, 1
    masked = torch.add(contrast.uniform_log_weights, score, alpha=scale)  # [n, m], −inf off N(i)
    if contrast.masks.never_empty or on_empty == "raise":
        return torch.log_softmax(masked, 1)
    # outside the softmax, whose gradient would be NaN there
    empty = (contrast.negative_counts == 0)[:, None]  # [n, 1]
    return torch.log_softmax(masked.masked_fill(empty, 0.0), 1).masked_fill(empty, -torch.inf)


def refuse_empty(contrast: Contrast, on_empty: str, further: str = f", {SKIP}") -> None:
    """Raise ValueError if an anchor has no admissible negative and `on_empty` is "raise"."""
    if on_empty == "raise" and not contrast.masks.never_empty:
        more = "mark fewer candidates as positives or excluded, or add keys"
        more = more if contrast.labels is None else "use a batch with more classes"
        message = f"anchor {{row}} has no admissible negative; {more}{further}"
        raise_if(contrast.negative_counts == 0, message)
