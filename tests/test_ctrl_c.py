"""Ctrl-C in a terminal: a training saves its state, one line says how to go on, and it goes on."""

import os
import re
import signal
import subprocess
import time

import pytest
from processes import start
from scripts import HEAD, ROOT, experiment

from hnlib.training import store

PAGE = f"""{HEAD}# A page

```{{code-cell}} ipython3
:tags: [parameters]
loss = None
engine = None
```

```{{code-cell}} ipython3
from hnlib import experiments

design = experiments.load("slow", loss=loss, arms=["waits*"])
found = experiments.train(design, engine=engine, device="cpu")
```
"""
# Its trainings wait for Ctrl-C after the first epoch, until a file says that they need not.
LOSS = """
import os
import time
from pathlib import Path

import torch

from hnlib.training import loop

CONFIGURATIONS = [dict(temperature=0.5)]
HERE = Path(__file__).parent
train = loop.Loop._train_epoch


def wait(self, checkpoint):
    if self.progress.epoch == 1 and not (HERE / "again").exists():
        (HERE / f"begun-{os.getpid()}").touch()
        time.sleep(600)
    return train(self, checkpoint)


loop.Loop._train_epoch = wait


def loss(a, b, temperature):
    return torch.nn.functional.cross_entropy(a @ b.T / temperature, torch.arange(len(a)))
"""
# The command line, for methods of the catalogue.
WAITING = "import sys, waits; from hnlib import __main__ as cli; sys.exit(cli.main(sys.argv[1:]))"


@pytest.fixture
def checkout(new_checkout):
    """A page of an experiment with a loss that waits."""
    texts = {"book/results/experiments/slow.toml": experiment("0-1", epochs=3), "waits.py": LOSS}
    return new_checkout(texts | {"notebooks/one.md": PAGE})


def interrupted(folder, arguments, count=1):
    """Return the last line of a command that gets Ctrl-C once so many trainings wait."""
    process = start(
        *arguments,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        while len([*folder.glob("begun-*")]) < count and process.poll() is None:
            time.sleep(0.05)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130, said
    assert not re.search("Traceback|Error|Warning", said), said
    (folder / "again").touch()
    return said.splitlines()[-1]


def sessions(folder, arguments):
    """Repeat a command, to its end; return how many processes worked on each recorded run."""
    assert start(*arguments, cwd=folder, stdout=subprocess.DEVNULL).wait() == 0
    runs = store.read(folder / "_build/results")
    return sorted(len(one["sessions"]) if "sessions" in one else 1 for one in runs)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "waiting"), [("here", 1), ("processes", 2)])
def test_a_page_goes_on_from_the_epoch_in_which_it_was_interrupted(checkout, engine, waiting):
    command = f"-m hnlib run one -p loss waits.py --engine {engine}".split()
    said = interrupted(checkout, command, waiting)
    assert re.search("repeat the same call|the same command goes on", said)
    assert not [*checkout.rglob("*.ipynb")]
    assert sessions(checkout, command) == ([1, 2] if waiting == 1 else [2, 2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "worked"),
    [
        ("queue --run --device cpu", [1, 2]),
        ("train images --epochs 3 --train-size 64 --batch-size 32 --checkpoint one.pt", [2]),
    ],
)
def test_a_command_goes_on_from_the_epoch_in_which_it_was_interrupted(checkout, command, worked):
    command = ["-c", WAITING, *command.split()]
    said = interrupted(checkout, command)
    assert said.startswith("hnlib: stopped after 1 of 3 epochs; repeat the same call to resume")
    assert sessions(checkout, command) == worked


@pytest.mark.slow
def test_a_null_model_keeps_the_epochs_of_all_its_trainings(checkout):
    protocol = "book/results/experiments/null-3.toml"
    (checkout / protocol).write_text((ROOT / protocol).read_text("utf-8"))
    said = interrupted(checkout, ["-m", "hnlib", "null", "waits.py", "--quick"], 2)
    assert said == "hnlib: interrupted; the same command goes on from there"
    assert len([*checkout.rglob("*.pt")]) == 2
