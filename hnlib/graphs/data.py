"""Graph data sets: the benchmark sets of PyTorch Geometric, one made here, and graphs of one's
own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from zipfile import BadZipFile

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import ExplainerDataset, TUDataset
from torch_geometric.datasets.graph_generator import BAGraph, TreeGraph
from torch_geometric.datasets.motif_generator import (
    CustomMotif,
    CycleMotif,
    GridMotif,
    HouseMotif,
    MotifGenerator,
)
from torch_geometric.utils import degree, one_hot, to_undirected

from hnlib._files import data_folder

#: The benchmark sets of Morris et al. (2020) that the papers use; "motifs" is made here and needs
#: no download.
TU = ("MUTAG", "PTC_MR", "ENZYMES", "PROTEINS")
TU += ("IMDB-BINARY", "IMDB-MULTI", "NCI1", "DD", "REDDIT-BINARY")
KNOWN = ("motifs", *TU)


# what reading a data set raises where a file is missing, cut off or altered
DAMAGED = (OSError, RuntimeError, LookupError, EOFError, ValueError, UnpicklingError, BadZipFile)


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs with float features `x`, `edge_index` and a class `y` each; `digest` identifies the
    contents."""

    name: str
    graphs: list[Data] = field(repr=False)
    digest: str

    @property
    def labels(self) -> Tensor:
        """$[N]$ int64."""
        return torch.cat([graph.y for graph in self.graphs])

    @property
    def num_features(self) -> int:
        return self.graphs[0].x.shape[1]

    @property
    def num_classes(self) -> int:
        return len(self.labels.unique())

    def __len__(self) -> int:
        return len(self.graphs)


def graph_set(graphs: list[Data], name: str = "graphs") -> GraphSet:
    """Graphs of one's own, checked; without node features they get the degree, as in the papers'
    code.

    That is: one-hot where no degree reaches 1,000, else standardised over all nodes (of directed
    graphs: the out-degree). Attributes of edges are not used. The graphs given are not changed.
    ValueError: fewer than two graphs; a graph of one node, without edges, with an edge to no node,
    or without a label; features that only some graphs have, of different width, or not finite; the
    name of another set.
    """
    if name in KNOWN:
        raise ValueError(
            f"{name} is the name of a known data set; give graphs of your own another one"
        )
    return _graph_set(graphs, name)


def _graph_set(graphs: list[Data], name: str) -> GraphSet:
    if len(graphs) < 2:
        raise ValueError(f"{name} has {len(graphs)} graph(s); a contrast needs at least 2")
    for i, graph in enumerate(graphs):
        if fault := next(_faults(graph), None):
            raise ValueError(f"graph {i} of {name} has {fault}")
    width = {None if graph.x is None else tuple(graph.x.shape[1:]) for graph in graphs}
    if len(width) > 1:
        raise ValueError(
            f"the graphs of {name} have features of widths {sorted(map(str, width))}; give all the "
            "same"
        )
    x = _degrees(graphs) if width == {None} else [graph.x.float() for graph in graphs]
    digest, whole = hashlib.sha256(), []
    for rows, graph in zip(x, graphs, strict=True):
        y = graph.y.reshape(1).long()
        whole.append(Data(x=rows, edge_index=graph.edge_index, y=y))
        for part in (rows, graph.edge_index, y):
            digest.update(np.ascontiguousarray(part.numpy()).tobytes())
    return GraphSet(name, whole, digest.hexdigest()[:12])


def _faults(graph: Data) -> Iterator[str]:
    """What a graph has that it should not, with the remedy; the first is told."""
    if (n := graph.num_nodes) < 2:
        yield f"{n} node(s): node and graph are the same; leave it out"
    if graph.num_edges == 0:
        yield "no edges, so its nodes never hear of each other; leave it out"
    if graph.y is None or graph.y.numel() != 1:
        yield "no label; give each graph one integer y"
    if not (label := graph.y.item()) >= 0 or label % 1:
        yield f"the label {label}; labels are whole numbers from 0"
    if graph.x is not None and graph.x.ndim != 2:
        yield f"features of shape {tuple(graph.x.shape)}; give [nodes, features]"
    if graph.x is not None and not graph.x.isfinite().all():
        yield "features that are not finite; repair or leave it out"
    if not 0 <= int(graph.edge_index.min()) <= int(graph.edge_index.max()) < n:
        yield f"an edge to a node that is not among its {n}; count nodes from 0 in each graph"


def load(name: str = "motifs", root: Path | str | None = None) -> GraphSet:
    """The data set `name`: "motifs" (made here), or one of `TU` under `root/TUDataset`, downloaded
    when first used.

    `root` defaults to `$HNLIB_DATA`, else the user's cache. Node labels are the features, where
    there are any; node attributes are not used, as in the papers. An edge that a file lists twice
    counts once (IMDB-MULTI's are). ValueError: an unknown name, a file that is damaged or cannot be
    downloaded.
    """
    if name == "motifs":
        return _graph_set(motifs(), name)
    if name not in TU:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(KNOWN)}")
    folder = location(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{name}.lock"):  # two runs must not unpack it at once
            for cached in (folder / name / "processed").glob("*.pt"):
                torch.load(cached, weights_only=True)  # PyG would fall back on unpickling anything
            found = TUDataset(str(folder), name)
            every = [found[i] for i in range(len(found))]
    except DAMAGED as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{folder / name} is not a whole TUDataset and could not be made one ({reason}); "
            "delete that folder and try again with a network, or put the files of its archive into "
            "its folder raw"
        ) from error
    return _graph_set(every, name)


def location(root: Path | str | None = None) -> Path:
    """The folder that holds the TUDatasets."""
    return data_folder(root) / "TUDataset"


def describe(dataset: GraphSet) -> str:
    """Sizes and classes of a data set, a line each."""
    nodes = torch.tensor([float(graph.num_nodes) for graph in dataset.graphs])
    edges = torch.tensor([float(graph.num_edges) for graph in dataset.graphs])
    sizes = dataset.labels.unique(return_counts=True)[1].tolist()
    said = {
        "graphs": len(dataset),
        "nodes": f"{nodes.mean():.1f} on average, {nodes.min():.0f} to {nodes.max():.0f}",
        "edges": f"{edges.mean() / 2:.1f} on average",
        "features": dataset.num_features,
        "classes": f"{dataset.num_classes}, of {sizes} graphs",
        "digest": dataset.digest,
    }
    return "\n".join(f"{name:13}{value}" for name, value in said.items())


def _degrees(graphs: list[Data]) -> list[Tensor]:
    degrees = [degree(graph.edge_index[0], graph.num_nodes, torch.long) for graph in graphs]
    every = torch.cat(degrees)
    if (top := int(every.max())) < 1000:
        return [one_hot(d, top + 1) for d in degrees]
    mean, deviation = every.double().mean(), every.double().std()
    return [((d - mean) / deviation).float()[:, None] for d in degrees]


def _motif(*edges: tuple[int, int]) -> CustomMotif:
    both = to_undirected(torch.tensor(edges).T)
    return CustomMotif(Data(edge_index=both, num_nodes=1 + max(map(max, edges))))


# house and K23 have the same degrees, and so have domino and theta: what tells them apart is who is
# joined to whom.
MOTIFS: dict[str, MotifGenerator] = {
    "house": HouseMotif(),
    "K23": _motif((0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)),
    # two squares with a common side
    "domino": _motif((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3)),
    # paths of lengths 2, 2, 3 from 0 to 1
    "theta": _motif((0, 2), (2, 1), (0, 3), (3, 1), (0, 4), (4, 5), (5, 1)),
    "grid": GridMotif(),
    "cycle": CycleMotif(5),
}


def motifs(n: int = 180, seed: int = 0) -> list[Data]:
    """`n` connected graphs without features, in turn of the classes `MOTIFS`: a random tree with 2
    to 4 such motifs.

    The tree is a Barabási–Albert graph of 8 to 14 nodes with one edge a node, or complete with 7,
    13 or 15 nodes; each motif hangs by one edge on a node of its own. A function of `seed`; global
    random states are left as they were. ValueError: fewer than two graphs a class, a negative seed.
    """
    if n < 2 * len(MOTIFS):
        raise ValueError(
            f"n={n} graphs are fewer than two for each of {len(MOTIFS)} classes; "
            f"ask for at least {2 * len(MOTIFS)}"
        )
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative")
    kinds = list(MOTIFS.values())
    with _seeded(seed):
        return [_tree_with(kinds[i % len(kinds)], i % len(kinds)) for i in range(n)]


class _RandomTree(BAGraph):
    """A node of PyG's Barabási–Albert graph may choose itself, and then hangs on nothing: drawn
    until none does."""

    def __call__(self) -> Data:
        while (tree := super().__call__()).num_edges < 2 * (self.num_nodes - 1):
            pass
        return tree


def _tree_with(motif: MotifGenerator, label: int) -> Data:
    trees = [
        _RandomTree(8 + _below(7), 1),
        TreeGraph(*((2, 2), (2, 3), (3, 2))[_below(3)], undirected=True),
    ]
    found = ExplainerDataset(trees[_below(2)], motif, 2 + _below(3))[0]
    y = torch.tensor([label])
    return Data(edge_index=found.edge_index, num_nodes=found.num_nodes, y=y).coalesce()


def _below(n: int) -> int:
    return int(torch.randint(n, ()))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The global generators that PyG's generators draw from, seeded inside and as before
    outside."""
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every GPU
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(state)
