"""Programs in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from hnlib import _files

ROOT = Path(__file__).resolve().parents[1]


def printed_by(code):
    """Return what a program prints that runs without an error."""
    command = [sys.executable, "-c", code]
    where = {"cwd": _files.project_root()}
    return subprocess.run(command, capture_output=True, text=True, check=True, **where).stdout


def start(*arguments, **more):
    """Start Python in a process of its own, which finds this library and the tests."""
    places = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, env=os.environ | places, text=True, **more)


def run_twice(program, folder):
    """Run a program in two processes of torchrun, its argument the folder; return the status."""
    script = folder / "script.py"
    script.write_text(program)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return start(*launcher, script, folder).wait(240)
