"""The commands that README and *Run it on your GPU* print for a page, executed small."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT

from hnlib import __main__ as cli


def test_papermill_takes_a_page(tmp_path):
    """The page's line, with its size reduced by parameters alone."""
    (command,) = re.findall(r"`(jupytext [^`]+)`", (ROOT / "book/gpu.md").read_text("utf-8"))
    command = command.replace("out.ipynb", f"{tmp_path}/out.ipynb").replace("epochs 5", "epochs 1")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = f"set -o pipefail; {command} -p small True"
    subprocess.run(["bash", "-ec", command], cwd=ROOT, env=os.environ | {"PATH": path}, check=True)
    assert "small = True" in (tmp_path / "out.ipynb").read_text("utf-8")


README = re.findall(r"^hnlib (?:run|train) [^#\n]+", (ROOT / "README.md").read_text("utf-8"), re.M)


@pytest.mark.parametrize("line", README)
def test_the_commands_of_the_readme_do_what_they_say(line, tmp_path, monkeypatch):
    """With their size reduced by parameters alone."""
    monkeypatch.chdir(ROOT)
    line = line.replace("cifar10", "digits").replace("resnet18", "small-cnn")
    line = re.sub(r"epochs \d+", "epochs 1", line).replace("epochs=20,50", "epochs=1")
    line = line.replace("train_size 45000", "train_size 300")
    if "hnlib run" in line:
        line += " -p small True"
    line = line.replace("hcl.pt", f"{tmp_path}/hcl.pt")
    where = ["-o", str(tmp_path / ("out" if "--grid" in line else "out.ipynb"))]
    writes = "hnlib run" in line and "--plan" not in line
    assert cli.main(shlex.split(line)[1:] + where * writes) == 0
