"""Scores as Parquet: every value comes back, and what is torn, gone or left over is said."""

import json
import warnings
from contextlib import suppress

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from test_store import record

from hnlib.training import parts, records, store
from hnlib.training.config import canonical

FLOATS = some.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0)  # -0.0 is 0.0
NUMBERS = FLOATS | some.integers(-(2**70), 2**70) | some.none() | some.booleans()
NAMES = some.text(some.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=4)
VALUES = NUMBERS | some.text(max_size=3) | some.lists(FLOATS | some.none(), max_size=3)
VALUES |= some.dictionaries(NAMES, NUMBERS, max_size=2)
TABLES = some.lists(NAMES, min_size=1, max_size=3, unique=True).flatmap(
    lambda names: some.lists(some.fixed_dictionaries(dict.fromkeys(names, NUMBERS)), max_size=3)
)
HISTORIES = TABLES | some.lists(some.dictionaries(NAMES, VALUES, max_size=3), max_size=3)
BITS = some.sampled_from(["", "8A==", "8A=", "8B==", "_-8=", "AAECAwQF", "é"])
SCORES = some.fixed_dictionaries(
    {},
    optional={
        "history": HISTORIES,
        "losses": some.lists(FLOATS, max_size=4) | some.lists(NUMBERS, max_size=4),
        "correct": some.dictionaries(NAMES, BITS | some.lists(NUMBERS, max_size=4), max_size=3),
    },
)


@settings(deadline=None, max_examples=300)
@given(several=some.lists(SCORES, min_size=1, max_size=4))
def test_all_scores_come_back_null_integer_and_float(tmp_path_factory, several):
    """Whatever JSON they are, of records together in one part, and of some of them."""
    lines = tmp_path_factory.mktemp("parts") / "one.jsonl"
    scores = {f"digest{i}": one for i, one in enumerate(several)}
    part = parts.write(lines, scores)
    assert parts.of(lines) == [part] and parts.lines_of(part) == lines
    assert parts.digests(part) == [*scores]
    found = parts.read(part, {*scores})
    assert canonical(found) == canonical(scores)  # 1 and 1.0 differ here
    first, *others = scores
    assert canonical(parts.read(part, {*others, "of another"})) == canonical(
        {digest: scores[digest] for digest in others}
    )
    assert first not in parts.read(part, {*others})


def test_anybody_reads_scores_with_pandas(tmp_path):
    """Columns of lists, one row a run; only what fits no column is JSON."""
    curve = [{"epoch": 1, "loss": None, "exp": {"a": 1}}, {"epoch": 2, "loss": 0.5, "exp": {}}]
    one = {"history": curve, "losses": [0.25], "correct": {"ndcg": [0.5, 1.0], "knn": "8A=="}}
    table = pd.read_parquet(parts.write(tmp_path / "x.jsonl", {"a": one, "b": {"losses": []}}))
    assert table["digest"].tolist() == ["a", "b"]
    row = table.iloc[0]
    assert row["scores.ndcg"].tolist() == [0.5, 1.0] and row["bits.knn"] == b"\xf0"
    assert row["history.epoch"].tolist() == [1, 2] and row["losses"].tolist() == [0.25]
    assert json.loads(row["rest"]) == {"history.exp": [{"a": 1}, {}]}
    assert table["losses"][1].tolist() == [] and pd.isna(table["rest"][1])


def test_a_part_of_which_a_bit_was_changed_is_reported(tracked):
    store.add([record(seed) for seed in range(3)], tracked)
    (part,) = tracked.glob("*.parquet")
    whole, made = part.read_bytes(), records.load_all(tracked)
    for place in range(8, len(whole) - 8, 37):
        part.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = records.load_all(tracked)
        assert found != made and said, place
    part.write_bytes(whole[:-20])
    with pytest.warns(UserWarning, match=rf"{part} cannot be read and is left out"):
        assert "history" not in records.load_all(tracked)[0]


def test_scores_without_a_line_and_a_line_without_scores_are_said(tracked):
    store.add([record()], tracked)
    (part,) = tracked.glob("*.parquet")
    left = parts.write(tracked / "other.jsonl", {"abc": {"losses": [0.5]}})
    (sentence,) = store.altered(tracked)
    assert "other.jsonl has scores of 1 records that have no line" in sentence
    left.unlink()
    assert store.altered(tracked) == []
    part.unlink()
    with pytest.warns(UserWarning, match=r"the scores of \w{12} in .*images.jsonl are gone"):
        sentence, *_ = store.altered(tracked)
    assert "images.jsonl has lines of 1 records whose scores are gone" in sentence


def test_a_score_that_was_changed_since_it_was_made_is_found(tracked):
    store.add([record()], tracked)
    (part,) = tracked.glob("*.parquet")
    (scores,) = parts.read(part, {*parts.digests(part)}).values()
    scores["losses"][0] += 1e-9
    parts.write(tracked / "images.jsonl", {parts.digests(part)[0]: scores})
    part.unlink()
    (sentence,) = store.altered(tracked)
    assert "images.jsonl has 1 records that were changed since they were made" in sentence


def test_parts_are_joined_to_one_and_equal_rows_count_once(tracked, prints):
    """Also when a joining ended before the old parts were taken away, and then goes on."""
    for seed in range(3):
        store.add([record(seed), record(seed, experiment="other")], tracked)
    whole = records.load_all(tracked)
    before = {path: path.read_bytes() for path in tracked.glob("*.parquet")}
    assert len(before) == 6 and "6 Parquet files" in prints("results", "--compact")
    (part, of_other) = sorted(tracked.glob("*.parquet"))
    assert records.load_all(tracked) == whole and store.altered(tracked) == []
    for path, content in before.items():  # as if it had been cut off
        path.write_bytes(content)
    assert records.load_all(tracked) == whole and store.altered(tracked) == []
    assert store.compact(tracked) == 6 and sorted(tracked.glob("*.parquet")) == [part, of_other]
    assert "0 Parquet files" in prints("results", "--compact")
    assert "0 of 0" not in prints("results") and records.load_all(tracked) == whole


def test_scores_are_on_the_disk_before_their_lines(tracked, tmp_path, monkeypatch):
    """Adding that ends before the lines leaves scores alone, and adding again ends it."""
    order, write, parts_write = [], store.write, parts.write

    def stop(path, lines):
        order.append("lines")
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(parts, "write", lambda *x: order.append("scores") or parts_write(*x))
        killed.setattr(store, "write", stop)
        with suppress(KeyboardInterrupt):
            store.add([record()], tracked)
    assert order == ["scores", "lines"] and records.load_all(tracked) == []
    (sentence,) = store.altered(tracked)
    assert "scores of 1 records that have no line: records come by `hnlib results" in sentence
    store.add([record()], tracked)
    assert store.altered(tracked) == [] and records.load_all(tracked) == [record()]
    assert len([*tracked.glob("*.parquet")]) == 1 and write is store.write


def test_a_part_unpacks_to_so_many_values_at_most(tracked, monkeypatch):
    """A million equal scores are some kilobytes."""
    store.add([record() | {"losses": [0.5] * 10**6}], tracked)
    (part,) = tracked.glob("*.parquet")
    assert part.stat().st_size < 20_000 and len(records.load_all(tracked)[0]["losses"]) == 10**6
    monkeypatch.setattr(parts, "LARGEST", 10**5)
    with pytest.warns(UserWarning, match=r"it has 1,000,[0-9]+ values, more than 100,000"):
        assert "losses" not in records.load_all(tracked)[0]
