"""What is known of a folder without reading it is what reading it finds, whatever happened to it."""

import json
import os
import random
import warnings

import pytest
from test_store import record

from hnlib.training import index, records, store


def known(folder, keys):
    """What the index says of runs: which are there, and their records."""
    found = records.index_of(folder)
    assert found.has(keys) == found.find(keys).keys()
    return found.find(keys)


def write(path, content):
    """Write as an editor does: another time of change."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_bytes(content)
    os.utime(path, ns=(before + 10**9, before + 10**9))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore:line:UserWarning")
def test_it_knows_what_a_folder_has_after_whatever_was_done_to_it(tmp_path, seed):
    draw, folder = random.Random(seed), tmp_path / "records"
    every = [record(i % 4, experiment=f"e{i % 3}", date=f"2026-01-0{1 + i % 9}") for i in range(36)]
    keys = [records.key(one["configuration"]) for one in every]

    def lines(path):
        return path.read_bytes().splitlines(True)

    def some_file():
        return draw.choice(store.files(folder))

    def append():
        store.append(draw.choice(every), folder)

    def supersede(days=iter(range(10, 99))):  # noqa: B008
        one, why = draw.choice(store.read(folder)), draw.choice(["an error", None])
        line = {"supersedes": one["run"], "digest": one["digest"], "why": why}
        store.write(some_file(), [store.line_of(line | {"date": f"2026-02-{next(days)}"})])

    def torn():
        with some_file().open("ab") as file:
            file.write(draw.choice([b'{"run": "a', b'{"run": 5}\n', b"\n"]))

    def removed():
        path = some_file()
        write(path, b"".join(lines(path)[1:]))

    def edited():
        path = some_file()
        other = draw.choice([b'"loss":0.6', b'"loss":0.625'])
        write(path, path.read_bytes().replace(b'"loss":0.5', other, 1))

    def gone():
        some_file().unlink()

    def damaged():
        (folder / index.NAME).write_text(draw.choice(["", "[]", '{"form": 1}', '{"form": 0}']))
        index._of.cache_clear()

    append()
    for _ in range(9):
        for _ in range(draw.randint(1, 3)):
            what = [append, append, append, supersede, torn, removed, edited, gone, damaged]
            draw.choice(what)()
            if not store.read(folder):
                append()
        assert known(folder, keys) == records.by_key(folder)


def test_a_run_that_is_missing_or_known_is_told_without_a_look_at_the_lines(tmp_path, recwarn):
    first, other = (record(seed) for seed in (0, 1))
    path = store.append(first, tmp_path)
    keys = [records.key(one["configuration"]) for one in (first, other)]
    assert [*known(tmp_path, keys)] == keys[:1]
    content, stat = path.read_bytes(), path.stat()
    path.write_bytes(content.replace(b"{", b"x"))  # nobody who reads it finds a run
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    index._of.cache_clear()
    assert records.index_of(tmp_path).has(keys) == {keys[0]}
    with path.open("ab") as file:  # nor are old lines read because of new ones
        file.write(content.replace(b'"seed":0', b'"seed":1'))
    assert not recwarn
    path.write_bytes(content)
    assert records.index_of(tmp_path).has(keys) == {keys[0]}


def test_what_adds_records_reads_the_new_lines_and_who_looks_none(tmp_path, monkeypatch):
    own, tracked, read = tmp_path / "own", tmp_path / "tracked", []

    def numbered(content, form, every=store.numbered):
        read.append(content if form is store.RUN_LINE else b"")
        return every(content, form)

    monkeypatch.setattr(store, "numbered", numbered)
    first, path = records.append(record(), own).read_bytes(), records.append(record(1), own)
    assert b"".join(read) == path.read_bytes() and b"" != first != path.read_bytes()
    tracked.mkdir()
    monkeypatch.setattr(records, "tracked", lambda: tracked)
    assert records.add(own) == (2, 2)
    read.clear()
    keys = {records.key(record(seed)["configuration"]) for seed in (0, 1)}
    for folder in (own, tracked):
        index._of.cache_clear()
        assert records.index_of(folder).has(keys) == keys
    assert not b"".join(read)


@pytest.mark.filterwarnings("ignore:line:UserWarning")
def test_a_line_that_was_half_written_when_somebody_looked_is_found_when_it_is_whole(tmp_path):
    store.append(record(), tmp_path)
    path = store.append(record(1), tmp_path)
    keys = [records.key(record(seed)["configuration"]) for seed in (0, 1)]
    whole = path.read_bytes()
    write(path, whole[:-100])
    assert records.index_of(tmp_path).has(keys) == {keys[0]}
    write(path, whole)
    assert known(tmp_path, keys) == records.by_key(tmp_path)


def test_lines_that_are_left_out_are_reported_by_whoever_looks(tmp_path):
    path = store.append(record(), tmp_path)
    with path.open("ab") as file:
        file.write(b'{"run": 5}\n')
    store.append(record(1), tmp_path)
    for _ in range(2):  # while it is made, and from the file
        index._of.cache_clear()
        with pytest.warns(UserWarning, match=r"line 2 of .*images.jsonl cannot be read"):
            records.index_of(tmp_path)


def test_where_nothing_can_be_written_it_is_made_each_time(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    store.append(record(), tmp_path)
    monkeypatch.setattr("hnlib._files.write_atomically", full)
    key = records.key(record()["configuration"])
    for _ in range(2):
        index._of.cache_clear()
        assert records.index_of(tmp_path).has([key]) == {key}
    assert not (tmp_path / index.NAME).exists()


def test_the_tracked_runs_are_found_as_by_reading_all_of_them():
    every = records.by_key()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = records.index_of(records.tracked())
    assert found.has([*every, "another"]) == every.keys()
    some = [*every][:: max(1, len(every) // 300)]
    assert found.find(some) == {key: every[key] for key in some}


def test_costs_of_an_epoch_are_kept_with_the_hardware_they_were_measured_on(tmp_path):
    """A run in two sessions has the hardware of the last and the larger of their peaks."""
    card = {"hardware": {"cpu": "a processor", "gpu": "a card"}, "date": "2026-01-01"}
    first, last = (card | {"peak_memory": size} for size in (900, 700))
    sessions = [first | {"seconds": 1.0}, last | {"seconds": 4.0}]
    one = record(0, epochs=5) | {"seconds": 5.0, "environment": last, "sessions": sessions}
    store.append(one, tmp_path)
    for _ in range(2):  # as read, and as kept
        ((cost,),) = records.index_of(tmp_path).costs.values()
        assert (cost.pace, cost.memory, cost.hardware) == (1.0, 900, card["hardware"])
        index._of.cache_clear()
    assert json.loads((tmp_path / index.NAME).read_text())["form"] == index.FORM


def test_a_parquet_tells_what_a_run_took_and_the_memory_of_its_sessions_as_its_folder(
    tmp_path, monkeypatch
):
    folder, path = tmp_path / "records", tmp_path / records.PARQUET
    one = record(epochs=3)
    (used,) = one["sessions"]
    store.add([one | {"sessions": [used, used | {"peak_memory": 2**30}]}], folder)
    monkeypatch.setattr(records, "tracked", lambda: folder)
    records.write_parquet(path)
    costs = records.index_of(folder).costs
    assert records.index_of(path).costs == costs
    ((cost,),) = costs.values()
    assert (cost.pace, cost.memory) == (0.5, 2**30)
