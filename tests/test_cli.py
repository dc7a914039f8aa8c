"""The command line: what it passes on, and what bad input gets."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import printed_by

from builder.own_data import collection as write_collection
from builder.own_data import pictures
from hnlib import __main__ as cli
from hnlib.images.config import ImageRun
from hnlib.notebooks import execute
from hnlib.training import kinds, records
from hnlib.training import train as training
from hnlib.training.config import Execution


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """What `hnlib train` asks `train` for, which does not train."""
    seen = SimpleNamespace(run=None, execution=None)

    def train(run, **execution):
        seen.run, seen.execution = run, execution
        seen.record = {"configuration": run.configuration | {"dataset_digest": "0"}, "seconds": 1.0}
        return SimpleNamespace(record=seen.record, metrics={"knn": 0.5, "svm": 0.7})

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(records, "default_folder", lambda: tmp_path)
    return seen


def test_commands_are_passed_on(monkeypatch):
    seen = []
    monkeypatch.setattr(execute, "run", lambda *given: seen.append(given))
    assert cli.main(["run", "x", "-p", "a", "1", "-p", "b", "[2, 3]", "-o", "y.ipynb"]) == 0
    assert cli.main(["run", "x", "-p", "beta", "-1"]) == 0
    grid = '{"temperature": [0.1]}'  # JSON is a value like any other
    assert cli.main(["run", "x", "-p", "grid", grid, "-p", "lr", "0.1"]) == 0
    assert cli.main(["run", "x", "--engine", "ray", "--gpus", "0.5"]) == 0
    assert seen == [
        ("x", {"a": "1", "b": "[2, 3]"}, Path("y.ipynb")),
        ("x", {"beta": "-1"}, None),
        ("x", {"grid": grid, "lr": "0.1"}, None),
        ("x", {"engine": '{"engine": "ray", "gpus": 0.5}'}, None),
    ]


def test_flags_of_an_image_run(trained, tmp_path, prints):
    flags = (
        "--dataset digits --method hcl --epochs 3 --schedule beta=1:0 --schedule tau_plus=0:0.1:2 "
        "--protocols clean paper -o temperature=2 -o weights_gradient=False --device cpu --restart"
    )
    printed = prints("train", "images", *flags.split(), "--checkpoint", "a b.pt")
    assert trained.run == ImageRun(
        dataset="digits",
        method="hcl",
        epochs=3,
        options={"temperature": 2, "weights_gradient": False},
        schedule={"beta": [1.0, 0.0], "tau_plus": [0.0, 0.1, 2]},
        protocols=("clean", "paper"),
    )
    places = dict(checkpoint=Path("a b.pt"), record_to=tmp_path)
    how = dict(device="cpu", resume=False, progress=False)
    assert trained.execution == vars(Execution(**places, **how))
    assert "knn 50.0 %" in printed and f"in {tmp_path / 'images.jsonl'}" in printed


def test_a_dry_run_shows_what_would_be_trained(trained, prints):
    chosen = ["--method", "hcl", "--recipe", "hcl", "-o", "beta=2"]
    printed = prints("train", "images", "--dry-run", *chosen)
    assert trained.run is None
    lines = dict(line.split(maxsplit=1) for line in printed.splitlines())
    assert lines["epochs"] == "400" and "beta=2,tau_plus=0.1" in lines["options"]


@pytest.mark.parametrize("kind", [x for x in kinds.KINDS if kinds.run_class(x).datasets])
def test_nothing_given_is_the_default_run(trained, kind):
    assert cli.main(["train", kind]) == 0
    assert trained.run == kinds.run_class(kind)()
    assert trained.execution["resume"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train images --epochs 2.5", "epochs must be a valid integer"),
        ("train images -o beta", "'beta' must be KEY=VALUE"),
        ("train images --schedule beta=1:30:x", "KEY=START:END:STEPS, such as beta=1:0:5"),
        ("train images -o beta=1 -o beta=2", "option 'beta' is given twice"),
        ("train retrieval --dry-run --method h-scl", "method h-scl needs class labels; choose"),
        ("train images --protocols clean,paper", "got 'clean,paper'; separate values by spaces"),
        ("run no/such/notebook", "no notebook 'no/such/notebook'"),
        ("data imagenet", "data set 'imagenet' is unknown; choose from digits"),
        ("run one-choice --grid t=1 --grid t=2", "parameter 't' is given twice"),
        ("run one-choice --plan -o x.ipynb", "writes nothing; leave out --grid and -o"),
        ("queue --only typo", "no experiment is named like 'typo'"),
        ("profile simclr", "name a loss as FILE.py or FILE.py:NAME, got simclr"),
        ("dance", "Unknown command"),
    ],
)
def test_bad_input_is_one_line(refuses, trained, arguments, message):
    assert message in refuses(*arguments.split())
    assert trained.run is None


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        ("images --encoder vgg", "encoder must be one of small-cnn, resnet18, resnet50, got 'vgg'"),
        ("graphs --encoder vgg", "encoder must be one of gin1, gin2, …, gin99, got 'vgg'"),
        ("sentences --encoder vgg", "encoder must be one of bag, gru, got 'vgg'"),
        ("retrieval --encoder vgg", "must be one of bag, gru, static, minilm, hf:PATH, got 'vgg'"),
        ("retrieval --encoder hf:", "hf:PATH, got 'hf:'"),
        ("images --dataset mnist", "one of digits, cifar10, .*, folder:PATH, got 'mnist'"),
        ("graphs --dataset mnist", "dataset must be one of motifs, MUTAG, .*, got 'mnist'"),
        ("sentences --dataset mnist", "must be one of topics, novels, text:PATH, got 'mnist'"),
        ("retrieval --dataset mnist", "one of generated, scifact, .*, folder:PATH, got 'mnist'"),
    ],
)
@pytest.mark.parametrize("how", ["", "--dry-run"])
def test_an_unknown_encoder_or_data_set_is_refused_before_anything_is_read(
    refuses, trained, arguments, choices, how
):
    assert re.search(choices, refuses("train", *arguments.split(), *how.split()))
    assert trained.run is None


def test_a_path_of_ones_own_and_a_folder_beside_the_collections_are_known(tmp_path):
    write_collection(tmp_path / "retrieval/mine", 600)
    pictures(tmp_path / "pictures", (5, 400))
    own = (("images", f"folder:{tmp_path}/pictures@64"), ("graphs", f"folder:{tmp_path}"))
    for kind, name in (*own, ("images", "folder:recorded-0123abcd@64"), ("retrieval", "mine")):
        kinds.run_class(kind)(dataset=name).check_names(tmp_path)
    kinds.run_class("retrieval")(encoder=f"hf:{tmp_path}").check_names(tmp_path)
    for kind, fields in (
        ("images", {"dataset": "folder:x@64"}),
        ("sentences", {"dataset": "text:x"}),
        ("graphs", {"dataset": "folder:x"}),
        ("retrieval", {"encoder": "hf:x"}),
    ):
        with pytest.raises(ValueError, match=r"that is there, got '(folder|text|hf):x"):
            kinds.run_class(kind)(**fields).check_names(tmp_path)
    kinds.run_class("images")(dataset="x", encoder="y").check_names(given=("dataset", "encoder"))
    with pytest.raises(ValueError, match="got 'mine'"):
        kinds.run_class("retrieval")(dataset="mine").check_names(tmp_path / "other")


@pytest.mark.slow
def test_output_may_be_cut_off_and_go_to_an_old_terminal():
    command = [sys.executable, "-m", "hnlib", "results"]
    piped = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, **piped) as head:
        assert head.stdout.readline().startswith(b"/")
        head.stdout.close()  # as head does when it has its lines
        assert head.stderr.read() == b""
    assert head.returncode == 0


@pytest.mark.slow
def test_a_command_imports_only_what_it_uses():
    code = (
        "import sys; from hnlib.__main__ import main\n"
        "main(['data'])\nprint({'torch', 'pandas'} & sys.modules.keys())\n"
        "main(['results', '--folder', 'tests'])\nprint('torch' in sys.modules)"
    )
    lines = printed_by(code).splitlines()
    assert "set()" in lines and lines[-1] == "False"
