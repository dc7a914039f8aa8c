"""How many views a second this machine makes: networks × methods × precisions, in about a minute.

What is measured is the step of `hnlib.training.train.train` on images of CIFAR-10's size, with
everything between two steps; reading out is not part of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator

import torch

from hnlib.images.config import ImageRun
from hnlib.images.data import Dataset
from hnlib.images.registry import ENCODERS
from hnlib.training import kinds, records, store
from hnlib.training.config import Execution
from hnlib.training.train import train

EXPERIMENT = "speed"
METHODS = ("simclr", "hcl", "ot")
BATCHES = {"cuda": 256, "cpu": 32}
PRECISIONS = {"cuda": ("bf16-mixed", "32-true"), "cpu": ("32-true",)}
SECONDS = 3.0  # of a measurement, after one that warms up
MOST = 200  # steps


def measure(
    device: str = "auto",
    encoders: Iterable[str] = tuple(ENCODERS),
    methods: Iterable[str] = METHODS,
    seconds: float = SECONDS,
) -> Iterator[dict]:
    """Yield a record of each measurement, with `views_per_second` among its metrics.

    Parameters
    ----------
    device
        "auto", "cpu" or "cuda".
    encoders, methods
        What to measure, each with each, at the precisions that the device is used with.
    seconds
        Of a measurement. The largest network may take longer: two steps are the least.
    """
    where = Execution(device=device).device  # ValueError: no such device
    if where == "auto":
        where = "cuda" if torch.cuda.is_available() else "cpu"
    batch = BATCHES.get(where, BATCHES["cpu"])
    for encoder, method, precision in itertools.product(
        encoders, methods, PRECISIONS.get(where, PRECISIONS["cpu"])
    ):
        run = ImageRun(
            experiment=EXPERIMENT,
            encoder=encoder,
            method=method,
            precision=precision,
            batch_size=batch,
            epochs=2,
            evaluate_size=batch,
        )
        start = time.perf_counter()
        _last_epoch(run, 1, where)
        steps = seconds / max(1e-3, (time.perf_counter() - start) / 2)
        rate, environment = _last_epoch(run, max(1, min(MOST, int(steps))), where)
        named = ("experiment", "encoder", "method", "precision", "batch_size")
        yield {
            "kind": kinds.MEASUREMENT,
            "configuration": {name: getattr(run, name) for name in named},
            "metrics": {"views_per_second": round(2 * rate, 1)},
            "environment": environment,
        }


def _last_epoch(run: ImageRun, steps: int, device: str) -> tuple[float, dict]:
    """Return images a second of a second epoch of so many steps, and the run's environment."""
    done = train(run, dataset=_noise(steps * run.batch_size), device=device, progress=False)
    return done.history[-1]["images_per_second"], done.record["environment"]


def _noise(count: int) -> Dataset:
    """Return images without content; a step takes as long with others."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8, generator=draw)
    y = torch.arange(count) % 10
    few = slice(0, min(count, 32))
    return Dataset("noise", x, y, x[few], y[few], tuple("0123456789"))


def recorded(hardware: dict) -> dict[tuple, float]:
    """Return views a second by encoder, method and precision that this hardware recorded last."""
    folder, found = records.default_folder(), {}
    environments = store.environments(folder)
    for one in store.entries(folder / f"{EXPERIMENT}.jsonl", store.RUN_LINE):
        if environments.get(one.get("environment"), {}).get("hardware") == hardware:
            chosen = one["configuration"]
            place = chosen["encoder"], chosen["method"], chosen["precision"]
            found[place] = one["metrics"]["views_per_second"]
    return found
