"""Graph data sets: the benchmark sets of the papers, one generated here, and your own graphs."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hnlib._checks import one_of
from hnlib._files import data_folder, download

try:
    from torch_geometric import utils
    from torch_geometric.data import Data, extract_zip
    from torch_geometric.data.separate import separate
    from torch_geometric.datasets import ExplainerDataset
    from torch_geometric.datasets import motif_generator as generators
    from torch_geometric.datasets.graph_generator import BAGraph, TreeGraph
    from torch_geometric.io import read_tu_data
except ModuleNotFoundError as error:
    text = "graphs need PyTorch Geometric; pip install 'hnlib[graphs]'"
    raise ModuleNotFoundError(text, name=error.name) from error

#: The benchmark sets of Morris et al. (2020) that the papers use, and their digests
TU = {
    "MUTAG": "6e3535d22380",
    "PTC_MR": "37abb5e1a770",
    "ENZYMES": "48009bdbc256",
    "PROTEINS": "fa235a360312",
    "IMDB-BINARY": "c600fd5fbf4c",
    "IMDB-MULTI": "77642e310867",
    "NCI1": "7eaf7fb0c057",
    "DD": "04b2f042fc32",
    "REDDIT-BINARY": "0740ed72961c",
}
NAMES = ("motifs", *TU)
SOURCE = "https://www.chrsmrrs.com/graphkerneldatasets/{}.zip"


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs with float `x`, `edge_index` and a class `y` each; the digest is that of these."""

    name: str
    graphs: list[Data] = field(repr=False)
    digest: str

    @property
    def labels(self) -> Tensor:
        """Return the class of each graph $[N]$, int64."""
        return torch.cat([graph.y for graph in self.graphs])

    @property
    def num_features(self) -> int:
        """Return the width of the features."""
        return self.graphs[0].x.shape[1]

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.labels.unique())

    def __len__(self) -> int:
        """Return the number of graphs."""
        return len(self.graphs)


def graph_set(graphs: list[Data], name: str = "graphs") -> GraphSet:
    """Make a set of your own graphs; where features are missing, degrees replace them.

    As in the papers' code: degrees are one-hot where none reaches 1,000, else standardised over all
    nodes (of directed graphs: the out-degree). Attributes of edges are not used. The graphs given
    are not changed.
    """
    for i, graph in enumerate(graphs):
        _check(graph, f"graph {i} of {name}")
    widths = {None if graph.x is None else graph.x.shape[1] for graph in graphs}
    if len(graphs) < 2 or len(widths) > 1:
        raise ValueError(
            f"{name} has {len(graphs)} graphs with features of widths {widths}; give at least 2 "
            "graphs with features of one width"
        )
    return _graph_set(graphs, name)


def _check(graph: Data, name: str) -> None:
    if graph.num_nodes < 2 or graph.num_edges == 0:
        raise ValueError(f"{name} needs at least 2 nodes and an edge; leave it out")
    if not isinstance(graph.y, Tensor) or graph.y.numel() != 1 or graph.y.item() < 0:
        raise ValueError(f"{name} needs one integer label y from 0, got {graph.y}")
    if int(graph.edge_index.min()) < 0 or int(graph.edge_index.max()) >= graph.num_nodes:
        raise ValueError(f"{name} has an edge to a node outside 0 to {graph.num_nodes - 1}")
    if graph.x is not None and not graph.x.isfinite().all():
        raise ValueError(f"{name} has features that are not finite")


def _graph_set(graphs: list[Data], name: str) -> GraphSet:
    features = [graph.x.float() for graph in graphs if graph.x is not None] or _degrees(graphs)
    digest, complete = hashlib.sha256(), []
    for x, graph in zip(features, graphs, strict=True):
        y = graph.y.reshape(1).long()
        complete.append(Data(x=x, edge_index=graph.edge_index, y=y))
        for part in (x, graph.edge_index, y):
            digest.update(np.ascontiguousarray(part.numpy()).tobytes())
    return GraphSet(name, complete, digest.hexdigest()[:12])


def load(name: str = "motifs", root: Path | str | None = None) -> GraphSet:
    """Load "motifs" (made here) or one of `TU`, downloaded to `root/TUDataset/NAME/raw`.

    `root` defaults to `$HNLIB_DATA`, else the user's cache. Node labels are the features, where
    there are any; node attributes are not used, as in the papers. An edge that a file lists twice
    counts once (IMDB-MULTI's are). Only text files are read, and the result must have the
    published digest.
    """
    if name == "motifs":
        return _graph_set(motifs(), name)
    one_of("dataset", name, NAMES)
    folder = data_folder(root, "TUDataset") / name / "raw"
    if not folder.is_dir():
        _download(name, folder)
    data, slices, sizes = read_tu_data(str(folder), name)
    if data.x is not None:
        data.x = data.x[:, sizes["num_node_attributes"] :]
    graphs = [separate(Data, data, i, slices, decrement=False) for i in range(len(data.y))]
    dataset = _graph_set(graphs, name)
    if dataset.digest != TU[name]:
        raise ValueError(
            f"{folder} has the digest {dataset.digest} instead of {TU[name]}; delete it, then run "
            f"`hnlib data {name}`"
        )
    return dataset


def _download(name: str, folder: Path) -> None:
    url, archive = SOURCE.format(name), folder.with_name(f"{name}.zip")
    try:
        download(url, archive)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            extract_zip(str(archive), temporary, log=False)
            (Path(temporary) / name).rename(folder)
        archive.unlink()
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{name} could not be downloaded from {url} ({error}); without a network put the files "
            f"of that archive into {folder}"
        ) from error


def describe(dataset: GraphSet) -> dict:
    """Return sizes and classes of a data set, by name."""
    nodes = torch.tensor([float(graph.num_nodes) for graph in dataset.graphs])
    edges = torch.tensor([float(graph.num_edges) for graph in dataset.graphs])
    sizes = dataset.labels.unique(return_counts=True)[1].tolist()
    return {
        "graphs": len(dataset),
        "nodes": f"{nodes.mean():.3f} on average, {nodes.min():.0f} to {nodes.max():.0f}",
        "edges": f"{edges.mean() / 2:.3f} on average",
        "features": dataset.num_features,
        "classes": f"{dataset.num_classes}, of {sizes} graphs",
        "digest": dataset.digest,
    }


def _degrees(graphs: list[Data]) -> list[Tensor]:
    degrees = [utils.degree(graph.edge_index[0], graph.num_nodes, torch.long) for graph in graphs]
    every = torch.cat(degrees)
    if (top := int(every.max())) < 1000:
        return [utils.one_hot(d, top + 1) for d in degrees]
    mean, deviation = every.double().mean(), every.double().std()
    return [((d - mean) / deviation).float()[:, None] for d in degrees]


def _motif(*edges: tuple[int, int]) -> generators.CustomMotif:
    both = utils.to_undirected(torch.tensor(edges).T)
    return generators.CustomMotif(Data(edge_index=both, num_nodes=1 + max(map(max, edges))))


# house and K23 have the same degrees, and so have domino and theta: they differ in who joins whom
MOTIFS: dict[str, generators.MotifGenerator] = {
    "house": generators.HouseMotif(),
    "K23": _motif((0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)),
    # two squares with a common side
    "domino": _motif((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3)),
    # paths of lengths 2, 2, 3 from 0 to 1
    "theta": _motif((0, 2), (2, 1), (0, 3), (3, 1), (0, 4), (4, 5), (5, 1)),
    "grid": generators.GridMotif(),
    "cycle": generators.CycleMotif(5),
}


def motifs(n: int = 180, seed: int = 0) -> list[Data]:
    """Make `n` connected trees with motifs, of the classes `MOTIFS` in turn, without features.

    The tree is a Barabási–Albert graph of 8 to 14 nodes with one edge a node, or complete with 7,
    13 or 15 nodes; 2 to 4 motifs hang on it, each by one edge on a different node. A function of
    `seed`; global random states are left as they were.
    """
    kinds = list(MOTIFS.values())
    with _seeded(seed):
        return [_tree_with(kinds[i % len(kinds)], i % len(kinds)) for i in range(n)]


class _RandomTree(BAGraph):
    """A node of PyG's graph may choose itself and then hangs on nothing: drawn until none does."""

    def __call__(self) -> Data:
        while (tree := super().__call__()).num_edges < 2 * (self.num_nodes - 1):
            pass
        return tree


def _tree_with(motif: generators.MotifGenerator, label: int) -> Data:
    trees = [
        _RandomTree(8 + _below(7), 1),
        TreeGraph(*((2, 2), (2, 3), (3, 2))[_below(3)], undirected=True),
    ]
    made = ExplainerDataset(trees[_below(2)], motif, 2 + _below(3))[0]
    y = torch.tensor([label])
    return Data(edge_index=made.edge_index, num_nodes=made.num_nodes, y=y).coalesce()


def _below(n: int) -> int:
    return int(torch.randint(n, ()))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators that PyG draws from, and restore them afterwards."""
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every GPU
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(state)
