"""Grids of a notebook: what is refused before anything starts, and points that fail."""

import pytest
from scripts import HEAD

from hnlib import __main__ as cli
from hnlib.notebooks import execute, grid

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
with open("log", "a") as log:
    log.write(what + "\\n")
if what == "fail":
    raise RuntimeError("a broken point")
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


def one(checkout):
    return checkout / "notebooks/experiments/one.md"


def file_of(checkout, **parameters):
    name = execute.parameter_hash(parameters)
    return checkout / f"_build/runs/experiments/one/{name}.ipynb"


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
def test_a_grid_survives_a_failing_point_and_executes_only_what_is_missing(checkout, capsys):
    command = ["run", "experiments/one", "-p", "beta", "2", "--grid"]
    assert cli.main([*command, "what=fail,pass"]) == 1
    printed = capsys.readouterr().out
    assert "RuntimeError: a broken point" in printed
    assert file_of(checkout, beta=2.0, what="pass").exists()
    assert not file_of(checkout, beta=2.0, what="fail").exists()
    assert cli.main([*command, "what=pass,more"]) == 0
    assert (checkout / "log").read_text().split() == ["fail", "pass", "more"]
