"""The commands that README and *Run it on your GPU* print, executed small."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from printed import commands_of
from scripts import ROOT, experiment

from hnlib import __main__ as cli

PRINTED = [
    x for page in ("README.md", "book/gpu.md") for x in commands_of((ROOT / page).read_text())
]
#: A word that is made small, or is the reader's → what stands in its place.
SMALLER = {
    r"\bcifar10\b": "digits",
    r"\bresnet(18|50)\b": "small-cnn",
    r"\bepochs (\d+)": "epochs 1",
    r"\bepochs=[\d,]+": "epochs=1",
    r"\btrain([_-])size \d+": r"train\1size 300",
    r"\bvalidation \d+": "validation 100",
    r"\bseeds \d+": "seeds 2",
    r"\bworkers \d+": "workers 2",
    r"\bnproc-per-node \d+": "nproc-per-node 2",
    r"images …": "images --dataset digits --train-size 64 --batch-size 32 --epochs 1 --device cpu",
}


def smaller(line: str) -> str:
    """Return a command with its size reduced by parameters alone."""
    for old, new in SMALLER.items():
        line = re.sub(old, new, line)
    if line.startswith("hnlib run"):
        line += " -p small True" * ("-p small True" not in line)
        line += " -p epochs 1" * ("epochs" not in line)
    return line


# `make small` executes a page at its own small parameters
TRAINS = re.compile(r"hnlib (run|train) (?!\S+ -p small True$)")
SMALL = sorted({smaller(line) for line in PRINTED if TRAINS.match(line)})
IN_A_SHELL = [smaller(x) for x in PRINTED if re.match(r"jupytext|torchrun", x)]
#: What README shows of a file, with a body.
SHOWN = re.compile(r"^```python\n(# my_loss.py.*?)\.\.\.\n```", re.M | re.S)
(HEAD,) = SHOWN.findall((ROOT / "README.md").read_text("utf-8"))
MY_LOSS = f"""from torch import arange, eye
from torch.nn.functional import cross_entropy

{HEAD}
    return cross_entropy((a @ b.T - margin * eye(len(a))) / t, arange(len(a)))
"""


@pytest.fixture
def cluster():
    """Ray on this machine, with what it takes for a GPU."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    node = dict(num_cpus=1, num_gpus=1, object_store_memory=100 * 2**20)
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=node)
    yield cluster.address
    cluster.shutdown()


@pytest.mark.parametrize("line", SMALL)
def test_a_printed_command_does_what_it_says(line, tmp_path, monkeypatch, request):
    monkeypatch.chdir(ROOT)
    if "--address auto" in line:
        line = line.replace("--address auto", f"--address {request.getfixturevalue('cluster')}")
    if "my_loss.py" in line:
        (tmp_path / "my_loss.py").write_text(MY_LOSS)
    for name in ("my_loss.py", "hcl.pt"):
        line = line.replace(name, f"{tmp_path}/{name}")
    writes = line.startswith("hnlib run") and "--plan" not in line
    where = ["-o", str(tmp_path / ("out" if "--grid" in line else "out.ipynb"))]
    assert cli.main(shlex.split(line)[1:] + where * writes) == 0
    assert len([*tmp_path.rglob("*.ipynb")]) == writes


@pytest.mark.parametrize("line", IN_A_SHELL)
def test_a_printed_command_is_one_of_the_shell(line, tmp_path):
    line = line.replace("out.ipynb", f"{tmp_path}/out.ipynb") + " -p small True" * ("|" in line)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = f"set -o pipefail; {line}"
    subprocess.run(["bash", "-ec", line], cwd=ROOT, env=os.environ | {"PATH": path}, check=True)
    assert "papermill" not in line or "small = True" in (tmp_path / "out.ipynb").read_text("utf-8")


def test_the_queue_is_listed_trained_and_empty(new_checkout, prints):
    new_checkout({"book/results/experiments/one.toml": experiment("0", epochs=1)})
    listed, trained = sorted({x for x in PRINTED if x.startswith("hnlib queue")}, key=len)
    assert (listed, trained) == ("hnlib queue", "hnlib queue --run --minutes 50")
    assert "one" in prints(*listed.split()[1:])
    prints(*trained.split()[1:], "--device", "cpu")
    assert prints(*listed.split()[1:]) == "no experiment waits for runs\n"
