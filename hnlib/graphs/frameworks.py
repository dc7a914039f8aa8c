"""The two ways to contrast with a graph encoder: InfoGraph and GraphCL."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.data import Batch

from hnlib.contrast import Contrast
from hnlib.graphs.encoders import GIN
from hnlib.graphs.methods import from_nodes


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
        nodes, graphs = self.encoder(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
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
        _, graphs = self.encoder(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
        return self.projector(graphs)
