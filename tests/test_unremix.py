"""UnReMix: the closed forms against loops and autograd, the repaired score, and ties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import methods, negatives
from hnlib.contrast import Contrast

cases = settings(max_examples=8)
sizes = dict(
    seed=st.integers(0, 10_000), images=st.integers(3, 6), k=st.integers(2, 5), d=st.integers(2, 4)
)


def layer(seed, images, k, d):
    """Features of two views and a last layer."""
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(2 * images, k, generator=g, dtype=torch.float64)
    return h, torch.randn(d, k, generator=g, dtype=torch.float64)


def contrast_of(h, W):
    half = len(h) // 2
    z = h @ W.T
    return Contrast.from_views(z[:half], z[half:], features=(h[:half], h[half:]))


def others_of(j, n, *more):
    """Candidates that show other images than j (and than the further anchors)."""
    hidden = {a % (n // 2) for a in (j, *more)}
    return [k for k in range(n) if k % (n // 2) not in hidden]


def gradient(h, W, j):
    """The gradient of -log p at the pseudo-label of j in W, the others fixed, by autograd."""
    W = W.clone().requires_grad_()
    z = h @ W.T
    z = z / z.norm(dim=1, keepdim=True)
    logits = torch.stack([z[k].detach() @ z[j] for k in others_of(j, len(h))])
    return torch.autograd.grad(torch.logsumexp(logits, 0) - logits.max(), W)[0]


@cases
@given(**sizes)
def test_uncertainty_is_the_product_of_autograd_gradients(seed, images, k, d):
    h, W = layer(seed, images, k, d)
    g = torch.stack([gradient(h, W, j).flatten() for j in range(len(h))])
    expected = g @ g.T
    found = negatives.unremix_components(contrast_of(h, W))[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10 * float(expected.abs().max()))


@cases
@given(**sizes)
def test_components_and_weights_agree_with_loops(seed, images, k, d):
    h, W = layer(seed, images, k, d)
    contrast = contrast_of(h, W)
    components, n = negatives.unremix_components(contrast), len(h)
    s, w = contrast.similarity.numpy(), negatives.unremix((0.2, 0.3, 0.5))(contrast).exp().numpy()
    for i in range(n):
        score = np.zeros(n)
        for j in others_of(i, n):
            r = np.mean([1 - s[j, k] for k in others_of(j, n, i)])
            np.testing.assert_allclose(components[1:, i, j], [s[i, j], r], atol=1e-12)
            score[j] = max(0.0, 0.2 * float(components[0, i, j]) + 0.3 * s[i, j] + 0.5 * r)
        if not score.any():
            score[others_of(i, n)] = 1
        np.testing.assert_allclose(w[i], score / score.sum(), atol=1e-10)


def tangent_gradient(z, others):
    """The gradient of -log p at the nearest of the others in z, along the sphere, by autograd."""
    z = z.clone().requires_grad_()
    logits = others @ (z / z.norm())
    return torch.autograd.grad(torch.logsumexp(logits, 0) - logits.max(), z)[0]


@pytest.mark.parametrize("kind", ["pairs", "queue", "nodes"])
def test_components_of_two_encoders_agree_with_loops(kind):
    g = torch.Generator().manual_seed(1)
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


def test_signed_weights_learn_a_mixture():
    h, W = layer(3, 5, 4, 3)
    z = h @ W.T
    method = methods.build("unremix-printed", learn="minimise")
    loss = method(z[:5], z[5:], features=(h[:5], h[5:]))
    fixed = methods.build("unremix-printed")(z[:5], z[5:], features=(h[:5], h[5:]))
    assert loss.item() == pytest.approx(fixed.item())
    loss.backward()
    assert method.logits.grad.abs().max() > 1e-3
    with pytest.raises(ValueError, match="unremix needs embeddings"):
        positives = torch.eye(4, dtype=torch.bool)
        method.loss(Contrast.from_similarity(torch.eye(4), positives, ~positives))


def test_an_anchor_without_a_positive_score_is_uniform():
    z = torch.eye(4)[[0, 1, 2, 3]] - 0.25  # a simplex: all similarities of other images are -1/3
    contrast = Contrast.from_views(z, z, features=(z, z))
    found = negatives.unremix((0, 1, 0))(contrast)
    torch.testing.assert_close(found, negatives.uniform()(contrast))


@cases
@given(**sizes)
def test_neighbour_scores_agree_with_loops_and_stay_in_bounds(seed, images, k, d):
    h, W = layer(seed, images, k, d)
    contrast = contrast_of(h, W)
    z, n = contrast.candidates, len(h)
    u, r = negatives.neighbour_scores(contrast)
    for j in range(n):
        near = z[others_of(j, n)]
        p = [math.exp(float(z[j] @ x) * math.log(n)) for x in near]
        p = [x / sum(p) for x in p]
        mean = sum(q * x for q, x in zip(p, near, strict=True))
        variance = sum(q * float((x - mean).square().sum()) for q, x in zip(p, near, strict=True))
        resemblance = sum(q * float(z[j] @ x) for q, x in zip(p, near, strict=True))
        np.testing.assert_allclose([u[j], r[j]], [variance, resemblance], atol=1e-10)
    assert u.min() >= -1e-12 and (u + r.square()).max() <= 1 + 1e-12


@cases
@given(**sizes)
def test_repaired_agrees_with_loops(seed, images, k, d):
    h, W = layer(seed, images, k, d)
    contrast, lam = contrast_of(h, W), (0.5, 0.2, 0.3)
    s, n = contrast.similarity.numpy(), len(h)
    u, r = ((x - x.mean()) / x.std(correction=0) for x in negatives.neighbour_scores(contrast))
    found = negatives.unremix_repaired(1.4, lam, 0.3)(contrast).exp().numpy()
    for i in range(n):
        near, e = others_of(i, n), np.zeros(n)
        sigma = np.std([s[i, j] for j in near])
        for j in near:
            score = lam[0] * sigma * u[j] + lam[1] * s[i, j] + lam[2] * sigma * r[j]
            e[j] = math.exp(1.4 / 0.3 * score)
        np.testing.assert_allclose(found[i], e / e.sum(), atol=1e-10)


WEIGHTINGS = {"unremix": negatives.unremix, "repaired": negatives.unremix_repaired}


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_gradient_flows_through_the_mixture_alone(name):
    h, W = layer(3, 5, 4, 3)
    z = (h @ W.T).requires_grad_()
    contrast = Contrast.from_views(z[:5], z[5:], features=(h[:5], h[5:]))
    lam = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64, requires_grad=True)

    def value(x):
        return WEIGHTINGS[name](mixture=x)(contrast)[contrast.admissible].exp().square().sum()

    assert not WEIGHTINGS[name]()(contrast).requires_grad
    found = torch.autograd.grad(value(lam), lam)[0]
    step = 1e-6 * torch.eye(3, dtype=torch.float64)
    expected = torch.stack([(value(lam + e) - value(lam - e)) / 2e-6 for e in step]).detach()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert torch.autograd.grad(value(lam), z, allow_unused=True)[0] is None


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
    h, W = layer(2, 4, 3, 2)
    z = h @ W.T
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
