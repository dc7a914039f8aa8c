"""The queue of the experiments that wait for runs."""

import functools

from hnlib import __main__ as cli
from hnlib import experiments
from hnlib.experiments import experiment as engine
from hnlib.training import records, store


def test_the_queue_plans_and_trains_and_goes_on_after_a_failure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "default_folder", lambda: tmp_path)
    for found in ("_tracked", "_own"):
        monkeypatch.setattr(engine, found, functools.cache(dict))
    monkeypatch.setattr(experiments, "names", lambda: ["made-up", "pairs", "seeds"])
    queue = ["queue", "--only", "*a*"]

    def train(one, minutes, **how):
        trained.append(one.name)
        if one.name == "pairs":
            raise ValueError("no such data")
        if recorded:
            configuration = {"experiment": one.name}
            store.append({"kind": "measurement", "configuration": configuration}, tmp_path)

    try:
        experiments.forget()
        assert cli.main(queue) == 0
        assert [x.split(":")[0] for x in capsys.readouterr().out.splitlines()] == [
            "pairs",
            "made-up",
        ]
        monkeypatch.setattr(engine.Experiment, "train", train)
        for recorded in (False, True):
            trained = []
            assert cli.main([*queue, "--run"]) == 1 - recorded
            assert trained == ["pairs", "made-up"]
            assert capsys.readouterr().out == "pairs: no such data\n"
        assert cli.main([*queue, "--run", "--minutes", "1e-9"]) == 1 and len(trained) == 2
        assert cli.main(["queue", "--only", "typo"]) == 2
        assert "no experiment is named like 'typo'" in capsys.readouterr().err
    finally:
        monkeypatch.undo()
        experiments.forget()
