"""Derivatives of every order, by every route: backward twice, torch.func, torch.compile, the meta
device, a backward pass inside autocast."""

import dataclasses
import math
from functools import partial

import pytest
import torch
from torch.nn.functional import normalize

from hnlib import negatives, objectives
from hnlib.contrast import Contrast, ListedPositives, MaskedPositives

OBJECTIVES = {
    "info_nce": partial(objectives.info_nce, temperature=0.3),
    "pairs": partial(objectives.info_nce, temperature=0.3, average="pairs"),
    "debiased": partial(objectives.info_nce, temperature=0.5, tau_plus=0.1),
    "exact_debiased": partial(objectives.exact_debiased, temperature=0.5, beta=1.5, tau_plus=0.2),
    "basic": objectives.basic,
    "mean_variance": partial(objectives.mean_variance, temperature=0.4),
    "jensen_shannon": partial(objectives.jensen_shannon, tau_plus=0.1),
    "kl_budget": partial(objectives.kl_budget, order=3),
}
weigh = negatives.tilted(1.5, 0.5, on_empty="skip")
classes = torch.tensor([0, 1, 1, 0])  # every anchor has three positives


def views(seed=0, size=4, dimension=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(size, dimension, generator=g, dtype=dtype) for _ in range(2)]


def without_negatives(contrast, *rows):
    admissible = contrast.admissible.clone()
    admissible[list(rows)] = False
    return dataclasses.replace(contrast, admissible=admissible, never_empty=False, _facts={})


WAYS = {
    "two views": Contrast.from_views,
    "classes": lambda a, b: Contrast.from_views(a, b, classes),
    "skipped": lambda a, b: without_negatives(Contrast.from_views(a, b), 1, 4),
    "skipped, classes": lambda a, b: without_negatives(Contrast.from_views(a, b, classes), 1, 4),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "gradient"),
    [(name, g) for name in OBJECTIVES for g in (False, True) if g or name != "exact_debiased"],
)
def test_first_and_second_derivatives_are_those_of_finite_differences(name, gradient, way):
    """What is a constant by definition is that of the point: weights that are detached, and the
    temperatures of a budget. (The class mass of detached weights: see the formula below.)"""
    point = tuple(z.requires_grad_() for z in views(1))
    constant = weigh(WAYS[way](*point)).detach()
    temperature = objectives.budget_temperature(WAYS[way](*point), constant)

    def loss(z1, z2):
        contrast = WAYS[way](z1, z2)
        log_w = weigh(contrast) if gradient else constant
        if name == "kl_budget":
            each = objectives.info_nce(contrast, log_w, temperature, reduction="none")
            return (each * temperature).sum()
        return OBJECTIVES[name](contrast, log_w)

    assert torch.autograd.gradcheck(loss, point)
    assert torch.autograd.gradgradcheck(loss, point)


def plain(name, z, gradient, way):
    """Two objectives in torch's own words; with `way` "skipped" anchors 1 and 4 are left out."""
    t, beta, prior, (n, _) = 0.5, 1.5, 0.2, z.shape
    z = normalize(z, dim=1)
    s = z @ z.T
    same = torch.arange(n // 2).repeat(2) if way != "classes" else classes.repeat(2)
    same = same[:, None] == same
    positives = same & ~torch.eye(n, dtype=torch.bool)
    held = s if gradient else s.detach()
    w = torch.where(same, 0.0, (beta * held / t).exp())
    mass = prior * (beta * held / t).exp() / (w.sum(1) / (~same).sum(1))[:, None]
    w, e = w / w.sum(1, keepdim=True), (s / t).exp()
    if name == "info_nce":
        ratio = ((w * e).sum(1)[:, None] - prior * e) / (1 - prior)
        ratio = ratio.clamp_min(math.exp(-1 / t)) / e
    else:
        order = s.detach().masked_fill(same, -2).argsort(1, descending=True).argsort(1)
        kept = (1 + order - prior * (~same).double().sum(1)[:, None]).clamp(0, 1)
        above = torch.maximum((w * e).sum(1)[:, None] - mass * e, (w * kept * e).sum(1)[:, None])
        ratio = above / torch.maximum(1 - mass, (w * kept).sum(1)[:, None]) / e
    loss = torch.log1p((n - 2) * ratio)
    loss = torch.where(positives, loss, 0.0).sum(1) / positives.sum(1)
    kept = torch.tensor([way != "skipped" or i not in (1, 4) for i in range(n)])
    return torch.where(kept, loss, 0.0).sum() / kept.sum()


def ours(name, z, gradient, way):
    contrast = WAYS[way](*z.chunk(2))
    log_w = negatives.tilted(1.5, 0.5, gradient, on_empty="skip")(contrast)
    if name == "info_nce":
        return objectives.info_nce(contrast, log_w, 0.5, 0.2)
    return objectives.exact_debiased(contrast, log_w, 0.5, 1.5, 0.2)


@pytest.mark.parametrize("way", ["two views", "classes", "skipped"])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", ["info_nce", "exact_debiased"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_route_to_a_derivative_gives_that_of_the_formula(name, gradient, way, seed):
    z, v = torch.cat(views(seed)), torch.cat(views(seed + 10))
    mine, theirs = (partial(f, name, gradient=gradient, way=way) for f in (ours, plain))
    close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)
    for first, second in zip(*(torch.autograd.functional.hvp(f, z, v) for f in (mine, theirs))):
        close(first, second)
    mixed = second  # of the Hessian and v
    close(torch.func.grad(mine)(z), torch.func.grad(theirs)(z))
    close(torch.func.jvp(mine, (z,), (v,)), torch.func.jvp(theirs, (z,), (v,)))
    close(torch.func.hessian(mine)(z), torch.func.hessian(theirs)(z))
    many = torch.stack([z, v])
    close(torch.vmap(mine)(many), torch.stack([theirs(z), theirs(v)]))
    expected = torch.stack([torch.func.grad(theirs)(x) for x in many])
    close(torch.vmap(torch.func.grad(mine))(many), expected)
    close(torch.func.grad(lambda x: torch.vmap(mine)(x).sum())(many), expected)
    close(torch.func.grad(lambda x: torch.func.jvp(mine, (x,), (v,))[1])(z), mixed)


def test_third_derivatives_too():
    z, v = torch.cat(views(2)), torch.cat(views(12))
    found, expected = (
        torch.autograd.functional.vhp(
            lambda x, f=f: torch.autograd.functional.vhp(
                partial(f, "info_nce", gradient=True, way="classes"), x, v, create_graph=True
            )[1].sum(),
            z,
            v,
        )[1]
        for f in (ours, plain)
    )
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_what_torch_func_has_seen_serves_an_ordinary_step_afterwards():
    """Masks kept by a contrast, or by a size of batch, are no tensors of a transformation."""
    z1, z2 = views(3, size=9)  # a size no other test uses: its masks are made here
    fixed = Contrast.from_views(z1, z2, torch.arange(9) % 3)

    def loss(similarity):
        return objectives.info_nce(fixed, weigh(dataclasses.replace(fixed, similarity=similarity)))

    torch.func.grad(lambda z: ours("info_nce", z, True, "two views"))(torch.cat([z1, z2]))
    torch.func.grad(loss)(fixed.similarity)
    assert Contrast.from_views(z1, z2).uniform_log_weights.exp().sum() == pytest.approx(18)
    z1.requires_grad_()
    Contrast.from_views(z1, z2, torch.arange(9) % 3)
    objectives.info_nce(fixed, weigh(fixed))
    objectives.info_nce(*(lambda c: (c, weigh(c)))(Contrast.from_views(z1, z2))).backward()
    assert z1.grad.isfinite().all()


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_backward_pass_inside_autocast_is_as_exact_as_outside(name, labelled):
    y = torch.arange(12) % 3 if labelled else None

    def gradients(inside):
        z1, z2 = (z.requires_grad_() for z in views(4, 12, 8, torch.float32))
        c = Contrast.from_views(z1, z2, y)
        loss = OBJECTIVES[name](c, weigh(c))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            first = torch.autograd.grad(loss, (z1, z2), create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in first), (z1, z2))
        return first + second

    for a, b in zip(gradients(True), gradients(False)):
        assert torch.equal(a, b)


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
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_accelerator_never_waits(name, space):
    """On the meta device no value can be asked for."""
    z = torch.empty(12, 5, device="meta", requires_grad=True)
    y = torch.empty(12, dtype=torch.long, device="meta")
    c = SPACES[space](z, y)
    log_w = torch.where(c.admissible, c.similarity, -torch.inf).log_softmax(1)
    OBJECTIVES[name](c, log_w).backward()
    objectives.guarded(c, log_w)
    assert z.grad.shape == (12, 5)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_positives_as_a_list_and_as_a_mask_are_equal(name, space):
    z, y = torch.cat(views(5, 6, 5)), torch.arange(12) % 3
    results = []
    for masked in (False, True):
        x = z.clone().requires_grad_()
        c = SPACES[space](x, y)
        assert isinstance(c.pairs, ListedPositives)
        if masked:
            c = dataclasses.replace(c, _facts={"pairs": MaskedPositives(c.positives)})
        log_w = weigh(c)
        loss = OBJECTIVES[name](c, log_w)
        acts = objectives.guarded(c, log_w, 0.5, 1.5, 0.2)
        results.append((loss, *torch.autograd.grad(loss, x), acts))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "labelled"),
    [("pairs", True), ("debiased", False), ("exact_debiased", True), ("jensen_shannon", False)],
)  # the other objectives: with the methods
def test_torch_compile_traces_the_whole_loss(name, labelled):
    y = torch.arange(6) % 3 if labelled else None

    def loss(z1, z2):
        c = Contrast.from_views(z1, z2, y)
        masked = torch.where(c.admissible, 3 * c.similarity, -torch.inf)
        return OBJECTIVES[name](c, masked.log_softmax(1))

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for f in (loss, compiled):
        z1, z2 = (z.requires_grad_() for z in views(6, 6))
        value = f(z1, z2)
        value.backward()
        results.append((value, z1.grad, z2.grad))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
