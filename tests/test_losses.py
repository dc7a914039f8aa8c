"""The ledger of public losses: it is what the script measures, of every method of the catalogue."""

import hashlib
import json
import re

import numpy as np
import pytest
import torch
from scripts import ROOT, script

from hnlib import methods

RESULTS = ROOT / "book/results"


@pytest.fixture(scope="module")
def losses():
    return script("book/results/losses.py")


@pytest.fixture(scope="module")
def ledger():
    return json.loads((RESULTS / "losses.json").read_text(encoding="utf-8"))


def test_the_ledger_has_the_rows_of_the_script_on_the_recorded_batches(losses, ledger):
    """After a change: `python book/results/losses.py` measures what is missing."""
    names = [(library, name) for library, name, _ in losses.rows()]
    assert [(row["library"], row["loss"]) for row in ledger["rows"]] == names
    assert len(set(names)) == len(names)
    assert {("hnlib", name) for name in methods.CATALOGUE} <= set(names)
    assert all(sorted(row["batches"]) == sorted(losses.ORDER) for row in ledger["rows"])
    assert ledger["batches"] == hashlib.sha256((RESULTS / "stages.npz").read_bytes()).hexdigest()


def test_versions_are_those_of_the_lock_or_of_the_docstring(losses, ledger):
    locked = "".join((ROOT / f"requirements{end}.txt").read_text() for end in ("", "-torch"))
    pinned = dict(re.findall(r"([\w-]+)==([\d.]+)", losses.__doc__ + locked))
    assert set(ledger["versions"]) == set(losses.PACKAGES)
    for package, version in ledger["versions"].items():
        assert pinned[package.replace("_", "-")] == version, package


TWENTY = [
    *("simclr", "debiased", "hcl", "ot", "adnce", "mw", "chi2-dro", "dcl", "focal", "siglip"),
    *("artanh", "weince", "bpr", "hcl held"),
    *("NTXentLoss", "SupConLoss", "MultiSimilarityLoss", "CircleLoss", "ArcFaceLoss"),
    *("DCLLoss", "BarlowTwinsLoss", "ClipLoss, first scale"),
    *("MultipleNegativesRankingLoss, hardness 9 (LLaVE)", "AnglELoss"),
]


def agree(found: dict, row: dict) -> bool:
    """Whether a measurement is the recorded one: to a per mille, and what rounding leaves is zero."""
    numbers = [name for name, value in row.items() if isinstance(value, float)]
    return found.keys() == row.keys() and all(
        found[name] == pytest.approx(row[name], rel=2e-3, abs=1e-3) for name in numbers
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TWENTY)
def test_a_loss_is_measured_as_recorded(losses, ledger, name):
    batch = "scifact early"
    with np.load(RESULTS / "stages.npz") as file:
        z = torch.from_numpy(file[batch])
    (build, *_) = (build for _, loss, build in losses.rows() if loss == name)
    (row, *_) = (row for row in ledger["rows"] if row["loss"] == name)
    found = losses.measured(build, *z)
    assert agree(found, row["batches"][batch])
    others = [x["batches"][batch] for x in ledger["rows"] if x["loss"] in TWENTY]
    assert sum(agree(found, other) for other in others) < 6  # the near misses


def test_the_numbers_that_pilots_found(ledger):
    """With another estimator, on made-up embeddings, before the ledger was recorded."""
    gamma = {
        row["loss"]: [x.get("sharpness") for x in row["batches"].values()]
        for row in reversed(ledger["rows"])
    }
    exact = {"simclr": 2, "simclr t=0.1": 10, "hcl held": 4, "NTXentLoss": 1 / 0.07, "DCLLoss": 10}
    exact |= {"SupConLoss": 10, "MultiSimilarityLoss": 50, "TupletMarginLoss": 64}
    for loss, expected in exact.items():
        assert gamma[loss] == pytest.approx([expected] * 4, rel=1e-3), loss
    assert gamma["ot"] == pytest.approx([4] * 4, rel=0.02)
    assert gamma["adnce"] == pytest.approx([2.6] * 4, abs=0.4)
