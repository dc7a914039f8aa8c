"""The ledger of public losses: it is what the script measures, of every method of the catalogue."""

import hashlib

import loss_profiles
import pytest
import torch
from scripts import ROOT

from hnlib import methods
from hnlib.experiments import evidence

LEDGER = evidence.measurement("loss_profiles")


def test_the_ledger_has_the_rows_of_the_script_on_the_recorded_batches():
    """After a change: `python book/recorders/loss_profiles.py` measures all again."""
    names = [(library, name) for library, name, _ in loss_profiles.rows()]
    assert [(row["library"], row["loss"]) for row in LEDGER["rows"]] == names
    assert {("hnlib", name) for name in (*methods.CATALOGUE, *methods.EXAMPLES)} <= set(names)
    stages = (ROOT / "book/results/stages.npz").read_bytes()
    assert LEDGER["batches"] == hashlib.sha256(stages).hexdigest()


SOME = ["hcl", "ot", "weince", "MultiSimilarityLoss", "ArcFaceLoss", "DCLLoss", "AnglELoss"]


def agree(found: dict, row: dict) -> bool:
    """Whether a measurement is the recorded one: to a per mille, and what rounding leaves is zero."""
    numbers = [name for name, value in row.items() if isinstance(value, float)]
    return found.keys() == row.keys() and all(
        found[name] == pytest.approx(row[name], rel=2e-3, abs=1e-3) for name in numbers
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_loss_is_measured_as_recorded(name):
    batch = "scifact early"
    z = torch.from_numpy(evidence.stages()[batch])
    (build, *_) = (build for _, loss, build in loss_profiles.rows() if loss == name)
    found = loss_profiles.measured(build, *z)
    recorded = {row["loss"]: row["batches"][batch] for row in reversed(LEDGER["rows"])}
    assert agree(found, recorded[name])
