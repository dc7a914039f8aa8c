"""Images per second of `hnlib.training.run.train`, and what 400 epochs of CIFAR-10 would take.

    python tests/benchmarks/training_speed.py [--device cpu] [--encoders resnet18 resnet50]
    [--precisions 32-true bf16-mixed] [--methods simclr hcl ot] [--compile] [--batch-size 256]
    [--steps 40]

Images are synthetic and CIFAR-shaped: nothing is downloaded. Each row is the median over the epochs
after the first, which pays for the start; an image counts once, not as its two views. A row that
fails says so and the others follow.
"""

from __future__ import annotations

import argparse
from itertools import product
from statistics import median

import torch
from torch.nn.functional import interpolate

from hnlib.images import data
from hnlib.images.run import ImageRun
from hnlib.training.run import train

EPOCHS = 5  # measured, after one that is not
RUN = 400 * 50_000  # images of a run of 400 epochs on CIFAR-10


def synthetic(n: int) -> data.Dataset:
    """Return smooth random pictures around ten patterns, so that similarities spread as in a run."""
    g, labels = torch.Generator().manual_seed(0), torch.arange(n) % 10
    coarse = torch.rand(10, 3, 4, 4, generator=g)[labels]
    coarse = (coarse + 0.5 * torch.rand(n, 3, 4, 4, generator=g)) / 1.5
    x = (255 * interpolate(coarse, size=(32, 32), mode="bilinear")).byte()
    x = x.permute(0, 2, 3, 1).contiguous()
    return data.Dataset("synthetic", x, labels, x[:256], labels[:256], tuple("abcdefghij"), "")


def images_per_second(run: ImageRun, steps: int, device: str) -> float:
    """Train `run` on `steps` batches an epoch and return its median speed."""
    images = synthetic(max(steps * run.batch_size, 32))
    done = train(run, dataset=images, device=device, evaluate_every=1, progress=False)
    return median([row["images_per_second"] for row in done.history if row["loss"]][1:])


def main(argv: list[str] | None = None) -> None:
    """Print one row for each encoder, precision and method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--encoders", nargs="+", default=["resnet18", "resnet50"])
    parser.add_argument("--precisions", nargs="+", default=["32-true", "bf16-mixed"])
    parser.add_argument("--methods", nargs="+", default=["simclr", "hcl", "ot"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    s = parser.parse_args(argv)
    for encoder, precision, method in product(s.encoders, s.precisions, s.methods):
        run = ImageRun(
            method=method,
            encoder=encoder,
            precision=precision,
            compile=s.compile,
            batch_size=s.batch_size,
            augmentation="hcl",
            epochs=1 + EPOCHS,
        )
        try:
            rate = images_per_second(run, s.steps, s.device)
            text = f"{rate:10,.0f} images/s, 400 epochs in {RUN / rate / 60:,.0f} min"
        except RuntimeError as error:  # most often: out of memory
            text = str(error).splitlines()[0]
        print(f"{encoder:10} {precision:10} {method:10} {text}", flush=True)


if __name__ == "__main__":
    main()
