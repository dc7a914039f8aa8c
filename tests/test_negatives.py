"""Every distribution over negatives against its slow reference, and the rules that all obey."""

import math
from functools import partial

import numpy as np
import pytest
import reference
import torch
from drawn import seeded, space
from drawn import views as batch
from torch.nn.functional import cross_entropy, normalize

from hnlib import graphs, methods, negatives, objectives
from hnlib.contrast import Contrast
from hnlib.synthetic_negatives import mochi

centred_tilt = methods.example("centred-hcl").centred_tilt


@pytest.mark.parametrize(
    ("factory", "option"),
    [
        (negatives.tilted, "beta"),
        (negatives.thresholded, "temperature"),
        (negatives.thresholded, "level"),
    ],
)
def test_one_value_per_anchor_acts_on_that_anchor_s_row(factory, option):
    c = Contrast.from_views(*batch(3))
    values = torch.linspace(0.2, 1.1, 10, dtype=torch.float64)
    together = factory(**{option: values}, on_empty="skip")(c).exp()
    for i, value in enumerate(values.tolist()):
        alone = factory(**{option: value}, on_empty="skip")(c)[i].exp()
        assert torch.allclose(together[i], alone, atol=1e-12)


def test_another_cost_is_used_as_given():
    z1, z2 = batch(3)
    c = Contrast.from_views(z1, z2)
    _, S, _, A = reference.views(z1, z2)
    lopsided = negatives.entropic_ot(
        0.5, lambda c: (1 - c.similarity) ** 3 * torch.arange(1, 11), max_iterations=20_000
    )
    expected = reference.transport_weights(S, A, 0.5, cost=(1 - S) ** 3 * np.arange(1, 11))
    assert np.abs(lopsided(c).exp().numpy() - expected).max() < 1e-8
    named = negatives.entropic_ot(0.5 * math.e, "exponential")(c).exp().numpy()  # kappa = 1
    expected = reference.transport_weights(S, A, 0.5, cost=np.exp(2 - 2 * S - 1))
    assert np.abs(named - expected).max() < 1e-8


@pytest.mark.parametrize("factory", [negatives.tilted, negatives.gaussian, centred_tilt])
def test_gradients_through_the_weights_are_those_of_finite_differences(factory):
    def weights(a, b):
        return factory(weights_gradient=True)(Contrast.from_views(a, b)).exp()

    assert torch.autograd.gradcheck(weights, [z.requires_grad_() for z in batch(1, size=4)])


FACTORIES = [
    negatives.uniform,
    negatives.tilted,
    negatives.gaussian,
    partial(negatives.thresholded, 1e-3),
    centred_tilt,
    negatives.chi2_ball,
]


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_anchor_without_negatives_is_named_or_skipped(factory):
    z1, z2 = (z.requires_grad_() for z in batch(8, size=3))
    c = Contrast.from_views(z1, z2)
    c = c.without((torch.arange(6) == 4)[:, None].expand(6, 6))
    with pytest.raises(ValueError, match=r'anchor 4 has no .*negative.*on_empty="skip"'):
        factory()(c)
    log_w = factory().skipping()(c)
    some = log_w.amax(1) > -torch.inf
    assert some.tolist() == [True] * 4 + [False, True]
    assert (log_w[~c.admissible] == -torch.inf).all()
    assert torch.logsumexp(log_w[some], 1).abs().max() < 1e-12
    if log_w.requires_grad:
        log_w[:, :2].exp().sum().backward()
        assert z1.grad.isfinite().all()


def test_popularity_divides_by_the_frequency_and_counts_copies_once():
    c = space(3)
    q = torch.tensor([3.0, 1, 2, 5, 1, 4])
    expected = reference.weigh(1 / q.numpy(), c.admissible.numpy())
    torch.testing.assert_close(negatives.popularity(q)(c).exp(), torch.tensor(expected))
    with pytest.raises(ValueError, match="frequency must be positive and finite, got 0"):
        negatives.popularity(torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"frequency must be \[6\], got \(5,\)"):
        negatives.popularity(q[1:])(c)
    keys = torch.randn(4, 3, generator=seeded(), dtype=torch.float64)
    copied = Contrast.from_pairs(keys[:1], keys[[0, 1, 2, 3, 3, 3]])
    w = negatives.popularity(torch.tensor([1, 1, 1, 3, 3, 3]))(copied).exp()
    once = negatives.uniform()(Contrast.from_pairs(keys[:1], keys)).exp()
    torch.testing.assert_close(torch.cat([w[:, :3], w[:, 3:].sum(1, keepdim=True)], 1), once)


def test_popularity_is_neither_correction_until_its_scale_says_how_much_all_weigh():
    """LogQ is a cross-entropy of corrected logits; the refined one leaves the positive alone."""
    keys = torch.randn(2, 6, 3, generator=seeded(), dtype=torch.float64)
    c, t, n = Contrast.from_pairs(*keys), 0.2, 5
    q = torch.tensor([3.0, 1, 2, 5, 1, 4], dtype=torch.float64) / 40
    logits = c.similarity / t
    logq = cross_entropy(logits - q.log(), torch.arange(6))
    others = ((logits - logits.diagonal()[:, None]).exp() / (n * q) * c.admissible).sum(1)
    refined = others.log1p().mean()
    loss = partial(objectives.info_nce, c, temperature=t)
    weights = negatives.popularity(q)(c)
    torch.testing.assert_close(loss(c.uniform_log_weights - (q / q[:, None]).log()), logq)
    torch.testing.assert_close(loss(c.uniform_log_weights - (n * q).log()), refined)
    torch.testing.assert_close(loss(weights, scale=(c.admissible / q).sum(1) / n), refined)
    assert min(abs(loss(weights) - one) for one in (logq, refined)) > 0.1


def test_mochi_s_mixtures_are_held_in_the_gradient():
    mix, views = mochi(hardest=3, pairs=4, with_anchor=2), batch(5)
    z1, z2 = (x.requires_grad_() for x in views)
    z = normalize(torch.cat([z1, z2]), dim=1)
    one, other, share = mix.parts(Contrast.from_views(z1, z2))
    anchors = z[:, None].expand(-1, 2, -1)
    mixed = torch.lerp(z[one], torch.cat([z[other], anchors], 1), share[:, :, None])

    def slope(mixtures):
        s = z @ z.T
        s = s.masked_fill(torch.eye(10, dtype=torch.bool), -math.inf)
        s = torch.cat([s, (z[:, None] * normalize(mixtures, dim=2)).sum(2)], 1) / 0.2
        value = s.logsumexp(1).mean() - (z[:5] * z[5:]).sum(1).mean() / 0.2
        return torch.autograd.grad(value, (z1, z2), retain_graph=True)

    method = methods.build("mochi", temperature=0.2, hardest=3, pairs=4, with_anchor=2)
    found = torch.autograd.grad(method(z1, z2), (z1, z2))
    torch.testing.assert_close(found, slope(mixed.detach()))
    assert (found[0] - slope(mixed)[0]).abs().max() > 1e-3


# --- UnReMix


def tangent_gradient(z, others):
    """The gradient of -log p at the nearest of the others in z, along the sphere, by autograd."""
    z = z.clone().requires_grad_()
    logits = others @ (z / z.norm())
    return torch.autograd.grad(torch.logsumexp(logits, 0) - logits.max(), z)[0]


def test_components_of_two_encoders_agree_with_loops():
    g = seeded(1)
    z, c = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (4, 6))
    owner = torch.tensor([0, 5, 5, 2])
    contrast = graphs.methods.from_nodes(z, c, owner)
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


@pytest.mark.parametrize("images", [2, 5])
def test_unremix_is_uniform_where_nothing_varies(images):
    z = torch.ones(images, 3, dtype=torch.float64)
    contrast = Contrast.from_views(z, z, features=(z, z))
    weights = negatives.unremix()(contrast).exp()
    torch.testing.assert_close(weights, contrast.uniform_log_weights.exp())
