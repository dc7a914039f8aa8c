"""UnReMix: the closed forms against loops and autograd, the repaired score, and ties."""

import math

import numpy as np
import pytest
import torch
from drawn import seeded

from hnlib import methods, negatives
from hnlib.contrast import Contrast


def tangent_gradient(z, others):
    """The gradient of -log p at the nearest of the others in z, along the sphere, by autograd."""
    z = z.clone().requires_grad_()
    logits = others @ (z / z.norm())
    return torch.autograd.grad(torch.logsumexp(logits, 0) - logits.max(), z)[0]


@pytest.mark.parametrize("kind", ["pairs", "queue", "nodes"])
def test_components_of_two_encoders_agree_with_loops(kind):
    g = seeded(1)
    z, c = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (4, 6))
    owner = torch.tensor([0, 1, 2, 3])
    if kind == "pairs":
        contrast = Contrast.from_pairs(z, c)
    elif kind == "queue":
        contrast = Contrast.from_queue(z, c[:4], c[4:])
    else:
        owner = torch.tensor([0, 5, 5, 2])
        contrast = Contrast.from_nodes(z, c, owner)
    z, c = (x / x.norm(dim=1, keepdim=True) for x in (z, c))
    u, s, r = negatives.unremix_components(contrast)
    for i in range(4):
        near = [j for j in range(6) if j != owner[i]]
        mine = tangent_gradient(z[i], c[near])
        for j in near:
            theirs = tangent_gradient(c[j], z[[k for k in range(4) if owner[k] != j]])
            away = np.mean([1 - float(c[j] @ c[k]) for k in near if k != j])
            found = [u[i, j], s[i, j], r[i, j]]
            np.testing.assert_allclose(found, [mine @ theirs, z[i] @ c[j], away], atol=1e-12)


WEIGHTINGS = {"unremix": negatives.unremix, "repaired": negatives.unremix_repaired}


@pytest.mark.parametrize("name", WEIGHTINGS)
@pytest.mark.parametrize("images", [2, 5])
def test_rows_are_distributions_also_where_nothing_varies(name, images):
    z = torch.ones(images, 3)
    contrast = Contrast.from_views(z, z, features=(z, z))
    log_w = WEIGHTINGS[name]()(contrast)
    assert torch.allclose(log_w.logsumexp(1), torch.zeros(2 * images), atol=1e-6)
    assert (log_w[~contrast.admissible] == -torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("images", [2, 5, 8, 64])
def test_the_repaired_scores_of_points_that_are_all_alike_count_as_ties(dtype, images):
    """On a ring u and r are the same for all: what rounding leaves of them must not be a weight."""
    angle = 2 * math.pi * torch.arange(images, dtype=torch.float64) / images
    z = torch.stack([angle.cos(), angle.sin()], 1).to(dtype)
    method = methods.build("unremix-repaired", beta=3.0, learn="maximise")
    contrast = Contrast.from_views(z, z)
    near = dict(rtol=0, atol=1e-6)
    tilt = negatives.tilted(1.0)(contrast).exp()  # a third of 3
    torch.testing.assert_close(negatives.unremix_repaired(3.0)(contrast).exp(), tilt, **near)
    method.loss(contrast).backward()
    u, s, r = method.logits.grad.tolist()
    assert u == pytest.approx(r, abs=1e-6) == pytest.approx(-s / 2, abs=1e-6)


def test_refusals():
    z = torch.randn(8, 2, generator=seeded(2))
    bare = Contrast.from_views(z[:4], z[4:])
    labelled = Contrast.from_views(z[:4], z[4:], torch.tensor([0, 1, 0, 1]))
    s = torch.eye(3) > 0
    with pytest.raises(ValueError, match="features="):
        negatives.unremix()(bare)
    cases = (negatives.unremix(), "no labels"), (negatives.unremix_repaired(), "without labels")
    for weights, message in cases:
        for contrast in (labelled, Contrast.from_similarity(torch.eye(3), s, ~s)):
            with pytest.raises(ValueError, match=message):
                weights(contrast)
    with pytest.raises(ValueError, match="needs a contrast of two views"):
        negatives.unremix(gradient="nt-xent")(Contrast.from_pairs(z[:4], z[4:]))
    for bad in ((1, 2), (0, 0, 0), (-0.1, 0.6, 0.5), (math.nan, 1, 1), (1, math.nan, 1)):
        with pytest.raises(ValueError, match="mixture"):
            negatives.unremix(mixture=bad)
