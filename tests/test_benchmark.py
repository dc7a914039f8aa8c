"""The training benchmark: its pieces, and a toy run from end to end. Nothing here asserts how fast
anything is."""

import copy
import importlib.util
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from hnlib import methods
from hnlib.book import pages
from hnlib.images import encoders
from hnlib.runs import loop, records, training

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location(
    "training_speed", ROOT / "tests/benchmarks/training_speed.py"
)
speed = importlib.util.module_from_spec(spec)
sys.modules["training_speed"] = (
    speed  # dataclasses and worker processes look the module up by its name
)
spec.loader.exec_module(speed)

TOY = speed.Settings(
    device="cpu",
    encoders=("small-cnn",),
    precisions=("32-true",),
    batch_size=8,
    steps=2,
    workers=1,
    methods=("hcl", "ot", "unremix", "scl"),
)


class Ticks:
    """A clock that moves when told to."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def toy():
    """The record of a toy run, and what it said on the way."""
    said = []
    return speed.benchmark(TOY, said.append), "\n".join(said)


def page_of(record):
    return pages.results_parts(records.frame([record]), [], {}, ROOT)


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
    assert speed.count_flops(layer, *shape) == 2 * forward
    assert speed.count_flops(layer, 2 * shape[0], *shape[1:]) == 4 * forward
    assert next(layer.parameters()).device.type == "cpu", "the module itself stays where it was"
    chain = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
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


def test_a_budget_refuses_what_does_not_fit():
    clock = Ticks()
    budget = speed.Budget(60, clock)
    budget.admit(59)
    clock.now = 50
    assert budget.left == 10
    with pytest.raises(speed.LeftOut, match=r"left out: needs about 11 s of the 10 s left"):
        budget.admit(11)
    clock.now = 61
    assert budget.left == 0
    with pytest.raises(speed.LeftOut):
        budget.admit(0)


def test_a_step_too_long_for_the_budget_is_left_out():
    clock = Ticks()
    cpu = torch.device("cpu")
    assert speed.throughput(lambda: None, cpu, speed.Budget(1, clock), 0.001, steps=7)[0] >= 0
    budget = speed.Budget(1, clock)
    clock.now = 2
    with pytest.raises(speed.LeftOut, match="left out: needs about"):
        speed.throughput(lambda: None, cpu, budget, 1.0, steps=5)


def test_steps_are_compared_in_turn():
    order = []
    kinds = {name: (lambda name=name: order.append(name)) for name in "ab"}
    spent = speed.interleaved(kinds, torch.device("cpu"), rounds=3, each=2)
    assert "".join(order) == "ab" + 3 * "aabb" and [len(times) for times in spent.values()] == [
        3,
        3,
    ]


def test_the_indispensable_comes_first():
    both = speed.resolved(
        replace(
            TOY, encoders=("small-cnn", "resnet18"), precisions=speed.PRECISIONS, compile="both"
        )
    )
    order = speed.cells(both)
    assert len(order) == len(set(order)) == 2 * (2 + 1 + 2) + 2
    compiled = [cell.compiled for cell in order]
    assert compiled == sorted(compiled) and sum(compiled) == 4
    assert all(
        cell.compiled for cell in speed.cells(replace(both, compile="yes")) if cell.kind == "ours"
    )


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"device": "tpu"}, "device='tpu' is unknown"),
        ({"encoders": ("vgg",)}, "encoders='vgg' is unknown"),
        ({"encoders": ("pixels",)}, "'pixels' is unknown"),
        ({"precisions": ("64-true",)}, "precisions='64-true'"),
        ({"compile": "maybe"}, "compile='maybe'"),
        ({"method": "simcrl"}, "method='simcrl' is unknown"),
        ({"methods": ("hcl", "simcrl")}, "methods='simcrl' is unknown; use simclr, "),
        ({"batch_size": 1}, "batch_size=1 must be at least 2"),
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"minutes": -1.0}, "minutes=-1.0 must be at least 0"),
        ({"augmentation": "none"}, "augmentation='none' is unknown; use simclr, "),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(changed, message):
    with pytest.raises(ValueError, match=message):
        speed.resolved(replace(TOY, **changed))


def test_bad_settings_on_the_command_line(capsys):
    assert speed.main(["--device", "cpu", "--encoders", "vgg"]) == 2
    assert "training_speed: encoders='vgg' is unknown" in capsys.readouterr().err


# Failures stay in their cell


@pytest.mark.parametrize(
    "error, words",
    [
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "out of memory on cpu with batch_size=8; choose a smaller batch",
        ),
        (MemoryError(), "out of memory"),
        (RuntimeError("no kernel\nsecond line"), "RuntimeError: no kernel"),
    ],
)
def test_a_failing_cell_says_so_in_its_row(monkeypatch, error, words):
    bench = speed.Bench(speed.resolved(TOY), speed.Budget(60))
    before = torch.backends.cudnn.benchmark

    def fail(*_):
        raise error

    monkeypatch.setattr(speed, "Ours", fail)
    row = bench.run(speed.Cell("ours", "small-cnn", "32-true"), 1)
    assert (
        row["error"].startswith(words)
        and "\n" not in row["error"]
        and row["images_per_second"] is None
    )
    assert torch.backends.cudnn.benchmark == before
    assert bench.run(speed.Cell("plain", "small-cnn", "32-true"), 1)["error"] is None, (
        "the next one goes on"
    )


def test_without_time_every_cell_is_left_out_and_said_to_be():
    said = []
    record = speed.benchmark(replace(TOY, minutes=0.0), said.append)
    assert all("left out" in row["left_out"] for row in record["metrics"]["rows"])
    assert record["metrics"]["speedup"] == {} and "\n".join(said).count("left out") == 4
    assert "left out" in page_of(record)["speed"]


# The whole


def test_a_toy_run_measures_every_cell_and_says_that_it_is_a_toy(toy):
    record, said = toy
    assert "toy" in said
    metrics = record["metrics"]
    assert metrics["toy"] is True and set(metrics["matrix_tflops"]) == {"32-true"}
    assert [row["kind"] for row in metrics["rows"]] == ["ours", "plain", "methods", "loop"]
    for row in metrics["rows"]:
        assert row["error"] is None and row["left_out"] is None, row
        assert row["images_per_second"] > 0 and row["kind"] in said
    ours, plain, extra, loop = metrics["rows"]
    assert set(ours["shares"]) == {"augmentation", "forward_backward", "loss", "optimiser"}
    assert math.isclose(sum(ours["shares"].values()), 1)
    for row in (ours, plain):
        assert math.isclose(row["images_per_second"] * row["step_ms"], 8000)
        steps = 400 * (50_000 // 8)
        assert math.isclose(row["hours_400"], steps * row["step_ms"] / 3.6e6)
        assert row["peak_memory_mb"] is None, "on a CPU there is no peak of one cell"
    assert math.isclose(ours["tflops"] * ours["step_ms"], plain["tflops"] * plain["step_ms"]), (
        "the same network"
    )
    assert set(extra["extra"]) == set(TOY.methods) and extra["unconverged"] == {}
    assert set(loop["rates"]) == {"bare", "step", "train"}
    fastest = metrics["speedup"]["small-cnn"]
    assert math.isclose(fastest["fastest"], ours["images_per_second"] / plain["images_per_second"])


def test_the_record_is_one_that_the_book_reads(toy, tmp_path):
    record, _ = toy
    path = records.write(record, tmp_path, overwrite=True)
    assert json.loads(path.read_text()) == record
    chosen = record["configuration"]
    assert chosen["experiment"] == "benchmark" and chosen["batch_size"] == 8 and chosen["device"]
    assert chosen["augmentation"]["blur"] > 0, "both sides blur"
    page = page_of(record)
    assert "None yet" in page["runs"], "a benchmark is no run of an experiment"
    table = page["speed"]
    for text in (
        "Toy size",
        "- plain",
        "times the plain step",
        "Added to a whole step",
        "unremix",
        "training loop",
    ):
        assert text in table, text


def test_a_record_is_written_where_asked(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(speed, "cells", lambda s: [speed.Cell("ours", "small-cnn", "32-true")])
    monkeypatch.setattr(speed.records, "tracked_folder", lambda: tmp_path)
    words = "cpu --encoders=small-cnn --precisions=32-true --steps=1 --batch-size=4 --record"
    assert speed.main(["--device", *words.split()]) == 0
    (record,) = records.load_all(tmp_path)
    assert record["steps"] == 1 and str(tmp_path) in capsys.readouterr().out


def test_the_step_is_the_one_of_the_training(monkeypatch):
    """Same weights after the same batches. Negative control: without the decay they differ."""
    dataset, start = speed.synthetic(48), encoders.model("small-cnn", None, speed.SHAPE)
    monkeypatch.setattr(encoders, "model", lambda *_: copy.deepcopy(start))
    how = {"batch_size": 16, "augmentation": "hcl", "device": "cpu"}
    quiet = {"evaluate_every": 0, "progress": False}
    run = training.train(dataset, "hcl", encoder="small-cnn", epochs=1, **how, **quiet)
    settings, cell = speed.Settings(method="hcl", **how), speed.Cell("ours", "small-cnn", "32-true")

    def trained(decay):
        ours = speed.Ours(cell, settings, dataset)
        ours.optimiser.param_groups[0]["weight_decay"] = decay
        ours.generator = loop.epoch_generator(ours.images, 0, 0)
        for _ in range(3):
            ours.step()
        pairs = zip(ours.model.encoder.parameters(), run.encoder.parameters())
        return max(float((a - b).detach().abs().max()) for a, b in pairs)

    assert trained(1e-6) < 1e-6 < trained(0.1)
