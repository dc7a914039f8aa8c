"""What faults leave: full disks, folders in the way, flipped bits, kills, impatient users."""

import functools
import hashlib
import json
import math
import multiprocessing
import operator
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_records import GONE, changed, places
from test_training import SMALL, At, interrupt, same
from torch import Tensor

from hnlib import __main__ as cli
from hnlib import _files
from hnlib.book import build
from hnlib.images import task as image_runs
from hnlib.training import checkpoint, fit, loop, records
from hnlib.training import run as training
from hnlib.training.run import train

ROOT = Path(__file__).resolve().parents[1]
SHORT = SMALL | dict(method="hcl", epochs=2, evaluate_every=0)


def refuse(*_, **__):
    raise OSError("no room")


def never(*_, **__):
    raise AssertionError("this is not to be done again")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Where states are kept for which no other place was left."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


# What is written, and when


def test_a_finished_run_is_not_measured_again(tmp_path, monkeypatch):
    places = dict(checkpoint=tmp_path / "c.pt", record_to=tmp_path / "records")
    first = train(**SHORT, **places)
    (path,) = places["record_to"].iterdir()
    written = path.read_text()
    monkeypatch.setattr(records, "environment", lambda device: {"hardware": {"threads": 99}})
    monkeypatch.setattr(image_runs.Task, "measure", never)
    again = train(**SHORT, **places)
    assert path.read_text() == written and again.record == first.record and same(again, first)
    path.unlink()  # a process killed before it wrote the record
    train(**SHORT, **places)
    assert path.read_text() == written


def test_a_finished_state_holds_numbers_of_any_make(tmp_path, monkeypatch):
    measure, chosen = image_runs.Task.measure, SHORT | dict(checkpoint=tmp_path / "c.pt")

    def measured(*given):
        found = measure(*given)
        return found | {"metrics": found["metrics"] | {"linear": np.float64(0.5)}}

    monkeypatch.setattr(image_runs.Task, "measure", measured)
    assert train(**chosen).metrics["linear"] == train(**chosen).metrics["linear"] == 0.5


def test_the_sessions_of_a_run_are_listed_and_their_seconds_added(tmp_path, monkeypatch):
    chosen = SHORT | dict(checkpoint=tmp_path / "c.pt")
    for threads, call in ((1, 4), (2, 1)):  # in the second epoch; before it has made a step
        here = {"hardware": {"threads": threads}}
        monkeypatch.setattr(records, "environment", lambda device, here=here: dict(here))
        with pytest.raises(training.Interrupted):
            train(**chosen | dict(method=At(call, interrupt)))
    monkeypatch.setattr(records, "environment", lambda device: {"hardware": {"threads": 3}})
    record = train(**chosen).record
    sessions = record["sessions"]
    # the second one kept nothing, so it did nothing
    assert [session["hardware"]["threads"] for session in sessions] == [1, 3]
    assert record["environment"] == {"hardware": {"threads": 3}}
    assert all(session["seconds"] > 0 for session in sessions)
    assert record["seconds"] == pytest.approx(sum(s["seconds"] for s in sessions), abs=2e-3)
    longer = train(**chosen | dict(epochs=3)).record
    assert [s["hardware"]["threads"] for s in longer["sessions"]] == [1, 3, 3]
    assert longer["seconds"] > record["seconds"]


@pytest.mark.parametrize("place", ["checkpoint", "save", "record_to"])
@pytest.mark.parametrize("obstacle", ["folder", "file"])
def test_every_place_is_tried_before_the_first_step(tmp_path, place, obstacle):
    """A folder where the file is to be; a file where its folder is to be."""
    in_the_way = tmp_path / "x"
    if obstacle == "file":
        in_the_way.write_text("mine")
        path = in_the_way if place == "record_to" else in_the_way / "y.pt"
        message = "could not be written and nothing was left there; "
    else:
        named = train(**SHORT | dict(epochs=0)).record["configuration"] | {"epochs": 2}
        path = in_the_way
        (in_the_way / f"{records.name(named)}.json").mkdir(parents=True)
        message = "is a folder; name a file"
    with pytest.raises(ValueError, match=message) as error:
        train(**SHORT | {"method": At(1, never), place: path})
    assert "delete" not in str(error.value) and "~" not in str(error.value)


def test_an_interrupted_first_epoch_does_not_ask_for_what_was_given(tmp_path):
    with pytest.raises(training.Interrupted, match=r"c\.pt is written after each epoch") as error:
        train(**SHORT | dict(method=At(2, interrupt), checkpoint=tmp_path / "c.pt"))
    assert "pass" not in str(error.value)
    with pytest.raises(training.Interrupted, match="pass checkpoint=PATH"):
        train(**SHORT | dict(method=At(2, interrupt)))


@pytest.mark.parametrize("fault", ["record", "save", "measure", "memory", "stop"])
def test_what_was_trained_is_kept_whatever_fails_after_it(tmp_path, monkeypatch, elsewhere, fault):
    whole = train(**SHORT)
    places = dict(record_to=tmp_path / "records", save=tmp_path / "saved")
    kinds = dict(record=OSError, save=OSError, measure=RuntimeError, memory=ValueError)
    kinds["stop"] = training.Interrupted
    with monkeypatch.context() as patch, pytest.raises(kinds[fault]) as error:
        if fault == "record":
            patch.setattr(records, "write", refuse)
        elif fault == "save":
            patch.setattr(checkpoint.Run, "save", refuse)
        else:
            wrong = dict(measure=RuntimeError("oh"), memory=MemoryError(), stop=KeyboardInterrupt())
            patch.setattr(image_runs.Task, "measure", Mock(side_effect=wrong[fault]))
        train(**SHORT, **places)
    (kept,) = elsewhere.rglob("*.pt")
    told = " ".join([str(error.value), *getattr(error.value, "__notes__", [])])
    assert f"go on from there with --checkpoint {kept}" in told
    done = train(**SHORT | dict(method=At(1, never)), checkpoint=kept, **places)
    assert same(done, whole) and done.metrics["knn"] == whole.metrics["knn"]
    assert len(records.load_all(places["record_to"])) == 1 and places["save"].exists()


def test_a_failing_record_of_a_run_with_a_checkpoint_needs_no_other_place(
    tmp_path, monkeypatch, elsewhere
):
    chosen = SHORT | dict(checkpoint=tmp_path / "c.pt", record_to=tmp_path)
    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"no room; .*in .*c\.pt: re"):
        patch.setattr(records, "write", refuse)
        train(**chosen)
    monkeypatch.setattr(image_runs.Task, "measure", never)
    train(**chosen)
    assert len(records.load_all(tmp_path)) == 1 and not list(elsewhere.rglob("*.pt"))


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_full_disk_does_not_cost_the_epoch(tmp_path, monkeypatch, elsewhere, epoch):
    path, write = tmp_path / "c.pt", _files.write_atomically
    left = [epoch]

    def fill(target, content):
        left[0] -= Path(target) == path
        return write(target, content) if left[0] or Path(target) != path else refuse()

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no room") as error:
        patch.setattr(_files, "write_atomically", fill)
        train(**SHORT, checkpoint=path)
    (kept,) = elsewhere.rglob("*.pt")
    assert str(kept) in str(error.value) and torch.load(kept, weights_only=True)["epoch"] == epoch
    assert same(train(**SHORT, checkpoint=kept), train(**SHORT))


# What is read


def test_no_flipped_bit_is_loaded(tmp_path):
    path, checked = tmp_path / "run", tmp_path / "c.pt"
    train(**SHORT | dict(epochs=1), checkpoint=checked).save(path)
    content, state, chosen = path.read_bytes(), checked.read_bytes(), random.Random(0)
    places = [*range(0, 600, 20), *chosen.sample(range(600, len(content)), 30), len(content) - 1]
    for place in places:
        path.write_bytes(flipped(content, place, chosen.randrange(8)))
        with pytest.raises(ValueError, match="is not a whole saved run"):
            training.load(path)
    nothing = checkpoint.Checkpoint(checked, json.loads(content_of(checked)["configuration"]))
    for place in [*chosen.sample(range(len(state)), 60), *range(len(state) - 60, len(state), 7)]:
        checked.write_bytes(flipped(state, place, chosen.randrange(8)))
        with pytest.raises(ValueError, match=r"is corrupt|is no checkpoint of this version"):
            nothing.read("cpu")
    checked.write_bytes(state)
    assert nothing.read("cpu") is not None, "negative control"


def flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def content_of(path):
    return torch.load(path, weights_only=True)


def test_a_saved_run_without_its_digest_is_refused(tmp_path):
    from safetensors.torch import save_file

    run = train(**SHORT | dict(epochs=1))
    state = {k: v.contiguous() for k, v in run.model.state_dict().items()}
    for more in ({}, {"digesu": ""}):
        save_file(state, tmp_path / "run", {"record": json.dumps(run.record)} | more)
        with pytest.raises(ValueError, match="it has no digest"):
            training.load(tmp_path / "run")
    wrong = run.record | {"metrics": {"knn": "high"}}
    about = {"record": json.dumps(wrong), "digest": checkpoint._digest(json.dumps(wrong), state)}
    save_file(state, tmp_path / "run", about)
    with pytest.raises(ValueError, match=r"run is not a .*knn='high' must be"):
        training.load(tmp_path / "run")


# of many kinds, with labels in the queue and a part of the method that learns
STATES = {
    "images": SHORT | dict(epochs=1, train_size=64, batch_size=32),
    "queue": SHORT | dict(epochs=1, train_size=64, batch_size=32, method="scl", queue=40),
    "learning": SHORT
    | dict(epochs=1, train_size=64, batch_size=32, method="unremix", learn="minimise"),
    "graphs": dict(dataset="motifs", method="scl", folds=2, epochs=1, hidden=4, layers=1),
}


def sealed(state, path):
    torch.save(state, path)
    content = path.read_bytes()
    path.write_bytes(content + checkpoint.SEAL + hashlib.sha256(content).digest())


@functools.cache
def state_of(kind):
    if kind == "graphs":
        pytest.importorskip("torch_geometric")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.pt"
        train(**STATES[kind] | dict(progress=False), checkpoint=path)
        return content_of(path)


def not_finite(value):
    return torch.full_like(value, math.nan)


OTHERS = [None, -1, 10**30, math.nan, "word", [], {}, torch.zeros(2), torch.tensor(1j), GONE]
OTHERS += [not_finite, Tensor.double, Tensor.neg, lambda value: value[None]]


def make(value):
    """Of what kind a value of a state is: what another of that kind says cannot be told."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape, bool(value.isfinite().all())
    plain = isinstance(value, int | float) and abs(value) < 1e20
    return type(value).__name__ if not plain else "number"


@functools.cache
def places_of(kind):
    """All but the numbers inside a history or a session, which need not say them."""
    free = ("history", "sessions")
    return [path for path in places(state_of(kind)) if path[0] not in free or len(path) < 3]


@settings(max_examples=40)
@given(kind=st.sampled_from([*STATES]), data=st.data())
def test_a_sealed_state_of_another_make_is_one_sentence(kind, data):
    """The digest is right and a value is not: of another type, shape or range, or missing."""
    state, value = state_of(kind), data.draw(st.sampled_from(OTHERS))
    path = data.draw(st.sampled_from(places_of(kind)))
    old = functools.reduce(operator.getitem, path, state)
    if callable(value):
        assume(isinstance(old, Tensor) and old.is_floating_point())
        value = value(old)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "c.pt"
        sealed(changed(state, path, value), file)
        try:
            train(**STATES[kind] | dict(progress=False), checkpoint=file)
        except ValueError as error:
            assert re.search(r"c\.pt (does not fit|is corrupt|belongs)", str(error)), error
            assert "\n" not in str(error)
        else:
            assert make(value) == make(old) or (path == ("record",) and value is None)


# Other processes


def test_what_killed_writers_left_goes_at_the_next_write(tmp_path):
    path = tmp_path / "run.pt"
    code = (
        "import os, sys; from pathlib import Path; from hnlib import _files\n"
        "def half(name): Path(name).write_bytes(b'half'); os.kill(os.getpid(), 9)\n"
        "_files.write_atomically(sys.argv[1], half)"
    )
    for _ in range(2):
        python(code, path).wait()
    (left,) = tmp_path.iterdir()  # the second has swept what the first had left
    assert left.name.startswith(".run~")
    ours = _files.temporary(path)
    ours.write_bytes(b"under way")
    others = tmp_path / ".mine~of~another~kind.pt"
    others.write_bytes(b"")
    _files.write_atomically(tmp_path / "another.pt", b"whole")
    assert {*tmp_path.iterdir()} == {ours, others, tmp_path / "another.pt"}


def python(code, *arguments, **more):
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    environment |= more.pop("environment", {})
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, **more)


def test_a_lock_holds_for_processes_with_another_temporary_folder(tmp_path):
    code = (
        "import sys; from hnlib import _files\n"
        "try:\n with _files.only_process(sys.argv[1]): pass\n"
        "except ValueError as error: print(error)"
    )
    with _files.only_process(tmp_path / "run.pt"):
        there = dict(environment={"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE)
        assert (
            "another process is making" in python(code, tmp_path / "run.pt", **there).stdout.read()
        )
    assert not python(code, tmp_path / "run.pt", **there).stdout.read()


@pytest.mark.parametrize("how", ["link", "file", "foreign"])
def test_a_folder_of_locks_that_another_made_is_not_used(tmp_path, monkeypatch, how):
    monkeypatch.setattr(os, "access", lambda *_: False)  # so that it is not /tmp
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with _files.only_process(tmp_path / "run"):
        (folder,) = tmp_path.iterdir()
    if how == "foreign":
        name, uid = folder.name, os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: uid)
        folder.rename(tmp_path / name.replace(str(uid - 1), str(uid)))
    else:
        folder.rename(tmp_path / "theirs")
        folder.symlink_to("theirs") if how == "link" else folder.write_text("")
    with (
        pytest.raises(ValueError, match="is not this user's folder of locks; have it removed"),
        _files.only_process(tmp_path / "run"),
    ):
        pytest.fail("the block was entered")


def test_a_link_leads_where_it_did(tmp_path):
    (tmp_path / "large disk").mkdir()
    link, target = tmp_path / "run.pt", tmp_path / "large disk" / "run.pt"
    link.symlink_to(target)
    for content in (b"first", b"second"):
        _files.write_atomically(link, content)
        assert link.is_symlink() and target.read_bytes() == content


def die(loss):
    if int(os.environ["LOCAL_RANK"]) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss


def test_a_killed_device_is_one_sentence_and_the_next_call_goes_on(tmp_path):
    """Its siblings go with it; the run is the same to the last bit."""
    chosen = SHORT | dict(devices=2, checkpoint=tmp_path / "c.pt")
    with pytest.raises(
        OSError, match=r"devices=2 ended \(.*\); the state .* is in .*c\.pt"
    ) as error:
        train(**chosen | dict(method=At(5, die)))
    assert "\n" not in str(error.value) and not multiprocessing.active_children()
    resumed, whole = train(**chosen), train(**chosen | dict(checkpoint=None))
    assert same(resumed, whole) and resumed.record["losses"] == whole.record["losses"]
    assert len(resumed.record["sessions"]) == 2


def test_devices_are_refused_before_they_are_launched(monkeypatch):
    monkeypatch.setattr(training, "launch", never)
    for run, message in (
        (dict(devices=2147483648, batch_size=2147483648), "devices=2147483648 are too many for"),
        (dict(devices=2, batch_size=63), "cannot be shared by 2 devices"),
        (dict(devices=2, dataset="motifs", method="infograph"), "devices=2 is not for graphs"),
        (dict(devices=2, encoder="vgg"), "unknown encoder 'vgg'"),
    ):
        with pytest.raises(ValueError, match=message):
            train(**run)


COMMAND = [sys.executable, "-m", "hnlib", "train", "--method", "hcl", "--epochs", "2000"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_impatient_user_still_reads_one_sentence(tmp_path, number):
    path = tmp_path / "c.pt"
    where = dict(cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
    command = [*COMMAND, "--train-size", "100", "--batch-size", "32", "--checkpoint", str(path)]
    with subprocess.Popen(command, text=True, **where) as process:
        while not path.exists():
            time.sleep(0.05)
        for _ in range(6):
            process.send_signal(number)
            time.sleep(0.01)
        said = process.stderr.read()
    assert process.returncode == 130 and "repeat the same call" in said and said.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["training", "ending"])
def test_stopped_at_any_moment_nothing_is_left_behind(tmp_path, number, moment):
    """A script of one's own in its training, and the command while its interpreter ends."""
    path = tmp_path / "c.pt"
    there = dict(cwd=tmp_path, stderr=subprocess.PIPE)
    if moment == "training":
        code = "import os, test_faults\n"
        code += f"def stop(loss):\n    os.kill(os.getpid(), {number:d})\n    return loss\n"
        code += "at = test_faults.At(5, stop)\n"
        code += f"chosen = test_faults.SHORT | dict(method=at, checkpoint={str(path)!r})\n"
        code += "try: test_faults.train(**chosen)\n"
        code += "except KeyboardInterrupt as error: raise SystemExit(str(error))"
    else:
        code = "import atexit, os, sys; from hnlib.__main__ import main\n"
        code += f"atexit.register(os.kill, os.getpid(), {number:d}); sys.argv[1:] = ['data']\n"
        code += "sys.exit(main())"
    process = python(code, **there)
    said = process.communicate()[1]
    assert "Traceback" not in said and process.returncode == (
        1 if moment == "training" else -number
    )
    if moment == "training":
        assert "repeat the same call to go on" in said and content_of(path)["epoch"] == 1
        assert {p.name for p in tmp_path.iterdir()} == {"c.pt"}


def test_who_asked_for_no_end_with_the_terminal_gets_none(monkeypatch):
    """As nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with loop.stoppable():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        monkeypatch.setattr(build, "book", lambda **_: os.kill(os.getpid(), signal.SIGHUP) or 0)
        assert cli.main(["book"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_queue_that_no_memory_holds_is_refused_before_training():
    huge = SHORT | dict(method="simclr", queue=2**62, epochs=2**40)
    with pytest.raises(
        ValueError, match=r"takes [0-9]+ GiB with batch_size=64, .* a smaller queue"
    ):
        train(**huge)


def test_a_run_whose_record_could_not_be_read_back_does_not_train(tmp_path):
    for wrong in (dict(experiment=" "), dict(temperature=torch.full((128,), 0.5))):
        with pytest.raises(ValueError, match=r"experiment=|options.temperature="):
            train(**SHORT | dict(method="simclr", record_to=tmp_path) | wrong)
    assert not list(tmp_path.iterdir())


GRAPHS = """
import sys, torch
from hnlib.training.run import train
torch.set_num_threads(1)
graphs = dict(dataset="motifs", method="scl", folds=3, epochs=3, hidden=8)
train(**graphs, checkpoint=sys.argv[1], progress=False)
"""


def test_killed_at_random_moments_and_resumed_to_the_same_bits(tmp_path):
    chosen, path, whole = random.Random(0), tmp_path / "c.pt", tmp_path / "whole.pt"
    for _ in range(3):
        before = path.stat().st_mtime_ns if path.exists() else 0
        process = python(GRAPHS, path)
        while not path.exists() or path.stat().st_mtime_ns == before:
            time.sleep(0.005)  # until an epoch more is kept
        time.sleep(chosen.uniform(0, 0.05))
        process.kill()
        assert process.wait() in (0, -signal.SIGKILL)
    assert not python(GRAPHS, path).wait() and not python(GRAPHS, whole).wait()
    ours, theirs = content_of(path), content_of(whole)
    assert ours["losses"] == theirs["losses"] and ours["finished"][0]["losses"]
    assert all(map(torch.equal, ours["model"].values(), theirs["model"].values()))
    assert len(ours["sessions"]) > 1 == len(theirs["sessions"])
    assert {p.name for p in tmp_path.iterdir()} == {"c.pt", "whole.pt"}, "swept"


def test_a_circle_of_links_or_one_file_for_two_is_no_place(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for place in ("checkpoint", "save"):
        with pytest.raises(ValueError, match=r"circle could not be written .*leads in a circle"):
            train(**SHORT | {place: tmp_path / "circle"})
    with pytest.raises(ValueError, match="one is named for two things; give each its own file"):
        train(**SHORT, checkpoint=tmp_path / "one", save=tmp_path / "x" / ".." / "one")
    assert (tmp_path / "circle").is_symlink() and len(list(tmp_path.iterdir())) == 1


def test_a_pipe_or_device_is_no_place_for_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in ("checkpoint", "save"):
        with pytest.raises((OSError, ValueError), match="pipe is a device or a pipe; name a file"):
            train("digits", "simclr", epochs=1, batch_size=64, **{place: tmp_path / "pipe"})


def test_a_broken_record_in_the_place_of_this_one_is_met_before_training(tmp_path, monkeypatch):
    few = dict(epochs=1, batch_size=64, train_size=200, progress=False)
    run = train("digits", "simclr", record_to=tmp_path, **few)
    (path,) = tmp_path.glob("*.json")
    path.write_text("{}")
    monkeypatch.setattr(fit.Trainings, "train", lambda self: pytest.fail("it trains"))
    with pytest.raises(ValueError, match="is not a whole record"):
        train("digits", "simclr", record_to=tmp_path, **few)
    assert run.metrics
