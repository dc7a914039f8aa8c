"""UnReMix: a mixture of uncertainty, similarity and distance as the weight of a negative."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hnlib import _checks
from hnlib._checks import Positive, checked, per_anchor
from hnlib.contrast import Contrast
from hnlib.masks import as_numbers
from hnlib.weightings import Weighting, normalise

THIRDS = (1 / 3, 1 / 3, 1 / 3)


def _mixture(name: str, value) -> None:
    """Raise ValueError unless the value is three shares; those of a learned one are a softmax."""
    if isinstance(value, Tensor):
        return _checks.shapes(value.shape == (3,), f"{name} must have shape (3,)", value)
    shares = value if isinstance(value, list | tuple) else ()
    shares = [share for share in shares if isinstance(share, Real) and share >= 0]
    if not (len(shares) == 3 == len(value) and 0 < sum(shares) < math.inf):
        raise ValueError(f"{name} must be three shares, at least 0 and not all 0, got {value!r}")


Mixture = Annotated[tuple[float, float, float] | Tensor, _mixture]
Gradient = Annotated[str, partial(_checks.one_of, choices=("pseudo-label", "nt-xent"))]


@checked
def unremix_components(
    contrast: Contrast, gradient: Gradient = "pseudo-label", temperature: Positive = 0.5
) -> Tensor:
    r"""Return the three scores of UnReMix: uncertainty, similarity and distance.

    Parameters
    ----------
    contrast : Contrast
        Without labels: a contrast of two views, built with the inputs of the last layer as
        `features`; or one of pairs, a queue, or nodes and graphs.
    gradient : {"pseudo-label", "nt-xent"}, default "pseudo-label"
        The loss whose gradient gives the uncertainty; "nt-xent" needs two views.
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$ of that loss, for "nt-xent".

    Returns
    -------
    Tensor of shape [3, n, m]
        $u_{ij}$, $s_{ij}$ and $r_{ij}$, without gradient. Cells outside $N(i)$ are arbitrary, and
        $r = 0$ for a batch of two images.

    Raises
    ------
    ValueError
        If the contrast has labels, no embeddings or, for two views, no features; or if `gradient`
        is another word, or does not apply.

    Notes
    -----
    With last layer $z = Wh$, $p_{jk} \propto e^{s_{jk}}$ on $N(j)$ and the pseudo-label
    $\hat y_j = \arg\max_k p_{jk}$,

    $$a_j = \frac{1}{|Wh_j|} (I - z_j z_j^\top) \Big(\sum_k p_{jk} z_k - z_{\hat y_j}\Big),\\
      u_{ij} = \langle a_i, a_j\rangle \langle h_i, h_j\rangle,\\
      r_{ij} = \operatorname*{mean}_{k \in N(i) \cap N(j)} (1 - s_{jk}).$$

    $a_j h_j^\top$ is the gradient in $W$ of $-\log p_{j \hat y_j}$, the other points held fixed.
    The paper says "the parameter vector of the last layer"; the measure that it adopts (Ash et al.,
    2020) uses the weights alone, and so does training here. To count a bias too, append a one to
    every $h$: $u_{ij}$ gains $\langle a_i, a_j\rangle$. With "nt-xent" $\hat y_j$ is the other
    view, $p_{jk} \propto e^{s_{jk}/t}$ on it and $N(j)$, and $a_j$ is divided by $t$.

    Where anchors and candidates come from two encoders that need not end in a linear layer, the
    gradients are those in the normalised embeddings, $u_{ij} = \langle a_i, b_j\rangle$: anchor
    $i$ is told apart among $N(i)$, candidate $j$ among the anchors whose negative it is. $s$ is the
    cosine, and $r_{ij}$ the mean of $1 - s_{jk}$ over the other candidates $k \in N(i)$.

    References
    ----------
    .. [unremix] Tabassum et al., *Hard Negative Sampling Strategies for Contrastive Representation
       Learning*, 2022, eqs. (2)-(4) and App. B.3; the closed form is ours.
    """
    known = contrast.anchors is not None and contrast.candidates is not None
    if not (known and contrast.masks.never_empty):
        raise ValueError("unremix needs embeddings, and no labels")
    if not contrast.symmetric:
        if gradient == "nt-xent":
            raise ValueError("gradient='nt-xent' needs a contrast of two views")
        return _unremix_between(contrast)
    if contrast.features is None:
        raise ValueError("unremix needs the inputs of the last layer, features=(h1, h2)")
    z, s = contrast.candidates.detach(), contrast.similarity.detach()
    h, n, images = contrast.features.detach().to(z), len(z), len(z) // 2
    with _checks.outside_autocast(z.device), torch.no_grad():
        if gradient == "pseudo-label":
            p = torch.softmax(contrast.uniform_log_weights + s, 1)
            pull = p @ z - z[p.argmax(1)]
        else:
            t = per_anchor("temperature", temperature, n)
            p = torch.softmax((s / t).fill_diagonal_(-torch.inf), 1)
            pull = (p @ z - z.roll(images, 0)) / t
        a = (pull - (pull * z).sum(1, keepdim=True) * z) / contrast.norms.detach().to(z)[:, None]
        uncertainty = (a @ a.T).mul_(h @ h.T)
        both = s[:images] + s[images:]  # a candidate's similarity to both views of each image
        for offset in (0, images):  # zero for its own image
            both.diagonal(offset).zero_()
        # the mean over N(j) without the two views of i; of two images nothing is left
        distance = both.zero_() if images == 2 else (both - both.sum(0)).div_(n - 4).add_(1.0)
        return torch.stack([uncertainty, s, distance.repeat(2, 1)])


@torch.no_grad()
def _unremix_between(contrast: Contrast) -> Tensor:
    """Return the scores for anchors and candidates of two kinds."""
    z, c = (normalize(part.detach(), dim=1) for part in (contrast.anchors, contrast.candidates))
    mask = contrast.uniform_log_weights
    with _checks.outside_autocast(z.device):
        s = z @ c.T
        u = _embedding_gradient(z, c, s + mask) @ _embedding_gradient(c, z, (s + mask).T).T
        positive = as_numbers(contrast.positives, z.dtype) @ c
        others = c.sum(0) - positive  # of an anchor's candidates all but one are its negatives
        m = len(c)
        return torch.stack([u, s, (m - 1 - others @ c.T) / max(m - 2, 1)])


def _embedding_gradient(z: Tensor, others: Tensor, logits: Tensor) -> Tensor:
    """Return the gradient of −log p at the nearest of the others, tangent to the sphere at z."""
    p = torch.softmax(logits, 1).nan_to_num()  # a key that answers the only query has no others
    pull = p @ others - others[p.argmax(1)]
    return pull - (pull * z).sum(1, keepdim=True) * z


def unremix_score(
    contrast: Contrast,
    mixture: Mixture = THIRDS,
    gradient: Gradient = "pseudo-label",
    temperature: Positive = 0.5,
) -> Tensor:
    r"""Return the score of UnReMix as printed, $\lambda_1u_{ij}+\lambda_2s_{ij}+\lambda_3r_{ij}$.

    Parameters
    ----------
    contrast, mixture, gradient, temperature
        As in `unremix_components` and `unremix`.

    Returns
    -------
    Tensor of shape [n, m]
        The scores, of either sign; cells outside $N(i)$ are arbitrary.
    """
    u, s, r = unremix_components(contrast, gradient, temperature)
    share = shares(mixture, s)
    return share[0] * u + share[1] * s + share[2] * r


@dataclass(frozen=True)
class unremix(Weighting):
    r"""UnReMix normalised, $w\propto(\lambda_1u_{ij}+\lambda_2s_{ij}+\lambda_3r_{ij})_+$.

    The paper's score can be negative and is not normalised (`objectives.signed`). Here a candidate
    with a negative score has no weight, an anchor without a positive score has uniform weights, and
    rows are normalised.

    Parameters
    ----------
    mixture : three floats or Tensor of shape [3], default (1/3, 1/3, 1/3)
        Shares $\lambda \ge 0$ of the scores, not all zero. Gradient flows through them alone.
    gradient : {"pseudo-label", "nt-xent"}, default "pseudo-label"
        See `unremix_components`.
    temperature : float or Tensor of shape [n], default 0.5
        See `unremix_components`.

    Raises
    ------
    ValueError
        If an option is out of range; when called, as in `unremix_components`.

    References
    ----------
    .. [unremix] Tabassum et al., *Hard Negative Sampling Strategies for Contrastive Representation
       Learning*, 2022, eq. (5), Algorithm 1.
    """

    mixture: Mixture = THIRDS
    gradient: Gradient = "pseudo-label"
    temperature: Positive = 0.5

    @property
    def couples(self) -> bool:
        """True: a candidate's uncertainty is among the anchors whose negative it is."""
        return True

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights of shape [n, m]."""
        score = unremix_score(contrast, self.mixture, self.gradient, self.temperature)
        positive = (score > 0) & contrast.admissible
        positive = positive | ~positive.any(1, keepdim=True)  # if none is: uniform
        tiny = torch.finfo(score.dtype).tiny
        log_score = score.clamp_min(tiny).log().masked_fill(~positive, -torch.inf)
        return normalise(log_score, 1.0, contrast, self.on_empty)


def shares(mixture, like: Tensor):
    """Return the shares of a mixture, on the device of a tensor if they are one."""
    # numbers stay numbers: a copy to an accelerator would make it wait in every step
    return mixture.to(like) if isinstance(mixture, Tensor) else mixture
