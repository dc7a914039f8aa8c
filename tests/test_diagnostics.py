"""Diagnostics against their definitions, one anchor at a time."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from drawn import seeded, views
from torch.nn import functional

from hnbook.chapters import labels
from hnlib import methods, negatives
from hnlib.contrast import Contrast
from hnlib.images.config import ImageRun
from hnlib.training import diagnostics
from hnlib.training.train import train


def test_alignment_and_uniformity_against_their_definitions():
    z1, z2 = views()
    u, v = (functional.normalize(z).numpy() for z in (z1, z2))
    alignment = np.mean([(a - b) @ (a - b) for a, b in zip(u, v)])
    assert diagnostics.alignment(3 * z1, z2) == pytest.approx(alignment)
    pairs = [math.exp(-2 * (a - b) @ (a - b)) for a, b in itertools.permutations(u, 2)]
    assert diagnostics.uniformity(z1) == pytest.approx(math.log(np.mean(pairs)))


def test_four_losses_and_assumption_by_sums_for_one_anchor():
    """In plain sums of probabilities, without logarithms or masks."""
    (z1, z2), y = views(size=6), torch.arange(6) % 3
    contrast, gamma, beta = Contrast.from_views(z1, z2), 0.5, 1.5
    log_e = labels.log_expectations(contrast, y, beta * contrast.similarity / gamma, gamma)
    found = labels.four_losses(contrast, y, log_e, gamma)
    z = functional.normalize(torch.cat([z1, z2])).numpy()
    g, classes = np.exp(z @ z[0] / gamma), y.repeat(2).numpy()
    pool = np.array([1, 2, 3, 4, 5, 7, 8, 9, 10, 11])  # without anchor and own view
    same, other = pool[classes[pool] == classes[0]], pool[classes[pool] != classes[0]]

    def mean(chosen, power):
        return (g[chosen] ** (1 + power)).sum() / (g[chosen] ** power).sum()

    among = {"UCL": (pool, 0), "H-UCL": (pool, beta), "SCL": (other, 0), "H-SCL": (other, beta)}
    for name, (chosen, power) in among.items():
        expected = np.log(1 + 10 / g[[6, *same]] * mean(chosen, power)).mean()
        assert float(found[name][0]) == pytest.approx(expected, rel=1e-9)
    assert float(labels.assumption_holds(log_e)[0]) == (mean(same, beta) > mean(other, beta))


def test_collision_is_the_weight_on_the_class():
    y = torch.arange(32) % 4
    z1, z2 = (z + 2 * functional.one_hot(y, 8) for z in views(size=32, dimension=8))

    def collision(weights, supervised=False):
        method = SimpleNamespace(log_weights=weights)
        return diagnostics.diagnostics(z1, z2, y, method, supervised)["collision"]

    # of 64 rows less anchor and own view, 7 images of the class, twice
    uniform = collision(negatives.uniform())
    assert collision(negatives.tilted(beta=1.0)) > uniform == pytest.approx(14 / 62)
    assert collision(negatives.uniform(), supervised=True) == 0 and collision(None) is None


def test_loudness_is_the_pull_on_the_positive():
    z1, z2 = torch.randn(2, 16, 8, generator=seeded())
    method = methods.build("simclr", temperature=0.1)
    loss = method.loss(Contrast.from_views(z1.double(), z2.double()), reduction="none")
    seen = diagnostics.loudness(method, z1, z2)
    assert seen["loudness"] == pytest.approx(float((1 - (-loss).exp()).mean()), abs=1e-9)
    assert seen["loudness_low"] <= seen["loudness"] <= 1


def test_learning_curves_show_the_loudness_of_softmaxes_and_sigmoids_over_similarities():
    loud = {name for name, entry in methods.CATALOGUE.items() if entry.loud}
    shown = {"simclr", "dcl", "focal", "siglip", "debiased", "hcl", "ot", "ot-semirelaxed", "adnce"}
    quiet = {
        "artanh",
        "bpr",
        "mw",
        "soft-targets",
        "mochi",
        "bcl",
        "bcl-ot",
        "alpha-cl",
        "chi2-dro",
    }
    quiet |= {"unremix", "scl", "h-scl", "h-scl-threshold", "supcon"}
    assert shown <= loud and not loud & quiet and quiet < methods.CATALOGUE.keys()
    for name in loud:
        seen = diagnostics.loudness(methods.build(name), *views())
        assert 0 <= seen["loudness_low"] <= seen["loudness"] < 2
    run = ImageRun(method="focal", epochs=1, train_size=64, batch_size=32)
    assert train(run, progress=False).record["history"][-1]["loudness"] > 0
    bpr = train(replace(run, method="bpr"), progress=False)
    assert "loudness" not in bpr.record["history"][-1]


def test_a_watched_curve_is_nan_where_a_threshold_left_no_negatives():
    written = [[{"epoch": 0, "holds": 0.9}, {"epoch": 1, "holds": None}], [{"epoch": 0}]]
    group = {"a": pd.DataFrame({"history": written})}
    first, last = labels.curve(SimpleNamespace(group=group.get), "a")
    assert first == written[0][0] and last["epoch"] == 1 and math.isnan(last["holds"])
