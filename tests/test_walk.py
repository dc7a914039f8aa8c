"""What one changed run passes, from `load` to a printed table: what a newcomer has to read."""

import subprocess
import sys

import pytest
from scripts import experiment

WALK = """
import sys
from pathlib import Path
import hnlib.experiments.runner, hnlib.images.task, hnlib.training.train
from hnbook.tables import table
from hnlib import experiments

package, passed = str(Path(hnlib.__file__).parent), []

def watch(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package) and code.co_name[0] != "<":
        passed.append((code.co_filename, code.co_name))

sys.setprofile(watch)
design = experiments.load("one", epochs=1, seeds="7", arms=["dcl"])
shown = table(experiments.lines(experiments.train(design, device="cpu")))
sys.setprofile(None)
files = [file for file, _ in passed]
moves = sum(a != b for a, b in zip(files, files[1:]))
assert "dcl" in str(shown)
print(len({*files}), len({*passed}), moves, len(passed))
"""


@pytest.mark.slow
def test_a_changed_run_passes_few_files_and_functions(new_checkout):
    """The limits are a little over what it is: 40 files, 340 functions, 610 moves between files."""
    root = new_checkout({"book/results/experiments/one.toml": experiment("0-1", epochs=2)})
    done = subprocess.run([sys.executable, "-c", WALK], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files, functions, moves, calls = map(int, done.stdout.split()[-4:])
    assert 20 < files <= 43 and functions <= 360 and moves <= 680 and calls <= 20_000
