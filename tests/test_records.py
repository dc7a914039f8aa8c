"""The ledger: writing, reading, the table of runs, and the tracked records themselves."""

import math

import pandas as pd
from test_store import record

from builder import build
from hnlib import _files
from hnlib.experiments import evidence
from hnlib.images.config import ImageRun
from hnlib.training import records, store

MEASUREMENT = {
    "kind": "measurement",
    "configuration": {"experiment": "hours"},
    "metrics": {"hours": 3.0},
}


def test_a_chapter_is_stale_when_a_file_that_it_reads_has_changed(tmp_path, monkeypatch):
    """Whoever reads records depends on all of their files; others on those that they name."""
    folder = tmp_path / "records"
    for module in (records, _files):
        monkeypatch.setattr(module, "project_root", lambda: tmp_path)
    monkeypatch.setattr(build, "root", lambda: tmp_path)
    monkeypatch.setattr(records, "tracked", lambda: folder)
    monkeypatch.setattr(records, "DEPENDENCIES", read := {})
    store.append(record(), folder)
    records.frame()
    (ledger := tmp_path / "book/results/papers.csv").parent.mkdir(parents=True)
    ledger.write_text("old")
    evidence.path("papers.csv")
    assert build.is_unchanged(read)
    for path in (ledger, folder / "images.scores.jsonl"):
        before = path.read_text()
        path.write_text("new")
        assert not build.is_unchanged(read)
        path.write_text(before)
    assert build.is_unchanged(read)
    (part := folder / "images.scores.1.parquet").touch()
    assert not build.is_unchanged(read)
    part.unlink()
    store.append(record(experiment="other"), folder)
    assert not build.is_unchanged(read)


def test_the_table_has_a_row_a_run_and_a_column_an_option_or_metric():
    runs = records.frame(
        [
            record(options={"beta": 2.0}, linear=0.8),
            record(seed=1, schedule={"beta": (1.0, 0.0)}),
            record(method="simclr", queue=8, protocols=("paper",)),
        ]
    )
    assert list(runs.query("beta == 2").linear) == [0.8]
    usual = runs.query("lr_schedule == 'constant' and schedule == '' and queue == 0")
    assert list(usual.temperature) == [0.5]
    assert list(runs.query("schedule == 'beta=1.0:0.0'").seed) == [1]
    (queued,) = runs.query("queue == 8 and momentum == 0.999").itertuples()
    assert queued.protocols == "clean,paper"
    assert queued.run.name == ImageRun(queue=8, protocols=("paper",)).name
    assert math.isnan(queued.beta)
    assert not len(runs.query("epsilon == 0.5 or linear_paper > 0 or oracle_positives == True"))
    assert "svm" not in runs and "svm" in records.frame([]), "graphs have it, and no rows all"


def test_a_run_stands_under_the_device_that_it_was_trained_on():
    cpu, gpu = {"cpu": "a processor", "threads": 2}, {"cpu": "a processor", "gpu": "a card"}
    table = records.frame(
        [record(i) | {"environment": {"hardware": here}} for i, here in enumerate((cpu, gpu))]
    )
    assert table["hardware"].tolist() == ["a processor, 2 threads", "a card"]


def test_runs_that_differ_in_their_experiment_alone_are_one():
    twice = [record(experiment=name) for name in ("images", "corrections")]
    (run,) = records.frame(twice).itertuples()
    assert run.experiment == "images"
    assert list(records.frame([twice[0], MEASUREMENT]).kind) == ["images"]


def test_runs_on_other_examples_under_the_same_name_are_two():
    several = [
        record(linear=x, dataset="mine", dataset_digest=d) for x, d in ((0.7, "a"), (0.8, "b"))
    ]
    assert records.frame(several)["linear"].tolist() == [0.7, 0.8]


def test_fields_in_another_order_are_the_same_run():
    """Options, too, which are sorted in files, but not by a run in memory."""
    one = record(linear=0.7, method="hcl", options={"beta": 1.0, "temperature": 0.5})
    turned = lambda x: dict(reversed(x.items()))  # noqa: E731
    other = turned(one["configuration"]), turned(one["configuration"]["options"])
    several = [one["configuration"], other[0], other[0] | {"options": other[1]}]
    assert len(records.frame([one | {"configuration": x} for x in several])) == 1


def test_the_command_counts_the_runs_of_each_experiment(tmp_path, prints):
    for seed, name in enumerate(("images", "images", "other")):
        store.append(record(seed, experiment=name), tmp_path)
    store.append(MEASUREMENT, tmp_path)
    printed = prints("results", "--folder", tmp_path)
    assert "3 trained encoders\nimages: 2 runs, last 2026-01-02\nother: 1 run" in printed


def test_records_are_read_from_their_parquet_as_from_their_files(tmp_path, monkeypatch):
    """Some of all tracked kinds, a replicate and a superseded one."""
    folder, path = tmp_path / "records", tmp_path / records.PARQUET
    every = store.read(records.tracked())
    kinds = {one["kind"]: one for one in every}
    some = store.complete([*every[::200], *kinds.values()])
    store.add([*some, some[0] | {"seconds": 0.0}], folder)
    store.supersede(store.read(folder)[-1:], "an error", "2026-01-01", folder)
    monkeypatch.setattr(records, "tracked", lambda: folder)
    slow, lines = records.frame(scores=True), records.load_all(folder)
    assert len(slow) > 20 and slow["kind"].nunique() > 2
    records.write_parquet(path)
    monkeypatch.setattr(records, "tracked", lambda: path)
    fast = records.frame(scores=True)
    pd.testing.assert_frame_equal(fast.drop(columns="run"), slow.drop(columns="run"))
    assert [run.name for run in fast["run"]] == [run.name for run in slow["run"]]
    assert records.load_all(path) == [one for one in lines if one["kind"] != "measurement"]
    assert pd.read_parquet(path)["counts"].sum() == len(slow) < len(lines)


def test_the_replicate_of_a_superseded_record_counts_in_the_parquet(tmp_path, monkeypatch):
    """The first by date is superseded, so the second counts; of two that stand the first does."""
    folder, path = tmp_path / "records", tmp_path / records.PARQUET
    every = store.read(records.tracked())
    first, other = store.complete(every[:1] + every[-1:])
    dates = {"2026-01-01T00:00:00+00:00": 1.0, "2026-01-02T00:00:00+00:00": 2.0}
    store.add(
        [
            one | {"environment": one["environment"] | {"date": date}, "seconds": seconds}
            for one in (first, other)
            for date, seconds in dates.items()
        ],
        folder,
    )
    early = [one for one in store.read(folder) if one["seconds"] == 1.0]
    gone = next(one for one in early if one["configuration"] == first["configuration"])
    store.supersede([gone], "an error", "2026-01-03", folder)
    monkeypatch.setattr(records, "tracked", lambda: folder)
    records.write_parquet(path)
    table = pd.read_parquet(path)
    counted = table[table["counts"]].set_index("method")["seconds"]
    assert len(table) == 4 and counted.to_dict() == {
        first["configuration"]["method"]: 2.0,
        other["configuration"]["method"]: 1.0,
    }
