"""The ledgers: records, claims, printed numbers.

Readers trust the records, so they are validated here. Printed numbers are transcribed by hand, so
they must also agree with what the papers say about them elsewhere: averages, improvements, counts.
"""

import csv
import hashlib
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hnbook import public_tables
from hnlib.training import kinds, records, store

BOOK = Path(__file__).resolve().parent.parent / "book"
#: From here on a record holds the digest of predictions.md at its start.
DIGESTS_SINCE = "2026-11-21T22:29"


@pytest.fixture(scope="module")
def recorded():
    """The records by the digest that tells replicates apart."""
    found = store.read(records.tracked())
    return {one["digest"]: whole for one, whole in zip(found, store.complete(found))}


@pytest.fixture(scope="module")
def printed():
    """The rows of papers.csv as texts."""
    with (BOOK / "results/papers.csv").open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file, strict=True)]


# Records


def faults(record: dict) -> list[str]:
    """Return what is wrong with a record that can be read."""
    environment = record["environment"]
    conditions = {
        "experiment": bool(record["configuration"].get("experiment")),
        "digest of the sources": re.fullmatch(r"[0-9a-f]{12}", environment["hnlib"]),
        "hardware": {"cpu", "cores", "threads"} <= environment["hardware"].keys(),
        "losses": np.isfinite(np.array(record.get("losses", []), float)).all(),
    }
    if record["kind"] != kinds.MEASUREMENT:
        run = kinds.run_class(record["kind"]).read(record["configuration"])
        entry = run.catalogue.get(run.method)
        conditions["options"] = entry is None or run.options.keys() <= entry.defaults.keys()
        conditions |= {f"correct.{m}": has_bits(record, m) for m in record.get("correct", ())}
    return [condition for condition, holds in conditions.items() if not holds]


def has_bits(record: dict, metric: str) -> bool:
    """Return whether a metric is the mean over its examples, as their bits or scores say."""
    part = "validation" if metric.endswith("_validation") else "test_images"
    sizes = record.get("judged") or record | record["configuration"]
    values = record["correct"][metric]
    if not isinstance(values, list):  # a bit for each example
        values = records.unpack(values, sizes.get(metric, sizes.get(part)))
    values = np.asarray(values, float)  # NaN fails every comparison
    mean = pytest.approx(values.mean(), abs=1e-6)
    return 0 <= values.min() <= values.max() <= 1 and record["metrics"][metric] == mean


def test_every_record_is_valid_and_as_it_was_added(recorded):
    """Each line is counted in digests.jsonl, and each record has the digest of its content."""
    assert len(recorded) > 14_000 and store.altered(records.tracked()) == []
    assert {name: found for name, record in recorded.items() if (found := faults(record))} == {}


@pytest.mark.slow
def test_the_tree_is_small_and_stays_so_with_the_trainings_of_the_null_model(recorded, tmp_path):
    """A run of version 3 is as large as one of version 2; 9,000 are simulated, half on each task."""
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=BOOK.parent, text=True)
    files = [BOOK.parent / name for name in names.split("\0") if name]
    of_null = [
        path for path in files if path.name.startswith("null-3.") and "records" in path.parts
    ]
    rest = sum(path.stat().st_size for path in files if path.exists() and path not in of_null)
    assert rest < 34 * 2**20 and len(files) <= 700
    expected = rest
    for dataset in ("banking77", "digits"):
        several = [
            one
            for one in recorded.values()
            if one["configuration"]["experiment"] == "null-2"
            and one["configuration"]["dataset"] == dataset
        ]
        store.add(several, folder := tmp_path / dataset)
        size = sum(path.stat().st_size for path in folder.iterdir())
        assert len(several) > 500
        expected += 4500 * size / len(several)
    assert expected < 52 * 2**20


def test_what_is_wrong_with_a_record_is_noticed(recorded):
    record = next(r for r in recorded.values() if r.get("correct", {}).get("linear"))
    chosen = record["configuration"]
    assert not faults(record)
    assert faults(record | {"correct": {"linear": record["correct"]["knn"]}})
    assert faults(record | {"configuration": chosen | {"options": {"betta": 1.0}}})
    assert faults(record | {"losses": [float("nan")]})


def test_records_hold_the_digest_of_predictions_that_were_committed(recorded):
    files = sorted((BOOK / "results/experiments").glob("*.toml"))
    predicted = {path.stem for path in files}
    digests = {
        record["environment"].get("predictions")
        for record in recorded.values()
        if record["environment"]["date"] >= DIGESTS_SINCE
        and record["configuration"]["experiment"] in predicted
    }
    versions = set()
    for path in (BOOK / "results/predictions.md", *files):
        where = path.relative_to(BOOK.parent).as_posix()
        commits = git("log", "--format=%H", "--", where).decode().split()
        texts = [path.read_bytes(), *(git("show", f"{commit}:{where}") for commit in commits)]
        versions |= {hashlib.sha256(text).hexdigest()[:12] for text in texts}
    if len(versions) <= len(files) + 1:
        pytest.skip("the history of the predictions is not here")
    assert len(digests) > 1 and digests - versions == set()


def git(*words: str) -> bytes:
    try:
        return subprocess.run(["git", *words], cwd=BOOK.parent, capture_output=True).stdout
    except FileNotFoundError:
        return b""


# Printed numbers


def test_printed_numbers_are_well_formed_and_every_claim_stands_once(printed):
    where = ("paper", "table", "row", "column", "dataset", "metric")
    keys = {tuple(row[name] for name in where) for row in printed}
    assert len(keys) == len(printed) == len(public_tables.printed())
    assert not [row for row in printed if None in row or None in row.values()]
    claims = pd.read_csv(BOOK / "results/claims.csv", comment="#")
    assert claims["id"].is_unique


@pytest.mark.parametrize(
    ("paper", "table", "where", "base", "stated"),
    [
        ("hcl", "Table 1", {}, 0, 3.6),
        ("hclot", "Table I", {"column": "NCE"}, 0, 4.8),
        ("hclot", "Table III", {"column": "Debiased NCE"}, 0, 2.0),
        ("hclot", "Table IV", {"column": "NCE"}, 0, 2.9),
        ("unremix", "Table 1", {"dataset": "cifar100"}, -2, 1.97),
        ("unremix", "Table 6", {"metric": "top-1"}, -2, 0.72),
    ],
)
def test_improvements_that_papers_state(printed, paper, table, where, base, stated):
    where |= {"paper": paper, "table": table}
    numbers = [float(row["value"]) for row in printed if row.items() >= where.items()]
    assert numbers[-1] - numbers[base] == pytest.approx(stated)
