"""The batches that losses are looked at on: three stages of two trainings."""

import numpy as np
import pytest
import torch
from scripts import script

from hnlib import _files

FILE = _files.project_root() / "book/results/stages.npz"


@pytest.fixture(scope="module")
def stages():
    return script("book/results/stages.py")


@pytest.fixture(scope="module")
def recorded():
    with np.load(FILE) as file:
        return {name: torch.from_numpy(file[name]).double() for name in file}


def leads(a, b):
    """By how much each row of a is nearer to its own row of b than to the others, on average."""
    s = a @ b.T
    n = len(s)
    return s.diagonal() - (s.sum(1) - s.diagonal()) / (n - 1)


def test_the_batches_are_those_of_the_script(stages, recorded):
    names = [f"{run.dataset} {stage}" for run, _ in stages.RUNS for stage in stages.STAGES]
    assert list(recorded) == names and FILE.stat().st_size < 300_000
    for z in recorded.values():
        assert z.shape[:2] == (2, stages.PAIRS) and z.shape[2] >= 4 * stages.PAIRS
        assert (z.norm(dim=2) - 1).abs().max() < 1e-3  # in half precision
        assert torch.linalg.cond(z.flatten(0, 1)) < 1e3  # a profile needs them independent


def test_rows_are_pairs_that_training_draws_together(stages, recorded):
    for run, _ in stages.RUNS:
        early, late = (recorded[f"{run.dataset} {stage}"] for stage in ("early", "late"))
        for a, b in (early, late):
            assert leads(a, b).mean() > 0.1 > leads(a, b.roll(1, 0)).mean()  # the near miss
        assert leads(*late).mean() > leads(*early).mean() + 0.1
