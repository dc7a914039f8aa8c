"""The queue of the runs that experiments wait for."""

import functools
from dataclasses import replace

import pytest

from hnlib import __main__ as cli
from hnlib import experiments
from hnlib.experiments import experiment as engine
from hnlib.experiments import run_queue, runner
from hnlib.graphs.config import GraphRun
from hnlib.training import records


@pytest.fixture
def unrecorded(monkeypatch):
    """Leave two experiments, without records."""
    experiments.forget()
    for found in ("_tracked", "_own"):
        monkeypatch.setattr(engine, found, functools.cache(dict))
    for module in (engine, experiments):
        monkeypatch.setattr(module, "names", lambda: ["made-up", "pairs"])
    yield
    monkeypatch.undo()
    experiments.forget()


@pytest.mark.usefixtures("unrecorded")
def test_the_command_lists_the_runs_of_experiments_that_match(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "tracked", lambda: tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli.main(["queue", "--only", "made-up, cifar100"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("   not timed  hnlib train ") and "runs; the 0 whose" in last
    assert cli.main(["queue", "--only", "made-up, no such"]) == 0
    assert capsys.readouterr().out.startswith("0 runs; ")
    assert cli.main(["queue"]) == 0
    experiments_alone = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert experiments_alone == ["pairs", "made-up", "hours"]


def test_interrupted_runs_come_first_and_what_fails_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "default_folder", lambda: tmp_path / "results")
    run = GraphRun(dataset="motifs", method="infograph", epochs=1, folds=2)
    second, broken = replace(run, seed=1), replace(run, dataset="nowhere")
    interrupted = runner.unfinished(second, records.default_folder())
    interrupted.parent.mkdir(parents=True)
    interrupted.touch()
    trained = []

    def train(run, **where):
        trained.append(run.seed)
        if run.dataset == "nowhere":
            raise ValueError("no such data")
        record = {"kind": "graphs", "configuration": run.configuration, "metrics": {}}
        return type("Trained", (), {"record": record | {"seconds": 2.0}})

    monkeypatch.setattr("hnlib.training.train.train", train)
    assert run_queue.work([broken, run, second]) == 2
    said = capsys.readouterr().out.splitlines()
    assert trained == [1, 0, 0] and not interrupted.exists()
    assert said.count("left out: no such data") == 1 and said.count("recorded after 2 s") == 2
    assert run_queue.work([run], minutes=1e-9) == 0  # the time is over
