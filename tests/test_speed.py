"""`hnlib speed`: what it measures, keeps and gives to a plan."""

from types import SimpleNamespace

import pytest

from hnlib.experiments import plans
from hnlib.images import speed
from hnlib.images.config import ImageRun
from hnlib.training import records, store


@pytest.fixture
def here(new_checkout):
    """A checkout without records."""
    new_checkout({"book/results/records/.keep": ""})
    return records.environment()["hardware"]


def noted(rate, hardware, encoder="resnet18", method="simclr", precision="32-true"):
    named = dict(encoder=encoder, method=method, precision=precision, batch_size=32)
    store.append(
        {
            "kind": "measurement",
            "configuration": {"experiment": speed.EXPERIMENT, **named},
            "metrics": {"views_per_second": rate},
            "environment": {"hardware": hardware, "date": "2026-01-01"},
        },
        records.default_folder(),
    )


def test_it_prints_and_keeps_a_line_for_each(here, prints):
    asked = ("speed", "--device", "cpu", "--encoder", "small-cnn", "--method", "simclr")
    said = prints(*asked, "--method", "hcl", "--seconds", "0.1")
    lines = [line.split() for line in said.splitlines()]
    assert [line[:3] for line in lines] == [["small-cnn", m, "32-true"] for m in ("simclr", "hcl")]
    kept = speed.recorded(here)
    shown = {(*line[:3],): float(line[3].replace(",", "")) for line in lines}
    assert kept == pytest.approx(shown, abs=0.6) and all(rate > 0 for rate in kept.values())


def test_the_rate_is_that_of_views_and_of_the_last_epoch(here, monkeypatch):
    """Two views an image; the epoch that warms up does not count."""
    history = [{"images_per_second": rate} for rate in (7.0, 100.0)]
    done = SimpleNamespace(history=history, record={"environment": {"hardware": here}})
    monkeypatch.setattr(speed, "train", lambda *_, **__: done)
    (one,) = speed.measure("cpu", ["small-cnn"], ["simclr"])
    assert one["metrics"]["views_per_second"] == 200.0


def test_a_plan_takes_it_where_nothing_like_the_run_is_recorded(here):
    run = ImageRun(dataset="cifar10", encoder="resnet18", epochs=3, train_size=1000, method="dcl")
    assert plans.cost(run, here).seconds is None
    noted(50.0, here)
    noted(999.0, here, precision="bf16-mixed")
    noted(999.0, here, encoder="resnet50")
    noted(100.0, here)  # the last one counts
    noted(999.0, here | {"cpu": "another"})
    found = plans.cost(run, here)
    assert found.seconds == pytest.approx(2 * 1000 * 3 / 100 + 15)
    assert "hnlib speed" in found.machine
    noted(10.0, here, method="dcl")
    assert plans.cost(run, here).seconds == pytest.approx(2 * 1000 * 3 / 10 + 15)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--encoder vgg", "encoder must be one of"),
        ("--method hcll", "method must be one of"),
        ("--seconds 0", "seconds"),
    ],
)
def test_what_cannot_be_measured_is_refused(refuses, option, words):
    assert words in refuses("speed", *option.split())
