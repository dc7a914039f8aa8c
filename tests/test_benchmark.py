"""The training benchmark: its pieces, and a toy run from end to end. Nothing here asserts how fast
anything is."""

import json
import math

import pytest
import torch
from scripts import script
from torch import nn
from torch.nn import functional

from hnlib import methods
from hnlib.training import records

speed = script("tests/benchmarks/training_speed.py")
pytestmark = pytest.mark.slow

WORDS = (
    "--device cpu --encoders small-cnn --precisions 32-true --batch-size 8 --steps 2 --workers 1"
)
METHODS = "hcl", "ot", "unremix", "scl"


def settings(words=""):
    """What the command line makes of these words, given after those of a toy run."""
    return speed.settings(f"{WORDS} --methods {' '.join(METHODS)} {words}".split())


@pytest.fixture(scope="module")
def toy():
    """The record of a toy run, and what it said on the way."""
    said = []
    return speed.benchmark(settings(), said.append), "\n".join(said)


# Pieces


@pytest.mark.parametrize(
    "layer, shape, forward",
    [
        (nn.Linear(3, 5, bias=False), (7, 3), 2 * 7 * 3 * 5),
        (nn.Conv2d(2, 4, 3, padding=1, bias=False), (6, 2, 8, 8), 2 * 6 * 8 * 8 * 4 * 2 * 9),
    ],
)
def test_flops_of_a_known_layer(layer, shape, forward):
    """Forward, and as much for the gradient of the weights; two layers also pass a gradient on.
    Negative control: twice the batch is twice the operations."""
    layer = layer.to("meta")
    assert speed.count_flops(layer, *shape) == 2 * forward
    assert speed.count_flops(layer, 2 * shape[0], *shape[1:]) == 4 * forward
    chain = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).to("meta")
    assert speed.count_flops(chain, 1, 4) == (2 + 3) * 2 * 16


def test_the_plain_loss_is_simclrs():
    """Against the catalogue's, value and gradient; at another temperature it is not."""
    g = torch.Generator().manual_seed(0)
    for batch in (2, 7):
        z = functional.normalize(torch.randn(2, batch, 5, generator=g, dtype=torch.float64), dim=2)
        ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
        losses = (
            methods.build("simclr")(*ours),
            speed.plain_loss(*(functional.normalize(v, dim=1) for v in theirs)),
        )
        assert abs(losses[0] - losses[1]) < 1e-12
        for loss in losses:
            loss.backward()
        assert (ours.grad - theirs.grad).abs().max() < 1e-12
        assert abs(losses[0] - speed.plain_loss(*z, temperature=0.4)) > 1e-3


def test_the_indispensable_comes_first():
    words = "--encoders small-cnn resnet18 --precisions 32-true bf16-mixed --compile"
    order = speed.cells(settings(f"{words} both"))
    assert len(order) == len(set(order)) == 2 * (2 + 1 + 2) + 1
    compiled = [cell.compiled for cell in order]
    assert compiled == sorted(compiled) and sum(compiled) == 4
    assert all(c.compiled for c in speed.cells(settings(f"{words} yes")) if c.kind == "ours")


@pytest.mark.parametrize(
    "words, message",
    [
        ("--encoders pixels", "--encoders: invalid choice: 'pixels'"),
        ("--batch-size 1", "batch_size=1 must be at least 2"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        speed.main([*WORDS.split(), *words.split()])
    assert stop.value.code == 2 and message in capsys.readouterr().err


# Failures stay in their cell


def test_a_failing_cell_says_so_in_its_row_and_the_next_one_goes_on(monkeypatch):
    def fail(*_):
        raise RuntimeError("no kernel\nsecond line")

    monkeypatch.setattr(speed, "trained", fail)
    ours, plain, _ = speed.benchmark(settings(), lambda _: None)["metrics"]["rows"]
    assert ours["error"] == "RuntimeError: no kernel"
    assert ours["images_per_second"] is None and "step_ms" not in ours
    assert plain["error"] is None and plain["images_per_second"] > 0


def test_without_time_every_cell_is_left_out_and_said_to_be():
    said = []
    record = speed.benchmark(settings("--minutes 0"), said.append)
    assert all("left out" in row["left_out"] for row in record["metrics"]["rows"])
    assert record["metrics"]["speedup"] == {} and "\n".join(said).count("left out") == 3


def test_what_was_measured_before_an_interruption_is_kept(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(speed, "plain", stop)
    said = []
    (ours,) = speed.benchmark(settings(), said.append)["metrics"]["rows"]
    assert ours["kind"] == "ours" and "interrupted" in said[-1]


# The whole


def test_a_toy_run_measures_every_cell_and_says_that_it_is_a_toy(toy):
    record, said = toy
    assert "toy" in said
    metrics = record["metrics"]
    assert metrics["toy"] is True and set(metrics["matrix_tflops"]) == {"32-true"}
    assert [row["kind"] for row in metrics["rows"]] == ["ours", "plain", "methods"]
    for row in metrics["rows"]:
        assert row["error"] is None and row["left_out"] is None, row
        assert row["images_per_second"] > 0 and row["kind"] in said
    ours, plain, extra = metrics["rows"]
    assert set(ours["shares"]) == {"augmentation", "network and loss"}
    assert math.isclose(sum(ours["shares"].values()), 1)
    for row in (ours, plain):
        assert math.isclose(row["images_per_second"] * row["step_ms"], 8000)
        steps = 400 * (50_000 // 8)
        assert math.isclose(row["hours_400"], steps * row["step_ms"] / 3.6e6)
        assert row["peak_memory_mb"] is None, "on a CPU there is no peak of one cell"
    same = ours["tflops"] * ours["step_ms"], plain["tflops"] * plain["step_ms"]
    assert math.isclose(*same), "the same network"
    assert set(extra["extra"]) == set(METHODS)
    fastest = metrics["speedup"]["small-cnn"]
    assert math.isclose(fastest["fastest"], ours["images_per_second"] / plain["images_per_second"])


def test_the_record_is_a_benchmark(toy, tmp_path):
    record, _ = toy
    path = records.write(record, tmp_path, overwrite=True)
    assert json.loads(path.read_text()) == record
    chosen = record["configuration"]
    assert chosen["experiment"] == "benchmark" and chosen["batch_size"] == 8 and chosen["device"]
    assert chosen["augmentation"]["blur"] > 0, "both sides blur"


def test_a_record_is_written_where_asked(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(speed, "cells", lambda s: [speed.Cell("ours", "small-cnn", "32-true")])
    monkeypatch.setattr(speed.records, "tracked_folder", lambda: tmp_path)
    speed.main([*WORDS.split(), "--record"])
    (record,) = records.load_all(tmp_path)
    assert record["steps"] == 2 and str(tmp_path) in capsys.readouterr().out
