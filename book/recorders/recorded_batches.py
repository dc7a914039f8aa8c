"""Record batches as a loss saw them: `python book/recorders/recorded_batches.py` writes `stages.npz`.

Of one training on CIFAR-10 and one on SciFact: the first `PAIRS` pairs of the first batch, of one
half-way and of the last, as unit embeddings [2, pairs, d] in half precision. `hnlib profile` looks
at losses there. One thread, four minutes.
"""

import io

import ledgers
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hnlib import methods
from hnlib.images.config import ImageRun
from hnlib.retrieval.config import RetrievalRun
from hnlib.training.train import train

PAIRS = 32  # as many as a profile takes in the 128 dimensions of the images' embeddings
STAGES = ("early", "middle", "late")
RUNS = (
    (ImageRun(dataset="cifar10", train_size=10_000, epochs=10, evaluate_size=100), 0.5),
    (RetrievalRun(dataset="scifact", vocabulary=8192, lr=0.1, epochs=3, max_steps=100), 0.05),
)


class Seen(nn.Module):
    """SimCLR's loss, which hands over the embeddings that it is given, [2, pairs, d]."""

    def __init__(self, temperature: float, keep):
        super().__init__()
        self.method, self.keep = methods.build("simclr", temperature=temperature), keep

    def forward(self, z1, z2, labels=None):
        """Return the loss of two views."""
        self._see(z1, z2)
        return self.method(z1, z2)

    def loss(self, contrast):
        """Return the loss of queries and keys."""
        self._see(contrast.anchors, contrast.candidates)
        return self.method.loss(contrast)

    def _see(self, *views):
        views = [functional.normalize(z[:PAIRS].detach().float()) for z in views]
        self.keep(torch.stack(views).half().numpy())


def stages(run, temperature: float) -> dict[str, np.ndarray]:
    """Train, and return the batches of the three stages by name."""
    seen = []
    method = Seen(temperature, seen.append)
    train(run, method=method, evaluate_every=0, device="cpu", progress=False)
    chosen = (seen[0], seen[len(seen) // 2], seen[-1])
    return {f"{run.dataset} {stage}": z for stage, z in zip(STAGES, chosen)}


def measured() -> bytes:
    """Return the batches of both as a file of arrays."""
    batches = {}
    for run, temperature in RUNS:
        batches |= stages(run, temperature)
    file = io.BytesIO()
    np.savez_compressed(file, **batches)
    return file.getvalue()


if __name__ == "__main__":
    ledgers.record("stages.npz", measured)
