"""The ledger of public losses: it is what the script measures, of every method of the catalogue."""

import hashlib
import json

import numpy as np
import pytest
import torch
from scripts import ROOT, script

from hnlib import methods

RESULTS = ROOT / "book/results"


@pytest.fixture(scope="module")
def loss_profiles():
    return script("book/recorders/loss_profiles.py")


@pytest.fixture(scope="module")
def ledger():
    return json.loads((RESULTS / "loss_profiles.json").read_text(encoding="utf-8"))


def test_the_ledger_has_the_rows_of_the_script_on_the_recorded_batches(loss_profiles, ledger):
    """After a change: `python book/recorders/loss_profiles.py` measures all again."""
    names = [(library, name) for library, name, _ in loss_profiles.rows()]
    assert [(row["library"], row["loss"]) for row in ledger["rows"]] == names
    assert {("hnlib", name) for name in (*methods.CATALOGUE, *methods.EXAMPLES)} <= set(names)
    assert all(sorted(row["batches"]) == sorted(loss_profiles.ORDER) for row in ledger["rows"])
    assert ledger["batches"] == hashlib.sha256((RESULTS / "stages.npz").read_bytes()).hexdigest()


SOME = ["hcl", "ot", "weince", "MultiSimilarityLoss", "ArcFaceLoss", "DCLLoss", "AnglELoss"]


def agree(found: dict, row: dict) -> bool:
    """Whether a measurement is the recorded one: to a per mille, and what rounding leaves is zero."""
    numbers = [name for name, value in row.items() if isinstance(value, float)]
    return found.keys() == row.keys() and all(
        found[name] == pytest.approx(row[name], rel=2e-3, abs=1e-3) for name in numbers
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_loss_is_measured_as_recorded(loss_profiles, ledger, name):
    batch = "scifact early"
    with np.load(RESULTS / "stages.npz") as file:
        z = torch.from_numpy(file[batch])
    (build, *_) = (build for _, loss, build in loss_profiles.rows() if loss == name)
    (row, *_) = (row for row in ledger["rows"] if row["loss"] == name)
    found = loss_profiles.measured(build, *z)
    assert agree(found, row["batches"][batch])
    others = [x["batches"][batch] for x in ledger["rows"] if x["loss"] in SOME]
    assert sum(agree(found, other) for other in others) < 4  # the near misses
