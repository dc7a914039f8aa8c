"""Settings for all tests: the same random examples everywhere, and no test downloads anything."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("HNLIB_DATA", None)  # tests use embedded data, whatever else is on the machine
# `nohup` and `&` ignore Ctrl-C, which the processes that tests start would inherit
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("hnlib", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("hnlib")


@pytest.fixture
def _ends(capsys):
    """_ends(status, words) runs a command that ends with this status; it returns the texts."""

    def run(status, words):
        from hnlib import __main__ as cli

        assert cli.main([*map(str, words)]) == status
        return capsys.readouterr()

    return run


@pytest.fixture
def refuses(_ends):
    """refuses(*words) runs a command that is refused and returns its one line."""

    def run(*words):
        error = _ends(2, words).err
        assert error.startswith("hnlib: ") and error.count("\n") == 1
        return error

    return run


@pytest.fixture
def prints(_ends):
    """prints(*words) runs a command that succeeds and returns what it prints."""
    return lambda *words: _ends(0, words).out


@pytest.fixture
def new_checkout(tmp_path, monkeypatch):
    """new_checkout(files) makes a folder with these texts, by their names, the checkout."""
    from scripts import forget

    def make(files):
        for name, text in ({"_toc.yml": "format: jb-book\nroot: notebooks/one\n"} | files).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        for folder in ("notebooks", "book/results/records", "book/results/experiments"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name in ("HNLIB_RECALL", "HNLIB_RECORDS"):
            monkeypatch.delenv(name, raising=False)
        forget()
        monkeypatch.chdir(tmp_path)
        return tmp_path

    yield make
    forget()


@pytest.fixture
def tracked(tmp_path, monkeypatch):
    """An empty tracked folder."""
    from hnlib.training import records

    folder = tmp_path / "tracked"
    folder.mkdir()
    monkeypatch.setattr(records, "tracked", lambda: folder)
    return folder
