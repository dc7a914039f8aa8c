"""Synthetic negatives: `mochi()(contrast)` is the contrast with mixtures added.

Any weighting and any objective can then be used. The mixtures are held fixed: gradients flow only
through the anchor, as when keys come from a queue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from hnlib._checks import Checked, integer
from hnlib.contrast import Contrast, unit_rows

__all__ = ["mochi"]

_BITS = 32
# the steps of a sequence that fills the cube evenly: powers of the root of g⁴ = g + 1, inverted
_STEPS = tuple(int(2**_BITS / 1.2207440846057596**power) for power in (1, 2, 3))


@dataclass(frozen=True)
class mochi(Checked):
    r"""MoCHi: mixtures of each anchor's hardest negatives, added as further negatives.

    Called with a contrast of $m$ candidates it returns one of $m + k$, $k$ = `pairs` +
    `with_anchor`, whose scale $Q$ is larger by $k$. Embeddings, norms, features and labels of the
    candidates are dropped, so weights that need them refuse the result.

    Parameters
    ----------
    hardest : int, default 32
        How many of an anchor's hardest negatives are mixed, at least 1.
    pairs : int, default 32
        Mixtures $\alpha n_j + (1 - \alpha) n_k$, $j \ne k$, $\alpha \in (0, 1)$.
    with_anchor : int, default 4
        Mixtures $\alpha z + (1 - \alpha) n_j$ with the anchor $z$, $\alpha \in (0, \tfrac12)$.

    Raises
    ------
    ValueError
        If an option is out of range; when called, if the contrast has no embeddings.

    Notes
    -----
    All mixtures are normalised. An anchor with fewer negatives mixes those it has; an anchor
    without negatives gets no mixtures. The draws fill the cube evenly and are the same in each step
    (a Weyl sequence over anchors and mixtures): the loss is a function of its batch.

    References
    ----------
    .. [mochi] Kalantidis et al., *Hard Negative Mixing for Contrastive Learning*, NeurIPS 2020,
       $(N, s, s')$, whose (1024, 1024, 128) of a queue of 16,384 keys are the defaults at the size
       of 510.
    """

    hardest: Annotated[int, partial(integer, least=1)] = 32
    pairs: Annotated[int, partial(integer, least=0)] = 32
    with_anchor: Annotated[int, partial(integer, least=0)] = 4

    def __call__(self, contrast: Contrast) -> Contrast:
        """Return the contrast with the mixtures added."""
        made, z = self.synthetic(contrast), contrast.anchors
        rows, _ = unit_rows(made.flatten(0, 1), "of the synthetic candidates")
        s = (z[:, None] * rows.view(made.shape)).sum(2)  # [n, k]
        some = (contrast.negative_counts > 0)[:, None].expand_as(s)
        masks = replace(
            contrast.masks,
            positives=torch.cat([contrast.positives, torch.zeros_like(some)], 1),
            admissible=torch.cat([contrast.admissible, some], 1),
        )
        return Contrast(
            torch.cat([contrast.similarity, s], 1),
            masks,
            contrast.scale + s.shape[1],
            anchors=z,
            labels=contrast.labels,
        )

    def synthetic(self, contrast: Contrast) -> Tensor:
        """Return the mixtures before they are normalised, of shape [n, k, d], without gradient."""
        one, other, share = self.parts(contrast)
        z, candidates = contrast.anchors.detach(), contrast.candidates.detach()
        anchors = z[:, None].expand(-1, self.with_anchor, -1)
        partners = torch.cat([candidates[other], anchors], 1)
        return torch.lerp(candidates[one], partners, share[:, :, None])

    def parts(self, contrast: Contrast) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parts that are mixed.

        The columns of a negative [n, k] and, for pairs, of its partner [n, s]; and the partner's
        share [n, k], which from column s on is the anchor's.
        """
        if contrast.anchors is None or contrast.candidates is None:
            raise ValueError(
                "mochi mixes embeddings; build the contrast from views, pairs or a queue"
            )
        s = contrast.similarity.detach().masked_fill(~contrast.admissible, -torch.inf)
        n, k = len(s), self.pairs + self.with_anchor
        order = s.topk(min(self.hardest, s.shape[1])).indices
        ranks = contrast.negative_counts.clamp(1, self.hardest)[:, None]
        index = torch.arange(1, n * k + 1, device=s.device).view(n, k)
        first, second, share = (index * step % 2**_BITS for step in _STEPS)
        first = first * ranks >> _BITS
        second = (first + 1 + (second * (ranks - 1) >> _BITS)) % ranks
        share = (share.to(s) + 0.5) / 2**_BITS
        share[:, self.pairs :] /= 2
        return order.gather(1, first), order.gather(1, second[:, : self.pairs]), share
