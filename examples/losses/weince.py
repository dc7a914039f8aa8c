r"""WEINCE (Erol et al., ICML 2026): the logit f(s) = (1 − λ) s/t − λ β log(1 − s), λ by anchor.

Take each anchor's k most similar negatives, a tenth of all and at least 32. Their shortfalls
δ = 1 − s, rising, have ranks u = r/(k + 1); the first twentieth is left out. log u against log δ is
the line of a Weibull tail, with slope β, and log(−log u) that of a Gumbel tail. With D the number
of points times the log-ratio of the second's squares to the first's, and ρ₀ the largest δ₁ of the
lowest fifth, λ = σ(κ_ρ log(ρ₀/δ₁)) σ(κ_A (D − m)), without gradient. This is the selection of the
released code (commit 49485f3), in which β is 1; two terms that only the code adds are left out.

    >>> methods.example("weince").build(temperature=0.2)
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from hnlib import logit_functions, methods, objectives
from hnlib._checks import Finite, Positive, at_least, per_anchor


@dataclass(frozen=True)
class weince(logit_functions.Logit):
    """The logit; λ is `share` and β `shape`, selected if None, m is `margin`, κ the strengths."""

    temperature: Positive = 0.5
    share: objectives.Share | None = None
    shape: Annotated[float, at_least(0)] | None = None
    margin: Finite = 2.0
    tail_strength: Annotated[float, at_least(0)] = 1.0
    cap_strength: Annotated[float, at_least(0)] = 10.0

    @property
    def couples(self):
        """Whether λ is selected: ρ₀ is of all anchors."""
        return self.share is None

    def __call__(self, contrast):
        """Return the logits of shape [n, m]."""
        s, n = contrast.similarity, len(contrast.similarity)
        share, shape = per_anchor("share", self.share, n), per_anchor("shape", self.shape, n)
        if share is None or shape is None:
            selected, estimate = self.select(contrast)
            share = selected[:, None] if share is None else share
            shape = estimate[:, None] if shape is None else shape
        linear = s / per_anchor("temperature", self.temperature, n)
        return (1 - share) * linear - share * shape * log_shortfall(s)

    @torch.no_grad()
    def select(self, contrast):
        """Return λ and β of each anchor, of shape [n]; a missing negative counts as s = −1."""
        s = contrast.similarity.masked_fill(~contrast.admissible, -1.0)
        n, m = s.shape
        k = max(2, min(m - 2, max(32, round((m - 2) / 10))))
        x, left_out = log_shortfall(s.topk(k).values), max(1, k // 20)
        log_u = (torch.arange(left_out + 1, k + 1, device=s.device).to(s) / (k + 1)).log()
        y = torch.stack([log_u, (-log_u).log()])[:, None]  # [2, 1, points]
        y, nearest, x = y - y.mean(2, keepdim=True), x[:, 0], x[:, left_out:]
        x = x - x.mean(1, keepdim=True)
        slope = (x * y).sum(2, keepdim=True) / x.square().sum(1)[:, None].clamp_min(1e-12)
        weibull, gumbel = (y - slope * x).square().sum(2).clamp_min(1e-12)
        evidence = x.shape[1] * (gumbel / weibull).log()
        pivot = nearest.sort().values[round(0.2 * (n - 1))]
        share = (self.cap_strength * (pivot - nearest)).sigmoid()
        return share * (self.tail_strength * (evidence - self.margin)).sigmoid(), slope[0, :, 0]


def log_shortfall(s):
    """Return log(1 − s), bounded as in the released code."""
    return (1 - s).clamp_min(logit_functions.CLOSEST).log()


ENTRY = methods.Entry("WEINCE", "weince", vars(weince()), logit=weince)
