"""Objectives: slow references, finite differences, corners of the clamp, and skipped anchors."""

import functools
import math
from functools import partial

import drawn
import numpy as np
import pytest
import reference
import torch
from drawn import space

from hnlib import graphs, negatives, objectives
from hnlib.contrast import Contrast, Masks

OBJECTIVES = {
    "info_nce": partial(objectives.info_nce, temperature=0.3),
    "pairs": partial(objectives.info_nce, temperature=0.3, average="pairs"),
    "debiased": partial(objectives.info_nce, temperature=0.5, tau_plus=0.1),
    "decoupled": partial(objectives.info_nce, temperature=0.3, loudness=0.0),
    "sigmoid": partial(objectives.sigmoid, temperature=0.3, bias=-0.7),
    "pairwise": partial(objectives.pairwise, temperature=0.3),
    "soft_targets": partial(objectives.soft_targets, temperature=0.3, share=0.6),
    "basic": objectives.basic,
    "mean_variance": partial(objectives.mean_variance, temperature=0.4),
    "jensen_shannon": partial(graphs.methods.jensen_shannon, tau_plus=0.1),
}
EACH = {name: objective for name, objective in OBJECTIVES.items() if name != "pairs"}
weigh = negatives.tilted(1.5, 0.5, on_empty="skip")
classes = torch.tensor([0, 1, 1, 0])  # every anchor has three positives
views = functools.partial(drawn.views, size=4)


def without_negatives(contrast, *rows):
    empty = torch.zeros_like(contrast.admissible)
    empty[list(rows)] = True
    return contrast.without(empty)


WAYS = {
    "two views": Contrast.from_views,
    "skipped, classes": lambda a, b: without_negatives(Contrast.from_views(a, b, classes), 1, 4),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [x for x in OBJECTIVES if x != "soft_targets"])
def test_derivatives_are_those_of_finite_differences(name, way):
    """The target of soft targets is held fixed, so its loss has another derivative."""
    point = tuple(z.requires_grad_() for z in views(1))

    def loss(z1, z2):
        contrast = WAYS[way](z1, z2)
        return OBJECTIVES[name](contrast, weigh(contrast))

    assert torch.autograd.gradcheck(loss, point)
    if name in ("info_nce", "mean_variance"):
        assert torch.autograd.gradgradcheck(loss, point)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_the_temperature_may_be_learned(shape):
    c = space(1)
    t = torch.full(shape, 0.4, dtype=torch.float64, requires_grad=True)
    loss = partial(objectives.info_nce, c, negatives.uniform()(c), tau_plus=0.1)
    assert torch.autograd.gradcheck(lambda t: loss(temperature=t), t)
    loss, b = partial(objectives.sigmoid, c, negatives.uniform()(c)), torch.full_like(t, -2.0)
    assert torch.autograd.gradcheck(
        lambda t, b: loss(temperature=t, bias=b), (t, b.requires_grad_())
    )


@pytest.mark.parametrize("loudness", [0.0, 1.0, 1.5, 3.0, "relative", "mean", "shuffled"])
def test_loudness_is_a_factor_of_the_gradient_of_the_log_ratio(loudness):
    z1, z2 = (z.requires_grad_() for z in drawn.views(3, 9, 6))
    contrast, t = Contrast.from_views(z1, z2), 0.1
    loss = partial(objectives.info_nce, contrast, contrast.uniform_log_weights, t)
    ratio = loss(loudness=0, reduction="none")
    c = ratio.detach().sigmoid()
    names = {"relative": c / c.mean(), "mean": c.mean(), "shuffled": torch.cat([c[-1:], c[:-1]])}
    factor = names[loudness] if isinstance(loudness, str) else c**loudness
    gradient = partial(torch.autograd.grad, inputs=z1, retain_graph=True)
    (expected,) = gradient((factor * ratio).mean())
    (found,) = gradient(loss(loudness=loudness))
    torch.testing.assert_close(found, expected)
    (near,) = gradient((factor * c**0.1 * ratio).mean())
    assert not torch.allclose(found, near, rtol=0.01)


def one_anchor(negative, positive=0.5):
    s = torch.tensor([[positive, negative]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False]])
    return s, Contrast.from_similarity(s, mask, ~mask)


@pytest.mark.parametrize("scale", [0.5, 30.0])
def test_scale_and_average_are_those_of_the_reference(scale):
    c = space(3)
    log_w, options = negatives.tilted()(c), dict(tau_plus=0.1, scale=scale)
    arrays = c.similarity.numpy(), c.positives.numpy(), log_w.exp().numpy()
    for average in ("anchors", "pairs"):
        expected = np.mean(reference.info_nce(*arrays, **options, average=average))
        loss = float(objectives.info_nce(c, log_w, **options, average=average))
        assert loss == pytest.approx(expected, rel=1e-9)
        near = reference.info_nce(*arrays, **options | {"scale": 1.001 * scale}, average=average)
        assert loss != pytest.approx(np.mean(near), rel=1e-9)


@pytest.mark.parametrize("t", [0.5, 0.05])
@pytest.mark.parametrize("shift", [1e-3, -1e-3])
def test_the_clamp_on_both_sides(t, shift):
    """Above the floor e^{-1/t} the difference rules, below it the floor."""
    prior = 0.1
    edge = t * math.log((1 - prior) * math.exp(-1 / t) + prior * math.exp(0.5 / t))
    s, c = one_anchor(edge + shift)

    def loss(x):
        same = Contrast.from_similarity(x, c.positives, c.admissible)
        return objectives.info_nce(same, c.uniform_log_weights, t, prior, scale=10)

    arrays = s.detach().numpy(), c.positives.numpy(), 1.0 * c.admissible.numpy()
    expected, near = (reference.info_nce(*arrays, t, prior, scale) for scale in (10, 10.01))
    assert loss(s).item() == pytest.approx(float(expected[0]), rel=1e-9, abs=0)
    assert loss(s).item() != pytest.approx(float(near[0]), rel=1e-9, abs=0)
    (gradient,) = torch.autograd.grad(loss(s), s)
    assert gradient[0, 0] < 0 and (gradient[0, 1] > 0 if shift > 0 else gradient[0, 1] == 0)
    assert torch.autograd.gradcheck(loss, (s,), eps=1e-7)


@pytest.mark.parametrize("prior", [0.5, 1 - 1e-12, 1e-30])
def test_extreme_priors_are_finite_at_a_zero_difference(prior):
    s, c = one_anchor(0.25, 0.25)
    loss = objectives.info_nce(c, negatives.uniform()(c), 0.01, prior)
    (gradient,) = torch.autograd.grad(loss, s)
    assert loss.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize("name", EACH)
def test_skipped_anchors_are_left_out_of_the_mean_and_zero_in_the_vector(name):
    labels = torch.tensor([0, 1, 1, 2, 0])
    z1, z2 = (z.requires_grad_() for z in drawn.views(6))
    c = Contrast.from_views(z1, z2, labels, positives="view")
    hardest = torch.where(c.admissible, c.similarity, -2.0).amax(1)
    level = hardest.median().item()  # about half have no negative above
    log_w = negatives.thresholded(level=level, on_empty="skip")(c)
    some = log_w.amax(1) > -torch.inf
    assert 0 < some.sum() < 10
    masks = Masks(c.positives[some], c.admissible[some], c.similarity.dtype)
    expected = EACH[name](Contrast(c.similarity[some], masks, c.scale), log_w[some])
    loss = EACH[name](c, log_w)
    assert abs((loss - expected).item()) < 1e-12
    a, b = (torch.autograd.grad(x, z1, retain_graph=True)[0] for x in (loss, expected))
    assert torch.allclose(a, b, atol=1e-12)
    each = EACH[name](c, log_w, reduction="none")
    assert (each[~some] == 0).all() and (each[some] != 0).all()
    none_left = c.without(torch.ones_like(c.admissible))
    loss = EACH[name](none_left, weigh(none_left))
    assert loss.item() == 0 and (torch.autograd.grad(loss, z1)[0] == 0).all()


@pytest.mark.parametrize(("objective", "option"), [("info_nce", "tau_plus"), ("sigmoid", "bias")])
def test_a_vector_of_an_option_has_one_value_for_each_anchor(objective, option):
    c = space(10, n=6)  # as many anchors as candidates: a row would fit too
    log_w, values = negatives.uniform()(c), torch.linspace(0.1, 0.9, 6, dtype=torch.float64)
    loss = partial(getattr(objectives, objective), c, log_w, reduction="none")
    alone = [loss(**{option: value})[i] for i, value in enumerate(values.tolist())]
    torch.testing.assert_close(loss(**{option: values}), torch.stack(alone), rtol=1e-12, atol=0)
