"""Graph data sets: the benchmark sets of the papers, one made here, and graphs of one's own."""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric import utils
from torch_geometric.data import Data
from torch_geometric.datasets import ExplainerDataset
from torch_geometric.datasets import motif_generator as generators
from torch_geometric.datasets.graph_generator import BAGraph, TreeGraph

from hnlib import _archives
from hnlib._files import data_folder

#: The benchmark sets of Morris et al. (2020) that the papers use, and digests of what is read there
TU = {
    "MUTAG": "a31f1a9a407d1582b5b64e5ccf4c2246e5d0e15312844ff789fe27da0e97116d",
    "PTC_MR": "65a3d06e8dc44ae15614ea42d28a903d36889f1816fc616af433e53fa9794743",
    "ENZYMES": "e93ed3e331d397f6cacfdabcd9a72425ccbaa96949bc7da4b41a48123aba91e6",
    "PROTEINS": "9c5c6362be981a98b415a57331f995af8a54726ee2c423b5b45d472d610817c3",
    "IMDB-BINARY": "ebdb1b92edb1588df2eed30b94233eeffdd750728932268512255fe56bc42a4a",
    "IMDB-MULTI": "815dc56fadc4aeeda63ba1441bc49257f728979cbc58b736141b3d181dc25927",
    "NCI1": "6dddf6011ec0c8b3fd8222ea2ac84b0968ffc5ce081249273f8e9202afe461d3",
    "DD": "8c30bbf895a5bcb479e2697444eca3aa8f8a5a9fc5920ed8540dbc1c2cb46a53",
    "REDDIT-BINARY": "ff2144bc468989ae451500f550808a26b478e7fabcd8294566d75f2944c9077a",
}
KNOWN = ("motifs", *TU)
SOURCE = "https://www.chrsmrrs.com/graphkerneldatasets/{}.zip"
LARGEST = 2**28  # bytes of an archive and of its texts; REDDIT-BINARY has 34 million
PARTS = {"A": 2, "graph_indicator": 1, "graph_labels": 1, "node_labels": 1}  # numbers a line


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs with float `x`, `edge_index` and a class `y` each; the digest is that of these."""

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
    """Graphs of one's own, checked. As in the papers' code their degree replaces missing features.

    That is: one-hot where no degree reaches 1,000, else standardised over all nodes (of directed
    graphs: the out-degree). Attributes of edges are not used. The graphs given are not changed.
    ValueError: fewer than two graphs; a graph of one node, without edges, with an edge to no node,
    or without a label; features that only some have, of different width, or not finite; the name of
    another set.
    """
    if name in KNOWN:
        raise ValueError(f"{name} is the name of a known data set; give your own graphs another")
    return _graph_set(graphs, name)


def _graph_set(graphs: list[Data], name: str) -> GraphSet:
    if len(graphs) < 2:
        raise ValueError(f"{name} has {len(graphs)} graph(s); a contrast needs at least 2")
    for i, graph in enumerate(graphs):
        if fault := next(_faults(graph), None):
            raise ValueError(f"graph {i} of {name} has {fault}")
    widths = {None if graph.x is None else graph.x.shape[1] for graph in graphs}
    if len(widths) > 1:
        raise ValueError(f"graphs of {name} have features of widths {widths}; give all the same")
    x = _degrees(graphs) if widths == {None} else [graph.x.float() for graph in graphs]
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
    if not isinstance(graph.y, Tensor) or graph.y.numel() != 1 or graph.y.is_complex():
        yield "no label; give each graph one integer y, as a tensor"
    if not (label := graph.y.item()) >= 0 or label % 1:
        yield f"the label {label}; labels are whole numbers from 0"
    if graph.x is not None and (graph.x.ndim != 2 or graph.x.is_complex()):
        yield f"{graph.x.dtype} features of shape {tuple(graph.x.shape)}; give [nodes, features]"
    if graph.edge_index.is_floating_point():
        yield f"edges of type {graph.edge_index.dtype}; give whole numbers"
    if graph.x is not None and not graph.x.isfinite().all():
        yield "features that are not finite; repair or leave it out"
    if not 0 <= int(graph.edge_index.min()) <= int(graph.edge_index.max()) < n:
        yield f"an edge to a node that is not among its {n}; count nodes from 0 in each graph"


def load(name: str = "motifs", root: Path | str | None = None) -> GraphSet:
    """The data set "motifs" (made here), or one of `TU`, downloaded to `root/TUDataset/NAME/raw`.

    `root` defaults to `$HNLIB_DATA`, else the user's cache. Node labels are the features, where
    there are any; node attributes are not used, as in the papers. An edge that a file lists twice
    counts once (IMDB-MULTI's are). What is read are the text files, and their contents must be the
    known ones. ValueError: an unknown name, files that are damaged or cannot be downloaded.
    """
    if name == "motifs":
        return _graph_set(motifs(), name)
    if name not in TU:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(KNOWN)}")
    folder = location(root) / name / "raw"
    if not folder.is_dir():
        _download(name, folder)
    try:
        return _graph_set(_read(name, folder), name)
    except (OSError, ValueError) as error:
        fault = f"{folder} is not the whole TUDataset {name} ({_archives.said(error)})"
        raise ValueError(f"{fault}. Delete it, then run `hnlib data {name}`") from error


def _download(name: str, folder: Path) -> None:
    wanted, url = {f"{name}_{part}.txt" for part in PARTS}, SOURCE.format(name)
    instead = f"put the files of its archive into {folder}"
    _archives.check_folder(folder.parent)
    with (
        _archives.downloaded(name, url, instead, largest=LARGEST) as archive,
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".raw-") as temporary,
    ):
        whole = Path(temporary) / "raw"
        whole.mkdir()
        for file, text in _archives.unpacked(archive, wanted.__contains__, LARGEST).items():
            (whole / file).write_bytes(text)
        _read(name, whole)
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise


def _read(name: str, folder: Path) -> list[Data]:
    tables = {
        part: _table(path, columns)
        for part, columns in PARTS.items()
        if (path := folder / f"{name}_{part}.txt").exists() or part != "node_labels"
    }
    if fault := next(_misfits(**tables), None):
        raise ValueError(fault)
    digest = hashlib.sha256()
    for part, table in tables.items():
        digest.update(f"{part}{table.shape}".encode() + table.astype("<i8").tobytes())
    if digest.hexdigest() != TU[name]:
        raise ValueError(f"its contents have the digest {digest.hexdigest()}, not {TU[name]}")
    return _graphs(**{part: torch.from_numpy(table) for part, table in tables.items()})


def _table(path: Path, columns: int) -> np.ndarray:
    """Lines of so many whole numbers, separated by commas; one number a line makes a vector."""
    with path.open(encoding="ascii") as file, warnings.catch_warnings(action="ignore"):
        table = np.loadtxt(file, np.int64, comments=None, delimiter=",", ndmin=2)
    if not len(table) or table.shape[1] != columns:
        raise ValueError(f"{path.name} has no lines of {columns} whole number(s)")
    return table if columns > 1 else table[:, 0]


def _misfits(A, graph_indicator, graph_labels, node_labels=None) -> Iterator[str]:
    """Where the tables of a TUDataset do not fit each other; the first is told."""
    nodes, graphs, owner = len(graph_indicator), len(graph_labels), graph_indicator
    if owner[0] != 1 or owner[-1] != graphs or not np.isin(np.diff(owner), (0, 1)).all():
        yield f"graph_indicator does not go from 1 to the {graphs} graphs of graph_labels"
    if node_labels is not None and len(node_labels) != nodes:
        yield f"{len(node_labels)} node_labels are not those of {nodes} nodes"
    if A.min() < 1 or A.max() > nodes:
        yield f"an edge ends at {A.min()} or at {A.max()}; nodes are 1 to {nodes}"
    if (owner[A[:, 0] - 1] != owner[A[:, 1] - 1]).any():
        yield "an edge joins two graphs"


def _graphs(A, graph_indicator, graph_labels, node_labels=None) -> list[Data]:
    """Graph by graph: nodes counted from 0, edges once and no loops, labels of nodes one-hot."""
    owner, y = graph_indicator - 1, graph_labels.unique(return_inverse=True)[1]
    edges = utils.coalesce(utils.remove_self_loops(A.T - 1)[0], num_nodes=len(owner))
    sizes, x = owner.bincount().tolist(), [None] * len(y)
    if node_labels is not None:
        x = utils.unbatch(utils.one_hot(node_labels - node_labels.min()), owner)
    parts = zip(x, utils.unbatch_edge_index(edges, owner, len(y)), y, sizes)
    return [Data(x=x, edge_index=edges, y=y, num_nodes=n) for x, edges, y, n in parts]


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
    """`n` connected graphs without features, of the classes `MOTIFS` in turn: trees with motifs.

    The tree is a Barabási–Albert graph of 8 to 14 nodes with one edge a node, or complete with 7,
    13 or 15 nodes; 2 to 4 motifs hang on it, each by one edge on a node of its own. A function of
    `seed`; global random states are left as they were. ValueError: fewer than two graphs a class, a
    negative seed.
    """
    if n < 2 * len(MOTIFS):
        few = f"n={n} graphs are fewer than two for each of {len(MOTIFS)} classes"
        raise ValueError(f"{few}; ask for at least {2 * len(MOTIFS)}")
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative")
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
    found = ExplainerDataset(trees[_below(2)], motif, 2 + _below(3))[0]
    y = torch.tensor([label])
    return Data(edge_index=found.edge_index, num_nodes=found.num_nodes, y=y).coalesce()


def _below(n: int) -> int:
    return int(torch.randint(n, ()))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The global generators that PyG draws from, seeded inside and as before outside."""
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every GPU
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(state)
