"""Programs in processes of their own."""

import os
import subprocess
import sys

from hnlib import _files

START = r"""
import sys, torch
from torch import distributed, nn
from hnlib import methods
from hnlib.distributed import gather

rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
"""
END = "\ndistributed.destroy_process_group()\n"


def two_processes(program, folder):
    """Run it as rank 0 and 1 of a group, `rank` and `folder` being theirs; how both exited."""
    command = [sys.executable, "-c", START + program + END]
    started = [
        subprocess.Popen([*command, str(rank), str(folder)], cwd=_files.project_root())
        for rank in (0, 1)
    ]
    return [process.wait(timeout=240) for process in started]


def printed_by(code):
    """Return what a program prints that runs without an error."""
    command = [sys.executable, "-c", code]
    where = {"cwd": _files.project_root()}
    return subprocess.run(command, capture_output=True, text=True, check=True, **where).stdout


def start(*arguments, environment=None, **more):
    """Start Python in a process of its own, which finds this library and the tests."""
    root = _files.project_root()
    places = {"PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(
        command, env=os.environ | places | (environment or {}), text=True, **more
    )
