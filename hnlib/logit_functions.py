r"""Logits: the function $f(s)$ of a similarity that a softmax loss uses where InfoNCE has $s/t$.

`logit_functions.artanh()(contrast)` returns $f(s_{ij})$ of shape [n, m]. A logit is a frozen
dataclass of its options. The inverse of its slope, $1/f'(s)$, is a temperature that depends on the
similarity, and a loss whose logit is not linear pushes more or less than it pulls.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hnlib._checks import check, per_anchor
from hnlib.contrast import Contrast

CLOSEST = 1e-6  # least 1 − s and 1 + s in a logit that is infinite at 0, as released with WEINCE


class Logit:
    """Base class of the logits: frozen dataclasses whose fields are their options."""

    def __post_init__(self):
        """Check the options."""
        check(**vars(self))

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

    temperature: float | Tensor = 0.5

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the logits of shape [n, m]."""
        s = contrast.similarity.clamp(CLOSEST - 1, 1 - CLOSEST)
        return s.atanh() / per_anchor("temperature", self.temperature, len(s))


@dataclass(frozen=True)
class weince(Logit):
    r"""WEINCE, $f_i(s) = (1 - \lambda_i)\, s/t - \lambda_i \beta_i \log(1 - s)$.

    Parameters
    ----------
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$.
    share : float or Tensor of shape [n], optional
        $\lambda \in [0, 1]$; by default it is selected from the batch for each anchor (see notes).
    shape : float or Tensor of shape [n], optional
        $\beta \ge 0$; by default the estimate $\hat\beta_i$. The released code has 1.
    margin, tail_strength, cap_strength : float, default 2, 1 and 10
        $m$, $\kappa_A$ and $\kappa_\rho$ of the selection.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    Take each anchor's $k$ most similar negatives, a tenth of all and at least 32. Their shortfalls
    $\delta_r = 1 - s_r$ in rising order have ranks $u_r = r/(k+1)$; the first twentieth, at least
    one, is left out. Two fits against $\log\delta_r$ follow: $\log u_r$ (a Weibull tail, whose
    slope is $\hat\beta_i$) and $\log(-\log u_r)$ (a Gumbel tail). With $D_i$ the number of points
    times the logarithm of the second's sum of squares over the first's, $\rho_i = \delta_1$ and
    $\rho_0$ the largest $\rho_i$ of the lowest fifth,

    $$\lambda_i = \sigma\big(\kappa_\rho\log(\rho_0/\rho_i)\big)\,
    \sigma\big(\kappa_A(D_i - m)\big).$$

    Neither $\lambda_i$ nor $\hat\beta_i$ has a gradient. Where an anchor has fewer negatives than
    that, others count as opposite points, $s = -1$. This is the selection of the released code
    (commit 49485f3); formula and code differ in $\beta$ and in two terms that only the code adds.

    References
    ----------
    .. [weince] Erol et al., *When Softmax Fails at the Top: Extreme-Value Corrections for InfoNCE*,
       ICML 2026.
    """

    temperature: float | Tensor = 0.5
    share: float | Tensor | None = None
    shape: float | Tensor | None = None
    margin: float = 2.0
    tail_strength: float = 1.0
    cap_strength: float = 10.0

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the logits of shape [n, m]."""
        s, n = contrast.similarity, len(contrast.similarity)
        share, shape = per_anchor("share", self.share, n), per_anchor("shape", self.shape, n)
        if share is None or shape is None:
            selected, estimate = self.select(contrast)
            share = selected[:, None] if share is None else share
            shape = estimate[:, None] if shape is None else shape
        linear = s / per_anchor("temperature", self.temperature, n)
        shortfall = (1 - s).clamp_min(CLOSEST).log()
        return (1 - share) * linear - share * shape * shortfall

    @torch.no_grad()
    def select(self, contrast: Contrast) -> tuple[Tensor, Tensor]:
        r"""Return $\lambda_i$ and $\hat\beta_i$ of shape [n], without gradient."""
        s = contrast.similarity.masked_fill(~contrast.admissible, -1.0)
        n, m = s.shape
        k = max(2, min(m - 2, max(32, round((m - 2) / 10))))
        x = (1 - s.topk(k).values).clamp_min(CLOSEST).log()  # of the tail, rising
        nearest = x[:, 0]
        left_out = max(1, k // 20)
        log_u = (torch.arange(left_out + 1, k + 1, device=s.device).to(s) / (k + 1)).log()
        y = torch.stack([log_u, (-log_u).log()])[:, None]  # [2, 1, points]
        y = y - y.mean(2, keepdim=True)
        x = x[:, left_out:]
        x = x - x.mean(1, keepdim=True)
        slope = (x * y).sum(2, keepdim=True) / x.square().sum(1)[:, None].clamp_min(1e-12)
        weibull, gumbel = (y - slope * x).square().sum(2).clamp_min(1e-12)
        evidence = x.shape[1] * (gumbel / weibull).log()
        pivot = nearest.sort().values[round(0.2 * (n - 1))]
        share = (self.cap_strength * (pivot - nearest)).sigmoid()
        share = share * (self.tail_strength * (evidence - self.margin)).sigmoid()
        return share, slope[0, :, 0]
