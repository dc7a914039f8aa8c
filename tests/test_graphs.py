"""InfoGraph and GraphCL: the objective against loops, the couplings, invariances, splits and
labels, bad input."""

import hashlib
import math
import shutil
import zipfile

import pytest
import torch
from drawn import seeded
from one_call import train
from torch_geometric.data import Batch, Data

from hnlib import graphs, methods
from hnlib.graphs import task
from hnlib.graphs.config import GraphRun
from hnlib.training import evaluation as readouts
from hnlib.training import records


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


def by_loops(nodes, whole, batch, beta=0.0, tau_plus=0.0, labels=None, positives="class"):
    """The objective of the chapter, node after node and graph after graph, with nothing but
    scalars."""
    n, m = len(nodes), len(whole)
    score = [[float(nodes[u] @ whole[g]) for g in range(m)] for u in range(n)]
    classes = [-1] * m if labels is None else labels.tolist()
    same = [
        [g == batch[u] or (classes[g] >= 0 and classes[g] == classes[batch[u]]) for g in range(m)]
        for u in range(n)
    ]
    largest = max(abs(score[u][g]) for u in range(n) for g in range(m) if not same[u][g])

    def softplus(x):
        return max(x, 0) + math.log1p(math.exp(-abs(x)))

    total = 0.0
    for u in range(n):
        weight, value = 0.0, 0.0
        for g in range(m):
            if not same[u][g]:
                w = math.exp(beta * 2 * score[u][g] / largest)
                weight, value = weight + w, value + w * softplus(score[u][g])
        every = labels is not None and positives == "class"
        pulled = [g for g in range(m) if (same[u][g] if every else g == batch[u])]
        for g in pulled:
            negative = value / weight
            if tau_plus:
                negative = (negative - tau_plus * softplus(score[u][g])) / (1 - tau_plus)
                negative = max(negative, 0.0)
            total += (softplus(-score[u][g]) + negative) / len(pulled)
    return total / n


METHODS = [
    ("infograph", {}),
    *(("hcl", {"beta": b}) for b in (1.0, -1.0, 10.0, -10.0)),
    ("debiased", {"tau_plus": 0.3}),
    ("hcl", {"beta": -2.0, "tau_plus": 0.5}),
]


@pytest.mark.parametrize("name, options", METHODS, ids=str)
def test_the_objective_is_the_one_written_as_loops(name, options):
    for seed in range(2):
        point = random_batch(seed)
        value = loss(name, *point, **options)
        assert value == pytest.approx(by_loops(*point, **options), rel=1e-6)
        if "beta" in options:  # the other sign is another objective
            other = options | {"beta": -options["beta"]}
            assert abs(value - by_loops(*point, **other)) > 1e-3


@pytest.mark.parametrize("name, options", [("scl", {}), ("h-scl", {"beta": 2.0})])
@pytest.mark.parametrize("positives", ["class", "own"])
def test_with_labels_too_and_unknown_ones_are_nobody_s_class(name, options, positives):
    point = random_batch(3, sizes=(3, 2, 4, 2, 3))
    for labels in (torch.tensor([0, 1, 0, 1, 2]), torch.tensor([0, -1, 0, 1, -1])):
        value = loss(name, *point, labels, positives, positives=positives, **options)
        expected = by_loops(*point, labels=labels, positives=positives, **options)
        assert value == pytest.approx(expected, rel=1e-6)
    hidden, plain = (graphs.methods.from_nodes(*point, *y) for y in ([torch.full((5,), -1)], []))
    assert torch.equal(hidden.admissible, plain.admissible)
    assert torch.equal(hidden.positives, plain.positives)


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


def test_scaled_by_node_every_row_reaches_two():
    contrast = graphs.methods.from_nodes(*random_batch(2))
    x = graphs.methods.scores(contrast, per="node")
    largest = x.abs().masked_fill(~contrast.admissible, 0.0).amax(1)
    assert torch.allclose(largest, torch.full_like(largest, 2.0))
    expected = (1.5 * x).masked_fill(~contrast.admissible, -torch.inf).log_softmax(1).exp()
    by_node, by_batch = (
        graphs.methods.build(name, beta=1.5).log_weights(contrast).exp()
        for name in ("hcl-node", "hcl")
    )
    assert torch.allclose(by_node, expected)
    assert not torch.allclose(by_batch, expected, atol=1e-2)


# Training


#: A short run of graphs.
SHORT = dict(epochs=1, folds=4, progress=False)


@pytest.fixture(scope="module")
def small():
    """Two classes that even an untrained encoder tells apart partly, with one graph in ten of the
    size of two."""
    return graphs.data.graph_set([g for g in graphs.data.motifs(120) if int(g.y) < 2], "small")


@pytest.mark.slow
def test_labels_of_the_test_fold_are_not_seen(small, monkeypatch):
    seen, given = [], []
    model, loss = task.Task.model, task.Task.loss

    def watched(self):
        seen.append(self.labels)
        return model(self)

    def watched_loss(self, model, method, views, labels, gather):
        given.append(labels)
        return loss(self, model, method, views, labels, gather)

    monkeypatch.setattr(task.Task, "model", watched)
    monkeypatch.setattr(task.Task, "loss", watched_loss)
    run = train(small, "scl", **SHORT)
    assert run.record["configuration"]["labels"] == "fold"
    splits = readouts.stratified_folds(small.labels, 4, 0)
    for labels, (fitted, held_out) in zip(seen, splits, strict=True):
        assert (labels[held_out] == -1).all()
        assert torch.equal(labels[fitted], small.labels[fitted])
    seen.clear()
    train(small, "scl", labels="all", **SHORT)
    assert len(seen) == 1 and torch.equal(seen[0], small.labels)
    given.clear()
    run = train(small, "infograph", **SHORT)
    assert run.record["configuration"]["labels"] is None and given == [None]


@pytest.mark.slow
def test_hidden_labels_are_classes_of_their_own_in_two_views(small, monkeypatch):
    given, method = [], methods.build("scl")

    def forward(self, z1, z2, labels, features=None):
        given.append(labels)
        return (z1 * z2).sum()

    monkeypatch.setattr(type(method), "forward", forward)
    train(small, method, framework="graphcl", **SHORT)
    assert len(given) == 4
    for labels in given:
        hidden = labels[labels < 0]
        assert len(hidden) and len(hidden.unique()) == len(hidden)


# What bad input gets


def path(n: int, y: int = 0, **more) -> Data:
    ends = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    return Data(
        edge_index=torch.cat([ends, ends.flip(0)], 1), num_nodes=n, y=torch.tensor([y]), **more
    )


class Plain(torch.nn.Module):
    """InfoGraph's loss as a module of one's own."""

    name, supervised = "plain", False

    def __init__(self, supervised=False, **options):
        super().__init__()
        self.supervised, self.options = supervised, options

    def loss(self, contrast):
        return graphs.methods.build("infograph").loss(contrast)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(method="simclr"), "method 'simclr' is unknown; the catalogue has infograph"),
        (dict(method="unremix", framework="graphcl"), "unremix needs the inputs of the last layer"),
        (dict(method=methods.build("hcl")), "has no method 'hcl'"),
        (dict(method=Plain(supervised=True)), "plain learns from labels; pass labels='fold' or"),
        (dict(method=None), "method=None trains nothing"),
        (dict(queue=8), "queue=8 requires framework='graphcl'"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(small, arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**SHORT | {"dataset": small, "method": "hcl"} | arguments)


@pytest.mark.slow
def test_a_loss_of_one_s_own_trains_and_is_recorded(small, tmp_path):
    chosen = SHORT | dict(record_to=tmp_path)
    run = train(small, Plain(beta=2.0), labels="fold", **chosen)
    assert run.record["losses"] == train(small, "infograph", **chosen).record["losses"]
    configuration = run.record["configuration"]
    assert (configuration["method"], configuration["options"]) == ("plain", {"beta": 2.0})
    assert configuration["labels"] is None  # it asks for none
    row = records.frame(records.load_all(tmp_path)).query("method == 'plain'").iloc[0]
    assert row["beta"] == 2.0 and row["run"].configuration == configuration


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


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Write the files of a small set under the name MUTAG; return the function that does so."""
    about = graphs.data.downloads("graphs")
    monkeypatch.setitem(about, "MUTAG", about["MUTAG"] | {"digest": TOY_DIGEST})
    folder = tmp_path / "TUDataset" / "MUTAG" / "raw"
    folder.mkdir(parents=True)

    def write(**changes):
        for part, text in (TOY | changes).items():
            (folder / f"MUTAG_{part}.txt").write_text(text)

    write()
    return write


@pytest.mark.parametrize("changes", [dict(graph_labels="-1\n1\n1\n"), dict(graph_indicator="1\n")])
def test_files_of_another_edition_or_form_are_refused(toy, tmp_path, changes):
    toy(**changes)
    with pytest.raises(ValueError, match=r"MUTAG/raw cannot be read \(.*; delete it"):
        graphs.data.load("MUTAG", tmp_path)


def test_an_archive_is_downloaded_once(toy, tmp_path, monkeypatch):
    folder = tmp_path / "TUDataset" / "MUTAG" / "raw"
    with zipfile.ZipFile(tmp_path / "served.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"MUTAG/{file.name}")
    shutil.rmtree(folder)
    monkeypatch.setattr(graphs.data, "SOURCE", (tmp_path / "served.zip").as_uri())
    served = hashlib.sha256((tmp_path / "served.zip").read_bytes()).hexdigest()
    about = graphs.data.downloads("graphs")
    monkeypatch.setitem(about, "MUTAG", about["MUTAG"] | {"archive": served})
    assert graphs.data.load("MUTAG", tmp_path).digest == TOY_DIGEST
    assert {file.name for file in folder.iterdir()} == {f"MUTAG_{part}.txt" for part in TOY}


def test_features_follow_the_papers_rule():
    one_hot = graphs.data.graph_set([path(3), path(4)])
    assert one_hot.num_features == 3 and torch.equal(one_hot.graphs[0].x, torch.eye(3)[[1, 2, 1]])
    star = torch.stack([torch.zeros(1000, dtype=torch.long), torch.arange(1, 1001)])
    hub = Data(edge_index=torch.cat([star, star.flip(0)], 1), num_nodes=1001, y=torch.tensor([1]))
    x = torch.cat([g.x for g in graphs.data.graph_set([hub, path(3)]).graphs])
    assert x.shape == (1004, 1)
    assert [float(x.mean()), float(x.std())] == pytest.approx([0, 1], abs=1e-4)
