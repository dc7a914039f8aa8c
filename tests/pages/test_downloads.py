"""What readers of the built book download: its notebooks, the wheel, the data set."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from scripts import ROOT
from wheels import unpacked

from builder import portable_notebooks
from hnlib import experiments
from hnlib.training import records

CELLS = """
import json
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
for name, sources in json.loads(Path("cells.json").read_text()).items():
    shell.user_ns.clear()  # `reset` would also look for garbage, for a third of a second
    shell.init_user_ns()
    if not all(shell.run_cell(source, silent=True).success for source in sources):
        print("FAILED", name)
"""


def beginning(notebook):
    """The first two code cells of a notebook."""
    cells = nbformat.read(notebook, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"][:2]


def test_every_downloaded_notebook_starts_in_an_empty_folder(html, tmp_path):
    """Its first cell, and the one that imports what it needs, beside the recorded runs."""
    cells = {path.stem: beginning(path) for path in (html / "_sources").rglob("*.ipynb")}
    assert len(cells) > 30 and all(len(sources) == 2 for sources in cells.values())
    cells["control"] = ["import hnlib", "from hnlib import no_such_module"]
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    shutil.copy(html / records.PARQUET, tmp_path)
    kept = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MPLBACKEND": "agg"}
    beside = unpacked(html / portable_notebooks.WHEEL, tmp_path / "unpacked")
    done = beside("notebooks", CELLS, cwd=tmp_path, env=kept)
    assert done.returncode == 0, done.stderr
    assert re.findall("FAILED (.*)", done.stdout) == ["control"]


def test_the_data_set_is_read_without_this_library(html):
    """The lines that the page prints: means of runs, and a comparison."""
    page = (ROOT / "book/results.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    command = [sys.executable, "-I", "-c", first + second]
    done = subprocess.run(command, cwd=html, capture_output=True, text=True, check=True)
    where = "experiment == 'images-rates' and method == 'simclr'"
    linear = records.frame().query(where).groupby(["lr", "temperature"])["linear"]
    assert all(f"{mean:.5f}" in done.stdout for mean in linear.mean()) and linear.ngroups > 5
    effect = experiments.effect(experiments.recorded("confirmation"), "released", "t0.1")
    printed = [float(number) for number in done.stdout.splitlines()[-1].split()]
    assert printed == pytest.approx([effect.difference, effect.low, effect.high])
