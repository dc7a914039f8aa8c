"""Time and memory of a step of streamed pairs, beside sentence-transformers' cached loss.

    python tests/benchmarks/streamed_cost.py [pairs [rounds [size …]]]

`CachedMultipleNegativesRankingLoss` and `HardNegatives("simclr")`, the same loss at a scale of 20,
forward and backward through a linear encoder of 384 dimensions, in one process. They take turns;
the medians of the ratios within a round are printed. Theirs has one size for the texts that are
embedded and for the rows of the matrix, 32 by default; we take the same for the texts.
Peak: that of resident memory over what was resident before, on Linux.
"""

import ctypes
import gc
import re
import sys
import time
from pathlib import Path
from statistics import median

import torch

from hnlib.images import _torchvision  # noqa: F401, in case it was built for another torch
from hnlib.integrations.sentence_transformers import HardNegatives

DIMENSION = 384


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


def main(pairs=4096, rounds=3, *sizes):
    from sentence_transformers.sentence_transformer import losses

    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(2, pairs, DIMENSION)
    x[1] += x[0]
    columns = [{"input_ids": view} for view in x]
    model = Encoder(torch.nn.Linear(DIMENSION, DIMENSION))
    theirs = losses.CachedMultipleNegativesRankingLoss.__new__(
        losses.CachedMultipleNegativesRankingLoss
    )
    torch.nn.Module.__init__(theirs)  # their constructor asks what modules the model has
    theirs.model, theirs.mini_batch_num_tokens, theirs.show_progress_bar = model, None, False
    theirs.loss = losses.MultipleNegativesRankingLoss(model)
    for size in sizes or (32, 256):
        theirs.mini_batch_size = size
        ours = HardNegatives(model, "simclr", mini_batch_size=size)
        measured = []
        for turn in range(rounds):
            both = (ours, theirs) if turn % 2 else (theirs, ours)
            found = [step(loss, columns) for loss in both]
            measured.append(found if turn % 2 else found[::-1])
            gap = (found[0][2] - found[1][2]).abs().max() / found[0][2].abs().max()
            assert gap < 1e-4, f"not the same gradient: {gap}"
        seconds, memory = ([[one[i] for one in found] for found in measured] for i in range(2))
        print(
            f"{pairs} pairs, {size} texts at a time: "
            f"ours {median(s[0] for s in seconds):.1f} s and {median(m[0] for m in memory):.0f} MB, "
            f"theirs {median(s[1] for s in seconds):.1f} s and {median(m[1] for m in memory):.0f} MB; "
            f"{median(a / b for a, b in seconds):.2f} × the time, "
            f"{median(a / b for a, b in memory):.2f} × the memory",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
