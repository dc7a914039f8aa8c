"""Losses against slow references, gradients against finite differences, the corners of the
debiasing clamp."""

import math
from functools import partial

import numpy as np
import pytest
import reference
import torch
from drawn import SEEDS, seeded, space
from drawn import views as batch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_derivatives import OBJECTIVES

from hnlib import negatives, objectives
from hnlib.contrast import Contrast, Masks

cases = settings(max_examples=12)


def arrays(c, log_w):
    return c.similarity.numpy(), c.positives.numpy(), log_w.exp().numpy()


@cases
@given(
    seed=SEEDS,
    temperature=st.sampled_from([0.05, 0.2, 0.5, 2.0]),
    scale=st.sampled_from([0.5, 1.0, 30.0]),
    tau_plus=st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.95]),
    beta=st.sampled_from([0.0, 1.0, 4.0]),
)
def test_info_nce_is_the_reference(seed, temperature, scale, tau_plus, beta):
    c = space(seed)
    log_w = negatives.tilted(beta)(c)
    options = dict(temperature=temperature, tau_plus=tau_plus, scale=scale)
    masks = arrays(c, log_w)
    expected = reference.info_nce(*masks, **options)
    pairs = reference.info_nce(*masks, **options, average="pairs")
    loss = partial(objectives.info_nce, c, log_w, **options)
    assert loss(reduction="none").tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert float(loss()) == pytest.approx(np.mean(expected), rel=1e-9)
    assert float(loss(average="pairs")) == pytest.approx(pairs, rel=1e-9)


@cases
@given(seed=SEEDS, tau=st.sampled_from([0.1, 0.5, 2.0]))
def test_basic_and_mean_variance_are_the_reference(seed, tau):
    c = space(seed)
    log_w = negatives.tilted(1.3)(c)
    S, P, W = arrays(c, log_w)
    variance = partial(objectives.mean_variance, temperature=tau)
    for objective, theirs in (
        (objectives.basic, reference.basic(S, P, W)),
        (variance, reference.mean_variance(S, P, W, tau)),
    ):
        ours = partial(objective, c, log_w)
        assert ours(reduction="none").tolist() == pytest.approx(theirs, abs=1e-12)
        assert float(ours()) == pytest.approx(np.mean(theirs), abs=1e-12)


def test_the_temperature_may_be_learned():
    c = space(1)
    log_w = negatives.uniform()(c)
    for t in (torch.tensor(0.4).double(), torch.linspace(0.2, 0.8, 4).double()):
        for prior in (0.0, 0.1):
            loss = partial(objectives.info_nce, c, log_w, tau_plus=prior)
            assert torch.autograd.gradcheck(lambda t, f=loss: f(temperature=t), t.requires_grad_())


ALL = {name: loss for name, loss in OBJECTIVES.items() if name not in ("pairs", "kl_budget")}
ALL["kl_budget"] = objectives.kl_budget


def one_anchor(negative, positive=0.5):
    s = torch.tensor([[positive, negative]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False]])
    return s, Contrast.from_similarity(s, mask, ~mask)


@pytest.mark.parametrize("t", [0.5, 0.05])
def test_the_clamp_on_both_sides(t):
    """Above the floor e^{-1/t} the difference rules, below it (and where the difference is
    negative) the floor."""
    prior, positive = 0.1, math.exp(0.5 / t)
    floor = math.exp(-1 / t)
    # the similarity at which (e^{s/t} - prior e^{s+/t}) / (1 - prior) meets the floor
    edge = t * math.log(floor * (1 - prior) + prior * positive)
    for shift, clamped in ((1e-3, False), (0.3, False), (-1e-3, True), (-0.9, True)):
        s, c = one_anchor(edge + shift)
        log_w = negatives.uniform()(c)

        def loss(x, c=c, log_w=log_w):
            same = Contrast.from_similarity(x, c.positives, c.admissible)
            return objectives.info_nce(same, log_w, t, prior, scale=10)

        difference = (math.exp((edge + shift) / t) - prior * positive) / (1 - prior)
        value = math.log1p(10 * (floor if clamped else difference) / positive)
        assert loss(s).item() == pytest.approx(value, rel=1e-9)
        (gradient,) = torch.autograd.grad(loss(s), s)
        assert gradient.isfinite().all() and gradient[0, 0] < 0
        assert (gradient[0, 1] == 0) if clamped else (gradient[0, 1] > 0)
        assert torch.autograd.gradcheck(loss, (s,), eps=1e-7)


# --- exact debiasing


def exact(c, temperature=0.5, beta=1.0, tau_plus=0.1, gradient=True, **options):
    log_w = negatives.tilted(beta, temperature, gradient)(c)
    return objectives.exact_debiased(c, log_w, temperature, beta, tau_plus, **options)


def views(seed, noise, size=6, dtype=torch.float64):
    """Two views `noise` apart: the closer they are, the more the guard has to do."""
    z1, z2 = batch(seed, size)
    return z1.to(dtype), (z1 + noise * z2).to(dtype)


strengths = dict(seed=SEEDS, noise=st.sampled_from([0.02, 0.3, 3.0]))


@cases
@given(
    seed=SEEDS,
    temperature=st.sampled_from([0.1, 0.5, 2.0]),
    beta=st.sampled_from([0.0, 0.5, 1.0, 4.0]),
    tau_plus=st.sampled_from([0.0, 0.03, 0.1, 0.5, 0.95]),
    scale=st.sampled_from([1.0, 30.0]),
)
def test_exact_debiasing_is_the_reference(seed, temperature, beta, tau_plus, scale):
    c = space(seed)
    masks = (x.numpy() for x in (c.similarity, c.positives, c.admissible))
    options = (temperature, beta, tau_plus)
    expected, parts = reference.exact_debiased(*masks, *options, scale)
    each = exact(c, *options, scale=scale, reduction="none")
    assert each.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert float(exact(c, *options, scale=scale)) == pytest.approx(np.mean(expected), rel=1e-9)
    acts = objectives.guarded(c, negatives.tilted(beta, temperature)(c), *options)
    assert acts.dtype == torch.bool and acts.shape == (4,)
    for i in range(4):
        own = [part[1:] for part in parts if part[0] == i]
        assert acts[i] <= any(low > x or least > y for x, low, y, least in own)
        # guarded may pass over what is rounding
        assert acts[i] >= any(
            low > x + 3e-5 * abs(low) or least > y + 3e-5 * least for x, low, y, least in own
        )


@cases
@given(
    **strengths,
    beta=st.sampled_from([0.0, 1.0, 10.0, 100.0, 1000.0]),
    temperature=st.sampled_from([0.01, 0.1, 0.5]),
    tau_plus=st.sampled_from([0.0, 1e-30, 1e-3, 0.1, 0.5, 0.99, 1 - 1e-9]),
    gradient=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    labelled=st.booleans(),
)
def test_exact_debiasing_is_finite_everywhere(
    seed, noise, beta, temperature, tau_plus, gradient, dtype, labelled
):
    z1, z2 = (z.requires_grad_() for z in views(seed, noise, dtype=dtype))
    y = torch.tensor([0, 0, 1, 1, 2, 2]) if labelled else None
    each = exact(
        Contrast.from_views(z1, z2, y), temperature, beta, tau_plus, gradient, reduction="none"
    )
    assert each.isfinite().all() and (each >= 0).all()
    assert dtype == torch.float32 or (each > 0).all()  # so the ratio is positive
    for slope in torch.autograd.grad(each.sum(), (z1, z2)):
        assert slope.isfinite().all()


# --- a temperature from a budget


@cases
@given(
    seed=SEEDS,
    eta=st.sampled_from([0.02, 0.3, 2.0]),
    floor=st.sampled_from([0.01, 0.4]),
    scale=st.sampled_from([1.0, 30.0]),
    beta=st.sampled_from([0.0, 2.0]),
)
def test_kl_budget_is_the_reference(seed, eta, floor, scale, beta):
    c = space(seed)
    log_w = negatives.tilted(beta)(c)
    S, P, W = arrays(c, log_w)
    expected = reference.kl_budget(S, P, W, eta, floor, scale)
    loss = partial(objectives.kl_budget, c, log_w, eta, floor=floor, scale=scale)
    assert loss(reduction="none").tolist() == pytest.approx(expected, rel=1e-7)
    assert float(loss()) == pytest.approx(np.mean(expected))
    t = [max(reference.kl_temperature(s, w, eta), floor) for s, w in zip(S, W)]
    ours = objectives.budget_temperature(c, log_w, eta, floor=floor)
    assert ours.tolist() == pytest.approx(t, rel=1e-7)


# --- skipped anchors, repeated use, errors


def skipping(c):
    """Weights that leave about half of the anchors without a negative."""
    hardest = torch.where(c.admissible, c.similarity, -2.0).amax(1)
    tau = math.exp(hardest.median().item() / 0.5)
    return negatives.thresholded(tau, on_empty="skip")(c)


def rows_of(c, rows):
    masks = Masks(c.positives[rows], c.admissible[rows], c.similarity.dtype)
    return Contrast(c.similarity[rows], masks, c.scale)


def dismissed_row(c):
    return c.without((torch.arange(10) == 4)[:, None].expand(10, 10))


WITHOUT_NEGATIVES = {
    "threshold": (None, lambda c: (c, skipping(c))),
    "threshold, classes": (torch.tensor([0, 1, 1, 2, 0]), lambda c: (c, skipping(c))),
    "dismissed": (
        None,
        lambda c: (dismissed_row(c), negatives.tilted(1.5, on_empty="skip")(dismissed_row(c))),
    ),
}


@pytest.mark.parametrize("way", WITHOUT_NEGATIVES)
@pytest.mark.parametrize("name", ALL)
def test_skipped_anchors_are_left_out_of_the_mean_and_zero_in_the_vector(name, way):
    z1, z2 = (z.requires_grad_() for z in batch(6))
    y, weigh = WITHOUT_NEGATIVES[way]
    if name == "exact_debiased" and way != "dismissed":
        return  # it computes the tilt itself
    c, log_w = weigh(Contrast.from_views(z1, z2, y, positives="view"))
    counted = log_w.amax(1) > -torch.inf
    assert 0 < counted.sum() < 10
    expected = ALL[name](rows_of(c, counted), log_w[counted])
    loss = ALL[name](c, log_w)
    assert abs((loss - expected).item()) < 1e-12
    a, b = (torch.autograd.grad(x, z1, retain_graph=True)[0] for x in (loss, expected))
    assert torch.allclose(a, b, atol=1e-12)
    each = ALL[name](c, log_w, reduction="none")
    assert (each[~counted] == 0).all() and (each[counted] != 0).all()
    none_left = c.without(torch.ones_like(c.admissible))
    loss = ALL[name](none_left, negatives.tilted(1.5, on_empty="skip")(none_left))
    assert loss.item() == 0 and (torch.autograd.grad(loss, z1)[0] == 0).all()


@pytest.mark.parametrize("name", ALL)
def test_a_loss_leaves_nothing_behind_and_does_not_ask_for_the_order(name):
    """A first loss under no_grad must not be served, without its graph, to the next."""
    z1, z2 = (z.requires_grad_() for z in batch(16))
    order = torch.randperm(5, generator=seeded())
    c, weigh = Contrast.from_views(z1, z2), negatives.tilted(1.5)
    with torch.no_grad():
        before = ALL[name](c, weigh(c))
    losses = [ALL[name](c, weigh(c)) for _ in range(2)]
    gradients = [torch.autograd.grad(loss, z1, retain_graph=True)[0] for loss in losses]
    assert torch.equal(*gradients) and torch.equal(before, losses[0])
    other = Contrast.from_views(z2[order], z1[order])
    assert abs((ALL[name](other, weigh(other)) - before).item()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", [0.5, 1 - 1e-6, 1 - 1e-12, 1e-30])
def test_extreme_priors_are_finite_at_a_zero_difference(dtype, prior):
    s = torch.tensor([[0.25, 0.25]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[True, False]])
    c = Contrast.from_similarity(s, mask, ~mask)
    for tau_plus in (prior, torch.tensor([prior], dtype=torch.float64)):
        loss = objectives.info_nce(c, negatives.uniform()(c), 0.01, tau_plus)
        gradient = torch.autograd.grad(loss, s, retain_graph=True)[0]
        assert loss.isfinite() and gradient.isfinite().all()


def test_not_a_number_is_never_hidden_by_the_clamp():
    c = space(8)
    log_w = torch.full_like(c.similarity, torch.nan)
    for prior in (0.0, 0.1):
        with pytest.raises(ValueError, match="the negatives of anchor 0 weigh nan: log_w must"):
            objectives.info_nce(c, log_w, tau_plus=prior)


@pytest.mark.parametrize(
    ("objective", "option"),
    [
        ("info_nce", "temperature"),
        ("info_nce", "tau_plus"),
        ("mean_variance", "temperature"),
        ("sigmoid", "temperature"),
        ("sigmoid", "bias"),
        ("jensen_shannon", "tau_plus"),
    ],
)
def test_a_vector_of_an_option_has_one_value_for_each_anchor(objective, option):
    c = space(10, n=6)  # as many anchors as candidates: a row would fit too
    log_w, values = negatives.uniform()(c), torch.linspace(0.1, 0.9, 6, dtype=torch.float64)
    loss = partial(getattr(objectives, objective), c, log_w, reduction="none")
    together = loss(**{option: values})
    for i, value in enumerate(values.tolist()):
        assert together[i].item() == pytest.approx(loss(**{option: value})[i].item(), rel=1e-12)


@pytest.mark.parametrize(
    ("objective", "options", "message"),
    [
        ("info_nce", dict(temperature=0.0), "temperature must be positive and finite, got 0"),
        ("info_nce", dict(temperature=torch.ones(3)), r"temperature must .* \(4,\), got \(3,\)"),
        ("info_nce", dict(tau_plus=1.0), r"tau_plus must lie in \[0, 1\), got 1"),
        ("info_nce", dict(loudness=0.5), "loudness must be 0 or at least 1, got 0.5"),
        ("info_nce", dict(average="rows"), "average must be one of anchors, pairs, got 'rows'"),
        ("info_nce", dict(average="pairs", reduction="none"), 'needs reduction="mean"'),
        ("kl_budget", dict(order=4), "order"),
    ],
)
def test_bad_options_are_named(objective, options, message):
    c = space(9)
    log_w, objective = negatives.tilted()(c), getattr(objectives, objective)
    with pytest.raises(ValueError, match=message):
        objective(c, log_w, **options)
    with pytest.raises(ValueError, match=r"contrast's shape \(4, 6\), got \(6,\)"):
        objective(c, log_w[0])


@pytest.mark.parametrize("name", ["relative", "mean", "shuffled"])
def test_loudness_taken_apart(name):
    z = torch.randn(2, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    z1, z2 = (view.requires_grad_() for view in z)
    contrast = Contrast.from_views(z1, z2)
    log_w, t = contrast.uniform_log_weights, 0.1
    ratio = objectives.info_nce(contrast, log_w, t, loudness=0, reduction="none")
    c = ratio.detach().sigmoid()
    factor = {"relative": c / c.mean(), "mean": c.mean(), "shuffled": torch.cat([c[-1:], c[:-1]])}
    expected = torch.autograd.grad((factor[name] * ratio).mean(), (z1, z2), retain_graph=True)
    loss = objectives.info_nce(contrast, log_w, t, loudness=name)
    given = torch.autograd.grad(loss, (z1, z2), retain_graph=True)
    torch.testing.assert_close(given, expected)
    plain = torch.autograd.grad(objectives.info_nce(contrast, log_w, t), (z1, z2))
    assert not torch.allclose(given[0], plain[0], rtol=0.01)  # the control


def test_a_learned_temperature_survives_excluded_candidates():
    """Padding that is masked has a gradient; minus infinity before the scale has none (control)."""
    q, k = batch(0)[:2]
    padding = torch.zeros(len(q), len(k), dtype=torch.bool)
    padding[0, 1] = True
    t = torch.tensor(0.1, dtype=q.dtype, requires_grad=True)
    contrast = Contrast.from_pairs(q, k).without(padding)
    objectives.info_nce(contrast, contrast.uniform_log_weights, t).backward()
    assert t.grad.isfinite() and t.grad != 0
    scale = torch.tensor(10.0, dtype=q.dtype, requires_grad=True)
    padded = (q @ k.T).masked_fill(padding, -torch.inf)
    torch.nn.functional.cross_entropy(scale * padded, torch.arange(len(q))).backward()
    assert scale.grad.isnan()
