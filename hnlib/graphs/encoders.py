"""Graph encoders, and the embeddings of a whole data set."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

from hnlib.graphs.data import GraphSet
from hnlib.training.evaluation import eval_mode


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


def embed(encoder: nn.Module, dataset: GraphSet, batch_size: int = 256) -> Tensor:
    """Return the embeddings $[N,Lk]$ of all graphs, in eval mode, on the CPU."""
    device = next(encoder.parameters()).device
    parts = []
    with eval_mode(encoder):
        for batch in DataLoader(dataset.graphs, batch_size=batch_size, generator=torch.Generator()):
            batch = batch.to(device)
            _, graphs = encoder(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
            parts.append(graphs.cpu())
    return torch.cat(parts)
