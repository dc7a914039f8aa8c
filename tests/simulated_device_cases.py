"""Methods and a training of each kind on the simulated device: no mixed devices, no waits."""

import pytest
import simulated_device as simulated
import torch
from one_call import train
from test_every_method import EVERY, build, embeddings, loss, variants

from hnlib import methods
from hnlib.training import evaluation
from hnlib.training.train import Interrupted

pytestmark = pytest.mark.skipif(not simulated.AVAILABLE, reason=simulated.REASON)

OTHERS = [(kind, name) for kind in ("queue", "pairs") for name in methods.CATALOGUE]


def loss_and_gradients(kind, method, device):
    a, b = embeddings(kind, dtype=torch.float32, device=device)
    a, b = (z.detach().requires_grad_() for z in (a, b))
    value = loss(kind, method.to(device), a, b)
    value.backward()
    return [value.detach(), a.grad, b.grad]


@pytest.mark.filterwarnings("ignore::hnlib.transport.ConvergenceWarning")
@pytest.mark.parametrize(("kind", "name"), EVERY + OTHERS)
def test_a_method_has_the_values_of_the_cpu_and_never_waits(kind, name):
    for options in variants(build(kind, name).entry):
        with simulated.machine() as log:
            try:
                expected = loss_and_gradients(kind, build(kind, name, **options), "cpu")
            except ValueError as refused:  # such as synthetic negatives of a queue
                with pytest.raises(ValueError) as here:
                    loss_and_gradients(kind, build(kind, name, **options), "gpu")
                assert str(here.value) == str(refused)
                continue
            found = loss_and_gradients(kind, build(kind, name, **options), "gpu")
            assert not log.waits, options
            for ours, theirs in zip(found, expected):
                torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)


# --- training


@pytest.fixture(autouse=True)
def _short_probe(monkeypatch):
    """Cut the linear probe, whose hundreds of small steps tell nothing more of the device."""
    monkeypatch.setitem(evaluation.PROBE, "max_iter", 2)


SMALL = dict(train_size=64, batch_size=16, evaluate_size=20)
GRAPHS = dict(dataset="motifs", batch_size=50, folds=2, hidden=8)
RUNS = {
    "queue": SMALL | dict(method="hcl", queue=24),
    "bf16": SMALL | dict(method="simclr", precision="bf16-mixed"),
    "nodes": GRAPHS | dict(method="hcl"),
    "graphs": GRAPHS | dict(method="ot", framework="graphcl"),
    "sentences": dict(
        dataset="topics", batch_size=400, length=6, tasks=("alike",), dimension=16, method="hcl"
    ),
    "retrieval": dict(
        dataset="generated", batch_size=64, vocabulary=500, dimension=16, method="simclr"
    ),
}
#: Files where a step may wait, and copy: batches of lists are made on the CPU
WAITS = {"graphs": {"hnlib/graphs/views.py"}}  # how large a view is depends on what was drawn
COPIES = {
    "nodes": {"hnlib/graphs/task.py"},
    "graphs": {"hnlib/graphs/task.py", "hnlib/graphs/views.py"},
    "sentences": {"hnlib/sentences/task.py"},
    "retrieval": {"hnlib/retrieval/task.py"},
}


def trained(steps, **chosen):
    return train(**chosen | dict(epochs=1, max_steps=steps, evaluate_every=0, progress=False))


def second_step(**chosen):
    """Train two steps; return their loss, and the files where the second waits and copies."""
    with simulated.machine() as one:
        trained(1, **chosen)
    with simulated.machine() as two:
        run = trained(2, **chosen)
    assert one.operators < two.operators
    waits, copies = (
        {place.split(":")[0] for _, place in more - fewer}
        for more, fewer in ((two.waits, one.waits), (two.copies, one.copies))
    )
    return run.record["losses"], waits, copies


@pytest.mark.parametrize("name", RUNS)
def test_a_training_has_the_losses_of_the_cpu_and_waits_only_where_it_may(name):
    losses, waits, copies = second_step(**RUNS[name])
    expected = trained(2, **RUNS[name], device="cpu").record["losses"]
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    assert (waits, copies) == (WAITS.get(name, set()), COPIES.get(name, set()))


class Weighted(methods.Method):
    """HCL times a number that comes from a function."""

    def __init__(self, weight):
        super().__init__("hcl", methods.CATALOGUE["hcl"], {})
        self.weight = weight

    def forward(self, z1, z2, labels=None):
        return super().forward(z1 * self.weight(z1), z2, labels)


def test_a_loss_that_mixes_devices_raises_and_one_that_asks_for_a_value_is_counted():
    def second_step_with(weight):
        return second_step(**SMALL, method=Weighted(weight))[1:]

    with pytest.raises(RuntimeError, match=r"same device, but found \[\(16, 1\)\] on cpu"):
        second_step_with(lambda z: torch.ones(len(z), 1))
    here = {"tests/simulated_device_cases.py"}
    assert second_step_with(lambda z: z.detach().norm().item()) == (here, set())
    assert second_step_with(lambda z: torch.ones(len(z), 1).to(z)) == (set(), here)
    assert second_step_with(lambda z: z.new_ones(len(z), 1)) == (set(), set())


def test_a_run_that_was_cut_resumes_on_the_device(tmp_path):
    chosen = RUNS["queue"] | dict(epochs=2, progress=False)
    expected = train(**chosen, device="cpu").record["losses"]
    with simulated.machine():
        with pytest.raises(Interrupted):
            train(**chosen, checkpoint=tmp_path / "c", minutes=1e-9)
        resumed = train(**chosen, checkpoint=tmp_path / "c")
    assert len(resumed.record["sessions"]) == 2
    torch.testing.assert_close(resumed.record["losses"], expected, rtol=1e-5, atol=1e-5)
