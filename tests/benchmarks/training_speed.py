"""How fast one training step is, what it is spent on, and the same beside a plain implementation.

    python tests/benchmarks/training_speed.py [--record] [--minutes 8] [--encoders resnet18,resnet50] …

For every encoder × precision × eager/compiled the step of `hnlib.training`: images resident on the device as uint8, two
views in batch, channels_last, autocast, fused Adam. Beside it, in the same run, the plain way, written from the
description of hcl's released training script: a DataLoader that transforms one PIL image at a time, float32, contiguous
tensors, one forward pass for each view, the loss copied to the host at each step. Where the released script is slower
for no reason (its mask is filled row by row) the plain one is given the faster way. Then what each method of the
catalogue adds to a step, and what `hnlib.training.train` adds to the bare forward and backward pass.

Images are synthetic and CIFAR-shaped, so nothing is downloaded. Images per second count an image once, not its two
views. Floating-point operations are those of the network, forward and backward; the device's rate is a large matrix
product in the same precision, measured here. A cell that fails or does not fit into the minutes says so in its row and
the others go on. On a CPU the run is a toy: it shows that the benchmark works, not how fast anything is.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import signal
import statistics
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout that is not installed

from hnlib import augment, encoders, methods, records, training

SHAPE = (3, 32, 32)  # channels, height, width: CIFAR
IMAGES, EPOCHS = 50_000, 400  # the run that is extrapolated: hcl's and hcl-ot's on CIFAR-10
BLOCKS = 5  # a figure is the median over so many blocks of steps
PRECISIONS = ("32-true", "bf16-mixed")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training images
COMPILING = 90.0  # seconds expected of a first compilation on a GPU; afterwards what the last one took


class LeftOut(Exception):
    """A cell that does not fit into the time that is left."""


@dataclass(frozen=True)
class Settings:
    """What the command line chooses; None is replaced by `resolved` with what suits the device."""

    device: str = "auto"
    encoders: tuple[str, ...] | None = None
    precisions: tuple[str, ...] = PRECISIONS
    compile: str | None = None
    batch_size: int | None = None
    steps: int | None = None
    method: str = "simclr"
    methods: tuple[str, ...] = tuple(methods.CATALOGUE)
    augmentation: str = "hcl"
    workers: int | None = None
    minutes: float = 8.0

    @property
    def toy(self) -> bool:
        return self.device == "cpu"


def resolved(given: Settings) -> Settings:
    """The settings with every None replaced. ValueError: what is unknown, out of range or not possible here."""
    device = given.device
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={device!r} is unknown; use auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' but PyTorch finds no GPU here; use --device cpu for a toy run")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    toy = device == "cpu"
    s = replace(given, device=device,
                encoders=given.encoders or (("small-cnn", "resnet18") if toy else ("resnet18", "resnet50")),
                compile=given.compile or ("no" if toy else "both"),
                batch_size=8 if given.batch_size is None and toy else 256 if given.batch_size is None
                else given.batch_size,
                steps=3 if given.steps is None and toy else given.steps,
                workers=min(12, os.cpu_count() or 1) if given.workers is None else given.workers)  # released: 12
    known = {"encoders": encoders.ENCODERS, "precisions": PRECISIONS, "methods": tuple(methods.CATALOGUE)}
    for name, allowed in known.items():
        for value in getattr(s, name):
            if value not in allowed or value == "pixels":
                raise ValueError(f"{name}: {value!r} is unknown; use {', '.join(a for a in allowed if a != 'pixels')}")
    if s.compile not in ("both", "no", "yes"):
        raise ValueError(f"compile={s.compile!r} is unknown; use both, no or yes")
    augment.resolve(s.augmentation)
    if s.method not in methods.CATALOGUE:
        raise ValueError(f"method {s.method!r} is unknown; the catalogue has {', '.join(methods.CATALOGUE)}")
    for name, least in (("batch_size", 2), ("steps", 1), ("workers", 0), ("minutes", 0)):
        value = getattr(s, name)
        if value is not None and value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    return s


# Time


class Budget:
    """So many seconds, divided over the cells that are still to come."""

    def __init__(self, seconds: float, clock=time.perf_counter):
        self.clock, self.end = clock, clock() + seconds

    @property
    def left(self) -> float:
        return self.end - self.clock()

    def share(self, to_come: int) -> float:
        """Seconds for the next of `to_come` cells if all get the same."""
        return max(self.left, 0.0) / max(to_come, 1)

    def admit(self, expected: float) -> None:
        """LeftOut unless `expected` seconds are left."""
        if expected > self.left or self.left <= 0:
            raise LeftOut(f"left out: needs about {expected:.0f} s, {max(self.left, 0):.0f} s of the minutes are left")


@contextmanager
def stopped_after(seconds: float):
    """LeftOut after so many seconds, where the system has alarms: a compilation cannot be timed beforehand."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number, frame):
        raise LeftOut(f"left out: not finished when its {seconds:.0f} s were over")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(step, device: torch.device, steps: int) -> float:
    """Seconds for one step, over `steps` of them; the device is waited for at both ends only."""
    wait(device)
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return (time.perf_counter() - begun) / steps


def throughput(step, device, budget: Budget, seconds: float, steps: int | None = None, warm_up: int = 3):
    """Median seconds of a step over blocks, and (largest − smallest)/median. LeftOut when not even this is possible."""
    for _ in range(warm_up):  # allocations, choice of kernels, compilation
        step()
    one = timed(step, device, 1)
    if steps is None:
        blocks, each = BLOCKS, max(int(seconds / BLOCKS / one), 1)
    else:
        blocks, each = min(BLOCKS, steps), max(steps // BLOCKS, 1)
    if one * blocks * each > budget.left:
        raise LeftOut(f"left out: {blocks * each} steps of {one:.2g} s do not fit into {max(budget.left, 0):.0f} s")
    spent = [timed(step, device, each) for _ in range(blocks)]
    middle = statistics.median(spent)
    return middle, (max(spent) - min(spent)) / middle


def interleaved(steps: dict, device, rounds: int, each: int) -> dict[str, list[float]]:
    """Seconds of a step of each kind, in turn, round by round: a drift of the machine hits all alike."""
    for step in steps.values():
        step()
    spent = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            spent[name].append(timed(step, device, each))
    return spent


class Marks:
    """Moments inside a step: events on a GPU, which it passes without waiting, and the clock on a CPU."""

    def __init__(self, device: torch.device):
        self.device, self.moments = device, []

    def __call__(self) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.moments.append(event)
        else:
            self.moments.append(time.perf_counter())

    def intervals(self) -> list[float]:
        """Milliseconds between successive marks."""
        wait(self.device)
        pairs = zip(self.moments[:-1], self.moments[1:])
        return [a.elapsed_time(b) if self.device.type == "cuda" else 1e3 * (b - a) for a, b in pairs]


# What the device can do, and what the network asks for


def count_flops(module: nn.Module, *shape: int) -> int:
    """Floating-point operations (a multiplication and an addition are two) of one forward and backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:  # on the meta device: shapes alone, no arithmetic
        copy.deepcopy(module).to("meta")(torch.empty(*shape, device="meta")).sum().backward()
    return counter.get_total_flops()


def matrix_rate(device: torch.device, precision: str, size: int, repeats: int = 10) -> float:
    """Best measured floating-point operations per second of a product of two `size`² matrices.

    float32: with tensor-float units where the convolutions use them, which PyTorch allows by default and for plain
    products does not; otherwise a network could exceed the rate.
    """
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        timed(lambda: a @ b, device, 2)
        best = min(timed(lambda: a @ b, device, repeats) for _ in range(BLOCKS))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return 2 * size**3 / best


# Our step


def synthetic(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Smooth random pictures uint8 [n,32,32,3] around ten patterns, and which [n]; they can be told apart and learned
    from, so the similarities that iterative methods see are spread as in a real run."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 10
    coarse = torch.rand(10, 3, 4, 4, generator=g)[labels] + 0.5 * torch.rand(n, 3, 4, 4, generator=g)
    x = functional.interpolate(coarse / 1.5, size=SHAPE[1:], mode="bilinear")
    return (255 * x).byte().permute(0, 2, 3, 1).contiguous(), labels


def network(encoder: str) -> nn.Module:
    built = encoders.build(encoder, SHAPE[0], SHAPE[1])
    return training.Model(built, encoders.Projector(built.feature_dim, hidden=min(512, built.feature_dim)))


class Ours:
    """The step of `hnlib.training`, taken apart so that its pieces can be timed."""

    def __init__(self, encoder, precision, compiled, method, batch_size, device, x, y, recipe):
        self.device, self.x, self.y, self.batch_size = device, x, y, batch_size
        self.recipe = augment.resolve(recipe)
        self.method = methods.build(method).to(device)
        model = network(encoder).to(device, memory_format=torch.channels_last).train()
        self.optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6, fused=True)
        if compiled:
            torch.compiler.reset()  # each cell pays for its own compilation
            model = torch.compile(model)
        self.model, self.half = model, precision == "bf16-mixed"
        self.generator = torch.Generator(device).manual_seed(0)
        self.batches = iter(())

    def views(self) -> tuple[Tensor, Tensor]:
        batch = next(self.batches, None)
        if batch is None:
            order = torch.randperm(len(self.x), generator=self.generator, device=self.device)
            self.batches = iter(order[: len(order) // self.batch_size * self.batch_size].split(self.batch_size))
            batch = next(self.batches)
        both = torch.cat(augment.two_views(self.x[batch], self.generator, self.recipe))
        return both.contiguous(memory_format=torch.channels_last), self.y[batch]

    def embed(self, x: Tensor, hidden: bool = False) -> tuple[Tensor, ...]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            out = self.model(x, hidden=True) if hidden else (self.model(x),)
        return tuple(o.float() for o in out)

    def loss(self, out: tuple[Tensor, ...], y: Tensor, method: nn.Module) -> Tensor:
        more = {"features": out[1].chunk(2)} if len(out) > 1 else {}
        return method(*out[0].chunk(2), y, **more)  # methods without labels ignore them

    def update(self, x: Tensor, y: Tensor, method: nn.Module | None = None) -> None:
        """Everything but the views: a bare training step on a batch that is ready."""
        method = method or self.method
        loss = self.loss(self.embed(x, method.entry.features), y, method)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def step(self, method: nn.Module | None = None) -> None:
        self.update(*self.views(), method)

    def phases(self) -> list[float]:
        """Milliseconds of augmentation, forward, loss, backward, optimiser in one step.

        The graph is cut at the embedding, so the loss is charged with its own backward pass.
        """
        mark = Marks(self.device)
        mark()
        x, y = self.views()
        mark()
        out = self.embed(x, self.method.entry.features)
        mark()
        leaves = tuple(o.detach().requires_grad_() for o in out)
        self.loss(leaves, y, self.method).backward()
        mark()
        self.optimiser.zero_grad()
        through = [(o, leaf.grad) for o, leaf in zip(out, leaves) if leaf.grad is not None]
        torch.autograd.backward(*map(list, zip(*through)))
        mark()
        self.optimiser.step()
        mark()
        return mark.intervals()


# The plain way


class Blur:
    """A 3×3 Gaussian of random width, on every second image."""

    def __call__(self, image):
        from PIL import ImageFilter

        if np.random.rand() < 0.5:
            side = float(np.exp(-0.5 / np.random.uniform(0.1, 2.0) ** 2))
            row = (side, 1.0, side)
            image = image.filter(ImageFilter.Kernel((3, 3), [a * b for a in row for b in row]))
        return image


class Pairs(torch.utils.data.Dataset):
    """Two views of each image, made one PIL image at a time: hcl's transforms."""

    def __init__(self, images: np.ndarray):
        from hnlib._torchvision import torchvision

        t = torchvision.transforms
        self.images = images
        self.transform = t.Compose([
            t.RandomResizedCrop(SHAPE[1]), t.RandomHorizontalFlip(0.5),
            t.RandomApply([t.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8), t.RandomGrayscale(0.2), Blur(),
            t.ToTensor(), t.Normalize(MEAN, STD),
        ])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int):
        from PIL import Image

        image = Image.fromarray(self.images[i])
        return self.transform(image), self.transform(image)


def plain_loss(z1: Tensor, z2: Tensor, temperature: float = 0.5) -> Tensor:
    """SimCLR's loss on unit rows as released code computes it: exponentials, and negatives picked by a mask."""
    z = torch.cat([z1, z2])
    scores = (z @ z.T / temperature).exp()
    mask = ~torch.eye(len(z1), dtype=torch.bool).repeat(2, 2)  # on the host at every step
    negatives = scores.masked_select(mask.to(z.device)).view(len(z), -1).sum(1)
    positives = ((z1 * z2).sum(1) / temperature).exp().repeat(2)
    return -(positives / (positives + negatives)).log().mean()


class Plain:
    """One step the plain way: the batch comes from worker processes, float32, contiguous, two forward passes."""

    def __init__(self, encoder: str, batch_size: int, workers: int, device: torch.device, images: np.ndarray):
        data = Pairs(images)
        endless = RandomSampler(data, replacement=True, num_samples=10**9)  # no pause between epochs, in its favour
        self.batches = iter(DataLoader(data, batch_size, sampler=endless, num_workers=workers, drop_last=True,
                                       pin_memory=device.type == "cuda"))
        self.device, self.model = device, network(encoder).to(device).train()
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-3, weight_decay=1e-6)
        self.waited = []  # seconds until the batch was there

    def step(self) -> None:
        begun = time.perf_counter()
        x1, x2 = next(self.batches)
        self.waited.append(time.perf_counter() - begun)
        views = (x.to(self.device, non_blocking=True) for x in (x1, x2))
        loss = plain_loss(*(functional.normalize(self.model(x), dim=1) for x in views))
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        loss.item()  # for the progress bar, at every step

    def close(self) -> None:
        self.batches = None  # ends the workers


# Cells


@dataclass(frozen=True)
class Cell:
    """One row to measure: kind is "ours", "plain", "methods" or "loop"."""

    kind: str
    encoder: str
    precision: str
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.encoder} {self.precision}{' compiled' if self.compiled else ''}"


def cells(s: Settings) -> list[Cell]:
    """What is measured, the indispensable first: when time runs out, compilations are what is missing."""
    rows = []
    for encoder in s.encoders:
        if s.compile != "yes":
            rows += [Cell("ours", encoder, precision) for precision in s.precisions]
        rows.append(Cell("plain", encoder, "32-true"))
    at = 0 if s.toy else -1  # the largest network, unless on a toy run
    rows += [Cell(kind, s.encoders[at], s.precisions[at]) for kind in ("methods", "loop")]
    if s.compile != "no":
        rows += [Cell("ours", e, p, compiled=True) for e in s.encoders for p in s.precisions]
    return rows


class Bench:
    """The state of a run: settings, images on the device, measured rates, time."""

    def __init__(self, settings: Settings, budget: Budget):
        self.s, self.budget, self.device = settings, budget, torch.device(settings.device)
        x, y = synthetic(max(512, 4 * settings.batch_size) if settings.toy else IMAGES)
        self.images = x.numpy()
        self.x, self.y = x.to(self.device), y.to(self.device)
        self.rates, self.took = {}, {}

    def measure_rates(self) -> None:
        for precision in self.s.precisions:
            for size in (1024,) if self.s.toy else (4096, 8192):
                rate = matrix_rate(self.device, precision, size, 1 if self.s.toy else 20)
                self.rates[precision] = max(rate, self.rates.get(precision, 0.0))

    def expected(self, cell: Cell) -> float:
        """Seconds a cell of this kind will take at least, from the last one like it."""
        known = self.took.get((cell.kind, cell.compiled))
        return known or (COMPILING if cell.compiled and not self.s.toy else 1.0)

    def run(self, cell: Cell, to_come: int) -> dict:
        """The row of a cell. Whatever goes wrong in it stays in it."""
        row = asdict(cell) | {"images_per_second": None, "error": None, "left_out": None}
        begun, before = time.perf_counter(), torch.backends.cudnn.benchmark
        try:
            self.budget.admit(self.expected(cell))
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
            # as `training` does: all batches have one shape. The released script leaves it off.
            torch.backends.cudnn.benchmark = cell.kind != "plain"
            with stopped_after(self.budget.left):
                row |= getattr(self, f"_{cell.kind}")(cell, min(10.0, self.budget.share(to_come) / 2))
            self.took[cell.kind, cell.compiled] = time.perf_counter() - begun
        except LeftOut as reason:
            row["left_out"] = str(reason)
        except Exception as error:  # a cell must not take the others with it
            rang = [e for e in causes(error) if isinstance(e, LeftOut)]  # inside the compiler, which wrapped it
            row |= {"left_out": str(rang[0])} if rang else {"error": self.explain(error)}
        finally:
            torch.backends.cudnn.benchmark = before
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return row

    def explain(self, error: Exception) -> str:
        """One line; out of memory with the batch size, the free memory and the remedy."""
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in str(error):
            free = ""
            if self.device.type == "cuda":
                a, b = torch.cuda.mem_get_info(self.device)
                free = f" ({a / 2**30:.1f} of {b / 2**30:.1f} GiB are free)"
            return f"out of memory at batch size {self.s.batch_size}{free}; use a smaller --batch-size"
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0][:300]}"

    def _ours(self, cell: Cell, seconds: float) -> dict:
        ours = self._build(cell)
        one, spread = throughput(ours.step, self.device, self.budget, seconds, self.s.steps)
        found = self._row(cell, one, spread)
        each = [ours.phases() for _ in range(2 if self.s.toy else 10)]
        augmentation, forward, loss, backward, optimiser = (statistics.median(p) for p in zip(*each))
        parts = {"augmentation": augmentation, "forward_backward": forward + backward, "loss": loss,
                 "optimiser": optimiser}
        return found | {"shares": {k: v / sum(parts.values()) for k, v in parts.items()}}

    def _plain(self, cell: Cell, seconds: float) -> dict:
        plain = Plain(cell.encoder, self.s.batch_size, self.s.workers, self.device, self.images)
        try:
            # the batches that the workers made while the first step was prepared are not the steady state
            warm_up = 1 if self.s.toy else 2 * self.s.workers + 1
            one, spread = throughput(plain.step, self.device, self.budget, seconds, self.s.steps, warm_up)
            waited = statistics.median(plain.waited[warm_up:])
        finally:
            plain.close()
        return self._row(cell, one, spread) | {"shares": {"waiting for images": min(waited / one, 1.0)}}

    def _methods(self, cell: Cell, seconds: float) -> dict:
        """What each method adds to a whole step with the base method: median over rounds of the ratio, minus one.

        Whole steps, because on a GPU a loss alone would be charged with the launches that hide behind the network.
        """
        ours = self._build(cell)
        base = timed(ours.step, self.device, 1)
        base = min(base, timed(ours.step, self.device, 1))
        built = {"base": ours.method} | {n: methods.build(n).to(self.device) for n in self.s.methods}
        steps = {n: (lambda m=m: ours.step(m)) for n, m in built.items()}
        each = 1 if self.s.toy else max(int(seconds / base / len(steps) / BLOCKS), 2)
        self.budget.admit(base * len(steps) * (1 + BLOCKS * each))
        spent = interleaved(steps, self.device, BLOCKS, each)
        extra = {n: statistics.median(a / b for a, b in zip(spent[n], spent["base"])) - 1 for n in self.s.methods}
        return {"images_per_second": self.s.batch_size / statistics.median(spent["base"]), "extra": extra,
                "unconverged": {n: k for n, m in built.items() if n != "base" and (k := int(m.unconverged))}}

    def _loop(self, cell: Cell, seconds: float) -> dict:
        """`training.train` itself beside its step alone, and beside the step on views that are ready ("bare")."""
        from hnlib import data

        ours = self._build(cell)
        ready = ours.views()
        one = timed(ours.step, self.device, 1)
        one = min(one, timed(ours.step, self.device, 1))
        batches = 4 if self.s.toy else min(max(int(seconds / 3 / one), 4), len(self.x) // self.s.batch_size)
        self.budget.admit(5 * batches * one)
        spent = interleaved({"bare": lambda: ours.update(*ready), "step": ours.step}, self.device, 2, batches)
        rates = {name: self.s.batch_size / statistics.median(times) for name, times in spent.items()}
        x, y = self.x[: batches * self.s.batch_size].cpu(), self.y[: batches * self.s.batch_size].cpu()
        shown = slice(0, min(len(x), 256))
        pictures = data.Dataset("synthetic", x, y, x[shown], y[shown], tuple("abcdefghij"), "")
        run = training.train(pictures, self.s.method, cell.encoder, epochs=4, batch_size=self.s.batch_size,
                             device=self.s.device, precision=cell.precision, augmentation=self.s.augmentation,
                             evaluate_every=1, evaluate_size=min(len(x), 256), progress=False)
        measured = [row["images_per_second"] for row in run.history if row["images_per_second"]]
        rates["train"] = statistics.median(measured[1:])  # the first epoch pays for the start
        return {"images_per_second": rates["train"], "rates": rates,
                "overhead": {"augmentation": rates["bare"] / rates["step"] - 1,
                             "loop": rates["step"] / rates["train"] - 1}}

    def _build(self, cell: Cell) -> Ours:
        return Ours(cell.encoder, cell.precision, cell.compiled, self.s.method, self.s.batch_size, self.device,
                    self.x, self.y, self.s.augmentation)

    def _row(self, cell: Cell, one: float, spread: float) -> dict:
        flops = count_flops(network(cell.encoder), 2 * self.s.batch_size, *SHAPE) / one
        rate = self.rates.get(cell.precision)
        peak = torch.cuda.max_memory_allocated(self.device) / 2**20 if self.device.type == "cuda" else None
        return {"images_per_second": self.s.batch_size / one, "step_ms": 1e3 * one, "spread": spread,
                "tflops": flops / 1e12, "share_of_rate": flops / rate if rate else None, "peak_memory_mb": peak,
                "hours_400": EPOCHS * (IMAGES // self.s.batch_size) * one / 3600}


def causes(error: BaseException | None):
    """The exception, the one it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def speedups(rows: list[dict]) -> dict[str, dict]:
    """For each encoder: images/s over the plain way's, of our fastest cell and of the one in the same precision."""
    found = {}
    for plain in rows:
        if plain["kind"] != "plain" or not plain["images_per_second"]:
            continue
        ours = [r for r in rows if r["kind"] == "ours" and r["encoder"] == plain["encoder"] and r["images_per_second"]]
        alike = [r for r in ours if r["precision"] == plain["precision"] and not r["compiled"]]
        if ours:
            best = max(ours, key=lambda r: r["images_per_second"])
            found[plain["encoder"]] = {
                "fastest": best["images_per_second"] / plain["images_per_second"],
                "fastest_is": best["precision"] + (", compiled" if best["compiled"] else ""),
                "same_precision": alike[0]["images_per_second"] / plain["images_per_second"] if alike else None,
                "hours_400": [best["hours_400"], plain["hours_400"]],
            }
    return found


def benchmark(settings: Settings, say=print) -> dict:
    """Measure everything and return the record. ValueError: settings that cannot be."""
    s = resolved(settings)
    begun = time.perf_counter()
    bench = Bench(s, Budget(60 * s.minutes))
    environment = records.environment(bench.device) | {"tf32": torch.backends.cudnn.allow_tf32}
    name = environment["hardware"].get("gpu") or environment["hardware"]["cpu"]
    say(f"{name}: batch size {s.batch_size}, {s.minutes:g} minutes at most"
        + ("; a toy run, as on every CPU: it shows that the benchmark works, not how fast anything is" * s.toy))
    try:
        bench.measure_rates()
    except Exception as error:  # then no row has a share of it
        say(f"matrix product: {bench.explain(error)}")
    for precision, rate in bench.rates.items():
        say(f"matrix product, {precision}: {rate / 1e12:.3g} TFLOP/s")
    rows, todo = [], cells(s)
    try:
        for done, cell in enumerate(todo):
            rows.append(bench.run(cell, len(todo) - done))
            say(line(cell, rows[-1]))
    except KeyboardInterrupt:  # what was measured is kept
        rows += [asdict(cell) | {"images_per_second": None, "error": None, "left_out": "left out: interrupted"}
                 for cell in todo[len(rows):]]
    chosen = {"experiment": "benchmark", "dataset": "synthetic", "device": name, "image_shape": list(SHAPE),
              "augmentation": asdict(augment.resolve(s.augmentation))}
    kept = ("encoders", "precisions", "compile", "batch_size", "method", "methods", "workers")
    chosen |= {key: getattr(s, key) for key in kept}
    metrics = {"toy": s.toy, "matrix_tflops": {k: v / 1e12 for k, v in bench.rates.items()}, "rows": rows,
               "speedup": speedups(rows)}
    record = {"configuration": chosen, "metrics": metrics, "environment": environment,
              "steps": s.steps, "minutes": s.minutes, "seconds": round(time.perf_counter() - begun, 3)}
    return json.loads(json.dumps(record))  # as it will be read back


def line(cell: Cell, row: dict) -> str:
    """One row for the terminal."""
    if row["error"] or row["left_out"]:
        return f"{cell!s:36} {row['error'] or row['left_out']}"
    text = f"{cell!s:36} {row['images_per_second']:9,.0f} images/s"
    if cell.kind == "methods":
        return text + "".join(f"\n    {n:18} {100 * extra:+6.1f} % of a step" for n, extra in row["extra"].items())
    if cell.kind == "loop":
        more = row["overhead"]
        return text + (f"  augmentation {100 * more['augmentation']:+.1f} % of the bare step, "
                       f"loop {100 * more['loop']:+.1f} % of the step")
    text += f"  {row['tflops']:.3g} TFLOP/s"
    if row["share_of_rate"] is not None:
        text += f" ({100 * row['share_of_rate']:.0f} %)"
    text += f"  {60 * row['hours_400']:,.0f} min for {EPOCHS} epochs"
    if row["peak_memory_mb"] is not None:
        text += f"  {row['peak_memory_mb'] / 1024:.1f} GiB"
    return text + "  " + ", ".join(f"{k.replace('_', '+')} {100 * v:.0f} %" for k, v in row["shares"].items())


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status. Bad settings are one sentence on standard error and status 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: tuple(part.strip() for part in text.split(",") if part.strip())  # noqa: E731
    kinds = {"device": str, "encoders": names, "precisions": names, "compile": str, "batch_size": int, "steps": int,
             "method": str, "methods": names, "augmentation": str, "workers": int, "minutes": float}
    help_ = {
        "device": "auto, cpu or cuda", "encoders": "default: resnet18,resnet50; on a CPU small-cnn,resnet18",
        "precisions": f"default: {','.join(PRECISIONS)}", "compile": "both, no or yes; default: both, on a CPU no",
        "batch_size": "pairs; default: 256, on a CPU 8", "steps": "measured in each cell; default: as many as fit",
        "method": "whose step is measured", "methods": "whose extra cost is measured; default: the catalogue",
        "augmentation": "of our step", "workers": "of the plain way; default: 12, the cores if fewer",
        "minutes": "for everything",
    }
    for field in fields(Settings):
        shown = help_[field.name]
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kinds[field.name], default=field.default,
                            help=shown if "default" in shown or field.default is None else f"{shown} (%(default)s)")
    parser.add_argument("--record", action="store_true", help="write to book/results/runs, which the book shows")
    given = vars(parser.parse_args(argv))
    folder = records.tracked_folder() if given.pop("record") else records.default_folder()
    try:
        record = benchmark(Settings(**given), say=lambda text: print(text, flush=True))
        for encoder, times in record["metrics"]["speedup"].items():
            ours, plain = (60 * hours for hours in times["hours_400"])
            print(f"{encoder}: {times['fastest']:.1f} times the plain way ({times['fastest_is']}); {EPOCHS} epochs of "
                  f"{IMAGES:,} images in {ours:,.0f} instead of {plain:,.0f} minutes")
        print(records.write(record, folder, overwrite=True))
    except ValueError as error:
        print(f"training_speed: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
