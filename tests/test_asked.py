"""The numbers of *Questions people ask*: each by another route, with a control that it rejects."""

import numpy as np
import pytest
import torch

from hnbook import asked
from hnlib import experiments
from hnlib.experiments import evidence


def test_the_power_of_the_temperature_is_that_of_autograd():
    """From gradients of the divergence itself; the control forgets that logits are divided by t."""
    batches = evidence.stages()
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


def test_the_most_uniform_setting_is_found_from_the_records():
    """By sorting a table of single runs; the best aligned setting is another one."""
    x = experiments.recorded("map")
    arms = x.design.matching("t* b*", "CIFAR-10")
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
