"""Whatever the kind of data: a run that was interrupted and resumed, or saved and loaded, is the run
that was not."""

import pytest
import torch
from one_call import train

from hnlib.training import train as training
from hnlib.training.checkpoint import Checkpoint

RUNS = {
    "images": dict(train_size=100, batch_size=32, evaluate_size=50),
    "graphs": dict(dataset="motifs", batch_size=50, folds=4),
    "sentences": dict(dataset="topics", batch_size=400, length=6, tasks=("alike",), dimension=16),
    "retrieval": dict(dataset="generated", batch_size=64, vocabulary=500, dimension=16),
}
CASES = [
    ("images", "hcl", dict(schedule={"beta": (3, 0)})),
    ("images", "unremix", dict(learn="minimise", lr=0.01)),
    ("images", "scl", dict(queue=50, momentum=0.9)),
    ("graphs", "ot", dict(epsilon=0.05, max_iterations=1)),  # which counts
    ("graphs", "h-scl", dict(labels="fold")),
    ("graphs", "adnce", dict(framework="graphcl", lr_schedule="cosine")),
    ("graphs", "hcl", dict(framework="graphcl", queue=24)),
    ("sentences", "hcl", dict(queue=300)),
    ("sentences", "hcl", dict(encoder="gru", towers=2)),
    ("retrieval", "simclr", {}),
]


def interrupt_after(count):
    """Return a `Checkpoint.save` that ends the run when so many states have been saved."""
    saved, save = [], Checkpoint.save

    def stop(self, state):
        save(self, state)
        saved.append(state)
        if len(saved) == count:
            raise KeyboardInterrupt

    return stop


def measured(run):
    """Everything that is recorded but time and memory."""
    rows = [run.metrics, *run.history]
    costs = ("second", "memory")
    rows = [{k: v for k, v in row.items() if not any(x in k for x in costs)} for row in rows]
    return rows, run.record["losses"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hnlib.transport.ConvergenceWarning")
@pytest.mark.parametrize("kind, method, more", CASES, ids=str)
def test_a_resumed_run_and_a_loaded_one_are_the_whole_one(
    tmp_path, monkeypatch, kind, method, more
):
    chosen = RUNS[kind] | dict(method=method, epochs=2, evaluate_at=(1,)) | more
    chosen |= dict(device="cpu", progress=False)
    whole, path = train(**chosen), tmp_path / "c"
    folds = more.get("labels") == "fold"
    with monkeypatch.context() as patch, pytest.raises(training.Interrupted) as stopped:
        patch.setattr(Checkpoint, "save", interrupt_after(3 if folds else 1))  # in the second fold
        train(**chosen, checkpoint=path)
    assert "repeat the same call" in str(stopped.value)
    assert ("fold" in str(stopped.value)) == folds
    resumed = train(**chosen, checkpoint=path)
    assert measured(resumed) == measured(whole)
    loaded = training.load(resumed.save(tmp_path / "run.safetensors"))
    assert loaded.record == resumed.record
    for run in (resumed, loaded):
        pairs = zip(whole.encoder.state_dict().values(), run.encoder.state_dict().values())
        assert all(torch.equal(*pair) for pair in pairs)
    assert train(**chosen, checkpoint=path).history == resumed.history  # nothing is left to do
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        train(**chosen, checkpoint=path, seed=1)
