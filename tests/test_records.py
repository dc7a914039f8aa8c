"""The ledger: writing, reading, the table of runs, and the tracked records themselves."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder import build, ledger_pages
from hnlib import __main__ as cli
from hnlib.book import experiments
from hnlib.images.config import ImageRun
from hnlib.retrieval.config import RetrievalRun
from hnlib.training import records


def record(seed=0, linear=0.9, **chosen):
    """A record of a trained encoder, without the training."""
    run = ImageRun(seed=seed, **{"method": "hcl"} | chosen)
    return {
        "kind": "images",
        "configuration": run.configuration,
        "metrics": {"knn": linear - 0.1, "linear": linear},
        "seconds": 1.0,
    }


def test_a_record_is_written_under_a_name_that_does_not_depend_on_the_order(tmp_path):
    one = record()["configuration"]
    assert records.name(one) == records.name(dict(reversed(one.items())))
    assert records.name(one) != records.name(one | {"seed": 1})
    path = records.write(record(), tmp_path / "new" / "folder")
    assert path.stem == records.name(one) and len(path.stem) == 12
    assert records.load_all(path.parent) == [record()]


def test_what_json_cannot_write(tmp_path):
    far = dict(method="ot-semirelaxed", options={"relaxation": math.inf})
    path = records.write(record(linear=math.nan, **far), tmp_path)
    loaded = json.loads(path.read_text())
    assert loaded["metrics"]["linear"] is None
    assert loaded["configuration"]["options"]["relaxation"] == "inf"
    with pytest.raises(TypeError, match="JSON"):
        records.write(record() | {"thing": object()}, tmp_path)
    assert len(records.load_all(tmp_path)) == 1


def test_the_ledger_keeps_both_runs_and_shows_the_first_that_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "tracked_folder", lambda: tmp_path)
    path = records.write(record(), tmp_path)
    assert records.write(record(), tmp_path) == path  # the same file, as when a run is resumed
    again = records.write(record(linear=0.8), tmp_path)
    assert again.name == f"{path.stem}-2.json"
    assert records.frame()["linear"].tolist() == [0.9]
    assert records.frame(latest=True)["linear"].tolist() == [0.8]
    assert [one["metrics"]["linear"] for one in records.set_aside()] == [0.8]
    ((key, both),) = records.by_key().items()
    assert [one["metrics"]["linear"] for one in both] == [0.9, 0.8]
    path.write_text(json.dumps(record() | {"superseded": "made with another scale"}))
    assert records.frame()["linear"].tolist() == [0.8]
    assert [one["superseded"] for one in records.set_aside()] == ["made with another scale"]
    assert [one["metrics"]["linear"] for one in records.by_key()[key]] == [0.8]


def test_a_chapter_depends_on_the_rows_that_it_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "tracked_folder", lambda: tmp_path)
    monkeypatch.setattr(records, "DEPENDENCIES", read := {})
    records.write(record(), tmp_path)
    records.frame(kind="images", where="seed == 0")
    records.write(record(seed=1), tmp_path)
    read, every = dict(read), records.frame()
    assert build.is_unchanged(read, every)
    assert not build.is_unchanged(read, every[every["seed"] == 1])


def test_a_corrected_record_makes_its_chapters_again(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "tracked_folder", lambda: tmp_path)
    monkeypatch.setattr(records, "DEPENDENCIES", {})
    path = records.write(record() | {"losses": [1.0], "history": []}, tmp_path)
    before = records.frame()
    assert build.is_unchanged(records.DEPENDENCIES, before)
    for part in ({"losses": [2.0]}, {"history": [{"epoch": 0}]}, {"environment": {"hnlib": "x"}}):
        path.write_text(json.dumps(record() | {"losses": [1.0], "history": []} | part))
        read = dict(records.DEPENDENCIES)
        assert not build.is_unchanged(read, records.frame())
        records.DEPENDENCIES.update(read)


def test_a_new_replicate_makes_those_chapters_again_that_read_the_latest(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "tracked_folder", lambda: tmp_path)
    records.write(record(), tmp_path)
    for latest in (False, True):
        monkeypatch.setattr(records, "DEPENDENCIES", {})
        records.frame(kind="images", latest=latest)
        records.write(record(linear=0.8 - latest / 10), tmp_path)
        assert build.is_unchanged(records.DEPENDENCIES, records.frame()) != latest


@pytest.mark.parametrize(
    "alter, message",
    [
        (lambda one: one[:-9], "EOF|expected"),
        (lambda one: one.replace(b'"seed": 0', b'"seed": 1'), "not the one that names it"),
        (lambda one: one.replace(b"0.9", b"9.0"), "metrics.linear must lie in 0 to 1, got 9"),
        (lambda one: one.replace(b"0.9", b'"9"'), "linear"),
        (
            lambda one: one.replace(b'"images",\n "metrics"', b'"x",\n "metrics"'),
            "kind must be one",
        ),
    ],
)
def test_an_altered_record_gets_one_sentence(tmp_path, capsys, alter, message):
    path = records.write(record(), tmp_path)
    before = path.read_bytes()
    path.write_bytes(alter(before))
    assert path.read_bytes() != before
    assert cli.main(["results", "--folder", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(rf"record .*{path.name} is damaged or altered \(.*{message}", error)


VALUES = st.sampled_from(
    [None, True, "word", [], [[]], {"a": []}, -5.5, 10**30, math.nan, math.inf]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_altered_record_ends_in_a_traceback(tmp_path, capsys, data):
    one = json.loads(json.dumps(record() | {"history": [], "environment": {"hardware": {}}}))
    place, key = one, data.draw(st.sampled_from(sorted(one)))
    while isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place)))
    place[key] = data.draw(VALUES)
    path = records.write(record(), tmp_path)
    path.write_text(json.dumps(one))
    status = cli.main(["results", "--folder", str(tmp_path)])
    error = capsys.readouterr().err
    assert (status, error) == (0, "") or (status == 2 and path.name in error)


def test_the_table_has_a_row_a_run_and_a_column_an_option_or_metric():
    runs = records.frame(
        [
            record(options={"beta": 2.0}, linear=0.8),
            record(seed=1, schedule={"beta": (1.0, 0.0)}),
            record(method="simclr", queue=8, protocols=("paper",)),
        ]
    )
    assert list(runs.query("beta == 2").linear) == [0.8]
    assert list(runs.kind) == ["images"] * 3
    usual = runs.query("lr_schedule == 'constant' and schedule == '' and queue == 0")
    assert list(usual.options) == ["beta=2.0"]
    assert list(runs.query("schedule == 'beta=1.0:0.0'").seed) == [1]
    (queued,) = runs.query("queue == 8 and momentum == 0.999").itertuples()
    assert queued.changed == "queue 8, protocols clean,paper"
    assert queued.title == "digits, all images, small-cnn, 30 epochs, " + queued.changed
    assert queued.run.name == ImageRun(queue=8, protocols=("paper",)).name
    assert math.isnan(queued.beta)
    assert not len(runs.query("epsilon == 0.5 or svm > 0 or oracle_positives == True"))


def test_runs_that_differ_in_their_experiment_alone_are_one():
    twice = [record(experiment=name) for name in ("images", "corrections")]
    (run,) = records.frame(twice).itertuples()
    assert run.experiments == ("corrections", "images")
    twice[1]["metrics"] |= {"linear": 0.5}
    (run,) = records.frame(twice[:1], twice[1:]).itertuples()  # the later source replaces it
    assert run.linear == 0.5
    assert run.experiments == ("corrections", "images")
    measurement = {"configuration": {"experiment": "hours"}, "metrics": {"hours": 3.0}}
    both = records.frame([twice[0], measurement])
    assert list(both.kind) == ["images", "measurement"]
    assert both.run.notna().tolist() == [True, False]


def test_the_command_prints_a_table(tmp_path, capsys):
    for seed in range(2):
        records.write(record(seed, options={"beta": 2.0}), tmp_path)
    measurement = {"configuration": {"experiment": "cost"}, "metrics": {"seconds": 1}}
    records.write(measurement, tmp_path)
    records.write(record(0, 0.6, options={"beta": 2.0}, batch_size=64), tmp_path)
    assert cli.main(["results", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "3 trained encoders" in printed
    assert "hcl beta=2.0: knn 80.0\u00a0±\u00a00.0, linear 90.0\u00a0±\u00a00.0 (2 runs)" in printed
    assert "batch_size 64: hcl beta=2.0: knn 50.0, linear 60.0 (1 run)" in printed


def test_a_field_does_not_hide_the_score_of_another_kind():
    run = RetrievalRun(dataset="generated", transfer=("cranfield",)).resolved()
    rest = dict(history=[], losses=[], environment={}, kind="retrieval", seconds=1.0)
    rows = records.frame([rest | dict(configuration=run.configuration, metrics={"ndcg": 0.5})])
    assert rows["transfer"].isna().all() and rows["run"][0].transfer == ("cranfield",)


def test_the_packed_table_is_read_while_it_is_current_and_equals_the_records(tmp_path, monkeypatch):
    """All tracked kinds; a record more, another version of the sources or a damaged file: the records."""
    folder = tmp_path / "runs"
    folder.mkdir()
    every = [*records.tracked_folder().glob("[!.]*.json")]
    for path in [*every[::200], *every[1:3]]:
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(records, "tracked_folder", lambda: folder)
    slow = records.frame()
    assert records.read_parquet() is None and len(slow) > 20 and slow["kind"].nunique() > 2
    path = records.write_parquet(slow)
    monkeypatch.setattr(records, "_rows", None)  # not called: the file is read

    def same_nothing(table):
        return table.astype(object).where(table.notna(), None)

    fast = records.frame()
    pd.testing.assert_frame_equal(same_nothing(fast), same_nothing(slow))
    assert (fast.dtypes == slow.dtypes).all() and records.digest(fast) == records.digest(slow)
    assert [run and run.name for run in fast["run"]] == [run and run.name for run in slow["run"]]
    monkeypatch.undo()
    monkeypatch.setattr(records, "tracked_folder", lambda: folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    assert records.read_parquet() is None
    path.write_bytes(whole)
    with monkeypatch.context() as other:
        other.setattr(records, "source_digest", lambda: "another")
        assert records.read_parquet() is None
    assert records.read_parquet() is not None
    records.write(record(seed=4321), folder)
    assert records.read_parquet() is None and 4321 in set(records.frame()["seed"])


@pytest.mark.slow
def test_the_data_set_is_read_without_this_library(tmp_path, monkeypatch):
    """The lines that the page prints; its card has every column."""
    page = (Path(__file__).parents[1] / "book/results.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert "hnlib" not in first + second and len(first.split("\n\n")[-1].splitlines()) == 2
    packed = records.write_parquet(frame := records.frame())
    done = subprocess.run(
        [sys.executable, "-I", "-c", first + second],
        cwd=packed.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    where = "experiment == 'images-rates' and method == 'simclr'"
    linear = frame[frame["kind"] == "images"].query(where).groupby(["lr", "temperature"])["linear"]
    assert all(f"{mean:.5f}" in done.stdout for mean in linear.mean()) and linear.ngroups > 5
    effect = experiments.load("confirmation").effect("released", "t0.1")
    printed = [float(number) for number in done.stdout.splitlines()[-1].split()]
    assert printed == pytest.approx([effect.difference, effect.low, effect.high])
    card = ledger_pages.dataset_table(frame)
    assert [c for c in pd.read_parquet(packed).columns if f"`{c}`" not in card] == []
    assert "passes over the data" in card
