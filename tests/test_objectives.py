"""Objectives: slow references, finite differences, corners of the clamp, and skipped anchors."""

import functools
import math
from functools import partial

import drawn
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
    "supcon": partial(objectives.supcon, temperature=0.3),
    "basic": objectives.basic,
    "mean_variance": partial(objectives.mean_variance, temperature=0.4),
    "jensen_shannon": partial(graphs.methods.jensen_shannon, tau_plus=0.1),
}
EACH = {name: objective for name, objective in OBJECTIVES.items() if name != "pairs"}
weigh = negatives.tilted(1.5, 0.5, on_empty="skip")
views = functools.partial(drawn.views, size=4)


@pytest.mark.parametrize("skipped", [[], [1, 4]])
@pytest.mark.parametrize("name", [x for x in OBJECTIVES if x != "soft_targets"])
def test_derivatives_are_those_of_finite_differences(name, skipped):
    """The target of soft targets is held fixed, so its loss has another derivative."""
    point = tuple(z.requires_grad_() for z in views(1))
    labels = torch.tensor([0, 1, 1, 0]) if skipped else None  # every anchor has three positives
    empty = torch.zeros(8, 8, dtype=torch.bool)
    empty[skipped] = True

    def loss(z1, z2):
        contrast = Contrast.from_views(z1, z2, labels).without(empty)
        return OBJECTIVES[name](contrast, weigh(contrast))

    assert torch.autograd.gradcheck(loss, point)
    if name in ("info_nce", "mean_variance"):
        assert torch.autograd.gradgradcheck(loss, point)


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


@pytest.mark.parametrize("shift", [1e-3, -1e-3])
def test_the_clamp_on_both_sides(shift):
    """Above the floor e^{-1/t} the difference rules, below it the floor."""
    prior, t = 0.1, 0.05
    edge = t * math.log((1 - prior) * math.exp(-1 / t) + prior * math.exp(0.5 / t))
    s = torch.tensor([[0.5, edge + shift]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False]])

    def loss(s):
        c = Contrast.from_similarity(s, mask, ~mask)
        return objectives.info_nce(c, c.uniform_log_weights, t, prior, scale=10)

    arrays = s.detach().numpy(), mask.numpy(), 1.0 - mask.numpy()
    expected = reference.info_nce(*arrays, t, prior, 10)
    assert loss(s).item() == pytest.approx(float(expected[0]), rel=1e-9, abs=0)
    (gradient,) = torch.autograd.grad(loss(s), s)
    assert gradient[0, 0] < 0 and (gradient[0, 1] > 0 if shift > 0 else gradient[0, 1] == 0)
    assert torch.autograd.gradcheck(loss, (s,), eps=1e-7)


@pytest.mark.parametrize("prior", [0.5, 1 - 1e-12, 1e-30])
def test_extreme_priors_are_finite_at_a_zero_difference(prior):
    s = torch.full((1, 2), 0.25, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False]])
    c = Contrast.from_similarity(s, mask, ~mask)
    loss = objectives.info_nce(c, c.uniform_log_weights, 0.01, prior)
    assert loss.isfinite() and torch.autograd.grad(loss, s)[0].isfinite().all()


@pytest.mark.parametrize("name", EACH)
def test_skipped_anchors_are_left_out_of_the_mean_and_zero_in_the_vector(name):
    z1, z2 = (z.requires_grad_() for z in drawn.views(6))
    c = Contrast.from_views(z1, z2, torch.tensor([0, 1, 1, 2, 0]), positives="view")
    hardest = torch.where(c.admissible, c.similarity, -2.0).amax(1)
    some = hardest >= hardest.median()  # the others have no negative above
    log_w = negatives.thresholded(level=hardest.median().item(), on_empty="skip")(c)
    masks = Masks(c.positives[some], c.admissible[some], c.similarity.dtype)
    expected = EACH[name](Contrast(c.similarity[some], masks, c.scale), log_w[some])
    torch.testing.assert_close(EACH[name](c, log_w), expected, rtol=0, atol=1e-12)
    each = EACH[name](c, log_w, reduction="none")
    assert (each[~some] == 0).all() and (each[some] != 0).all()
    none_left = c.without(torch.ones_like(c.admissible))
    loss = EACH[name](none_left, weigh(none_left))
    assert loss.item() == 0 and (torch.autograd.grad(loss, z1)[0] == 0).all()


def test_pairs_of_skipped_anchors_do_not_count_in_a_mean_over_pairs():
    """Two anchors of a class of three have two positives each, and the third is left out."""
    views, labels = drawn.views(6), torch.tensor([0, 0, 1, 1, 0])
    c = Contrast.from_views(*views, labels, positives="class")
    out = torch.zeros_like(c.admissible)
    out[[0, 3]] = True
    c = c.without(out)
    log_w = weigh(c)
    average = partial(objectives.info_nce, c, log_w, 0.5)
    each, counts = average(reduction="none"), c.positives.sum(1)
    kept = c.admissible.any(1)
    assert not kept.all() and counts[kept].unique().numel() > 1
    expected = (each * counts)[kept].sum() / counts[kept].sum()
    torch.testing.assert_close(average(average="pairs"), expected, rtol=0, atol=1e-12)
    assert abs(average(average="pairs") - average()) > 1e-3


@pytest.mark.parametrize(
    ("objective", "option"),
    [("info_nce", "temperature"), ("info_nce", "tau_plus"), ("sigmoid", "bias")],
)
def test_an_option_may_be_learned_and_have_one_value_for_each_anchor(objective, option):
    c = space(10, n=6)  # as many anchors as candidates: a row would fit too
    values = torch.linspace(0.2, 0.9, 6, dtype=torch.float64)
    each = partial(getattr(objectives, objective), c, c.uniform_log_weights, reduction="none")
    alone = [each(**{option: value})[i] for i, value in enumerate(values.tolist())]
    torch.testing.assert_close(each(**{option: values}), torch.stack(alone), rtol=1e-12, atol=0)
    for learned in (values, torch.tensor(0.4, dtype=torch.float64)):
        assert torch.autograd.gradcheck(lambda x: each(**{option: x}), learned.requires_grad_())
