"""Compiled and recorded training steps train as eager ones do, and are never mixed with them."""

import dataclasses
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from one_call import same_weights, train
from test_resuming import cut_and_resumed

from hnlib import _checks
from hnlib.images import data
from hnlib.training import loop, step
from hnlib.training import train as training

SMALL = dict(train_size=160, batch_size=32, epochs=4, evaluate_size=50, device="cpu")
SMALL |= dict(progress=False, lr=0.01)


def trained(**chosen):
    """Train; return the run and the loss of each step."""
    plain, losses = loop.Loop.advance, []

    def noted(self, *given):
        out = plain(self, *given)
        losses.append(out[0].item())
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "advance", noted)
        run = train(**SMALL | chosen)
    return run, torch.tensor(losses)


def step_of(run):
    return run.record["environment"]["hardware"].get("step", "eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("simclr", dict(temperature=0.2)),
        ("hcl", dict(precision="bf16-mixed", lr_schedule="cosine")),
        ("h-scl", dict(separate_views=True)),  # with labels
        ("unremix", {}),  # with inputs of the last layer
        ("ot", {}),
    ],
)
def test_twenty_compiled_steps_have_the_losses_of_eager_ones(monkeypatch, method, more):
    monkeypatch.setattr(step, "BACKEND", "aot_eager")
    more |= dict(lr=3e-4)  # at three times this rate rounding grows to 2e-3 on some processors
    _, eager = trained(method=method, **more)
    run, compiled = trained(method=method, step="compiled", **more)
    assert step_of(run) == "compiled"
    torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-4)
    _, other = trained(method=method, seed=1, **more)
    assert len(eager) == 20 and (other - eager).abs().max() > 1e-2, "negative control"


def refusing(after):
    """Return a compiler that raises after so many graphs, which it leaves as they are."""
    graphs = iter(range(after))

    def compiler(graph, _):
        if next(graphs, None) is None:
            raise RuntimeError("no C++ compiler")
        return graph.forward

    return compiler


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 2])  # views and network are compiled, the loss is not
def test_what_cannot_be_compiled_trains_eagerly_to_the_bit_and_says_so(
    monkeypatch, tmp_path, after
):
    monkeypatch.setattr(step, "BACKEND", refusing(after))
    chosen = SMALL | dict(method="hcl", evaluate_every=1)
    plain = train(**chosen)
    with pytest.warns(UserWarning, match=r"stays eager: .*no C\+\+ compiler") as said:
        run = cut_and_resumed(chosen | dict(step="compiled"), 3, tmp_path / "c")
    assert sum("stays eager" in str(one.message) for one in said) == 1  # not at each resumption
    assert same_weights(run, plain) and step_of(run) == "eager"
    batches = [name for name, _ in plain.model.named_buffers() if "num_batches" in name]
    assert batches, "negative control: a forward pass leaves something behind"


@pytest.mark.slow
def test_a_resumed_run_keeps_its_kind_of_step(monkeypatch, tmp_path):
    monkeypatch.setattr(step, "BACKEND", "eager")
    chosen, path = SMALL | dict(method="simclr", step="compiled"), tmp_path / "c"
    with pytest.raises(training.Interrupted):
        train(**chosen, checkpoint=path, minutes=1e-9)
    with pytest.raises(ValueError, match=r"was begun with step=compiled, not eager; .*--restart"):
        train(**chosen | dict(step="eager"), checkpoint=path)
    run = train(**chosen, checkpoint=path)
    kinds = [one["hardware"].get("step") for one in run.record["sessions"]]
    assert kinds == ["compiled"] * 2
    assert (
        run.record["configuration"] == train(**chosen | dict(step="eager")).record["configuration"]
    )


@pytest.mark.slow
def test_a_compiled_step_keeps_the_conditions_of_the_loss_for_the_end_of_the_epoch(monkeypatch):
    monkeypatch.setattr(step, "BACKEND", "eager")
    digits = data.load("digits")
    alike = dataclasses.replace(digits, y_train=torch.zeros_like(digits.y_train))
    for kind in ("eager", "compiled"):
        with pytest.raises(ValueError, match="anchor 0 has no admissible negative"):
            train(**SMALL | dict(method="h-scl", dataset=alike, step=kind))


@pytest.fixture
def cuda_graphs(monkeypatch):
    """CUDA graphs on the CPU: recording computes nothing, a replay repeats the step on its tensors."""
    plain, recorded, recording = loop.Loop.advance, [], []

    def advance(self, *given):
        if not recording:
            return plain(self, *given)
        recorded[:] = self, *given
        recorded.append((torch.zeros(()), torch.zeros((), dtype=torch.bool)))
        return recorded[-1]

    def replay():
        *given, out = recorded
        for kept, new in zip(out, plain(*given)):
            kept.copy_(new)

    @contextmanager
    def graph(graph, stream):
        recording.append(graph)
        yield
        recording.clear()

    stream = SimpleNamespace(wait_stream=lambda _: None)
    made = SimpleNamespace(replay=replay, register_generator_state=lambda _: None)
    for name, fake in {
        "CUDAGraph": lambda: made,
        "graph": graph,
        "Stream": lambda _: stream,
        "current_stream": lambda _: stream,
        "stream": lambda _: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(loop.Loop, "advance", advance)
    monkeypatch.setattr(step, "check", lambda *_: None)
    return recorded


def test_a_recorded_step_trains_as_an_eager_one_to_the_bit(cuda_graphs, tmp_path):
    chosen = SMALL | dict(method="h-scl-threshold", lr=2**-7, evaluate_every=1)  # it counts
    eager = train(**chosen)
    assert not cuda_graphs
    whole = train(**chosen, step="graph")
    assert cuda_graphs and step_of(whole) == "graph"
    resumed = cut_and_resumed(chosen | dict(step="graph"), 3, tmp_path / "c")
    for run in (whole, resumed):
        assert same_weights(run, eager) and run.record["losses"] == eager.record["losses"]
        assert run.metrics["skipped"] == eager.metrics["skipped"]


def test_a_recorded_step_follows_the_schedule_of_the_rate(cuda_graphs):
    chosen = SMALL | dict(method="simclr", lr_schedule="cosine")
    eager, graph = (train(**chosen, step=kind).record["losses"] for kind in ("eager", "graph"))
    assert graph == pytest.approx(eager, abs=1e-3)
    constant = train(**chosen | dict(lr_schedule="constant")).record["losses"]
    assert constant != pytest.approx(eager, abs=1e-3), "negative control"


def test_conditions_are_kept_where_they_are_and_forgotten_in_place():
    conditions, bad = _checks.Deferred(), torch.tensor([False, True])
    conditions.add(~bad & False, "row {row} is bad")
    kept = conditions._met["row {row} is bad"]
    conditions.add(bad, "row {row} is bad")
    conditions.add(~bad & False, "row {row} is bad")
    assert kept[0].item() and kept[1].item() == 1, "a graph knows these tensors alone"
    conditions.forget()
    assert not kept[0].item()
    conditions.raise_if_any()


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (dict(step="graph"), "step=graph requires a CUDA device, got cpu; use step=compiled"),
        (dict(step="compiled", queue=64), "queue requires step=eager, got step=compiled"),
        (
            dict(step="compiled", schedule={"temperature": (1.0, 0.5)}),
            "schedule requires step=eager",
        ),
        (
            dict(step="compiled", kind="graphs", dataset="motifs"),
            "images, not graphs; use step=eager",
        ),
    ],
)
def test_a_step_that_cannot_be_is_refused_before_data_are_read(monkeypatch, chosen, words):
    monkeypatch.setattr(data, "load", lambda *_: pytest.fail("data were read"))
    with pytest.raises(ValueError, match=words):
        train(device="cpu", progress=False, **chosen)
