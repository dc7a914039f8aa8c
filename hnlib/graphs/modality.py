"""Graphs as the training loop meets them: an epoch's batches, views, the loss of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from hnlib import methods as two_views
from hnlib.contrast import Contrast
from hnlib.graphs import methods, views
from hnlib.graphs.data import GraphSet
from hnlib.graphs.encoders import GIN, GraphCL, InfoGraph

FRAMEWORKS = {"infograph": InfoGraph, "graphcl": GraphCL}


def build_method(framework: str, name: str, /, **options) -> two_views.Method:
    """The method of that name in the framework's catalogue. ValueError: as in `methods.build`."""
    return (methods if framework == "infograph" else two_views).build(name, **options)


def build_model(framework: str, features: int, hidden: int, layers: int) -> InfoGraph | GraphCL:
    """Encoder and heads; linear layers start as in the released code (Xavier, biases zero)."""
    model = FRAMEWORKS[framework](GIN(features, hidden, layers))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


@dataclass(frozen=True, eq=False)
class Graphs:
    """The graphs that are trained on, with the `labels` that may be known (−1: this one is not).

    `sizes`: width and number of layers, as `build_model` takes them; `augmentations`: kinds and
    ratio of `views.view`; `original`: the first view is the graph itself, as GraphCL's released
    code has it. `title`: what the progress bar calls this training.
    """

    dataset: GraphSet
    labels: Tensor
    batch_size: int
    framework: str = "infograph"
    sizes: tuple[int, int] = (32, 3)
    augmentations: tuple = (tuple(views.VIEWS), 0.2)
    original: bool = False
    device: torch.device | str = "cpu"
    title: str = ""

    # Epochs are counted from 1, random numbers drawn on the CPU, and the optimiser's steps are not
    # fused: as when the records were made.
    unit, first_epoch, draws_on, fused = "graph", 1, "cpu", False

    def __len__(self) -> int:
        return len(self.dataset)

    def model(self) -> InfoGraph | GraphCL:
        return build_model(self.framework, self.dataset.num_features, *self.sizes)

    def batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Index vectors of one epoch: a permutation in nearly equal parts."""
        order = torch.randperm(len(self), generator=generator)
        return order.tensor_split(-(-len(order) // self.batch_size))

    def views(self, batch: Tensor, generator: torch.Generator, share: slice) -> tuple:
        """Two views of the graphs for GraphCL, the graphs themselves for InfoGraph."""
        graphs = [self.dataset.graphs[i] for i in batch[share].tolist()]
        whole = Batch.from_data_list(graphs).to(self.device)
        if self.framework == "infograph":
            return (whole,)
        view = partial(views.view, whole, generator, *self.augmentations)
        return (whole if self.original else view(), view())

    def loss(self, model, method, views: tuple, labels, gather: Callable) -> Tensor:
        """The loss of the batch whose `views` these are."""
        if self.framework == "infograph":
            (batch,) = views
            model = getattr(model, "module", model)  # Fabric's wrapper lends out `forward` alone
            nodes, graphs = (gather(rows) for rows in model.embed(batch))
            positives = getattr(method, "options", {}).get("positives", "class")
            known = batch.batch, labels, positives
            return method.loss(Contrast.from_nodes(nodes, graphs, *known))
        z1, z2 = (gather(model(view)) for view in views)
        if labels is not None:  # an unknown label is a class of its own
            alone = -1 - torch.arange(len(labels), device=labels.device)
            labels = torch.where(labels < 0, alone, labels)
        return method(z1, z2, labels)

    def mean_loss(self, losses: Tensor, batches: Sequence[Tensor]) -> float:
        return float(sum(loss * len(part) for loss, part in zip(losses, batches))) / len(self)
