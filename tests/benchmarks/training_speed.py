"""How fast a training step is, what it is spent on, and the same beside a plain implementation.

    python tests/benchmarks/training_speed.py [--record] [--minutes 8] [--encoders resnet18 …] …

"ours", for every encoder, precision, eager and compiled, is `hnlib.training.run.train` itself:
images on the device as uint8, two views in batch, channels_last, autocast, fused Adam; the median
over the epochs after the first, which pays for the start. "plain" is written from the description
of hcl's released training script: a DataLoader that transforms one PIL image at a time, float32,
contiguous tensors, a forward pass for each view, the loss copied to the host at each step; where
that script is slower for no reason (mask, blur) it is given the faster way.

Images are synthetic and CIFAR-shaped: nothing is downloaded. Images per second count an image once,
not its two views. Floating-point operations are those of the network, forward and backward; the
device's rate is a large matrix product, measured here. A row that fails says so and the others go
on; after the minutes no row begins. On a CPU the run is a toy: it shows that the benchmark works.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed

from hnlib.images import augment, data
from hnlib.images._torchvision import torchvision
from hnlib.images.encoders import ENCODERS, model
from hnlib.images.run import ImageRun
from hnlib.methods import CATALOGUE
from hnlib.training import records
from hnlib.training.run import train

SHAPE = (3, 32, 32)  # channels, height, width: CIFAR
IMAGES, EPOCHS = 50_000, 400  # the run that is extrapolated: hcl's and hcl-ot's on CIFAR-10
BLOCKS = 5  # a figure is the median over so many epochs, or blocks of steps
PRECISIONS = ("32-true", "bf16-mixed")


def settings(argv: list[str] | None = None) -> argparse.Namespace:
    """What the command line chooses; None is replaced by what suits the device."""
    several, form = {"nargs": "+"}, argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--device", default="auto", choices=("auto", "cpu"), help="auto: the GPU if there is one")
    text = "default: resnet18 resnet50; on a CPU: small-cnn resnet18"
    add("--encoders", **several, choices=sorted({*ENCODERS} - {"pixels"}), help=text)
    add("--precisions", **several, default=[*PRECISIONS], choices=PRECISIONS)
    add("--compile", choices=("both", "no", "yes"), help="default: both, on a CPU no")
    add("--batch-size", type=int, help="pairs; default: 256, on a CPU 8")
    add("--steps", type=int, help="an epoch; default: 40, on a CPU 2")
    add("--method", default="simclr", choices=CATALOGUE, help="whose step is measured")
    add("--methods", **several, default=[*CATALOGUE], choices=CATALOGUE, help="whose extra cost is")
    add("--augmentation", default="hcl", choices=augment.RECIPES, help="of our step")
    add("--workers", type=int, default=min(12, os.cpu_count() or 1), help="plain; released: 12")
    add("--minutes", type=float, default=8.0, help="after which no row begins")
    add("--record", action="store_true", help="write to book/results/runs, which the book shows")
    s = parser.parse_args(argv)
    s.toy = s.device == "cpu" or not torch.cuda.is_available()
    s.device = "cpu" if s.toy else "cuda"
    toy = {"encoders": ["small-cnn", "resnet18"], "compile": "no", "batch_size": 8, "steps": 2}
    gpu = {"encoders": ["resnet18", "resnet50"], "compile": "both", "batch_size": 256, "steps": 40}
    for name, value in (toy if s.toy else gpu).items():
        if getattr(s, name) is None:
            setattr(s, name, value)
    for name, least in {"batch_size": 2, "steps": 1, "workers": 0, "minutes": 0}.items():
        if not getattr(s, name) >= least:
            parser.error(f"{name}={getattr(s, name)} must be at least {least}")
    return s


def timed(step, device: torch.device, steps: int = 1) -> float:
    """Seconds for one of so many steps; the device is waited for at both ends only."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - begun) / steps


def count_flops(module: nn.Module, *shape: int) -> int:
    """Operations (a multiplication and an addition are two) of one forward and backward pass of a
    module that lies on meta: shapes alone, no arithmetic."""
    with FlopCounterMode(display=False) as counter:
        module(torch.empty(*shape, device="meta")).sum().backward()
    return counter.get_total_flops()


def matrix_rate(device: torch.device, precision: str, size: int, repeats: int) -> float:
    """Best measured TFLOP/s of a product of two `size`² matrices.

    float32: with tensor-float units where the convolutions use them, which PyTorch allows by
    default and for plain products does not; otherwise a network could exceed the rate.
    """
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    fastest = min(timed(lambda: a @ b, device, repeats) for _ in range(BLOCKS + 1))
    torch.backends.cuda.matmul.allow_tf32 = allowed
    return 2 * size**3 / fastest / 1e12


@dataclass(frozen=True)
class Cell:
    """One row to measure: kind is "ours", "plain" or "methods"."""

    kind: str
    encoder: str
    precision: str
    compiled: bool = False


def synthetic(n: int) -> data.Dataset:
    """Smooth random pictures around ten patterns; they can be learned, so the similarities that
    iterative methods see are spread as in a real run."""
    g, labels = torch.Generator().manual_seed(0), torch.arange(n) % 10
    coarse = torch.rand(10, 3, 4, 4, generator=g)[labels]
    coarse = (coarse + 0.5 * torch.rand(n, 3, 4, 4, generator=g)) / 1.5
    x = (255 * interpolate(coarse, size=SHAPE[1:], mode="bilinear")).byte()
    x, shown = x.permute(0, 2, 3, 1).contiguous(), slice(256)
    return data.Dataset("synthetic", x, labels, x[shown], labels[shown], tuple("abcdefghij"), "")


def trained(cell: Cell, s: argparse.Namespace, method: str) -> list[float]:
    """Seconds of a step of `train`, in each epoch but the first."""
    chosen = ImageRun(
        method=method,
        encoder=cell.encoder,
        precision=cell.precision,
        compile=cell.compiled,
        batch_size=s.batch_size,
        augmentation=s.augmentation,
        epochs=1 + BLOCKS,
    )
    images = synthetic(max(s.steps * s.batch_size, 32))
    run = train(chosen, dataset=images, device=s.device, evaluate_every=1, progress=False)
    rates = [row["images_per_second"] for row in run.history if row["images_per_second"]]
    return [s.batch_size / rate for rate in rates[1:]]


def ours(cell: Cell, s: argparse.Namespace, rates: dict) -> dict:
    spent, device = trained(cell, s, s.method), torch.device(s.device)
    recipe, g = augment.resolve(s.augmentation), torch.Generator(device).manual_seed(0)
    x = synthetic(s.batch_size).x_train.to(device)
    views = min(timed(lambda: augment.two_views(x, g, recipe), device, s.steps) for _ in range(3))
    share = min(views / median(spent), 1.0)
    parts = {"augmentation": share, "network and loss": 1 - share}
    return step_row(cell, s, spent, rates) | {"shares": parts}


class Pairs(torch.utils.data.Dataset):
    """Two views of each image, made one PIL image at a time: hcl's transforms."""

    def __init__(self, images: np.ndarray):
        t, self.images = torchvision.transforms, images
        jitter = t.RandomApply([t.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
        blurred = t.RandomApply([blur], p=0.5)
        drawn = [t.RandomResizedCrop(SHAPE[1]), t.RandomHorizontalFlip(0.5), jitter]
        scale = t.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # CIFAR-10's
        self.transform = t.Compose([*drawn, t.RandomGrayscale(0.2), blurred, t.ToTensor(), scale])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int):
        image = Image.fromarray(self.images[i])
        return self.transform(image), self.transform(image)


def blur(image):
    return image.filter(ImageFilter.GaussianBlur(np.random.uniform(0.1, 2.0)))


def plain_loss(z1: Tensor, z2: Tensor, temperature: float = 0.5) -> Tensor:
    """SimCLR's on unit rows as released code computes it: exponentials, negatives by a mask."""
    z = torch.cat([z1, z2])
    scores = (z @ z.T / temperature).exp()
    mask = ~torch.eye(len(z1), dtype=torch.bool).repeat(2, 2)  # on the host at every step
    negatives = scores.masked_select(mask.to(z.device)).view(len(z), -1).sum(1)
    positives = ((z1 * z2).sum(1) / temperature).exp().repeat(2)
    return -(positives / (positives + negatives)).log().mean()


def plain(cell: Cell, s: argparse.Namespace, rates: dict) -> dict:
    """A batch from worker processes, float32, contiguous, two forward passes."""
    pairs, device = Pairs(synthetic(max(512, s.batch_size)).x_train.numpy()), torch.device(s.device)
    # no pause between epochs, in its favour
    endless = RandomSampler(pairs, replacement=True, num_samples=10**9)
    how = {"num_workers": s.workers, "drop_last": True, "pin_memory": not s.toy}
    batches = iter(DataLoader(pairs, s.batch_size, sampler=endless, **how))
    network = model(cell.encoder, None, SHAPE).to(device).train()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-6)
    waited = []  # seconds until the batch was there

    def step():
        begun = time.perf_counter()
        pair = next(batches)
        waited.append(time.perf_counter() - begun)
        views = (x.to(device, non_blocking=True) for x in pair)
        loss = plain_loss(*(normalize(network(x), dim=1) for x in views))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        loss.item()  # for the progress bar, at every step

    # what the workers made while the first step was prepared is not the steady state
    warm_up = 1 if s.toy else 2 * s.workers + 1
    timed(step, device, warm_up)
    spent = [timed(step, device, s.steps) for _ in range(BLOCKS)]
    share = min(median(waited[warm_up:]) / median(spent), 1.0)
    return step_row(cell, s, spent, rates) | {"shares": {"waiting for images": share}}


def extra(cell: Cell, s: argparse.Namespace, rates: dict) -> dict:
    """What each method adds to a whole step: on a GPU a loss alone would be charged with the
    launches that hide behind the network."""
    base = median(trained(cell, s, s.method))
    added = {name: median(trained(cell, s, name)) / base - 1 for name in s.methods}
    return {"images_per_second": s.batch_size / base, "extra": added}


def cells(s: argparse.Namespace) -> list[Cell]:
    """What is measured, the indispensable first: compilations are what a lack of time costs."""
    rows = []
    for encoder in s.encoders:
        eager = s.precisions if s.compile != "yes" else ()
        rows += [Cell("ours", encoder, precision) for precision in eager]
        rows.append(Cell("plain", encoder, "32-true"))
    at = 0 if s.toy else -1  # the largest network, unless on a toy run
    rows.append(Cell("methods", s.encoders[at], s.precisions[at]))
    compiled = s.encoders if s.compile != "no" else ()
    return rows + [Cell("ours", e, p, compiled=True) for e in compiled for p in s.precisions]


def measured(cell: Cell, s: argparse.Namespace, rates: dict, end: float) -> dict:
    """The row of a cell. Whatever goes wrong in it stays in it."""
    row = asdict(cell) | {"images_per_second": None, "error": None, "left_out": None}
    if time.perf_counter() >= end:
        return row | {"left_out": f"left out: {s.minutes:g} minutes are over"}
    device, way = torch.device(s.device), {"ours": ours, "plain": plain, "methods": extra}
    try:
        if not s.toy:
            torch.cuda.reset_peak_memory_stats(device)
        return row | way[cell.kind](cell, s, rates)
    except Exception as error:  # a row must not take the others with it
        said = (str(error).strip().splitlines() or [""])[0][:300]
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return row | {"error": kind + said}


def step_row(cell: Cell, s: argparse.Namespace, spent: list[float], rates: dict) -> dict:
    one = median(spent)
    network = model(cell.encoder, None, SHAPE).to("meta")
    tflops = count_flops(network, 2 * s.batch_size, *SHAPE) / one / 1e12
    return {
        "images_per_second": s.batch_size / one,
        "step_ms": 1e3 * one,
        "spread": (max(spent) - min(spent)) / one,
        "tflops": tflops,
        "share_of_rate": tflops / rates[cell.precision],
        "peak_memory_mb": None if s.toy else torch.cuda.max_memory_allocated() / 2**20,
        "hours_400": EPOCHS * (IMAGES // s.batch_size) * one / 3600,
    }


def speedups(rows: list[dict]) -> dict[str, dict]:
    """For each encoder: our fastest row beside the plain one."""
    found, steps = {}, [row for row in rows if "step_ms" in row]
    for base in (row for row in steps if row["kind"] == "plain"):
        ours = [r for r in steps if r["kind"] == "ours" and r["encoder"] == base["encoder"]]
        if ours:
            best = min(ours, key=itemgetter("step_ms"))
            found[base["encoder"]] = {
                "fastest": base["step_ms"] / best["step_ms"],
                "fastest_is": best["precision"] + ", compiled" * best["compiled"],
                "hours_400": [best["hours_400"], base["hours_400"]],
            }
    return found


def benchmark(s: argparse.Namespace, say=print) -> dict:
    """Measure everything and return the record."""
    begun, rows = time.perf_counter(), []
    environment = records.environment(torch.device(s.device))
    name = environment["hardware"].get("gpu") or environment["hardware"]["cpu"]
    say(f"{name}: batch size {s.batch_size}, {s.minutes:g} minutes at most")
    if s.toy:
        say("a toy run, as on every CPU: it shows that the benchmark works, not how fast it is")
    size = (1024, 1) if s.toy else (8192, 20)
    rates = {name: matrix_rate(torch.device(s.device), name, *size) for name in s.precisions}
    say("matrix product, TFLOP/s: " + ", ".join(f"{k} {v:.3g}" for k, v in rates.items()))
    try:
        for cell in cells(s):
            rows.append(measured(cell, s, rates, begun + 60 * s.minutes))
            say(line(rows[-1]))
    except KeyboardInterrupt:
        say("interrupted: what was measured is kept")
    kept = ("encoders", "precisions", "batch_size", "method", "methods", "workers")
    chosen = {"experiment": "benchmark", "dataset": "synthetic", "device": name}
    # not "compile": in the table of all runs that is an option which is on or off
    chosen |= {"compiled": s.compile, "image_shape": SHAPE} | {key: getattr(s, key) for key in kept}
    chosen["augmentation"] = asdict(augment.resolve(s.augmentation))
    metrics = {"toy": s.toy, "matrix_tflops": rates, "rows": rows, "speedup": speedups(rows)}
    record = {"configuration": chosen, "metrics": metrics, "environment": environment}
    record |= {"steps": s.steps, "minutes": s.minutes, "seconds": time.perf_counter() - begun}
    return json.loads(json.dumps(record))  # as it will be read back


def line(row: dict) -> str:
    """One row for the terminal."""
    name = " ".join(str(row[key]) for key in ("kind", "encoder", "precision"))
    name = f"{name + ' compiled' * row['compiled']:36}"
    if row["error"] or row["left_out"]:
        return f"{name} {row['error'] or row['left_out']}"
    parts = row.get("shares") or row["extra"]
    text = f"{name} {row['images_per_second']:9,.0f} images/s; "
    text += ", ".join(f"{key} {100 * value:+.1f} %" for key, value in parts.items())
    if row["kind"] != "methods":
        text += f"; {row['tflops']:.3g} TFLOP/s ({100 * row['share_of_rate']:.0f} %)"
        text += f"; {60 * row['hours_400']:,.0f} min for {EPOCHS} epochs"
    return text


def main(argv: list[str] | None = None) -> None:
    """The command line. Bad settings are one sentence and status 2."""
    s = settings(argv)
    record = benchmark(s, say=lambda text: print(text, flush=True))
    for encoder, times in record["metrics"]["speedup"].items():
        fast, slow = (60 * hours for hours in times["hours_400"])
        print(
            f"{encoder}: {times['fastest']:.1f} times the plain way ({times['fastest_is']}); "
            f"{EPOCHS} epochs of {IMAGES:,} images in {fast:,.0f} instead of {slow:,.0f} min"
        )
    folder = records.tracked_folder() if s.record else records.default_folder()
    print(records.write(record, folder, overwrite=True))


if __name__ == "__main__":
    main()
