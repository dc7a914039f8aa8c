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

from hnlib import negatives
from hnlib.contrast import Contrast
from hnlib.transport import ConvergenceError, ConvergenceWarning

cases = settings(max_examples=10)


# name -> (factory, reference, options of both); OT is compared where it has a unique fast answer
ONE_SIDED = {
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
}
long = dict(max_iterations=20_000)
TRANSPORT = {
    "ot": (partial(negatives.entropic_ot, **long), reference.transport_weights, dict(epsilon=0.5)),
    "semi-relaxed": (
        partial(negatives.semi_relaxed_ot, **long),
        reference.transport_weights,
        dict(epsilon=0.4, relaxation=0.7),
    ),
}
ALL = {**ONE_SIDED, **TRANSPORT}


def is_distribution(log_w, admissible):
    some = log_w.amax(1) > -torch.inf
    assert log_w.shape == admissible.shape
    assert not log_w.isnan().any() and (log_w <= 1e-6).all()
    assert (log_w[~admissible] == -torch.inf).all()
    assert torch.logsumexp(log_w[some], 1).abs().max() < (
        1e-12 if log_w.dtype == torch.float64 else 2e-5
    )
    return some


@pytest.mark.parametrize("name", ALL)
@cases
@given(seed=SEEDS)
def test_a_finite_space_against_the_reference(name, seed):
    factory, expected, options = ALL[name]
    c = space(seed)
    if name in TRANSPORT:  # a random mask may admit no coupling: forbid nothing but one cell
        mask = torch.ones_like(c.admissible)
        mask[2, 3] = False
        c = Contrast.from_similarity(c.similarity, c.positives, mask)
    log_w = factory(**options)(c)
    is_distribution(log_w, c.admissible)
    expected = expected(c.similarity.numpy(), c.admissible.numpy(), **options)
    assert np.abs(log_w.exp().numpy() - expected).max() < 1e-9


PER_ANCHOR = {
    "tilted": ("beta", "temperature"),
    "thresholded": ("temperature",),
    "centred_tilt": ("epsilon",),
    "gaussian": ("mu", "sigma"),
}


@pytest.mark.parametrize("name", PER_ANCHOR)
def test_one_value_per_anchor_acts_on_that_anchor_s_row(name):
    c, factory = Contrast.from_views(*batch(3)), getattr(negatives, name)
    values = torch.linspace(0.2, 1.1, 10, dtype=torch.float64)
    for option in PER_ANCHOR[name]:
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
    with pytest.raises(ValueError, match="cost must be one of exponential, got 'cubic'"):
        negatives.entropic_ot(cost="cubic")


GRADIENT = {
    "tilted": lambda on: negatives.tilted(1.5, 0.4, weights_gradient=on),
    "gaussian": lambda on: negatives.gaussian(0.3, 0.5, weights_gradient=on),
    "centred": lambda on: negatives.centred_tilt(0.5, weights_gradient=on),
}


@pytest.mark.parametrize("name", GRADIENT)
def test_gradients_through_the_weights(name):
    """By default only the tilt has one."""
    z1, z2 = (z.requires_grad_() for z in batch(1, size=4))

    def weights(on):
        return lambda a, b: GRADIENT[name](on)(Contrast.from_views(a, b)).exp()

    assert torch.autograd.gradcheck(weights(True), (z1, z2))
    assert not weights(False)(z1, z2).requires_grad
    assert torch.equal(weights(True)(z1, z2), weights(False)(z1, z2))
    c = Contrast.from_views(z1, z2)
    assert negatives.tilted()(c).requires_grad
    cost = negatives.entropic_ot(cost=lambda c: 1 - c.similarity)
    others = negatives.uniform(), negatives.thresholded(1e-3), negatives.gaussian(), cost
    for weigh in (*others, negatives.centred_tilt(), negatives.chi2_ball()):
        assert not weigh(c).requires_grad


SKIPPING = {
    "uniform": negatives.uniform,
    "tilted": negatives.tilted,
    "gaussian": negatives.gaussian,
    "thresholded": lambda on_empty: negatives.thresholded(1e-3, on_empty=on_empty),
    "centred": negatives.centred_tilt,
    "chi2": negatives.chi2_ball,
}


@pytest.mark.parametrize("name", SKIPPING)
def test_an_anchor_without_negatives_is_named_or_skipped(name):
    z1, z2 = (z.requires_grad_() for z in batch(8, size=3))
    alone = Contrast.from_views(z1, z2, torch.tensor([1, 1, 1]))
    with pytest.raises(ValueError, match=r'anchor 0 has no .*negative.*on_empty="skip"'):
        SKIPPING[name](on_empty="raise")(alone)
    assert (SKIPPING[name](on_empty="skip")(alone) == -torch.inf).all()

    c = Contrast.from_views(z1, z2)
    c = c.without((torch.arange(6) == 4)[:, None].expand(6, 6))
    with pytest.raises(ValueError, match="anchor 4 "):
        SKIPPING[name](on_empty="raise")(c)
    log_w = SKIPPING[name](on_empty="skip")(c)
    kept = is_distribution(log_w, c.admissible)
    assert kept.tolist() == [True] * 4 + [False, True]
    if log_w.requires_grad:
        log_w[:, :2].exp().sum().backward()
        assert z1.grad.isfinite().all()


def test_the_threshold_names_the_anchor_it_empties():
    c = Contrast.from_views(*batch(9))
    hardest = torch.where(c.admissible, c.similarity, -2.0).amax(1)
    row, level = int(hardest.argmin()), float(hardest.min()) + 1e-6
    for options in (dict(tau=math.exp(level / 0.5)), dict(level=level)):
        with pytest.raises(ValueError, match=rf"anchor {row} has no negative above the threshold"):
            negatives.thresholded(**options)(c)
        skipped = negatives.thresholded(**options, on_empty="skip")(c)
        assert (skipped[row] == -torch.inf).all()
        assert is_distribution(skipped, c.admissible).sum() == 9


def test_transport_names_the_anchor_without_negatives_and_what_it_cannot_couple():
    z1, z2 = batch(10, size=3)
    with pytest.raises(ValueError, match="row 0 of the mask allows no cell"):
        negatives.entropic_ot()(Contrast.from_views(z1, z2, torch.tensor([1, 1, 1])))
    # two images of class 0 against one of class 1: four anchors share two candidates
    crowded = Contrast.from_views(z1, z2, torch.tensor([0, 0, 1]))
    with pytest.raises(ValueError, match=r"no coupling .*at most 0\.6667 of the mass"):
        negatives.entropic_ot()(crowded)
    soft = negatives.semi_relaxed_ot(relaxation=0.5)(crowded)
    assert torch.logsumexp(soft, 1).abs().max() < 1e-12


def test_missed_tolerances_are_an_error_or_a_warning():
    c = Contrast.from_views(*batch(11))
    with pytest.raises(ConvergenceError, match="marginal error"):
        negatives.entropic_ot(0.05, max_iterations=1)(c)
    lenient = negatives.entropic_ot(0.05, max_iterations=1, on_failure="warn")
    with pytest.warns(ConvergenceWarning, match="marginal error"):
        is_distribution(lenient(c), c.admissible)
    with pytest.warns(ConvergenceWarning):
        assert not lenient.coupling(c).converged
    assert negatives.entropic_ot(0.5).coupling(c).converged


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda: negatives.tilted(temperature=torch.tensor([0.5, -1.0])), "temperature"),
        (lambda: negatives.uniform(on_empty="drop"), "on_empty"),
        (lambda: negatives.unremix(mixture=("a", 1, 1)), "mixture"),
        (lambda: negatives.centred_tilt()(space(0)), "centred_tilt needs embeddings"),
    ],
)
def test_bad_options_are_named(call, option):
    with pytest.raises(ValueError, match=option):
        call()


def test_popularity_divides_by_the_frequency_and_counts_copies_once():
    c = space(3)
    q = torch.tensor([3.0, 1, 2, 5, 1, 4])
    expected = reference.weigh(lambda i, j: 1 / q[j].item(), c.similarity, c.admissible)
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
