"""HCL with the tilt of a centred anchor: entropic transport to first order in 1/ε. Ours.

methods.example("centred-hcl").build(epsilon=0.25)
"""

from dataclasses import dataclass

from hnlib import methods, negatives
from hnlib._checks import Flag, Positive, outside_autocast, per_anchor


@dataclass(frozen=True)
class centred_tilt(negatives.Weighting):
    r"""Weights $w_{ij} \propto e^{\langle z_i-\bar z,\,z_j\rangle/\epsilon}$, $\bar z$ the mean."""

    epsilon: Positive = 0.5
    weights_gradient: Flag = False

    @property
    def couples(self):
        """True: of two views, the candidates are the anchors."""
        return True

    def __call__(self, contrast):
        """Return the log-weights of shape [n, m]."""
        if contrast.candidates is None:
            raise ValueError("centred_tilt needs embeddings; pass candidates=… to the contrast")
        z, s = contrast.candidates, contrast.similarity
        if not self.weights_gradient:
            z, s = z.detach(), s.detach()
        with outside_autocast(z.device):
            centre = z @ z.mean(0)
        scale = 1 / per_anchor("epsilon", self.epsilon, len(s))
        return negatives.normalise(s - centre, scale, contrast, self.on_empty)


defaults = dict(temperature=0.5, epsilon=0.5, tau_plus=0.1, weights_gradient=False)
ENTRY = methods.Entry("Centred HCL", "ours", defaults, centred_tilt)
