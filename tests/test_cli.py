"""The command line: what it passes on, and what bad input gets."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from hnlib import __main__ as cli
from hnlib import notebooks


def test_commands_are_passed_on(monkeypatch):
    seen = []
    monkeypatch.setattr(notebooks, "book", lambda **options: seen.append(options) or 0)
    monkeypatch.setattr(notebooks, "run", lambda *a, **k: seen.append((a, k)))
    assert cli.main(["book", "--only", "theory/*", "--jobs", "3"]) == 0
    assert cli.main(["run", "x", "-p", "a", "1", "-p", "b", "[2, 3]", "-o", "y.ipynb"]) == 0
    assert seen == [
        {"only": "theory/*", "jobs": 3},
        (("x", {"a": "1", "b": "[2, 3]"}, "y.ipynb"), {"timeout": None}),
    ]


@pytest.mark.parametrize(("command", "room"), [("train", "training"), ("data", "data"), ("results", "records"),
                                               ("sweep", "sweep")])
def test_rooms_parse_their_own_arguments(monkeypatch, command, room):
    seen = []
    fake = SimpleNamespace(main=lambda argv: seen.append(argv))
    monkeypatch.setattr(cli, "import_module", lambda name: fake if name == f"hnlib.{room}" else None)
    assert cli.main([command, "--help", "-o", "beta=1"]) == 0
    assert seen == [["--help", "-o", "beta=1"]]


def test_bad_input_is_one_sentence(capsys):
    assert cli.main(["run", "no/such/notebook"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hnlib: no notebook 'no/such/notebook'; known: ")
    assert "Traceback" not in error
    assert error.count("\n") == 1


def test_a_parameter_given_twice_is_refused(capsys):
    assert cli.main(["run", "x", "-p", "a", "1", "-p", "a", "2"]) == 2
    assert "'a' is given twice" in capsys.readouterr().err


def test_interruption_has_its_own_status(monkeypatch):
    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr(notebooks, "book", interrupted)
    assert cli.main(["book"]) == 130


def test_the_fast_path_imports_nothing_heavy():
    """`hnlib book` with nothing to do must not wait for torch."""
    code = "import sys, hnlib.__main__, hnlib.notebooks, hnlib.ledgers; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
