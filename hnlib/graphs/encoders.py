"""Graph encoders, the two ways to contrast with them, and the embeddings of a whole data set."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

from hnlib.contrast import Contrast
from hnlib.graphs.data import GraphSet
from hnlib.graphs.methods import from_nodes
from hnlib.training import evaluation


class GIN(nn.Module):
    r"""Graph isomorphism network: `(x, edge_index, batch, m)` to nodes and graphs $[\cdot,Lk]$.

    Layer $l$: $h_u\leftarrow\mathrm{BN}\big(\mathrm{relu}\,\mathrm{MLP}_l(h_u+\sum_{v\sim
    u}h_v)\big)$, width $k$ = `hidden`; a node's embedding is the concatenation of all $L$ =
    `layers` outputs, a graph's embedding is the sum over its nodes. Source: Xu et al. (2019), eq.
    (4.1); order and sizes as in InfoGraph's and hcl's released code.
    """

    def __init__(self, features: int, hidden: int = 32, layers: int = 3):
        super().__init__()
        widths = [features, *[hidden] * (layers - 1)]
        self.convolutions = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
            for width in widths
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in widths)
        self.feature_dim = hidden * layers

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor, m: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the embeddings of nodes and of graphs."""
        layers = []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x, edge_index).relu())
            layers.append(x)
        nodes = torch.cat(layers, 1)
        return nodes, global_add_pool(nodes, batch, m)


class Head(nn.Module):
    """A discriminator of InfoGraph: three layers of one width with ReLU, and a linear shortcut."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            *[layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
        )
        self.shortcut = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the transformed embeddings."""
        return self.layers(x) + self.shortcut(x)


class InfoGraph(nn.Module):
    r"""Encoder with two heads: a batch to its `Contrast` with scores $\langle h_u,H_G\rangle$.

    Source: Sun et al. (2020).
    """

    def __init__(self, encoder: GIN):
        super().__init__()
        self.encoder = encoder
        self.local, self.whole = Head(encoder.feature_dim), Head(encoder.feature_dim)

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return $h_u$ of every node $[n,Lk]$ and $H_G$ of every graph $[m,Lk]$."""
        nodes, graphs = embed_batch(self.encoder, batch)
        return self.local(nodes), self.whole(graphs)

    def forward(self, batch: Batch) -> Contrast:
        """Return the contrast of a batch."""
        return from_nodes(*self.embed(batch), batch.batch)


class GraphCL(nn.Module):
    """Encoder with a projector of two layers: a batch to the embeddings $[m,Lk]$ of its graphs.

    Source: You et al. (2020).
    """

    def __init__(self, encoder: GIN):
        super().__init__()
        k = encoder.feature_dim
        self.encoder = encoder
        self.projector = nn.Sequential(nn.Linear(k, k), nn.ReLU(), nn.Linear(k, k))

    def forward(self, batch: Batch) -> Tensor:
        """Return the embeddings of the graphs."""
        return self.projector(embed_batch(self.encoder, batch)[1])


def embed_batch(encoder: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the nodes and of the graphs of a batch."""
    return encoder(batch.x, batch.edge_index, batch.batch, batch.num_graphs)


FRAMEWORKS = {"infograph": InfoGraph, "graphcl": GraphCL}


def build(framework: str, features: int, hidden: int, layers: int) -> InfoGraph | GraphCL:
    """Return encoder and heads; linear layers start as in the released code."""
    model = FRAMEWORKS[framework](GIN(features, hidden, layers))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def embed(encoder: nn.Module, dataset: GraphSet, batch_size: int = 256) -> Tensor:
    """Return the embeddings $[N,Lk]$ of all graphs, in eval mode, on the CPU."""
    batches = DataLoader(dataset.graphs, batch_size=batch_size, generator=torch.Generator())
    return evaluation.embed(encoder, batches, lambda batch: embed_batch(encoder, batch)[1]).cpu()
