"""Time of one epoch of InfoGraph, as a ratio to a plain loop on PyTorch Geometric with uniform
negatives.

    python tests/benchmarks/graph_cost.py [--dataset PROTEINS] [--batch 128] [--threads 1]
    [--repeats 7]

The plain loop has the same encoder, batches and optimiser; its loss is the textbook one, a mask and
two means. One process, epochs interleaved so that a drift of the machine hits all alike; medians of
the ratios.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from functools import partial

import torch
import torch_geometric
from torch.nn.functional import one_hot, softplus
from torch_geometric.loader import DataLoader

from hnlib import graphs

CASES = {
    "infograph": {},
    "debiased": {},
    "hcl": {},
    "ot": {},
    "ot, ε = 0.05": {"epsilon": 0.05},
    "scl": {},
    "h-scl": {},
}


def plain(model, batch):
    nodes, whole = model.encoder(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
    score = model.local(nodes) @ model.whole(whole).T
    own = one_hot(batch.batch, batch.num_graphs)
    n, m = score.shape
    return (softplus(-score) * own).sum() / n + (softplus(score) * (1 - own)).sum() / (n * (m - 1))


def ours(method, model, batch):
    return method.loss(model(batch, batch.y if method.entry.supervised else None))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="PROTEINS")
    for name, default in dict(batch=128, threads=1, repeats=7).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dataset = graphs.data.load(args.dataset)
    losses = {"plain loop": plain} | {
        name: partial(ours, graphs.methods.build(name.partition(",")[0], **options))
        for name, options in CASES.items()
    }
    models, times = {}, {name: [] for name in losses}
    for name in losses:
        torch.manual_seed(0)
        models[name] = graphs.encoders.InfoGraph(graphs.encoders.GIN(dataset.num_features))
        models[name].optimiser = torch.optim.Adam(models[name].parameters(), lr=1e-3)
    for _ in range(args.repeats + 1):
        for name, loss in losses.items():
            start = time.perf_counter()
            for batch in DataLoader(dataset.graphs, args.batch, shuffle=True):
                models[name].optimiser.zero_grad()
                loss(models[name], batch).backward()
                models[name].optimiser.step()
            times[name].append(time.perf_counter() - start)
    print(
        f"{args.dataset}, batches of {args.batch} graphs, float32, {args.threads} threads, torch "
        f"{torch.__version__}, PyTorch Geometric {torch_geometric.__version__}, "
        f"{platform.processor() or platform.machine()}"
    )
    for name, spent in times.items():
        ratio = [
            statistics.median(a / b for a, b in zip(spent[1:], times[base][1:], strict=True))
            for base in ("plain loop", "infograph")
        ]
        print(
            f"{name:14s} {statistics.median(spent[1:]):7.3f} s  {ratio[0]:5.2f} x plain  {ratio[1]:5.2f} x infograph"
        )


if __name__ == "__main__":
    main()
