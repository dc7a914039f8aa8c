"""Grids of a notebook: their points, and points that fail."""

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
def checkout(new_checkout):
    """A checkout of one chapter."""
    return new_checkout({"requirements.txt": "a==1\n", "notebooks/one.md": NOTEBOOK})


def test_points_are_all_combinations(checkout):
    values = [("beta", "0.5,1"), ("methods", "[hcl],[ot, simclr]")]
    every = grid.points(checkout / "notebooks/one.md", values, [("what", "wait")])
    assert [[*point.values()] for point in every] == [
        [beta, methods, "wait"] for beta in (0.5, 1.0) for methods in (["hcl"], ["ot", "simclr"])
    ]


@pytest.mark.slow
def test_a_grid_survives_a_failing_point_and_executes_only_what_is_missing(checkout, capsys):
    command = ["run", "one", "-p", "beta", "2", "--grid"]
    assert cli.main([*command, "what=fail,pass"]) == 1
    assert "RuntimeError: a broken point" in capsys.readouterr().out
    passed = execute.parameter_hash({"beta": 2.0, "what": "pass"})
    assert (checkout / f"_build/runs/one/{passed}.ipynb").is_file()
    assert cli.main([*command, "what=pass,more"]) == 0
    assert (checkout / "log").read_text().split() == ["fail", "pass", "more"]
