"""The numbers of *Questions people ask*: each by another route, with a control that it rejects."""

import csv
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from drawn import seeded
from scripts import ROOT, script

from hnbook import asked
from hnlib import experiments


@pytest.fixture(scope="module")
def recorder():
    return script("book/recorders/asked.py")


def test_the_ledger_has_what_the_script_measures(recorder):
    """Every temperature, loss and seed, with the same numbers; after a change run the script."""
    with (ROOT / "book/results/asked.csv").open(encoding="utf-8", newline="") as file:
        rows = pd.DataFrame(csv.DictReader(file))
    found = rows.groupby(["of", "setting", "seed"]).quantity.agg(tuple)
    temperatures = itertools.product(map("{:g}".format, recorder.TEMPERATURES), recorder.SEEDS)
    losses = itertools.product(("pairs alone", "pairs and others"), recorder.SEEDS)
    expected = [("temperature", t, str(seed)) for t, seed in temperatures]
    expected += [("regression", name, str(seed)) for name, seed in losses]
    assert {*found.index} == {*expected, ("power of t", "", "0")}
    assert found.groupby("of").nunique().eq(1).all()


def test_the_power_of_the_temperature_is_that_of_autograd(recorder):
    """From gradients of the divergence itself; the control forgets that logits are divided by t."""
    batches = recorder.evidence.stages()
    early, late = (torch.from_numpy(batches[f"scifact {x}"]).double() for x in ("early", "late"))
    s, teacher = (early[0] @ early[1].T).requires_grad_(), late[0] @ late[1].T

    def size(t, scale=1.0):
        target = (teacher / t).log_softmax(1)
        divergence = torch.nn.functional.kl_div(
            (s / t).log_softmax(1), target, reduction="sum", log_target=True
        )
        return float(torch.autograd.grad(divergence, s)[0].norm()) * t**scale

    for t in (0.02, 2.0):
        recorded = asked.asked("power of t", "", f"{t:g}")
        assert recorded == pytest.approx(np.log2(size(t, 0) / size(2 * t, 0)), abs=2e-3)
        assert abs(recorded - np.log2(size(t) / size(2 * t))) > 0.5


def test_hits_within_batches_are_those_of_a_loop(recorder):
    s = torch.randn(50, 50, generator=seeded(0)) + 2 * torch.eye(50)
    found = [int(s[i, i // 16 * 16 : i // 16 * 16 + 16].max() == s[i, i]) for i in range(48)]
    assert recorder.hits(s, 16) == pytest.approx(sum(found) / 48)
    assert recorder.hits(s, 16) > recorder.hits(s, 48) + 0.1  # the whole matrix has more rivals


def test_the_most_uniform_setting_is_found_from_the_records():
    """By sorting a table of single runs; the best aligned setting is another one."""
    x = experiments.load("map")
    arms = x.matching("t* b*", "CIFAR-10")
    rows = x.rows("CIFAR-10", arms)
    table = rows[["arm", "seed", "linear"]]
    for name in ("uniformity", "alignment"):
        curves = {arm: x.values(arm, f"last_{name}", "CIFAR-10") for arm in arms}
        table = table.assign(**{name: [curves[a][s] for a, s in zip(table.arm, table.seed)]})
    means = table.groupby("arm")[["linear", "uniformity", "alignment"]].mean()
    best, (uniform, aligned) = means.linear.max(), means[["uniformity", "alignment"]].idxmin()
    assert asked.lost("last_uniformity") == pytest.approx(100 * (best - means.linear[uniform]))
    assert asked.lost("last_alignment") == pytest.approx(100 * (best - means.linear[aligned]))
    assert asked.lost("last_alignment") > asked.lost("last_uniformity") + 1


def test_what_the_text_says_of_the_ledger_in_words():
    """*From t = 0.05 up the last checkpoint was the best*, which at 0.02 the loss does not select."""
    assert [asked.behind("the last", t) for t in asked.TEMPERATURES[1:]] == [0, 0, 0, 0]
    assert asked.behind("validation loss", "0.02") > 1 > asked.behind("validation nDCG", "0.02")
    assert asked.unlabelled("RankMe") > asked.unlabelled("uniformity") + 1
