"""The command line: what it passes on, and what bad input gets."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hnlib import __main__ as cli
from hnlib.book import build, execute, sweep
from hnlib.images import data as images
from hnlib.training import checkpoint, config, loop, records
from hnlib.training import run as training


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """What `hnlib train` asks `training.train` for, which does not train."""
    seen = SimpleNamespace(run=None, execution=None)

    def train(run, **execution):
        resolved, *_ = training.read_arguments({"dataset": run} | execution)
        method = checkpoint.room(type(run)).method_of(resolved)
        loop.check_schedule(method, resolved.schedule)
        loop.check_queue(method, resolved.queue)
        seen.run, seen.execution = run, execution
        record = {"configuration": run.configuration, "seconds": 1.0, "image_shape": [1, 8, 8]}
        metrics = {"knn": 0.5, "linear": 0.6} if isinstance(run, config.ImageRun) else {"svm": 0.7}
        return SimpleNamespace(record=record | {"metrics": metrics})

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(records, "default_folder", lambda: tmp_path)
    return seen


def test_commands_are_passed_on(monkeypatch):
    seen = []
    monkeypatch.setattr(build, "book", lambda **options: seen.append(options) or 0)
    monkeypatch.setattr(execute, "run", lambda *a, **k: seen.append((a, k)))
    assert cli.main(["book", "--only", "theory/*", "--jobs", "3"]) == 0
    assert cli.main(["run", "x", "-p", "a", "1", "-p", "b", "[2, 3]", "-o", "y.ipynb"]) == 0
    assert cli.main(["run", "x", "-p", "beta", "-1", "--timeout", "9"]) == 0
    assert seen == [
        {"only": "theory/*", "jobs": 3},
        (("x", {"a": "1", "b": "[2, 3]"}, "y.ipynb"), {"timeout": None}),
        (("x", {"beta": "-1"}, None), {"timeout": 9}),
    ]


def test_a_sweep_parses_its_own_arguments(monkeypatch):
    seen = []
    monkeypatch.setattr(sweep, "main", seen.append)
    assert cli.main(["sweep", "experiments/x", "--help", "--grid", "beta=0.5,1"]) == 0
    assert seen == [["experiments/x", "--help", "--grid", "beta=0.5,1"]]


def test_every_flag_of_an_image_run(trained, tmp_path, capsys):
    flags = (
        "--dataset digits --method hcl --encoder resnet18 --recipe hcl --epochs 3 --batch-size 32 "
        "--seed 7 --lr 1e-4 --lr-schedule cosine --weight-decay 0 --train-size 100 --validation 50 "
        "--augmentation simclr --schedule beta=1:0 --schedule tau_plus=0:0.1:2 --oracle-positives "
        "--reach-end --separate-views "
        "--queue 64 --momentum 0.9 --precision bf16-mixed --compile --evaluate-size 10 "
        "--protocols clean,paper --max-steps 5 --experiment x -o beta=-1 -o weights_gradient=false"
    )
    how = "--device cpu --evaluate-every 0 --evaluate-at 1,2 --restart"
    places = ["--checkpoint", "a b.pt", "--data-root", str(tmp_path), "--save", "run"]
    assert cli.main(["train", *flags.split(), *how.split(), *places]) == 0
    assert trained.run == config.ImageRun(
        dataset="digits",
        method="hcl",
        options={"beta": -1, "weights_gradient": False},
        encoder="resnet18",
        recipe="hcl",
        epochs=3,
        batch_size=32,
        seed=7,
        lr=1e-4,
        lr_schedule="cosine",
        weight_decay=0.0,
        train_size=100,
        validation=50,
        augmentation="simclr",
        schedule={"beta": [1.0, 0.0], "tau_plus": [0.0, 0.1, 2]},
        reach_end=True,
        separate_views=True,
        oracle_positives=True,
        queue=64,
        momentum=0.9,
        precision="bf16-mixed",
        compile=True,
        evaluate_size=10,
        protocols=("clean", "paper"),
        max_steps=5,
        experiment="x",
    )
    assert trained.execution.pop("save").name == "run"
    assert trained.execution | {"checkpoint": str(trained.execution["checkpoint"])} == dict(
        device="cpu",
        checkpoint="a b.pt",
        resume=False,
        data_root=tmp_path,
        record_to=tmp_path,
        progress=False,
        evaluate_every=0,
        evaluate_at=(1, 2),
    )
    printed = capsys.readouterr().out
    assert "hcl (beta=-1 " in printed or "hcl (temperature=0.5 beta=-1" in printed
    assert "kNN 50.0 %  linear 60.0 %" in printed and f"{tmp_path}" in printed
    assert "digits, 100 images, resnet18, 3 epochs, batch_size 32" in printed


def test_nothing_given_is_the_default_run(trained):
    assert cli.main(["train"]) == 0
    assert trained.run == config.ImageRun() and trained.execution["resume"] is True
    assert trained.execution["evaluate_every"] is None


def test_a_set_of_graphs_makes_a_run_on_graphs(trained, capsys):
    pytest.importorskip("torch_geometric")
    flags = (
        "--framework graphcl --layers 2 --hidden 8 --folds 5 --augmentations drop,mask --ratio 0.1"
    )
    command = ["train", "--dataset=MUTAG", *flags.split(), "--method", "scl", "--labels", "all"]
    assert cli.main([*command, "--evaluate-at", "0,1", "-o", "temperature=0.2"]) == 0
    assert trained.run == config.GraphRun(
        dataset="MUTAG",
        framework="graphcl",
        layers=2,
        hidden=8,
        folds=5,
        augmentations=("drop", "mask"),
        ratio=0.1,
        labels="all",
        method="scl",
        options={"temperature": 0.2},
    )
    assert trained.execution["evaluate_at"] == (0, 1)
    assert "SVM 70.0 %" in capsys.readouterr().out
    assert cli.main(["train", "--dataset", "MUTAG", "--encoder", "small-cnn"]) == 2
    assert "--encoder" in capsys.readouterr().err


def test_only_record_writes_where_the_book_looks(trained):
    assert cli.main(["train", "--record"]) == 0
    assert trained.execution["record_to"] == records.tracked_folder()


@pytest.mark.parametrize("kind", [config.ImageRun, config.GraphRun])
def test_help_names_every_flag(kind, capsys):
    if kind is config.GraphRun:
        pytest.importorskip("torch_geometric")
    dataset = {config.ImageRun: "digits", config.GraphRun: "motifs"}[kind]
    assert cli.main(["train", "--dataset", dataset, "--help"]) == 0
    printed = capsys.readouterr().out
    fields = config.given(kind).keys() | config.given(config.Execution).keys()
    for name in fields - {"options", "resume", "record_to", "progress"} | {"record"}:
        assert f"--{name.replace('_', '-')} " in printed
    assert "-o " in printed and "--restart" in printed and "hcl, " in printed


ODD = ["1_0", "٣", "nan", "inf", "1e", ".", "0x1", "1 0"]  # most of which float() reads


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "no/such/notebook"], "no notebook 'no/such/notebook'; known: "),
        (["run", "x", "-p", "a", "1", "-p", "a", "2"], "the parameter 'a' is given twice"),
        (["train", "--bach-size", "3"], "Unknown option: --bach-size"),
        (["train", "--epochs", "x"], "Invalid value for --epochs"),
        (["train", "--epochs"], "Parameter --epochs requires an argument"),
        (["train", "--epochs", "-1"], "epochs=-1 must be at least 0"),
        (["train", "--method", "hcl", "--method", "ot"], "Parameter --method specified multiple"),
        (["train", "--schedule", "beta=1"], "--schedule beta=1: write OPTION=START:END or"),
        (["train", "--protocols", "clean,dirty"], "unknown protocol 'dirty'"),
        (["train", "--evaluate-at", "1,x"], "--evaluate-at 1,x: write epochs with commas"),
        (["train", "-o", "beta"], "-o beta: an option is written KEY=VALUE, for example"),
        (["train", "-o", "beta=1", "-o", "beta=2"], "-o beta is given twice; leave one out"),
        (["train", "--schedule", "beta=1:0", "--schedule", "beta=2:0"], "--schedule beta is given"),
        (["train", "-o", "tol=-1", "--method", "ot"], "tol=-1 must be at least 0"),
        (["train", "-o", "tol=NaN", "--method", "ot"], "tol=nan must be at least 0"),
        (["train", "--seed", "1_0"], "'1_0' is not a whole number"),
        (["train", "--epochs", "٣"], "'٣' is not a whole number"),
        (["train", "-o", "name=1"], "simclr has no option 'name'; it has temperature"),
        (["train", "-o", "self=1"], "simclr has no option 'self'"),
        (["train", "-o", "temperature=" + "[" * 9999], "temperature=[...] must be positive"),
        (["train", "--seed", str(2**64)], "seed is too large a number"),
        (["train", "--seed", str(2**32)], "seed=4294967296 must lie in [0, 4294967295]"),
        (
            ["train", "--max-steps", "nan"],
            "Invalid value for --max-steps: 'nan' is not a whole num",
        ),
        (["train", "--epochs", "2.5"], "Invalid value for --epochs: '2.5' is not a whole number"),
        (["queue", "--seeds", "0"], "seeds=0 and minutes=10 must be positive numbers"),
        (["queue", "--run", "--minutes", "1e7"], "seeds=1 and minutes=1e+07 must be positive"),
        (["run", "x", "--timeout", "2.5"], "Invalid value for --timeout: '2.5' is not a whole"),
        (["book", "--jobs", "2.5"], "Invalid value for --jobs: '2.5' is not a whole number"),
        *((["train", "--lr", x], f"Invalid value for --lr: '{x}' is not a nu") for x in ODD),
        *((["train", "--schedule", f"beta={x}:0"], "write OPTION=START:END or") for x in ODD),
        *((["train", "--evaluate-at", x], "write epochs with commas between") for x in ODD),
        *((["queue", "--minutes", x], f"--minutes: '{x}' is not a number") for x in ODD),
        *((["sweep", "x", "--cpus", x], f"--cpus: '{x}' is not a number") for x in ODD),
        *((["sweep", "x", "--seeds", x], f"--seeds: '{x}' is not a whole num") for x in ODD),
        (["queue", "--seeds", "99999999999"], "seeds=99999999999 and minutes=10 must be positive"),
        (["queue", "--device", "vax"], "--device='vax' is unknown; use"),
        (["sweep", "experiments/images", "--seeds", "999999999999"], "at least 1 and at most 10,"),
        (["train", "--data-root", "a\0b"], r"data_root='a\x00b' is no name; leave it out"),
        (["train", "--restart"], "--restart means nothing without --checkpoint; leave it out"),
        (["train", "--lr", "1e999"], "Invalid value for --lr: '1e999' is too large a number"),
        (["train", "--experiment", "a\0"], r"experiment='a\x00' is no name; leave it out"),
        (
            ["train", "--dataset", "motifs", "--labels", "all"],
            "--labels all means nothing to infograph; leave it out",
        ),
        (["train", "--augmentation", ""], "--augmentation is given an empty value; leave it out"),
        (["train", "--experiment", " "], "--experiment is given an empty value"),
        (["train", "--checkpoint="], "--checkpoint is given an empty value"),
        (["results", "--folder", ""], "--folder is given an empty value"),
        (["train", "--momentum", "0.5"], "momentum=0.5 means nothing without queue"),
        (
            ["train", "--dataset", "MUTAG", "--ratio", "0.5"],
            "means nothing without framework=graph",
        ),
        (
            ["train", "--dataset", "MUTAG", "--augmentations", "drop"],
            "means nothing without framew",
        ),
        (["train", "-o", "seed=1"], "-o seed: this is not an option of a method; use --seed"),
        (["train", "-o", "batch_size=1"], "-o batch_size: this is not an option of a method; use"),
        (["data", "imagenet"], "unknown data set 'imagenet'; known: digits"),
        (["book", "--jobs", "many"], "Invalid value for --jobs"),
        (["results", "--folder", "no/such/folder"], "no/such/folder is not a folder; give the"),
        (["dance"], "Unknown command"),
    ],
)
def test_bad_input_is_one_sentence(capsys, trained, arguments, sentence):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("hnlib: ") and sentence in error and error.count("\n") == 1
    assert "Traceback" not in error and trained.run is None


HOSTILE = """
1 0 -1 0.5 1e3 -0.0 1_0 ٣ ²  beta=1_0:0 beta=-0.0:٣ 010 1_000 nan inf -inf 1e999 99999999999999999999 true None [1,2] {} = - -- -o beta=1
beta=1:0 beta=[1] beta= =1 name=1 a,b , hcl digits MUTAG --epochs --dataset --help ../x /dev/null é
"""
IMAGES = """
--epochs 3 --method hcl --dataset digits --seed 4 -o temperature=.2 --queue 8 --lr 1e-2
--lr-schedule cosine --batch-size 4 --schedule temperature=1:.5 --augmentation hcl --max-steps 1
--protocols paper,clean --evaluate-at 1,2 --checkpoint x.pt --train-size 50 --validation 20
--precision bf16-mixed --encoder resnet18 --recipe fast --experiment mine
"""
GRAPHS = """
--epochs 2 --method hcl --framework graphcl --ratio 0.1 --augmentations drop,mask --labels all --lr 1
--layers 2 --hidden 8 --folds 3 --batch-size 9 --seed 1 -o tau_plus=0.05 --schedule beta=1:0:2
"""
WORDS = st.sampled_from(HOSTILE.split())
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
FLAGS = sorted(
    {
        f"--{name.replace('_', '-')}"
        for name in config.given(config.ImageRun, config.GraphRun, config.Execution)
    }
    | {"-o", "--save", "--record", "--restart"}
)


STRANGE = st.lists(st.tuples(st.sampled_from(FLAGS), WORDS | TEXT), max_size=1)


@st.composite
def command_lines(draw):
    """Pairs of flag and value that go together, and often one that nobody meant."""
    words = draw(st.sampled_from([IMAGES, GRAPHS])).split()
    usual = st.sampled_from(list(zip(words[::2], words[1::2])))
    pairs = draw(st.lists(usual, max_size=6, unique=True)) + draw(STRANGE)
    return [("--dataset", "motifs")] * ("--layers" in words) + pairs


def said(name, text, value):
    """Whether a field holds what the command line said."""
    if isinstance(value, bool) or value is None or name == "schedule":
        return True
    if isinstance(value, int | float):
        return text.isascii() and "_" not in text and float(text) == value
    return str(config.words(value)) == text or isinstance(value, tuple)


@settings(
    deadline=None,
    max_examples=250,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(command_lines())
def test_whatever_the_command_line_it_is_obeyed_or_refused_in_a_sentence(trained, capsys, pairs):
    pytest.importorskip("torch_geometric")
    trained.run = None
    status = cli.main(["train", *(word for pair in pairs for word in pair)])
    printed = capsys.readouterr()
    if status:
        assert status == 2 and trained.run is None
        assert printed.err.startswith("hnlib: ") and printed.err.count("\n") == 1
    elif trained.run is not None:  # not --help
        assert not printed.err
        for flag, text in pairs:
            name = flag.removeprefix("--").replace("-", "_")
            held = vars(trained.run) | trained.execution
            assert name not in held or said(name, text, held[name]), (flag, text)
            if flag == "-o":
                assert text.partition("=")[0] in trained.run.options


@settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from(["data", "results"]), st.lists(WORDS | TEXT | st.just("--folder"), max_size=3)
)
def test_so_do_the_other_commands(tmp_path, monkeypatch, capsys, command, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(images, "describe", lambda name, root: images.load(name, root).name)
    monkeypatch.setenv("HNLIB_DATA", str(tmp_path))
    if "MUTAG" in words:
        return  # which would be downloaded
    status, printed = cli.main([command, *words]), capsys.readouterr()
    assert status in (0, 2) and (status == 0) == (not printed.err)
    assert status == 0 or (printed.err.startswith("hnlib: ") and printed.err.count("\n") == 1)


def test_interruption_has_its_own_status(monkeypatch, capsys):
    def interrupted(**options):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(build, "book", interrupted)
    before = {number: signal.getsignal(number) for number in cli.SIGNALS}
    assert cli.main(["data"]) == 0
    assert {number: signal.getsignal(number) for number in cli.SIGNALS} == before
    assert cli.main(["book"]) == 130
    assert capsys.readouterr().err == "hnlib: interrupted\n"
    for number, handler in before.items():
        assert signal.signal(number, handler) == signal.SIG_IGN  # the process is about to end


def test_a_package_that_is_not_there_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "hnlib.book.sweep", None)
    monkeypatch.delattr("hnlib.book.sweep")
    assert cli.main(["sweep"]) == 2
    assert "is missing; pip install 'hnlib[book]'" in capsys.readouterr().err


def test_the_fast_path_imports_nothing_heavy():
    """`hnlib book` with nothing to do must not wait for torch."""
    rooms = "hnlib.__main__, hnlib.book.build"
    code = f"import sys, {rooms}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_nothing_to_do_is_an_error(capsys):
    assert cli.main([]) == 2
    assert "train" in capsys.readouterr().out
