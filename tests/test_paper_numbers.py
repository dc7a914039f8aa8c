"""The printed numbers with their runs, and the queue of runs without a record."""

import functools
import shlex
from dataclasses import replace

import pytest

from hnlib import __main__ as cli
from hnlib import experiments
from hnlib.experiments import evidence, paper_numbers, run_queue, runner
from hnlib.experiments import experiment as engine
from hnlib.graphs.config import GraphRun
from hnlib.training import kinds, records

CELLS = paper_numbers.cells()
RUNNABLE = [cell for cell in CELLS if cell.run is not None]
PRINTED = ("temperature", "beta", "tau_plus", "mu", "sigma", "exponent", "epochs", "lr")
PRINTED += ("weight_decay",)


def record(run, metrics, seconds=1.0):
    resolved = run.resolved()
    rest = dict(history=[], losses=[], environment={}, kind=run.kind)
    return rest | dict(configuration=resolved.configuration, metrics=metrics, seconds=seconds)


def test_every_printed_number_has_a_run_or_a_reason():
    for cell in CELLS:
        assert (cell.run is None) == bool(cell.reason)
        assert cell.run is not None or cell.reason.startswith(paper_numbers.REASONS), cell.reason
    assert {cell.run.kind for cell in RUNNABLE} == {"images", "graphs", "sentences"}


def test_accuracies_on_images_are_those_of_the_longest_training():
    rows = paper_numbers.image_accuracies().set_index(["paper", "table", "dataset"]).sort_index()
    values = rows.loc["hclot", "Table I", "stl10"].groupby("method")["value"].max()
    assert (values["ot"], values["hcl"]) == (87.5, 87.4)
    slide = rows.loc["dro", "images slide", "cifar10"]
    assert all("400 epochs" in column for column in slide["column"]) and slide["usual"].any()
    assert not rows[rows["row"] == "SimCLR(τ*)"]["usual"].any()  # a tuned temperature


def test_every_setting_is_used():
    used = {row["run"] for row in evidence.printed().to_dict("records")}
    assert paper_numbers.settings().keys() <= used


def disagreements(note: dict, run, ours: str) -> list[str]:
    """Return what the row prints, or names as ours, and its run does not have."""
    run = run.resolved()
    chosen = dict(epochs=run.epochs, lr=run.lr, weight_decay=run.weight_decay) | run.options
    stated = dict(part.split("=") for part in ours.split(", ") if part) | note
    wrong = [n for n in PRINTED if n in stated and n in chosen and float(stated[n]) != chosen[n]]
    if "eps" in note:  # the released cost of images has no factor ½
        scale = 1 if run.kind == "graphs" else 2
        wrong += ["eps"] * (float(note["eps"]) != scale * chosen["epsilon"])
    return wrong


def test_runs_have_the_printed_values_and_name_ours():
    notes = [paper_numbers.parse_note(note) for note in evidence.printed()["note"]]
    for cell, note in zip(CELLS, notes, strict=True):
        if cell.run is not None:
            assert not disagreements(note, cell.run, cell.ours), cell
    cell, note = next((c, n) for c, n in zip(CELLS, notes) if c.run and "beta" in n)
    assert disagreements(note | {"beta": "77"}, cell.run, cell.ours)
    assert disagreements(note, cell.run, "temperature=0.7")


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_the_command_of_a_cell_makes_its_record(kind, capsys):
    cells = [cell for cell in RUNNABLE if cell.run.kind == kind]
    for cell in {paper_numbers.command(c.run): c for c in cells}.values():
        tokens = shlex.split(paper_numbers.command(cell.run))
        assert cli.main([*tokens[1:], "--dry-run"]) == 0
        paper = paper_numbers.PAPERS[cell.paper]
        place = f"{paper}, {cell.table}, {cell.row}, {cell.column}: {cell.value:g}"
        assert f"printed number   {place}\n" in capsys.readouterr().out
        assert paper_numbers.key(cell.run.read(cell.run.configuration)) == cell.key


def test_a_record_stands_in_its_cell_whatever_its_seed_and_precision():
    cell = next(c for c in CELLS if c.paper == "hcl" and c.table == "Table 1")
    run = replace(cell.run, seed=3, precision="bf16-mixed")
    table = paper_numbers.table(records.frame([record(run, dict(linear=0.5, knn=0.4))]))
    filled = table[table["seeds"] > 0]
    assert {c.key for c in filled["cell"]} == {cell.key}
    assert filled["found"].iloc[0] == [50.0]


def test_the_queue_lists_what_has_no_record_best_first(monkeypatch):
    monkeypatch.setattr(runner, "seconds", lambda run, device: None)
    nothing = records.frame([]).reindex(
        columns=records.frame([record(RUNNABLE[0].run, {})]).columns
    )
    found = run_queue.jobs(nothing, seeds=2)
    assert len(found) == 2 * len({cell.key for cell in RUNNABLE})
    values = [job.numbers for job in found]
    assert values == sorted(values, reverse=True) and {job.minutes for job in found} == {None}
    only = run_queue.jobs(nothing, only="hclot Table V, MUTAG")
    assert {job.run.dataset for job in only} == {"MUTAG"}
    on_gpu = run_queue.jobs(nothing, device="cuda")  # by arithmetic: a ResNet-18 before a -50
    assert {job.run.kind for job in on_gpu[:100]} == {"images"}
    assert len({job.run.kind for job in on_gpu}) == 3
    assert all(job.estimated == (job.run.kind == "images") for job in on_gpu)
    value = [job.numbers / job.minutes for job in on_gpu if job.estimated]
    assert value == sorted(value, reverse=True)
    assert 2.2 < run_queue._flops("resnet50") / run_queue._flops("resnet18") < 2.5
    assert "about" in run_queue.listing(on_gpu[:1]) and "not timed" in run_queue.listing(found[:1])
    assert run_queue.jobs(nothing, only="chapters hardness, cifar10, hcl") == []  # only planned
    for only in ("CIFAR-1000", "chapters hardness, cifar10, no such"):
        with pytest.raises(ValueError, match=f"no run of the book matches '{only}'.* search-rates"):
            run_queue.jobs(nothing, only=only)


def test_the_queue_begins_with_what_was_interrupted_and_leaves_out_what_fails(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(records, "default_folder", lambda: tmp_path / "results")
    run = GraphRun(dataset="motifs", method="infograph", epochs=1, folds=2)
    first, second, broken = (
        run_queue.Job(one, 1, None)
        for one in (run, replace(run, seed=1), replace(run, dataset="nowhere"))
    )
    interrupted = runner.unfinished(second.run, records.default_folder())
    interrupted.parent.mkdir(parents=True)
    interrupted.touch()
    trained = []

    def train(run, **where):
        trained.append(run.seed)
        if run.dataset == "nowhere":
            raise ValueError("no such data")
        record = {"kind": "graphs", "configuration": run.configuration, "metrics": {}}
        return type("Trained", (), {"record": record | {"seconds": 2.0}})

    monkeypatch.setattr("hnlib.training.train.train", train)
    assert run_queue.work([broken, first, second]) == 2
    said = capsys.readouterr().out.splitlines()
    assert trained == [1, 0, 0] and not interrupted.exists()
    assert said.count("left out: no such data") == 1 and said.count("recorded after 2 s") == 2
    assert run_queue.work([first], minutes=1e-9) == 0  # the time is over


@pytest.fixture
def unrecorded(monkeypatch):
    """Leave two experiments, without records."""
    experiments.forget()
    for found in ("_tracked", "_own"):
        monkeypatch.setattr(engine, found, functools.cache(dict))
    for module in (engine, experiments):
        monkeypatch.setattr(module, "names", lambda: ["made-up", "pairs"])
    yield
    monkeypatch.undo()
    experiments.forget()


@pytest.mark.parametrize(
    ("experiment", "dataset"), [("made-up", "cifar100"), ("sentences", "novels")]
)
@pytest.mark.usefixtures("unrecorded")
def test_chapters_have_their_runs_in_the_queue(experiment, dataset):
    found = run_queue.planned(f"chapters {experiment}, {dataset}", "cuda")
    assert len(found) > 30 and {job.run.experiment for job in found} == {experiment}
    assert not run_queue.planned("chapters nobody's", "cpu")


@pytest.mark.usefixtures("unrecorded")
def test_the_command_lists_and_refuses(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "tracked", lambda: tmp_path)
    assert cli.main(["queue", "--only", "hclot Table V, MUTAG"]) == 0
    assert "--dataset MUTAG" in capsys.readouterr().out
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for only in ("chapters made-up, cifar10", "made-up"):
        assert cli.main(["queue", "--only", only]) == 0
        assert capsys.readouterr().out.startswith("a chapter       not timed  hnlib train")
    assert cli.main(["queue", "--only", "no such table"]) == 2
    assert "matches 'no such table'" in capsys.readouterr().err
