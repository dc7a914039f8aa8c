"""Sweeps: what a grid means, what is refused before anything starts, and trials that outlive
failures and kills."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hnlib import __main__ as cli
from hnlib import _files
from hnlib.book import execute, sweep

ROOT = Path(__file__).resolve().parents[1]
# Each execution leaves a line in `log`; a trial may fail, kill its worker (the kernel's parent) or
# wait for `gate`.
NOTEBOOK = """---
kernelspec:
  name: python3
  display_name: Python 3
jupytext:
  text_representation:
    extension: .md
    format_name: myst
---

# One

```{code-cell} ipython3
:tags: [parameters]
beta = 1.0
what = "pass"
methods = ["hcl", "ot"]
seed = 0
checkpoints = ""
```

```{code-cell} ipython3
import json, os, pathlib, signal, time
results = pathlib.Path("_build/results")
results.mkdir(parents=True, exist_ok=True)
with open("log", "a") as log:
    log.write(f"{what} {beta} {seed} {os.getpid()}\\n")
if what == "fail" and not pathlib.Path("mended").exists():
    raise RuntimeError("a broken trial")
if what == "die once" and open("log").read().count("die once") == 1:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
while what == "wait" and not pathlib.Path("gate").exists():
    time.sleep(0.1)
(results / f"{what}-{beta}-{seed}.json").write_text(json.dumps({"configuration": {}, "metrics": {"beta": beta}}))
print("threads", os.environ["OMP_NUM_THREADS"], "GPUs", [os.environ["CUDA_VISIBLE_DEVICES"]], "folder", checkpoints)
```
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of one chapter."""
    folder = tmp_path / "checkout"
    (folder / "notebooks/experiments").mkdir(parents=True)
    (folder / "_toc.yml").write_text("format: jb-book\nroot: notebooks/experiments/one\n")
    (folder / "requirements.txt").write_text("a==1\n")
    (folder / "notebooks/experiments/one.md").write_text(NOTEBOOK)
    monkeypatch.chdir(folder)
    execute.root.cache_clear()
    yield folder
    execute.root.cache_clear()


@pytest.fixture(scope="module")
def environment():
    """Ray in a folder of its own, with a token of its own, and hnlib for its workers."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(
        prefix="ray-"
    )  # not below tmp_path: the path of a socket may have 107 characters
    yield os.environ | {
        "RAY_TMPDIR": folder,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),
        "PYTHONPATH": str(ROOT),
    }
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(environment):
    """Start ``hnlib`` in a process of its own: Ray takes signal handlers and reads its settings
    only once.

    Returns the process and its first line, printed when Ray runs. Ray gives itself 30 seconds for
    that, which a busy machine may miss; so there are several attempts.
    """

    def begin(*command):
        for _ in range(4):
            process = subprocess.Popen(
                [sys.executable, "-m", "hnlib", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            if line := process.stdout.readline():
                return process, line
            error = process.communicate()[1]
            if "overloaded" not in error:
                break
        pytest.fail(error)

    return begin


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)


def one(checkout):
    return checkout / "notebooks/experiments/one.md"


def stored(checkout):
    return {
        path.stem: execute.load(path)
        for path in (checkout / "_build/sweeps/experiments/one").glob("*.ipynb")
    }


def log(checkout):
    return [line.rsplit(" ", 1)[0] for line in (checkout / "log").read_text().splitlines()]


# ---------------------------------------------------------------------------------------------------------------
# grid

LISTS = st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=8)


@given(st.lists(LISTS, min_size=1))
def test_lists_are_split_at_their_outer_commas(items):
    assert execute.split(",".join(map(str, items))) == [str(item) for item in items]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("beta", "name=value"),
        ("=1", "name=value"),
        ("beta=", "empty list"),
        ("beta= ", "empty list"),
        ("beta=1,,2", "an empty value"),
        ("beta=1,", "an empty value"),
        ("methods=[a,b", "do not match"),
        ("methods=a],[b", "do not match"),
    ],
)
def test_a_grid_that_cannot_be_read_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        sweep.grid([text])


def test_a_name_given_twice_is_refused():
    with pytest.raises(ValueError, match="'beta' twice"):
        sweep.grid(["beta=1", "beta=2"])


@given(st.sets(st.floats(0, 10), min_size=1, max_size=3), st.integers(1, 3))
def test_trials_are_the_product(betas, seeds):
    known = {"beta": 1.0, "seed": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "read", lambda path: None)
        patch.setattr(execute, "parameters_of", lambda node: known)
        patch.setattr(execute, "content", lambda path, ledgers: "")
        every = sweep.trials(Path("x"), {"beta": [repr(beta) for beta in betas]}, {}, seeds)
    expected = [{"beta": beta, "seed": seed} for beta, seed in product(betas, range(seeds))]
    assert [trial.parameters for trial in every] == expected
    assert (
        len({trial.name for trial in every})
        == len({trial.fingerprint for trial in every})
        == len(every)
    )


def test_a_list_parameter_takes_lists(checkout):
    every = sweep.trials(
        one(checkout), sweep.grid(["methods=[hcl],[ot, simclr],adnce"]), {"beta": "2"}
    )
    assert [trial.parameters["methods"] for trial in every] == [
        ["hcl"],
        ["ot", "simclr"],
        ["adnce"],
    ]
    assert all(trial.parameters["beta"] == 2.0 for trial in every)


def test_seeds_go_to_the_parameter_there_is(checkout):
    one(checkout).write_text(NOTEBOOK.replace("seed = 0\n", "seeds = [0, 1, 2]\n"))
    every = sweep.trials(one(checkout), {}, {}, 2)
    assert [trial.parameters for trial in every] == [{"seeds": [0]}, {"seeds": [1]}]


def test_a_trial_is_named_as_hnlib_run_names_it(checkout, monkeypatch):
    monkeypatch.setattr(execute, "execute", lambda *a, **k: 0.0)
    path = execute.run("experiments/one", {"beta": "2", "seed": "1"})
    (trial,) = sweep.trials(one(checkout), {"beta": ["2"]}, {"seed": "1"})
    assert path.name == f"one-{trial.name}.ipynb"


def test_records_do_not_change_what_a_trial_is(checkout):
    """Trials add records; were those part of the fingerprint, no trial would be done after the next
    one."""
    one(checkout).write_text(NOTEBOOK + "\nIt reads the records.\n")
    first = sweep.trials(one(checkout), {}, {}, 1)
    before = execute.fingerprint(one(checkout))
    (checkout / "book/results/runs").mkdir(parents=True)
    (checkout / "book/results/runs/a.json").write_text("{}")
    assert execute.fingerprint(one(checkout)) != before
    assert sweep.trials(one(checkout), {}, {}, 1) == first
    (checkout / "requirements.txt").write_text("a==2\n")
    assert sweep.trials(one(checkout), {}, {}, 1) != first


# -----------------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--grid", "betta=1"],
            "experiments/one: unknown parameter 'betta'; the notebook has: beta=1.0",
        ),
        (["--grid", "beta=1,fast"], "parameter beta must be a number, not 'fast'"),
        (["--grid", "beta="], "--grid beta: '' is an empty list"),
        (["--grid", "beta=1,1.0"], "--grid beta has the value 1.0 twice"),
        (["--grid", "beta=1", "-p", "beta", "2"], "'beta' is in the grid and given by -p"),
        (["--grid", "beta=1", "-p", "seed", "2", "-p", "seed", "3"], "'seed' is given twice"),
        (["--grid", "seed=1", "--seeds", "2"], "'seed' is set by --seeds"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        ([], "nothing to vary"),
        (
            ["--seeds", "1", "--gpus", "1.5"],
            "--gpus must be a whole number or a fraction of 1, not 1.5",
        ),
        (["--seeds", "1", "--cpus", "0"], "--cpus must be"),
        (["--seeds", "1", "--cpus", "nan"], "Invalid value for --cpus: 'nan' is not a number"),
        (["--seeds", "1", "--retries", "-1"], "--retries must be at least 0"),
        (["--seeds", "1", "-o", "_toc.yml"], "is a file"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(checkout, no_ray, capsys, arguments, words):
    assert cli.main(["sweep", "experiments/one", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (checkout / "_build").exists()


def test_seeds_need_a_parameter_for_them(checkout):
    one(checkout).write_text(NOTEBOOK.replace("seed = 0\n", "seeds = 3\n"))
    with pytest.raises(ValueError, match="has neither"):
        sweep.trials(one(checkout), {}, {}, 2)


def test_without_ray_one_sentence_says_how_to_get_it(checkout, no_ray, capsys):
    assert cli.main(["sweep", "experiments/one", "--seeds", "1"]) == 2
    assert (
        capsys.readouterr().err
        == "hnlib: a sweep needs Ray (missing: ray); pip install 'hnlib[sweep]'\n"
    )


def test_a_polite_kill_while_ray_starts_is_an_interruption(checkout, monkeypatch, capsys):
    def init(*arguments, **options):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))  # as Ray does
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    assert cli.main(["sweep", "experiments/one", "--seeds", "1"]) == 130
    assert "hnlib: interrupted" in capsys.readouterr().err


def test_many_trials_hash_the_sources_once(checkout, monkeypatch):
    read, texts = [], [str(beta) for beta in range(200)]
    sources = execute.sources
    monkeypatch.setattr(execute, "sources", lambda code: read.append(code) or sources(code))
    every = sweep.trials(one(checkout), {"beta": texts}, {})
    assert len({trial.fingerprint for trial in every}) == 200 and len(read) == 1
    assert every[7].fingerprint != execute.fingerprint(one(checkout), {"beta": 8.0})


@pytest.mark.parametrize("arguments", [["--bogus", "1"], ["--cpus", "x"], ["-p", "beta"], []])
def test_a_command_line_that_does_not_parse_is_one_sentence(checkout, capsys, arguments):
    assert cli.main(["sweep", *["experiments/one"] * bool(arguments), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hnlib: ") and error.count("\n") == 1


def test_two_sweeps_do_not_share_a_folder(checkout, no_ray):
    with (
        _files.only_process(checkout / "here"),
        pytest.raises(ValueError, match="another process is making"),
    ):
        sweep.sweep("experiments/one", seeds=1, folder="here")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "somewhere", "127.0.0.1:99999"])
def test_an_address_that_does_not_answer(checkout, address):
    with pytest.raises(ValueError, match=rf"nothing answers at --address '{address}'"):
        sweep.sweep("experiments/one", seeds=1, address=address)


def test_a_trial_must_fit_on_one_machine(capsys):
    machines = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 8.0}, {}]
    ray = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": m} for m in machines])
    assert [
        sweep._slots(ray, None, *asked) for asked in ((1, 0), (0.1, 0), (8, 0), (1, 0.5), (3, 0.2))
    ] == [12, 120, 1, 2, 1]
    for asked in ((9, 0), (1, 2), (5, 1)):
        with pytest.raises(ValueError, match="lower --cpus or --gpus"):
            sweep._slots(ray, None, *asked)
        assert sweep._slots(ray, "auto", *asked) == 0
        assert "waiting until the cluster has grown" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------
# dry run


def executed(path, parameters, seconds, fingerprint=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "hnlib": {"fingerprint": fingerprint, "seconds": seconds},
        "papermill": {"parameters": parameters},
    }
    path.write_text(json.dumps({"metadata": about, "cells": []}))


def test_a_dry_run_starts_nothing_and_tells_the_cost(checkout, no_ray, capsys):
    command = ["sweep", "experiments/one", "--grid", "beta=0.5,1", "--seeds", "2", "--dry-run"]
    assert cli.main(command) == 0
    assert "unknown" in capsys.readouterr().out
    executed(checkout / "_build/executed/experiments/one.ipynb", {}, 90.0)
    assert cli.main(command) == 0
    output = capsys.readouterr().out
    assert "4 trials, 4 to do, about 6 min of work" in output
    assert "default build" in output
    every = sweep.trials(one(checkout), {"beta": ["0.5", "1"]}, {}, 2)
    folder = checkout / "_build/sweeps/experiments/one"
    executed(folder / f"{every[0].name}.ipynb", every[0].parameters, 10.0, every[0].fingerprint)
    executed(folder / f"{every[2].name}.ipynb", every[2].parameters, 40.0, "of an older text")
    assert cli.main(command) == 0
    output = capsys.readouterr().out
    # beta 0.5 seed 1 is like the first stored trial, beta 1 like the second
    assert re.search(
        rf"{every[0].name} +0.5 +0 +done\n{every[1].name} +0.5 +1 +to do +10 s\n"
        rf"{every[2].name} +1.0 +0 +to do +40 s\n{every[3].name} +1.0 +1 +to do +40 s\n",
        output,
    )
    assert "4 trials, 3 to do, about 90 s of work" in output


# ------------------------------------------------------------------------------------------------------
# with real Ray


def wait_for(condition, seconds=200):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_sweep_outlives_failures_lost_workers_and_its_own_death(checkout, start, no_ray):
    fixed = {"beta": "2", "checkpoints": "c/{trial}"}
    every = sweep.trials(one(checkout), {"what": ["pass", "fail", "die once", "wait"]}, fixed)
    names = {trial.parameters["what"]: trial.name for trial in every}
    command = [
        "sweep",
        "experiments/one",
        "-p",
        "beta",
        "2",
        "-p",
        "checkpoints",
        "c/{trial}",
        "--grid",
    ]

    # a failure is tried twice and reported, a killed worker's trial is tried again, the others are
    # stored
    first, _ = start(*command, "what=fail,die once,pass")
    output, error = first.communicate()
    assert first.returncode == 1, error
    for what, status in (("pass", "done"), ("fail", "failed"), ("die once", "done")):
        assert re.search(rf"^{names[what]} .* {status}\b", output, flags=re.M), output
    assert sorted(log(checkout)) == [
        f"{what} 2.0 0" for what in ("die once", "die once", "fail", "fail", "pass")
    ]
    assert (
        f"{names['fail']} failed: {{'beta': 2.0, 'checkpoints': 'c/{{trial}}', 'what': 'fail'}}"
        in error
    )
    assert "RuntimeError: a broken trial" in error
    assert f"kept at _build/sweeps/experiments/one/{names['fail']}.failed.ipynb." in error
    assert set(stored(checkout)) == {names["pass"], names["die once"], f"{names['fail']}.failed"}
    assert f"threads 1 GPUs [''] folder c/{names['pass']}" in json.dumps(
        stored(checkout)[names["pass"]]
    )
    assert sorted(os.listdir(checkout / "_build/results")) == [
        "die once-2.0-0.json",
        "pass-2.0-0.json",
    ]

    # the second call executes what is missing, until it is killed in the middle of a trial
    (checkout / "mended").touch()
    second, _ = start(*command, "what=pass,fail,die once,wait")
    try:
        wait_for(lambda: names["fail"] in stored(checkout) and len(log(checkout)) == 7)
    finally:
        second.kill()
        second.communicate()
    kernels = [int(line.rsplit(" ", 1)[1]) for line in (checkout / "log").read_text().splitlines()]
    wait_for(lambda: not any(map(alive, kernels)))  # nothing goes on by itself

    # the third executes that trial alone
    (checkout / "gate").touch()
    third, line = start(*command, "what=pass,fail,die once,wait")
    output, error = third.communicate()
    assert third.returncode == 0, error
    assert line.startswith("1 trials to execute, 3 done before")
    assert "4 of 4 trials are done" in output
    assert log(checkout)[5:] in (
        ["fail 2.0 0", *2 * ["wait 2.0 0"]],
        ["wait 2.0 0", "fail 2.0 0", "wait 2.0 0"],
    )
    assert set(stored(checkout)) == set(names.values())

    grid = ["what=pass,fail,die once,wait"]
    again = sweep.sweep("experiments/one", values=grid, given=list(fixed.items()))
    assert again == 0, "with nothing left to do Ray is not needed"


class LosingRay:
    """Ray whose workers are lost `losses` times; else they answer at once."""

    class exceptions:
        RayError = type("RayError", (Exception,), {})
        RayTaskError = type("RayTaskError", (RayError,), {})

    def __init__(self, losses):
        self.losses, self.submitted = losses, 0

    def remote(self, function):
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self.submit))

    def submit(self, *arguments):
        self.submitted += 1
        return self.submitted

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 1}}]

    def wait(self, futures, timeout):
        return futures[:1], futures[1:]

    def get(self, future):
        if future <= self.losses:
            raise self.exceptions.RayError("the worker died\nmore")
        node = {"metadata": {"hnlib": {}}, "cells": []}
        return {"text": json.dumps(node), "error": None, "seconds": 1.0, "records": {}}


@pytest.mark.parametrize(
    ("retries", "losses", "status"), [(0, 0, 0), (0, 1, 1), (2, 2, 0), (2, 3, 1)]
)
def test_a_lost_trial_is_tried_as_often_as_said(
    checkout, monkeypatch, capsys, retries, losses, status
):
    ray = LosingRay(losses)
    monkeypatch.setattr(sweep, "_cluster", lambda address: nullcontext(ray))
    assert sweep.sweep("experiments/one", values=["beta=7"], retries=retries) == status
    assert ray.submitted == min(losses, retries) + 1
    output, error = capsys.readouterr()
    assert ("1 of 1" if status == 0 else "0 of 1") in output
    assert ("lost: {'beta': 7.0}\nRayError: the worker died\n" in error) == (status == 1)
    assert len(stored(checkout)) == 1 - status


def test_records_of_a_cluster_travel_back(checkout, tmp_path, monkeypatch):
    """On a cluster the trial runs in a copy of the checkout; what it wrote there is stored here."""
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy)
    (copy / "_build/results").mkdir(parents=True)
    (copy / "_build/results/of-another-trial.json").write_text("{}")
    (trial,) = sweep.trials(one(checkout), {"beta": ["3"]}, {})
    with monkeypatch.context() as there:
        there.chdir(copy)
        there.setenv("CUDA_VISIBLE_DEVICES", "")  # so that it is restored afterwards
        execute.root.cache_clear()
        reply = sweep._execute(None, "notebooks/experiments/one.md", trial.parameters, 1, 0)
    execute.root.cache_clear()
    assert reply["error"] is None
    assert list(reply["records"]) == ["_build/results/pass-3.0-0.json"]
    folder = checkout / "_build/sweeps/experiments/one"
    assert not sweep.done(folder, trial)
    assert sweep._store(folder, trial, reply) == folder / f"{trial.name}.ipynb"
    assert sweep.done(folder, trial)
    assert os.listdir(checkout / "_build/results") == ["pass-3.0-0.json"]
