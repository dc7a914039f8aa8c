"""The ledgers: records, claims, printed numbers, bibliography, notation.

Readers trust the records, so they are validated here. Printed numbers are transcribed by hand, so
they must also agree with what the papers say about them elsewhere: averages, improvements, counts.
"""

import base64
import csv
import hashlib
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from builder import paper_numbers
from hnlib import negatives
from hnlib.contrast import Contrast
from hnlib.experiments import evidence
from hnlib.training import kinds, records, store

BOOK = Path(__file__).resolve().parent.parent / "book"
#: From here on a record holds the digest of predictions.md at its start.
DIGESTS_SINCE = "2026-11-21T22:29"


def rows_of(name: str) -> tuple[list[str], list[dict]]:
    with open(BOOK / name, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
    return reader.fieldnames, rows


@pytest.fixture(scope="module")
def recorded():
    """The records by the digest that tells replicates apart."""
    return {store.digest_of(one): one for one in records.load_all(records.tracked())}


@pytest.fixture(scope="module")
def printed():
    return rows_of("results/papers.csv")[1]


def values(printed, paper, table, **where) -> list[float]:
    """Return the values of a table in reading order, of the rows with the given texts."""
    where |= {"paper": paper, "table": table}
    rows = [row for row in printed if all(row[k] == v for k, v in where.items())]
    assert rows, where
    return [float(row["value"]) for row in rows]


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
    records.check(record)
    if record["kind"] != kinds.MEASUREMENT:
        run = records.run_of(record)
        entry = run.catalogue.get(run.method)
        conditions["options"] = entry is None or run.options.keys() <= entry.defaults.keys()
        conditions |= {f"correct.{m}": has_bits(record, m) for m in record.get("correct", ())}
    return [condition for condition, holds in conditions.items() if not holds]


def has_bits(record: dict, metric: str) -> bool:
    """Return whether bits agree with their metric and the number of examples, scores with both."""
    part = "validation" if metric.endswith("_validation") else "test_images"
    sizes = record.get("judged") or record | record["configuration"]
    n, text = sizes.get(metric, sizes.get(part)), record["correct"][metric]
    if isinstance(text, list):  # a score for each query
        mean = pytest.approx(np.mean(text), abs=1e-6)
        return 0 <= min(text) <= max(text) <= 1 and record["metrics"][metric] == mean
    if len(base64.b64decode(text, validate=True)) != -(-n // 8):
        return False
    return record["metrics"][metric] == pytest.approx(records.unpack(text, n).mean(), abs=1e-6)


def test_every_record_is_valid(recorded):
    wrong = {name: found for name, record in recorded.items() if (found := faults(record))}
    assert recorded and not wrong
    scores = {}
    for name, record in recorded.items():  # one run of one processor under two experiments
        configuration = record["configuration"] | {"experiment": ""}
        hardware, replicate = record["environment"]["hardware"], name.partition("-")[2]
        key = json.dumps([configuration, hardware, replicate], sort_keys=True)
        same = {m: v for m, v in record["metrics"].items() if m in ("knn", "linear", "svm", "sts")}
        assert same == same | {m: v for m, v in scores.get(key, {}).items() if m in same}, name
        scores[key] = scores.get(key, {}) | same


def test_what_is_wrong_with_a_record_is_noticed(recorded):
    record = next(r for r in recorded.values() if r.get("correct", {}).get("linear"))
    bits = record["correct"]
    assert not faults(record)
    for wrong in (bits["linear"][:-8], bits["knn"]):
        assert faults(record | {"correct": {"linear": wrong}})
    chosen = record["configuration"]
    assert faults(record | {"configuration": chosen | {"options": {"betta": 1.0}}})
    assert faults(record | {"losses": [float("nan")]})


def test_records_hold_the_digest_of_predictions_that_were_committed(recorded):
    new = {n: r for n, r in recorded.items() if r["environment"]["date"] >= DIGESTS_SINCE}
    digests = {name: record["environment"].get("predictions") for name, record in new.items()}
    files = sorted((BOOK / "results/experiments").glob("*.toml"))
    predicted = {path.stem for path in files}
    for name, record in new.items():  # what is recorded beside the experiments has none
        if digests[name] is None and record["configuration"]["experiment"] not in predicted:
            del digests[name]
    assert all(re.fullmatch(r"[0-9a-f]{12}", str(value)) for value in digests.values()), digests
    versions, history = set(), 0
    for path in (BOOK / "results/predictions.md", *files):
        versions.add(digest(path.read_bytes()))
        where = path.relative_to(BOOK.parent).as_posix()
        log = git("log", "--format=%H", "--", where).decode().split()
        versions |= {digest(git("show", f"{commit}:{where}")) for commit in log}
        history = max(history, len(log))
    if history < 2:
        pytest.skip("the history of the predictions is not here")
    assert {n: value for n, value in digests.items() if value not in versions} == {}


def git(*words: str) -> bytes:
    try:
        return subprocess.run(["git", *words], cwd=BOOK.parent, capture_output=True).stdout
    except FileNotFoundError:
        return b""


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]


def test_every_claim_once():
    claims = rows_of("claims.csv")[1]
    assert len({claim["id"] for claim in claims}) == len(claims)


# Printed numbers


def test_printed_numbers_are_well_formed(printed):
    head = "paper table row column dataset metric value spread run note"
    assert rows_of("results/papers.csv")[0] == head.split()
    keys = {tuple(row[name] for name in paper_numbers.WHERE) for row in printed}
    assert len(keys) == len(printed) == len(evidence.printed())
    for row in printed:
        assert None not in row and None not in row.values(), row
        assert "#" not in "".join(row.values()), "a reader of the file may take # for a comment"


def test_averages_over_sentence_tasks(printed):
    """The slides' last column is the mean of the other seven, but in one row, whose note says so."""
    names = dict.fromkeys(r["row"] for r in printed if r["table"] == "sentences slide")
    rows = {name: values(printed, "dro", "sentences slide", row=name) for name in names}
    off = [name for name, (*seven, mean) in rows.items() if abs(sum(seven) / 7 - mean) > 0.011]
    assert len(rows) == 10 and off == ["ADNCE-RoBERTa-base"]


@pytest.mark.parametrize(
    ("paper", "table", "where", "base", "stated"),
    [
        ("hcl", "Table 1", {}, 0, 3.6),
        ("hclot", "Table I", {"column": "NCE"}, 0, 4.8),
        ("hclot", "Table III", {"column": "NCE"}, 0, 2.5),
        ("hclot", "Table IV", {"column": "NCE"}, 0, 2.9),
        ("hclot", "Table I", {"column": "Debiased NCE"}, 0, 3.2),
        ("hclot", "Table III", {"column": "Debiased NCE"}, 0, 2.0),
        ("unremix", "Table 1", {"dataset": "cifar10"}, -2, 0.76),
        ("unremix", "Table 1", {"dataset": "cifar100"}, -2, 1.97),
        ("unremix", "Table 1", {"dataset": "tiny-imagenet"}, -2, 1.01),
        ("unremix", "Table 6", {"metric": "top-1"}, -2, 0.72),
        ("unremix", "Table 6", {"metric": "top-5"}, -2, 0.71),
    ],
)
def test_improvements_that_papers_state(printed, paper, table, where, base, stated):
    numbers = values(printed, paper, table, **where)
    assert numbers[-1] - numbers[base] == pytest.approx(stated)


def test_papers_that_quote_each_other(printed):
    """Two rows of graph results; those of two other methods differ."""
    for ours, theirs in [("InfoGraph", "UCL"), ("HCL", "H-UCL")]:
        quoted = values(printed, "hclot", "Table V", row=ours)
        assert values(printed, "hscl", "Table II", row=theirs) == quoted
        assert values(printed, "hscl", "Table II", row="H-SCL(β)") != quoted


# Bibliography and notation


def test_the_map_of_parameters_is_the_librarys():
    """The worked table: tilt(beta, t) and the cost 1 - s at epsilon = t/beta give the same weights,
    as does the squared distance at twice that. Negative control: twice the tilt does not."""
    z = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    contrast = Contrast.from_views(z[0], z[1])
    text = (BOOK / "notation.md").read_text(encoding="utf-8").split("At the papers' temperature")[1]
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    assert len(rows) == 4
    for beta, slope, epsilon, released in (map(float, row) for row in rows):
        assert slope == beta / 0.5 and epsilon == 1 / slope and released == 2 * epsilon
        tilt = negatives.tilted(beta=beta, temperature=0.5)(contrast)
        free = negatives.semi_relaxed_ot(epsilon=epsilon, relaxation=0.0)(contrast)
        squared = negatives.semi_relaxed_ot(released, 0.0, cost=lambda c: 2 - 2 * c.similarity)
        double = negatives.tilted(beta=2 * beta, temperature=0.5)
        others = (free, squared(contrast), double(contrast))
        error = [(tilt - other).exp().sub(1).abs().nan_to_num(0).max() for other in others]
        assert max(error[:2]) < 1e-9 < error[2]
