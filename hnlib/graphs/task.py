"""The model that a run on graphs trains, and its measurements."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from hnlib import methods as two_views
from hnlib.graphs import data, encoders, methods, views
from hnlib.graphs.config import GraphRun
from hnlib.training import evaluation, task
from hnlib.training.loop import needs, under_torchrun


class Task(task.Task):
    """Nodes against graphs, or two views of each graph; with labels, one training per fold.

    `labels` holds −1 for a test graph. Epochs count from 1, random numbers are drawn on the CPU and
    the steps are not fused, as when the records were made.
    """

    unit, first_epoch, fused = "graph", 1, False

    def __init__(self, run: GraphRun, method=None, device="cpu", data_root=None, dataset=None):
        _check(run, method)
        self.dataset = dataset or data.load(run.dataset, data_root)
        labels = run.labels if needs(method, "supervised") else None
        super().__init__(run, self.dataset, device, labels=labels)
        self.labels = self.dataset.labels
        self.splits = evaluation.stratified_folds(self.labels, run.folds, run.seed)

    def _fold(self, k: int) -> Task:
        """Return the training that does not see the labels of a fold's test graphs."""
        fold, (_, test) = copy.copy(self), self.splits[k]
        fold.splits, fold.labels = [self.splits[k]], self.labels.index_fill(0, test, -1)
        fold.title = f"fold {k + 1} of {self.run.folds}"
        return fold

    @property
    def parts(self) -> list[task.Task]:
        """The trainings of the run: one, or one for each fold."""
        if self.run.labels != "fold":
            return [self]
        return [self._fold(k) for k in range(self.run.folds)]

    def __len__(self) -> int:
        return len(self.dataset)

    def model(self) -> nn.Module:
        """Return a model with random weights."""
        run = self.run
        return encoders.build(run.framework, self.dataset.num_features, run.hidden, run.layers)

    def batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Return a permutation in nearly equal parts."""
        order = torch.randperm(len(self), generator=generator)
        return order.tensor_split(-(-len(order) // self.run.batch_size))

    def views(self, batch: Tensor, generator: torch.Generator, share: slice) -> task.Views:
        """Return two views of the graphs for GraphCL, the graphs themselves for InfoGraph."""
        graphs = [self.dataset.graphs[i] for i in batch[share].tolist()]
        originals = Batch.from_data_list(graphs).to(self.device)
        if self.run.framework == "infograph":
            return task.Views(originals)
        view = partial(views.view, originals, generator, self.run.augmentations, self.run.ratio)
        return task.Views(originals if self.run.original else view(), view())

    def loss(self, model, method, views: task.Views, labels, gather: Callable) -> Tensor:
        """Return the loss of the whole batch; `gather` collects the rows of all processes."""
        if self.run.framework == "infograph":
            batch = views.first
            model = getattr(model, "module", model)  # Fabric wraps `forward` alone
            nodes, graphs = (gather(rows) for rows in model.embed(batch))
            positives = getattr(method, "options", {}).get("positives", "class")
            contrast = methods.from_nodes(nodes, graphs, batch.batch, labels, positives)
            return method.loss(contrast)
        z1, z2 = gather(model(views.first)), gather(model(views.second))
        if labels is not None:  # an unknown label is a class by itself
            alone = -1 - torch.arange(len(labels), device=labels.device)
            labels = torch.where(labels < 0, alone, labels)
        return method(z1, z2, labels)

    def mean_loss(self, losses: Tensor, batches: Sequence[Tensor]) -> float:
        """Return the mean over the graphs of an epoch."""
        return float(sum(loss * len(part) for loss, part in zip(losses, batches))) / len(self)

    def evaluate(self, loop, loss: float | None, rate: float | None) -> dict | None:
        """Return the accuracies of an SVM on the embeddings of all graphs, for the folds."""
        if not (loop.should_evaluate(loop.progress.epoch) or loop.finished):
            return None
        x = encoders.embed(loop.model.encoder, self.dataset)
        y, seed = self.dataset.labels, self.run.seed
        scores = [evaluation.svm(x, y, *split, seed=seed) for split in self.splits]
        accuracies, inner, penalties = map(list, zip(*scores))
        return {
            "epoch": loop.progress.epoch,
            "loss": loss,
            "svm": statistics.mean(accuracies),
            "svm_folds": accuracies,
            "inner_folds": inner,
            "C": penalties,
        } | loop.scheduled

    def measure(self, model: nn.Module, trainings: list, device) -> dict:
        """Return metrics and history, with one row for all folds."""
        epochs = set.intersection(*({row["epoch"] for row in c.history} for c in trainings))
        shared = [[row for row in c.history if row["epoch"] in epochs] for c in trainings]
        history = [_together(rows) for rows in zip(*shared)]
        metrics = {k: v for k, v in history[-1].items() if k not in ("epoch", "loss")}
        losses = [
            statistics.mean(epoch) for epoch in zip(*(training.losses for training in trainings))
        ]
        return dict(metrics=metrics, history=history, losses=losses, graphs=len(self.dataset))

    @staticmethod
    def saved_model(record: dict, state: dict, encoder=None) -> nn.Module:
        """Return the model of a saved run, before its weights are loaded."""
        run = GraphRun.read(record["configuration"])
        features = state["encoder.convolutions.0.nn.0.weight"].shape[1]
        return encoders.build(run.framework, features, run.hidden, run.layers)


def _together(rows: tuple[dict, ...]) -> dict:
    """Return one row for all folds."""
    lists = {k: [v for row in rows for v in row[k]] for k in ("svm_folds", "inner_folds", "C")}
    losses = [row["loss"] for row in rows]
    loss = None if losses[0] is None else statistics.mean(losses)
    return rows[0] | {"loss": loss, "svm": statistics.mean(lists["svm_folds"])} | lists


def _check(run: GraphRun, method) -> None:
    """Check that the method belongs to the framework and to the other options."""
    if run.framework == "infograph" and under_torchrun():
        raise ValueError(  # processes would have unlike numbers of nodes
            "infograph compares nodes with the graphs of one process; run it without torchrun"
        )
    if run.queue and run.framework == "infograph":
        raise ValueError(f"queue={run.queue} requires framework='graphcl'")
    if run.queue and run.labels == "fold":
        raise ValueError(f"queue={run.queue} requires labels='all': it holds test graphs")
    if method is None:
        return
    if not isinstance(method, two_views.Method):
        if needs(method, "supervised") and run.labels is None:
            raise ValueError(f"{run.method} learns from labels; pass labels='fold' or 'all'")
    elif run.catalogue.get(method.name) != method.entry:
        raise ValueError(f"{run.framework} has no method {method.name!r}")
