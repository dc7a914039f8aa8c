"""Graph data sets: the benchmark sets of the papers, one generated here, and your own graphs."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import networkx
import numpy as np
import torch
from torch import Tensor
from torch_geometric import utils
from torch_geometric.data import Data
from torch_geometric.data.separate import separate
from torch_geometric.io import read_tu_data

from hnlib._checks import one_of
from hnlib._files import DAMAGED, data_folder, explain_failed_download, own_name, read_zip
from hnlib.graphs.config import GraphRun
from hnlib.graphs.registry import DATASETS

#: The benchmark sets of Morris et al. (2020) that the papers use
SOURCE = "https://www.chrsmrrs.com/graphkerneldatasets/{}.zip"


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs, each with float `x`, `edge_index` and a class `y`; `digest` covers all three."""

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

    def __len__(self) -> int:
        """Return the number of graphs."""
        return len(self.graphs)


def graph_set(graphs: list[Data], name: str = "graphs") -> GraphSet:
    """Make a set of your own graphs; where features are missing, degrees replace them.

    As in the papers' code, degrees are one-hot if none reaches 1,000, and otherwise standardised
    over all nodes (in directed graphs, the out-degree). Each graph needs edges and a class `y`;
    attributes of edges are not used. The given graphs are not changed. Raises ValueError if a label
    is no class, a feature not finite, or an edge leads out of its graph.
    """
    for i, graph in enumerate(graphs):
        _check(graph, f"graph {i} of {name}")
    features = [graph.x.float() for graph in graphs if graph.x is not None] or _degrees(graphs)
    digest, complete = hashlib.sha256(), []
    for x, graph in zip(features, graphs, strict=True):
        complete.append(Data(x=x, edge_index=graph.edge_index, y=graph.y.reshape(1).long()))
        for part in (x, graph.edge_index, complete[-1].y):
            digest.update(np.ascontiguousarray(part.numpy()).tobytes())
    return GraphSet(name, complete, digest.hexdigest()[:12])


def _check(graph: Data, name: str) -> None:
    y, ends = graph.y, graph.edge_index
    if not isinstance(y, Tensor) or y.numel() != 1 or y.item() < 0 or y.item() % 1:
        raise ValueError(f"{name} must have a class y, an integer from 0, got {y}")
    if graph.x is not None and not graph.x.isfinite().all():
        raise ValueError(f"{name} must have finite features, got NaN or an infinity")
    if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < graph.num_nodes:
        raise ValueError(
            f"{name} must have edges between its nodes, 0 to {graph.num_nodes - 1}, got one "
            f"between {int(ends.min())} and {int(ends.max())}"
        )


def load(name: str = "motifs", root: Path | str | None = None) -> GraphSet:
    """Load "motifs" (made here), a benchmark set, or "folder:PATH".

    A benchmark set is downloaded to `root/TUDataset/NAME/raw`; a folder has the same text files,
    `SET_A.txt`, `SET_graph_indicator.txt`, `SET_graph_labels.txt` and so on.

    `root` defaults to `$HNLIB_DATA`, else the user's cache. Node labels, if any, are the features;
    node attributes are not used, as in the papers. An edge that a file lists twice counts once (as
    in IMDB-MULTI). Only text files are read, and the result must have the published digest.
    """
    if name == "motifs":
        return graph_set(motifs(), name)
    if name.startswith("folder:"):
        folder, name = Path(name.removeprefix("folder:")).expanduser(), own_name(name)
        prefix, expected = _set_of(folder), None
    else:
        one_of("dataset", name, (*GraphRun.datasets, *GraphRun.own_datasets))
        folder, prefix = data_folder(root, "TUDataset") / name / "raw", name
        if not folder.is_dir():
            _download(name, folder)
        expected = DATASETS[name].digest
    try:
        data, slices, sizes = read_tu_data(str(folder), prefix)
        if data.x is not None:
            data.x = data.x[:, sizes["num_node_attributes"] :]
        graphs = [separate(Data, data, i, slices, decrement=False) for i in range(len(data.y))]
        dataset = graph_set(graphs, name)
        if dataset.digest != (expected or dataset.digest):
            raise ValueError(f"its digest is {dataset.digest} instead of {expected}")
    except (*DAMAGED, LookupError, TypeError, AttributeError) as error:
        again = f"delete it, then run `hnlib data {name}`" if expected else "mend its files"
        raise ValueError(f"{folder} cannot be read ({error}); {again}") from error
    return dataset


def _set_of(folder: Path) -> str:
    """Return how the files of a folder begin: SET of SET_A.txt."""
    found = sorted(folder.glob("*_A.txt"))
    if len(found) != 1:
        raise ValueError(f"{folder} must have one file SET_A.txt, of the edges, got {len(found)}")
    return found[0].name.removesuffix("_A.txt")


def _download(name: str, folder: Path) -> None:
    url, archive = SOURCE.format(name), folder.with_name(f"{name}.zip")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with explain_failed_download(name, f"the files of {url} into {folder}"):
        digest = DATASETS[name].archive
        torch.hub.download_url_to_file(url, str(archive), digest, progress=False)
        files = read_zip(archive, rf"{name}/{name}_\w+\.txt")
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            complete = Path(temporary) / name  # with the modes of the umask
            complete.mkdir()
            for file, content in files.items():
                (complete / file).write_bytes(content)
            complete.rename(folder)


def _degrees(graphs: list[Data]) -> list[Tensor]:
    degrees = [utils.degree(graph.edge_index[0], graph.num_nodes, torch.long) for graph in graphs]
    every = torch.cat(degrees)
    if (top := int(every.max())) < 1000:
        return [utils.one_hot(d, top + 1) for d in degrees]
    mean, deviation = every.double().mean(), every.double().std()
    return [((d - mean) / deviation).float()[:, None] for d in degrees]


# house and K23 have the same degrees, and so have domino and theta: they differ in who joins whom
MOTIFS = {
    "house": networkx.house_graph(),
    "K23": networkx.complete_bipartite_graph(2, 3),
    "domino": networkx.ladder_graph(3),  # two squares with a common side
    # paths of lengths 2, 2, 3 from 0 to 1
    "theta": networkx.Graph([(0, 2), (2, 1), (0, 3), (3, 1), (0, 4), (4, 5), (5, 1)]),
    "grid": networkx.grid_2d_graph(3, 3),
    "cycle": networkx.cycle_graph(5),
}


def motifs(n: int = 180, seed: int = 0) -> list[Data]:
    """Make `n` connected trees with motifs, of the classes `MOTIFS` in turn, without features.

    The tree is random and has 8 to 14 nodes; 2 to 4 motifs hang on it, each by one edge at a
    different node. The result depends only on `seed` and `n`.
    """
    rng, kinds, made = np.random.default_rng(seed), list(MOTIFS.values()), []
    for i in range(n):
        label = i % len(kinds)
        nodes = int(rng.integers(8, 15))
        tree = networkx.random_labeled_tree(nodes, seed=rng)
        graph = networkx.disjoint_union_all([tree] + [kinds[label]] * int(rng.integers(2, 5)))
        first = range(nodes, len(graph), len(kinds[label]))
        graph.add_edges_from(zip(rng.permutation(nodes).tolist(), first))
        edges = torch.tensor([*graph.edges]).T
        edge_index = utils.to_undirected(edges, num_nodes=len(graph))
        made.append(Data(edge_index=edge_index, num_nodes=len(graph), y=torch.tensor([label])))
    return made
