"""Methods, trainings and read-outs on a simulated device, in a process of their own.

A device is registered for a whole process: tests beside these would see it.
"""

import subprocess
import sys

import pytest
from scripts import ROOT


@pytest.mark.slow
def test_everything_runs_on_a_simulated_device():
    command = [sys.executable, "-m", "pytest", "-q", "tests/simulated_device_cases.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "passed" in done.stdout
