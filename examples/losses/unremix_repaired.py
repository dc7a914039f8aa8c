r"""UnReMix repaired: weights e^(β(λ₁ σ u + λ₂ s + λ₃ σ r)/t), positive and normalised. Ours.

u says how much a candidate's neighbours disagree, r how central it is among them; both are
standardised over the candidates. σ_i is the deviation of an anchor's similarities, so that the
three terms spread alike. With λ = (0, 1, 0) this is the tilt.

    >>> methods.example("unremix-repaired").build(beta=3.0, learn="maximise")
"""

import math
from dataclasses import dataclass

import torch

from hnlib import methods, negatives, unremix
from hnlib._checks import Finite, Flag, Positive, outside_autocast, per_anchor, positive


def neighbour_scores(contrast, temperature=None):
    """Return u = 1 − |µ|² and r = ⟨z, µ⟩ of each candidate [m], without gradient.

    µ_j is the mean of the other candidates, weighted by e^(s/τ); τ is 1/log m if None.
    """
    if contrast.candidates is None or not (contrast.masks.never_empty and contrast.symmetric):
        raise ValueError("neighbour_scores needs a contrast of two views without labels")
    tau = 1 / math.log(len(contrast.candidates)) if temperature is None else temperature
    positive("temperature", tau)
    z, s = contrast.candidates.detach(), contrast.similarity.detach()
    with torch.no_grad(), outside_autocast(z.device):
        mean = torch.softmax(contrast.uniform_log_weights + s / tau, 1) @ z
        return 1 - mean.square().sum(1), (z * mean).sum(1)


def standardise(x):
    """Return x with mean 0 and deviation 1, or 0 where differences are only rounding errors."""
    centred, deviation = x - x.mean(), x.std(correction=0)
    return torch.where(deviation < 100 * torch.finfo(x.dtype).eps, 0.0, centred / deviation)


@dataclass(frozen=True)
class unremix_repaired(negatives.Weighting):
    """The weights; gradient flows through the mixture, and through s if `weights_gradient`."""

    beta: Finite = 1.0
    mixture: unremix.Mixture = unremix.THIRDS
    temperature: Positive = 0.5
    weights_gradient: Flag = False

    @property
    def couples(self):
        """True: a candidate's neighbours are the other anchors."""
        return True

    def __call__(self, contrast):
        """Return the log-weights of shape [n, m]."""
        u, r = (standardise(x) for x in neighbour_scores(contrast))
        s, outside, n = contrast.similarity.detach(), ~contrast.admissible, len(u)
        count = contrast.negative_counts[:, None]
        mean = s.masked_fill(outside, 0.0).sum(1, keepdim=True) / count
        variance = (s - mean).masked_fill(outside, 0.0).square().sum(1, keepdim=True) / count
        share = unremix.shares(self.mixture, s)
        s = contrast.similarity if self.weights_gradient else s
        score = share[1] * s + variance.sqrt() * (share[0] * u + share[2] * r)
        scale = per_anchor("beta", self.beta, n) / per_anchor("temperature", self.temperature, n)
        return negatives.normalise(score, scale, contrast, self.on_empty)


defaults = dict(temperature=0.5, beta=1.0, mixture=unremix.THIRDS, learn="fixed")
defaults |= dict(weights_gradient=False)
ENTRY = methods.Entry("UnReMix, repaired", "ours", defaults, unremix_repaired)
