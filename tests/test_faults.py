"""Interruptions: stopped, killed or failing runs resume to the same bits; files are never half."""

import signal
import subprocess
import time

import pytest
import torch
from one_call import same_weights, train
from processes import run_twice, start
from test_training import SMALL, At, interrupt, plain
from torch import nn

from hnlib import _files
from hnlib.images import task as image_task
from hnlib.training import loop, records
from hnlib.training import train as training

SHORT = SMALL | dict(method="hcl", epochs=2, evaluate_every=0)


def never(*_, **__):
    raise AssertionError("this must not be called again")


def test_one_process_writes_and_leaves_no_other_file_behind(tmp_path):
    path = tmp_path / "c.pt"
    with _files.lock(path):
        _files.write_atomically(path, b"new")
        with pytest.raises(ValueError, match="another process is"), _files.lock(path):
            pass
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("place", ["record_to", "checkpoint", "save"])
def test_a_place_that_cannot_be_written_is_found_before_training(tmp_path, monkeypatch, place):
    monkeypatch.setattr(loop.Loop, "train", never)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot be written \(.+\)"):
        train(**SHORT, **{place: tmp_path / "file/run"})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_sessions_are_listed_and_their_seconds_added(tmp_path, monkeypatch):
    chosen = SHORT | dict(checkpoint=tmp_path / "c.pt")
    for threads, call in ((1, 4), (2, 1)):  # in the second epoch; before its first step
        here = {"hardware": {"threads": threads}}
        monkeypatch.setattr(records, "environment", lambda device, here=here: dict(here))
        with pytest.raises(training.Interrupted):
            train(**chosen | dict(method=At(call, interrupt)))
    monkeypatch.setattr(records, "environment", lambda device: {"hardware": {"threads": 3}})
    record = train(**chosen).record
    sessions = record["sessions"]
    # the second process saved nothing
    assert [session["hardware"]["threads"] for session in sessions] == [1, 3]
    assert record["environment"] == {"hardware": {"threads": 3}}
    assert record["seconds"] == pytest.approx(sum(s["seconds"] for s in sessions), abs=2e-3)


def test_a_run_that_fails_after_training_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    chosen = SHORT | dict(checkpoint=tmp_path / "c.pt", record_to=tmp_path / "records")
    with monkeypatch.context() as patch, pytest.raises(AssertionError):
        patch.setattr(image_task.Task, "measure", never)
        train(**chosen)
    done = train(**chosen | dict(method=At(1, never)))
    assert same_weights(done, train(**SHORT))
    assert len(records.load_all(tmp_path / "records")) == 1


@pytest.mark.slow
def test_sigterm_ends_the_command_with_one_sentence(tmp_path):
    path = tmp_path / "c.pt"
    arguments = "-m hnlib train images --method hcl --epochs 2000 --train-size 100 --batch-size 32"
    saved = ["--checkpoint", path, "--checkpoint-seconds", "0"]
    process = start(*arguments.split(), *saved, cwd=tmp_path, stderr=subprocess.PIPE)
    with process:
        while not path.exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        message = process.stderr.read()
    assert process.returncode == 130
    assert "repeat the same call" in message and message.count("\n") == 1


SHARED = """
import sys
from one_call import train
from test_training import SMALL, plain
from torch import distributed, nn

from hnlib.training.train import Interrupted

nn.BatchNorm1d = nn.Identity  # statistics would be those of one process
chosen = SMALL | dict(epochs=2, checkpoint=f"{sys.argv[1]}/c.pt", save=f"{sys.argv[1]}/run")
try:
    train(method="hcl", encoder=plain(), minutes=1e-9, **chosen)
except Interrupted:
    distributed.barrier()  # the first process writes the checkpoint
    train(method="hcl", encoder=plain(), **chosen)
"""


@pytest.mark.slow
def test_two_processes_of_torchrun_make_the_run_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(nn, "BatchNorm1d", nn.Identity)
    assert run_twice(SHARED, tmp_path) == 0
    two = training.load(tmp_path / "run", encoder=plain())
    one = train(method="hcl", encoder=plain(), **SMALL | dict(epochs=2))
    assert two.record["environment"]["hardware"]["devices"] == 2
    assert len(two.record["sessions"]) == 2  # both stopped when the minutes had passed
    torch.testing.assert_close(two.model.state_dict(), one.model.state_dict(), rtol=0, atol=1e-5)
    other = train(method="hcl", encoder=plain(), **SMALL | dict(epochs=2, seed=1))
    first = next(iter(two.model.state_dict()))
    assert not torch.allclose(*(run.model.state_dict()[first] for run in (two, other)), atol=1e-5)
