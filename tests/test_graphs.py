"""InfoGraph and GraphCL: the objective against its reference, splits and labels, bad input."""

import functools
import hashlib
import math
import zipfile
from dataclasses import replace

import pytest
import torch
from drawn import seeded
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from hnlib import graphs, methods
from hnlib.graphs import task
from hnlib.graphs.config import GraphRun
from hnlib.training import evaluation as readouts


def random_batch(seed: int, sizes=(3, 5, 2, 4), d: int = 6):
    """Embeddings of nodes and graphs, and whose node each is, in double precision."""
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    draw = functools.partial(torch.randn, generator=seeded(seed), dtype=torch.float64)
    return 2 * draw(len(batch), d), 2 * draw(len(sizes), d), batch


def loss(name, point, *labels, **options):
    """The loss of a method of the catalogue."""
    return graphs.methods.build(name, **options).loss(graphs.methods.from_nodes(*point, *labels))


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def by_loops(point, beta=0.0, tau_plus=0.0, labels=None, positives="class", per=None):
    """The objective of the chapter, node after node and graph after graph, with scalars alone.

    Scores are divided by the largest, for each node if per = 1.
    """
    nodes, whole, batch = (part.tolist() for part in point)
    classes = [-1] * len(whole) if labels is None else labels.tolist()
    scores = [[sum(x * y for x, y in zip(node, one)) for one in whole] for node in nodes]
    same = [
        [g == own or classes[g] == classes[own] >= 0 for g in range(len(whole))] for own in batch
    ]
    sizes = [
        max(abs(s) for s, mine in zip(row, friends) if not mine)
        for row, friends in zip(scores, same)
    ]
    total = 0.0
    for u, own in enumerate(batch):
        largest, mass, negative = sizes[u] if per == 1 else max(sizes), 0.0, 0.0
        for s, mine in zip(scores[u], same[u]):
            weight = 0.0 if mine else math.exp(beta * 2 * s / largest)
            mass, negative = mass + weight, negative + weight * softplus(s)
        all_of_class = labels is not None and positives == "class"
        pulled = [g for g, mine in enumerate(same[u]) if (mine if all_of_class else g == own)]
        for g in pulled:
            s, rest = scores[u][g], negative / mass
            if tau_plus:
                rest = max((rest - tau_plus * softplus(s)) / (1 - tau_plus), 0.0)
            total += (softplus(-s) + rest) / len(pulled)
    return total / len(batch)


@pytest.mark.parametrize(
    "name, options",
    [
        ("infograph", {}),
        ("hcl", {"beta": 1.0}),
        ("hcl", {"beta": -10.0}),
        ("debiased", {"tau_plus": 0.3}),
        ("hcl", {"beta": -2.0, "tau_plus": 0.5}),
        ("hcl-node", {"beta": 1.5}),
    ],
    ids=str,
)
def test_the_objective_is_the_one_written_as_loops(name, options):
    by = functools.partial(by_loops, random_batch(0), per=1 if name == "hcl-node" else None)
    value = loss(name, random_batch(0), **options).item()
    assert value == pytest.approx(by(**options), rel=1e-6)
    if "beta" in options:  # the other sign is another objective
        assert abs(value - by(**options | {"beta": -options["beta"]})) > 1e-3


@pytest.mark.parametrize("name, options", [("scl", {}), ("h-scl", {"beta": 2.0})])
@pytest.mark.parametrize("positives", ["class", "own"])
def test_with_labels_too_and_unknown_ones_are_nobody_s_class(name, options, positives):
    point = random_batch(3, sizes=(3, 2, 4, 2, 3))
    for labels in (torch.tensor([0, 1, 0, 1, 2]), torch.tensor([0, -1, 0, 1, -1])):
        value = loss(name, point, labels, positives, positives=positives, **options).item()
        expected = by_loops(point, labels=labels, positives=positives, **options)
        assert value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["hcl", "hcl-node"])
def test_the_gradient_is_that_of_the_loss_scale_and_all(name):
    """Against finite differences; with a scale held fixed, descent on easy weights would climb the
    loss."""
    nodes, *rest = random_batch(4, sizes=(2, 3, 2), d=2)
    nodes.requires_grad_()

    def of_nodes(x, weights_gradient=True):
        return loss(name, (x, *rest), beta=-3.0, weights_gradient=weights_gradient)

    assert torch.autograd.gradcheck(of_nodes, nodes)
    full, held = (torch.autograd.grad(of_nodes(nodes, on), nodes)[0] for on in (True, False))
    assert (held - full).abs().max() > 1e-3


# Training


@pytest.fixture(scope="module")
def small():
    """Two classes that even an untrained encoder tells apart partly, with one graph in ten of the
    size of two."""
    return graphs.data.graph_set([g for g in graphs.data.motifs(120) if int(g.y) < 2], "small")


def parts_of(small, labels):
    run = GraphRun(method="scl", labels=labels, folds=4, framework="graphcl").resolved()
    return task.Task(run, methods.build("scl"), dataset=small).parts


def test_labels_of_the_test_fold_are_not_seen(small):
    splits = readouts.stratified_folds(small.labels, 4, 0)
    for part, (_, held_out) in zip(parts_of(small, "fold"), splits, strict=True):
        expected = small.labels.index_fill(0, held_out, -1)
        assert torch.equal(part.labels, expected)
    (whole,) = parts_of(small, "all")  # the control
    assert torch.equal(whole.labels, small.labels)


def test_hidden_labels_are_classes_of_their_own_in_two_views(small):
    part, given = parts_of(small, "fold")[0], []
    views = part.views(torch.arange(8), seeded(), slice(None))
    labels = torch.tensor([0, 0, -1, 1, -1, 1, -1, 0])
    part.loss(part.model(), lambda z1, z2, y: given.append(y), views, labels, lambda z: z)
    assert torch.equal(given[0][labels >= 0], labels[labels >= 0])
    assert len(given[0][labels < 0].unique()) == 3 and (given[0][labels < 0] < 0).all()


# What bad input gets


def test_infograph_under_torchrun_is_refused(small, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    task.Task(GraphRun(framework="graphcl"), dataset=small)
    with pytest.raises(ValueError, match=r"infograph compares .* run it without torchrun"):
        task.Task(GraphRun(), dataset=small)


def test_the_first_view_may_be_the_graph_itself(small):
    chosen = GraphRun(original=True, framework="graphcl", method="simclr").resolved()
    views = task.Task(chosen, dataset=small).views(torch.arange(8), seeded(), slice(None))
    batch = Batch.from_data_list(small.graphs[:8])
    first = (views.first.x, views.first.edge_index)
    assert all(map(torch.equal, first, (batch.x, batch.edge_index)))
    assert views.second.edge_index.shape != batch.edge_index.shape


def altered(**changes):
    """A path of three nodes, changed."""
    graph = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, y=torch.tensor([0]))
    for name, value in changes.items():
        setattr(graph, name, value)
    return graph


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(y=None), "a class y, an integer from 0, got None"),
        (dict(y=torch.tensor([0.2])), r"a class y, an integer from 0, got tensor\(\[0.2"),
        (dict(y=torch.tensor([-1])), "a class y, an integer from 0"),
        (dict(y=torch.tensor([0, 1])), "a class y, an integer from 0"),
        (dict(x=torch.tensor([[1.0], [torch.nan], [2.0]])), "finite features, got NaN"),
        (
            dict(edge_index=torch.tensor([[0, 1], [1, 3]])),
            "edges between its nodes, 0 to 2, got .* 0 and 3",
        ),
    ],
)
def test_graphs_that_cannot_be_used_are_named(changes, message):
    with pytest.raises(ValueError, match=f"graph 1 of mine must have {message}"):
        graphs.data.graph_set([altered(), altered(**changes)], "mine")
    usable = [altered(y=torch.tensor([float(c)])) for c in (0, 1)]
    assert graphs.data.graph_set(usable).labels.tolist() == [0, 1]


def test_the_digest_of_graphs_sees_features_edges_and_classes():
    def digest(**changes):
        return graphs.data.graph_set([altered(x=torch.eye(3)), altered(**changes)]).digest

    changes = [{}, dict(x=torch.eye(3).flip(0)), dict(y=torch.tensor([1]))]
    changes += [dict(edge_index=torch.tensor([[0, 1], [1, 0]]))]
    assert len({digest(**dict(x=torch.eye(3)) | change) for change in changes}) == 4
    assert digest(x=torch.eye(3)) == digest(x=torch.eye(3))


# Archives and files of a TUDataset

#: three graphs of 3, 2 and 3 nodes; one edge twice, and one to itself
TOY = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n2, 3\n4, 5\n5, 4\n5, 5\n6, 8\n8, 6\n7, 8\n8, 7\n",
    "graph_indicator": "1\n1\n1\n2\n2\n3\n3\n3\n",
    "graph_labels": "-1\n1\n-1\n",
    "node_labels": "3\n5\n3\n3\n3\n5\n5\n3\n",
}


def test_an_archive_is_downloaded_once_and_other_files_are_refused(tmp_path, monkeypatch):
    served = tmp_path / "served.zip"
    with zipfile.ZipFile(served, "w") as archive:
        for part, text in TOY.items():
            archive.writestr(f"MUTAG/MUTAG_{part}.txt", text)
    about = {"digest": "0be56fff2a6e", "archive": hashlib.sha256(served.read_bytes()).hexdigest()}
    known = replace(graphs.data.DATASETS["MUTAG"], **about)
    monkeypatch.setitem(graphs.data.DATASETS, "MUTAG", known)
    monkeypatch.setattr(graphs.data, "SOURCE", served.as_uri())
    graphs.data.load("MUTAG", tmp_path)
    served.unlink()
    assert graphs.data.load("MUTAG", tmp_path).digest == about["digest"]
    for part, text in (("graph_labels", "-1\n1\n1\n"), ("graph_indicator", "1\n")):
        (tmp_path / f"TUDataset/MUTAG/raw/MUTAG_{part}.txt").write_text(text)
        with pytest.raises(ValueError, match=r"MUTAG/raw cannot be read \(.*; delete it"):
            graphs.data.load("MUTAG", tmp_path)


def test_features_follow_the_papers_rule():
    """Degrees, one-hot where all are below a thousand, else standardised."""
    path, star = torch.tensor([[0, 1], [1, 2]]), torch.zeros(2, 1000, dtype=torch.long)
    star[1] = torch.arange(1, 1001)
    small, hub = (
        Data(edge_index=to_undirected(ends), num_nodes=int(ends.max()) + 1, y=torch.tensor([0]))
        for ends in (path, star)
    )
    assert torch.equal(graphs.data.graph_set([small]).graphs[0].x, torch.eye(3)[[1, 2, 1]])
    x = torch.cat([g.x for g in graphs.data.graph_set([hub, small]).graphs])
    assert x.shape == (1004, 1)
    assert [float(x.mean()), float(x.std())] == pytest.approx([0, 1], abs=1e-4)


def test_the_motifs_are_those_of_the_pages():
    assert graphs.data.load("motifs").digest == "c54a4b731d9f"
