"""Time losses of three libraries in one process: `python book/recorders/costs.py` writes `costs.json`.

Forward and backward, 128 pairs, float32, one thread, half a minute; the machine should do nothing
else. Losses take turns, so that a slow moment hits all alike; the fastest of 50 turns counts. Beside
them is the floor of a loss with as many similarities, `torch.logsumexp(z @ z.T / t, 1).mean()`,
2B × 2B. Losses are called as in `loss_profiles.py`; a library that is not installed is left out.
"""

import importlib.metadata
import time
from functools import partial

import ledgers
import loss_profiles
import torch
from torch import Tensor
from torch.nn import functional

from hnlib.training import records

BATCH, DIMENSION, REPEATS, WARM = 128, 128, 50, 2
PML, LIGHTLY = "pytorch-metric-learning", "lightly"
LOSSES = {  # what is computed: library and name in loss_profiles.py
    "InfoNCE": [("hnlib", "simclr"), (LIGHTLY, "NTXentLoss"), (PML, "NTXentLoss")],
    "DCL": [("hnlib", "dcl"), (LIGHTLY, "DCLLoss")],
    "labels": [("hnlib", "scl"), (PML, "SupConLoss")],
    "hard negatives": [
        *(("hnlib", name) for name in ("hcl held", "hcl", "ot", "unremix")),
        *((PML, name) for name in ("MultiSimilarityLoss", "CircleLoss")),
    ],
}


def embeddings() -> tuple[Tensor, Tensor]:
    """Return two noisy views [B, d] of unit vectors in ten clusters."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(10, DIMENSION, generator=g)[torch.randint(10, (BATCH,), generator=g)]
    x = x + torch.randn(BATCH, DIMENSION, generator=g)
    views = x + 0.5 * torch.randn(2, BATCH, DIMENSION, generator=g)
    return tuple(view.requires_grad_() for view in functional.normalize(views, dim=2))


def floor(z: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the mean soft maximum of the similarities of the rows of `z` [n, d]."""
    return torch.logsumexp(z @ z.T / temperature, 1).mean()


def calls(a: Tensor, b: Tensor) -> dict[tuple, partial]:
    """Return, by what is computed, library and name, what makes each loss of the batch."""
    both = torch.cat([a, b]).detach().requires_grad_()
    mixed = torch.stack([a, b], 1).flatten(0, 1).detach().requires_grad_()
    labels = torch.arange(len(a)).repeat_interleave(2)
    built = {(library, name): build for library, name, build in loss_profiles.rows()}
    found = {("floor", "torch", "floor"): partial(floor, both)}
    for what, several in LOSSES.items():
        for library, name in several:
            if loss_profiles.available(library):
                loss, labelled = built[library, name]()
                points = (mixed, labels) if labelled else (a, b)
                found[what, library, name] = partial(loss, *points)
    return found


def timed() -> list[dict]:
    """Return the rows, in milliseconds."""
    losses_of = calls(*embeddings())
    times = {key: [] for key in losses_of}
    for repeat in range(REPEATS + WARM):
        for key in list(losses_of)[:: 1 if repeat % 2 else -1]:
            start = time.perf_counter()
            losses_of[key]().backward()
            times[key].append(time.perf_counter() - start)
    rows = []
    for (what, library, name), spent in times.items():
        minimum = float(f"{1e3 * min(spent[WARM:]):.3g}")
        rows.append(dict(what=what, library=library, loss=name, minimum=minimum))
    return rows


def measured() -> dict:
    """Return the rows and what they were measured with."""
    rows = timed()
    libraries = sorted({row["library"] for row in rows} - {"hnlib"})
    return dict(
        hardware=records.environment()["hardware"],
        versions={name: importlib.metadata.version(name) for name in libraries},
        batch=BATCH,
        dimension=DIMENSION,
        repeats=REPEATS,
        rows=rows,
    )


if __name__ == "__main__":
    ledgers.record("costs.json", measured)
