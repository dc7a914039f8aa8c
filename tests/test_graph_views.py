"""Views of graphs against slow loops and networkx, and their distributions."""

import itertools
import math
import random
from collections import Counter

import networkx as nx
import numpy as np
import pytest
import torch
from drawn import seeded
from scipy.stats import chisquare
from torch_geometric.data import Batch, Data
from torch_geometric.utils import is_undirected
from torch_geometric.utils import subgraph as induced

from hnlib import graphs

HOUSE = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4)]
# the chance of an unlucky draw where all is well, and what the same test must say of a false law
FAIR, FALSE = 1e-3, 1e-6


def batch_of(*graphs_):
    """Graphs (nodes, undirected edges); the features of a node are its number in the batch and
    something else."""
    many = []
    for n, edges in graphs_:
        both = {*edges, *((v, u) for u, v in edges)}
        edge_index = torch.tensor(sorted(both), dtype=torch.long).reshape(-1, 2).T
        many.append(Data(x=torch.zeros(n, 2), edge_index=edge_index))
    batch = Batch.from_data_list(many)
    numbers = torch.arange(batch.num_nodes)
    batch.x = torch.stack([numbers.float(), numbers.cos()], 1)
    return batch


@pytest.fixture(params=range(15))
def drawn(request):
    """A batch of small graphs, a ratio and a generator; graphs may be without edges, in pieces,
    complete, or with self-loops."""
    pick = random.Random(request.param)
    made = []
    for n in pick.choices(range(1, 10), k=pick.randint(1, 6)):
        graph = nx.gnp_random_graph(n, pick.choice([0, 0.2, 0.5, 0.9, 1]), pick)
        graph.add_edges_from((v, v) for v in range(n) if pick.random() < 0.2)
        made.append((n, [*graph.edges]))
    ratio = pick.choice([0.0, 0.1, 0.2, 0.29, 0.5, 0.9, 1 - 1e-12])
    return batch_of(*made), ratio, seeded(request.param)


def parts(batch):
    """(numbers of the nodes, set of edges between positions) of every graph, read off slowly."""
    assert batch.ptr[0] == 0 and batch.ptr[-1] == len(batch.batch) == len(batch.x)
    counts = torch.arange(batch.num_graphs).repeat_interleave(batch.ptr.diff())
    assert torch.equal(batch.batch, counts)
    ptr, index, numbers = batch.ptr.tolist(), batch.batch.tolist(), batch.x[:, 0].long().tolist()
    edges = [set() for _ in range(batch.num_graphs)]
    for u, v in batch.edge_index.T.tolist():
        assert index[u] == index[v], "an edge leaves its graph"
        edges[index[u]].add((u - ptr[index[u]], v - ptr[index[u]]))
    assert sum(map(len, edges)) == batch.num_edges, "an edge stands twice"
    return [(numbers[a:b], inside) for (a, b), inside in zip(itertools.pairwise(ptr), edges)]


def view_by(name, batch, ratio, generator):
    everywhere = torch.ones(batch.num_graphs, dtype=torch.bool)
    return graphs.views.VIEWS[name](batch, ratio, generator, everywhere)


def unordered(edges):
    return {frozenset(edge) for edge in edges if edge[0] != edge[1]}


def floor(x):
    """⌊x⌋ as one writes it down: .29 of 100 is 29."""
    return math.floor(round(x, 9))


def assert_induced(before, after):
    """Every graph of `after` is what PyG's own `subgraph` makes of its nodes, one graph at a
    time."""
    for i, (kept, edges) in enumerate(parts(after)):
        numbers = range(int(before.ptr[i]), int(before.ptr[i + 1]))
        assert set(kept) <= set(numbers) and kept == sorted(kept)
        expected, _ = induced(
            torch.tensor(kept), before.edge_index, relabel_nodes=True, num_nodes=before.num_nodes
        )
        assert edges == set(map(tuple, expected.T.tolist()))
        assert torch.equal(after.x[after.batch == i], before.x[kept])


# --- one batch each


def test_dropping_nodes_leaves_the_induced_subgraph_of_the_others(drawn):
    batch, ratio, _ = drawn
    after = view_by("drop", *drawn)
    assert_induced(batch, after)
    for n, m in zip(batch.ptr.diff().tolist(), after.ptr.diff().tolist()):
        assert m == max(1, n - floor(ratio * n))


def test_a_subgraph_is_connected_and_as_large_as_wanted_or_a_component(drawn):
    batch, ratio, _ = drawn
    after = view_by("subgraph", *drawn)
    assert_induced(batch, after)
    for (numbers, edges), (kept, inside) in zip(parts(batch), parts(after)):
        full, piece = nx.Graph(edges), nx.Graph(inside)
        full.add_nodes_from(range(len(numbers)))
        piece.add_nodes_from(range(len(kept)))
        component = nx.node_connected_component(full, kept[0] - numbers[0])
        assert nx.is_connected(piece)
        assert len(kept) == min(max(1, -floor(-ratio * len(numbers))), len(component))


def test_perturbed_edges_are_counted_symmetric_and_inside_their_graph(drawn):
    batch, ratio, _ = drawn
    after = view_by("edges", *drawn)
    assert torch.equal(after.x, batch.x) and torch.equal(after.ptr, batch.ptr)
    assert is_undirected(after.edge_index, num_nodes=after.num_nodes)
    for (numbers, old), (_, new) in zip(parts(batch), parts(after)):
        before, now, n = unordered(old), unordered(new), len(numbers)
        k, absent = floor(ratio * len(before)), n * (n - 1) // 2 - len(before)
        assert len(before - now) == k and len(now - before) == min(k, -(-absent // 2))
        assert {e for e in old if e[0] == e[1]} == {e for e in new if e[0] == e[1]}


def test_masked_nodes_have_the_mean_of_the_batch_and_the_others_their_own_features(drawn):
    batch, ratio, _ = drawn
    after = view_by("mask", *drawn)
    assert torch.equal(after.edge_index, batch.edge_index) and torch.equal(after.ptr, batch.ptr)
    masked = (after.x == batch.x.mean(0)).all(1)
    assert torch.equal(after.x[~masked], batch.x[~masked])
    for i, n in enumerate(batch.ptr.diff().tolist()):
        assert int(masked[batch.batch == i].sum()) == floor(ratio * n) or batch.num_nodes == 1


# --- laws


def fit(outcomes, law):
    """The p-value of the outcomes under a law {outcome: probability}; zero where one is
    impossible."""
    count = Counter(outcomes)
    if set(count) - set(law):
        return 0.0
    return chisquare([count[key] for key in law], [len(outcomes) * p for p in law.values()]).pvalue


def uniform(outcomes):
    outcomes = list(outcomes)
    return dict.fromkeys(outcomes, 1 / len(outcomes))


def copies(n, edges, ratio, name, many=3000):
    return parts(view_by(name, batch_of(*[(n, edges)] * many), ratio, seeded(5)))


def kept_of(n, *view):
    """The nodes that are left of each copy."""
    pieces = enumerate(copies(n, *view))
    return [frozenset(v - n * i for v in numbers) for i, (numbers, _) in pieces]


def test_every_set_of_nodes_is_dropped_equally_often():
    """Control: each node for itself with the same probability, which has the right mean."""
    kept = kept_of(6, HOUSE, 0.34, "drop")
    law = uniform(map(frozenset, itertools.combinations(range(6), 4)))
    assert fit(kept, law) > FAIR
    alone = np.random.default_rng(0).random((3000, 6)) < 2 / 3
    assert fit([frozenset(np.flatnonzero(row)) for row in alone], law) < FALSE


@pytest.mark.slow
def test_edges_removed_and_edges_added_are_uniform_and_independent():
    """Control: both ends of a new edge at random, coincidences left alone, as in GraphCL's code."""
    every = map(frozenset, itertools.combinations(range(5), 2))
    before = set(map(frozenset, HOUSE))
    absent = [edge for edge in every if edge not in before]
    pairs = (map(frozenset, itertools.combinations(s, 2)) for s in (before, absent))
    law = uniform(itertools.product(*pairs))
    after = [unordered(e) for _, e in copies(5, HOUSE, 0.34, "edges")]
    outcomes = [(frozenset(before - e), frozenset(e - before)) for e in after]
    assert fit(outcomes, law) > FAIR
    draw = random.Random(0)
    careless = [(removed, frozenset(draw.choices(absent, k=2))) for removed, _ in outcomes]
    assert fit(careless, law) < FALSE


def growth(graph, size, kind):
    """The exact law of the set of nodes after growing from a uniform one by a uniform neighbour
    (`set`) or edge (`list`)."""
    law = {frozenset([v]): 1 / len(graph) for v in graph}
    for _ in range(size - 1):
        following = Counter()
        for piece, p in law.items():
            nexts = kind(v for u in piece for v in graph[u] if v not in piece)
            for v in nexts:
                following[piece | {v}] += p / len(nexts)
        law = following
    return dict(law)


def test_a_subgraph_grows_by_a_uniform_neighbour():
    """Against the law summed over all ways to grow. Control: a uniform edge to the outside."""
    graph = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (3, 4), (4, 5)])
    kept = kept_of(6, [*graph.edges], 4 / 6, "subgraph")
    assert fit(kept, growth(graph, 4, set)) > FAIR
    assert fit(kept, growth(graph, 4, list)) < FALSE


def test_each_graph_is_changed_by_one_kind_and_each_kind_drawn_equally_often():
    batch = batch_of(*[(6, [*HOUSE[:4], (0, 4), (4, 5)])] * 1000)
    given = batch.clone()
    after = graphs.views.view(batch, seeded(7), ratio=0.34)
    assert all(torch.equal(given[key], batch[key]) for key in ("x", "edge_index", "batch", "ptr"))
    old = unordered(parts(batch)[0][1])
    masked = (after.x == batch.x.mean(0)).all(1)
    kinds = []
    for i, (numbers, edges) in enumerate(parts(after)):
        kind = {3: "subgraph", 4: "drop", 6: "edges"}[len(numbers)]
        if masked[after.batch == i].any():
            assert len(numbers) == 6 and unordered(edges) == old
            kind = "mask"
        kinds.append(kind)
    assert fit(kinds, uniform(graphs.views.VIEWS)) > FAIR
