"""Every command that a page prints is executed by a test or by CI, or it is said why not."""

import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest
from packaging.requirements import Requirement
from printed import PAGES, commands_of
from scripts import ROOT
from test_own_data import collection
from test_page_parameters import PAGES as TRAINING
from test_page_parameters import designs

from builder import portable_notebooks
from hnlib import __main__ as cli
from hnlib import commands, experiments
from hnlib.notebooks import execute, report
from hnlib.training import records
from hnlib.training import train as training

PRINTED = {
    page.relative_to(ROOT).as_posix(): commands_of(page.read_text("utf-8")) for page in PAGES
}
EVERY = sorted({line for lines in PRINTED.values() for line in lines})
#: Those of `hnlib` with arguments, of which each is taken at least.
TAKEN = [x for x in EVERY if x.startswith("hnlib ") and len(x.split()) > 2 and "…" not in x]
TAKEN = [x for x in TAKEN if x not in ("hnlib results --add", "hnlib train rows")]  # only named
MY_LOSS = """CONFIGURATIONS = [{"t": 0.1}]


def loss(a, b, t):
    return (a - b).square().sum() / t
"""
PIP = r"pip install .*(hnlib|-e ).*"

#: Commands → the file that executes them, with their size reduced, and a word of it. The first
#: that fits counts.
EXECUTED = {
    r"pip install '\./hnlib.*": (".github/workflows/book.yml", "make installs"),
    PIP: ("tests/test_printed_commands.py", "test_what_is_installed_exists"),
    r"python examples/beir\.py .*": ("tests/test_printed_commands.py", "examples/beir.py"),
    r"python -m hnbook\.headlines (?!NAME).*": ("tests/test_printed_commands.py", "-m hnbook"),
    r"python examples/hcl_cifar10\.py --epochs 1 .*": ("tests/test_example.py", '"--width", "8"'),
    r"hnlib --help": ("tests/test_printed_commands.py", '"--help"'),
    r"hnlib profile my_loss\.py": ("tests/test_profile.py", 'prints("profile", mine)'),
    r"hnlib null my_loss\.py --quick": ("tests/test_ctrl_c.py", '"waits.py", "--quick"'),
    r"hnlib speed": ("tests/test_speed.py", '"speed"'),
    r"(\S*/)?hnlib queue --only digits": ("tests/test_contributing.py", '"queue", "--only"'),
    r"hnlib results": ("tests/test_contributing.py", 'prints("results"'),
    r"hnlib results --add.*": ("tests/test_contributing.py", '"results", "--add"'),
    r"hnlib results --compact": ("tests/test_parts.py", '"results", "--compact"'),
    r"hnlib run \S+ -p small True": (".ci/run", "make small"),
    r"hnlib (run|train|queue)( .*)?|torchrun .*|jupytext .*": (
        "tests/pages/test_commands.py",
        "commands_of",
    ),
    r"\.venv/bin/python -c .*": ("tests/test_contributing.py", "exec(PRINTED"),
    r"python -m tests\.simulated_device .*": ("Makefile", "-m tests.simulated_device"),
    r"make beside": (".github/workflows/book.yml", "make beside"),
    r"make device": (".github/workflows/book.yml", "make device"),
    r"make wheel": (".github/workflows/release.yml", "make wheel"),
    r"bash \.ci/run": (".github/workflows/book.yml", "bash .ci/run"),
    r"make (lint|test|book|small|pdf|pages|mutants)": (".ci/run", "make mutants"),
    r"PYTHONPATH=book \S+ -m builder beside .*": (".github/workflows/book.yml", "make beside"),
    r"make environment": ("Makefile", "test: $(READY)"),  # the first step of all others
}
#: Commands → why nothing executes them.
EXCUSED = {
    r"hnlib (run|train|null|profile|results --add)|hnlib train rows|pip install": "only named",
    r".*(NAME|FOLDER).*|hnlib run notebooks/…/.*": "has a blank to be filled in",
    r"hnlib null (my_loss\.py|identity).*": "takes an hour; test_null.py trains such a comparison",
    r"hnlib data (cifar10|banking77)": "downloads; test_data.py gives it the archives",
    r"python examples/hcl_cifar10\.py --epochs 100 .*": "takes a GPU and a download",
    r"export .*|source .*": "of the shell",
    r"make check": "a part of make test",
    r"make book ONLY=.*": "a part of make book; test_notebooks.py has its own",
    r"make (clean|serve|format)": "removes, waits or edits",
    r"make lock.*|make environment && .*pre-commit.*|pip index .*": "asks PyPI or a repository",
    r"make repository URL=…": "edits the sources",
    r"\.venv/bin/python -m pytest .*": "a part of make test, after the steps of that page",
    r"python \.ci/format_cells\.py": "edits; make lint checks what it would",
    r"PYTHONPATH=book .*golden\.py": "writes what tests/pages/test_golden.py compares",
    r"python (tests/benchmarks|book/recorders|book/theme)/.*": "measures or draws on a quiet machine",
    r"myst build .*": "mystmd is not installed",
}
STRICT = ("README.md", "book/gpu.md")


def matching(command, table):
    """Return the first pattern that is the whole of a command."""
    return next((one for one in table if re.fullmatch(one, command, re.S)), None)


@pytest.mark.parametrize("page", [page for page, lines in PRINTED.items() if lines])
def test_a_printed_command_is_executed_or_excused(page):
    """Elsewhere than in the README and on the GPU's page it is enough that `hnlib` takes it."""
    for command in PRINTED[page]:
        reasons = [*EXECUTED, *EXCUSED] if page in STRICT else [*EXECUTED, *EXCUSED, *TAKEN]
        assert matching(command, reasons) or command in reasons, command
    assert matching("hnlib frobnicate my_loss.py", [*EXECUTED, *EXCUSED]) is None


@pytest.mark.parametrize("pattern", [*EXECUTED, *EXCUSED])
def test_what_is_executed_or_excused_is_printed(pattern):
    assert any(matching(command, [pattern]) for command in EVERY)
    file, word = EXECUTED.get(pattern, ("Makefile", ""))
    assert word in (ROOT / file).read_text("utf-8")


def test_a_target_of_make_exists():
    made = {x.split()[1] for x in EVERY if x.startswith("make ")}
    targets = {*re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.M)}
    assert len(made) > 10 and made <= targets


def test_what_is_installed_exists():
    """The wheel of this version, with extras that it has; an editable install from the checkout."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    lines = [line for line in EVERY if re.fullmatch(PIP, line)]
    assert len(lines) > 8
    for line in lines:
        *_, last = shlex.split(line)
        place, _, more = last.partition("[")
        wanted = Requirement(f"hnlib[{more}" if more else "hnlib").extras
        assert wanted <= extras.keys(), line
        assert place in ("hnlib", ".", f"./{portable_notebooks.WHEEL}"), line


@pytest.mark.slow
@pytest.mark.parametrize("line", TAKEN)
def test_a_printed_command_is_taken(line, monkeypatch, tmp_path):
    """It does what it does up to where it would train, execute or download."""
    own = collection(tmp_path / "own", 600) if "folder:PATH" in line else ""
    (tmp_path / "my_loss.py").write_text(MY_LOSS, "utf-8")
    given = {"folder:PATH": own, "hf:PATH": f"hf:{tmp_path}", " my_loss": f" {tmp_path}/my_loss"}
    for placeholder, there in given.items():
        line = line.replace(placeholder, there)
    words = shlex.split(line)[1:]
    if words[0] == "train" or "--grid" in words:
        assert cli.main([word for word in words if word != "--dry-run"] + ["--dry-run"]) == 0
    elif words[0] == "run":
        monkeypatch.setattr(execute, "execute", lambda *notebook, **how: 0.0)
        monkeypatch.setattr(report, "write", lambda made, *about: made)
        assert cli.main(words) == 0
    else:
        commands.app.parse_args(words, print_error=False, exit_on_error=False)


def test_help_lists_the_commands(prints):
    assert {"train", "run", "null"} <= {*re.findall(r"^│ (\w+)", prints("--help"), re.M)}


@pytest.mark.slow
@pytest.mark.parametrize("line", [x for x in EVERY if x.startswith("python examples/beir.py")])
def test_the_example_of_a_collection_searches_a_folder(line, tmp_path):
    words = shlex.split(line.replace("folder:PATH", collection(tmp_path / "own")))
    command = [sys.executable, *words[1:], "--epochs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "nDCG@10" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("line", [x for x in EVERY if re.match("python -m hnbook.*[a-z]$", x)])
def test_a_headline_is_reported(line):
    words = shlex.split(line)[1:]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) > 5, done.stderr


def test_the_page_of_the_title_recalls_the_one_run(monkeypatch):
    """The record of `hnlib train` on the GPU's page has the key of a run of the page above it."""
    one, page = (
        next(x for x in PRINTED["book/gpu.md"] if x.startswith(f"hnlib {start}"))
        for start in ("train images", "run experiments/hardness-or-temperature -p dataset")
    )
    asked = []

    def train(run, **how):
        asked.append(run.resolved())
        raise ValueError("enough")

    monkeypatch.setattr(training, "train", train)
    assert cli.main(shlex.split(one)[1:]) == 2
    words = shlex.split(page)
    pairs = [(words[i + 1], words[i + 2]) for i, word in enumerate(words) if word == "-p"]
    _, defaults = TRAINING["hardness-or-temperature"]
    given = execute.guard_parameters(defaults, dict(pairs))
    every = designs("hardness-or-temperature", monkeypatch, **given)
    keys = {key for design in every for key in experiments.found(design).planned()}
    (run,) = asked
    assert records.key(run.configuration) in keys
    assert records.key(replace(run, train_size=None).configuration) not in keys
