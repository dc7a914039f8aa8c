"""Cost of every loss, forward and backward, as a ratio to the floor `S = z zᵀ/t; logsumexp; mean; backward`.

    python tests/benchmarks/loss_cost.py [--batch 512] [--dimension 128] [--threads 2] [--repeats 60]

One process, losses interleaved round by round so that a drift of the machine hits all alike; medians of the ratios.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from functools import partial

import torch

from hnlib import methods


def floor(z: torch.Tensor, temperature: float = 0.5) -> torch.Tensor:
    return torch.logsumexp(z @ z.T / temperature, 1).mean()


def spread_embeddings(batch: int, dimension: int, seed: int = 0):
    """Two noisy views of clustered unit vectors: similarities spread as in training, not all near zero."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, dimension, generator=g)
    x = centres[torch.randint(10, (batch,), generator=g)] + torch.randn(batch, dimension, generator=g)
    views = [x + 0.5 * torch.randn(batch, dimension, generator=g) for _ in range(2)]
    return [torch.nn.functional.normalize(v, dim=1) for v in views], torch.randint(10, (batch,), generator=g)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in dict(batch=512, dimension=128, threads=2, repeats=60).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    (v1, v2), labels = spread_embeddings(args.batch, args.dimension)
    z1, z2 = v1.clone().requires_grad_(), v2.clone().requires_grad_()
    z = torch.cat([v1, v2]).requires_grad_()

    cases = {"floor": lambda: floor(z)}
    built = {name: methods.build(name) for name in methods.CATALOGUE}
    built["hcl, detached"] = methods.build("hcl", weights_gradient=False)
    built["kl-budget, order 3"] = methods.build("kl-budget", order=3)
    hidden = [torch.relu(v @ torch.randn(args.dimension, 512, generator=torch.Generator().manual_seed(1)))
              for v in (v1, v2)]  # what the last layer of the usual projector is given
    cases |= {name: partial(method, z1, z2, labels, hidden if method.entry.features else None)
              for name, method in built.items()}

    times = {name: [] for name in cases}
    for _ in range(args.repeats + 5):
        for name, loss in cases.items():
            z.grad = z1.grad = z2.grad = None
            start = time.perf_counter()
            loss().backward()
            times[name].append(time.perf_counter() - start)
    print(f"B={args.batch} pairs, d={args.dimension}, float32, {args.threads} threads, torch {torch.__version__}, "
          f"{platform.processor() or platform.machine()}")
    base = times["floor"][5:]
    for name, spent in times.items():
        ratio = statistics.median(a / b for a, b in zip(spent[5:], base, strict=True))
        print(f"{name:18s} {1e3 * statistics.median(spent[5:]):7.2f} ms   {ratio:5.2f} x floor")


if __name__ == "__main__":
    main()
