"""Views that mix two images: what they show, what they are to be recognised as, how a run has
them."""

import pytest
import torch
from drawn import seeded

from hnlib import methods
from hnlib.images import mixed_views


def test_i_mix_shows_the_own_image_most():
    x = torch.randn(50, 3, 4, 4, generator=seeded())
    mixed, partner, own = mixed_views.i_mix(x, seeded(1))
    assert sorted(partner.tolist()) == list(range(50))
    assert own.min() >= 0.5 and own.max() <= 1 and 0.7 < own.mean() < 0.8
    expected = torch.stack([torch.lerp(x[j], x[i], own[i]) for i, j in enumerate(partner)])
    torch.testing.assert_close(mixed, expected)
    assert torch.equal(mixed_views.i_mix(x, seeded(1), 1.0)[0], x)


def test_un_mix_shows_a_share_of_the_own_image():
    """Of a bright image whose partner is dark, the mean is the share."""
    x = torch.tensor([1.0, 0.0]).view(2, 1, 1, 1).expand(2, 1, 8, 6)
    shares, boxes = [], 0
    for seed in range(300):
        mixed, own = mixed_views.un_mix(x, seeded(seed))
        assert float(mixed[0].mean()) == pytest.approx(float(own), abs=1e-6)
        torch.testing.assert_close(mixed[1], 1 - mixed[0])
        shares.append(float(own))
        if mixed[0].unique().numel() > 1:  # a box, dark inside
            boxes += 1
            dark = mixed[0, 0] == 0
            assert torch.equal(dark, dark.any(1)[:, None] & dark.any(0))
            assert dark.sum() == (~(mixed[0, 0] == 1)).sum()
    assert 90 < boxes < 160 and 0.45 < sum(shares) / 300 < 0.75
    assert torch.equal(mixed_views.un_mix(x, seeded(), 1.0)[0], x)


@pytest.mark.parametrize("name", ["hcl", "unremix"])
def test_the_loss_of_un_mix_is_three_losses(name):
    z = list(torch.randn(3, 6, 5, generator=seeded(), dtype=torch.float64))
    h, own, method = [part.relu() for part in z], 0.3, methods.build(name)

    def loss(first, features):
        return method(first, z[1], features=(features, h[1]))

    expected = loss(z[0], h[0]) + 0.3 * loss(z[2], h[2]) + 0.7 * loss(z[2].flip(0), h[2].flip(0))
    hidden = h if method.entry.features else ()
    torch.testing.assert_close(mixed_views.un_mix_loss(method, z, own, hidden), expected)
