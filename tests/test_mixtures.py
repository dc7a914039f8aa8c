"""Negatives that no image has: where they lie, what they pull, who gets them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from hnlib import methods, mixtures, negatives, objectives, streaming
from hnlib.contrast import Contrast


def views(seed=0, size=6, dimension=4):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(size, dimension, generator=g, dtype=torch.float64) for _ in range(2)]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 9999), hardest=st.integers(1, 12))
def test_mixtures_lie_between_the_hardest_negatives_and_the_anchor(seed, hardest):
    contrast = Contrast.from_views(*views(seed))
    made = mixtures.mochi(hardest, pairs=5, with_anchor=3).made(contrast)
    assert made.shape == (12, 8, 4) and not made.requires_grad
    masked = contrast.similarity.masked_fill(~contrast.admissible, -2)
    order = masked.argsort(1, descending=True)[:, : min(hardest, 10)]
    for i, some in enumerate(order):
        hard, z = contrast.candidates[some], contrast.anchors[i]
        for c, point in enumerate(made[i]):
            ends = [(a, b) for a in hard for b in (hard if c < 5 else [z])]
            off = [  # detours that the way through the point is
                (point - a).norm() + (point - b).norm() - (a - b).norm() for a, b in ends
            ]
            assert min(off) < 1e-7
    s = contrast.with_candidates(made).similarity[:, -3:]
    assert (s >= masked.gather(1, order).amin(1, keepdim=True) - 1e-12).all()


def test_the_draws_are_even_and_the_partners_differ():
    mixture = mixtures.mochi(hardest=5, pairs=40, with_anchor=0)
    first, second, share = mixture._draws(200, torch.device("cpu"))
    for draws in (first, second, share):
        counts = (draws * 10 >> 32).flatten().bincount(minlength=10) / draws.numel()
        assert counts.tolist() == pytest.approx([0.1] * 10, abs=0.002)
    cells = ((first * 5 >> 32) * 5 + (second * 5 >> 32)) * 5 + (share * 5 >> 32)
    assert (cells.flatten().bincount(minlength=125) / 8000 - 1 / 125).abs().max() < 0.002
    contrast = Contrast.from_views(torch.eye(8)[:4], torch.eye(8)[4:])
    made = mixture.made(contrast)  # of orthogonal vectors: exactly two are in each
    assert ((made > 0).sum(2) == 2).all()


def test_gradient_reaches_mixtures_through_the_anchor_alone():
    z1, z2 = (z.requires_grad_() for z in views(1))
    contrast = Contrast.from_views(z1, z2)
    grown = mixtures.mochi(3, 4, 2)(contrast)
    total = grown.similarity[0, 12:].sum()
    in_z1, in_z2 = torch.autograd.grad(total, (z1, z2))
    assert in_z1[0].abs().max() > 0.01 and not in_z1[1:].any() and not in_z2.any()
    assert grown.scale == 16 and torch.equal(grown.similarity[:, :12], contrast.similarity)


@pytest.mark.parametrize("weights", [negatives.tilted(2.0), negatives.gaussian(), "h-scl"])
def test_any_weighting_and_labels_can_be_used(weights):
    labels = torch.tensor([0, 1, 2, 1, 0, 2]) if weights == "h-scl" else None
    grown = mixtures.mochi(3, 4, 2)(Contrast.from_views(*views(), labels))
    weights = negatives.tilted(1.0) if weights == "h-scl" else weights
    log_w = weights(grown)
    torch.testing.assert_close(log_w.exp().sum(1), torch.ones(12, dtype=torch.float64))
    assert (log_w[:, 12:] > -torch.inf).all() and objectives.basic(grown, log_w).isfinite()


def test_an_anchor_without_negatives_gets_none():
    z1, z2 = views()
    contrast = Contrast.from_views(z1, z2, torch.zeros(6, dtype=torch.long))
    grown = mixtures.mochi(3, 4, 2)(contrast)
    assert not grown.admissible.any() and not grown.positives[:, 12:].any()
    some = Contrast.from_views(z1, z2, torch.tensor([0, 0, 0, 0, 0, 1]))
    counts = mixtures.mochi(3, 4, 2)(some).negative_counts
    assert counts.tolist() == [8, 8, 8, 8, 8, 16] * 2  # two of the other class, or ten


def test_without_mixtures_it_is_simclr():
    z = views(3)
    plain = methods.build("mochi", pairs=0, with_anchor=0)
    assert torch.equal(plain(*z), methods.build("simclr")(*z))
    assert methods.build("mochi")(*z) > plain(*z)


def test_candidates_of_ones_own():
    z1, z2 = views(4)
    contrast = Contrast.from_pairs(z1, z2)
    own = torch.stack([z1, -z1], 1).requires_grad_()
    grown = contrast.with_candidates(own, torch.tensor([True, False]))
    expected = torch.tensor([1.0, -1.0], dtype=torch.float64).expand(6, 2)
    torch.testing.assert_close(grown.similarity[:, 6:], expected)
    assert grown.negative_counts.tolist() == [6] * 6 and grown.scale == 7
    moved = contrast.with_candidates(torch.stack([z2, z1 + z2], 1).requires_grad_())
    both = (normalize(z1) * normalize(z1 + z2)).sum(1)
    torch.testing.assert_close(moved.similarity[:, 7], both)
    assert moved.similarity.requires_grad


def test_what_is_refused():
    contrast, square = Contrast.from_views(*views()), torch.eye(4, dtype=torch.float64)
    bare = Contrast.from_similarity(square, square > 0, square == 0)
    with pytest.raises(ValueError, match="mochi mixes embeddings; build the contrast from views"):
        mixtures.mochi()(bare)
    with pytest.raises(ValueError, match="more candidates need the anchors' embeddings"):
        bare.with_candidates(torch.ones(4, 1, 4))
    with pytest.raises(ValueError, match=r"shape \(12, 4\); 12 anchors of 4 dimensions need"):
        contrast.with_candidates(torch.ones(12, 4))
    with pytest.raises(ValueError, match="row 1 of the made-up candidates has norm 0"):
        contrast.with_candidates(torch.tensor([1.0, 0.0])[:, None].expand(12, 2, 4))
    nodes = Contrast.from_nodes(3 * torch.eye(4), torch.eye(4), torch.arange(4))
    with pytest.raises(ValueError, match="anchor 0 is not normalised"):
        methods.build("mochi").loss(nodes)
    with pytest.raises(ValueError, match="centred_tilt needs embeddings"):
        negatives.centred_tilt()(mixtures.mochi()(contrast))
    with pytest.raises(ValueError, match=r"mochi makes up negatives .* cannot be streamed"):
        streaming.streamed(methods.build("mochi"))
    for options, words in (
        (dict(hardest=0), "hardest=0 must be at least 1"),
        (dict(pairs=2.0), "pairs=2.0 must be a whole number"),
        (dict(with_anchor=-1), "with_anchor=-1 must be at least 0"),
    ):
        with pytest.raises(ValueError, match=words):
            methods.build("mochi", **options)
