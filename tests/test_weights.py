"""Where the push of a loss goes, on a model that an experiment kept."""

import pytest
import torch
from torch.nn import functional

from builder import own_data
from hnbook import weights
from hnlib import experiments, methods
from hnlib.experiments import runner
from hnlib.training import records


def test_the_pull_of_a_tilt_is_that_of_a_lower_temperature():
    z = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = functional.normalize(z)
    held = methods.build("hcl", temperature=0.5, beta=3.0, weights_gradient=False)
    found, s = weights.pull(held, z), (z @ z.T).fill_diagonal_(-torch.inf)

    def off(gamma):
        return float((found - (gamma * s).softmax(1)).abs().max())

    assert off((1 + 3.0) / 0.5) < 1e-12 < 1e-2 < off(3.0 / 0.5)


def test_the_pull_is_the_gradient_of_the_loss_and_what_it_needs_is_asked_for_before_training():
    z = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = functional.normalize(z)
    s = (z @ z.T).fill_diagonal_(-torch.inf)
    pushes = ((s - 1) / 0.5).sigmoid()  # of BPR, whose positive is at 1 here: each alone
    found = weights.pull(methods.build("bpr", temperature=0.5), z)
    assert torch.allclose(found, pushes / pushes.sum(1, keepdim=True))
    for method in ("scl", "unremix", "mochi"):  # of labels, and of embeddings
        design = experiments.load("anatomy", add={"mine": {"method": method}})
        with pytest.raises(ValueError, match="add: the pull of 'mine'"):
            weights.check(design)
    weights.check(experiments.load("anatomy", add={"mine": {"method": "chi2-dro"}}))


def test_a_folder_without_ten_negatives_is_refused_before_training(tmp_path):
    few, enough = (own_data.pictures(tmp_path / f"{n}", (n, 25)) for n in (25, 30))
    with pytest.raises(ValueError, match="must have more than 10 test images, got 10"):
        weights.check(experiments.load("anatomy", dataset=few))
    weights.check(experiments.load("anatomy", dataset=enough))


def test_images_that_are_sorted_by_class_are_spread_over_the_batches():
    mixed = torch.tensor([2, 0, 0, 1])
    assert weights.spread(mixed).tolist() == [0, 1, 2, 3]
    y = torch.tensor([0] * 1000 + [1] * 500 + [2] * 300)
    order = weights.spread(y)
    assert order.sort().values.equal(torch.arange(1800))
    for part in y[order].split(300):
        assert (part.bincount() / 300 - y.bincount() / 1800).abs().max() < 0.01
    assert [int(order[(y[order] == k).nonzero()[0]]) for k in range(3)] == [0, 1000, 1500]


@pytest.mark.parametrize("rest", [0, 1, 3, 300])
def test_a_rest_of_the_images_does_not_count(rest):
    """It has fewer negatives; a test set smaller than a batch is one, however few its images."""
    generator = torch.Generator().manual_seed(rest)
    z = functional.normalize(torch.randn(weights.BATCH + rest, 5, generator=generator))
    y = torch.randint(3, (len(z),), generator=generator)
    loss = methods.build("simclr", temperature=0.1)
    whole = weights._shares(loss, z[: weights.BATCH], y[: weights.BATCH])
    assert weights._shares(loss, z, y) == whole
    few = weights._shares(loss, z[:6], y[:6])
    assert few["heaviest"] == pytest.approx(1) and few["own"] == pytest.approx(few["own_heaviest"])


@pytest.mark.slow
def test_a_kept_model_is_the_one_that_was_trained(tmp_path, monkeypatch):
    """Trained once more, it has the same weights, and those of another seed are different."""
    monkeypatch.setattr(records, "default_folder", lambda: tmp_path / "results")
    small = dict(epochs=1, train_size=64, evaluate_size=64, batch_size=32, seeds="0-1")
    (arm, *_) = experiments.load("anatomy").names()
    experiment = experiments.load("anatomy", small=True, arms=[arm], **small)
    found = experiments.train(experiment, device="cpu", keep=True)
    kept, other = (experiments.model(found, arm, seed).model.state_dict() for seed in (0, 1))
    runner.kept(found.run(arm, 0)).unlink()
    again = experiments.model(found, arm, 0, device="cpu").model.state_dict()
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    assert not all(torch.equal(kept[name], other[name]) for name in kept)

    # a batch is seen as in training, and its model stays as it was
    model = experiments.model(found, arm, 0).model
    contrast, labels = weights.batch(found.run(arm, 0), model)
    assert len(contrast.similarity) == 2 * len(labels) == 128
    assert all(torch.equal(x, kept[name]) for name, x in model.state_dict().items())
