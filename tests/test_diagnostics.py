"""Diagnostics against their definitions, one anchor at a time."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from drawn import seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from hnbook.chapters import labels
from hnlib import methods, negatives
from hnlib.contrast import Contrast
from hnlib.training import diagnostics

seeds = st.integers(0, 10**6)
quick = settings(max_examples=12)


def two_views(batch=6, d=3, classes=2, seed=0, agreement=1.0):
    generator = seeded(seed)
    y = torch.arange(batch) % classes
    z = torch.randn(2, batch, d, generator=generator, dtype=torch.float64)
    return z[0], agreement * z[0] + z[1], y


# --- geometry


@quick
@given(seeds)
def test_alignment_and_uniformity_against_their_definitions(seed):
    z1, z2, _ = two_views(5, seed=seed)
    u, v = (functional.normalize(z).numpy() for z in (z1, z2))
    alignment = np.mean([(a - b) @ (a - b) for a, b in zip(u, v)])
    assert diagnostics.alignment(3 * z1, z2) == pytest.approx(alignment)
    pairs = [math.exp(-2 * (a - b) @ (a - b)) for a, b in itertools.permutations(u, 2)]
    assert diagnostics.uniformity(z1) == pytest.approx(math.log(np.mean(pairs)))


# --- weights and losses


def test_collision_mass_of_uniform_weights_is_the_share_of_the_class():
    z1, z2, y = two_views(6, classes=2)
    contrast, supervised = Contrast.from_views(z1, z2), Contrast.from_views(z1, z2, y)
    log_w = negatives.uniform()(contrast)
    skipped = log_w.clone()
    skipped[0] = -torch.inf
    share = 4 / 10  # of 12 rows less anchor and own view, 2 images of the class, twice
    for weights in (log_w, skipped):
        assert diagnostics.collision_mass(contrast, weights, y) == pytest.approx(share)
    assert diagnostics.collision_mass(supervised, negatives.uniform()(supervised)) == 0


def losses_one_anchor_at_a_time(z1, z2, y, eta, gamma):
    """The definitions in plain sums of probabilities, without logarithms or masks. Also both sides
    of Assumption 1."""
    z = torch.cat([functional.normalize(z1), functional.normalize(z2)]).numpy()
    y, n = y.repeat(2).tolist(), 2 * len(z1)
    rows, sides = [], []
    for i in range(n):
        g = z @ z[i] / gamma
        pool = [j for j in range(n) if j % (n // 2) != i % (n // 2)]
        same, other = ([j for j in pool if (y[j] == y[i]) == own] for own in (True, False))
        positives = [j for j in range(n) if j != i and y[j] == y[i]]

        def mean(chosen, weight, g=g):
            total = sum(weight(g[j]) for j in chosen)
            return sum(weight(g[j]) * math.exp(g[j]) for j in chosen) / total if total else math.nan

        weights = (lambda g: 1, eta)
        expectations = [mean(chosen, weight) for chosen in (pool, other) for weight in weights]
        rows.append(
            [
                np.mean([math.log(1 + (n - 2) * math.exp(-g[p]) * e) for p in positives])
                for e in expectations
            ]
        )
        sides.append((mean(same, eta), expectations[3]))
    return np.array(rows).T, np.array(sides)


HARDENINGS = {
    "exp": lambda g, beta, tau: math.exp(beta * g),
    "threshold": lambda g, beta, tau: float(g >= math.log(tau)),
}


@quick
@given(seeds, st.floats(0, 3), st.floats(0.1, 2), st.sampled_from([*HARDENINGS]), st.floats(0.5, 2))
def test_four_losses_and_assumption_against_one_anchor_at_a_time(seed, beta, gamma, hardening, tau):
    z1, z2, y = two_views(6, classes=3, seed=seed)
    contrast = Contrast.from_views(z1, z2)
    options = dict(beta=beta, temperature=gamma, hardening=hardening, tau=tau)
    ours = labels.four_losses(contrast, y, **options)
    holds = labels.assumption_holds(contrast, y, **options).numpy()
    eta = functools.partial(HARDENINGS[hardening], beta=beta, tau=tau)
    expected, sides = losses_one_anchor_at_a_time(z1, z2, y, eta, gamma)
    assert list(ours) == ["UCL", "H-UCL", "SCL", "H-SCL"]
    for row, loss in zip(expected, ours.values()):
        assert np.allclose(loss.numpy(), row, rtol=1e-9, equal_nan=True)
    clear = np.abs(sides[:, 0] - sides[:, 1]) > 1e-9
    assert np.array_equal(np.isnan(holds), np.isnan(sides).any(1))
    assert np.array_equal(holds[clear], (sides[clear, 0] > sides[clear, 1]).astype(float))


def test_diagnostics():
    z1, z2, y = two_views(32, d=8, classes=4)
    z1, z2 = z1 + 2 * functional.one_hot(y, 8), z2 + 2 * functional.one_hot(y, 8)
    row = diagnostics.diagnostics(z1, z2, y, negatives.tilted(beta=1.0))
    uniform = diagnostics.diagnostics(z1, z2, y, negatives.uniform())
    assert row["collision"] > uniform["collision"] == pytest.approx(14 / 62)
    supervised = diagnostics.diagnostics(z1, z2, y, negatives.uniform(), supervised=True)
    assert supervised["collision"] == 0
    assert row["alignment"] == diagnostics.alignment(z1.float(), z2.float())
    assert row["uniformity"] == diagnostics.uniformity(z1.float())
    assert diagnostics.diagnostics(z1, z2, y)["collision"] is None


def test_loudness_is_the_pull_on_the_positive():
    z1, z2 = torch.randn(2, 16, 8, generator=seeded())
    method = methods.build("simclr", temperature=0.1)
    loss = method.loss(Contrast.from_views(z1.double(), z2.double()), reduction="none")
    seen = diagnostics.loudness(method, z1, z2)
    assert seen["loudness"] == pytest.approx(float((1 - (-loss).exp()).mean()), abs=1e-9)
    assert seen["loudness_low"] <= seen["loudness"] <= 1 and seen["dial_angle"] is None
