"""The recorded negatives of four methods: the file agrees with itself, and the pull with the loss."""

import pytest
import torch
from scripts import script
from torch.nn import functional


@pytest.fixture(scope="module")
def retrieved():
    return script("book/results/retrieved.py")


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


def embeddings(n, d):
    torch.manual_seed(0)
    return functional.normalize(torch.randn(n, d, dtype=torch.float64))
