"""InfoGraph and GraphCL: the objective against its reference, splits and labels, bad input."""

import functools
import hashlib
import zipfile

import numpy as np
import pytest
import reference
import torch
from drawn import seeded
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from hnlib import graphs, methods
from hnlib.graphs import task
from hnlib.graphs.config import GraphRun
from hnlib.training import evaluation as readouts


def random_batch(seed: int, sizes=(3, 5, 2, 4), d: int = 6, scale: float = 2.0):
    """Embeddings of nodes and graphs, and whose node each is, in double precision."""
    g = seeded(seed)
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    drawn = (torch.randn(n, d, generator=g, dtype=torch.float64) for n in (len(batch), len(sizes)))
    nodes, whole = (scale * x for x in drawn)
    return nodes, whole, batch


def loss(name, nodes, whole, batch, *labels, **options):
    """The loss of a method of the catalogue, as a number."""
    method = graphs.methods.build(name, **options)
    return method.loss(graphs.methods.from_nodes(nodes, whole, batch, *labels)).item()


def by_reference(
    nodes, whole, batch, beta=0.0, tau_plus=0.0, labels=None, positives="class", per=None
):
    """The objective of the chapter; scores are divided by the largest, for each node if per = 1."""
    S, own = (nodes @ whole.T).numpy(), (batch[:, None] == torch.arange(len(whole))).numpy()
    y = np.full(len(whole), -1) if labels is None else labels.numpy()
    same = own | ((y == y[batch][:, None]) & (y >= 0))
    largest = abs(S * ~same).max(per, keepdims=True)
    softplus = np.logaddexp(0, S)
    negative = (reference.tilted(2 * S / largest, ~same, beta, 1.0) * softplus).sum(
        1, keepdims=True
    )
    if tau_plus:
        negative = np.maximum((negative - tau_plus * softplus) / (1 - tau_plus), 0.0)
    pulled = same if labels is not None and positives == "class" else own
    return reference.over_positives(np.logaddexp(0, -S) + negative, pulled).mean()


METHODS = [
    ("infograph", {}),
    *(("hcl", {"beta": b}) for b in (1.0, -1.0, 10.0, -10.0)),
    ("debiased", {"tau_plus": 0.3}),
    ("hcl", {"beta": -2.0, "tau_plus": 0.5}),
    ("hcl-node", {"beta": 1.5}),
]


@pytest.mark.parametrize("name, options", METHODS, ids=str)
def test_the_objective_is_the_one_of_the_reference(name, options):
    by = functools.partial(by_reference, per=1 if name == "hcl-node" else None)
    for seed in range(2):
        point = random_batch(seed)
        value = loss(name, *point, **options)
        assert value == pytest.approx(by(*point, **options), rel=1e-6)
        if "beta" in options:  # the other sign is another objective
            other = options | {"beta": -options["beta"]}
            assert abs(value - by(*point, **other)) > 1e-3


@pytest.mark.parametrize("name, options", [("scl", {}), ("h-scl", {"beta": 2.0})])
@pytest.mark.parametrize("positives", ["class", "own"])
def test_with_labels_too_and_unknown_ones_are_nobody_s_class(name, options, positives):
    point = random_batch(3, sizes=(3, 2, 4, 2, 3))
    for labels in (torch.tensor([0, 1, 0, 1, 2]), torch.tensor([0, -1, 0, 1, -1])):
        value = loss(name, *point, labels, positives, positives=positives, **options)
        expected = by_reference(*point, labels=labels, positives=positives, **options)
        assert value == pytest.approx(expected, rel=1e-6)
    hidden, plain = (graphs.methods.from_nodes(*point, *y) for y in ([torch.full((5,), -1)], []))
    assert torch.equal(hidden.admissible, plain.admissible)
    assert torch.equal(hidden.positives, plain.positives)
    assert torch.equal(hidden.same_class(), plain.positives)


@pytest.mark.parametrize("name", ["hcl", "hcl-node"])
@pytest.mark.parametrize("beta", [3.0, -3.0])
def test_the_gradient_is_that_of_the_loss_scale_and_all(name, beta):
    """Against finite differences; with a scale held fixed, descent on easy weights would climb the
    loss."""
    nodes, whole, batch = random_batch(4, sizes=(2, 3, 2), d=2, scale=1.0)
    nodes.requires_grad_()

    def loss(x, weights_gradient=True):
        method = graphs.methods.build(name, beta=beta, weights_gradient=weights_gradient)
        return method.loss(graphs.methods.from_nodes(x, whole, batch))

    assert torch.autograd.gradcheck(loss, nodes)
    full, held = (torch.autograd.grad(loss(nodes, on), nodes)[0] for on in (True, False))
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
    for part, (fitted, held_out) in zip(parts_of(small, "fold"), splits, strict=True):
        assert (part.labels[held_out] == -1).all()
        assert torch.equal(part.labels[fitted], small.labels[fitted])
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
    chosen = GraphRun(
        original=True, framework="graphcl", method="simclr", batch_size=8, folds=4
    ).resolved()
    views = task.Task(chosen, dataset=small).views(torch.arange(8), seeded(), slice(None))
    batch = Batch.from_data_list(small.graphs[:8])
    assert torch.equal(views.first.x, batch.x) and torch.equal(
        views.first.edge_index, batch.edge_index
    )
    assert views.second.edge_index.shape != batch.edge_index.shape


# Archives and files of a TUDataset

#: three graphs of 3, 2 and 3 nodes; one edge twice, and one to itself
TOY = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n2, 3\n4, 5\n5, 4\n5, 5\n6, 8\n8, 6\n7, 8\n8, 7\n",
    "graph_indicator": "1\n1\n1\n2\n2\n3\n3\n3\n",
    "graph_labels": "-1\n1\n-1\n",
    "node_labels": "3\n5\n3\n3\n3\n5\n5\n3\n",
}
TOY_DIGEST = "0be56fff2a6e"


def test_an_archive_is_downloaded_once_and_other_files_are_refused(tmp_path, monkeypatch):
    served = tmp_path / "served.zip"
    with zipfile.ZipFile(served, "w") as archive:
        for part, text in TOY.items():
            archive.writestr(f"MUTAG/MUTAG_{part}.txt", text)
    digests = {"digest": TOY_DIGEST, "archive": hashlib.sha256(served.read_bytes()).hexdigest()}
    about = graphs.data.downloads("graphs")
    monkeypatch.setitem(about, "MUTAG", about["MUTAG"] | digests)
    monkeypatch.setattr(graphs.data, "SOURCE", served.as_uri())
    assert graphs.data.load("MUTAG", tmp_path).digest == TOY_DIGEST
    served.unlink()
    assert graphs.data.load("MUTAG", tmp_path).digest == TOY_DIGEST
    for part, text in (("graph_labels", "-1\n1\n1\n"), ("graph_indicator", "1\n")):
        (tmp_path / f"TUDataset/MUTAG/raw/MUTAG_{part}.txt").write_text(text)
        with pytest.raises(ValueError, match=r"MUTAG/raw cannot be read \(.*; delete it"):
            graphs.data.load("MUTAG", tmp_path)


def test_features_follow_the_papers_rule():
    path = torch.tensor([[0, 1], [1, 2]])
    star = torch.stack([torch.zeros(1000, dtype=torch.long), torch.arange(1, 1001)])
    small, hub = (
        Data(edge_index=to_undirected(ends), num_nodes=int(ends.max()) + 1, y=torch.tensor([0]))
        for ends in (path, star)
    )
    one_hot = graphs.data.graph_set([small, small])
    assert one_hot.num_features == 3 and torch.equal(one_hot.graphs[0].x, torch.eye(3)[[1, 2, 1]])
    x = torch.cat([g.x for g in graphs.data.graph_set([hub, small]).graphs])
    assert x.shape == (1004, 1)
    assert [float(x.mean()), float(x.std())] == pytest.approx([0, 1], abs=1e-4)
