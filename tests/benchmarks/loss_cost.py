"""Cost of every loss, forward and backward, as a ratio to the floor `S = z zᵀ/t; logsumexp; mean;
backward`.

    python tests/benchmarks/loss_cost.py [hcl ot …] [--batch 512] [--dimension 128] [--threads 2]
    [--repeats 60]

One process, losses interleaved round by round so that a drift of the machine hits all alike;
medians of the ratios within a round. The exit status is 1 if a loss costs more than its target.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median

import torch

from hnlib import methods

TARGETS = {  # times the floor, with two threads, 512 pairs and 128 dimensions (DESIGN, section 8)
    "simclr": 1.1,
    "debiased": 1.1,
    "ot": 1.8,
    "unremix": 3.3,
    "chi2-dro": 5.0,
    "hcl": 2.0,
    "bcl": 2.0,
    "h-scl": 2.0,
    "alpha-cl": 1.4,
    "adnce": 1.4,
    "scl": 1.4,
    "h-scl-threshold": 1.4,
}


def floor(z: torch.Tensor, temperature: float = 0.5) -> torch.Tensor:
    return torch.logsumexp(z @ z.T / temperature, 1).mean()


def spread_embeddings(batch: int, dimension: int):
    """Two noisy views of clustered unit vectors, and which cluster: similarities spread as in
    training, not all near zero. What the last layer of the usual projector is given, too."""
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (batch,), generator=g)
    x = torch.randn(10, dimension, generator=g)[labels]
    x = x + torch.randn(batch, dimension, generator=g)
    views = x + 0.5 * torch.randn(2, batch, dimension, generator=g)
    views = torch.nn.functional.normalize(views, dim=2)
    hidden = torch.relu(views @ torch.randn(dimension, 512, generator=g))
    return views, labels, hidden


def cases(views, labels, hidden) -> dict:
    """name → a function of no arguments that makes the loss; "NAME, pairs" is that of as many
    pairs as there are embeddings, a matrix of the same size."""
    z1, z2 = (v.clone().requires_grad_() for v in views)
    queries, keys = (v.requires_grad_() for v in spread_embeddings(2 * len(z1), z1.shape[1])[0])
    made = {}
    for name, entry in methods.CATALOGUE.items():
        method = methods.build(name)
        made[name] = partial(method, z1, z2, labels, tuple(hidden) if entry.features else None)
        if not (entry.supervised or entry.features):
            made[f"{name}, pairs"] = partial(method.pairs, queries, keys)
    return made


def timed(loss) -> float:
    start = time.perf_counter()
    loss().backward()
    return time.perf_counter() - start


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("losses", nargs="*", help="default: all")
    for name, default in {"batch": 512, "dimension": 128, "threads": 2, "repeats": 60}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    examples = spread_embeddings(args.batch, args.dimension)
    every = cases(*examples)
    losses = {name: every[name] for name in args.losses or every}
    z = examples[0].flatten(0, 1).requires_grad_()
    rounds = [
        {name: timed(loss) for name, loss in {"floor": partial(floor, z), **losses}.items()}
        for _ in range(args.repeats + 5)
    ][5:]  # without allocations
    print(f"floor {1e3 * median(one['floor'] for one in rounds):.2f} ms, torch {torch.__version__}")
    failed = False
    for name in losses:
        ratio = median(one[name] / one["floor"] for one in rounds)
        most = TARGETS.get(name.removesuffix(", pairs"), float("inf"))
        print(f"{name:26s} {ratio:5.2f} × floor{' too slow' * (ratio > most)}")
        failed |= ratio > most
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
