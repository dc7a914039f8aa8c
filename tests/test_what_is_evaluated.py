"""What reaches the readouts: plain images, encoders in eval mode, and labels of the right part."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from drawn import seeded
from one_call import train
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ndcg_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional

from hnlib import methods
from hnlib.contrast import Contrast
from hnlib.graphs import data as graph_data
from hnlib.graphs import encoders as graph_encoders
from hnlib.graphs import task as graphs
from hnlib.graphs.config import GraphRun
from hnlib.images import data, encoders, evaluation, task
from hnlib.retrieval import data as collections
from hnlib.retrieval.config import RetrievalRun
from hnlib.retrieval.task import Task as Retrieval
from hnlib.sentences import data as texts
from hnlib.sentences.config import SentenceRun
from hnlib.sentences.task import Task as Sentences
from hnlib.texts import encoders as text_encoders
from hnlib.texts.benchmarks import Benchmark
from hnlib.texts.evaluation import EncodedBenchmark
from hnlib.texts.registry import SIMILARITY, TRANSFER
from hnlib.training import diagnostics
from hnlib.training import evaluation as readouts


def three_digits():
    """180 images for training of three classes that are hard to tell apart, and their test part."""
    whole, parts, classes = data.load("digits"), {}, torch.tensor([3, 8, 9])
    for part in ("train", "test"):
        x, y = getattr(whole, f"x_{part}"), getattr(whole, f"y_{part}")
        ours = torch.isin(y, classes)
        parts |= {f"x_{part}": x[ours], f"y_{part}": torch.searchsorted(classes, y[ours])}
    return data.subset(replace(whole, name="three", class_names=tuple("389"), **parts), 180)


WHOLE = three_digits()
DIGITS = data.hold_out(WHOLE, 30)
SMALL = dict(dataset=WHOLE, batch_size=50, validation=30, evaluate_every=1)
SMALL |= dict(progress=False, device="cpu")


def plain(x):
    """Images as the encoder gets them."""
    return (x.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25


# Images


@pytest.mark.parametrize("training", [True, False])
def test_embeddings_are_of_plain_images_by_an_encoder_that_stays_as_it_was(training):
    torch.manual_seed(0)
    encoder, x = encoders.build("small-cnn", 1, 8).train(training), DIGITS.x_train[:10]
    before = copy.deepcopy(encoder)
    found = evaluation.embed(encoder, x, batch_size=4)
    assert encoder.training == training and not found.requires_grad
    assert all(map(torch.equal, encoder.state_dict().values(), before.state_dict().values()))
    assert all(p.requires_grad and p.grad is None for p in encoder.parameters())
    torch.testing.assert_close(found, before.eval()(plain(x)), rtol=0, atol=1e-5)
    with pytest.raises(AssertionError):  # statistics of the batch would give another
        torch.testing.assert_close(found, before.train()(plain(x)), rtol=0, atol=1e-5)


class Pixels(nn.Flatten):
    """An encoder that returns the pixels."""

    feature_dim = 64


def verdicts(dataset):
    """For each readout, which held-out images it puts into class c, [classes, N]."""
    every = []
    for c in range(dataset.num_classes):
        said = dict(y_test=dataset.y_test * 0 + c, y_validation=dataset.y_validation * 0 + c)
        every.append(evaluation.readouts(Pixels(), replace(dataset, **said))[1])
    return {name: torch.stack([one[name] for one in every]) for name in every[0]}


def test_labels_of_held_out_images_reach_neither_bank_nor_probe():
    """Called all of class c, an image is right for one c: that of its prediction."""
    found = verdicts(DIGITS)
    sizes = {"": len(DIGITS.y_test), "_validation": 30}
    assert {name: one.shape[1] for name, one in found.items()} == {
        name + part: size for name in ("knn", "linear") for part, size in sizes.items()
    }
    assert all((one.sum(0) == 1).all() for one in found.values())
    x, y = (getattr(DIGITS, f"{part}_train") for part in "xy")
    leaky = replace(
        DIGITS,
        x_train=torch.cat([x, DIGITS.x_test]),
        y_train=torch.cat([y, torch.zeros_like(DIGITS.y_test)]),
    )
    assert not torch.equal(verdicts(leaky)["knn"], found["knn"]), "negative control"


def test_a_part_is_judged_by_training_images_alone():
    """By scikit-learn, which never sees another image; validation images change nothing."""
    metrics, right = evaluation.readouts(Pixels(), DIGITS)
    x, *held_out = (
        plain(part).flatten(1) for part in (DIGITS.x_train, DIGITS.x_test, DIGITS.x_validation)
    )
    k, y = 150 // 50, DIGITS.y_train
    neighbours = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp(-d / 0.5)).fit(
        x, y
    )
    scaler = StandardScaler().fit(x)
    probe = LogisticRegression(tol=1e-8, max_iter=5000).fit(scaler.transform(x), y)
    for name, z, labels in zip(("", "_validation"), held_out, (DIGITS.y_test, DIGITS.y_validation)):
        assert right[f"knn{name}"].tolist() == (neighbours.predict(z) == labels.numpy()).tolist()
        assert (
            right[f"linear{name}"].tolist()
            == (probe.predict(scaler.transform(z)) == labels.numpy()).tolist()
        )
        for readout in ("knn", "linear"):
            assert metrics[readout + name] == right[readout + name].double().mean()
    assert metrics["knn"] != metrics["knn_validation"] and metrics["knn_k"] == k
    assert evaluation.knn(Pixels(), DIGITS) == metrics["knn"], "learning curves show it, too"
    noise = torch.randint(0, 256, DIGITS.x_validation.shape, generator=seeded(), dtype=torch.uint8)
    _, other = evaluation.readouts(Pixels(), replace(DIGITS, x_validation=noise))
    assert torch.equal(other["linear"], right["linear"])


def test_a_vote_is_of_one_image_in_fifty_and_of_200_at_most():
    sizes = [20, 100, 1437, 10_000, 50_000]
    assert [*map(readouts.neighbours, sizes)] == [1, 2, 28, 200, 200]


def test_capped_parts_are_of_their_own_images():
    capped = task.cap_sizes(DIGITS, 45)
    for part in ("train", "test"):
        x, every = (getattr(one, f"x_{part}").flatten(1).float() for one in (capped, DIGITS))
        rows = torch.cdist(x, every).argmin(1)
        assert len(rows.unique()) == 45 and torch.equal(every[rows], x)
        y, labels = (getattr(one, f"y_{part}") for one in (capped, DIGITS))
        assert torch.equal(labels[rows], y) and y.bincount().tolist() == [15] * 3
    assert capped.x_validation is DIGITS.x_validation


@pytest.fixture(scope="module")
def trained():
    """A run of two epochs, which holds out validation images and is read out after each."""
    return train(method="hcl", epochs=2, **SMALL)


def test_a_run_reports_the_readouts_of_its_encoder(trained):
    """Not of what comes after it, and of all test images."""
    expected, _ = evaluation.readouts(trained.encoder, DIGITS)
    assert {name: trained.metrics[name] for name in expected} == expected
    behind = nn.Sequential(trained.encoder, trained.projector)
    assert evaluation.readouts(behind, DIGITS)[0] != expected


def test_a_learning_curve_shows_what_a_run_that_ends_there_measures(trained):
    shorter = train(method="hcl", epochs=1, **SMALL)
    assert trained.history[1]["knn"] == shorter.metrics["knn"]
    for name in ("alignment", "uniformity", "collision"):
        assert trained.history[1][name] == shorter.history[1][name]


def test_learning_curves_are_of_the_encoder_in_eval_mode(trained):
    chosen = trained.record["configuration"]["augmentation"]
    first, second, labels = task.fixed_views(DIGITS, task.as_augmentation(chosen))
    z1, z2 = (trained.model.eval()(x).detach() for x in (first, second))
    row = trained.history[-1]
    assert row["alignment"] == pytest.approx(diagnostics.alignment(z1, z2), rel=1e-5)
    assert row["uniformity"] == pytest.approx(diagnostics.uniformity(z1), rel=1e-5)
    weights = methods.build("hcl").log_weights(Contrast.from_views(z1, z2)).exp()
    same = labels.repeat(2)[:, None] == labels.repeat(2)
    assert row["collision"] == pytest.approx(float((weights * same).sum(1).mean()), rel=1e-5)
    in_training = copy.deepcopy(trained.model).train()
    assert row["alignment"] != pytest.approx(
        diagnostics.alignment(in_training(first).detach(), in_training(second).detach()), rel=1e-3
    )


def test_the_views_of_learning_curves_are_two_of_each_image():
    """The same in every run, of training images with their labels."""
    shown = task.as_augmentation("digits")
    (first, second, labels), again = (task.fixed_views(DIGITS, shown) for _ in range(2))
    assert all(map(torch.equal, (first, second, labels), again))
    z, y = DIGITS.x_train, DIGITS.y_train
    unchanged, *_ = task.fixed_views(DIGITS, task.Augmentation())
    rows = torch.cdist(unchanged.flatten(1), plain(z).flatten(1)).argmin(1)
    assert torch.equal(plain(z)[rows], unchanged) and torch.equal(y[rows], labels)
    assert len(rows.unique()) == 150
    for one, other in ((first, second), (first, unchanged), (second, unchanged)):
        assert (one - other).abs().flatten(1).amax(1).min() > 0.1


# Sentences


@pytest.fixture(scope="module")
def bag():
    """A bag of letters and its tokenizer."""
    corpus = texts.corpus([["a b c d", "e f g h"], ["i j k l", "m n o p"]], vocabulary=300)
    torch.manual_seed(0)
    return text_encoders.build("bag", corpus.vocabulary, 6).encoder.eval(), corpus


def letters(count, seed):
    """Short texts; the first letter tells the class a little."""
    rng, y = np.random.default_rng(seed), np.arange(count) % 2
    first = np.where(rng.random(count) < 0.6, y, rng.integers(2, size=count))
    return [" ".join(["ab"[c], *rng.choice([*"defgh"], 2)]) for c in first], y


@pytest.mark.parametrize("name", ["trec", "msrp"])
def test_a_classifier_never_sees_the_labels_of_the_test_part(bag, name):
    encoder, corpus = bag
    (first, y), found = letters(80, 0), []
    second = letters(80, 1)[0] if name == "msrp" else None
    for c in (0, 1):
        said = np.r_[y[:60], np.full(20, c)]
        one = EncodedBenchmark(Benchmark(name, first, said, second, train=60), corpus.tokenizer, 8)
        scores, right = one.scores(encoder, 0)
        found.append((right[name], scores[f"{name}_validation"]))
    right, validation = zip(*found)
    assert (torch.stack(right).sum(0) == 1).all() and len(right[0]) == 20
    assert len({*validation}) == 1, "the penalty is chosen on the training part"


def test_a_benchmark_without_a_test_part_is_judged_in_folds_of_the_seed(bag):
    encoder, corpus = bag
    first, y = letters(60, 0)
    one, y = EncodedBenchmark(Benchmark("topic", first, y), corpus.tokenizer, 8), torch.tensor(y)
    with torch.no_grad():
        x = encoder(one.texts[0].rows(torch.arange(60), 8))

    def by_hand(seed):
        right = torch.zeros(60, dtype=torch.bool)
        parts = readouts.stratified_folds(y, 10, seed)
        for (_, rows), (labels, _) in zip(parts, readouts.classify(x, y, parts, seed)):
            right[rows] = labels == y[rows]
        return right

    scores, right = one.scores(encoder, 1)
    assert torch.equal(right["topic"], by_hand(1))
    assert scores["topic"] == pytest.approx(float(right["topic"].double().mean()))
    first, other = (readouts.stratified_folds(y, 10, seed)[0][1] for seed in (0, 1))
    assert not torch.equal(first, other), "control"


def test_a_class_with_fewer_examples_than_folds_is_refused():
    y = torch.tensor([0] * 9 + [1] * 4)
    assert len(readouts.stratified_folds(y, 4)) == 4
    with pytest.raises(ValueError, match=r"folds must be at most 4, .* got 5"):
        readouts.stratified_folds(y, 5)


def test_the_mean_of_the_validation_scores_is_of_them_alone(bag):
    _, corpus = bag
    run = SentenceRun(tasks=("alike",), batch_size=2).resolved()
    sentences, score = Sentences(run, dataset=corpus), {}
    for i, name in enumerate(TRANSFER):
        score |= {name: float(i), f"{name}_validation": 10.0 + 2 * i}
    score |= dict.fromkeys(SIMILARITY, 0.25)
    sentences.benchmarks = [SimpleNamespace(scores=lambda encoder, seed: (score, {}))]
    scores, _ = sentences._scores(sentences.model())
    assert [scores[name] for name in ("transfer", "transfer_validation", "sts")] == [2.5, 15, 0.25]


# Retrieval


@pytest.fixture
def searching(tmp_path, monkeypatch):
    """searching(collection, **options) returns a task and an untrained model."""
    monkeypatch.setenv("HNLIB_DATA", str(tmp_path))

    def make(collection, **options):
        run = RetrievalRun(vocabulary=500, dimension=16, batch_size=8, **options).resolved()
        found = Retrieval(run, methods.build("simclr"), dataset=collection)
        torch.manual_seed(0)
        return found, found.model().eval()

    return make


SHOP = collections.collection(
    "shop", [""] * 40, [f"film{i} genre{i % 7}" for i in range(40)], [], {}
)
LIKES = {u: [(7 * u + 3 * i) % 40 for i in range(16)] for u in range(12)}
PARTS = {"train": slice(0, 6), "dev": slice(6, 11), "test": slice(11, 16)}


def shop(**changes):
    """Users whose films of all parts are different ones."""
    judgements = {
        part: {u: dict.fromkeys(films[where], 1.0) for u, films in LIKES.items()}
        for part, where in PARTS.items()
    }
    queries = [f"user{u} genre{u % 7}" for u in LIKES]
    return replace(SHOP, queries=queries, judgements=judgements, digest="shop", **changes)


def by_sorting(searched, model, judgements, without):
    """The mean nDCG of scikit-learn over the documents that are left for each query."""
    n, found = len(searched.collection.texts), []
    with torch.no_grad():
        rows = [searched.texts.rows(torch.arange(*ends), 64) for ends in ((n, n + 12), (0, n))]
        q, d = (functional.normalize(model(tokens)) for tokens in rows)
    for query, judged in judgements.items():
        left = [i for i in range(n) if i not in without(query)]
        gains = [judged.get(i, 0.0) for i in left]
        found.append(ndcg_score([gains], (q[query] @ d[left].T)[None].numpy(), k=10))
    return pytest.approx(np.mean(found), abs=1e-6)


def test_films_of_other_parts_stay_out_of_a_users_ranking(searching):
    """Those of training out of both, those of validation out of the test ranking."""
    collection = shop(repeated=True)
    searched, model = searching(collection)
    scores, _ = searched._scores(model)
    train_part, dev, test = (collection.judgements[part] for part in PARTS)
    seen = {u: {*train_part[u], *dev[u]} for u in LIKES}
    assert scores["ndcg"] == by_sorting(searched, model, test, seen.get)
    assert scores["ndcg"] != by_sorting(searched, model, test, train_part.get)
    assert scores["ndcg_validation"] == by_sorting(searched, model, dev, train_part.get)
    assert scores["ndcg_validation"] != by_sorting(searched, model, dev, lambda user: ())


def test_where_queries_do_not_repeat_every_document_is_searched(searching):
    collection = shop()
    searched, model = searching(collection, leak=True)
    scores, _ = searched._scores(model)
    for part, name in (("test", "ndcg"), ("dev", "ndcg_validation")):
        judged = collection.judgements[part]
        assert scores[name] == by_sorting(searched, model, judged, lambda user: ())
        assert scores[name] != by_sorting(searched, model, judged, lambda user: LIKES[user][:6])


def test_the_validation_score_comes_from_validation_queries_alone(searching):
    """What is chosen by it has not seen the test queries."""
    searched, model = searching(collections.generated(60))
    before, _ = searched._scores(model)
    assert before["ndcg_validation"] != before["ndcg"]
    # other documents are relevant
    moved = {q: {(d + 30) % 60: 1.0 for d in of} for q, of in searched.validation.items()}
    searched.validation = moved
    after, _ = searched._scores(model)
    read_outs = ("ndcg", "recall10", "recall100", "mrr")
    for name in read_outs:
        mine = f"{name}_validation"
        assert after.pop(mine) != before.pop(mine) or name == "recall100"  # of 60, all are found
    assert after == before
    # the same judgements of the other part have the same score
    searched.collection.judgements["test"] = moved
    again, _ = searched._scores(model)
    assert all(again[f"{name}_validation"] == again[name] for name in read_outs)


def test_of_a_further_collection_the_test_queries_are_searched(searching):
    """The same collection has the same score."""
    searched, model = searching(collections.generated(), transfer=("generated",))
    scores, _ = searched._scores(model)
    assert scores["generated_ndcg"] == pytest.approx(scores["ndcg"], abs=1e-6)


# Graphs


@pytest.fixture(scope="module")
def motifs():
    """Forty graphs of two classes."""
    return graph_data.graph_set([g for g in graph_data.motifs(120) if int(g.y) < 2], "small")


def test_folds_are_those_of_the_seed(motifs):
    def folds(seed):
        run = GraphRun(folds=4, seed=seed, method="scl", framework="graphcl").resolved()
        return graphs.Task(run, methods.build("scl"), dataset=motifs)

    (first, again), other = (folds(0), folds(0)), folds(1)
    assert all(map(torch.equal, *([test for _, test in one.splits] for one in (first, again))))
    assert not all(map(torch.equal, *([test for _, test in one.splits] for one in (first, other))))
    every = torch.cat([test for _, test in other.splits])
    assert torch.equal(every.sort().values, torch.arange(40))
    for k, part in enumerate(other.parts):  # each training hides the labels of its own fold
        assert torch.equal((part.labels < 0).nonzero()[:, 0], other.splits[k][1])


def test_a_machine_never_sees_the_labels_of_the_test_fold(motifs):
    x, y = torch.randn(40, 3, generator=seeded()), motifs.labels.clone()
    x[:, 0] += y
    train_rows, test_rows = readouts.stratified_folds(y, 4, 0)[0]
    found = []
    for c in (0, 1):
        y[test_rows] = c
        found.append(readouts.svm(x, y, train_rows, test_rows))
    (first, *chosen), (second, *again) = found
    assert first + second == pytest.approx(1) and chosen == again and 0 < first < 1


def test_a_fold_is_judged_by_the_training_that_did_not_see_it():
    motifs = graph_data.graph_set(graph_data.motifs(60))
    run = GraphRun(folds=3, method="scl", framework="graphcl").resolved()
    whole = graphs.Task(run, methods.build("scl"), dataset=motifs)
    torch.manual_seed(0)
    model = whole.model().train()
    before = copy.deepcopy(model.state_dict())
    progress = SimpleNamespace(epoch=1)
    loop = SimpleNamespace(
        model=model, progress=progress, finished=True, scheduled={}, should_evaluate=bool
    )
    x = graph_encoders.embed(copy.deepcopy(model.encoder).eval(), motifs)
    every = [readouts.svm(x, motifs.labels, *split) for split in whole.splits]
    found = [part.evaluate(loop, 0.0, None) for part in whole.parts]
    assert [row["svm_folds"] for row in found] == [[accuracy] for accuracy, *_ in every]
    assert [row["inner_folds"] for row in found] == [[inner] for _, inner, _ in every]
    assert len({accuracy for accuracy, *_ in every}) > 1, "control: the folds differ"
    assert model.training and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_embeddings_of_graphs_are_of_the_encoder_in_eval_mode(motifs):
    torch.manual_seed(0)
    model = graph_encoders.build("graphcl", motifs.num_features, 8, 2).train()
    found = graph_encoders.embed(model.encoder, motifs, batch_size=16)
    with torch.no_grad():
        batch = graphs.Batch.from_data_list(motifs.graphs)
        expected = copy.deepcopy(model.encoder).eval()(batch.x, batch.edge_index, batch.batch)[1]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert model.encoder.training
