"""What synthetic negatives pull; `reference.mochi` has how they are drawn, and the loss."""

import functools

import drawn
import torch

from hnlib.contrast import Contrast
from hnlib.synthetic_negatives import mochi

views = functools.partial(drawn.views, size=6, dimension=4)


def test_gradient_reaches_mixtures_through_the_anchor_alone():
    z1, z2 = (z.requires_grad_() for z in views(1))
    contrast = Contrast.from_views(z1, z2)
    grown = mochi(3, 4, 2)(contrast)
    total = grown.similarity[0, 12:].sum()
    in_z1, in_z2 = torch.autograd.grad(total, (z1, z2))
    assert in_z1[0].abs().max() > 0.01 and not in_z1[1:].any() and not in_z2.any()
    assert grown.scale == 16 and torch.equal(grown.similarity[:, :12], contrast.similarity)
