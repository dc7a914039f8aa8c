"""Record time and memory of streamed pairs beside sentence-transformers' cached loss.

`python book/recorders/streamed_cost.py [pairs [rounds]]` writes `streamed.json`, on Linux.

`CachedMultipleNegativesRankingLoss` and `HardNegatives("simclr")`, the same loss at a scale of 20,
forward and backward through a linear encoder of 384 dimensions, in one process and one thread. They
take turns; the medians of the ratios within a round count. Theirs has one size for the texts that
are embedded and for the rows of the matrix; we take the same for the texts. Peak: that of resident
memory over what was resident before.
"""

import ctypes
import gc
import re
import sys
import time
from pathlib import Path
from statistics import median

import ledgers
import torch

from hnlib.images import _torchvision  # noqa: F401, in case it was built for another torch
from hnlib.integrations.sentence_transformers import HardNegatives
from hnlib.training import records

DIMENSION, SIZE = 384, 256


class Encoder(torch.nn.Sequential):
    """Stands where a SentenceTransformer would: from features to embeddings."""

    def forward(self, features):
        return features | {"sentence_embedding": super().forward(features["input_ids"])}


def resident(name):
    """Megabytes of this process, "VmRSS" now or "VmHWM" at its peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 2**10


def step(loss, columns):
    """Seconds and megabytes of a step, and its gradient."""
    loss.model.zero_grad(set_to_none=True)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, start = resident("VmRSS"), time.perf_counter()
    loss(columns, None).backward()
    spent = time.perf_counter() - start
    return spent, resident("VmHWM") - before, loss.model[0].weight.grad


def measured(pairs: int = 32768, rounds: int = 3) -> dict:
    """Return seconds and megabytes of both losses, and the medians of the ratios of a round."""
    from sentence_transformers.sentence_transformer import losses

    torch.manual_seed(0)
    x = torch.randn(2, pairs, DIMENSION)
    x[1] += x[0]
    columns = [{"input_ids": view} for view in x]
    model = Encoder(torch.nn.Linear(DIMENSION, DIMENSION))
    theirs = losses.CachedMultipleNegativesRankingLoss.__new__(
        losses.CachedMultipleNegativesRankingLoss
    )
    torch.nn.Module.__init__(theirs)  # their constructor asks what modules the model has
    theirs.model, theirs.mini_batch_num_tokens, theirs.show_progress_bar = model, None, False
    theirs.loss, theirs.mini_batch_size = losses.MultipleNegativesRankingLoss(model), SIZE
    ours = HardNegatives(model, "simclr", mini_batch_size=SIZE)
    turns = []
    for turn in range(rounds):
        both = (ours, theirs) if turn % 2 else (theirs, ours)
        found = [step(loss, columns) for loss in both]
        turns.append(found if turn % 2 else found[::-1])
        gap = (found[0][2] - found[1][2]).abs().max() / found[0][2].abs().max()
        assert gap < 1e-4, f"not the same gradient: {gap}"
    record: dict = {"hardware": records.environment(torch.device("cpu"))["hardware"]}
    record |= {"pairs": pairs, "dimension": DIMENSION, "texts at a time": SIZE, "rounds": rounds}
    for i, what in enumerate(("seconds", "megabytes")):
        each = [[float(one[i]) for one in found] for found in turns]
        record[what] = {x: round(median(y), 1) for x, y in zip(("ours", "theirs"), zip(*each))}
        record[what]["ratio"] = round(median(a / b for a, b in each), 2)
    return record


if __name__ == "__main__":
    ledgers.record("streamed.json", lambda: measured(*map(int, sys.argv[1:])))
