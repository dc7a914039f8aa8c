"""Every distribution over negatives against its slow reference, and the rules that all obey."""

import math
from functools import partial

import numpy as np
import pytest
import reference
import torch
from drawn import SEEDS, seeded, space
from drawn import views as batch
from hypothesis import given, settings

from hnlib import graphs, methods, negatives
from hnlib.contrast import Contrast
from hnlib.transport import ConvergenceError, ConvergenceWarning

centred_tilt = methods.example("centred-hcl").centred_tilt
# name -> (factory, reference, options of both)
ALL = {
    "uniform": (negatives.uniform, reference.uniform, {}),
    "tilted": (negatives.tilted, reference.tilted, dict(beta=1.7, temperature=0.4)),
    "easy": (negatives.tilted, reference.tilted, dict(beta=-2.0)),
    "thresholded": (
        partial(negatives.thresholded, on_empty="skip"),
        reference.thresholded,
        dict(tau=0.9),
    ),
    "gaussian": (negatives.gaussian, reference.gaussian, dict(mu=0.2, sigma=0.3)),
    "chi2": (negatives.chi2_ball, reference.chi2_ball, dict(eta=0.3)),
    "semi-relaxed": (
        partial(negatives.semi_relaxed_ot, max_iterations=20_000),
        reference.transport_weights,
        dict(epsilon=0.4, relaxation=0.7),
    ),
}


def is_distribution(log_w, admissible):
    some = log_w.amax(1) > -torch.inf
    assert log_w.shape == admissible.shape and not log_w.isnan().any()
    assert (log_w[~admissible] == -torch.inf).all()
    assert torch.logsumexp(log_w[some], 1).abs().max() < 1e-12
    return some


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10)
@given(seed=SEEDS)
def test_a_finite_space_against_the_reference(name, seed):
    factory, expected, options = ALL[name]
    c = space(seed)
    log_w = factory(**options)(c)
    is_distribution(log_w, c.admissible)
    arrays = c.similarity.numpy(), c.admissible.numpy()
    assert np.abs(log_w.exp().numpy() - expected(*arrays, **options)).max() < 1e-9
    if options and name != "thresholded":  # whose weights are steps
        option, value = next(iter(options.items()))
        near = expected(*arrays, **options | {option: 1.01 * value})
        assert np.abs(log_w.exp().numpy() - near).max() > 1e-6


PER_ANCHOR = [
    *((negatives.tilted, option) for option in ("beta", "temperature")),
    *((negatives.gaussian, option) for option in ("mu", "sigma")),
    (negatives.thresholded, "temperature"),
]


@pytest.mark.parametrize(("factory", "option"), PER_ANCHOR)
def test_one_value_per_anchor_acts_on_that_anchor_s_row(factory, option):
    c = Contrast.from_views(*batch(3))
    values = torch.linspace(0.2, 1.1, 10, dtype=torch.float64)
    together = factory(**{option: values}, on_empty="skip")(c).exp()
    for i, value in enumerate(values.tolist()):
        alone = factory(**{option: value}, on_empty="skip")(c)[i].exp()
        assert torch.allclose(together[i], alone, atol=1e-12)
    with pytest.raises(ValueError, match=option):
        factory(**{option: values[:3]})(c)


def test_another_cost_is_used_as_given():
    z1, z2 = batch(3)
    c = Contrast.from_views(z1, z2)
    _, S, _, A = reference.views(z1, z2)
    square = negatives.entropic_ot(1.0, lambda c: torch.cdist(c.anchors, c.candidates).square())
    half = negatives.entropic_ot(0.5)(c).exp()  # epsilon -> epsilon / 2
    assert (square(c).exp() - half).abs().max() < 1e-8
    lopsided = negatives.entropic_ot(
        0.5, lambda c: (1 - c.similarity) ** 3 * torch.arange(1, 11), max_iterations=20_000
    )
    expected = reference.transport_weights(S, A, 0.5, cost=(1 - S) ** 3 * np.arange(1, 11))
    assert np.abs(lopsided(c).exp().numpy() - expected).max() < 1e-8
    named = negatives.entropic_ot(0.5 * math.e, "exponential")(c).exp().numpy()  # kappa = 1
    expected = reference.transport_weights(S, A, 0.5, cost=np.exp(2 - 2 * S - 1))
    assert np.abs(named - expected).max() < 1e-8


GRADIENT = [negatives.tilted, negatives.gaussian, centred_tilt]


@pytest.mark.parametrize("factory", GRADIENT)
def test_gradients_flow_through_the_weights_if_asked(factory):
    z1, z2 = (z.requires_grad_() for z in batch(1, size=4))

    def weights(on):
        return lambda a, b: factory(weights_gradient=on)(Contrast.from_views(a, b)).exp()

    assert torch.autograd.gradcheck(weights(True), (z1, z2))
    assert not weights(False)(z1, z2).requires_grad
    assert torch.equal(weights(True)(z1, z2), weights(False)(z1, z2))


SKIPPING = {
    "uniform": negatives.uniform,
    "tilted": negatives.tilted,
    "gaussian": negatives.gaussian,
    "thresholded": lambda on_empty: negatives.thresholded(1e-3, on_empty=on_empty),
    "centred": centred_tilt,
    "chi2": negatives.chi2_ball,
}


@pytest.mark.parametrize("name", SKIPPING)
def test_an_anchor_without_negatives_is_named_or_skipped(name):
    z1, z2 = (z.requires_grad_() for z in batch(8, size=3))
    c = Contrast.from_views(z1, z2)
    c = c.without((torch.arange(6) == 4)[:, None].expand(6, 6))
    with pytest.raises(ValueError, match=r'anchor 4 has no .*negative.*on_empty="skip"'):
        SKIPPING[name](on_empty="raise")(c)
    log_w = SKIPPING[name](on_empty="raise").skipping()(c)
    assert is_distribution(log_w, c.admissible).tolist() == [True] * 4 + [False, True]
    if log_w.requires_grad:
        log_w[:, :2].exp().sum().backward()
        assert z1.grad.isfinite().all()


def test_transport_names_what_it_cannot_couple_and_missed_tolerances():
    z1, z2 = batch(10, size=3)
    with pytest.raises(ValueError, match="row 0 of the mask allows no cell"):
        negatives.entropic_ot()(Contrast.from_views(z1, z2, torch.tensor([1, 1, 1])))
    # two images of class 0 against one of class 1: four anchors share two candidates
    crowded = Contrast.from_views(z1, z2, torch.tensor([0, 0, 1]))
    with pytest.raises(ValueError, match=r"no coupling .*at most 0\.6667 of the mass"):
        negatives.entropic_ot()(crowded)
    is_distribution(negatives.semi_relaxed_ot(relaxation=0.5)(crowded), crowded.admissible)
    c = Contrast.from_views(*batch(11))
    with pytest.raises(ConvergenceError, match="marginal error"):
        negatives.entropic_ot(0.05, max_iterations=1)(c)
    lenient = negatives.entropic_ot(0.05, max_iterations=1, on_failure="warn")
    with pytest.warns(ConvergenceWarning, match="marginal error"):
        log_w, missed = lenient.counted(c)
    assert missed == 1 and is_distribution(log_w, c.admissible).all()
    assert negatives.entropic_ot(0.5).counted(c)[1] == 0


def test_popularity_divides_by_the_frequency_and_counts_copies_once():
    c = space(3)
    q = torch.tensor([3.0, 1, 2, 5, 1, 4])
    expected = reference.weigh(1 / q.double().numpy(), c.admissible.numpy())
    torch.testing.assert_close(negatives.popularity(q)(c).exp(), torch.tensor(expected))
    with pytest.raises(ValueError, match=r"frequency must be \[6\], got \(5,\)"):
        negatives.popularity(q[1:])(c)
    keys = torch.randn(4, 3, generator=seeded(), dtype=torch.float64)
    copied = Contrast.from_pairs(keys[:1], keys[[0, 1, 2, 3, 3, 3]])
    w = negatives.popularity(torch.tensor([1, 1, 1, 3, 3, 3]))(copied).exp()
    once = negatives.uniform()(Contrast.from_pairs(keys[:1], keys)).exp()
    torch.testing.assert_close(torch.cat([w[:, :3], w[:, 3:].sum(1, keepdim=True)], 1), once)


# --- UnReMix


def tangent_gradient(z, others):
    """The gradient of -log p at the nearest of the others in z, along the sphere, by autograd."""
    z = z.clone().requires_grad_()
    logits = others @ (z / z.norm())
    return torch.autograd.grad(torch.logsumexp(logits, 0) - logits.max(), z)[0]


@pytest.mark.parametrize("kind", ["pairs", "queue", "nodes"])
def test_components_of_two_encoders_agree_with_loops(kind):
    g = seeded(1)
    z, c = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (4, 6))
    owner = torch.tensor([0, 5, 5, 2] if kind == "nodes" else [0, 1, 2, 3])
    contrast = {
        "pairs": lambda: Contrast.from_pairs(z, c),
        "queue": lambda: Contrast.from_queue(z, c[:4], c[4:]),
        "nodes": lambda: graphs.methods.from_nodes(z, c, owner),
    }[kind]()
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
    w = negatives.unremix()(contrast)
    is_distribution(w, contrast.admissible)
    torch.testing.assert_close(w.exp(), contrast.uniform_log_weights.exp())


Z = torch.randn(8, 2, generator=seeded(2))
EYE = torch.eye(3) > 0
LABELLED = Contrast.from_views(Z[:4], Z[4:], torch.tensor([0, 1, 0, 1]))
BARE = Contrast.from_similarity(torch.eye(3), EYE, ~EYE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: negatives.popularity(torch.tensor([1.0, 0.0])), "frequency must be positive"),
        (lambda: negatives.entropic_ot(cost="cubic"), "cost must be one of exponential, got 'cub"),
        (lambda: centred_tilt()(BARE), "centred_tilt needs embeddings"),
        (lambda: negatives.unremix()(LABELLED), "no labels"),
        (
            lambda: negatives.unremix(gradient="nt-xent")(Contrast.from_pairs(Z[:4], Z[4:])),
            "needs a contrast of two views",
        ),
        *(
            (partial(negatives.unremix, mixture=bad), "mixture")
            for bad in ((1, 2), (0, 0, 0), (-0.1, 0.6, 0.5), (1, math.nan, 1))
        ),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
