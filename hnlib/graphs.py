r"""Graphs: InfoGraph and GraphCL with any negatives, on PyTorch Geometric.

InfoGraph contrasts every node with the graphs of its batch, GraphCL two views of every graph. Layers, batches and data
sets are PyTorch Geometric's; what is chosen here is the law of the negatives.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from zipfile import BadZipFile

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor, nn

from hnlib import evaluation, methods, negatives, objectives, records
from hnlib.contrast import Contrast

try:
    from torch_geometric.data import Batch, Data
    from torch_geometric.datasets import ExplainerDataset, TUDataset
    from torch_geometric.datasets.graph_generator import BAGraph, TreeGraph
    from torch_geometric.datasets.motif_generator import CustomMotif, CycleMotif, GridMotif, HouseMotif, MotifGenerator
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool
    from torch_geometric.utils import cumsum, degree, lexsort, one_hot, to_undirected
    from torch_geometric.utils import subgraph as induced_subgraph
except ImportError as error:
    raise ImportError("hnlib.graphs needs PyTorch Geometric; install it with: pip install 'hnlib[graphs]'") from error

#: The benchmark sets of Morris et al. (2020) that the papers use; "motifs" is made here and needs no download.
TU = ("MUTAG", "PTC_MR", "ENZYMES", "PROTEINS", "IMDB-BINARY", "IMDB-MULTI", "NCI1", "DD", "REDDIT-BINARY")
KNOWN = ("motifs", *TU)
FRAMEWORKS = ("infograph", "graphcl")
LABELS = ("fold", "all")


# ---------------------------------------------------------------------------------------------------------------- data


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs with float features `x`, `edge_index` and a class `y` each; `digest` identifies the contents."""

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
    """Graphs of one's own, checked; without node features they get the degree, as in the papers' code.

    That is: one-hot where no degree reaches 1,000, else standardised over all nodes (of directed graphs: the
    out-degree). Attributes of edges are not used. The graphs given are not changed.
    ValueError: fewer than two graphs; a graph of one node, without edges, with an edge to no node, or without a label;
    features that only some graphs have, of different width, or not finite; the name of another set.
    """
    if name in KNOWN:
        raise ValueError(f"{name} is the name of a known data set; give graphs of your own another one")
    return _graph_set(graphs, name)


def _graph_set(graphs: list[Data], name: str) -> GraphSet:
    if len(graphs) < 2:
        raise ValueError(f"{name} has {len(graphs)} graph(s); a contrast needs at least 2")
    for i, graph in enumerate(graphs):
        if graph.num_nodes < 2:
            raise ValueError(f"graph {i} of {name} has {graph.num_nodes} node(s): node and graph are the same; "
                             "leave it out")
        if graph.num_edges == 0:
            raise ValueError(f"graph {i} of {name} has no edges, so its nodes never hear of each other; leave it out")
        if graph.y is None or graph.y.numel() != 1:
            raise ValueError(f"graph {i} of {name} has no label; give each graph one integer y")
        if not (label := graph.y.item()) >= 0 or label % 1:
            raise ValueError(f"graph {i} of {name} has the label {label}; labels are whole numbers from 0")
        if graph.x is not None and graph.x.ndim != 2:
            raise ValueError(f"graph {i} of {name} has features of shape {tuple(graph.x.shape)}; "
                             "give [nodes, features]")
        if not 0 <= int(graph.edge_index.min()) <= int(graph.edge_index.max()) < graph.num_nodes:
            raise ValueError(f"graph {i} of {name} has an edge to a node that is not among its {graph.num_nodes}; "
                             "count nodes from 0 in each graph")
    width = {None if graph.x is None else tuple(graph.x.shape[1:]) for graph in graphs}
    if len(width) > 1:
        raise ValueError(f"the graphs of {name} have features of widths {sorted(map(str, width))}; give all the same")
    x = _degrees(graphs) if width == {None} else [graph.x.float() for graph in graphs]
    for i, rows in enumerate(x):
        if not rows.isfinite().all():
            raise ValueError(f"graph {i} of {name} has features that are not finite; repair or leave it out")
    whole = [Data(x=rows, edge_index=graph.edge_index, y=graph.y.reshape(1).long())
             for graph, rows in zip(graphs, x, strict=True)]
    digest = hashlib.sha256()
    for graph in whole:
        for part in (graph.x, graph.edge_index, graph.y):
            digest.update(np.ascontiguousarray(part.numpy()).tobytes())
    return GraphSet(name, whole, digest.hexdigest()[:12])


def load(name: str = "motifs", root: Path | str | None = None) -> GraphSet:
    """The data set `name`: "motifs" (made here), or one of `TU` under `root/TUDataset`, downloaded when first used.

    `root` defaults to `$HNLIB_DATA`, else the user's cache. Node labels are the features, where there are any; node
    attributes are not used, as in the papers. An edge that a file lists twice counts once (IMDB-MULTI's are).
    ValueError: an unknown name, a file that is damaged or cannot be downloaded.
    """
    if name == "motifs":
        return _graph_set(motifs(), name)
    if name not in TU:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(KNOWN)}")
    folder = location(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{name}.lock"):  # two runs must not unpack it at once
            for cached in (folder / name / "processed").glob("*.pt"):  # PyG would fall back on unpickling anything
                torch.load(cached, weights_only=True)
            found = TUDataset(str(folder), name)
            every = [found[i] for i in range(len(found))]
    except (OSError, RuntimeError, LookupError, EOFError, ValueError, UnpicklingError, BadZipFile) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{folder / name} is not a whole TUDataset and could not be made one ({reason}); delete that "
                         "folder and try again with a network, or put the files of its archive into its folder raw"
                         ) from error
    return _graph_set(every, name)


def location(root: Path | str | None = None) -> Path:
    """The folder that holds the TUDatasets."""
    root = root or os.environ.get("HNLIB_DATA")
    if not root:
        import platformdirs

        root = platformdirs.user_cache_path("hnlib")
    return Path(root) / "TUDataset"


def describe(dataset: GraphSet) -> str:
    """Sizes and classes of a data set, a line each."""
    nodes = torch.tensor([float(graph.num_nodes) for graph in dataset.graphs])
    edges = torch.tensor([float(graph.num_edges) for graph in dataset.graphs])
    return "\n".join(f"{name:13}{value}" for name, value in (
        ("graphs", len(dataset)), ("nodes", f"{nodes.mean():.1f} on average, {nodes.min():.0f} to {nodes.max():.0f}"),
        ("edges", f"{edges.mean() / 2:.1f} on average"), ("features", dataset.num_features),
        ("classes", f"{dataset.num_classes}, of {dataset.labels.unique(return_counts=True)[1].tolist()} graphs"),
        ("digest", dataset.digest)))


def _degrees(graphs: list[Data]) -> list[Tensor]:
    degrees = [degree(graph.edge_index[0], graph.num_nodes, torch.long) for graph in graphs]
    every = torch.cat(degrees)
    if (top := int(every.max())) < 1000:
        return [one_hot(d, top + 1) for d in degrees]
    mean, deviation = every.double().mean(), every.double().std()
    return [((d - mean) / deviation).float()[:, None] for d in degrees]


def _motif(*edges: tuple[int, int]) -> CustomMotif:
    return CustomMotif(Data(edge_index=to_undirected(torch.tensor(edges).T), num_nodes=1 + max(map(max, edges))))


# house and K23 have the same degrees, and so have domino and theta: what tells them apart is who is joined to whom.
MOTIFS: dict[str, MotifGenerator] = {
    "house": HouseMotif(),
    "K23": _motif((0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)),
    "domino": _motif((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3)),  # two squares with a common side
    "theta": _motif((0, 2), (2, 1), (0, 3), (3, 1), (0, 4), (4, 5), (5, 1)),  # paths of lengths 2, 2, 3 from 0 to 1
    "grid": GridMotif(),
    "cycle": CycleMotif(5),
}


def motifs(n: int = 180, seed: int = 0) -> list[Data]:
    """`n` connected graphs without features, in turn of the classes `MOTIFS`: a random tree with 2 to 4 such motifs.

    The tree is a Barabási–Albert graph of 8 to 14 nodes with one edge a node, or complete with 7, 13 or 15 nodes; each
    motif hangs by one edge on a node of its own. A function of `seed`; global random states are left as they were.
    ValueError: fewer than two graphs a class, a negative seed.
    """
    if n < 2 * len(MOTIFS):
        raise ValueError(f"n={n} graphs are fewer than two for each of {len(MOTIFS)} classes; "
                         f"ask for at least {2 * len(MOTIFS)}")
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative")
    kinds = list(MOTIFS.values())
    with _seeded(seed):
        return [_tree_with(kinds[i % len(kinds)], i % len(kinds)) for i in range(n)]


class _RandomTree(BAGraph):
    """A node of PyG's Barabási–Albert graph may choose itself, and then hangs on nothing: drawn until none does."""

    def __call__(self) -> Data:
        while (tree := super().__call__()).num_edges < 2 * (self.num_nodes - 1):
            pass
        return tree


def _tree_with(motif: MotifGenerator, label: int) -> Data:
    trees = [_RandomTree(8 + _below(7), 1), TreeGraph(*((2, 2), (2, 3), (3, 2))[_below(3)], undirected=True)]
    found = ExplainerDataset(trees[_below(2)], motif, 2 + _below(3))[0]
    return Data(edge_index=found.edge_index, num_nodes=found.num_nodes, y=torch.tensor([label])).coalesce()


def _below(n: int) -> int:
    return int(torch.randint(n, ()))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The global generators that PyG's generators draw from, seeded inside and as before outside."""
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every GPU
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(state)


# --------------------------------------------------------------------------------------------------------------- views
#
# Where the code released with dro (graph/aug.py, after GraphCL's for the TU sets) differs:
# - its share is 1/10 for nodes, edges and masks and 1/5 for subgraphs; only its "random2" takes a ratio;
# - edges: entries of the directed list are removed, so one direction may stay; new ones are drawn but never added;
# - subgraph: the neighbours of a new node are computed and thrown away, so it never leaves the first node's own
#   neighbourhood, and holds up to one node more than its share; ours is the law that code sets out to sample;
# - mask: Gaussian noise (mean 1/2, deviation 1/2) replaces the features; ours is GraphCL's mean, of the batch;
# - nodes: dropped ones lose their edges first and their rows later, in a Python loop over the nodes of the batch; every
#   graph but its last node has self-loops, which the first view keeps and these views lose;
# - the first view is the graph itself, only the second one is changed.


def view(
    batch: Batch, generator: torch.Generator, kinds: tuple[str, ...] = ("drop", "edges", "subgraph", "mask"),
    ratio: float = 0.2,
) -> Batch:
    """One random view of every graph, in the same order: each graph draws one of `kinds` (keys of `VIEWS`) uniformly.

    Two calls make two views. The result has `x`, `edge_index`, `batch`, `ptr`; the batch given is not changed.
    Random numbers are drawn where the generator lives, so one on the CPU makes the same views on every device.
    Source: You et al. (2020), with their ratio.
    ValueError: unknown, repeated or no kinds, a ratio outside [0, 1), graphs without features or without nodes.
    """
    if unknown := [kind for kind in kinds if kind not in VIEWS]:
        raise ValueError(f"unknown augmentation {unknown[0]!r}; known: {', '.join(VIEWS)}")
    if not kinds or len(set(kinds)) < len(kinds):
        raise ValueError(f"kinds={kinds} must name at least one augmentation, each of them once")
    _read(batch, ratio, None)
    drawn = _uniform(batch.num_graphs, generator, batch.x).mul(len(kinds)).long()
    for kind, augmentation in VIEWS.items():
        if kind in kinds:
            batch = augmentation(batch, ratio, generator, drawn == kinds.index(kind))
    return batch


def drop_nodes(batch: Batch, ratio: float, generator: torch.Generator, where: Tensor | None = None) -> Batch:
    r"""Every graph $G$ without $\lfloor r|G|\rfloor$ of its nodes, $r$ = `ratio`: uniform, without replacement.

    At least one node stays. `where` bool $[m]$: the graphs it is done to (all by default). Errors as in `view`.
    """
    sizes, where = _read(batch, ratio, where)
    dropped = torch.minimum(_floor(ratio * sizes.double()), sizes - 1) * where
    return _induced(batch, _random_rank(batch.batch, batch.ptr, generator) >= dropped[batch.batch])


def perturb_edges(batch: Batch, ratio: float, generator: torch.Generator, where: Tensor | None = None) -> Batch:
    r"""Every graph with $k=\lfloor r|E|\rfloor$ of its edges removed and $k$ new ones in their place, $r$ = `ratio`.

    Removed are $k$ of its undirected edges, new are $\min\{k,\lceil M/2\rceil\}$ of the $M$ pairs of different nodes
    that were no edge: both uniform, without replacement. Edges are undirected (an arc counts as one) and come out in
    both directions, once; self-loops stay. `where` as in `drop_nodes`, errors as in `view`.
    """
    sizes, where = _read(batch, ratio, where)
    owner, m = batch.batch[batch.edge_index[0]], len(sizes)
    chosen = where[owner] & (batch.edge_index[0] != batch.edge_index[1])
    # all pairs of nodes u < v of one graph stand in one list, graph after graph: v (v - 1) / 2 + u
    start = cumsum(sizes * (sizes - 1) // 2)
    low, high = (batch.edge_index - batch.ptr[owner])[:, chosen].aminmax(dim=0)
    edges = torch.unique(start[owner[chosen]] + high * (high - 1) // 2 + low)  # sorted
    owner = torch.searchsorted(start, edges, right=True) - 1
    count = degree(owner, m, torch.long)
    removed = _floor(ratio * count.double())
    kept = edges[_random_rank(owner, cumsum(count), generator) >= removed[owner]]
    absent = start.diff() - count
    added = torch.minimum(removed, (absent + 1) // 2)
    new = _distinct((start - cumsum(count))[:-1], absent, added, generator)
    # the t-th pair that is no edge: t plus the number of edges before it
    new = new + torch.searchsorted(edges - torch.arange(len(edges), device=edges.device), new, right=True)
    pairs = torch.cat([kept, new])
    owner = torch.searchsorted(start, pairs, right=True) - 1
    pairs = pairs - start[owner]
    v = ((1 + (1 + 8 * pairs.double()).sqrt()) / 2).long()
    ends = torch.stack([pairs - v * (v - 1) // 2, v]) + batch.ptr[owner]
    return _batch(batch.x, torch.cat([batch.edge_index[:, ~chosen], ends, ends.flip(0)], 1), batch.batch, batch.ptr)


def subgraph(batch: Batch, ratio: float, generator: torch.Generator, where: Tensor | None = None) -> Batch:
    r"""Of every graph $G$ a connected piece of $\max\{1,\lceil r|G|\rceil\}$ nodes, $r$ = `ratio`, all edges included.

    The first node is uniform; each next one uniform among the neighbours of those chosen. A component with fewer nodes
    is the piece itself. `where` as in `drop_nodes`, errors as in `view`.

    The law by waiting times: $t_v=w_v+\min_{u\sim v}t_u$ with independent $w_v\sim\mathrm{Exp}(1)$, $t=0$ at the first
    node; the piece are the earliest nodes. What is still to wait is $\mathrm{Exp}(1)$ for every neighbour of the chosen
    nodes, however long it has been one, so the next to come is uniform among them. The $j$-th earliest node is at
    most $j-1$ edges away: as many rounds of relaxation as the largest piece has nodes, less one, are enough.
    """
    sizes, where = _read(batch, ratio, where)
    wanted = (-_floor(-ratio * sizes.double())).clamp(min=1)
    first = batch.ptr[:-1] + (_uniform(len(sizes), generator, batch.x) * sizes).long()
    wait = -torch.log1p(-_uniform(len(batch.batch), generator, batch.x))
    source, target = batch.edge_index[:, where[batch.batch[batch.edge_index[0]]]]
    time = torch.full_like(wait, torch.inf)
    time[first] = 0
    wait = wait[target]
    for _ in range(int((wanted * where).max()) - 1):
        before, time = time, time.scatter_reduce(0, target, time[source] + wait, "amin")
        if torch.equal(before, time):
            break
    early = _rank(time, batch.batch, batch.ptr) < wanted[batch.batch]
    return _induced(batch, early & time.isfinite() | ~where[batch.batch])


def mask_attributes(batch: Batch, ratio: float, generator: torch.Generator, where: Tensor | None = None) -> Batch:
    r"""Every graph with the features of $\lfloor r|G|\rfloor$ random nodes replaced by the mean over the batch.

    The mean says nothing about the node, next to nothing about its graph, and has the scale of a feature; zeros would
    also make the sums over a graph's nodes tell how many are masked. $r$ = `ratio`; `where` as in `drop_nodes`, errors
    as in `view`.
    """
    sizes, where = _read(batch, ratio, where)
    masked = _random_rank(batch.batch, batch.ptr, generator) < (_floor(ratio * sizes.double()) * where)[batch.batch]
    x = torch.where(masked[:, None], batch.x.mean(0), batch.x)
    return _batch(x, batch.edge_index, batch.batch, batch.ptr)


# Features and edges first: the mean is over all nodes of the batch, also over those that other graphs lose.
VIEWS = {"mask": mask_attributes, "edges": perturb_edges, "drop": drop_nodes, "subgraph": subgraph}


def _read(batch: Batch, ratio: float, where: Tensor | None) -> tuple[Tensor, Tensor]:
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio={ratio} must lie in [0, 1)")
    if getattr(batch, "ptr", None) is None or batch.x is None or not batch.x.is_floating_point():
        raise ValueError("views are made of a torch_geometric Batch whose graphs have float features x; "
                         "take the graphs of a GraphSet and Batch.from_data_list")
    sizes = batch.ptr.diff()
    if not sizes.all():
        raise ValueError(f"graph {int(sizes.argmin())} of the batch has no nodes; leave it out")
    return sizes, torch.ones_like(sizes, dtype=torch.bool) if where is None else where


def _floor(x: Tensor) -> Tensor:
    return (x + 1e-9).floor().long()  # .29 of 100 are 29, though .29 * 100 is less


def _uniform(n: int, generator: torch.Generator, like: Tensor) -> Tensor:
    return torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64).to(like.device)


def _rank(key: Tensor, batch: Tensor, ptr: Tensor) -> Tensor:
    """The rank of every element among those of its graph, by `key`; `batch` is sorted."""
    order = lexsort([key, batch])
    return torch.empty_like(batch).scatter_(0, order, torch.arange(len(batch), device=batch.device) - ptr[batch])


def _random_rank(batch: Tensor, ptr: Tensor, generator: torch.Generator) -> Tensor:
    return _rank(_uniform(len(batch), generator, batch), batch, ptr)


def _distinct(start: Tensor, length: Tensor, k: Tensor, generator: torch.Generator) -> Tensor:
    """From every range [start, start + length), `k` different numbers, each set of them equally likely.

    What coincides is drawn again. No rule of that kind prefers a number, hence the law; with `k` at most half of a
    range (rounded up) a new draw is good with probability 1/2 or more, so a few rounds are enough.
    """
    start, length = start.repeat_interleave(k), length.repeat_interleave(k)
    found = start + (_uniform(len(start), generator, start) * length).long()
    while True:
        ordered, order = found.sort(stable=True)
        again = order[1:][ordered[1:] == ordered[:-1]]
        if not len(again):
            return found
        found[again] = start[again] + (_uniform(len(again), generator, start) * length[again]).long()


def _induced(batch: Batch, keep: Tensor) -> Batch:
    edge_index, _ = induced_subgraph(keep, batch.edge_index, relabel_nodes=True, num_nodes=len(keep))
    index = batch.batch[keep]
    return _batch(batch.x[keep], edge_index, index, cumsum(degree(index, batch.num_graphs, torch.long)))


def _batch(x: Tensor, edge_index: Tensor, batch: Tensor, ptr: Tensor) -> Batch:
    return Batch(x=x, edge_index=edge_index, batch=batch, ptr=ptr)


# ------------------------------------------------------------------------------------------------------------ encoders


class GIN(nn.Module):
    r"""Graph isomorphism network: `(x, edge_index, batch, m)` to nodes $[n,Lk]$ and graphs $[m,Lk]$.

    Layer $l$: $h_u\leftarrow\mathrm{BN}\big(\mathrm{relu}\,\mathrm{MLP}_l(h_u+\sum_{v\sim u}h_v)\big)$, width $k$ =
    `hidden`; a node's embedding is the concatenation of all $L$ = `layers` outputs, a graph's the sum over its nodes.
    Source: Xu et al. (2019), eq. (4.1); order and sizes as InfoGraph's and hcl's released code.
    """

    def __init__(self, features: int, hidden: int = 32, layers: int = 3):
        super().__init__()
        widths = [features, *[hidden] * (layers - 1)]
        self.convolutions = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden))) for width in widths)
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in widths)
        self.feature_dim = hidden * layers

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, m: int | None = None) -> tuple[Tensor, Tensor]:
        layers = []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x, edge_index).relu())
            layers.append(x)
        nodes = torch.cat(layers, 1)
        return nodes, global_add_pool(nodes, batch, m)


class Head(nn.Module):
    """One of InfoGraph's two discriminators: three layers with ReLU beside a linear shortcut, width unchanged."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())])
        self.shortcut = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + self.shortcut(x)


class InfoGraph(nn.Module):
    r"""Encoder with heads for nodes and for graphs: a batch to its `Contrast` with scores $\langle h_u,H_G\rangle$.

    Source: Sun et al. (2020).
    """

    def __init__(self, encoder: GIN):
        super().__init__()
        self.encoder = encoder
        self.local, self.whole = Head(encoder.feature_dim), Head(encoder.feature_dim)

    def forward(self, batch: Batch, labels: Tensor | None = None, positives: str = "class") -> Contrast:
        nodes, graphs = self.encoder(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
        return Contrast.from_nodes(self.local(nodes), self.whole(graphs), batch.batch, labels, positives)


class GraphCL(nn.Module):
    """Encoder with a projector of two layers: a batch to the embeddings $[m,Lk]$ of its graphs.

    Source: You et al. (2020).
    """

    def __init__(self, encoder: GIN):
        super().__init__()
        k = encoder.feature_dim
        self.encoder, self.projector = encoder, nn.Sequential(nn.Linear(k, k), nn.ReLU(), nn.Linear(k, k))

    def forward(self, batch: Batch) -> Tensor:
        return self.projector(self.encoder(batch.x, batch.edge_index, batch.batch, batch.num_graphs)[1])


# ------------------------------------------------------------------------------------------------------------- methods


def scores(contrast: Contrast, per: str = "batch") -> Tensor:
    r"""The scores of a contrast brought to one scale: $x_{uG}=2\,T_{uG}/\max|T|$, the maximum over negatives.

    `per` "batch": over those of all nodes, as released; "node": over the node's own. In $[-2,2]$ on the admissible
    cells, and differentiable, the maximum included. All-zero scores stay zero. ValueError: another `per`.
    Source: hcl, App. D.2 ("clip", by released code a rescaling); "node" is ours.
    """
    return contrast.similarity / _half_largest(contrast.similarity, contrast, per)


def _half_largest(similarity: Tensor, contrast: Contrast, per: str) -> Tensor:
    if per not in ("batch", "node"):
        raise ValueError(f'per={per!r} is unknown; use "batch" or "node"')
    size = similarity.masked_fill(~contrast.admissible, 0.0).abs()
    largest = size.amax() if per == "batch" else size.amax(1, keepdim=True)
    return largest.clamp_min(torch.finfo(largest.dtype).tiny ** 0.5) / 2


def tilted(
    beta: float = 1.0, weights_gradient: bool = True, on_empty: str = "raise", per: str = "batch"
) -> negatives.LogWeights:
    r"""The tilt of the scaled score: $w_{uG}\propto e^{\beta x_{uG}}$, $x$ = `scores`.

    `beta` any real: positive as in the paper's text, negative as in its released code, which prefers easy negatives.
    `weights_gradient`: through the weights, and so through the scale too; with a scale held fixed what is followed
    would be the gradient of nothing. `per`: see `scores`. Source: hcl, App. B.2.
    """
    negatives.tilted(beta, 1.0, weights_gradient, on_empty)  # checks the options

    def log_weights(contrast: Contrast) -> Tensor:
        similarity = contrast.similarity if weights_gradient else contrast.similarity.detach()
        scale = negatives._per_anchor("beta", beta, contrast) / _half_largest(similarity, contrast, per)
        return negatives._normalise(similarity, scale, contrast, on_empty)

    return log_weights


def entropic_ot(
    epsilon: float = 0.5, tol: float = 1e-4, max_iterations: int = 1000, on_failure: str = "warn"
) -> negatives.LogWeights:
    r"""Rows of the entropic plan between nodes and graphs with cost $-x_{uG}$, $x$ = `scores`.

    Uniform marginals over the nodes and over the graphs, a node's own graph forbidden: `epsilon` = $1/\beta$ is the
    tilt $\beta$ with a price for each graph. A plan exists unless a graph holds more than $1-1/m$ of the nodes.
    Options and errors: `hnlib.negatives.entropic_ot`. Source: hcl-ot, eq. (5); its graph code is not released.
    """
    return negatives.entropic_ot(epsilon, lambda contrast: -scores(contrast).detach(), tol, max_iterations, on_failure)


_JS = objectives.jensen_shannon
#: InfoGraph's methods by name, in the manner of `hnlib.methods.CATALOGUE`: all with the Jensen–Shannon objective.
CATALOGUE = {
    "infograph": methods.Entry("InfoGraph", "infograph", _JS, negatives.uniform, False, dict()),
    "debiased": methods.Entry("Debiased", "dcl", _JS, negatives.uniform, False, dict(tau_plus=0.1)),
    "hcl": methods.Entry("HCL", "hcl", _JS, tilted, False, dict(beta=1.0, tau_plus=0.0, weights_gradient=True)),
    "hcl-node": methods.Entry("HCL, scaled by node", "ours", _JS, partial(tilted, per="node"), False,
                              dict(beta=1.0, tau_plus=0.0, weights_gradient=True)),
    "ot": methods.Entry("Entropic OT", "hclot", _JS, entropic_ot, False,
                        dict(epsilon=0.5, tau_plus=0.0, tol=1e-4, max_iterations=1000, on_failure="warn")),
    "scl": methods.Entry("SCL", "hscl", _JS, negatives.uniform, True, dict(positives="class", on_empty="raise")),
    "h-scl": methods.Entry("H-SCL(β)", "hscl", _JS, tilted, True,
                           dict(beta=1.0, weights_gradient=True, positives="class", on_empty="raise")),
}


def build(name: str, **options) -> methods.Method:
    """The InfoGraph method of that name, to call as `method.loss(contrast)`: `build("hcl", beta=2.0)`.

    The option `positives` is read by `train`; for a contrast of your own give it to `Contrast.from_nodes`.
    ValueError: an unknown name or option, a value of another kind or out of range.
    """
    return methods.assemble(CATALOGUE, name, options, build, _trial)


def _trial(method: methods.Method) -> None:
    nodes, batch = torch.eye(3).repeat(2, 1), torch.arange(3).repeat(2)
    labels = torch.arange(3) if method.entry.supervised else None
    method.loss(Contrast.from_nodes(nodes, torch.eye(3), batch, labels, method.options.get("positives", "class")))


# ------------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model with what was measured; of several (`labels="fold"`) the one of the first fold.

    `record` is what `records.write` takes.
    """

    record: dict
    model: InfoGraph | GraphCL = field(repr=False)

    @property
    def encoder(self) -> GIN:
        return self.model.encoder

    @property
    def metrics(self) -> dict:
        return self.record["metrics"]

    @property
    def history(self) -> list[dict]:
        return self.record["history"]

    def save(self, path: Path | str) -> Path:
        """Write model and record to one safetensors file, atomically; `restore` reads it back."""
        from safetensors.torch import save

        state = {name: value.detach().cpu().contiguous() for name, value in self.model.state_dict().items()}
        records.write_atomically(path, save(state, metadata={"record": json.dumps(self.record)}))
        return Path(path)


def restore(path: Path | str) -> Run:
    """The run that `Run.save` wrote, in eval mode on the CPU. ValueError: the file is missing or not such a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            record = json.loads(file.metadata()["record"])
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dictionary)
        chosen = record["configuration"]
        features = state["encoder.convolutions.0.nn.0.weight"].shape[1]
        model = _model(chosen["framework"], features, chosen["hidden"], int(chosen["encoder"].removeprefix("gin")))
        model.load_state_dict(state)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is not a whole saved run ({error}); save it again with Run.save") from error
    return Run(record, model.eval())


def _model(framework: str, features: int, hidden: int, layers: int) -> InfoGraph | GraphCL:
    return {"infograph": InfoGraph, "graphcl": GraphCL}[framework](GIN(features, hidden, layers))


def train(
    dataset: str | GraphSet = "motifs",
    method: str | methods.Method | None = "infograph",
    framework: str = "infograph",
    epochs: int = 20,
    batch_size: int = 128,
    seed: int = 0,
    lr: float = 1e-3,
    hidden: int = 32,
    layers: int = 3,
    labels: str = "fold",
    augmentations: tuple[str, ...] = ("drop", "edges", "subgraph", "mask"),
    ratio: float = 0.2,
    folds: int = 10,
    evaluate_at: tuple[int, ...] = (),
    device: str = "auto",
    record_to: Path | str | None = None,
    data_root: Path | str | None = None,
    progress: bool = True,
    experiment: str = "graphs",
    **method_options,
) -> Run:
    r"""Train a GIN by InfoGraph or GraphCL, cross-validate an SVM on its embeddings, and return the `Run`.

    `dataset`: a name or a `GraphSet`. `framework` "infograph": `method` is a name of `CATALOGUE`, with its
    `method_options`, or what `build` made; "graphcl": of `hnlib.methods.CATALOGUE`, on two `view`s of every graph by
    `augmentations` at `ratio`. None with `epochs=0` evaluates the untrained encoder, which is the same for all methods
    of one seed. Adam at `lr`; batches by permutation in nearly equal parts of at most `batch_size`.

    The embeddings of all graphs, in eval mode, go to `evaluation.svm` on `folds` stratified folds, which are a function
    of `seed`: methods with the same seed meet the same folds. Methods without labels see all graphs and no label.
    For those that learn from `labels`: "fold" trains an encoder for each fold, to which the labels of its test graphs
    are unknown; "all" trains one on all labels, and the accuracy is then of labels that training has seen.

    `metrics`: `svm`, the mean test accuracy of the folds, with `svm_folds`, the `inner_folds` accuracy of the chosen
    `C`; `epoch_seconds` (median), couplings `unconverged`, anchors `skipped`. The `history` has the first four at the
    epochs `evaluate_at` (0: untrained).
    `record_to`: folder for the record.
    ValueError: unknown names, sizes out of range, a class with fewer graphs than folds, a loss that is not finite.
    """
    started = time.perf_counter()
    if framework not in FRAMEWORKS:
        raise ValueError(f"unknown framework {framework!r}; known: {', '.join(FRAMEWORKS)}")
    if labels not in LABELS:
        raise ValueError(f"labels={labels!r} is unknown; use {' or '.join(LABELS)}")
    for name, value, least in (("epochs", epochs, 0), ("batch_size", batch_size, 2), ("seed", seed, 0),
                               ("hidden", hidden, 1), ("layers", layers, 1)):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"lr={lr} must be positive")
    if unreached := [epoch for epoch in evaluate_at if not 0 <= epoch <= epochs]:
        raise ValueError(f"evaluate_at has {unreached[0]}; the run has the epochs 0 to {epochs}")
    method = _method(method, framework, epochs, method_options)
    dataset = load(dataset, data_root) if isinstance(dataset, str) else dataset
    if batch_size == 2 and len(dataset) % 2:
        raise ValueError(f"batch_size=2 leaves one of {len(dataset)} graphs alone, without a negative; use at least 3")
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    method = None if method is None else method.to(device)
    y, supervised = dataset.labels, method is not None and method.entry.supervised
    splits = evaluation.stratified_folds(y, folds, seed)
    least = min(int(y[part].unique(return_counts=True)[1].min()) for part, _ in splits)
    if least < evaluation.INNER_FOLDS:  # before training, not after it
        raise ValueError(f"a class has {least} graphs in a training part, fewer than the {evaluation.INNER_FOLDS} "
                         "inner folds of the SVM; leave it out")
    configuration = dict(
        experiment=experiment, dataset=dataset.name, dataset_digest=dataset.digest, framework=framework,
        method=None if method is None else method.name, options={} if method is None else dict(method.options),
        encoder=f"gin{layers}", hidden=hidden, epochs=epochs, batch_size=batch_size, lr=lr, seed=seed,
        labels=labels if supervised else None, folds=folds,
    )
    if framework == "graphcl":
        if method is not None and (method.entry.features or method.options.get("learn", "fixed") != "fixed"):
            raise ValueError(f"{method.name} needs the inputs of the last layer or learns a mixture, which graphcl "
                             "does not do; choose another method or learn='fixed'")
        configuration |= dict(augmentations=list(augmentations), ratio=ratio)
    records.name(configuration)  # what JSON cannot say is refused now, not after training
    fit = dict(dataset=dataset, method=method, framework=framework, epochs=epochs, batch_size=batch_size, seed=seed,
               lr=lr, hidden=hidden, layers=layers, view=(tuple(augmentations), ratio), device=device,
               progress=progress)
    evaluated = sorted({*evaluate_at, epochs})
    found: dict[int, list] = {epoch: [] for epoch in evaluated}

    def score(these, epoch, encoder):
        if epoch in found:
            x = embed(encoder, dataset, device=device)
            found[epoch] += [evaluation.svm(x, y, *split, seed=seed) for split in these]

    whole = [(splits, "training", y if supervised else None)]
    if supervised and labels == "fold":
        whole = [([split], f"fold {k + 1} of {folds}", y.index_fill(0, split[1], -1)) for k, split in enumerate(splits)]
    fits = [_fit(**fit, labels=known, score=partial(score, these), title=title) for these, title, known in whole]
    model, seconds = fits[0][0], [value for _, _, values in fits for value in values]
    losses = [statistics.mean(values) for values in zip(*(values for _, values, _ in fits), strict=True)]
    history = [{"epoch": epoch, "loss": losses[epoch - 1] if epoch else None, **_summary(found[epoch])}
               for epoch in evaluated]
    metrics = {k: v for k, v in history[-1].items() if k not in ("epoch", "loss")}
    metrics["epoch_seconds"] = statistics.median(seconds) if seconds else None
    if method is not None:
        metrics |= {"unconverged": method.unconverged, "skipped": int(method.skipped)}
    record = dict(configuration=configuration, metrics=metrics, history=history, losses=losses, graphs=len(dataset),
                  environment=records.environment(device), seconds=round(time.perf_counter() - started, 2))
    if record_to is not None:
        records.write(record, record_to, overwrite=True)
    return Run(record, model)


def _fit(dataset, method, framework, epochs, batch_size, seed, lr, hidden, layers, view, device, progress, labels,
         score, title):
    """One model: `score(epoch, encoder)` is called after every epoch, and before the first."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every GPU
        model = _model(framework, dataset.num_features, hidden, layers)
        for layer in model.modules():
            if isinstance(layer, nn.Linear):  # as released
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
    model.to(device).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    losses, seconds = [], []
    score(0, model.encoder)
    epoch_numbers = range(1, epochs + 1)
    if progress:
        from tqdm.auto import tqdm

        epoch_numbers = tqdm(epoch_numbers, desc=title, leave=False)
    for epoch in epoch_numbers:
        begun, total = time.perf_counter(), torch.zeros((), device=device)
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]))
        order = torch.randperm(len(dataset), generator=generator)
        parts = [part.tolist() for part in order.tensor_split(-(-len(order) // batch_size))]
        loader = DataLoader(dataset.graphs, batch_sampler=parts, generator=torch.Generator())  # else it draws globally
        for part, batch in zip(parts, loader, strict=True):
            batch = batch.to(device)
            known = None if labels is None else labels[part].to(device)
            loss = _loss(model, method, batch, known, view, generator)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            total += loss.detach() * len(part)
        losses.append(float(total) / len(dataset))
        seconds.append(round(time.perf_counter() - begun, 4))
        if not math.isfinite(losses[-1]):
            raise ValueError(f"the loss of epoch {epoch} is {losses[-1]}; lower lr={lr:g}")
        score(epoch, model.encoder)
    return model.eval(), losses, seconds


def _loss(model, method, batch, labels, view_of, generator):
    if isinstance(model, InfoGraph):
        return method.loss(model(batch, labels, method.options.get("positives", "class")))
    z1, z2 = (model(view(batch, generator, *view_of)) for _ in range(2))
    if labels is not None:  # an unknown label is a class of its own
        labels = torch.where(labels < 0, -1 - torch.arange(len(labels), device=labels.device), labels)
    return method(z1, z2, labels)


def _method(method, framework: str, epochs: int, options: dict):
    if method is None and epochs:
        raise ValueError("method=None trains nothing; name a method or pass epochs=0")
    if isinstance(method, str):
        method, options = (build if framework == "infograph" else methods.build)(method, **options), {}
    if options:
        raise ValueError(f"unknown option {next(iter(options))!r}; method options go with a method's name")
    if method is None:
        return None
    catalogue = CATALOGUE if framework == "infograph" else methods.CATALOGUE
    if not isinstance(method, methods.Method) or catalogue.get(method.name) is not method.entry:
        raise ValueError(f"{framework} cannot train {getattr(method, 'name', method)!r}; its methods are "
                         f"{', '.join(catalogue)}")
    return method._rebuild(method.name, **method.options)  # one of our own: its counts start at zero


def _summary(found: list) -> dict:
    tests = [score.test for score in found]
    return {"svm": statistics.mean(tests), "svm_folds": tests, "inner_folds": [score.inner for score in found],
            "C": [score.C for score in found]}


@torch.no_grad()
def embed(encoder: nn.Module, dataset: GraphSet, batch_size: int = 256, device=None) -> Tensor:
    """The embeddings $[N,Lk]$ of all graphs in their order, in eval mode, on the CPU."""
    device = next(encoder.parameters()).device if device is None else device
    training = encoder.training
    encoder.eval()
    parts = []
    for batch in DataLoader(dataset.graphs, batch_size=batch_size, generator=torch.Generator()):
        batch = batch.to(device)
        parts.append(encoder(batch.x, batch.edge_index, batch.batch, batch.num_graphs)[1].cpu())
    encoder.train(training)
    return torch.cat(parts)
