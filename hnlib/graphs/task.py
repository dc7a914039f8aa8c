"""Runs on graphs: what is trained, fold by fold where labels are learned from, and the machine that
judges the embeddings."""

from __future__ import annotations

import dataclasses
import statistics
from types import SimpleNamespace

import torch
from torch import nn

from hnlib import methods
from hnlib.graphs import data
from hnlib.graphs.encoders import GIN, embed
from hnlib.graphs.modality import Graphs, build_method, build_model
from hnlib.training import evaluation as readouts
from hnlib.training.config import Execution, GraphRun
from hnlib.training.loop import Course, Loop, asks_for


def method_of(run: GraphRun) -> methods.Method:
    """The method that the run names. ValueError: as in `methods.build`."""
    return build_method(run.framework, run.method, **run.options)


def saved_model(record: dict, state: dict, *modules) -> nn.Module:
    """The model of a saved run, before its weights are loaded."""
    chosen = record["configuration"]
    features = state["encoder.convolutions.0.nn.0.weight"].shape[1]
    layers = int(chosen["encoder"].removeprefix("gin"))
    return build_model(chosen["framework"], features, chosen["hidden"], layers)


def example_inputs(record: dict, encoder: GIN) -> tuple[tuple, tuple]:
    """Inputs of an encoder, and which of their sizes are free."""
    features = encoder.get_parameter("convolutions.0.nn.0.weight").shape[1]
    ring = torch.arange(6)
    edges = torch.stack([ring, (ring + 1) % 3 + ring // 3 * 3])
    nodes, arcs = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    inputs = (torch.zeros(6, features), edges, ring // 3, 2)
    return inputs, ({0: nodes}, {1: arcs}, {0: nodes}, torch.export.Dim.DYNAMIC)


class Task:
    """What a run of graphs trains, and what it measures; `run` says all that was chosen."""

    ROW = frozenset({"epoch", "loss", "svm_folds", "inner_folds", "C"})  # what is read of a row

    def __init__(self, run: GraphRun, execution: Execution, own: SimpleNamespace, method, device):
        self.dataset = own.dataset or data.load(run.dataset, execution.data_root)
        if run.batch_size == 2 and len(self.dataset) % 2:
            raise ValueError(
                f"batch_size=2 leaves one of {len(self.dataset)} graphs alone, without a negative; "
                "use at least 3"
            )
        y = self.dataset.labels
        self.splits = readouts.stratified_folds(y, run.folds, run.seed)
        least = min(int(y[part].unique(return_counts=True)[1].min()) for part, _ in self.splits)
        if least < readouts.INNER_FOLDS:  # before training, not after it
            raise ValueError(
                f"a class has {least} graphs in a training part, fewer than the "
                f"{readouts.INNER_FOLDS} inner folds of the SVM; leave it out"
            )
        named = dict(dataset=self.dataset.name, dataset_digest=self.dataset.digest)
        named |= dict(labels=run.labels if asks_for(method, "supervised") else None)
        self.run = dataclasses.replace(run, **named)
        graphs = Graphs(
            self.dataset,
            y,
            run.batch_size,
            run.framework,
            (run.hidden, run.layers),
            (run.augmentations, run.ratio),
            run.original,
            device,
        )
        self.parts, self.judged = [graphs], {graphs: self.splits}
        if asks_for(method, "supervised") and run.labels == "fold":
            self.judged = {
                dataclasses.replace(
                    graphs, labels=y.index_fill(0, test, -1), title=f"fold {k + 1} of {run.folds}"
                ): [(train, test)]
                for k, (train, test) in enumerate(self.splits)
            }
            self.parts = list(self.judged)

    def look(self, loop: Loop, loss: float | None, rate: float | None) -> dict | None:
        """What the machines of this training's folds say of the embeddings of all graphs."""
        epoch = loop.course.epoch
        if not (loop.due(epoch) or loop.last):
            return None
        x = embed(loop.model.encoder, self.dataset, device=loop.fabric.device)
        y, seed = self.dataset.labels, self.run.seed
        scores = [readouts.svm(x, y, *split, seed=seed) for split in self.judged[loop.modality]]
        row = dict(epoch=epoch, loss=loss, svm=statistics.mean(score.test for score in scores))
        row |= dict(svm_folds=[score.test for score in scores])
        row |= dict(inner_folds=[score.inner for score in scores], C=[score.C for score in scores])
        return row | loop.scheduled

    def measure(self, model: nn.Module, courses: list[Course], device) -> dict:
        """What the record says of the trainings besides the configuration: one row of the history
        for all folds."""
        epochs = set.intersection(*({row["epoch"] for row in c.history} for c in courses))
        kept = [[row for row in c.history if row["epoch"] in epochs] for c in courses]
        history = [_together(rows) for rows in zip(*kept)]
        metrics = {k: v for k, v in history[-1].items() if k not in ("epoch", "loss")}
        seconds = [value for course in courses for value in course.seconds]
        metrics["epoch_seconds"] = round(statistics.median(seconds), 4) if seconds else None
        losses = [statistics.mean(found) for found in zip(*(course.losses for course in courses))]
        return dict(metrics=metrics, history=history, losses=losses, graphs=len(self.dataset))


def _together(rows: tuple[dict, ...]) -> dict:
    """One row for all folds: those that the trainings judged, in their order."""
    lists = {k: [v for row in rows for v in row[k]] for k in ("svm_folds", "inner_folds", "C")}
    losses = [row["loss"] for row in rows]
    loss = None if losses[0] is None else statistics.mean(losses)
    return rows[0] | {"loss": loss, "svm": statistics.mean(lists["svm_folds"])} | lists


def check(run: GraphRun, execution: Execution, own: SimpleNamespace, method) -> None:
    """ValueError: an option that graphs do not have, a method of the other catalogue."""
    usual = GraphRun()
    for name, value, default in (
        ("precision", run.precision, usual.precision),
        ("compile", run.compile, usual.compile),
    ):
        if value != default:
            raise ValueError(f"{name}={value!r} is not for graphs; leave it at {default!r}")
    if run.queue and run.framework == "infograph":
        raise ValueError(
            f"queue={run.queue} needs two views of each graph; use framework='graphcl'"
        )
    if method is None:
        return
    if run.queue and run.labels == "fold":
        raise ValueError(
            f"queue={run.queue} holds graphs whose label is unknown to labels='fold'; use 'all'"
        )
    if not isinstance(method, methods.Method):
        return _check_own(run, method)
    if run.catalogue.get(method.name) != method.entry:
        raise ValueError(
            f"{run.framework} cannot train {method.name!r}; its methods are "
            f"{', '.join(run.catalogue)}"
        )
    learned = method.options.get("learn", "fixed") != "fixed"
    if run.framework == "graphcl" and (method.entry.features or learned):
        raise ValueError(
            f"{method.name} needs the inputs of the last layer or learns a mixture, which graphcl "
            "does not do; choose another method or learn='fixed'"
        )


def _check_own(run: GraphRun, method: nn.Module) -> None:
    """ValueError: a method of one's own that the framework cannot call, or its record not tell."""
    if run.method in run.catalogue:
        raise ValueError(f"{run.method!r} is a method of the catalogue; name your own otherwise")
    if run.framework == "infograph" and not callable(getattr(method, "loss", None)):
        raise ValueError(
            f"infograph calls {run.method}.loss(contrast), which is not there; define it"
        )
    if asks_for(method, "supervised") and run.labels is None:
        raise ValueError(f"{run.method} learns from labels; say labels='fold' or 'all'")
