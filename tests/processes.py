"""Programs that two processes run together."""

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
