"""What CONTRIBUTING shows is true: its method agrees with its reference, its rows of numbers train,
its chapter runs."""

import pkgutil
import re
from pathlib import Path

import jupytext
import pytest
import reference
import test_figures
import torch

from hnlib import methods, negatives
from hnlib.book import execute, figures
from hnlib.training import checkpoint, config, loop

ROOT = Path(__file__).resolve().parents[1]
TEXT, CHANGES = ((ROOT / f"{name}.md").read_text() for name in ("CONTRIBUTING", "CHANGELOG"))
#: File → its code; the first line of a block names the file.
SHOWN = dict(re.findall(r"^```python\n# (\S+?)(?:, [^\n]*)?\n(.*?)^```", TEXT, re.M | re.S))


def executed(file, names):
    """The names that exist where the code of `file` would stand, and those that it makes."""
    names = dict(names)
    exec(compile(SHOWN[file], file, "exec", dont_inherit=True), names)
    return names


def test_the_method_is_the_one_of_its_reference_and_fits_into_twenty_lines(monkeypatch):
    theirs = executed("tests/reference.py", vars(reference))["power"]
    weighting = executed("hnlib/negatives.py", vars(negatives) | {"__name__": "hnlib.negatives"})
    monkeypatch.setattr(negatives, "power", weighting["power"], raising=False)
    row = executed("hnlib/methods.py", vars(methods) | {"CATALOGUE": {}})["CATALOGUE"]["power"]
    monkeypatch.setitem(methods.CATALOGUE, "power", row)
    g = torch.Generator().manual_seed(0)
    z1, z2 = torch.randn(2, 6, 4, generator=g, dtype=torch.float64)
    for options in ({}, {"beta": 3.0}, {"temperature": 0.3}):
        loss = methods.build("power", **options)(z1, z2)
        assert float(loss) == pytest.approx(float(theirs(z1, z2, None, **options)), rel=1e-9)
        other = methods.build("power", **options | {"beta": 5.0})(z1, z2)
        assert abs(loss - other) > 1e-4, "negative control"
    with pytest.raises(ValueError, match="beta must be a finite number, got nan"):
        methods.build("power", beta=float("nan"))
    colour = executed("hnlib/book/figures.py", {"COLOURS": {}})["COLOURS"]["power"]
    monkeypatch.setitem(figures.COLOURS, "power", colour)
    test_figures.test_no_two_methods_look_alike()
    test_figures.test_colours_read_on_light_and_dark()
    monkeypatch.setitem(figures.COLOURS, "power", "#3f8f6b")  # as the text once had it
    with pytest.raises(AssertionError, match="h-scl"):
        test_figures.test_no_two_methods_look_alike()
    files = (
        "hnlib/negatives.py",
        "hnlib/methods.py",
        "hnlib/book/figures.py",
        "tests/reference.py",
    )
    lines = [line for file in files for line in SHOWN[file].splitlines() if line]
    assert len(lines) + 1 < 20  # and one in METHODS


def test_the_loop_trains_rows_of_numbers_and_learns():
    rows = executed("hnlib/rows/modality.py", {"__name__": "rows"})["Rows"]
    kind = executed("hnlib/training/config.py", vars(config))["RowRun"]
    assert kind(noise=0.5).name != kind().name == kind(noise=1.0).name
    run = kind(epochs=15, batch_size=32, lr=1e-2).resolved()
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(128) % 4
    x = 5 * torch.randn(4, 6, generator=g)[labels] + 0.3 * torch.randn(128, 6, generator=g)

    def trained(method):
        modality = rows(x, labels, run.batch_size)
        training = loop.Loop(
            loop.launch("cpu", run.precision),
            modality,
            methods.build(method),
            run,
            lambda epoch: False,
        )
        nowhere = checkpoint.Checkpoint(None, {})
        training.train(lambda *_: None, nowhere, lambda _: None, progress=False)
        return training.progress

    for method in ("hcl", "scl"):
        course = trained(method)
        assert course.epoch == 15 and course.step == 15 * 4
        assert course.losses[-1] < course.losses[0] - 0.05
        assert trained(method).losses == course.losses, "bitwise the same again"


def test_the_chapter_is_one(tmp_path):
    (source,) = re.findall(r"^````md\n(.*?)^````", TEXT, re.M | re.S)
    chapter = jupytext.reads(source, fmt="md:myst")
    assert set(execute.parameters_of(chapter)) == {"temperatures", "epochs"}
    names = {"temperatures": [0.2], "epochs": 1}
    for cell in chapter.cells:
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            exec(cell.source, names)
    assert list(names["frame"].temperature) == [0.2]


def test_what_else_it_names_exists():
    files = {name for name in re.findall(r"`([\w./]+\.(?:py|toml|yml|csv|md))`", TEXT)}
    missing = {file for file in files if not list(ROOT.rglob(file.rpartition("/")[2]))}
    assert missing == {"hnlib/runs/row_runs.py"}, "the file that the example would add"


def test_the_rooms_that_the_changelog_points_to_exist():
    rows = re.findall(r"^\|(.*)\|(.*)\|$", CHANGES, re.M)[2:]
    assert len(rows) > 15
    for name in {name for _, new in rows for name in re.findall(r"`(hnlib\.[\w.]+)`", new)}:
        assert pkgutil.resolve_name(name), name
    for old, _ in rows:  # negative control: what it says has gone has gone
        for name in re.findall(r"`(hnlib\.(?!graphs|methods)\w+)`", old):
            with pytest.raises((ImportError, AttributeError)):
                pkgutil.resolve_name(name)
