"""Cost of every loss, forward and backward, as a ratio to the floor `S = z zᵀ/t; logsumexp; mean;
backward`.

    python tests/benchmarks/loss_cost.py [hcl ot …]

512 pairs, 128 dimensions, two threads. Losses take turns, so that a drift of the machine hits all
alike; medians of the ratios within a round. To compare two versions, run it in a worktree of each.
"""

import sys
import time
from functools import partial
from statistics import median

import torch

from hnlib import methods

PAIRS, DIMENSION, WARM, ROUNDS = 512, 128, 5, 60


def main(names: list[str]) -> None:
    torch.set_num_threads(2)
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (PAIRS,), generator=g)
    x = torch.randn(10, DIMENSION, generator=g)[labels]
    x = x + torch.randn(PAIRS, DIMENSION, generator=g)  # clusters as spread as in training
    views = torch.nn.functional.normalize(x + 0.5 * torch.randn(2, *x.shape, generator=g), dim=2)
    hidden = tuple(torch.relu(view @ view.T) for view in views)
    z = views.flatten(0, 1).requires_grad_()
    z1, z2 = (view.clone().requires_grad_() for view in views.detach())
    losses = {"floor": lambda: torch.logsumexp(z @ z.T / 0.5, 1).mean()}
    for name in names or methods.CATALOGUE:
        method = methods.build(name)
        losses[name] = partial(method, z1, z2, labels, hidden if method.entry.features else None)
    times = {name: [] for name in losses}
    for _ in range(WARM + ROUNDS):
        for name, loss in losses.items():
            start = time.perf_counter()
            loss().backward()
            times[name].append(time.perf_counter() - start)
    base = times.pop("floor")[WARM:]
    print(f"{'floor':20s} {1e3 * median(base):7.2f} ms, torch {torch.__version__}")
    for name, spent in times.items():
        ratio = median(a / b for a, b in zip(spent[WARM:], base))
        print(f"{name:20s} {1e3 * median(spent[WARM:]):7.2f} ms  {ratio:5.2f} × floor")


if __name__ == "__main__":
    main(sys.argv[1:])
