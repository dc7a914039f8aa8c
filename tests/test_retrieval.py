"""Retrieval: collections, metrics, mining, training."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from hnlib import methods
from hnlib.contrast import Contrast
from hnlib.images import _torchvision  # noqa: F401
from hnlib.retrieval import data, encoders, metrics, mining
from hnlib.retrieval.config import RetrievalRun
from hnlib.retrieval.task import Task, _guided
from hnlib.training import records
from hnlib.training.train import train

TINY = dict(batch_size=32, epochs=1, max_steps=3, vocabulary=500, dimension=16)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HNLIB_DATA", str(tmp_path / "data"))


@pytest.fixture
def folder(tmp_path):
    """A collection as a user writes it: queries 0 and 1 share a document."""
    root = tmp_path / "mine"
    (root / "qrels").mkdir(parents=True)
    words = ["tide", "oven", "judge", "violin", "chalk"]
    documents = [
        {"_id": f"d{i}", "title": f"{words[i % 5]} {i}", "text": f"about {words[i % 5]} no {i}"}
        for i in range(40)
    ]
    queries = [{"_id": f"q{i}", "text": f"{words[i % 5]} number {i}"} for i in range(20)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = "query-id\tcorpus-id\tscore\n"
    test = [f"q{i}\td{i}\t1\n" for i in range(5)]
    train = ["q5\td0\t1\n", "q5\td7\t1\n", "q6\td7\t1\n"]
    train += [f"q{i}\td{i + 1}\t1\n" for i in range(7, 20)]
    (root / "qrels/test.tsv").write_text(head + "".join(test))
    (root / "qrels/train.tsv").write_text(head + "".join(train))
    return root


def random_ranking(seed):
    """Return scores [Q, N] with many ties, and judgements."""
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.integers(0, 12, (6, 150)) / 10).float()
    grades = rng.integers(1, 4, (6, 150))
    judged = [rng.choice(150, rng.integers(1, 20), replace=False) for _ in range(6)]
    return scores, [{int(d): float(grades[q, d]) for d in of} for q, of in enumerate(judged)]


def by_sorting(scores, judged):
    """Recall and reciprocal rank of one query; among equals the first leads."""
    order = sorted(range(len(scores)), key=lambda d: scores[d], reverse=True)
    hits = [d in judged for d in order]
    first = hits.index(True)
    recall = {f"recall{k}": sum(hits[:k]) / len(judged) for k in (10, 100)}
    return recall | {"mrr": 1 / (first + 1) if first < 10 else 0.0}


@pytest.mark.parametrize("seed", range(10))
def test_metrics_are_those_of_scikit_learn_and_of_sorting(seed):
    scores, judged = random_ranking(seed)
    ranked = metrics.search(scores, torch.eye(150))
    grades = np.array([[of.get(d, 0.0) for d in range(150)] for of in judged])
    places = np.full(grades.shape, -1000.0)
    np.put_along_axis(places, ranked.numpy(), -np.arange(100.0)[None], 1)
    found = {k: float(v.double().mean()) for k, v in metrics.evaluate(ranked, judged).items()}
    assert found.pop("ndcg") == pytest.approx(ndcg_score(grades, places, k=10), abs=1e-6)
    squared = [{d: 2**g - 1 for d, g in of.items()} for of in judged]  # the control
    wrong = float(metrics.evaluate(ranked, squared)["ndcg"].double().mean())
    assert wrong != pytest.approx(ndcg_score(grades, places, k=10), abs=1e-6)
    for backwards in (False, True):  # the control: among equals the last leads
        each = [
            by_sorting([(s, backwards * d) for d, s in enumerate(row)], of)
            for row, of in zip(scores.tolist(), judged)
        ]
        expected = {name: np.mean([one[name] for one in each]) for name in found}
        assert (found == pytest.approx(expected, abs=1e-6)) != backwards


def test_training_queries_linked_to_test_queries_are_left_out(folder):
    collection = data.load(f"folder:{folder}")
    train, validation = collection.split()
    assert sorted(validation) == [5, 6]  # 5 shares d0 with a test query, 6 shares d7 with 5
    assert not {0, 1, 2, 3, 4} & {d for of in train.values() for d in of}
    assert len(collection.split(leak=True)[0]) == len(train) + 2


@pytest.mark.slow
def test_a_folder_of_ones_own_trains_and_is_recorded(folder, tmp_path):
    run = RetrievalRun(dataset=f"folder:{folder}", **TINY | dict(batch_size=16, max_steps=None))
    train(run, progress=False, record_to=tmp_path)
    (row,) = records.frame(tmp_path, scores=True).to_dict("records")
    assert row["ndcg"] == pytest.approx(np.mean(row["correct"]["ndcg"]), abs=1e-4)
    assert row["dataset"].startswith("folder:mine-")


def test_judgements_are_read_without_a_head(folder):
    before = data.load(f"folder:{folder}").judgements
    test = folder / "qrels/test.tsv"
    test.write_text(test.read_text().split("\n", 1)[1])
    assert data.load(f"folder:{folder}").judgements == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", '{"_id": "d0", "text": "a"}\n[1]\n', "TypeError"),
        ("queries.jsonl", '{"_id": "q0"}\n', "KeyError"),
        ("queries.jsonl", '{"_id": "q0", "text": " "}\n', "line 1 of queries.jsonl.*needs a text"),
        ("corpus.jsonl", '{"_id": "d", "text": "a"}\n' * 2, "line 2 of corpus.*'d' is there twice"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq0\td99\t1\n", "line 2.*KeyError: 'd99'"),
        ("qrels/test.tsv", "q0\td0\t1\nq0\td0\t2\n", "line 2 of qrels/test.tsv.*differently"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq0\td0\t0\n", "no document relevant"),
    ],
)
def test_bad_collections_get_one_sentence(folder, name, content, message):
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=f"{message}.*in the form that .*data.read desc") as error:
        data.load(f"folder:{folder}")
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(ValueError, match=r"No such file .*train.csv.*data.banking describes"):
        data.load("banking77", folder)


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
    method = methods.build("simclr", temperature=0.1)
    task = Task(run, method)
    torch.manual_seed(0)
    model = task.model()
    generator = torch.Generator().manual_seed(0)
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
    return float(task.loss(model, method, given, None, lambda z: z))


def contrast_of(model, given):
    queries, *keys = (model(view) for view in given.tokens)
    return Contrast.from_pairs(queries, torch.cat(keys))


def by_factors(contrast, negatives=1.0, answer=1.0):
    """InfoNCE at t = 0.1 where a negative counts so many times, and the answer too."""
    push = ((10 * contrast.similarity).exp() * negatives * contrast.admissible).sum(1)
    pull = (10 * contrast.similarity.diagonal()).exp() * answer
    return (1 + push / pull).log().mean().item()


def test_each_negative_that_is_left_counts_once():
    task, model, method, given, _ = views()
    hidden = torch.rand(given.excluded.shape, generator=torch.Generator().manual_seed(1)) < 0.6
    given = replace(given, excluded=hidden.fill_diagonal_(False))
    contrast = contrast_of(model, given)
    left = contrast.without(given.excluded)
    expected = by_factors(left)
    assert loss_of(task, model, method, given) == pytest.approx(expected, rel=1e-5)
    as_many_as_before = float(method.loss(left))  # the control
    assert as_many_as_before != pytest.approx(expected, rel=0.05)
    nothing = replace(given, excluded=torch.zeros_like(given.excluded))
    plain = float(method.loss(contrast))
    assert loss_of(task, model, method, nothing) == pytest.approx(plain, rel=1e-6)


HARD = dict(mined="model", negatives=2, hardness_strength=5.0)
# how often negatives and the answer count, of the similarities, which keys are an anchor's own
# mined ones, and the shares of the keys in the batches
FACTORS = {
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
def test_options_of_the_loss_say_how_often_a_key_counts(case):
    options, factors = FACTORS[case]
    task, model, method, given, batch = views(**options)
    contrast = contrast_of(model, given).without(given.excluded)
    q = task.counts[task.document[batch]] / len(task.asked)
    expected = by_factors(contrast, *factors(contrast.similarity, given.mined_for, q))
    loss = loss_of(task, model, method, given)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert loss != pytest.approx(by_factors(contrast), rel=1e-3)  # the control


def test_a_mined_negative_is_the_best_of_its_own_draws():
    task, *_ = views(mined="bm25", negatives=2, best_of=3)
    ranks = torch.arange(30).expand(4000, 30)
    drawn = task._draw(ranks, torch.Generator().manual_seed(0)).double()
    # the least of three of thirty is at (30 - 3)/(3 + 1) on average; of six, the two least at 4.9
    assert drawn.mean() == pytest.approx(6.75, abs=0.2)


def test_a_guide_takes_away_what_it_scores_above_the_answer():
    s = torch.tensor([[0.5, 0.9, 0.1, 0.2], [0.3, 0.1, 0.2, 0.4], [0.0, 0.5, 0.4, 0.6]])
    excluded = torch.zeros(3, 4, dtype=torch.bool)
    taken = _guided(s, 0.0, excluded).nonzero().tolist()
    assert taken == [[0, 1], [2, 1], [2, 3]]  # query 1 would have no negative left
    assert _guided(s, 0.15, excluded).nonzero().tolist() == [[0, 1], [1, 0], [1, 3], [2, 3]]


def static_score(query, document):
    """The cosine of two texts' mean static embeddings."""
    tokenizer, weights = encoders.static_tokenizer(), encoders.static_embeddings()
    means = [weights[tokenizer.encode(text).ids].mean(0) for text in (query, document)]
    return float(torch.nn.functional.cosine_similarity(*means, dim=0))


@pytest.mark.parametrize("name", ["bm25", "static"])
def test_a_teacher_is_what_the_student_shall_repeat(name):
    given_to = dict(method="soft-targets", teacher=name)
    task, model, _, given, batch = views(**given_to)
    documents, keys = task.collection.documents, task.document[batch].tolist()
    bm25 = mining.BM25(documents)
    for i, j in ((0, 0), (0, 5), (3, 1)):
        query, document = task.asked_texts[int(batch[i])], keys[j]
        if name == "bm25":
            expected = float(bm25.scores([query])[0, document])
        else:
            expected = static_score(query, documents[document])
        assert given.teacher[i, j] == pytest.approx(expected, abs=1e-5)
    method = methods.build("soft-targets", temperature=0.1, teacher_temperature=0.3, share=0.0)
    s = contrast_of(model, given).similarity.masked_fill(given.excluded.fill_diagonal_(False), -99)
    target = (given.teacher / 0.3).masked_fill(given.excluded, -torch.inf).softmax(1)
    expected = (
        (torch.special.xlogy(target, target) - target * (10 * s).log_softmax(1)).sum(1).mean()
    )
    assert loss_of(task, model, method, given) == pytest.approx(float(expected), rel=1e-4)
    untaught = loss_of(task, model, method, replace(given, teacher=None))  # the control
    assert untaught != pytest.approx(float(expected), rel=0.05)


def test_batches_hold_whom_the_run_asks_for():
    def fill(composition):
        task = views(composition=composition)[0]
        return task, task.batches(torch.Generator().manual_seed(1))

    task, random = fill("random")
    static = task.scorer("static")
    alike = {}
    for composition in ("random", "similar", "distinct"):
        task, batches = fill(composition)
        every = torch.cat([*batches])
        assert len(every.unique()) == len(every) and all(len(batch) == 32 for batch in batches)
        assert len(batches) >= len(random) - 1
        near = [static(batch, task.document[batch]).mean() for batch in batches]
        alike[composition] = float(torch.stack(near).mean())
        twice = [32 - len(task.document[batch].unique()) for batch in batches]
        assert (sum(twice) == 0) == (composition == "distinct")
    assert alike["similar"] > alike["random"] + 0.02


def test_captions_of_a_photograph_answer_its_first(tmp_path):
    folder = tmp_path / "retrieval" / "flickr8k"
    folder.mkdir(parents=True)
    lines = [f"{i:02}.jpg#{k}\tcaption {k} of {i} ." for k in range(5) for i in range(30)]
    (folder / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    found = data.load("flickr8k", tmp_path)
    sizes = {split: [*map(len, of.values())] for split, of in found.judgements.items()}
    assert sizes == {"train": [1] * 24, "dev": [4] * 3, "test": [4] * 3}
    for queries in found.judgements.values():
        for query, documents in queries.items():
            asked = found.queries[query]
            assert asked.startswith("caption 0 ")
            answers = {found.texts[i] for i in documents}
            assert answers <= {asked.replace("0", str(k), 1) for k in range(1, 5)}
    assert found.split()[0] == found.judgements["train"]


def test_questions_of_one_intent_answer_each_other(tmp_path):
    folder = tmp_path / "data/retrieval/banking77"
    folder.mkdir(parents=True)
    lines = [f'"where, in {i}, is it?",{"abc"[i % 3]}' for i in range(60)]
    for name, kept in (("train", lines), ("test", lines[:9])):
        (folder / f"{name}.csv").write_text("\n".join(["text,category", *kept]) + "\n")
    fields = TINY | dict(dataset="banking77", leak=True, composition="distinct", batch_size=3)
    task, _, _, given, batch = views(**fields)
    topics, collection = task.collection.topics, task.collection
    assert len(collection.texts) == 54 and "where, in 10, is it?" not in collection.texts
    for query, (document,) in collection.judgements["train"].items():
        assert topics[document] == topics[query] and document != query
    for query, documents in collection.judgements["test"].items():
        texts = {collection.texts[i] for i in documents}
        assert len(texts) == 18 and collection.queries[query] in texts | {"where, in 0, is it?"}
    assert len({topics[i] for i in task.document[batch].tolist()}) == 3
    same = torch.tensor(topics)[task.document[batch]]
    assert torch.equal(given.excluded, same[:, None] == same)

    # queries without a negative are left out and counted; as long as one is left, it has a loss
    _, model, method, given, _ = views(**fields)
    given.excluded[:2] = True
    assert loss_of(task, model, method, given) > 0 and method.skipped == 2
    given.excluded[:] = True
    assert loss_of(task, model, method, given) == 0 and method.skipped == 5


@pytest.mark.slow
def test_training_finds_documents_that_use_other_words():
    run = RetrievalRun(epochs=3, batch_size=64, lr=0.01, options={"temperature": 0.1})
    untrained = train(replace(run, method=None, epochs=0, options={}), progress=False)
    assert train(run, progress=False).metrics["ndcg"] > untrained.metrics["ndcg"] + 0.1


@pytest.mark.slow
def test_users_and_films(tmp_path):
    folder = tmp_path / "data/retrieval/ml-100k"
    folder.mkdir(parents=True)
    users = [f"{u}\t{20 + u}\tF\tnurse\t1" for u in range(10)]
    films = [f"{i}\tFilm {i}\t199{i % 10}\tDrama Comedy" for i in range(30)]
    likes = [f"{u}\t{(3 * u + i) % 30}\t5\t{i}" for u in range(10) for i in range(20)]
    heads = ("user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token",
             "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq",
             "user_id:token\titem_id:token\trating:float\ttimestamp:float")  # fmt: skip
    for part, head, rows in zip(("user", "item", "inter"), heads, (users, films, likes)):
        (folder / f"ml-100k.{part}").write_text("\n".join([head, *rows]) + "\n")
    trained = train(RetrievalRun(dataset="ml-100k", towers=2, **TINY), progress=False)
    assert {"ndcg", "tail", "coverage", "ndcg_validation"} <= trained.metrics.keys()
