"""A training of each kind on the simulated device: no mixed devices, and no waits in a step."""

from collections import Counter

import pytest
import simulated_device as simulated
import torch
from one_call import train
from torch import nn

from hnlib.training import evaluation
from hnlib.training.train import Interrupted


@pytest.fixture(autouse=True)
def _short_probe(monkeypatch):
    """Cut the linear probe, whose hundreds of small steps tell nothing more of the device."""
    monkeypatch.setitem(evaluation.PROBE, "max_iter", 2)


SMALL = dict(train_size=64, batch_size=16, evaluate_size=20)
GRAPHS = dict(kind="graphs", dataset="motifs", batch_size=50, folds=2, hidden=8)
RUNS = {
    "queue": SMALL | dict(method="hcl", queue=24),
    "nodes": GRAPHS | dict(method="hcl"),
    "graphs": GRAPHS | dict(method="ot", framework="graphcl"),
    "sentences": dict(kind="sentences", dataset="topics", method="hcl", tasks=("alike",)),
    "retrieval": dict(kind="retrieval", dataset="generated", method="simclr", vocabulary=500),
}
#: Files where a step may wait
WAITS = {"graphs": {"hnlib/graphs/views.py"}}  # how large a view is depends on what was drawn


def trained(steps, **chosen):
    return train(**chosen | dict(epochs=1, max_steps=steps, evaluate_every=0, progress=False))


def second_step(**chosen):
    """Train two steps; return their loss, and the files where the second waits."""
    with simulated.machine() as waits:
        trained(1, **chosen)
        one = Counter(waits)
    with simulated.machine() as waits:
        run = trained(2, **chosen)
    assert one
    return run.record["losses"], {place.split(":")[0] for _, place in waits - one}


@pytest.mark.parametrize("name", RUNS)
def test_a_training_has_the_losses_of_the_cpu_and_waits_only_where_it_may(name):
    losses, waits = second_step(**RUNS[name])
    expected = trained(2, **RUNS[name], device="cpu").record["losses"]
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    assert waits == WAITS.get(name, set())


class Weighted(nn.Module):
    """A loss times a number that comes from a function."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, z1, z2, labels=None):
        return (self.weight(z1) * z1 - z2).square().mean()


def test_a_loss_that_mixes_devices_raises_and_one_that_asks_for_a_value_is_counted():
    with pytest.raises(RuntimeError, match=r"same device, but found \[\(16, 1\)\] on cpu"):
        second_step(**SMALL, method=Weighted(lambda z: torch.ones(len(z), 1)))
    waiting = Weighted(lambda z: z.detach().norm().item())
    assert second_step(**SMALL, method=waiting)[1] == {"tests/simulated_device_cases.py"}


def test_a_run_that_was_cut_resumes_on_the_device(tmp_path):
    chosen = RUNS["queue"] | dict(epochs=2, progress=False)
    expected = train(**chosen, device="cpu").record["losses"]
    with simulated.machine():
        with pytest.raises(Interrupted):
            train(**chosen, checkpoint=tmp_path / "c", minutes=1e-9)
        resumed = train(**chosen, checkpoint=tmp_path / "c")
    assert len(resumed.record["sessions"]) == 2
    torch.testing.assert_close(resumed.record["losses"], expected, rtol=1e-5, atol=1e-5)
