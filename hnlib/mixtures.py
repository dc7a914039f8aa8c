r"""Negatives that no image has, as values: `mixtures.mochi()(contrast)` is the contrast with them
added.

Any weighting and any objective can then be used. The mixtures are held fixed: gradient reaches them
through the anchor alone, as where keys come from a queue.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hnlib import _checks
from hnlib.contrast import Contrast

_BITS = 32
# the steps of a sequence that fills the cube evenly: powers of the root of g⁴ = g + 1, inverted
_STEPS = tuple(int(2**_BITS / 1.2207440846057596**power) for power in (1, 2, 3))


@dataclass(frozen=True)
class mochi:
    r"""MoCHi: every anchor $z$ gets mixtures of its `hardest` negatives $n$, drawn alike.

    `pairs` of them are $\alpha n_j+(1-\alpha)n_k$, $j\ne k$, $\alpha\in(0,1)$; `with_anchor` are
    $\alpha z+(1-\alpha)n_j$, $\alpha\in(0,\tfrac12)$; all are normalised. An anchor with fewer
    negatives mixes those, one without gets none. The draws fill the cube evenly and are the same in
    each step (a Weyl sequence over anchors and mixtures): the loss is a function of its batch.
    Called with a contrast of $m$ candidates it returns one of $m$ + `pairs` + `with_anchor`; see
    `Contrast.with_candidates`. ValueError: numbers that are not whole, no `hardest`, a contrast
    without embeddings. Source: Kalantidis et al. (2020), $(N,s,s')$, whose (1024, 1024, 128) of a
    queue of 16,384 keys are the defaults at the size of 510.
    """

    hardest: int = 32
    pairs: int = 32
    with_anchor: int = 4

    def __post_init__(self):
        for option, value in vars(self).items():
            _checks.whole(option, value, least=int(option == "hardest"))

    def __call__(self, contrast: Contrast) -> Contrast:
        if not self.pairs + self.with_anchor:
            return contrast
        some = (contrast.negative_counts > 0)[:, None]
        return contrast.with_candidates(self.made(contrast), some)

    def made(self, contrast: Contrast) -> Tensor:
        """The mixtures before they are normalised $[n,k,d]$, without gradient; errors as above."""
        one, other, share = self.parts(contrast)
        z, candidates = contrast.anchors.detach(), contrast.candidates.detach()
        anchors = z[:, None].expand(-1, self.with_anchor, -1)
        partners = torch.cat([candidates[other], anchors], 1)
        return torch.lerp(candidates[one], partners, share[:, :, None])

    def parts(self, contrast: Contrast) -> tuple[Tensor, Tensor, Tensor]:
        """What is mixed: the columns of a negative $[n,k]$ and, for pairs, of its partner $[n,s]$;
        and the partner's share $[n,k]$, which from column $s$ on is the anchor's."""
        if contrast.anchors is None or contrast.candidates is None:
            raise ValueError(
                "mochi mixes embeddings; build the contrast from views, pairs or a queue"
            )
        s = contrast.similarity.detach().masked_fill(~contrast.admissible, -torch.inf)
        order = s.topk(min(self.hardest, s.shape[1])).indices
        ranks = contrast.negative_counts.clamp(1, self.hardest)[:, None]
        first, second, share = self._draws(len(s), s.device)
        first = first * ranks >> _BITS
        second = (first + 1 + (second * (ranks - 1) >> _BITS)) % ranks
        share = (share.to(s) + 0.5) / 2**_BITS
        share = torch.cat([share[:, : self.pairs], share[:, self.pairs :] / 2], 1)
        return order.gather(1, first), order.gather(1, second[:, : self.pairs]), share

    def _draws(self, n: int, device) -> tuple[Tensor, ...]:
        """Three whole numbers below 2³² for each anchor and mixture $[n,k]$."""
        k = self.pairs + self.with_anchor
        index = torch.arange(1, n * k + 1, device=device).view(n, k)
        return tuple(index * step % 2**_BITS for step in _STEPS)
