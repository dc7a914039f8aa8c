r"""WARP (Weston et al., IJCAI 2011): negatives within a margin push equally, weighted by rank.

    (1 + 1/2 + … + 1/r) Σ_j w_j h_j / Σ_j w_j 1[h_j > 0],     h_j = (s_j − s⁺ + µ)₊

The rank r = Q Σ_j w_j 1[h_j > 0] has no gradient; the digamma function continues the harmonic
numbers. The paper draws negatives until one has h > 0 and estimates r by the number of draws; here
all are examined.

    >>> methods.example("warp").build(margin=0.2)
"""

import torch

from hnlib import methods, objectives
from hnlib._checks import Finite, Reduction


def warp(contrast, log_w, margin: Finite = 0.1, reduction: Reduction = "mean"):
    """Compute the loss."""
    s, losses, tiny = contrast.similarity, [], torch.finfo(contrast.similarity.dtype).tiny
    for positive in contrast.masks.at_positives(s).split(1, 1):  # [n, 1]
        excess = (s - positive + margin).clamp_min(0.0)
        share = objectives.weighted_mean(log_w, (excess > 0).to(s)).clamp_min(tiny)
        rank = (share.log() + objectives.log_scale(contrast, None)).exp()
        loud = torch.digamma(rank.detach() + 1) - torch.digamma(torch.ones_like(rank))
        losses.append(loud * objectives.weighted_mean(log_w, excess) / share)
    return objectives.averaged(torch.cat(losses, 1), contrast, log_w.amax(1), reduction)


ENTRY = methods.Entry("WARP", "warp", dict(margin=0.1), objective=warp)
