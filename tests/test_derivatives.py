"""First and second derivatives of the objectives, and the path that an accelerator takes."""

import dataclasses
import functools
import math
from functools import partial

import drawn
import pytest
import torch

from hnlib import contrast as contrasts
from hnlib import negatives, objectives
from hnlib.contrast import Contrast

OBJECTIVES = {
    "info_nce": partial(objectives.info_nce, temperature=0.3),
    "pairs": partial(objectives.info_nce, temperature=0.3, average="pairs"),
    "debiased": partial(objectives.info_nce, temperature=0.5, tau_plus=0.1),
    "exact_debiased": partial(objectives.exact_debiased, temperature=0.5, beta=1.5, tau_plus=0.2),
    "decoupled": partial(objectives.info_nce, temperature=0.3, loudness=0.0),
    "sigmoid": partial(objectives.sigmoid, temperature=0.3, bias=-0.7),
    "basic": objectives.basic,
    "mean_variance": partial(objectives.mean_variance, temperature=0.4),
    "jensen_shannon": partial(objectives.jensen_shannon, tau_plus=0.1),
    "kl_budget": partial(objectives.kl_budget, order=3),
}
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


@pytest.mark.parametrize("way", ["two views", "skipped, classes"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_derivatives_are_those_of_finite_differences(name, way):
    """The temperatures of a budget are constants by definition: those of the point."""
    point = tuple(z.requires_grad_() for z in views(1))
    contrast = WAYS[way](*point)
    temperature = objectives.budget_temperature(contrast, weigh(contrast).detach())

    def loss(z1, z2):
        contrast = WAYS[way](z1, z2)
        if name == "kl_budget":
            each = objectives.info_nce(contrast, weigh(contrast), temperature, reduction="none")
            return (each * temperature).sum()
        return OBJECTIVES[name](contrast, weigh(contrast))

    assert torch.autograd.gradcheck(loss, point)
    if name in ("info_nce", "exact_debiased", "mean_variance"):
        assert torch.autograd.gradgradcheck(loss, point)


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0, 3.0])
def test_loudness_is_the_power_of_one_minus_the_positive_s_share(power):
    z1, z2 = (z.requires_grad_() for z in views(2))
    c = Contrast.from_views(z1, z2)
    log_w = weigh(c).detach()
    each = objectives.info_nce(c, log_w, 0.3, loudness=power, reduction="none").sum()
    pull = 0.3 * torch.autograd.grad(each, c.similarity, retain_graph=True)[0]
    logits = torch.where(c.admissible, log_w + math.log(c.scale), 0.0) + c.similarity / 0.3
    share = (logits.masked_fill(~(c.admissible | c.positives), -math.inf)).softmax(1)
    expected = (share - c.positives.double()) * (1 - share[c.positives][:, None]) ** (power - 1)
    torch.testing.assert_close(pull, expected)
    assert (pull - expected * (1 - share[c.positives][:, None]) ** 0.1).abs().max() > 1e-3


def same(y):
    return y[:, None] == y


SPACES = {
    "two views": lambda z, y: Contrast.from_views(z[:6], z[6:]),
    "classes": lambda z, y: Contrast.from_views(z[:6], z[6:], y[:6]),
    "classes, own view": lambda z, y: Contrast.from_views(z[:6], z[6:], y[:6], positives="view"),
    "queue": lambda z, y: Contrast.from_queue(z[:4], z[4:8], z[8:]),
    "queue, classes": lambda z, y: Contrast.from_queue(z[:4], z[4:8], z[8:], y[:4], y[4:8]),
    "nodes": lambda z, y: Contrast.from_nodes(z, z[:3], y),
    "nodes, classes": lambda z, y: Contrast.from_nodes(z, z[:3], y, y[:3] % 2),
    "similarities": lambda z, y: Contrast.from_similarity(z @ z.T, same(y), ~same(y)),
}


@pytest.mark.parametrize("space", SPACES)
def test_an_accelerator_s_positives_give_the_same_losses(space, monkeypatch):
    """There all candidates are gathered, and a mask says which are positives."""
    z, y = torch.cat(views(5, size=6, dimension=5)), torch.arange(12) % 3
    results = []
    for waits in (True, False):
        x = z.clone().requires_grad_()
        c = SPACES[space](x, y)
        if not waits:
            monkeypatch.setattr(contrasts, "on_cpu", lambda x: False)
            c = dataclasses.replace(c, masks=dataclasses.replace(c.masks, positive_index=None))
            assert c.masks.columns[0].shape == c.similarity.shape
        log_w = weigh(c)
        for objective in OBJECTIVES.values():
            loss = objective(c, log_w)
            results.append((loss, *torch.autograd.grad(loss, x, retain_graph=True)))
        results.append((objectives.guarded(c, log_w, 0.5, 1.5, 0.2),))
    half = len(results) // 2
    for a, b in zip(results[:half], results[half:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
