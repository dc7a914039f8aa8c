"""Random views of every graph of a batch, made without a loop over nodes or graphs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.utils import cumsum, degree, lexsort
from torch_geometric.utils import subgraph as induced_subgraph

# Where the code released with dro (graph/aug.py, after GraphCL's for the TU sets) differs:
# - the first view is the graph itself; the share is 1/10, of subgraphs 1/5, and not to be chosen;
# - edges: arcs are removed, so one direction may stay; new ones are drawn but never added;
# - subgraph: the neighbours of a new node are thrown away, so it never leaves the neighbourhood of
#   the first, with up to one node too many; ours is the distribution that code sets out to sample;
# - mask: Gaussian noise (mean 1/2, deviation 1/2); ours is GraphCL's mean, of the batch;
# - nodes: in a Python loop; all but the last of a graph have self-loops in the first view alone.


def view(
    batch: Batch,
    generator: torch.Generator,
    kinds: tuple[str, ...] = ("drop", "edges", "subgraph", "mask"),
    ratio: float = 0.2,
) -> Batch:
    """Make a random view of every graph, each by one of `kinds` (keys of `VIEWS`), drawn uniformly.

    Graphs keep their order; two calls make two views. The result has `x`, `edge_index`, `batch`,
    `ptr`; the given batch is not changed. Random numbers are drawn on the generator's device, so a
    generator on the CPU makes the same views on every device. Source: You et al. (2020), with their
    ratio.
    """
    if not kinds or not set(kinds) <= VIEWS.keys() or not 0 <= ratio < 1:
        raise ValueError(
            f"kinds must be some of {', '.join(VIEWS)} and ratio lie in [0, 1), got {kinds} and "
            f"{ratio}"
        )
    drawn = _uniform(batch.num_graphs, generator, batch.x).mul(len(kinds)).long()
    for kind, augmentation in VIEWS.items():
        if kind in kinds:
            batch = augmentation(batch, ratio, generator, drawn == kinds.index(kind))
    return batch


def drop_nodes(batch: Batch, ratio: float, generator: torch.Generator, where: Tensor) -> Batch:
    r"""Drop $\lfloor r|G|\rfloor$ nodes of every graph $G$, drawn uniformly; $r$ = `ratio`.

    At least one node stays. `where`, bool $[m]$, says which graphs are changed.
    """
    sizes = batch.ptr.diff()
    dropped = torch.minimum(_floor(ratio * sizes.double()), sizes - 1) * where
    return _induced(batch, _random_rank(batch.batch, batch.ptr, generator) >= dropped[batch.batch])


def perturb_edges(batch: Batch, ratio: float, generator: torch.Generator, where: Tensor) -> Batch:
    r"""Replace $k=\lfloor r|E|\rfloor$ edges of every graph by new ones, $r$ = `ratio`.

    It removes $k$ of the undirected edges and adds $\min\{k,\lceil M/2\rceil\}$ of the $M$ pairs of
    different nodes without an edge, both uniform without replacement. Edges are undirected (an arc
    counts as one) and come out in both directions, once; self-loops stay. `where` as in
    `drop_nodes`.
    """
    sizes = batch.ptr.diff()
    owner, m = batch.batch[batch.edge_index[0]], len(sizes)
    chosen = where[owner] & (batch.edge_index[0] != batch.edge_index[1])
    # all pairs of nodes u < v of one graph stand in one list, graph after graph: v (v - 1) / 2 + u
    start = cumsum(sizes * (sizes - 1) // 2)
    low, high = (batch.edge_index - batch.ptr[owner])[:, chosen].aminmax(dim=0)
    edges = torch.unique(start[owner[chosen]] + high * (high - 1) // 2 + low)  # sorted
    owner = torch.searchsorted(start, edges, right=True) - 1
    count = degree(owner, m, torch.long)
    removed = _floor(ratio * count.double())
    remaining = edges[_random_rank(owner, cumsum(count), generator) >= removed[owner]]
    absent = start.diff() - count
    added = torch.minimum(removed, (absent + 1) // 2)
    new = _distinct((start - cumsum(count))[:-1], absent, added, generator)
    # the t-th pair that is not an edge: t plus the number of edges before it
    before = edges - torch.arange(len(edges), device=edges.device)
    new = new + torch.searchsorted(before, new, right=True)
    pairs = torch.cat([remaining, new])
    owner = torch.searchsorted(start, pairs, right=True) - 1
    pairs = pairs - start[owner]
    v = ((1 + (1 + 8 * pairs.double()).sqrt()) / 2).long()
    ends = torch.stack([pairs - v * (v - 1) // 2, v]) + batch.ptr[owner]
    edge_index = torch.cat([batch.edge_index[:, ~chosen], ends, ends.flip(0)], 1)
    return Batch(x=batch.x, edge_index=edge_index, batch=batch.batch, ptr=batch.ptr)


def subgraph(batch: Batch, ratio: float, generator: torch.Generator, where: Tensor) -> Batch:
    r"""Take a connected piece of $\max\{1,\lceil r|G|\rceil\}$ nodes of every graph, $r$ = `ratio`.

    All edges among them stay. The first node is uniform, and each next node is uniform among the
    neighbours of those chosen. A component with fewer nodes is taken whole. `where` as in
    `drop_nodes`.

    It uses waiting times: $t_v=w_v+\min_{u\sim v}t_u$ with independent $w_v\sim\mathrm{Exp}(1)$,
    $t=0$ at the first node; the piece consists of the earliest nodes. The remaining wait is
    $\mathrm{Exp}(1)$ for every neighbour of the chosen nodes, however long it has been one, so the
    next node is uniform among them. The $j$-th earliest node is at most $j-1$ edges away: one round
    of relaxation fewer than the largest piece has nodes is enough.
    """
    sizes = batch.ptr.diff()
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


def mask_attributes(batch: Batch, ratio: float, generator: torch.Generator, where: Tensor) -> Batch:
    r"""Set the features of $\lfloor r|G|\rfloor$ random nodes of every graph to the batch's mean.

    The mean says nothing about the node, next to nothing about its graph, and has the scale of a
    feature; zeros would also make the sums over a graph's nodes tell how many are masked. $r$ =
    `ratio`; `where` as in `drop_nodes`.
    """
    sizes = batch.ptr.diff()
    count = _floor(ratio * sizes.double()) * where
    masked = _random_rank(batch.batch, batch.ptr, generator) < count[batch.batch]
    x = torch.where(masked[:, None], batch.x.mean(0), batch.x)
    return Batch(x=x, edge_index=batch.edge_index, batch=batch.batch, ptr=batch.ptr)


# Features and edges first: the mean is over all nodes of the batch, also over those that other
# graphs lose.
VIEWS = {"mask": mask_attributes, "edges": perturb_edges, "drop": drop_nodes, "subgraph": subgraph}


def _floor(x: Tensor) -> Tensor:
    return (x + 1e-9).floor().long()  # .29 of 100 are 29, though .29 * 100 is less


def _uniform(n: int, generator: torch.Generator, like: Tensor) -> Tensor:
    drawn = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64)
    return drawn.to(like.device)


def _rank(key: Tensor, batch: Tensor, ptr: Tensor) -> Tensor:
    """Rank the elements of each graph by `key`; `batch` is sorted."""
    place = torch.arange(len(batch), device=batch.device) - ptr[batch]
    return torch.empty_like(batch).scatter_(0, lexsort([key, batch]), place)


def _random_rank(batch: Tensor, ptr: Tensor, generator: torch.Generator) -> Tensor:
    return _rank(_uniform(len(batch), generator, batch), batch, ptr)


def _distinct(start: Tensor, length: Tensor, k: Tensor, generator: torch.Generator) -> Tensor:
    """Draw `k` different numbers from every range [start, start + length), all sets equally likely.

    Coinciding numbers are drawn again, which favours no number. As `k` is at most half of a range
    (rounded up), at least half of the new draws are good, so a few rounds are enough.
    """
    start, length = start.repeat_interleave(k), length.repeat_interleave(k)
    numbers = start + (_uniform(len(start), generator, start) * length).long()
    while True:
        ordered, order = numbers.sort(stable=True)
        again = order[1:][ordered[1:] == ordered[:-1]]
        if not len(again):
            return numbers
        drawn = _uniform(len(again), generator, start) * length[again]
        numbers[again] = start[again] + drawn.long()


def _induced(batch: Batch, keep: Tensor) -> Batch:
    n, index = len(keep), batch.batch[keep]
    edge_index, _ = induced_subgraph(keep, batch.edge_index, relabel_nodes=True, num_nodes=n)
    ptr = cumsum(degree(index, batch.num_graphs, torch.long))
    return Batch(x=batch.x[keep], edge_index=edge_index, batch=index, ptr=ptr)
