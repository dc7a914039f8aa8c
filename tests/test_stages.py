"""The batches that losses are looked at on: three stages of two trainings."""

import numpy as np
import pytest
import torch
from scripts import script

from hnlib import _files
from hnlib.images.config import ImageRun
from hnlib.profile import profile_loss
from hnlib.training.train import train

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


@pytest.mark.slow
def test_a_batch_is_what_the_loss_saw(stages):
    """The first is that of the untrained encoder; training on from it gives others."""
    fields = dict(dataset="digits", train_size=256, batch_size=64, evaluate_size=50)
    short, long = (stages.stages(ImageRun(**fields, epochs=n), 0.5) for n in (1, 3))
    assert [*short] == [f"digits {stage}" for stage in stages.STAGES]
    np.testing.assert_array_equal(short["digits early"], long["digits early"])
    np.testing.assert_array_equal(short["digits late"][0, 0].shape, (128,))
    assert np.abs(short["digits late"] - long["digits late"]).max() > 0.05

    seen = []
    method = stages.Seen(0.5, seen.append)
    train(ImageRun(**fields, epochs=1), method=method, device="cpu", progress=False)
    assert len(seen) == 4  # steps, and nothing of evaluation
    np.testing.assert_array_equal(seen[2], short["digits middle"])
    found = profile_loss(method, *torch.from_numpy(seen[-1]))
    assert found.sharpness == pytest.approx(2, rel=1e-4)
