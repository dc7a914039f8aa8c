"""InfoGraph's catalogue: weights on raw scores, and the Jensen–Shannon objective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hnlib import methods, negatives, objectives
from hnlib._checks import per_anchor
from hnlib.contrast import Contrast


def scores(contrast: Contrast, per: str = "batch") -> Tensor:
    r"""Scale the scores of a contrast: $x_{uG}=2\,T_{uG}/\max|T|$.

    The maximum is over the negatives of all nodes (`per` "batch", as released) or of each node
    ("node"). Admissible scores lie in $[-2,2]$; gradients flow through the maximum too. Zero scores
    stay zero. Source: hcl, App. D.2 ("clip", by released code a rescaling); "node" is ours.
    """
    return contrast.similarity / _half_largest(contrast.similarity, contrast, per)


def _half_largest(similarity: Tensor, contrast: Contrast, per: str) -> Tensor:
    size = similarity.masked_fill(~contrast.admissible, 0.0).abs()
    largest = size.amax() if per == "batch" else size.amax(1, keepdim=True)
    return largest.clamp_min(torch.finfo(largest.dtype).tiny ** 0.5) / 2


@dataclass(frozen=True, eq=False)
class tilted(negatives.Weighting):
    r"""The tilt of the scaled score: $w_{uG}\propto e^{\beta x_{uG}}$, $x$ = `scores`.

    `beta` is any real number: positive as in the paper's text, negative as in its released code,
    which prefers easy negatives. With `weights_gradient`, gradients flow through the weights, and
    so through the scale too; with the scale detached the update would not be the gradient of any
    objective. `per`: see `scores`. Source: hcl, App. B.2.
    """

    beta: float | Tensor = 1.0
    weights_gradient: bool = True
    on_empty: str = "raise"
    per: str = "batch"

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights $[n,m]$."""
        similarity = contrast.similarity if self.weights_gradient else contrast.similarity.detach()
        beta = per_anchor("beta", self.beta, len(similarity))
        scale = beta / _half_largest(similarity, contrast, self.per)
        return negatives.normalise(similarity, scale, contrast, self.on_empty)


def entropic_ot(
    epsilon: float = 0.5, tol: float = 1e-4, max_iterations: int = 1000, on_failure: str = "warn"
) -> negatives.semi_relaxed_ot:
    r"""Take the rows of the entropic plan of nodes and graphs with cost $-x_{uG}$, $x$ = `scores`.

    The marginals over nodes and over graphs are uniform, and the node's own graph is forbidden:
    `epsilon` = $1/\beta$ is the tilt $\beta$ with a price for each graph. A plan exists unless a
    graph holds more than $1-1/m$ of the nodes. Options and errors: `hnlib.negatives.entropic_ot`.
    Source: hcl-ot, eq. (5); its graph code is not released.
    """
    return negatives.entropic_ot(epsilon, _minus_scores, tol, max_iterations, on_failure)


def _minus_scores(contrast: Contrast) -> Tensor:
    return -scores(contrast).detach()


def _entry(title: str, paper: str, weights, supervised: bool = False, **defaults) -> methods.Entry:
    return methods.Entry(
        title, paper, defaults, weights, objectives.jensen_shannon, supervised=supervised
    )


_TILT = dict(beta=1.0, tau_plus=0.0, weights_gradient=True)
_PLAN = dict(epsilon=0.5, tau_plus=0.0, tol=1e-4, max_iterations=1000, on_failure="warn")
_LABELS = dict(positives="class", on_empty="raise")
#: InfoGraph's methods by name, as in `hnlib.methods.CATALOGUE`: Jensen–Shannon objectives.
CATALOGUE = {
    "infograph": _entry("InfoGraph", "infograph", negatives.uniform),
    "debiased": _entry("Debiased", "dcl", negatives.uniform, tau_plus=0.1),
    "hcl": _entry("HCL", "hcl", tilted, **_TILT),
    "hcl-node": _entry("HCL, scaled by node", "ours", partial(tilted, per="node"), **_TILT),
    "ot": _entry("Entropic OT", "hclot", entropic_ot, **_PLAN),
    "unremix": _entry(
        "UnReMix", "unremix", negatives.unremix, mixture=(1 / 3, 1 / 3, 1 / 3), learn="fixed"
    ),
    "scl": _entry("SCL", "hscl", negatives.uniform, True, **_LABELS),
    "h-scl": _entry("H-SCL(β)", "hscl", tilted, True, beta=1.0, weights_gradient=True, **_LABELS),
}


def build(name: str, /, **options) -> methods.Method:
    """Build an InfoGraph method, to call as `method.loss(contrast)`: `build("hcl", beta=2.0)`.

    `train` reads the option `positives`; for a contrast of your own pass it to
    `Contrast.from_nodes`.
    """
    return methods.Method(name, methods.entry_of(CATALOGUE, name), options)
