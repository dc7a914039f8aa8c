"""What CONTRIBUTING shows is true: its method agrees with its reference, its rows of numbers train,
its chapter runs."""

import importlib
import re
import sys

import jupytext
import pytest
import reference
import torch
from scripts import ROOT

import hnlib
from hnbook.tables import format_value
from hnlib import __main__ as cli
from hnlib import experiments, methods, negatives
from hnlib.notebooks import execute
from hnlib.training import kinds, records
from hnlib.training.train import load, train

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
#: File → its code; the first line of a block names the file.
SHOWN = dict(re.findall(r"^```python\n# (\S+?)(?:, [^\n]*)?\n(.*?)^```", TEXT, re.M | re.S))


#: The experiment that the text shows.
EXPERIMENT = re.search(r"^```toml\n# \S+/digits.toml\n(.*?)^```", TEXT, re.M | re.S)[1]


#: What prints its table and verdict in a shell.
PRINTED = re.search(r"^\.venv/bin/python -c '(.*?)'$", TEXT, re.M | re.S)[1]


#: The chapters that the text shows: of the experiment, and a whole one.
MEASURED, CHAPTER = re.findall(r"^````md\n(.*?)^````", TEXT, re.M | re.S)


@pytest.fixture
def checkout(new_checkout):
    """A checkout without records, with the experiment and its chapter."""
    return new_checkout(
        {
            "book/results/experiments/digits.toml": EXPERIMENT,
            "notebooks/experiments/digits.md": MEASURED,
        }
    )


@pytest.mark.slow
def test_an_experiment_is_a_file_a_queue_records_a_table_a_verdict_and_a_page(
    checkout, capsys, monkeypatch
):
    experiment = experiments.recorded("digits")
    command = ["queue", "--only", "digits", "--run", "--device", "cpu"]
    assert len([*experiment.missing()]) == 9 and cli.main(command) == 0
    monkeypatch.setenv("HNLIB_RECALL", "1")  # as in a build, which reads tracked records alone
    assert experiments.verdicts(experiments.recorded("digits"))[0]["verdict"].startswith("open")
    assert cli.main(["results", "--add", str(checkout / "_build/results")]) == 0
    made = records.load_all(checkout / "book/results/records")
    assert {one["environment"]["predictions"] for one in made} == {experiment.design.digest}
    experiment = experiments.recorded("digits")
    (line,) = experiments.verdicts(experiment)
    assert line["verdict"] == "holds" and not [*experiment.missing()]
    exec(PRINTED, {})
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("warm", "t0.1", "cold", "kNN", "holds")), printed
    page = checkout / "page.ipynb"
    execute.execute(execute.find("experiments/digits"), page)
    shown = page.read_text("utf-8")
    assert f"in points: {format_value(experiments.effect(experiment, 'cold', 'warm'))}." in shown
    assert "<th>over warm</th>" in shown


def executed(file, names):
    """The names that exist where the code of `file` would stand, and those that it makes."""
    names = dict(names)
    exec(compile(SHOWN[file], file, "exec", dont_inherit=True), names)
    return names


def test_the_method_is_the_one_of_its_reference(monkeypatch):
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


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """The package of the example, beside those of hnlib and registered by one line."""
    for name in ("config", "data", "task"):
        path = tmp_path / f"hnlib/rows/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SHOWN[f"hnlib/rows/{name}.py"])
    monkeypatch.setattr(hnlib, "__path__", [*hnlib.__path__, str(tmp_path / "hnlib")])
    monkeypatch.setitem(kinds.KINDS, "rows", "hnlib.rows")
    yield importlib.import_module("hnlib.rows.config").RowRun
    for name in [name for name in sys.modules if name.startswith("hnlib.rows")]:
        del sys.modules[name]
    del hnlib.rows


@pytest.mark.slow
def test_a_kind_of_data_is_one_package_and_one_line(rows, tmp_path, prints):
    with pytest.raises(ValueError, match="noise"):
        rows(noise=-1.0)
    places = dict(record_to=tmp_path / "records", save=tmp_path / "saved", progress=False)
    run = rows(method="hcl", noise=0.5, epochs=4)
    whole = train(run, **places)
    assert whole.record["losses"][-1] < whole.record["losses"][0] - 0.05
    assert whole.metrics["accuracy"] > 0.9
    (row,) = records.frame(tmp_path / "records").itertuples()
    assert (row.kind, row.noise, row.beta) == ("rows", 0.5, 1.0)
    loaded = load(tmp_path / "saved")
    assert all(map(torch.equal, loaded.model.parameters(), whole.model.parameters()))
    assert "images: 1 run, last " in prints("results", "--folder", tmp_path / "records")


@pytest.mark.slow
def test_the_chapter_is_one(tmp_path):
    chapter = jupytext.reads(CHAPTER, fmt="md:myst")
    assert set(execute.parameters_of(chapter)) == {"temperatures", "epochs"}
    names = {"temperatures": [0.2], "epochs": 1}
    for cell in chapter.cells:
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            exec(cell.source, names)
    assert list(names["frame"].temperature) == [0.2]
