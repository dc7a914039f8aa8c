"""Sweeps: what a grid means, what is refused before anything starts, and trials that fail."""

import functools
import json
import re
import secrets
import shutil
import tempfile
from pathlib import Path

import pytest
from processes import is_alive, start_hnlib, wait_for
from scripts import HEAD

from hnlib import __main__ as cli
from hnlib.notebooks import execute, sweep
from hnlib.training import store

# Each execution appends a line to `log`; a trial may fail, kill its worker (the kernel's parent) or
# wait for `gate`.
NOTEBOOK = (
    HEAD
    + """# One

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
if what == "fail":
    raise RuntimeError("a broken trial")
if what == "die once" and open("log").read().count("die once") == 1:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
while what == "wait" and not pathlib.Path("gate").exists():
    time.sleep(0.1)
from hnlib.training import store
chosen = {"beta": beta, "experiment": what, "seed": seed}
store.append({"kind": "measurement", "configuration": chosen, "metrics": {}}, results)
print("threads", os.environ["OMP_NUM_THREADS"], "GPUs", [os.environ["CUDA_VISIBLE_DEVICES"]])
print("folder", checkpoints)
```
"""
)


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


@pytest.fixture
def start():
    """Start `hnlib` in a process, with Ray in a folder and with a token of its own."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="ray-")  # the path of a socket may have 107 characters
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    yield functools.partial(start_hnlib, RAY_TMPDIR=folder, **token)
    shutil.rmtree(folder, ignore_errors=True)


def one(checkout):
    return checkout / "notebooks/experiments/one.md"


def stored(checkout):
    return {path.stem: path for path in (checkout / "_build/sweeps").rglob("*.ipynb")}


def log(checkout):
    return [line.rsplit(" ", 1)[0] for line in (checkout / "log").read_text().splitlines()]


def test_trials_are_the_product_and_seeds_vary_fastest(checkout):
    values = sweep.grid(["beta=0.5,1", "methods=[hcl],[ot, simclr]"])
    every = sweep.trials(one(checkout), values, [("what", "wait")], 2)
    assert [list(trial.parameters.values()) for trial in every] == [
        [beta, methods, seed, "wait"]
        for beta in (0.5, 1.0)
        for methods in (["hcl"], ["ot", "simclr"])
        for seed in (0, 1)
    ]
    assert len({trial.name for trial in every}) == 8


def test_seeds_go_to_the_parameter_there_is(checkout):
    one(checkout).write_text(NOTEBOOK.replace("seed = 0\n", "seeds = [0, 1, 2]\n"))
    every = sweep.trials(one(checkout), [], [], 2)
    assert [trial.parameters for trial in every] == [{"seeds": [0]}, {"seeds": [1]}]


def test_a_trial_is_named_as_hnlib_run_names_it(checkout, monkeypatch):
    monkeypatch.setattr(execute, "execute", lambda *a, **k: 0.0)
    path = execute.run("experiments/one", {"beta": "2", "checkpoints": "c/{trial}"})
    (trial,) = sweep.trials(one(checkout), [("beta", ["2"])], [("checkpoints", "c/{trial}")])
    assert path.name == f"one-{trial.name}.ipynb"
    assert trial.parameters["checkpoints"] == f"c/{trial.name}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "betta=1"], "unknown parameter 'betta'; the notebook has"),
        (["--grid", "beta="], "--grid must be NAME=VALUE,VALUE,…, got 'beta='"),
        (["--grid", "beta=1", "--grid", "beta=2"], "parameter 'beta' is given twice"),
        (["--grid", "seed=1", "--seeds", "2"], "parameter 'seed' is given twice"),
        ([], "nothing to vary"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(checkout, capsys, arguments, words):
    assert cli.main(["sweep", "experiments/one", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (checkout / "_build").exists()


def test_a_dry_run_lists_the_trials_and_their_cost(checkout, capsys):
    command = ["sweep", "experiments/one", "--grid", "beta=0.5,1", "--seeds", "2", "--dry-run"]

    def executed(path, seconds):
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"hnlib": {"fingerprint": "of an older text", "seconds": seconds}}
        path.write_text(json.dumps({"metadata": about, "cells": []}))

    assert cli.main(command) == 0
    assert "4 to do; the cost is unknown until one is" in capsys.readouterr().out
    executed(checkout / "_build/executed/experiments/one.ipynb", 90.0)
    assert cli.main(command) == 0
    assert "4 trials, 4 to do, about 90 s each" in capsys.readouterr().out
    first = sweep.trials(one(checkout), [("beta", ["0.5", "1"])], [], 2)[0]
    executed(checkout / f"_build/sweeps/experiments/one/{first.name}.ipynb", 10.0)
    assert cli.main(command) == 0
    output = capsys.readouterr().out
    assert f"{first.name}  to do  beta=0.5 seed=0" in output
    assert "about 10 s each, as executed before" in output


@pytest.mark.slow
def test_records_of_a_cluster_travel_back(checkout, monkeypatch):
    """Without a root, a trial runs in a copy of the checkout and returns what it wrote there."""
    results = checkout / "_build/results"
    results.mkdir(parents=True)
    other = {"kind": "measurement", "configuration": {"experiment": "other"}, "metrics": {}}
    store.append(other, results)
    (trial,) = sweep.trials(one(checkout), [("beta", ["3"])], [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that it is restored afterwards
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = "notebooks/experiments/one.md"
    content, (made,) = sweep._execute(trial, notebook, "_build/here", None, 1, 0)
    assert made["configuration"] == {"beta": 3.0, "experiment": "pass", "seed": 0}
    assert content == (checkout / f"_build/here/{trial.name}.ipynb").read_bytes()
    assert sweep._is_done(checkout / "_build/here", one(checkout), trial)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_sweep_survives_failures_lost_workers_and_its_own_death(checkout, start):
    fixed = ["-p", "beta", "2", "-p", "checkpoints", "c/{trial}"]
    command = ["sweep", "experiments/one", *fixed, "--grid"]
    given = [("beta", "2"), ("checkpoints", "c/{trial}")]
    every = sweep.trials(one(checkout), [("what", ["pass", "fail", "die once", "wait"])], given)
    names = {trial.parameters["what"]: trial.name for trial in every}

    # the command is killed in the middle of a trial: what had ended is stored, and nothing goes on
    first = start(*command, "what=pass,die once,wait")
    try:
        ended = {names["pass"], names["die once"]}
        wait_for(lambda: ended <= set(stored(checkout)) and len(log(checkout)) == 4)
    finally:
        first.kill()
        first.communicate()
    assert sorted(log(checkout)) == [
        f"{what} 2.0 0" for what in ("die once", "die once", "pass", "wait")
    ]
    kernels = [int(line.rsplit(" ", 1)[1]) for line in (checkout / "log").read_text().splitlines()]
    wait_for(lambda: not any(map(is_alive, kernels)))
    text = stored(checkout)[names["pass"]].read_text()
    assert "threads 1 GPUs ['']" in text and f"folder c/{names['pass']}" in text

    # a second call executes that trial alone, and a failing one, twice
    (checkout / "gate").touch()
    second = start(*command, "what=pass,fail,die once,wait")
    output, error = second.communicate()
    assert second.returncode == 1, error
    assert output.startswith("2 of 4 trials to execute") and "3 of 4 trials are done" in output
    for what, status in (("pass", "done"), ("fail", "failed"), ("die once", "done")):
        assert re.search(rf"^{names[what]}  {status} ", output, flags=re.M), output
    assert f"{names['fail']} failed: " in output
    assert "RuntimeError: a broken trial" in output
    assert sorted(log(checkout)[4:]) == [*2 * ["fail 2.0 0"], "wait 2.0 0"]
    assert set(stored(checkout)) == {*names.values(), f"{names['fail']}.failed"} - {names["fail"]}

    # without Ray: nothing is left to do
    assert cli.main([*command, "what=pass,die once,wait"]) == 0
