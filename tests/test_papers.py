import csv
import math
import shlex
import signal
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import __main__ as cli
from hnlib import _files
from hnlib import commands as command
from hnlib.book import papers, queue
from hnlib.training import config, records

RUNNABLE = {c.key: c for c in papers.cells() if c.key}
LEDGER = _files.project_root() / "book" / "results" / "papers.csv"
PRINTED = list(records.read_csv(LEDGER, records.PAPER_COLUMNS, records.PAPER_COLUMNS).values())


def test_every_printed_number_has_a_run_or_a_reason():
    for cell in papers.cells():
        assert (cell.run is None) == bool(cell.reason)
        assert cell.run is not None or cell.reason.startswith(papers.REASONS), cell.reason
    assert len(papers.cells()) == len(records.papers())
    graphs = [c for c in papers.cells() if isinstance(c.run, config.GraphRun)]
    assert len(graphs) == 98


@pytest.mark.parametrize("key", RUNNABLE)
def test_the_command_of_a_cell_makes_its_record(key, capsys):
    cell = RUNNABLE[key]
    tokens = shlex.split(papers.command(cell.run, "--rehearse"))
    assert tokens[:2] == ["hnlib", "train"]
    assert command.train(tokens[2:]) == 0
    said, *places = capsys.readouterr().out.splitlines()
    assert said == key
    assert f"{cell.paper}, {cell.table}, {cell.row}, {cell.column}: {cell.value:g}" in places
    read = config.read(cell.run.configuration)  # as it will be read back from its record
    assert papers.key(read) == key


def test_a_rehearsal_refuses_what_a_run_would():
    with pytest.raises(ValueError, match="no option 'bta'"):
        command.train(["--rehearse", "-o", "bta=1"])
    with pytest.raises(ValueError, match="'nope' is unknown"):
        command.train(["--rehearse", "--method", "nope"])


def test_runs_of_two_recipes_do_not_share_a_state():
    runs = [c.run for c in papers.cells() if isinstance(c.run, config.ImageRun)]
    states = {}
    for run in runs:
        states.setdefault(queue._lineage(run), set()).add(run.recipe)
    assert all(len(recipes) == 1 for recipes in states.values())


def test_what_does_not_tell_cells_apart():
    run = next(c.run for c in papers.cells() if isinstance(c.run, config.ImageRun))
    same = dict(seed=4, precision="bf16-mixed", compile=True, protocols=("paper",))
    assert papers.key(replace(run, **same)) == papers.key(run)
    plain = replace(run.resolved(3), recipe="book")
    assert papers.key(plain) == papers.key(run)
    assert papers.key(replace(run, epochs=run.epochs + 1)) != papers.key(run)
    whole, half = (replace(run, method="hcl", options={"beta": b}) for b in (1, 1.0))
    assert papers.key(whole) == papers.key(half)


def test_recipes_do_not_leak_into_other_methods():
    for method in ("simclr", "hcl", "alpha-cl"):
        run = config.ImageRun(dataset="cifar10", method=method, recipe="adnce", epochs=1)
        assert run.resolved(3).options["temperature"] == 0.5
    adnce = config.ImageRun(dataset="cifar10", method="adnce", recipe="adnce", epochs=1)
    assert adnce.resolved(3).options["temperature"] == 0.4


def test_a_record_stands_in_its_cell_whatever_its_seed_and_precision():
    cell = next(c for c in papers.cells() if c.paper == "hcl" and c.table == "Table 1")
    run = replace(cell.run, seed=3, precision="bf16-mixed").resolved(3)
    record = dict(configuration=run.configuration, metrics=dict(linear=0.5, knn=0.4))
    record |= dict(history=[], losses=[], seconds=1.0, environment={}, image_shape=[3, 64, 64])
    table = papers.table(records.frame([record]))
    filled = table[table["seeds"] > 0]
    assert {c.key for c in filled["cell"]} == {cell.key} and filled["found"].iloc[0] == [50.0]


def test_the_queue_lists_what_has_no_record_best_first():
    nothing = records.frame([])
    found = queue.jobs(nothing.reindex(columns=records.frame().columns), seeds=2)
    assert len(found) == 2 * len(RUNNABLE)
    assert [job.value for job in found] == sorted((j.value for j in found), reverse=True)
    assert not any(job.measured for job in found)
    with pytest.raises(ValueError, match="no printed number with a run matches 'CIFAR-1000'"):
        queue.jobs(only="CIFAR-1000")
    with pytest.raises(ValueError, match="seeds=0 must be at least 1"):
        queue.jobs(seeds=0)


def test_the_queue_is_worked_off_recorded_and_continued(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(queue, "project_root", lambda: tmp_path)
    monkeypatch.setattr(queue, "START", 0.0)
    short = config.GraphRun(dataset="motifs", method="infograph", epochs=1, folds=2)
    longer = config.GraphRun(dataset="motifs", method="infograph", epochs=100_000)
    short, longer = (queue.Job(run, 1, 0.1, False, 0.01) for run in (short, longer))
    assert queue.work([short], 60, "cpu", tmp_path / "runs") == 1
    assert len(list((tmp_path / "runs").glob("*.json"))) == 1
    state = queue._state(tmp_path / "_build" / "queue", longer.run)

    def ring(before):  # once there is another checkpoint
        while not state.exists() or state.stat().st_mtime_ns == before:
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    for _ in range(2):  # the second goes on from there
        before = state.stat().st_mtime_ns if state.exists() else None
        threading.Thread(target=ring, args=[before], daemon=True).start()
        assert queue.work([longer], 60, "cpu", tmp_path / "runs") == 0
        assert "the time is over; stopped in epoch" in capsys.readouterr().out
        assert state.exists()
    late = queue.Job(short.run, 1, 9.0, False, 500.0)
    assert queue.work([late], 0.1, "cpu", tmp_path / "late") == 0  # no checkpoint in that time
    with pytest.raises(ValueError, match="minutes=0 must be positive"):
        queue.work([short], 0)
    with pytest.raises(ValueError, match="tpu"):
        queue.work([short], 1, "tpu")


def test_an_epoch_costs_what_records_of_the_same_setting_say():
    """And not what another share of the data, framework or use of labels took."""
    run = config.ImageRun(dataset="cifar10", method="simclr", epochs=10, encoder="small-cnn")
    mutag = config.GraphRun(dataset="MUTAG", method="scl", epochs=4)

    def record(run, seconds):
        kept = dict(metrics={}, history=[], losses=[], environment={}, image_shape=[3, 32, 32])
        return kept | dict(configuration=run.resolved().configuration, seconds=seconds)

    timed = {
        replace(run, train_size=100): 5.0,
        run: 70.0,
        replace(mutag, labels="all"): 8.0,
        replace(mutag, method="infograph"): 6.0,
        replace(mutag, method="infograph", framework="graphcl", layers=3): 2.0,
    }
    frame = records.frame([record(*pair) for pair in timed.items()])
    assert [queue._epoch(r, frame, "cpu")[0] for r in timed] == [0.5, 7.0, 2.0, 1.5, 0.5]
    seconds, measured = queue._epoch(mutag, frame, "cpu")  # by fold: nobody has measured it
    assert not measured and seconds == pytest.approx(10 * 3 * queue.SECONDS["cpu"]["gin3"])
    assert queue._job(mutag, 1, frame, "cpu").epoch == pytest.approx(seconds / 10)
    assert queue._epoch(replace(run, train_size=200), frame, "cpu") == (0.2, False)


@pytest.mark.parametrize(
    ("experiment", "dataset", "kind"),
    [("hardness", "cifar100", config.ImageRun), ("sentences", "novels", config.SentenceRun)],
)
def test_chapters_have_their_runs_in_the_queue(
    experiment, dataset, kind, tmp_path, monkeypatch, capsys
):
    """All of them where nothing is on record; each with the command that makes it."""
    monkeypatch.setattr(records, "tracked_folder", lambda: tmp_path)
    nothing, only = records.frame([]), f"chapters {experiment}, {dataset}"
    found = queue.planned(nothing, only, "cuda")
    assert len(found) > 30 and not any(job.measured for job in found)
    for job in (found[0], found[-1]):
        assert job.numbers == 0 and job.value == 0 and type(job.run) is kind
        assert job.run.experiment == experiment
        usual = kind().experiment == experiment
        assert usual or f"--experiment {experiment}" in papers.command(job.run)
        tokens = shlex.split(papers.command(job.run, "--rehearse"))
        assert command.train(tokens[2:]) == 0
        assert capsys.readouterr().out.splitlines()[0] == papers.key(job.run)
    assert not queue.planned(nothing, "chapters nobody's")


def test_the_command_lists_and_refuses(capsys):
    assert cli.main(["queue", "--only", "hclot Table V, MUTAG", "--seeds", "99"]) == 0
    assert "hnlib train --dataset MUTAG" in capsys.readouterr().out
    assert cli.main(["queue", "--only", "no such table"]) == 2
    assert "matches 'no such table'" in capsys.readouterr().err


WORDS = [
    "",
    " ",
    "7",
    "nan",
    "inf",
    "1_0",
    "٣",
    "²",
    "1e999",
    "-1",
    "method=hcl",
    "=",
    "; ",
    "\0",
    "#",
]
WORDS += [
    "method=hcl; method=ot",
    "weeks=3",
    "encoder=vgg",
    "epochs=2.5",
    "method=; epochs=9",
    "hcl",
]
WORDS += ["SVM accuracy", "linear top-1", "cifar10", "MUTAG", "HCL", '"', "a,b", "loss=x", "beta=²"]
WORDS += [
    "method=vgg; encoder=resnet50; epochs=4",
    "method=hcl; encoder=gin3; epochs=4",
    "epochs=0",
]


@settings(max_examples=120)
@given(st.integers(0, 434), st.sampled_from(records.PAPER_COLUMNS), st.sampled_from(WORDS))
def test_a_row_with_anything_in_it_is_read_or_refused_with_its_line(number, column, word):
    rows = PRINTED[number : number + 1]
    rows = [row | {column: word} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "papers.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, records.PAPER_COLUMNS)
            table.writeheader()
            table.writerows(rows)
        try:
            (cell,) = papers.cells(path)
        except ValueError as error:
            assert "line 2" in str(error) and "\n" not in str(error)
        else:
            assert math.isfinite(cell.value) and (cell.reason or papers.command(cell.run))
            assert column != "value" or str(cell.value).removesuffix(".0") == word.strip()


@pytest.mark.parametrize(
    ("column", "word", "message"),
    [
        ("paper", "7", "unknown paper '7'; known: hcl"),
        ("metric", "acuracy", "unknown metric 'acuracy'; known"),
        ("note", "weeks=3", "the note's 'weeks' is unknown; known: method"),
        ("note", "beta=1; beta=2", "the note's 'beta' is given twice"),
        ("note", "method=hcl; encoder=vgg", "encoder=vgg is unknown; known: resnet50"),
        ("note", "method=vgg; encoder=resnet50; epochs=4", "unknown method 'vgg'; known: simclr"),
        ("note", "epochs=2.5", "'2.5' is not a whole number"),
        ("note", "beta=nan", "'nan' is not a number"),
        ("value", "inf", "'inf' is not a number"),
    ],
)
def test_what_was_silent_or_broke_in_a_row_is_refused(tmp_path, column, word, message):
    head = ",".join(records.PAPER_COLUMNS)
    row = PRINTED[0] | {column: word}
    (tmp_path / "p.csv").write_text(f"{head}\n# of ours\n" + ",".join(row.values()) + "\n")
    with pytest.raises(ValueError, match=rf"line 3.*{message}"):
        papers.cells(tmp_path / "p.csv")
