"""The files of records: nothing is lost, nothing is changed unseen, and scores keep every bit."""

import json
import math
import multiprocessing
from contextlib import nullcontext, suppress

import pytest

from hnlib.images.config import ImageRun
from hnlib.training import records, store


def record(seed=0, linear=0.9, date="2026-01-02T03:04:05+00:00", **chosen):
    """A record of a trained encoder, without the training."""
    run = ImageRun(seed=seed, **{"method": "hcl"} | chosen)
    environment = {"hardware": {"cpu": "a processor"}, "date": date}
    return {
        "kind": "images",
        "configuration": run.configuration,
        "metrics": {"knn": linear - 0.1, "linear": linear, "loss": 0.5},
        "environment": environment,
        "sessions": [environment | {"seconds": 1.5}],
        "history": [{"epoch": 0, "loss": None}, {"epoch": 1, "loss": 0.5}],
        "losses": [0.1 + 0.2, math.nextafter(0.5, 1)],
        "correct": {"linear": "8A==", "ndcg": [0.0, 1.0, 0.63093, 0.0]},
        "seconds": 1.5,
    }


def test_a_record_is_a_line_of_its_experiment_and_comes_back_to_the_last_bit(tmp_path):
    path = store.append(record(experiment="my own/test"), tmp_path)
    assert path.name == "my_own_test.jsonl"
    assert records.load_all(tmp_path) == [record(experiment="my own/test")]
    (line,) = store.read(tmp_path)
    assert line["run"] == records.name(line["configuration"]) and "history" not in line
    bare = {k: v for k, v in record(1).items() if k not in (*store.SCORES, "sessions", "seconds")}
    store.append(bare, tmp_path)
    assert bare in records.load_all(tmp_path)


def test_a_record_without_a_kind_is_refused_and_json_decides_what_can_be_written(tmp_path):
    with pytest.raises(ValueError, match=r"kind must be one of images, .*, measurement, got None"):
        store.append(record() | {"kind": None}, tmp_path)
    with pytest.raises(TypeError, match="JSON"):
        store.append(record() | {"thing": object()}, tmp_path)
    assert not store.files(tmp_path)
    far = dict(method="ot-semirelaxed", options={"relaxation": math.inf})
    store.append(record(linear=math.nan, **far), tmp_path)
    (loaded,) = records.load_all(tmp_path)
    assert loaded["metrics"]["linear"] is None
    assert loaded["configuration"]["options"]["relaxation"] == "inf"


def _record_sixty(folder, who):
    for seed in range(60):
        store.append(record(seed, linear=0.5 + who / 10), folder)


def test_two_processes_that_record_the_same_runs_keep_all_of_them(tmp_path):
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_record_sixty, args=(tmp_path, who)) for who in (1, 2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
        assert process.exitcode == 0
    found = records.load_all(tmp_path)
    assert len(found) == 120 and len({records.name(one["configuration"]) for one in found}) == 60


def test_a_line_that_a_killed_process_tore_is_reported_and_its_neighbours_are_read(tmp_path):
    path = store.append(record(0), tmp_path)
    with path.open("a") as file:
        file.write('{"run": "torn')  # without a newline
    store.append(record(1), tmp_path)
    with pytest.warns(UserWarning, match=rf"line 2 of {path} cannot be read and is left out"):
        found = store.read(tmp_path)
    assert {one["configuration"]["seed"] for one in found} == {0, 1}


SUPERSEDING = {"supersedes": "a run", "digest": "of it", "why": None, "date": "2026-01-01"}
MALFORMED = [
    ({"run": 5}, "run: .*valid string, got 5"),
    ({"run": None}, "run: .*valid string"),
    ({"digest": None}, "digest: .*valid string"),
    ({"date": 3}, "date: .*valid string"),
    ({"metrics": "0.9"}, "metrics: .*instance of dict, got '0.9'"),
    ({"metrics": [0.9]}, "metrics: .*instance of dict"),
    ({"metrics": {"linear": 1e999}}, "metrics must be finite"),
    ({"configuration": None}, "configuration: .*instance of dict"),
    ({"configuration": ["images"]}, "configuration: .*instance of dict"),
    ({"configuration": ...}, "configuration: Field required"),
    ({"kind": "videos"}, "kind: .*must be one of images, .*, got 'videos'"),
    ({"kind": ["images"]}, "kind: .*got .'images'."),
    ({"sessions": [{"seconds": 1.5}]}, "sessions.0.environment: Field required"),
    (SUPERSEDING | {"date": 3}, "date: .*valid string"),
    (SUPERSEDING | {"digest": ["of it"]}, "digest: .*valid string"),
    ([], "valid dictionary"),
]


@pytest.mark.parametrize(("wrong", "why"), MALFORMED)
def test_a_line_of_a_wrong_type_is_reported_and_its_neighbours_are_read(
    tmp_path, monkeypatch, wrong, why
):
    path = store.append(record(0), tmp_path)
    line = wrong
    if wrong and "supersedes" not in wrong:
        line = {k: v for k, v in (json.loads(path.read_text()) | wrong).items() if v is not ...}
    with path.open("a") as file:
        file.write(json.dumps(line).replace("Infinity", "1e400") + "\n")
        file.write(json.dumps(SUPERSEDING) + "\n")  # of another type than a wrong one
    store.append(record(1), tmp_path)
    sentence = rf"line 2 of {path} cannot be read and is left out \(.*{why}.*\); run again"
    with pytest.warns(UserWarning, match=sentence):
        assert {*records.frame(tmp_path)["seed"]} == {0, 1}
    monkeypatch.setenv("HNLIB_RECORDS", str(tmp_path))
    with pytest.warns(UserWarning, match=sentence):
        assert len(records.by_key()) == 2


@pytest.mark.parametrize(
    ("line", "why"), [({"id": 5}, "id"), ({"id": "one", "hardware": "a processor"}, "hardware")]
)
def test_an_environment_of_a_wrong_type_is_reported(tmp_path, line, why):
    store.append(record(), tmp_path)
    with (tmp_path / store.ENVIRONMENTS).open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.warns(UserWarning, match=rf"line 2 of .*environments\.jsonl .*{why}"):
        assert len(store.read(tmp_path)) == 1


def test_scores_that_cannot_be_read_are_reported_and_left_out(tmp_path):
    path = store.append(record(0), tmp_path).with_suffix(".scores.jsonl")
    good = path.read_bytes()
    for scores in (5, [1], "base 85, as an earlier version packed them"):
        path.write_bytes(store.line_of({"digest": store.digest_of(record()), "scores": scores}))
        with pytest.warns(UserWarning) as said:
            (found,) = records.load_all(tmp_path)
        assert found == {k: v for k, v in record().items() if k not in store.SCORES}
        assert f"line 1 of {path} cannot be read and is left out (" in str(said[0].message)
        assert f"of {store.digest_of(record())} in" in str(said[1].message)
    path.write_bytes(good)
    assert records.load_all(tmp_path) == [record()]


@pytest.mark.parametrize("writes", range(4))
def test_a_line_stands_only_where_what_it_needs_stands(tmp_path, monkeypatch, writes):
    """The second of two appendings ends after so many writes, as a killed process does."""
    store.append(record(0), tmp_path)
    left, write = iter(range(writes)), store.write

    def writes_until(path, lines):
        if lines:
            next(left)
        write(path, lines)

    there = {"hardware": {"cpu": "another"}, "date": "2026-01-03T00:00:00+00:00"}
    with monkeypatch.context() as killed:
        killed.setattr(store, "write", writes_until)
        with suppress(StopIteration):
            store.append(record(1) | {"environment": there}, tmp_path)
    found = {one["configuration"]["seed"]: one for one in records.load_all(tmp_path)}
    assert sorted(found) == ([0, 1] if writes == 3 else [0])
    assert all("history" in one for one in found.values())
    store.append(record(1) | {"environment": there}, tmp_path)
    assert {one["configuration"]["seed"] for one in records.load_all(tmp_path)} == {0, 1}


def test_a_line_without_its_environment_is_said_not_left_out(tmp_path):
    store.append(record(), tmp_path)
    (tmp_path / store.ENVIRONMENTS).unlink()
    with pytest.raises(ValueError, match=r"images\.jsonl has a line without 'environment \w{8} of"):
        store.read(tmp_path)


def test_the_same_record_twice_counts_once_and_replicates_are_ordered_by_date(tmp_path):
    dates = (f"2026-0{month}-01T00:00:00+00:00" for month in (1, 2, 3))
    first, *others = (record(linear=0.7 + i / 10, date=date) for i, date in enumerate(dates))
    for one in (*others, first, *others):
        store.append(one, tmp_path)
    assert records.load_all(tmp_path) == [first, *others]
    assert records.frame(tmp_path)["linear"].tolist() == [0.7]


def test_records_that_differ_in_their_date_alone_are_replicates(tmp_path):
    dates = [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2)]
    for date in (*dates, dates[0]):
        store.append(record(date=date), tmp_path)
    assert [one["environment"]["date"] for one in store.read(tmp_path)] == dates


def test_the_sessions_of_a_run_that_was_interrupted_come_back(tmp_path):
    first, last = (
        {"hardware": {"cpu": cpu}, "date": f"2026-01-0{i}"} for i, cpu in ((1, "one"), (2, "two"))
    )
    sessions = [first | {"seconds": 1.0}, last | {"seconds": 2.0}]
    store.append(made := record() | {"environment": last, "sessions": sessions}, tmp_path)
    assert records.load_all(tmp_path) == [made]


@pytest.mark.parametrize("experiment", ["environments", "digests"])
def test_an_experiment_may_have_the_name_of_a_file_of_the_store(tmp_path, experiment):
    store.append(record(experiment=experiment), tmp_path)
    assert records.load_all(tmp_path) == [record(experiment=experiment)]


def test_superseding_is_a_line_of_which_the_last_by_date_wins(tracked):
    store.add([record(), record(1)], tracked)
    first, other = store.read(tracked)
    store.supersede([first], "it counts again", "2026-03-02", tracked)
    store.supersede([first], "of another scale", "2026-03-01", tracked)
    assert [one.get("superseded") for one in store.read(tracked)] == ["it counts again", None]
    assert records.frame(tracked)["record"].tolist() == [other["run"]]
    assert [*records.by_key(tracked)] == [records.key(other["configuration"])]
    store.supersede([first], None, "2026-03-03", tracked)
    assert not any("superseded" in one for one in store.read(tracked))
    assert store.altered(tracked) == []


def test_a_folder_is_added_once_and_what_is_malformed_is_refused(
    tmp_path, tracked, prints, refuses
):
    path, old = store.append(record(), mine := tmp_path / "mine"), tmp_path / "old"
    assert "1 of 1 records were new" in prints("results", "--add", mine)
    assert "0 of 1 records were new" in prints("results", "--add", mine)
    path.write_bytes(path.read_bytes().replace(b"0.9", b"0.7"))
    assert "changed, or without its scores" in refuses("results", "--add", mine)
    old.mkdir()
    (old / "one.json").write_text(json.dumps(record(2)))  # as earlier versions wrote them
    (old / "two.json").write_text(json.dumps({"kind": "images", "metrics": {}}))
    words = "two.json has a malformed record, none is added: 'configuration'"
    assert words in refuses("results", "--add", old) and len(store.read(tracked)) == 1
    (old / "two.json").unlink()
    prints("results", "--add", old)
    assert len(records.load_all(tracked)) == 2 and store.altered(tracked) == []


def test_a_line_that_was_changed_removed_or_added_by_hand_is_found(tracked):
    store.add([record(seed) for seed in range(3)], tracked)
    path = tracked / "images.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b"{}\n")
    assert "were not added" in store.altered(tracked)[0]
    for wrong in (whole.replace(b":", b": ", 1), whole.partition(b"\n")[2]):
        path.write_bytes(wrong)
        sentence, *_ = store.altered(tracked)
        assert "images.jsonl" in sentence and "restore it from git" in sentence
        with pytest.raises(ValueError, match="restore it from git"):
            store.add([record(9)], tracked)


@pytest.mark.filterwarnings("ignore:the scores of")
@pytest.mark.parametrize("part", ["images.jsonl", "images.scores.*.parquet"])
def test_a_tracked_file_that_is_gone_is_named_and_nothing_is_added_or_superseded(tracked, part):
    store.add([record(), record(1, experiment="other")], tracked)
    (of_other,) = (one for one in store.read(tracked) if one["file"].name == "other.jsonl")
    (file,) = tracked.glob(part)
    file.unlink()
    sentence, *_ = store.altered(tracked)
    assert f"{tracked / 'images.jsonl'} has l" in sentence and " from git" in sentence
    with pytest.raises(ValueError, match=r"restore (it|its Parquet files) from git"):
        store.add([record(9)], tracked)
    with pytest.raises(ValueError, match=r"restore (it|its Parquet files) from git"):
        store.supersede([of_other], "an error", "2026-03-01", tracked)


def test_adding_that_was_interrupted_is_ended_by_adding_again(tmp_path, tracked, monkeypatch):
    store.append(record(), tmp_path / "mine")
    with monkeypatch.context() as killed:
        killed.setattr(store, "_counted", lambda folder: nullcontext())
        records.add(tmp_path / "mine")
    assert "were not added" in store.altered(tracked)[0]
    assert records.add(tmp_path / "mine") == (0, 1) and store.altered(tracked) == []


def test_two_branches_that_recorded_runs_merge_by_keeping_all_lines(tmp_path):
    attributes = (records.project_root() / ".gitattributes").read_text()
    assert "book/results/records/*.jsonl merge=union" in attributes
    one, other = tmp_path / "one", tmp_path / "other"
    store.add([record(0), record(1)], one)
    store.add([record(1), record(2)], other)  # one of them is on both branches
    for path in other.glob("*.parquet"):  # of other names: they never meet
        assert not (one / path.name).exists()
        (one / path.name).write_bytes(path.read_bytes())
    for path in other.glob("*.jsonl"):
        ours, theirs = (file.read_text().splitlines(True) for file in (one / path.name, path))
        (one / path.name).write_text("".join(dict.fromkeys(ours + theirs)))
    seeds = {record["configuration"]["seed"] for record in records.load_all(one)}
    assert seeds == {0, 1, 2} and store.altered(one) == []
