"""Interruptions: stopped, killed or failing runs resume to the same bits; files are never half."""

import os
import resource
import signal
import subprocess
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from one_call import same_weights, train
from processes import run_twice, start
from test_store import record
from test_training import SMALL, At, interrupt, plain
from torch import nn

from hnlib import _files
from hnlib.images import task as image_task
from hnlib.training import loop, records, store
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


@pytest.mark.parametrize(("private", "mode"), [(False, 0o640), (True, 0o600)])
def test_a_file_has_the_mode_of_the_umask_and_a_private_one_is_the_users(tmp_path, private, mode):
    before = os.umask(0o027)
    try:
        _files.write_atomically(tmp_path / "file", b"x", private=private)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


@contextmanager
def full_disk(size=4096):
    """Let no file grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_in_a_sentence_and_the_old_file_stays(tmp_path):
    path = tmp_path / "c.pt"
    _files.write_atomically(path, b"old")
    with full_disk(), pytest.raises(OSError, match=r"c\.pt could not be written \(.+\)"):
        _files.write_atomically(path, bytes(5000))
    assert path.read_bytes() == b"old" and [*tmp_path.iterdir()] == [path]


def test_on_a_full_disk_the_records_before_stay_and_those_after_are_read(tmp_path):
    store.append(record(0), tmp_path)
    size = max(path.stat().st_size for path in tmp_path.glob("*.jsonl"))
    with full_disk(size + 100), pytest.raises(OSError, match=r"jsonl could not be written \(.+\)"):
        store.append(record(1), tmp_path)
    store.append(record(2), tmp_path)
    with warnings.catch_warnings(action="ignore"):  # half a line may stand there
        assert [one["configuration"]["seed"] for one in records.load_all(tmp_path)] in (
            [0, 2],
            [2, 0],
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_run_whose_record_finds_no_space_is_not_trained_again(tmp_path):
    places = dict(checkpoint=tmp_path / "c.pt", record_to=tmp_path / "records")
    places["record_to"].mkdir()
    full = places["record_to"] / "images.jsonl"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"images\.jsonl could not be written \(.*No space left"):
        train(**SHORT, **places)
    full.unlink()
    done = train(**SHORT | dict(method=At(1, never)), **places)
    assert records.load_all(places["record_to"]) == [done.record]


KILLED = """
import os, resource, signal, sys
from pathlib import Path
from hnlib import _files
from hnlib.training import store
from test_store import record

how, folder = sys.argv[1], Path(sys.argv[2])
for seed in range(2):
    store.append(record(seed), folder)
_files.write_atomically(folder / "c.pt", b"old")
print("written", flush=True)
if how == "between":
    write = store.write

    def once(path, lines):
        write(path, lines)
        if lines:
            os.kill(os.getpid(), signal.SIGKILL)

    store.write = once
else:  # at this many bytes the process dies in the midst of a write
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    size = max(path.stat().st_size for path in folder.glob("*.jsonl"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100,) * 2)
if how == "in a file":
    _files.write_atomically(folder / "c.pt", bytes(10**6))
store.append(record(2), folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["between", "in a line", "in a file"])
def test_a_process_killed_while_it_writes_loses_nothing_that_was_written(tmp_path, how):
    process = start("-c", KILLED, how, tmp_path, stdout=subprocess.PIPE)
    assert process.communicate()[0] == "written\n"
    assert process.returncode == -(signal.SIGKILL if how == "between" else signal.SIGXFSZ)
    assert (tmp_path / "c.pt").read_bytes() == b"old"
    for seed in (2, 3):
        store.append(record(seed), tmp_path)
    _files.write_atomically(tmp_path / "c.pt", b"new")
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # half a line stands there
        found = records.load_all(tmp_path)
    assert sorted(one["configuration"]["seed"] for one in found) == [0, 1, 2, 3]
    assert all("history" in one for one in found)


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
