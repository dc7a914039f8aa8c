"""Whatever the kind of data: a run that was interrupted and resumed, or saved and loaded, is the run
that was not."""

import io
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from one_call import same_weights, train

from hnlib.training import checkpoint, loop
from hnlib.training import train as training
from hnlib.training.checkpoint import Checkpoint

RUNS = {
    "images": dict(train_size=100, batch_size=32, evaluate_size=50),
    "graphs": dict(dataset="motifs", batch_size=50, folds=4),
    "sentences": dict(dataset="topics", batch_size=400, length=6, tasks=("alike",), dimension=16),
    "retrieval": dict(dataset="generated", batch_size=64, vocabulary=500, dimension=16),
}
CASES = [
    ("images", "unremix", dict(learn="minimise", lr=0.01)),
    ("images", "scl", dict(queue=50, momentum=0.9, schedule={"temperature": (0.5, 0.2)})),
    ("graphs", "ot", dict(epsilon=0.05, max_iterations=1)),  # which counts
    ("graphs", "h-scl", dict(labels="fold")),
    ("graphs", "adnce", dict(framework="graphcl", queue=24, lr_schedule="cosine")),
    ("sentences", "hcl", dict(queue=300, encoder="gru")),
    ("retrieval", "simclr", {}),
]


def measured(run):
    """Everything that is recorded but time and memory."""
    rows = [run.metrics, *run.history]
    costs = ("second", "memory")
    rows = [{k: v for k, v in row.items() if not any(x in k for x in costs)} for row in rows]
    return rows, run.record["losses"]


def cut_and_resumed(chosen, seconds, path):
    """Train in as many calls as needed, each of at most so many seconds; return the run."""
    with pytest.MonkeyPatch.context() as patch:
        # time advances by a second whenever it is read
        patch.setattr(loop, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
        for call in itertools.count(1):
            try:
                run = train(**chosen, checkpoint=path, minutes=seconds / 60)
            except training.Interrupted as stopped:
                assert "repeat the same call" in str(stopped)
                continue
            assert len(run.record["sessions"]) == call > 1
            return run


def same(a, b):
    return measured(a) == measured(b) and same_weights(a, b)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hnlib.transport.ConvergenceWarning")
@pytest.mark.parametrize("kind, method, more", CASES, ids=str)
def test_a_resumed_run_and_a_loaded_one_are_the_whole_one(
    tmp_path, monkeypatch, kind, method, more
):
    chosen = RUNS[kind] | dict(kind=kind, method=method, epochs=2, evaluate_every=1) | more
    chosen |= dict(device="cpu", progress=False)
    whole, path = train(**chosen), tmp_path / "c"
    resumed = cut_and_resumed(chosen, 1, path)  # an epoch takes four of them
    loaded = training.load(resumed.save(tmp_path / "run.safetensors"))
    assert same(resumed, whole) and same(loaded, whole) and loaded.record == resumed.record
    assert train(**chosen, checkpoint=path).history == resumed.history  # nothing is left to do
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        train(**chosen, checkpoint=path, seed=1)
    with pytest.raises(training.Interrupted):  # it starts anew
        train(**chosen, checkpoint=path, resume=False, minutes=1e-9)
    if kind == "images":
        monkeypatch.setattr(torch.optim.Adam, "load_state_dict", lambda self, state: None)
        assert not same(cut_and_resumed(chosen, 1, tmp_path / "d"), whole), "negative control"


def test_a_state_is_written_when_its_seconds_have_passed_or_at_the_end(tmp_path, monkeypatch):
    now, written, weights = [0.0], [], torch.zeros(2)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    file = Checkpoint(tmp_path / "c", {}, 30)
    for epoch, now[0] in enumerate((10, 20, 30, 40, 59, 61, 70), 1):
        weights.fill_(epoch)
        file.save({"epoch": epoch, "weights": weights})
        written.append(torch.load(file.path)["epoch"] if file.path.exists() else None)
    assert written == [None, None, 3, 3, 3, 6, 6]
    weights.fill_(-1)  # the next epoch begins
    file.flush()
    assert torch.load(file.path)["weights"].tolist() == [7, 7]


def test_a_checkpoint_that_was_changed_is_refused_in_one_sentence(tmp_path):
    saved = Checkpoint(tmp_path / "run.pt", {"epochs": 2})
    saved.save({"epoch": 1, "model": {"w": torch.arange(64.0)}})
    content = saved.path.read_bytes()
    flipped = bytearray(content)
    flipped[700] ^= 1
    for changed in (bytes(flipped), content[:-40], content[:-1], content + b"x", b""):
        saved.path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"run\.pt is not a checkpoint, or .*; pass another"):
            saved.read("cpu")
    saved.path.write_bytes(content)
    assert torch.equal(saved.read("cpu")["model"]["w"], torch.arange(64.0))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    saved = Checkpoint(tmp_path / "run.pt", {"epochs": 2, "seed": 0})
    saved.save({"epoch": 1})
    assert Checkpoint(saved.path, {"epochs": 2, "seed": 0}).read("cpu")["epoch"] == 1
    for other in ({"epochs": 2, "seed": 1}, {"epochs": 2, "seed": 0, "beta": 1.0}, {"epochs": 2}):
        with pytest.raises(ValueError, match=r"run\.pt belongs to another run: (seed|beta) is "):
            Checkpoint(saved.path, other).read("cpu")


class Payload:
    """Calls a function when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def test_a_checkpoint_that_would_call_functions_is_refused(tmp_path):
    """Its digest is right: whoever wrote the file wrote that, too."""
    called = tmp_path / "called"
    saved = Checkpoint(tmp_path / "run.pt", {})
    saved.save({"epoch": 1, "model": Payload(called)})
    with pytest.raises(ValueError, match=r"run\.pt has more than tensors and numbers"):
        Checkpoint(saved.path, {}).read("cpu")
    assert not called.exists()
    content = io.BytesIO(saved.path.read_bytes())
    torch.load(content, weights_only=False)
    assert called.exists(), "negative control"


def test_what_resumes_is_told_by_where_it_was_saved(tmp_path):
    """Before the first whole epoch, too; an option is named only where it was not given."""
    assert "--checkpoint PATH" in Checkpoint(None, {}).resume_hint()
    begun = Checkpoint(tmp_path / "c.pt", {})
    assert begun.resume_hint() == "no epoch is whole, so the same call begins it again"
    begun.save({"epoch": 1})
    assert begun.resume_hint().endswith("c.pt")
