r"""Logits: the function $f(s)$ of a similarity that a softmax loss uses where InfoNCE has $s/t$.

`logit_functions.artanh()(contrast)` returns $f(s_{ij})$ of shape [n, m]. A logit is a frozen
dataclass of its options. The inverse of its slope, $1/f'(s)$, is a temperature that depends on the
similarity, and a loss whose logit is not linear pushes more or less than it pulls.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hnlib._checks import Checked, Positive, per_anchor
from hnlib.contrast import Contrast

__all__ = ["Logit", "artanh"]

CLOSEST = 1e-6  # least 1 − s and 1 + s in a logit that is infinite at 0, as released with WEINCE


class Logit(Checked):
    """Base class of the logits: frozen dataclasses whose fields are their options."""

    @property
    def couples(self) -> bool:
        """Whether the logits of an anchor depend on the other anchors of the batch."""
        return False

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the logits of shape [n, m]."""
        raise NotImplementedError


@dataclass(frozen=True)
class artanh(Logit):
    r"""Temperature-free InfoNCE, $f(s) = \operatorname{artanh}(s)/t$ at $t = 1/2$.

    Its slope is $1/t(1 - s^2)$, so $t$ is the temperature between orthogonal points and falls to 0
    towards $\pm 1$. The paper has no temperature: its $f(s) = 2\operatorname{artanh} s$ is the
    default.

    Parameters
    ----------
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$ at $s = 0$.

    Raises
    ------
    ValueError
        If the temperature is not positive.

    References
    ----------
    .. [kim] Kim and Kim, *Temperature-Free Loss Function for Contrastive Learning*, 2025.
    """

    temperature: Positive = 0.5

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the logits of shape [n, m]."""
        s = contrast.similarity.clamp(CLOSEST - 1, 1 - CLOSEST)
        return s.atanh() / per_anchor("temperature", self.temperature, len(s))
