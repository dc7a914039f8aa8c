"""Synthetic negatives: how they are drawn and what they pull; `reference.mochi` has the loss."""

import functools

import drawn
import torch

from hnlib.contrast import Contrast
from hnlib.synthetic_negatives import mochi

views = functools.partial(drawn.views, size=6, dimension=4)


def test_the_draws_are_even_and_the_partners_differ():
    mixture, contrast = mochi(hardest=5, pairs=40), Contrast.from_views(*views(size=100))
    one, other, share = mixture.parts(contrast)
    order = contrast.similarity.masked_fill(~contrast.admissible, -2).topk(5).indices
    first, second = ((x[:, :40, None] == order[:, None]).long().argmax(2) for x in (one, other))
    assert (first != second).all()
    steps = (second - first) % 5 - 1  # drawn from four
    cells = (first * 4 + steps) * 5 + (share[:, :40] * 5).long()
    assert (cells.flatten().bincount(minlength=100) / 8000 - 1 / 100).abs().max() < 0.002
    assert share[:, 40:].max() < 0.5 < share[:, :40].max()  # mixtures with the anchor


def test_gradient_reaches_mixtures_through_the_anchor_alone():
    z1, z2 = (z.requires_grad_() for z in views(1))
    contrast = Contrast.from_views(z1, z2)
    grown = mochi(3, 4, 2)(contrast)
    total = grown.similarity[0, 12:].sum()
    in_z1, in_z2 = torch.autograd.grad(total, (z1, z2))
    assert in_z1[0].abs().max() > 0.01 and not in_z1[1:].any() and not in_z2.any()
    assert grown.scale == 16 and torch.equal(grown.similarity[:, :12], contrast.similarity)
