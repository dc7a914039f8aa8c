import copy
import functools
import json
import math
import operator
import statistics as standard
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import __main__ as cli
from hnlib import _files
from hnlib.results import comparisons
from hnlib.training import config, records
from hnlib.training import run as training


def record(seed=0, knn=0.9, **configuration):
    run = config.ImageRun(method="hcl", augmentation="digits", seed=seed)
    return {
        "configuration": run.configuration | configuration,
        "metrics": {"knn": knn, "linear": knn + 0.05},
        "image_shape": [1, 8, 8],
        "history": [],
    }


def test_the_name_depends_on_the_configuration_alone_and_not_on_its_order():
    one = record()["configuration"]
    assert records.name(one) == records.name(dict(reversed(one.items())))
    assert records.name(one) != records.name(one | {"seed": 1})
    assert len(records.name(one)) == 12


def test_written_and_read_back(tmp_path):
    path = records.write(record(), tmp_path / "new" / "folder")
    assert records.load_all(path.parent) == [record()]
    assert path.stem == records.name(record()["configuration"])


def test_what_json_cannot_say(tmp_path):
    far = dict(method="ot-semirelaxed", options={"relaxation": float("inf")})
    path = records.write(record(knn=float("nan"), **far), tmp_path)
    loaded = json.loads(path.read_text())
    assert loaded["metrics"]["knn"] is None
    assert loaded["configuration"]["options"]["relaxation"] == "inf"
    with pytest.raises(ValueError, match="JSON"):
        records.write(record(thing=object()), tmp_path)


def test_an_option_without_a_default_may_be_a_number(tmp_path):
    for level in (0.1, None):
        kept = record(method="h-scl-threshold", options={"level": level})
        assert records.read(records.write(kept, tmp_path)) == kept
    with pytest.raises(ValueError, match=r"options.level=\[1\] must be a word, a number or null"):
        records.write(record(method="h-scl-threshold", options={"level": [1]}), tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        record(weeks=3),
        record(epochs=-1),
        record(experiment=""),
        record(options={"beta": "high"}),
        record() | {"metrics": {"knn": "high"}},
        record(knn=2.0),
        record() | {"history": [{"epoch": -1}]},
        record() | {"seconds": "long"},
        record() | {"correct": {"linear": "??"}},
    ],
    ids=lambda wrong: str(sorted(wrong)),
)
def test_what_could_not_be_read_back_is_not_written(tmp_path, wrong):
    with pytest.raises(ValueError):
        records.write(wrong, tmp_path)
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_equal_name_one_record():
    run = functools.partial(config.ImageRun, method="hcl")
    for one, other in [
        (dict(options={"beta": 1}), dict(options={"beta": 1.0})),
        (dict(options={"beta": -0.0}), dict(options={"beta": 0})),
        (dict(weight_decay=-0.0), dict(weight_decay=0)),
        (dict(schedule={"beta": (1, 0)}), dict(schedule={"beta": [1.0, -0.0]})),
    ]:
        assert run(**one).name == run(**other).name
    assert run(options={"beta": 1}).name != run(options={"beta": 2}).name


def test_the_same_run_again_leaves_the_first_file(tmp_path):
    path = records.write(record() | {"seconds": 1.0}, tmp_path)
    assert records.write(record() | {"seconds": 2.0}, tmp_path) == path
    assert records.load_all(tmp_path)[0]["seconds"] == 1.0


def test_other_metrics_need_overwrite(tmp_path):
    path = records.write(record(knn=0.9), tmp_path)
    with pytest.raises(ValueError, match="overwrite=True"):
        records.write(record(knn=0.8), tmp_path)
    assert records.load_all(tmp_path)[0]["metrics"]["knn"] == 0.9
    assert records.write(record(knn=0.8), tmp_path, overwrite=True) == path
    assert records.load_all(tmp_path)[0]["metrics"]["knn"] == 0.8


def test_a_file_under_a_foreign_name_is_never_replaced(tmp_path):
    path = records.write(record(), tmp_path)
    path.write_text(json.dumps(record(seed=7)))
    with pytest.raises(ValueError, match="another configuration"):
        records.write(record(), tmp_path, overwrite=True)


def test_a_record_needs_configuration_and_metrics(tmp_path):
    with pytest.raises(ValueError, match="metrics"):
        records.write({"configuration": {}}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(temporary):
        with open(temporary, "w") as file:
            file.write("half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="space"):
        _files.write_atomically(path, fail)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_broken_record_is_named(tmp_path):
    path = records.write(record(), tmp_path)
    path.write_text(path.read_text()[:40])
    with pytest.raises(ValueError, match=path.name):
        records.load_all(tmp_path)


def measured(seed=0, linear=0.9, experiment="images", **chosen):
    """A record of a trained encoder, without the training."""
    run = config.ImageRun(experiment=experiment, seed=seed, **chosen)
    return {
        "configuration": run.configuration,
        "metrics": {"knn": linear - 0.1, "linear": linear},
        "image_shape": [1, 8, 8],
        "test_images": 400,
    }


def table(*values, **chosen):
    return records.frame([measured(seed, value, **chosen) for seed, value in values])


def test_the_table_has_a_row_a_run_and_a_column_an_option_or_metric():
    runs = records.frame(
        [
            measured(method="hcl", options={"beta": 2.0}, linear=0.8),
            measured(method="hcl", seed=1, schedule={"beta": (1.0, 0.0)}),
            measured(method="simclr", queue=8, protocols=("paper",)),
        ]
    )
    assert list(runs.query("beta == 2").linear) == [0.8] and list(runs.kind) == ["images"] * 3
    usual = runs.query("lr_schedule == 'constant' and schedule == '' and queue == 0")
    assert list(usual.options) == ["beta=2.0"] and list(usual.seed) == [0]
    assert list(runs.query("schedule == 'beta=1.0:0.0'").seed) == [1]
    (queued,) = runs.query("queue == 8 and momentum == 0.999").itertuples()
    assert queued.changed == "queue 8, protocols clean,paper" and queued.protocols == "clean,paper"
    assert queued.title == "digits, all images, small-cnn, 30 epochs, " + queued.changed
    assert queued.run == config.ImageRun(queue=8, protocols="paper") and np.isnan(queued.beta)
    assert not len(runs.query("epsilon == 0.5 or svm > 0 or oracle_positives == True"))


def test_a_table_of_nothing_can_be_asked():
    assert not len(records.frame([]).query("kind == 'images' and method == 'hcl' and beta == 1"))


def test_runs_that_differ_in_their_experiment_alone_are_one(tmp_path):
    twice = [measured(experiment=name) for name in ("images", "corrections")]
    (run,) = records.frame(twice).itertuples()
    assert run.experiments == ("corrections", "images")
    twice[1]["metrics"] |= {"linear": 0.5}
    names = [records.name(record["configuration"]) for record in twice]
    with pytest.raises(
        ValueError, match=rf"{names[0]}\.json and {names[1]}\.json .*linear: 0.9 and"
    ):
        records.frame(twice)
    (run,) = records.frame(twice[:1], twice[1:]).itertuples()  # said anew, not contradicted
    assert run.linear == 0.5 and run.experiments == ("corrections", "images")
    measurement = {"configuration": twice[0]["configuration"], "metrics": {"hours": 3.0}}
    both = records.frame([twice[0], measurement])
    assert list(both.kind) == ["images", "measurement"] and both.run.notna().tolist() == [
        True,
        False,
    ]


def test_the_book_s_records_are_one_table():
    everything = records.frame()
    assert len(everything) >= 969 and everything.record.is_unique
    counts = everything.kind.value_counts()
    assert counts["graphs"] >= 725 and counts["images"] >= 219 and counts["measurement"] >= 25
    cost = everything.query("measured == 'cost' and loss == 'streamed'")
    assert (cost.seconds > 0).all() and (cost.megabytes > 0).all()
    images = records.frame(kind="images")
    assert set(images.record) == set(everything.query("kind == 'images'").record)
    assert not images[["linear", "knn", "temperature"]].isna().all().any()


def test_spread_agrees_with_the_standard_library():
    values = [0.9, 0.92, 0.97]
    x = comparisons.percent(table(*enumerate(values)), "linear")
    mean, sd = 100 * standard.mean(values), 100 * standard.stdev(values)
    assert comparisons.spread(x) == f"{mean:.1f}\u00a0±\u00a0{sd:.1f}"
    assert comparisons.spread(x[:1]) == "90.0"


def test_papers_checks_its_columns(tmp_path):
    path = tmp_path / "papers.csv"
    path.write_text(
        ",".join(records.PAPER_COLUMNS)
        + "\nhcl,Fig. 4,HCL,β=1,cifar10,linear,91.4,,hcl-images hcl,example\n"
    )
    assert records.papers(path).iloc[0]["value"] == 91.4
    path.write_text("\ufeff" + path.read_text())  # as Excel writes it
    assert records.papers(path).iloc[0]["paper"] == "hcl"
    whole = path.read_text().removeprefix("\ufeff")
    for old, value, message in [
        ("91.4", "91,4", "has not 10 values; quote what holds a comma"),
        ("91.4,", "91.4", "has not 10 values"),
        *(("91.4", x, "value: .* is not a number") for x in ("x", "nan", "inf", "9_1", "٩")),
        ("91.4", "1e999", "value: '1e999' is too large"),
        ("91.4,", "91.4,?", "spread: '\\?' is not a number"),
        ("cifar10", " ", "has no dataset; write one"),
        ("Fig. 4", "", "has no table; write one"),
        ("91.4", "", "has no value; write one"),
    ]:
        path.write_text(f"# a remark\n\n{whole.replace(old, value, 1)}")
        with pytest.raises(ValueError, match=f"line 4 of .*papers.csv.*{message}"):
            records.papers(path)
    path.write_text(whole.replace("hcl,", "7,"))
    assert records.papers(path).iloc[0]["paper"] == "7", "a word, which papers.cells refuses"
    path.write_text(whole.replace("β=1", '"β=1'))
    with pytest.raises(ValueError, match="is not a CSV file"):
        records.papers(path)
    path.write_text("paper,value\nhcl,1\n")
    with pytest.raises(ValueError, match="columns"):
        records.papers(path)


def test_environment_says_what_measured():
    environment = records.environment()
    assert environment["versions"]["torch"] and environment["hardware"]["cores"] >= 1
    assert environment["hnlib"] == records.source_digest() and len(environment["hnlib"]) == 12
    json.dumps(environment)


def trained(seed=0, knn=0.9, **changes):
    """A record as `training.train` makes it, without the training."""
    chosen = training.train(
        "digits", None, epochs=0, evaluate_size=40, progress=False, device="cpu"
    ).record
    chosen["configuration"] |= {"method": "hcl", "options": {"beta": 2.0}, "seed": seed} | changes
    return chosen | {"metrics": {"knn": knn, "linear": knn + 0.05}}


def test_the_command_prints_a_table_and_refuses_a_missing_folder(tmp_path, capsys):
    for seed in range(2):
        records.write(trained(seed), tmp_path)
    records.write(
        {"configuration": {"experiment": "cost", "seed": 0}, "metrics": {"seconds": 1}}, tmp_path
    )
    assert cli.main(["results", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "2 trained encoders" in printed and "0 epochs" in printed
    assert "hcl beta=2.0: knn 90.0\u00a0±\u00a00.0, linear 95.0\u00a0±\u00a00.0 (2 runs)" in printed
    # runs of another setting are not averaged with these
    records.write(trained(0, 0.5, batch_size=64), tmp_path)
    cli.main(["results", "--folder", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "batch_size 64" in printed and "knn 50.0, linear 55.0 (1 run)" in printed
    assert "(2 runs)" in printed
    assert cli.main(["results", "--folder", str(tmp_path / "absent")]) == 2
    assert "absent is not a folder" in capsys.readouterr().err


def test_a_reader_never_sees_a_half_written_file(tmp_path):
    path = tmp_path / "file"
    _files.write_atomically(path, b"old")
    with path.open("rb") as reader:  # opened before, it keeps the old file: a new one took its name
        _files.write_atomically(path, b"new and longer")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new and longer"


def test_mean_and_spread_are_over_one_less_than_the_runs():
    runs, accuracy = table((0, 0.5), (1, 0.6), (2, 0.85)), [50, 60, 85]
    x = comparisons.percent(runs, "linear")
    assert x.tolist() == pytest.approx(accuracy)
    assert comparisons.spread(x) == f"65.0\u00a0±\u00a0{standard.stdev(accuracy):.1f}"


def test_a_write_under_way_is_not_read(tmp_path):
    path = records.write(record(), tmp_path)

    def look(temporary):
        Path(temporary).write_text("{")
        assert len(records.load_all(tmp_path)) == 1
        Path(temporary).write_text(path.read_text())

    _files.write_atomically(path, look)


# --- what others wrote: read rightly, or refused in a sentence that names the file and the field


@functools.cache
def real(kind):
    """A record on disk, with one row of its history."""
    named = {
        "images": lambda r: "correct" in r and r["configuration"].get("queue", 0) == 0,
        "graphs": lambda r: r["configuration"].get("framework") == "graphcl",
        "measurement": lambda r: "measured" in r["configuration"],
    }[kind]
    every = (json.loads(p.read_text()) for p in sorted(records.tracked_folder().glob("*.json")))
    found = next(record for record in every if named(record))
    row = dict(list(found.get("history", [{}])[-1].items())[:3])
    cut = {key: found.get(key, [])[:size] for key, size in (("losses", 2), ("sessions", 1))}
    cut["history"] = [row]
    found |= {key: value for key, value in cut.items() if key in found}
    for environment in (found["environment"], *found.get("sessions", ())):
        environment["versions"] = {"torch": "2.13.0"}
    return found


def places(value, path=()):
    """The path of every value inside a record, its dictionaries and lists too."""
    if path:
        yield path
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value[:1])
        for key, part in inner:
            yield from places(part, (*path, key))


def changed(record, path, value):
    """The record with another value at a path; None of any type: without it."""
    record = copy.deepcopy(record)
    *outer, last = path
    inner = functools.reduce(operator.getitem, outer, record)
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value
    return record


GONE = object()
MUTANTS = [None, 3, "word", [], {"a": 1}, 10**400, math.nan, GONE]


def kind_of(value):
    if value is GONE:
        return "missing"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number" if abs(value) < 1e200 else "odd"
    return type(value).__name__


def written(record, folder):
    """A file under the name that the record's configuration has, NaN and all."""
    text = json.dumps(record)
    chosen = record.get("configuration")
    try:
        stem = records.name(chosen)
    except (ValueError, RecursionError):
        stem = "0" * 12
    (folder / f"{stem}.json").write_text(text)
    return folder / f"{stem}.json"


@pytest.mark.parametrize("kind", ["images", "graphs", "measurement"])
def test_a_record_with_one_value_of_another_kind_is_refused_or_means_what_it_says(kind, tmp_path):
    if kind == "graphs":
        pytest.importorskip("torch_geometric")
    found, accepted = real(kind), []
    for number, path in enumerate(places(found)):
        old = functools.reduce(operator.getitem, path, found)
        for value in MUTANTS:
            folder = tmp_path / f"{number}-{MUTANTS.index(value)}"
            folder.mkdir()
            file = written(changed(found, path, value), folder)
            try:
                table = records.frame(folder)
            except ValueError as error:
                assert file.stem in str(error) and str(folder) in str(error)
                assert "\n" not in str(error)
                names = [str(key) for key in path if isinstance(key, str)]
                assert any(name.removesuffix("s") in str(error) for name in names), (
                    path,
                    value,
                    error,
                )
            else:
                assert len(table) == 1
                if old is not None and kind_of(value) != kind_of(old):
                    accepted.append((".".join(map(str, path)), kind_of(value)))
                assert cli.main(["results", "--folder", str(folder)]) == 0
    # what a record need not have, or could not measure; of a configuration nothing may be missing
    others = [(p, what) for p, what in accepted if not p.startswith("history.0.")]
    assert not [(p, what) for p, what in others if what not in ("missing", "NoneType")]
    assert not {place for place, what in accepted if place in NEEDED}
    null = {place for place, what in accepted if what == "NoneType"}
    assert not [place for place in null if not place.startswith(NULLABLE)]


NEEDED = {"configuration", "metrics", "configuration.seed", "configuration.method", "image_shape"}
NULLABLE = (
    "metrics.",
    "seconds",
    "losses.",
    "history.",
    "environment.versions.",
    "sessions.0.versions.",
    "sessions.0.seconds",
    *(f"configuration.{k}" for k in ("method", "dataset_digest", "train_size", "labels")),
    *(f"configuration.{k}" for k in ("evaluate_size", "max_steps", "lr_schedule", "schedule")),
)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.sampled_from(["images", "graphs", "measurement"]), st.data())
def test_a_record_with_anything_in_it_leaves_no_traceback(kind, data):
    if kind == "graphs":
        pytest.importorskip("torch_geometric")
    found = real(kind)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(found))))
        found = changed(found, path, data.draw(JSON | st.just(GONE)))
    with tempfile.TemporaryDirectory() as folder:
        file = written(found, Path(folder))
        try:
            assert len(records.frame(folder)) == 1
        except ValueError as error:
            assert file.stem in str(error) and "\n" not in str(error)
        else:
            assert cli.main(["results", "--folder", folder]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "is not a whole record .it needs configuration and metrics"),
        ("[" * 100_000, "is not a whole record"),
        ('{"configuration": {"seed": ' + "9" * 5000 + "}}", "is not a whole record"),
        ('{"configuration": {"experiment": "x"}, "metrics": {}}', "another configuration than"),
        ("\ud800", "is not a whole record"),
    ],
)
def test_what_is_no_record_is_named(tmp_path, text, message):
    path = tmp_path / "0123456789ab.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=f"{path.name} .*{message}|{path.name} {message}"):
        records.load_all(tmp_path)
    assert cli.main(["results", "--folder", str(tmp_path)]) == 2


def test_bits_that_do_not_fit_their_images_are_refused(tmp_path):
    found = real("images")
    for text, message in [
        ("??", "is no base64"),
        ("AAAA", "has 3 bytes; test_images=10000 take 1250"),
    ]:
        found["correct"]["linear"] = text
        path = written(found, tmp_path)
        with pytest.raises(ValueError, match=rf"{path.name}: correct.linear {message}"):
            records.load_all(tmp_path)


def test_half_a_character_is_no_text(tmp_path):
    text = next(records.tracked_folder().glob("*.json")).read_text("utf-8")
    path = tmp_path / "x.json"
    path.write_text(text.replace('"experiment": "', '"experiment": "\\ud800', 1))
    with pytest.raises(ValueError, match=r"x\.json is not a whole record .*surrogates"):
        records.load_all(tmp_path)
