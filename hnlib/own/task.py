"""A training of a task of your own, and its scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hnlib.own import data
from hnlib.own.config import OwnRun
from hnlib.training import task
from hnlib.training.loop import Diverged


class Loss(nn.Module):
    """A method as your task gets it: called as loss(a, b), it is the method's loss of pairs."""

    def __init__(self, method):
        super().__init__()
        self.method, self.name, self.options = method, method.name, method.options
        self.pairs = method.pairs

    def forward(self, a: Tensor, b: Tensor, labels: Tensor | None = None, **_) -> Tensor:
        """Return the loss of queries a [n, d] whose answers are the keys b [n, d] of their rows."""
        return self.method.pairs(a, b)


class Task(task.Task):
    """One call of your file's `train`; the loop has no model and takes no step."""

    fused = False

    def __init__(self, run: OwnRun, method=None, device="cpu", data_root=None):
        self.run, self.method, self.names = run, method, data.load(run.dataset, data_root)

    def model(self) -> nn.Module:
        """Return a module without weights: what is trained stays in your file."""
        return nn.Module()

    def measure(self, model: nn.Module, trainings: list, device) -> dict:
        """Train, and return the scores by query; of a training that diverged, None.

        It raised `Diverged`, or no score is a number.
        """
        run, names = self.run, self.names
        try:
            loss = Loss(self.method)
            found = names["train"](loss, run.options, run.lr, names["STEPS"], run.seed)
        except Diverged:
            found = [torch.nan]
        scores = torch.as_tensor(found, dtype=torch.float64).flatten()
        record: dict = {"metrics": {"score": None}, "history": [], "losses": []}
        if len(scores) and scores.isnan().all():
            return record
        if len(scores) < 2 or not (scores.min() >= 0 and scores.max() <= 1):
            raise ValueError(
                f"train of {run.dataset} must return a score from 0 to 1 for each of two or more "
                f"test queries, got {scores[:3].tolist()}"
            )
        measured = {"metrics": {"score": float(scores.mean())}}
        return record | measured | {"correct": {"score": scores.tolist()}}
