"""Retrieval: collections, metrics, mining, training."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn import seeded
from sklearn.metrics import ndcg_score

from hnlib import methods
from hnlib.contrast import Contrast
from hnlib.images import _torchvision  # noqa: F401
from hnlib.retrieval import data, encoders, metrics, mining
from hnlib.retrieval.config import RetrievalRun
from hnlib.retrieval.task import Task, _guided
from hnlib.training.train import train

TINY = dict(batch_size=32, epochs=1, max_steps=3, vocabulary=500, dimension=16)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HNLIB_DATA", str(tmp_path / "data"))


HEAD = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def folder(tmp_path):
    """A collection as a user writes it."""
    root = tmp_path / "mine"
    (root / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        rows = [{"_id": f"{name[0]}{i}", "text": f"number {i}"} for i in range(10)]
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, pairs in {"test": ["00", "11"], "train": ["50", "57", "67", "89"]}.items():
        lines = [f"q{query}\tc{document}\t1\n" for query, document in pairs]
        (root / f"qrels/{split}.tsv").write_text("".join([HEAD, *lines]))
    return root


@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_those_of_scikit_learn_and_of_sorting(seed):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.integers(0, 12, (6, 150)) / 10).float()  # many are equal
    grades = rng.integers(1, 4, (6, 150)) * (rng.random((6, 150)) < 0.1)
    judged = [{d: float(row[d]) for d in row.nonzero()[0]} for row in grades]
    ranked = metrics.search(scores, torch.eye(150))
    found = metrics.evaluate(ranked, judged)
    for i, row in enumerate(scores.tolist()):
        order = sorted(range(150), key=row.__getitem__, reverse=True)  # of equals the first leads
        assert ranked[i].tolist() == order[:100]
        hits = [d in judged[i] for d in order]
        first = hits.index(True) + 1
        assert found["recall10"][i] == pytest.approx(sum(hits[:10]) / sum(hits))
        assert found["recall100"][i] == pytest.approx(sum(hits[:100]) / sum(hits))
        assert found["mrr"][i] == pytest.approx(1 / first if first <= 10 else 0)
    places = np.full(grades.shape, -1000.0)
    np.put_along_axis(places, ranked.numpy(), -np.arange(100.0)[None], 1)
    expected = pytest.approx(ndcg_score(grades, places, k=10), abs=1e-6)
    assert float(found["ndcg"].mean()) == expected
    exponential = [{d: 2**g - 1 for d, g in of.items()} for of in judged]  # the control
    assert float(metrics.evaluate(ranked, exponential)["ndcg"].mean()) != expected


def test_training_queries_linked_to_test_queries_are_left_out(folder):
    collection = data.load(f"folder:{folder}")
    assert collection.name.startswith("folder:mine-")
    train, validation = collection.split()
    assert train == {8: {9: 1.0}}
    assert [*validation] == [5, 6]  # 5 shares c0 with a test query, 6 shares c7 with 5
    assert [*collection.split(leak=True)[0]] == [5, 6, 8]


def test_a_chain_of_queries_is_followed_whatever_their_order():
    """Of training queries 5, 6 and 7 each shares a document with the one before, 5 with the test."""
    judged = {5: (0, 1), 6: (1, 2), 7: (2,), 8: (9,)}
    for order in itertools.permutations(judged):
        train_part = {query: dict.fromkeys(judged[query], 1.0) for query in order}
        judgements = {"train": train_part, "test": {0: {0: 1.0}}}
        collection = data.collection("mine", [""] * 10, ["a"] * 10, ["b"] * 9, judgements)
        left, validation = collection.split()
        assert left == {8: {9: 1.0}} and {*validation} == {5, 6, 7}


def test_a_split_of_its_own_validates_where_there_is_one(folder):
    (folder / "qrels/dev.tsv").write_text(f"{HEAD}q9\tc5\t1\n")
    train_part, validation = data.load(f"folder:{folder}").split()
    assert train_part == {8: {9: 1.0}} and validation == {9: {5: 1.0}}


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_the_digest_of_a_folder_sees_every_file(folder, name):
    """The tokens of its texts are cached by it."""
    before = data.load(f"folder:{folder}")
    content = (folder / name).read_text()
    (folder / name).write_text(content.replace("number 3", "number 33").replace("c1\t", "c2\t"))
    after = data.load(f"folder:{folder}")
    assert after.digest != before.digest and after.name != before.name
    (folder / name).write_text(content)
    assert data.load(f"folder:{folder}").digest == before.digest


def test_the_digest_of_a_collection_sees_every_part():
    given = dict(titles=["a"], texts=["b"], queries=["c"], judgements={"test": {0: {0: 1.0}}})
    changes = [{}, dict(titles=["x"]), dict(texts=["x"]), dict(queries=["x"])]
    changes += [dict(judgements={"test": {0: {0: 2.0}}}), dict(judgements={"dev": {0: {0: 1.0}}})]
    digests = [data.collection("mine", **given | change).digest for change in changes]
    assert len({*digests}) == len(changes)
    assert data.collection("mine", **given).digest == digests[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("queries.jsonl", '{"_id": "q0", "text": " "}\n', "line 1 of queries.jsonl.*needs a text"),
        ("corpus.jsonl", '{"_id": "d", "text": "a"}\n' * 2, "line 2 of corpus.*'d' is there twice"),
        ("qrels/test.tsv", f"{HEAD}q0\tc99\t1\n", "line 2.*KeyError: 'c99'"),
        # the head may be missing
        ("qrels/test.tsv", "q0\tc0\t1\nq0\tc0\t2\n", "line 2 of qrels/test.tsv.*differently"),
        ("qrels/test.tsv", f"{HEAD}q0\tc0\t0\n", "no document relevant"),
    ],
)
def test_bad_collections_get_one_sentence(folder, name, content, message):
    (folder / name).write_text(content)
    with pytest.raises(
        ValueError, match=f"{message}.*as `python -m pydoc hnlib.retrieval.data.read` says"
    ):
        data.load(f"folder:{folder}")
    with pytest.raises(ValueError, match=r"No such file .*train.csv.*pydoc .*data.banking"):
        data.load("banking77", folder)


def test_search_keeps_the_order_of_equal_scores():
    """Ties inside the depth and at its end: as a stable sort of all documents has them."""
    generator = seeded()
    for size in (3, 20, 150, 400):
        scores = torch.randint(0, 9, (7, size), generator=generator).float()
        left_out = [torch.randperm(size, generator=generator)[: size // 4] for _ in scores]
        found = metrics.search(torch.eye(7), scores.T.contiguous(), without=left_out)
        for row, without, ranked in zip(scores, left_out, found.tolist()):
            row[without] = -torch.inf
            wanted = sorted(range(size), key=lambda i: (-row[i], i))
            assert ranked == wanted[:100]


def test_candidates_are_the_ranks_without_what_is_judged():
    s = torch.tensor([[5.0, 4, 3, 2, 1, 0], [0.0, 1, 2, 3, 4, 5]])
    relevant = torch.tensor([0, 2, 6 + 5])

    def candidates(*ranks, **margin):
        scores, positives = lambda rows: s[rows].clone(), torch.tensor([0, 5])
        return mining.candidates(scores, positives, relevant, ranks, **margin).tolist()

    assert candidates(1, 3) == [[3, 4], [3, 2]]
    assert candidates(0, 2, margin=0.7) == [[3, 4], [3, 2]]  # 4 is above 0.7 of 5
    # above the margin, least similar first
    assert candidates(0, 3, margin=0.3) == [[4, 5, 3], [1, 0, 2]]
    with pytest.raises(ValueError, match="lower the last rank"):
        candidates(0, 5)


def views(**fields):
    run = RetrievalRun(**TINY | fields).resolved()
    method = methods.build(run.method, temperature=0.1)
    task = Task(run, method)
    torch.manual_seed(0)
    model = task.model()
    generator = seeded()
    batch = task.batches(generator)[0]
    return task, model, method, task.views(batch, generator, slice(None)), batch


def test_views_are_the_texts_of_queries_and_answers():
    """A title's answer is the text below it."""
    task, _, _, given, batch = views()
    found, encode = task.collection, task.texts.tokenizer.encode
    for row, i in enumerate(batch.tolist()):
        answers = found.texts if i < len(found.titled) else found.documents
        for tokens, text in zip(given.tokens, (task.asked_texts[i], answers[task.document[i]])):
            used = tokens[row][tokens[row] > 0].tolist()
            assert used and used == encode(text).ids[: len(used)]


@pytest.mark.parametrize("mined", ["bm25", "model"])
def test_judged_documents_are_no_negatives(mined):
    task, _, _, given, batch = views(mined=mined, negatives=2)
    excluded, own = given.excluded, given.mined_for
    assert given.tokens[2].shape[0] == 64 and excluded.shape == own.shape == (32, 96)
    relevant = {divmod(code, 500) for code in task.relevant.tolist()}
    keys = task.document[batch].tolist()
    for i, j in np.ndindex(32, 32):
        assert bool(excluded[i, j]) == ((int(batch[i]), keys[j]) in relevant)
    assert not (excluded & own).any() and own.sum(1).eq(2).all()


def loss_of(task, model, method, given):
    return task.loss(model, method, given, None, lambda z: z).item()


def contrast_of(model, given):
    queries, *keys = (model(view) for view in given.tokens)
    return Contrast.from_pairs(queries, torch.cat(keys))


def by_factors(contrast, negatives=1.0, answer=1.0):
    """InfoNCE at t = 0.1 where a negative counts so many times, and the answer too."""
    push = ((10 * contrast.similarity).exp() * negatives * contrast.admissible).sum(1)
    pull = (10 * contrast.similarity.diagonal()).exp() * answer
    return (1 + push / pull).log().mean().item()


HARD = dict(mined="model", negatives=2, hardness_strength=5.0)
# how often negatives and the answer count, of the similarities, which keys are an anchor's own
# mined ones, and the shares of the keys in the batches
FACTORS = {
    "plain": ({}, lambda s, own, q: []),
    "hard": (HARD | dict(hardness_mode="all"), lambda s, own, q: [(5 * s).exp()]),
    "hard, mined": (HARD | dict(hardness_mode="mined"), lambda s, own, q: [(5 * s * own).exp()]),
    "hard, not mined": (
        HARD | dict(hardness_mode="in-batch"),
        lambda s, own, q: [(5 * s * ~own).exp()],
    ),
    "log q": (dict(logq="on"), lambda s, own, q: [1 / q, 1 / q]),
    "log q, refined": (dict(logq="refined"), lambda s, own, q: [1 / q, 32]),
}


@pytest.mark.parametrize("case", FACTORS)
def test_options_of_the_loss_say_how_often_a_key_that_is_left_counts(case):
    options, factors = FACTORS[case]
    task, model, method, given, batch = views(**options)
    given.excluded |= torch.rand(given.excluded.shape, generator=seeded(1)) < 0.6
    contrast = contrast_of(model, given).without(given.excluded)
    q = task.counts[task.document[batch]] / len(task.asked)
    expected = by_factors(contrast, *factors(contrast.similarity, given.mined_for, q))
    loss = loss_of(task, model, method, given)
    assert loss == pytest.approx(expected, rel=1e-5)
    other = by_factors(contrast) if options else method.loss(contrast).item()  # the controls
    assert loss != pytest.approx(other, rel=1e-3)


def test_a_mined_negative_is_the_best_of_its_own_draws():
    task, *_ = views(mined="bm25", negatives=2, best_of=3)
    ranks = torch.arange(30).expand(4000, 30)
    drawn = task._draw(ranks, seeded()).double()
    # the least of three of thirty is at (30 - 3)/(3 + 1) on average; of six, the two least at 4.9
    assert drawn.mean() == pytest.approx(6.75, abs=0.2)
    generator = seeded()
    several = [task._draw(ranks[:40], generator) for _ in range(2)]
    assert not torch.equal(*several)  # each batch draws its own


def test_a_guide_takes_away_what_it_scores_above_the_answer():
    s = torch.tensor([[0.5, 0.9, 0.1, 0.2], [0.3, 0.1, 0.2, 0.4], [0.0, 0.5, 0.4, 0.6]])
    excluded = torch.zeros(3, 4, dtype=torch.bool)
    taken = _guided(s, 0.0, excluded).nonzero().tolist()
    assert taken == [[0, 1], [2, 1], [2, 3]]  # query 1 would have no negative left
    assert _guided(s, 0.15, excluded).nonzero().tolist() == [[0, 1], [1, 0], [1, 3], [2, 3]]


@pytest.mark.parametrize("name", ["bm25", "static"])
def test_a_teacher_is_what_the_student_shall_repeat(name):
    task, model, method, given, batch = views(method="soft-targets", teacher=name)
    documents, keys = task.collection.documents, task.document[batch].tolist()
    tokenizer, weights = encoders.static_tokenizer(), encoders.static_embeddings()
    for i, j in ((0, 0), (0, 5), (3, 1)):
        query, document = task.asked_texts[int(batch[i])], keys[j]
        texts = tokenizer.encode_batch([query, documents[document]])
        both = [weights[text.ids].mean(0) for text in texts]
        expected = torch.nn.functional.cosine_similarity(*both, dim=0)
        if name == "bm25":
            expected = mining.BM25(documents).scores([query])[0, document]
        assert float(given.teacher[i, j]) == pytest.approx(float(expected), abs=1e-5)
    contrast = contrast_of(model, given).without(given.excluded).rescaled()
    taught = float(method.loss(replace(contrast, teacher=given.teacher)))
    assert loss_of(task, model, method, given) == pytest.approx(taught, rel=1e-5)
    assert loss_of(task, model, method, replace(given, teacher=None)) != pytest.approx(taught)


def test_batches_hold_whom_the_run_asks_for():
    alike = {}
    for composition in ("random", "similar", "distinct"):
        task = views(composition=composition)[0]
        batches = task.batches(seeded(1))
        every = torch.cat([*batches])
        assert len(every.unique()) == len(every) >= task.examples - 64  # a batch or two are left
        assert all(len(batch) == 32 for batch in batches)
        near = [task.scorer("static")(batch, task.document[batch]).mean() for batch in batches]
        alike[composition] = float(torch.stack(near).mean())
        distinct = all(len(task.document[batch].unique()) == 32 for batch in batches)
        assert distinct == (composition == "distinct")
    assert alike["similar"] > alike["random"] + 0.02


def test_captions_of_a_photograph_answer_its_first(tmp_path):
    folder = tmp_path / "retrieval" / "flickr8k"
    folder.mkdir(parents=True)
    lines = [f"{i:02}.jpg#{k}\tcaption {k} of {i} .\n" for k in range(5) for i in range(30)]
    (folder / "Flickr8k.token.txt").write_text("".join(lines))
    found = data.load("flickr8k", tmp_path)
    sizes = {split: [*map(len, of.values())] for split, of in found.judgements.items()}
    assert sizes == {"train": [1] * 24, "dev": [4] * 3, "test": [4] * 3}
    for query, documents in itertools.chain(*(of.items() for of in found.judgements.values())):
        answers = {found.texts[i].replace(str(i % 4 + 1), "0", 1) for i in documents}
        assert answers == {found.queries[query]} and "caption 0 " in found.queries[query]


def test_questions_of_one_intent_answer_each_other(tmp_path):
    folder = tmp_path / "data/retrieval/banking77"
    folder.mkdir(parents=True)
    lines = [f'"where, in {i}, is it?",{"abc"[i % 3]}\n' for i in range(60)]
    for name, kept in (("train", lines), ("test", lines[:9])):
        (folder / f"{name}.csv").write_text("".join(["text,category\n", *kept]))
    fields = TINY | dict(dataset="banking77", leak=True, composition="distinct", batch_size=3)
    task, model, method, given, batch = views(**fields)
    topics, collection = task.collection.topics, task.collection
    assert len(collection.texts) == 54 and "where, in 10, is it?" not in collection.texts
    for query, (document,) in collection.judgements["train"].items():
        assert topics[document] == topics[query] and document != query
    assert [*map(len, collection.judgements["test"].values())] == [18] * 9
    topic = torch.tensor(topics)[task.document]
    assert len(topic[batch].unique()) == 3
    several = task.views(torch.arange(9), seeded(), slice(None))
    assert torch.equal(several.excluded, topic[:9, None] == topic[:9])

    # queries without a negative are left out and counted; as long as one is left, it has a loss
    given.excluded[:2] = True
    assert loss_of(task, model, method, given) > 0 and method.skipped == 2
    given.excluded[:] = True
    assert loss_of(task, model, method, given) == 0 and method.skipped == 5


@pytest.mark.slow
def test_training_finds_documents_that_use_other_words():
    run = RetrievalRun(epochs=3, batch_size=64, lr=0.01, options={"temperature": 0.1})
    untrained = train(replace(run, method=None, epochs=0, options={}), progress=False)
    trained = train(run, progress=False)
    assert trained.metrics["ndcg"] > untrained.metrics["ndcg"] + 0.1
    each = trained.record["correct"]["ndcg"]
    assert np.mean(each) == pytest.approx(trained.metrics["ndcg"], abs=1e-4)


def test_the_latest_films_that_a_user_likes_are_for_testing(tmp_path):
    """In the order of their times, not of the file; a rating of 4 is a like."""
    folder = tmp_path / "data/retrieval/ml-100k"
    folder.mkdir(parents=True)
    features = "age:token\tgender:token\toccupation:token\tzip_code:token"
    user = [f"user_id:token\t{features}", "1\t20\tF\tnurse\t1"]
    item = ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"]
    item += [f"{i}\tFilm {i}\t1990\tDrama" for i in range(30)]
    inter = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    inter += [f"1\t{i}\t{3 if i >= 20 else 4 + i % 2}\t{100 - i}" for i in range(30)]
    for part, rows in dict(user=user, item=item, inter=inter).items():
        (folder / f"ml-100k.{part}").write_text("\n".join(rows))
    judged = data.load("ml-100k").judgements
    by_time = [*range(19, -1, -1)]  # likes; film 0 is the last
    for split, films in dict(train=by_time[:16], dev=by_time[16:18], test=by_time[18:]).items():
        assert [*judged[split][0]] == films


@pytest.mark.slow
def test_users_and_films(tmp_path):
    folder = tmp_path / "data/retrieval/ml-100k"
    folder.mkdir(parents=True)
    tables = {
        "user": ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"],
        "item": ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"],
        "inter": ["user_id:token\titem_id:token\trating:float\ttimestamp:float"],
    }
    tables["user"] += [f"{u}\t{20 + u}\tF\tnurse\t1" for u in range(10)]
    tables["item"] += [f"{i}\tFilm {i}\t199{i % 10}\tDrama Comedy" for i in range(30)]
    likes = [(u, (3 * u + i) % 30, i) for u in range(10) for i in range(20)]
    tables["inter"] += [f"{u}\t{film}\t5\t{time}" for u, film, time in likes]
    for part, rows in tables.items():
        (folder / f"ml-100k.{part}").write_text("\n".join(rows))
    assert data.load("ml-100k").judgements["dev"][1] == {19: 1.0, 20: 1.0}  # likes 16 and 17 of 20
    trained = train(RetrievalRun(dataset="ml-100k", towers=2, **TINY), progress=False)
    read_outs = [*metrics.evaluate(torch.zeros(1, 1, dtype=torch.long), [{0: 1.0}]), "tail"]
    for name in (*read_outs, "coverage"):  # each can choose
        assert {name, f"{name}_validation"} <= trained.metrics.keys()
    assert {*RetrievalRun.accuracies} <= trained.metrics.keys()
