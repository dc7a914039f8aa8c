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
    assert {("hnlib", name) for name in (*methods.CATALOGUE, *methods.EXAMPLES)} <= {*names}
    stages = (ROOT / "book/results/stages.npz").read_bytes()
    assert LEDGER["batches"] == hashlib.sha256(stages).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ot", "weince", "MultiSimilarityLoss", "ArcFaceLoss", "AnglELoss"]
)
def test_a_loss_is_measured_as_recorded(name):
    batch = "scifact early"
    z = torch.from_numpy(evidence.stages()[batch])
    (build, *_) = (build for _, loss, build in loss_profiles.rows() if loss == name)
    found = loss_profiles.measured(build, *z)
    recorded = {row["loss"]: row["batches"][batch] for row in reversed(LEDGER["rows"])}[name]
    old, new = ({k: x for k, x in row.items() if isinstance(x, float)} for row in (recorded, found))
    assert new == pytest.approx(old, rel=2e-3, abs=1e-3)  # what rounding leaves is zero
