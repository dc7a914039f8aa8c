"""The recorded negatives of four methods: the file agrees with itself, and the pull with the loss."""

import json

import numpy as np
import pytest
import torch
from scripts import script
from torch.nn import functional

from hnlib.book import ledgers


@pytest.fixture(scope="module")
def retrieved():
    return script("book/results/retrieved.py")


@pytest.fixture(scope="module")
def recorded():
    path = ledgers.book_file("book/results/retrieved.json")
    assert path.stat().st_size < 250_000
    return json.loads(path.read_text("utf-8"))


def test_controls_of_one_sharpness_pull_alike(recorded, retrieved):
    """SimCLR at t = .25 and the tilt held fixed: one γ, one pull; and they stand apart from others."""
    rows = recorded["controls"]
    for row, (method, options) in zip(rows, retrieved.CONTROLS, strict=True):
        found = row["configuration"]["options"]
        assert row["configuration"]["method"] == method and found.get("beta", 1.0) == 1.0
        assert options.items() <= found.items()
        assert [one["seed"] for one in row["seeds"]] == list(range(retrieved.CONTROL_SEEDS))
        for one in row["seeds"]:
            *others, simclr, tilt = one["own_by_pull_of"]
            assert simclr == tilt and len(others) == len(retrieved.SHOWN)
            assert simclr not in others
    z = embeddings(20, 5)
    pulls = [retrieved.pull(row["configuration"], z)[1] for row in rows]
    assert torch.allclose(*pulls, atol=1e-12)
    released = dict(method="hcl", options=dict(temperature=0.5, beta=1.0))
    assert not torch.allclose(pulls[1], retrieved.pull(released, z)[1], atol=1e-3)


def test_pull_is_the_tilt_as_released(retrieved):
    """(1 + β) p − β w, with w ∝ e^{βs/t} and p ∝ w e^{s/t}; with weights held fixed it would be p."""
    z = embeddings(20, 5)
    s, pull = retrieved.pull(dict(method="hcl", options=dict(temperature=0.3, beta=2.0)), z)
    s = s.masked_fill(torch.eye(20, dtype=torch.bool), -torch.inf)
    w, p = (2 * s / 0.3).softmax(1), (3 * s / 0.3).softmax(1)
    assert torch.allclose(pull, 3 * p - 2 * w, atol=1e-12)
    assert not torch.allclose(pull, p, atol=1e-3)
    shown = retrieved.heaviest(pull, torch.arange(20), 3)
    assert [negative["image"] for negative in shown] == pull[3].argsort().flip(0)[:4].tolist()
    assert shown[0]["weight"] == pytest.approx(19 * float(pull[3].max()), abs=1e-4)


def test_what_is_measured_counts_by_hand(retrieved, monkeypatch):
    """One batch of three classes, by loops."""
    monkeypatch.setattr(retrieved, "BATCH", 30)
    z = embeddings(30, 4)
    y, chosen = torch.arange(30) % 3, dict(method="simclr", options=dict(temperature=0.2))
    _, pull = retrieved.pull(chosen, z)
    expected = []
    for i in range(30):
        order = sorted(range(30), key=lambda j: -float(pull[i, j]))[:10]
        top = sum(float(pull[i, j]) for j in order)
        false = sum(float(pull[i, j]) for j in order if y[j] == y[i])
        same = sum(float(pull[i, j]) for j in range(30) if y[j] == y[i])
        expected.append((same, false / top, top))
    means = retrieved.measured(chosen, z, y).values()
    assert [*means] == pytest.approx(np.mean(expected, 0), abs=1e-4)


def embeddings(n, d):
    torch.manual_seed(0)
    return functional.normalize(torch.randn(n, d, dtype=torch.float64))
