"""What a look of the linter costs, in steps of a training, and how often it speaks on recorded batches.

    python tests/benchmarks/lint_cost.py

Steps: SimCLR's loss on two views of 256 rows behind a perceptron of three layers of 2,048. Batches:
the six of `stages.npz`, each method of the catalogue that learns from views alone, four temperatures.
"""

import itertools
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from hnlib import methods
from hnlib.lint import lint

ROOT = Path(__file__).resolve().parents[2]


def seconds(call, times):
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return median(spent)


def main():
    torch.set_num_threads(1)
    width = (2048, 2048, 2048, 128)
    layers = [x for pair in itertools.pairwise(width) for x in (nn.Linear(*pair), nn.ReLU())]
    model, loss = nn.Sequential(*layers[:-1]), methods.build("simclr", temperature=0.1)
    x = torch.randn(2, 256, 2048)

    def step():
        loss(*(model(view) for view in x)).backward()

    z = [model(view).detach() for view in x]
    look, one = seconds(lambda: lint(loss, *z), 5), seconds(step, 5)
    print(
        f"a look {1e3 * look:.0f} ms, a step {1e3 * one:.0f} ms: {look / one / 10:.2f} % at one in 1,000"
    )
    batches, spoke = 0, []
    for stage in np.load(ROOT / "book/results/stages.npz").values():
        views = torch.from_numpy(stage).float()
        for name, entry in methods.CATALOGUE.items():
            if entry.supervised or entry.features:
                continue
            for t in (0.05, 0.1, 0.2, 0.5) if "temperature" in entry.defaults else (None,):
                method = methods.build(name, **({} if t is None else {"temperature": t}))
                batches += 1
                spoke += [(name, t, str(found))] if (found := lint(method, *views)) else []
    print(f"{len(spoke)} false alarms on {batches} batches", *spoke, sep="\n")


if __name__ == "__main__":
    main()
