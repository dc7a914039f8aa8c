"""InfoGraph and GraphCL: the objective against loops, the couplings, invariances, splits and
labels, bad input."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from one_call import train
from torch.nn.functional import softplus
from torch_geometric.data import Batch, Data

from hnlib import graphs, methods, transport
from hnlib.contrast import Contrast
from hnlib.graphs import task
from hnlib.graphs.run import GraphRun
from hnlib.training import checkpoint, records
from hnlib.training import evaluation as readouts
from hnlib.training import run as training

ROOT = Path(__file__).resolve().parent.parent


def random_batch(seed: int, sizes=(3, 5, 2, 4), d: int = 6, scale: float = 2.0):
    """Embeddings of nodes and graphs, and whose node each is, in double precision."""
    g = torch.Generator().manual_seed(seed)
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    nodes, whole = (
        scale * torch.randn(k, d, generator=g, dtype=torch.float64)
        for k in (len(batch), len(sizes))
    )
    return nodes, whole, batch


def accurate(x):
    return softplus(x, threshold=60)


def by_loops(nodes, whole, batch, beta=0.0, tau=0.0, labels=None, positives="class"):
    """The objective of the chapter, node after node and graph after graph, with nothing but
    scalars."""
    n, m = len(nodes), len(whole)
    score = [[float(nodes[u] @ whole[g]) for g in range(m)] for u in range(n)]
    known = [-1] * m if labels is None else labels.tolist()
    same = [
        [g == batch[u] or (known[g] >= 0 and known[g] == known[batch[u]]) for g in range(m)]
        for u in range(n)
    ]
    largest = max(abs(score[u][g]) for u in range(n) for g in range(m) if not same[u][g])
    exp, sp = (
        lambda x, f=f: f(torch.tensor(x, dtype=torch.float64)).item() for f in (torch.exp, accurate)
    )
    total = 0.0
    for u in range(n):
        weight, value = 0.0, 0.0
        for g in range(m):
            if not same[u][g]:
                w = exp(beta * 2 * score[u][g] / largest)
                weight, value = weight + w, value + w * sp(score[u][g])
        pulled = [
            g
            for g in range(m)
            if (same[u][g] if labels is not None and positives == "class" else g == batch[u])
        ]
        for g in pulled:
            negative = value / weight
            if tau:
                negative = max((negative - tau * sp(score[u][g])) / (1 - tau), 0.0)
            total += (sp(-score[u][g]) + negative) / len(pulled)
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
        nodes, whole, batch = random_batch(seed)
        value = (
            graphs.methods.build(name, **options)
            .loss(Contrast.from_nodes(nodes, whole, batch))
            .item()
        )
        beta, tau = options.get("beta", 0.0), options.get("tau_plus", 0.0)
        assert value == pytest.approx(by_loops(nodes, whole, batch, beta, tau), rel=1e-6)
        if beta:  # the other sign is another objective
            assert abs(value - by_loops(nodes, whole, batch, -beta, tau)) > 1e-3


@pytest.mark.parametrize("name, beta", [("scl", 0.0), ("h-scl", 2.0)])
@pytest.mark.parametrize("positives", ["class", "own"])
def test_with_labels_too_and_unknown_ones_are_nobody_s_class(name, beta, positives):
    nodes, whole, batch = random_batch(3, sizes=(3, 2, 4, 2, 3))
    options = {"positives": positives} | ({"beta": beta} if beta else {})
    for labels in (torch.tensor([0, 1, 0, 1, 2]), torch.tensor([0, -1, 0, 1, -1])):
        value = (
            graphs.methods.build(name, **options)
            .loss(Contrast.from_nodes(nodes, whole, batch, labels, positives))
            .item()
        )
        assert value == pytest.approx(
            by_loops(nodes, whole, batch, beta, 0.0, labels, positives), rel=1e-6
        )
    hidden = Contrast.from_nodes(nodes, whole, batch, torch.full((5,), -1))
    plain = Contrast.from_nodes(nodes, whole, batch)
    assert torch.equal(hidden.admissible, plain.admissible) and torch.equal(
        hidden.positives, plain.positives
    )


def test_hard_negatives_have_the_papers_sign_and_easy_ones_the_released_one():
    nodes, whole, batch = random_batch(0)
    contrast = Contrast.from_nodes(nodes, whole, batch)
    hardest = contrast.similarity.masked_fill(~contrast.admissible, -torch.inf).argmax(
        1, keepdim=True
    )
    weight = {
        beta: graphs.methods.build("hcl", beta=beta)
        .log_weights(contrast)
        .gather(1, hardest)
        .squeeze(1)
        for beta in (2.0, 0.0, -2.0)
    }
    assert (weight[2.0] > weight[0.0]).all() and (weight[0.0] > weight[-2.0]).all()
    assert weight[0.0].exp().tolist() == pytest.approx([1 / 3] * len(nodes))


@pytest.mark.parametrize("name", ["hcl", "hcl-node"])
@pytest.mark.parametrize("beta", [3.0, -3.0])
def test_the_gradient_is_that_of_the_loss_scale_and_all(name, beta):
    """Against finite differences; with a scale held fixed, descent on easy weights would climb the
    loss."""
    nodes, whole, batch = random_batch(4, sizes=(2, 3, 2), d=2, scale=1.0)
    method = graphs.methods.build(name, beta=beta)

    def loss(x):
        return method.loss(Contrast.from_nodes(x, whole, batch))

    assert torch.autograd.gradcheck(loss, nodes.requires_grad_())
    frozen = graphs.methods.build(name, beta=beta, weights_gradient=False).loss(
        Contrast.from_nodes(nodes, whole, batch)
    )
    (full,) = torch.autograd.grad(loss(nodes), nodes)
    assert (torch.autograd.grad(frozen, nodes)[0] - full).abs().max() > 1e-3


def test_scaled_by_node_every_row_reaches_two():
    contrast = Contrast.from_nodes(*random_batch(2))
    size = (
        graphs.methods.scores(contrast, per="node")
        .abs()
        .masked_fill(~contrast.admissible, 0.0)
        .amax(1)
    )
    assert torch.allclose(size, torch.full_like(size, 2.0))
    x = graphs.methods.scores(contrast, per="node")
    expected = (1.5 * x).masked_fill(~contrast.admissible, -torch.inf).log_softmax(1)
    assert torch.allclose(
        graphs.methods.build("hcl-node", beta=1.5).log_weights(contrast), expected
    )
    assert not torch.allclose(
        graphs.methods.build("hcl", beta=1.5).log_weights(contrast).exp(), expected.exp(), atol=1e-2
    )


@given(
    st.lists(st.integers(1, 9), min_size=4, max_size=7),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(0, 99),
)
@settings(max_examples=15)
def test_transport_has_its_marginals_or_says_why_not(sizes, epsilon, seed):
    nodes, whole, batch = random_batch(seed, tuple(sizes))
    n, m = len(nodes), len(whole)
    contrast = Contrast.from_nodes(nodes, whole, batch)
    method = graphs.methods.build(
        "ot", epsilon=epsilon, tol=1e-4, max_iterations=20_000, on_failure="raise"
    )
    if (
        max(sizes) > (1 - 1 / m) * n + 1e-9
    ):  # the largest graph's nodes have nowhere to send their mass
        with pytest.raises(ValueError, match="at most"):
            method.log_weights(contrast)
        return
    assume(max(sizes) < 0.9 * (1 - 1 / m) * n)  # nearer to the bound Sinkhorn takes its time
    weights = method.log_weights(contrast).exp()
    assert torch.allclose(weights.sum(1), torch.ones(n, dtype=torch.float64))
    assert torch.allclose(
        weights.sum(0) / n, torch.full((m,), 1 / m, dtype=torch.float64), atol=1e-4
    )
    assert not weights[contrast.positives].any()


def test_the_tilt_has_not_the_transport_s_marginals():
    contrast = Contrast.from_nodes(*random_batch(1))
    tilt = graphs.methods.build("hcl", beta=2.0).log_weights(contrast).exp()
    assert (tilt.sum(0) / len(tilt) - 1 / 4).abs().max() > 0.02


@pytest.mark.parametrize(
    "name, options", [*METHODS, ("ot", {"epsilon": 0.5, "tol": 1e-10}), ("h-scl", {})], ids=str
)
def test_the_order_of_nodes_and_graphs_does_not_matter(name, options):
    nodes, whole, batch = random_batch(7)
    method = graphs.methods.build(name, **options)
    labels = torch.tensor([0, 1, 1, 0]) if method.entry.supervised else None
    value = method.loss(Contrast.from_nodes(nodes, whole, batch, labels))
    of_nodes = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))
    of_graphs = torch.tensor([2, 0, 3, 1])
    back = of_graphs.argsort()
    moved = Contrast.from_nodes(
        nodes[of_nodes],
        whole[of_graphs],
        back[batch[of_nodes]],
        None if labels is None else labels[of_graphs],
    )
    assert method.loss(moved).item() == pytest.approx(value.item(), rel=1e-7)
    wrong = Contrast.from_nodes(
        nodes[of_nodes], whole, back[batch[of_nodes]], labels
    )  # nodes moved, graphs not
    assert abs(method.loss(wrong).item() - value.item()) > 1e-3


def test_gradients_reach_every_part_and_are_finite():
    dataset = graphs.data.load("motifs")
    model = graphs.encoders.InfoGraph(graphs.encoders.GIN(dataset.num_features))
    batch = Batch.from_data_list(dataset.graphs[:12])
    for name in graphs.methods.CATALOGUE:
        method = graphs.methods.build(name)
        model.zero_grad()
        method.loss(model(batch, batch.y if method.entry.supervised else None)).backward()
        assert all(
            p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in model.parameters()
        ), name


def test_the_encoder_forgets_the_order_of_nodes():
    dataset = graphs.data.load("motifs")
    encoder = graphs.encoders.GIN(dataset.num_features).eval()
    graph = dataset.graphs[4]
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))
    moved = Data(x=graph.x[order], edge_index=order.argsort()[graph.edge_index], y=graph.y)
    a, b = (
        encoder(g.x, g.edge_index, torch.zeros(g.num_nodes, dtype=torch.long))
        for g in (graph, moved)
    )
    assert torch.allclose(a[1], b[1], atol=1e-4) and torch.allclose(a[0][order], b[0], atol=1e-5)
    assert torch.allclose(a[1], a[0].sum(0, keepdim=True), atol=1e-4) and a[1].shape == (1, 96)


# Training


@pytest.fixture(scope="module")
def small():
    """Two classes that even an untrained encoder tells apart partly, with one graph in ten of the
    size of two."""
    return graphs.data.graph_set([g for g in graphs.data.motifs(120) if int(g.y) < 2], "small")


@pytest.mark.slow
def test_a_run_is_a_function_of_its_seed(small, tmp_path):
    first, again, other = (
        train(
            small,
            "hcl",
            epochs=2,
            folds=4,
            seed=s,
            progress=False,
            beta=2.0,
            evaluate_at=(0, 1),
            record_to=tmp_path,
        )
        for s in (0, 0, 1)
    )
    assert (
        first.metrics["svm_folds"] == again.metrics["svm_folds"]
        and first.record["losses"] == again.record["losses"]
    )
    assert first.record["losses"] != other.record["losses"]
    assert [row["epoch"] for row in first.history] == [0, 1, 2]
    assert len(first.metrics["svm_folds"]) == 4 and first.metrics["svm"] == first.history[-1]["svm"]
    kept = records.load_all(tmp_path)
    assert len(kept) == 2 and {r["configuration"]["seed"] for r in kept} == {0, 1}
    assert kept[0]["configuration"]["options"]["beta"] == 2.0


@pytest.mark.slow
def test_labels_of_the_test_fold_are_not_seen(small, monkeypatch):
    seen, model = [], task.Task.model

    def watched(self):
        seen.append(self.labels)
        return model(self)

    monkeypatch.setattr(task.Task, "model", watched)
    run = train(small, "scl", epochs=1, folds=4, progress=False)
    splits = readouts.stratified_folds(small.labels, 4, 0)
    assert len(seen) == 4 and run.record["configuration"]["labels"] == "fold"
    for known, (fitted, held_out) in zip(seen, splits, strict=True):
        assert (known[held_out] == -1).all()
        assert torch.equal(known[fitted], small.labels[fitted])
    seen.clear()
    train(small, "scl", epochs=1, folds=4, labels="all", progress=False)
    assert len(seen) == 1 and torch.equal(seen[0], small.labels)
    given, loss = [], task.Task.loss
    monkeypatch.setattr(
        task.Task,
        "loss",
        lambda self, model, method, views, labels, gather: (
            given.append(labels) or loss(self, model, method, views, labels, gather)
        ),
    )
    run = train(small, "infograph", epochs=1, folds=4, progress=False)
    assert run.record["configuration"]["labels"] is None and given == [None]


@pytest.mark.slow
def test_graphcl_takes_the_methods_of_two_views(small):
    run = train(
        small, "adnce", framework="graphcl", epochs=1, folds=4, progress=False, temperature=0.2
    )
    assert (
        run.record["configuration"]["options"]["temperature"] == 0.2
        and 0 <= run.metrics["svm"] <= 1
    )
    assert records.run_of(run.record).changed_options() == {"temperature": 0.2}
    assert GraphRun(method="hcl").resolved().changed_options() == {}
    assert run.encoder.feature_dim == 96 and graphs.encoders.embed(run.encoder, small).shape == (
        len(small),
        96,
    )


@pytest.mark.slow
def test_hidden_labels_are_classes_of_their_own_in_two_views(small, monkeypatch):
    given = []
    method = methods.build("scl")

    def forward(self, z1, z2, labels, features=None):
        given.extend([labels] if len(z1) == len(small) else [])  # not the trial of `build`
        return (z1 * z2).sum()

    monkeypatch.setattr(type(method), "forward", forward)
    train(small, method, framework="graphcl", epochs=1, folds=4, progress=False)
    assert len(given) == 4
    for labels in given:
        hidden = labels[labels < 0]
        assert len(hidden) and len(hidden.unique()) == len(hidden)


def watched_weights(run):
    return [value.clone() for value in run.model.state_dict().values()]


class Stop:
    """Interrupts the training at the k-th state that is kept."""

    def __init__(self, k):
        self.left, self.save = k, checkpoint.Checkpoint.save

    def __call__(self, kept, state):
        self.save(kept, state)
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


RESUMED = [
    ("infograph", "ot", dict(epsilon=0.05, max_iterations=1), 1),  # which counts
    ("infograph", "h-scl", dict(labels="fold"), 3),  # within the second fold
    ("graphcl", "adnce", dict(lr_schedule="cosine", schedule={"sigma": (1.0, 0.5)}), 1),
    ("graphcl", "hcl", dict(queue=24), 1),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hnlib.transport.ConvergenceWarning")
@pytest.mark.parametrize("framework, method, options, stop", RESUMED, ids=str)
def test_interrupted_and_resumed_equals_uninterrupted(
    small, tmp_path, monkeypatch, framework, method, options, stop
):
    """To the last bit of the weights, and to everything that is recorded but the time."""
    chosen = dict(method=method, framework=framework, epochs=2, folds=4, batch_size=12, **options)
    chosen |= dict(progress=False, evaluate_at=(1,), device="cpu")
    whole = train(small, **chosen)
    interrupt = Stop(stop)
    with monkeypatch.context() as patch, pytest.raises(training.Interrupted) as stopped:
        patch.setattr(checkpoint.Checkpoint, "save", lambda *state: interrupt(*state))
        train(small, checkpoint=tmp_path / "c", **chosen)
    assert "repeat the same call" in str(stopped.value)
    assert ("fold" in str(stopped.value)) == (options.get("labels") == "fold")
    resumed = train(small, checkpoint=tmp_path / "c", **chosen)
    assert all(map(torch.equal, watched_weights(whole), watched_weights(resumed)))
    assert whole.metrics == resumed.metrics and whole.history == resumed.history
    assert whole.record["losses"] == resumed.record["losses"]
    again = train(small, checkpoint=tmp_path / "c", **chosen)  # nothing is left to be done
    assert again.history == whole.history
    with pytest.raises(ValueError, match="hidden is 32 there and 8 here"):
        train(small, checkpoint=tmp_path / "c", **chosen, hidden=8)


@pytest.mark.slow
def test_a_longer_run_of_graphs_goes_on_unless_it_has_folds(small, tmp_path):
    chosen = dict(folds=4, progress=False, checkpoint=tmp_path / "c")
    train(small, "hcl", epochs=1, **chosen)
    longer = train(small, "hcl", epochs=2, **chosen)
    whole = train(small, "hcl", epochs=2, folds=4, progress=False)
    assert longer.history == whole.history
    assert all(map(torch.equal, watched_weights(whole), watched_weights(longer)))
    chosen["checkpoint"] = tmp_path / "folds"
    train(small, "scl", epochs=1, **chosen)
    with pytest.raises(ValueError, match="epochs is 1 there and 2 here"):
        train(small, "scl", epochs=2, **chosen)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(compile=True), "Input should be False"),
        (dict(queue=8), "queue=8 requires framework='graphcl'"),
        (dict(queue=8, framework="graphcl", method="scl"), "queue=8 requires labels='all'"),
    ],
)
def test_what_graphs_do_not_have_is_refused(small, options, message):
    with pytest.raises(ValueError, match=message):
        train(small, **dict(method="hcl", epochs=1, folds=4, progress=False) | options)


@pytest.mark.slow
@pytest.mark.parametrize("framework, method", [("infograph", "hcl"), ("graphcl", "simclr")])
def test_a_saved_run_comes_back(small, tmp_path, framework, method):
    run = train(
        small, method, framework=framework, epochs=1, folds=4, hidden=8, layers=2, progress=False
    )
    again = training.load(run.save(tmp_path / "run.safetensors"))
    assert again.record == run.record
    assert torch.equal(
        graphs.encoders.embed(again.encoder, small), graphs.encoders.embed(run.encoder, small)
    )


@pytest.mark.slow
def test_a_real_data_set_where_there_is_one():
    """One seed of MUTAG where the data are at hand; without them the embedded graphs."""
    root = os.environ.get("HNLIB_DATA")
    name = "MUTAG" if root and (Path(root) / "TUDataset" / "MUTAG").is_dir() else "motifs"
    dataset = graphs.data.load(name)
    run = train(dataset, "infograph", epochs=5, progress=False)
    share = dataset.labels.bincount().max() / len(dataset)
    assert run.metrics["svm"] > float(share) + 0.1  # better than always the largest class
    if name == "MUTAG":
        assert len(dataset) == 188 and dataset.num_features == 7


# What bad input gets


def path(n: int, y: int = 0, **more) -> Data:
    ends = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    return Data(
        edge_index=torch.cat([ends, ends.flip(0)], 1), num_nodes=n, y=torch.tensor([y]), **more
    )


def altered(**changes) -> Data:
    graph = path(3)
    for name, value in changes.items():
        setattr(graph, name, value)
    return graph


@pytest.mark.parametrize(
    "wrong, message",
    [
        (path(1), "at least 2 nodes and an edge"),
        (altered(edge_index=torch.zeros(2, 0, dtype=torch.long)), "at least 2 nodes and an edge"),
        (altered(y=None), "one integer label y from 0, got None"),
        (path(3, -1), "one integer label y"),
        (altered(edge_index=torch.tensor([[0, 3], [3, 0]])), "an edge to a node outside 0 to 2"),
        (path(3, x=torch.tensor([[1.0], [torch.nan], [2.0]])), "not finite"),
        (path(3, x=torch.ones(3, 2)), "features of widths"),
    ],
)
def test_graphs_that_cannot_be_used_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        graphs.data.graph_set([path(3), wrong])


def test_the_name_of_a_built_in_set_is_refused():
    with pytest.raises(ValueError, match="MUTAG is the name of a built-in data set"):
        graphs.data.graph_set([path(3), path(4)], "MUTAG")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(dataset="MUTANT"), "unknown data set 'MUTANT'"),
        (dict(method="simclr"), "method 'simclr' is unknown; the catalogue has infograph"),
        (dict(method="adnce", framework="graphcl", beta=1.0), "adnce has no option 'beta'"),
        (dict(method=None), "method=None trains nothing"),
        (dict(folds=40), "40 stratified folds need"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**{"dataset": "motifs", "epochs": 1, "progress": False} | arguments)


def test_a_class_of_one_graph_is_refused_before_training():
    lonely = graphs.data.graph_set([path(3 + i % 4, i % 2) for i in range(40)] + [path(5, 2)])
    with pytest.raises(ValueError, match="class 2 has 1 members"):
        train(lonely, epochs=1, progress=False)


@pytest.mark.parametrize(
    "framework, method",
    [("infograph", methods.build("hcl")), ("graphcl", graphs.methods.build("hcl"))],
)
def test_a_method_of_the_other_catalogue_is_refused(framework, method):
    with pytest.raises(ValueError, match="has no method 'hcl'"):
        train("motifs", method, framework=framework, epochs=1, progress=False)


class Plain(torch.nn.Module):
    """InfoGraph's loss, and SimCLR's, as a module of one's own."""

    name, supervised = "plain", False

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def loss(self, contrast):
        return graphs.methods.build("infograph").loss(contrast)

    def forward(self, z1, z2, labels=None):
        return methods.build("simclr")(z1, z2)


@pytest.mark.slow
@pytest.mark.parametrize("framework, method", [("infograph", "infograph")])
def test_a_loss_of_one_s_own_trains_and_is_recorded(small, tmp_path, framework, method):
    chosen = dict(framework=framework, epochs=2, folds=4, progress=False, record_to=tmp_path)
    run = train(small, Plain(beta=2.0), labels="fold", **chosen)
    ours = train(small, method, **chosen)
    assert run.record["losses"] == ours.record["losses"]
    kept = run.record["configuration"]
    assert kept["method"] == "plain" and kept["options"] == {"beta": 2.0}
    assert kept["labels"] is None  # it asks for none
    row = records.frame(records.load_all(tmp_path)).query("method == 'plain'").iloc[0]
    assert row["beta"] == 2.0 and row["run"].configuration == kept


@pytest.mark.parametrize(
    "changes, options, message",
    [
        (dict(supervised=True), {}, "plain learns from labels; pass labels='fold' or 'all'"),
        ({}, dict(queue=8, framework="graphcl"), "queue=8 requires a method of the catalogue"),
    ],
)
def test_a_loss_of_one_s_own_that_cannot_train_is_refused(small, changes, options, message):
    own = type("Own", (Plain,), changes)()
    with pytest.raises(ValueError, match=message):
        train(small, own, epochs=1, folds=4, progress=False, **options)


def test_the_first_view_may_be_the_graph_itself(small):
    generator = torch.Generator().manual_seed(0)
    options = dict(framework="graphcl", method="simclr", batch_size=8, folds=4)
    chosen = GraphRun(original=True, **options)
    same = task.Task(chosen.resolved(), dataset=small)
    whole, view = same.views(torch.arange(8), generator, slice(None))
    batch = Batch.from_data_list(small.graphs[:8])
    assert torch.equal(whole.x, batch.x) and torch.equal(whole.edge_index, batch.edge_index)
    assert view.edge_index.shape != batch.edge_index.shape
    with pytest.raises(ValueError, match="original requires framework=graphcl"):
        train(small, original=True, epochs=1, folds=4, progress=False)


@pytest.mark.parametrize("options", [dict(method="unremix")])
def test_graphcl_refuses_what_it_cannot_train(options):
    with pytest.raises(ValueError, match="graphcl cannot train"):
        train("motifs", framework="graphcl", epochs=1, progress=False, **options)


@pytest.mark.parametrize(
    "sizes, arguments, message",
    [
        ((6, 5), dict(folds=4), "needs 5 graphs in each training part, got"),
        ((15, 16), dict(folds=10, batch_size=2), "batch_size must be at least 3 for 31 graphs"),
    ],
)
def test_what_would_fail_after_training_fails_before_it(sizes, arguments, message, monkeypatch):
    monkeypatch.setattr(task.Task, "model", None)
    several = graphs.data.graph_set(
        [path(3 + i % 4, y) for y, k in enumerate(sizes) for i in range(k)]
    )
    with pytest.raises(ValueError, match=message):
        train(several, epochs=1, progress=False, **arguments)


@pytest.mark.slow
def test_a_run_leaves_the_caller_alone(small):
    """The global random state stays as it was, and so does a method's count of couplings that did
    not converge."""
    method, state = (
        graphs.methods.build("ot", epsilon=0.05, max_iterations=1),
        torch.get_rng_state(),
    )
    with pytest.warns(transport.ConvergenceWarning):
        runs = [train(small, method, epochs=1, folds=4, progress=False) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state) and method.unconverged == 0
    assert runs[0].metrics["unconverged"] == runs[1].metrics["unconverged"] > 0


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
    monkeypatch.setitem(graphs.data.TU, "MUTAG", TOY_DIGEST)
    folder = graphs.data.location(tmp_path) / "MUTAG" / "raw"
    folder.mkdir(parents=True)

    def write(**changes):
        for part, text in (TOY | changes).items():
            (folder / f"MUTAG_{part}.txt").write_text(text)

    write()
    return write


def test_graphs_are_read_from_text(toy, tmp_path):
    read = graphs.data.load("MUTAG", tmp_path)
    assert read.labels.tolist() == [0, 1, 0] and [g.num_nodes for g in read.graphs] == [3, 2, 3]
    assert [g.edge_index.T.tolist() for g in read.graphs] == [
        [[0, 1], [1, 0], [1, 2], [2, 1]],
        [[0, 1], [1, 0]],
        [[0, 2], [1, 2], [2, 0], [2, 1]],
    ]
    assert read.graphs[0].x.tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_attributes_of_nodes_are_not_features(toy, tmp_path):
    before = graphs.data.load("MUTAG", tmp_path).digest
    toy(node_attributes="0.5, 1\n" * 8)
    assert graphs.data.load("MUTAG", tmp_path).digest == before


def test_another_edition_is_refused(toy, tmp_path):
    toy(graph_labels="-1\n1\n1\n")
    with pytest.raises(ValueError, match=r"MUTAG/raw has the digest .* instead of .*; delete it"):
        graphs.data.load("MUTAG", tmp_path)


def test_an_archive_is_downloaded_once(toy, tmp_path, monkeypatch):
    folder = graphs.data.location(tmp_path) / "MUTAG" / "raw"
    before = graphs.data.load("MUTAG", tmp_path).digest
    with zipfile.ZipFile(tmp_path / "served.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"MUTAG/{file.name}")
    shutil.rmtree(folder)
    monkeypatch.setattr(
        graphs.data, "download_url", lambda url, folder, log: tmp_path / "served.zip"
    )
    assert graphs.data.load("MUTAG", tmp_path).digest == before
    assert {file.name for file in folder.iterdir()} == {f"MUTAG_{part}.txt" for part in TOY}


def test_without_network_the_place_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs.data, "SOURCE", f"file://{tmp_path}/{{}}.zip")
    with pytest.raises(ValueError, match=r"MUTAG could not be downloaded .*MUTAG/raw"):
        graphs.data.load("MUTAG", tmp_path)


def test_features_follow_the_papers_rule():
    one_hot = graphs.data.graph_set([path(3), path(4)])
    assert one_hot.num_features == 3 and torch.equal(one_hot.graphs[0].x, torch.eye(3)[[1, 2, 1]])
    star = torch.stack([torch.zeros(1000, dtype=torch.long), torch.arange(1, 1001)])
    hub = Data(edge_index=torch.cat([star, star.flip(0)], 1), num_nodes=1001, y=torch.tensor([1]))
    scaled = graphs.data.graph_set([hub, path(3)])
    x = torch.cat([g.x for g in scaled.graphs])
    assert (
        x.shape == (1004, 1)
        and abs(float(x.mean())) < 1e-5
        and float(x.std()) == pytest.approx(1, abs=1e-4)
    )


def test_without_pytorch_geometric_recorded_runs_of_graphs_are_still_listed(small, tmp_path):
    train(small, "ot", epochs=1, folds=4, progress=False, record_to=tmp_path, epsilon=0.25)
    code = (
        "import sys; sys.modules['torch_geometric'] = None\nfrom hnlib.__main__ import main\n"
        f"sys.exit(main(['data']) or main(['results', '--folder', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    line = done.stdout.splitlines()[-1]
    assert (
        line.startswith("small, infograph, gin3, 1 epochs, folds 4: ot epsilon=0.25")
        and "svm" in line
    )


def test_two_graphs_are_enough_and_a_batch_may_be_larger_than_the_set(small):
    nodes, whole, batch = random_batch(5, sizes=(3, 2))
    for name, options in METHODS:
        value = (
            graphs.methods.build(name, **options)
            .loss(Contrast.from_nodes(nodes, whole, batch))
            .item()
        )
        # a single negative has all the weight
        assert value == pytest.approx(
            by_loops(nodes, whole, batch, 0.0, options.get("tau_plus", 0.0)), rel=1e-6
        )
    with pytest.raises(
        ValueError, match="no coupling"
    ):  # the larger graph's nodes have nowhere to send their mass
        graphs.methods.build("ot").log_weights(Contrast.from_nodes(nodes, whole, batch))
    run = train(small, epochs=1, folds=4, batch_size=10 * len(small), progress=False)
    assert (
        run.record["losses"]
        == train(small, epochs=1, folds=4, batch_size=len(small), progress=False).record["losses"]
    )
