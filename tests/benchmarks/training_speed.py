"""How fast a training step is, what it is spent on, and the same beside a plain implementation.

    python tests/benchmarks/training_speed.py [--record] [--minutes 8] [--encoders resnet18] …

"ours", for every encoder, precision, eager and compiled, is the step of `hnlib.runs.training`:
images on the device as uint8, two views in batch, channels_last, autocast, fused Adam. "plain" is
written from the description of hcl's released training script: a DataLoader that transforms one PIL
image at a time, float32, contiguous tensors, a forward pass for each view, the loss copied to the
host at each step; where that script is slower for no reason (its mask is filled row by row) it is
given the faster way. "methods" is what each method adds to a step, "loop" what `train` does.

Images are synthetic and CIFAR-shaped: nothing is downloaded. Images per second count an image once,
not its two views. Floating-point operations are those of the network, forward and backward; the
device's rate is a large matrix product, measured here. A row that fails or does not fit into the
minutes says so and the others go on. On a CPU the run is a toy: it shows that the benchmark works.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize
from torch.utils.data import DataLoader, RandomSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed

from hnlib.images import augment, data
from hnlib.images.encoders import ENCODERS, model
from hnlib.images.modality import Images
from hnlib.methods import CATALOGUE, build
from hnlib.runs import records, training
from hnlib.runs.loop import enough_memory, fastest_convolutions

SHAPE = (3, 32, 32)  # channels, height, width: CIFAR
IMAGES, EPOCHS = 50_000, 400  # the run that is extrapolated: hcl's and hcl-ot's on CIFAR-10
BLOCKS = 5  # a figure is the median over so many blocks of steps
PRECISIONS = ("32-true", "bf16-mixed")
COMPILING = 90.0  # seconds expected of the first compilation on a GPU, then what the last one took


class LeftOut(Exception):
    """A row that does not fit into the time that is left."""


def option(default, text: str, known=(), least: int = 0):
    return field(default=default, metadata={"help": text, "known": tuple(known), "least": least})


@dataclass(frozen=True)
class Settings:
    """What the command line chooses; `resolved` replaces None by what suits the device."""

    device: str = option("auto", "auto, cpu or cuda", ("auto", "cpu", "cuda"))
    encoders: tuple[str, ...] = option(
        None, "default: resnet18,resnet50; CPU: small-cnn,resnet18", {*ENCODERS} - {"pixels"}
    )
    precisions: tuple[str, ...] = option(PRECISIONS, "default: both", PRECISIONS)
    compile: str = option(
        None, "both, no or yes; default: both, on a CPU no", ("both", "no", "yes")
    )
    batch_size: int = option(None, "pairs; default: 256, on a CPU 8", least=2)
    steps: int = option(None, "a row; default: as many as fit, on a CPU 3", least=1)
    method: str = option("simclr", "whose step is measured", CATALOGUE)
    methods: tuple[str, ...] = option(tuple(CATALOGUE), "whose extra cost is", CATALOGUE)
    augmentation: str = option("hcl", "of our step", augment.RECIPES)
    workers: int = option(None, "of the plain way; default: 12, the cores if fewer")
    minutes: float = option(8.0, "for everything")

    @property
    def toy(self) -> bool:
        return self.device == "cpu"


def resolved(given: Settings) -> Settings:
    """The settings with every None replaced. ValueError: what is unknown, too small or not here."""
    for name, about, value in ((f.name, f.metadata, getattr(given, f.name)) for f in fields(given)):
        for word in value if isinstance(value, tuple) else (value,):
            if word is not None and about["known"] and word not in about["known"]:
                known = ", ".join(about["known"])
                raise ValueError(f"{name}={word!r} is unknown; use {known}")
            if isinstance(word, int | float) and word < about["least"]:
                raise ValueError(f"{name}={word} must be at least {about['least']}")
    gpu = torch.cuda.is_available()
    if given.device == "cuda" and not gpu:
        raise ValueError("device='cuda', but PyTorch finds no GPU; use --device cpu for a toy run")
    toy = given.device == "cpu" or not gpu
    unsaid = {
        "encoders": ("small-cnn", "resnet18") if toy else ("resnet18", "resnet50"),
        "compile": "no" if toy else "both",
        "batch_size": 8 if toy else 256,
        "steps": 3 if toy else None,
        "workers": min(12, os.cpu_count() or 1),  # released: 12
    }
    unsaid = {name: value for name, value in unsaid.items() if getattr(given, name) is None}
    return replace(given, **unsaid, device="cpu" if toy else "cuda")


# Time


class Budget:
    """So many seconds, divided over the rows that are still to come."""

    def __init__(self, seconds: float, clock=time.perf_counter):
        self.clock, self.end = clock, clock() + seconds

    @property
    def left(self) -> float:
        return max(self.end - self.clock(), 0.0)

    def admit(self, expected: float) -> None:
        """LeftOut unless `expected` seconds are left."""
        if expected > self.left or not self.left:
            raise LeftOut(f"left out: needs about {expected:.0f} s of the {self.left:.0f} s left")


def timed(step, device: torch.device, steps: int = 1) -> float:
    """Seconds for one of so many steps; the device is waited for at both ends only."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - begun) / steps


def throughput(step, device, budget: Budget, seconds: float, steps: int | None, warm_up: int = 3):
    """Median seconds of a step over blocks, and (largest − smallest)/median."""
    for _ in range(warm_up):  # allocations, choice of kernels, compilation
        step()
    one = timed(step, device)
    blocks = min(BLOCKS, steps or BLOCKS)
    each = max((steps or int(seconds / one)) // BLOCKS, 1)
    budget.admit(one * blocks * each)
    spent = [timed(step, device, each) for _ in range(blocks)]
    return median(spent), (max(spent) - min(spent)) / median(spent)


def interleaved(steps: dict, device, rounds: int, each: int = 1) -> dict[str, list[float]]:
    """Seconds of a step of each kind, in turn, so that a drift of the machine hits all alike."""
    spent = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            spent[name].append(timed(step, device, each))
    return spent


def count_flops(module: nn.Module, *shape: int) -> int:
    """Operations (a multiplication and an addition are two) of one forward and backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:  # on meta: shapes alone, no arithmetic
        copy.deepcopy(module).to("meta")(torch.empty(*shape, device="meta")).sum().backward()
    return counter.get_total_flops()


def matrix_rate(device: torch.device, precision: str, size: int, repeats: int) -> float:
    """Best measured floating-point operations per second of a product of two `size`² matrices.

    float32: with tensor-float units where the convolutions use them, which PyTorch allows by
    default and for plain products does not; otherwise a network could exceed the rate.
    """
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        return 2 * size**3 / min(timed(lambda: a @ b, device, repeats) for _ in range(BLOCKS + 1))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


# The two ways


@dataclass(frozen=True)
class Cell:
    """One row to measure: kind is "ours", "plain", "methods" or "loop"."""

    kind: str
    encoder: str
    precision: str
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.encoder} {self.precision}{' compiled' * self.compiled}"


def synthetic(n: int) -> data.Dataset:
    """Smooth random pictures around ten patterns; they can be learned, so the similarities that
    iterative methods see are spread as in a real run."""
    g, labels = torch.Generator().manual_seed(0), torch.arange(n) % 10
    coarse = torch.rand(10, 3, 4, 4, generator=g)[labels]
    coarse = (coarse + 0.5 * torch.rand(n, 3, 4, 4, generator=g)) / 1.5
    x = (255 * interpolate(coarse, size=SHAPE[1:], mode="bilinear")).byte()
    x, shown = x.permute(0, 2, 3, 1).contiguous(), slice(256)
    return data.Dataset("synthetic", x, labels, x[shown], labels[shown], tuple("abcdefghij"), "")


class Ours:
    """The step of `hnlib.runs.training`, in pieces that can be timed."""

    def __init__(self, cell: Cell, s: Settings, dataset: data.Dataset):
        self.device, self.half = torch.device(s.device), cell.precision == "bf16-mixed"
        recipe = augment.resolve(s.augmentation)
        self.images = Images(dataset, recipe, s.batch_size, self.device, cell.encoder)
        self.method = build(s.method).to(self.device)
        model = self.images.model().to(self.device, memory_format=torch.channels_last).train()
        decay = {"lr": 1e-3, "weight_decay": 1e-6, "fused": True}
        self.optimiser = torch.optim.Adam(model.parameters(), **decay)
        if cell.compiled:
            torch.compiler.reset()  # each row pays for its own compilation
        self.model, self.batches = torch.compile(model) if cell.compiled else model, iter(())
        self.generator = torch.Generator(self.device).manual_seed(0)

    def views(self) -> tuple[tuple, Tensor]:
        """Two views of the next batch, and its labels."""
        if (batch := next(self.batches, None)) is None:
            self.batches = iter(self.images.batches(self.generator))
            batch = next(self.batches)
        views = self.images.views(batch, self.generator, slice(0, len(batch)))
        return views, self.images.labels[batch]

    def embed(self, x: Tensor, hidden: bool = False):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            out = self.model(x, hidden)
        return tuple(o.float() for o in out) if hidden else out.float()

    def loss(self, model, views, labels: Tensor, method: nn.Module | None = None) -> Tensor:
        method = method or self.method
        labels = labels if method.entry.supervised else None
        return self.images.loss(model, method, views, labels, lambda z: z)

    def update(self, views, labels: Tensor, method: nn.Module | None = None) -> None:
        """Everything but the views: a bare training step on a batch that is ready."""
        loss = self.loss(self.embed, views, labels, method)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def step(self, method: nn.Module | None = None) -> None:
        self.update(*self.views(), method)

    def shares(self, rounds: int) -> dict[str, float]:
        """What a step is spent on; the loss is charged with its own backward pass."""
        views, labels = self.views()
        z, h = (o.detach().requires_grad_() for o in self.embed(torch.cat(views), hidden=True))
        ready = lambda x, hidden=False: (z, h) if hidden else z  # noqa: E731
        parts = {
            "augmentation": self.views,
            "forward_backward": lambda: self.update(views, labels),
            "loss": lambda: self.loss(ready, views, labels).backward(),
            "optimiser": self.optimiser.step,
        }
        spent = {k: median(v) for k, v in interleaved(parts, self.device, rounds).items()}
        rest = spent["forward_backward"] - spent["loss"] - spent["optimiser"]
        spent["forward_backward"] = max(rest, 0.0)
        return {name: part / sum(spent.values()) for name, part in spent.items()}


class Pairs(torch.utils.data.Dataset):
    """Two views of each image, made one PIL image at a time: hcl's transforms."""

    def __init__(self, images: np.ndarray):
        from hnlib.images._torchvision import torchvision

        t, self.images = torchvision.transforms, images
        jitter = t.RandomApply([t.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
        drawn = [t.RandomResizedCrop(SHAPE[1]), t.RandomHorizontalFlip(0.5), jitter]
        scale = t.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # CIFAR-10's
        self.transform = t.Compose([*drawn, t.RandomGrayscale(0.2), blur, t.ToTensor(), scale])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int):
        from PIL import Image

        image = Image.fromarray(self.images[i])
        return self.transform(image), self.transform(image)


def blur(image):
    """A 3×3 Gaussian of random width, on every second image."""
    from PIL import ImageFilter

    if np.random.rand() < 0.5:
        return image
    side = float(np.exp(-0.5 / np.random.uniform(0.1, 2.0) ** 2))
    row = (side, 1.0, side)
    return image.filter(ImageFilter.Kernel((3, 3), [a * b for a in row for b in row]))


def plain_loss(z1: Tensor, z2: Tensor, temperature: float = 0.5) -> Tensor:
    """SimCLR's on unit rows as released code computes it: exponentials, negatives by a mask."""
    z = torch.cat([z1, z2])
    scores = (z @ z.T / temperature).exp()
    mask = ~torch.eye(len(z1), dtype=torch.bool).repeat(2, 2)  # on the host at every step
    negatives = scores.masked_select(mask.to(z.device)).view(len(z), -1).sum(1)
    positives = ((z1 * z2).sum(1) / temperature).exp().repeat(2)
    return -(positives / (positives + negatives)).log().mean()


class Plain:
    """The plain step: a batch from worker processes, float32, contiguous, two forward passes."""

    def __init__(self, cell: Cell, s: Settings, dataset: data.Dataset):
        pairs, device = Pairs(dataset.x_train.numpy()), torch.device(s.device)
        # no pause between epochs, in its favour
        endless = RandomSampler(pairs, replacement=True, num_samples=10**9)
        how = {"num_workers": s.workers, "drop_last": True, "pin_memory": not s.toy}
        self.batches = iter(DataLoader(pairs, s.batch_size, sampler=endless, **how))
        self.device, self.model = device, model(cell.encoder, None, SHAPE).to(device).train()
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-3, weight_decay=1e-6)
        self.waited = []  # seconds until the batch was there

    def step(self) -> None:
        begun = time.perf_counter()
        pair = next(self.batches)
        self.waited.append(time.perf_counter() - begun)
        views = (x.to(self.device, non_blocking=True) for x in pair)
        loss = plain_loss(*(normalize(self.model(x), dim=1) for x in views))
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        loss.item()  # for the progress bar, at every step


# Rows


def cells(s: Settings) -> list[Cell]:
    """What is measured, the indispensable first: compilations are what a lack of time costs."""
    rows = []
    for encoder in s.encoders:
        eager = s.precisions if s.compile != "yes" else ()
        rows += [Cell("ours", encoder, precision) for precision in eager]
        rows.append(Cell("plain", encoder, "32-true"))
    at = 0 if s.toy else -1  # the largest network, unless on a toy run
    rows += [Cell(kind, s.encoders[at], s.precisions[at]) for kind in ("methods", "loop")]
    compiled = s.encoders if s.compile != "no" else ()
    return rows + [Cell("ours", e, p, compiled=True) for e in compiled for p in s.precisions]


class Bench:
    """The state of a run: settings, images, measured rates, time."""

    def __init__(self, settings: Settings, budget: Budget):
        self.s, self.budget, self.device = settings, budget, torch.device(settings.device)
        self.data = synthetic(max(512, 4 * settings.batch_size) if settings.toy else IMAGES)
        self.rates, self.took = {}, {}

    def measure_rates(self) -> None:
        sizes, repeats = ((1024,), 1) if self.s.toy else ((4096, 8192), 20)
        for precision in self.s.precisions:
            found = [matrix_rate(self.device, precision, size, repeats) for size in sizes]
            self.rates[precision] = max(found)

    def run(self, cell: Cell, to_come: int) -> dict:
        """The row of a cell. Whatever goes wrong in it stays in it."""
        row = asdict(cell) | {"images_per_second": None, "error": None, "left_out": None}
        guess = COMPILING if cell.compiled and not self.s.toy else 1.0
        begun, like = time.perf_counter(), (cell.kind, cell.compiled)
        try:
            self.budget.admit(self.took.get(like, guess))
            if not self.s.toy:
                torch.cuda.reset_peak_memory_stats(self.device)
            seconds = min(10.0, self.budget.left / to_come / 2)
            # all batches have one shape. The released script does not say so to cuDNN.
            tuned = nullcontext() if cell.kind == "plain" else fastest_convolutions()
            with tuned, enough_memory(self.device, self.s.batch_size):
                row |= getattr(self, f"_{cell.kind}")(cell, seconds)
            self.took[like] = time.perf_counter() - begun
        except LeftOut as reason:
            row["left_out"] = str(reason)
        except Exception as error:  # a row must not take the others with it
            row["error"] = explained(error)
        gc.collect()
        torch.cuda.empty_cache()
        return row

    def _ours(self, cell: Cell, seconds: float) -> dict:
        ours = Ours(cell, self.s, self.data)
        one, spread = throughput(ours.step, self.device, self.budget, seconds, self.s.steps)
        return self._row(cell, one, spread) | {"shares": ours.shares(2 if self.s.toy else 10)}

    def _plain(self, cell: Cell, seconds: float) -> dict:
        plain = Plain(cell, self.s, self.data)
        # what the workers made while the first step was prepared is not the steady state
        warm_up = 1 if self.s.toy else 2 * self.s.workers + 1
        limits = self.budget, seconds, self.s.steps, warm_up
        one, spread = throughput(plain.step, self.device, *limits)
        waited = min(median(plain.waited[warm_up:]) / one, 1.0)
        return self._row(cell, one, spread) | {"shares": {"waiting for images": waited}}

    def _methods(self, cell: Cell, seconds: float) -> dict:
        """What each method adds to a whole step with the base method: median ratio, minus one.

        Whole steps, because on a GPU a loss alone would be charged with the launches that hide
        behind the network.
        """
        ours, one = self._warm(cell)
        built = {name: build(name).to(self.device) for name in self.s.methods}
        steps = {"base": ours.step} | {n: partial(ours.step, m) for n, m in built.items()}
        each = 1 if self.s.toy else max(int(seconds / one / len(steps) / BLOCKS), 2)
        self.budget.admit(one * len(steps) * (1 + BLOCKS * each))
        spent = interleaved(steps, self.device, BLOCKS, each)
        base = spent.pop("base")
        return {
            "images_per_second": self.s.batch_size / median(base),
            "extra": {n: median(a / b for a, b in zip(spent[n], base)) - 1 for n in spent},
            "unconverged": {n: k for n, m in built.items() if (k := int(m.unconverged))},
        }

    def _loop(self, cell: Cell, seconds: float) -> dict:
        """`train` itself beside its step alone, and beside the step on ready views ("bare")."""
        (ours, one), size, images = self._warm(cell), self.s.batch_size, len(self.data.x_train)
        batches = 4 if self.s.toy else min(max(int(seconds / 3 / one), 4), images // size)
        self.budget.admit(5 * batches * one)
        steps = {"bare": partial(ours.update, *ours.views()), "step": ours.step}
        spent = interleaved(steps, self.device, 2, batches)
        rates = {name: size / median(times) for name, times in spent.items()}
        run = training.train(
            synthetic(batches * size),
            self.s.method,
            encoder=cell.encoder,
            epochs=4,
            batch_size=size,
            device=self.s.device,
            precision=cell.precision,
            augmentation=self.s.augmentation,
            evaluate_every=1,
            progress=False,
        )
        measured = [row["images_per_second"] for row in run.history if row["images_per_second"]]
        rates["train"] = median(measured[1:])  # the first epoch pays for the start
        views, loop = rates["bare"] / rates["step"] - 1, rates["step"] / rates["train"] - 1
        overhead = {"augmentation": views, "loop": loop}
        return {"images_per_second": rates["train"], "rates": rates, "overhead": overhead}

    def _warm(self, cell: Cell) -> tuple[Ours, float]:
        ours = Ours(cell, self.s, self.data)
        return ours, min(timed(ours.step, self.device) for _ in range(2))

    def _row(self, cell: Cell, one: float, spread: float) -> dict:
        flops = count_flops(model(cell.encoder, None, SHAPE), 2 * self.s.batch_size, *SHAPE) / one
        rate, peak = self.rates.get(cell.precision), None
        if not self.s.toy:
            peak = torch.cuda.max_memory_allocated() / 2**20
        return {
            "images_per_second": self.s.batch_size / one,
            "step_ms": 1e3 * one,
            "spread": spread,
            "tflops": flops / 1e12,
            "share_of_rate": flops / rate if rate else None,
            "peak_memory_mb": peak,
            "hours_400": EPOCHS * (IMAGES // self.s.batch_size) * one / 3600,
        }


def explained(error: Exception) -> str:
    """One line."""
    words = (str(error).strip().splitlines() or [""])[0][:300]
    return words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}"


def speedups(rows: list[dict]) -> dict[str, dict]:
    """For each encoder: images/s over the plain way's, of our fastest row and of the one alike."""
    found = {}
    rate, steps = itemgetter("images_per_second"), [row for row in rows if "hours_400" in row]
    for plain in (row for row in steps if row["kind"] == "plain"):
        ours = [r for r in steps if r["kind"] == "ours" and r["encoder"] == plain["encoder"]]
        alike = [r for r in ours if r["precision"] == plain["precision"] and not r["compiled"]]
        if ours:
            best = max(ours, key=rate)
            found[plain["encoder"]] = {
                "fastest": rate(best) / rate(plain),
                "fastest_is": best["precision"] + ", compiled" * best["compiled"],
                "same_precision": rate(alike[0]) / rate(plain) if alike else None,
                "hours_400": [best["hours_400"], plain["hours_400"]],
            }
    return found


def benchmark(settings: Settings, say=print) -> dict:
    """Measure everything and return the record. ValueError: settings that cannot be."""
    s, begun = resolved(settings), time.perf_counter()
    bench = Bench(s, Budget(60 * s.minutes))
    environment = records.environment(bench.device) | {"tf32": torch.backends.cudnn.allow_tf32}
    name = environment["hardware"].get("gpu") or environment["hardware"]["cpu"]
    say(f"{name}: batch size {s.batch_size}, {s.minutes:g} minutes at most")
    if s.toy:
        say("a toy run, as on every CPU: it shows that the benchmark works, not how fast it is")
    try:
        bench.measure_rates()
    except Exception as error:  # then no row has a share of it
        say(f"matrix product: {explained(error)}")
    rates = {precision: rate / 1e12 for precision, rate in bench.rates.items()}
    say("matrix product, TFLOP/s: " + ", ".join(f"{k} {v:.3g}" for k, v in rates.items()))
    rows, todo = [], cells(s)
    try:
        for done, cell in enumerate(todo):
            rows.append(bench.run(cell, len(todo) - done))
            say(line(cell, rows[-1]))
    except KeyboardInterrupt:  # what was measured is kept
        nothing = {"images_per_second": None, "error": None, "left_out": "left out: interrupted"}
        rows += [asdict(cell) | nothing for cell in todo[len(rows) :]]
    kept = ("encoders", "precisions", "batch_size", "method", "methods", "workers")
    # not "compile": in the table of all runs that is an option which is on or off
    chosen = {"experiment": "benchmark", "dataset": "synthetic", "device": name}
    chosen["compiled"] = s.compile
    chosen |= {"image_shape": SHAPE, "augmentation": asdict(augment.resolve(s.augmentation))}
    metrics = {"toy": s.toy, "matrix_tflops": rates, "rows": rows, "speedup": speedups(rows)}
    record = {
        "configuration": chosen | {key: getattr(s, key) for key in kept},
        "metrics": metrics,
        "environment": environment,
        "steps": s.steps,
        "minutes": s.minutes,
        "seconds": round(time.perf_counter() - begun, 3),
    }
    return json.loads(json.dumps(record))  # as it will be read back


def line(cell: Cell, row: dict) -> str:
    """One row for the terminal."""
    percent = lambda parts: ", ".join(f"{k} {100 * v:+.1f} %" for k, v in parts.items())  # noqa: E731
    if row["error"] or row["left_out"]:
        return f"{cell!s:36} {row['error'] or row['left_out']}"
    text = f"{cell!s:36} {row['images_per_second']:9,.0f} images/s"
    if cell.kind in ("methods", "loop"):
        return f"{text}  adds: {percent(row['extra' if cell.kind == 'methods' else 'overhead'])}"
    rate = f" ({100 * row['share_of_rate']:.0f} %)" if row["share_of_rate"] else ""
    memory = f"  {row['peak_memory_mb'] / 1024:.1f} GiB" if row["peak_memory_mb"] else ""
    text += f"  {row['tflops']:.3g} TFLOP/s{rate}  {60 * row['hours_400']:,.0f} min for {EPOCHS}"
    return f"{text} epochs{memory}  {percent(row['shares'])}"


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status. Bad settings are one sentence and status 2."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    names = lambda text: tuple(part.strip() for part in text.split(",") if part.strip())  # noqa: E731
    kinds = {"tuple[str, ...]": names, "int": int, "float": float, "str": str}
    for f in fields(Settings):
        flag, kind, text = f"--{f.name.replace('_', '-')}", kinds[f.type], f.metadata["help"]
        parser.add_argument(flag, type=kind, default=f.default, help=text)
    text = "write to book/results/runs, which the book shows"
    parser.add_argument("--record", action="store_true", help=text)
    given = vars(parser.parse_args(argv))
    folder = records.tracked_folder() if given.pop("record") else records.default_folder()
    try:
        record = benchmark(Settings(**given), say=lambda text: print(text, flush=True))
        for encoder, times in record["metrics"]["speedup"].items():
            ours, plain = (60 * hours for hours in times["hours_400"])
            print(
                f"{encoder}: {times['fastest']:.1f} times the plain way ({times['fastest_is']}); "
                f"{EPOCHS} epochs of {IMAGES:,} images in {ours:,.0f} instead of {plain:,.0f} min"
            )
        print(records.write(record, folder, overwrite=True))
    except ValueError as error:
        print(f"training_speed: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
