"""Grids of a notebook: what is refused before anything starts, and points that fail."""

import functools
import secrets
import shutil
import tempfile
from pathlib import Path

import pytest
from processes import is_alive, start_hnlib, wait_for
from scripts import HEAD

from hnlib import __main__ as cli
from hnlib.notebooks import execute, grid

# Each execution appends a line to `log`; a point may fail, kill its worker (the kernel's parent) or
# wait for `gate`.
NOTEBOOK = (
    HEAD
    + """# One

```{code-cell} ipython3
:tags: [parameters]
beta = 1.0
what = "pass"
methods = ["hcl", "ot"]
```

```{code-cell} ipython3
import json, os, pathlib, signal, time
results = pathlib.Path("_build/results")
results.mkdir(parents=True, exist_ok=True)
with open("log", "a") as log:
    log.write(f"{what} {beta} {os.getpid()}\\n")
if what == "fail":
    raise RuntimeError("a broken point")
if what == "die once" and open("log").read().count("die once") == 1:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
while what == "wait" and not pathlib.Path("gate").exists():
    time.sleep(0.1)
from hnlib.training import store
chosen = {"beta": beta, "experiment": what}
store.append({"kind": "measurement", "configuration": chosen, "metrics": {}}, results)
print("threads", os.environ["OMP_NUM_THREADS"])
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


def file_of(checkout, **parameters):
    name = execute.parameter_hash(parameters)
    return checkout / f"_build/runs/experiments/one/{name}.ipynb"


def log(checkout):
    return [line.rsplit(" ", 1)[0] for line in (checkout / "log").read_text().splitlines()]


def test_points_are_all_combinations(checkout):
    values = [("beta", "0.5,1"), ("methods", "[hcl],[ot, simclr]")]
    every = grid.points(one(checkout), values, [("what", "wait")])
    assert [[*point.values()] for point in every] == [
        [beta, methods, "wait"] for beta in (0.5, 1.0) for methods in (["hcl"], ["ot", "simclr"])
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "betta=1"], "unknown parameter 'betta'; the notebook has"),
        (["--grid", "beta=1", "--grid", "beta=2"], "parameter 'beta' is given twice"),
        (["--dry-run"], "--dry-run and --engine are for a grid; add --grid"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(checkout, capsys, arguments, words):
    assert cli.main(["run", "experiments/one", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (checkout / "_build").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_grid_survives_failures_lost_workers_and_its_own_death(checkout, start):
    command = ["run", "experiments/one", "--engine", "ray", "-p", "beta", "2", "--grid"]
    every = {
        what: file_of(checkout, beta=2.0, what=what)
        for what in ("pass", "fail", "die once", "wait")
    }

    # the command is killed in the middle of a point: what had ended is stored, and nothing goes on
    first = start(*command, "what=pass,die once,wait")
    try:
        ended = every["pass"], every["die once"]
        wait_for(lambda: all(path.exists() for path in ended) and len(log(checkout)) == 4)
    finally:
        first.kill()
        first.communicate()
    assert sorted(log(checkout)) == [
        f"{what} 2.0" for what in ("die once", "die once", "pass", "wait")
    ]
    kernels = [int(line.rsplit(" ", 1)[1]) for line in (checkout / "log").read_text().splitlines()]
    wait_for(lambda: not any(map(is_alive, kernels)))
    assert "threads 1" in every["pass"].read_text()

    # a second call executes that point alone, and a failing one, twice
    (checkout / "gate").touch()
    second = start(*command, "what=pass,fail,die once,wait")
    output, error = second.communicate()
    assert second.returncode == 1, error
    paths = {what: path.relative_to(checkout) for what, path in every.items()}
    assert f"done  {paths['pass']} what=pass beta=2.0" in output
    assert f"to do {paths['wait']} what=wait beta=2.0" in output
    assert f"failed {paths['fail']}: " in output and "RuntimeError: a broken point" in output
    assert sorted(log(checkout)[4:]) == [*2 * ["fail 2.0"], "wait 2.0"]
    assert all(path.exists() == (what != "fail") for what, path in every.items())

    # without Ray: nothing is left to do
    assert cli.main(["run", "experiments/one", *command[4:], "what=pass,die once,wait"]) == 0
