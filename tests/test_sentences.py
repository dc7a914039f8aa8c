"""Sentences: corpora and their pairs, encoders, the tasks that judge them, and the runs."""

import hashlib
import itertools
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn import seeded
from one_call import train
from scipy.stats import spearmanr
from sklearn.metrics import f1_score

from hnlib import experiments, methods
from hnlib.contrast import Contrast
from hnlib.sentences import data
from hnlib.sentences.config import SentenceRun
from hnlib.sentences.task import Task
from hnlib.texts import benchmarks, encoders
from hnlib.texts import evaluation as transfer
from hnlib.training import evaluation, records

DOCUMENTS = [
    ["the cat sat .", "the dog ran off", "a bird sang"],
    ["ships sail", "the sea is wide and deep"],
]


@pytest.fixture(scope="module")
def corpus():
    return data.corpus(DOCUMENTS, "small", vocabulary=300)


# Corpora


def test_prose_is_cut_into_sentences():
    text = 'Mr. Poe met\r\nDr. J. Hyde.  "Come in!" he said. "Why?" She went .\nall right? No'
    assert data.sentences(text) == [
        "Mr. Poe met Dr. J. Hyde.",
        '"Come in!" he said.',
        '"Why?"',
        "She went . all right?",
        "No",
    ]


def test_tokens_are_the_sentences_and_neighbours_stay_in_their_document(corpus):
    assert len(corpus) == 5 and corpus.documents.tolist() == [0, 0, 0, 1, 1]
    assert corpus.neighbours.tolist() == [0, 1, 3]
    for i, sentence in enumerate(itertools.chain(*DOCUMENTS)):
        ids = corpus.ids[corpus.ends[i] : corpus.ends[i + 1]].tolist()
        assert ids == corpus.tokenizer.encode(sentence).ids and 0 not in ids
    rows = corpus.rows(torch.tensor([4, 3]), 4)
    assert rows.shape == (2, 4) and rows[0].tolist() == corpus.ids[corpus.ends[4] :][:4].tolist()
    size = int(corpus.ends[4] - corpus.ends[3])
    assert (rows[1, size:] == 0).all() and (rows[1, :size] > 0).all()


def test_a_tokenizer_is_a_function_of_the_text(corpus):
    assert data.corpus(DOCUMENTS, "small", vocabulary=300).digest == corpus.digest
    assert data.corpus(DOCUMENTS[:1], "small", vocabulary=300).digest != corpus.digest
    lower, upper = (corpus.tokenizer.encode(text).ids for text in ("the café", "THE CAFE"))
    assert lower == upper and corpus.tokenizer.encode("猫").ids == [1]


def test_the_digest_of_a_corpus_sees_where_documents_begin(corpus):
    """Neighbours are pairs, so it is other data."""
    every = [*itertools.chain(*DOCUMENTS)]
    other = data.corpus([every[:2], every[2:]], "small", vocabulary=300)
    assert torch.equal(other.ids, corpus.ids) and other.digest != corpus.digest


@pytest.mark.parametrize(
    "documents, message",
    [
        (["two sentences. as a text"], "mine must be lists of at least 2 sentences"),
        (
            [["a title"], ["one", "two"]],
            r"documents \[0\] \(a file has one sentence a line, and an empty",
        ),
        ([["one", "two"], ["three", " "]], "sentence 3 is empty"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused(documents, message):
    with pytest.raises(ValueError, match=message):
        data.corpus(documents, "mine", 300)


def test_novels_are_split_once_and_read_again(tmp_path, monkeypatch):
    texts = {
        "A_B_1900.txt": "\ufeffOne day.\r\nHe left. She stayed.",
        "C_D_1910.txt": "Two men. They met.",
        data.PROTECTED[0]: "Not this. Nor this.",
    }
    with zipfile.ZipFile(tmp_path / "served", "w") as file:
        for name, text in texts.items():
            file.writestr(f"novels-1/corpus/{name}", text)
    monkeypatch.setattr(data, "NOVELS", f"file://{tmp_path}/served")
    monkeypatch.setattr(data, "NOVELS_LISTING", None)
    with pytest.raises(ValueError, match="2 novels are not the 98 expected"):
        data.load("novels", tmp_path, 300)
    content = b"One day.\nHe left.\nShe stayed.\n\nTwo men.\nThey met.\n"
    known = replace(data.DATASETS["novels"], digest=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(data.DATASETS, "novels", known)
    first = data.load("novels", tmp_path, 300)
    assert len(first) == 5 and len(first.neighbours) == 3
    monkeypatch.setattr(data, "learned", None)  # the token ids are cached
    assert torch.equal(data.load("novels", tmp_path, 300).ids, first.ids)
    (path,) = tmp_path.rglob("novels*.txt")
    path.write_bytes(content.replace(b"stayed", b"strayed"))
    with pytest.raises(ValueError, match=r"has another digest; delete it"):
        data.load("novels", tmp_path, 300)


def test_a_text_of_ones_own(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_bytes(b" \r\none day\r\nhe left\r\n\r\n \t\r\ntwo men\r\nthey met\r\n")
    mine = data.load(f"text:{text}", tmp_path, 300)
    assert len(mine) == 4 and mine.neighbours.tolist() == [0, 2]
    assert mine.name.startswith("text:mine-")
    (cache,) = (tmp_path / "sentences" / "tokens").iterdir()
    assert cache.stat().st_mode & 0o077 == 0, "the text may be private"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"One\n\na b\nc d\n", r"1 of 2 have one, such as 'One'; join it to the next one$"),
        (b" \n\n", "it is empty$"),
        ("a é\nb".encode("latin-1"), "must be UTF-8: invalid continuation byte at byte 2$"),
        (b"a b\nc d\ne f\ng h\n", "must have more sentences: it has 2 pairs to train on"),
    ],
)
def test_a_text_that_cannot_be_trained_on_is_refused_when_it_is_planned(content, said, tmp_path):
    text = tmp_path / "mine.txt"
    text.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        experiments.load("pairs", dataset=f"text:{text}")


# Encoders and pairs


@pytest.mark.parametrize("name", encoders.CLASSES)
def test_what_fills_up_changes_nothing(name):
    torch.manual_seed(0)
    model = encoders.build(name, 30, 8).eval()
    with torch.no_grad():
        long, short = torch.tensor([[3, 4, 5, 6, 7]]), torch.tensor([[8, 9]])
        both = torch.zeros(2, 7, dtype=torch.long)
        both[0, :5], both[1, :2] = long, short
        apart = torch.cat([model(long), model(short)])
        assert torch.allclose(model(both), apart, atol=1e-6)
        other = torch.cat([model(long.flip(1)), model(short)])
    assert torch.allclose(apart, other) == (name == "bag")  # which alone does not see the order


def task(corpus, **options):
    run = SentenceRun(tasks=("alike",), batch_size=options.pop("batch_size", 2), **options)
    return Task(run.resolved(), dataset=corpus)


def test_the_loss_of_a_batch_is_that_of_its_pairs(corpus):
    pairs = task(corpus, batch_size=3, encoder="gru", dimension=8, towers=2)
    torch.manual_seed(0)
    model, method = pairs.model(), methods.build("hcl")
    (batch,) = pairs.batches(torch.Generator().manual_seed(0))
    views = pairs.views(batch, torch.Generator(), slice(None))
    queries, keys = (
        torch.cat([model(corpus.rows(i + k, 64)[None][0], k) for i in pairs.first[batch][:, None]])
        for k in (0, 1)
    )
    expected = method.loss(Contrast.from_pairs(queries, keys)).item()
    assert pairs.loss(model, method, views, None, lambda z: z).item() == pytest.approx(expected)


def test_pairs_are_the_same_for_all_seeds_and_must_suffice(corpus):
    first = [task(corpus, train_size=2, seed=seed).first.tolist() for seed in (0, 1)]
    assert first[0] == first[1]
    with pytest.raises(ValueError, match="train_size must be at most the 3 pairs of small"):
        task(corpus, train_size=9)


# Tasks


FILES = {
    "MR/rt-polarity.neg": "dull \x85 film\n\nbad\n".encode("latin-1"),
    "MR/rt-polarity.pos": "caf\xe9 good\n".encode("latin-1"),
    "TREC/TREC.train": b"DESC:manner How did it ?\nNUM:count How many ?\n",
    "TREC/TREC.test": b"DESC:def What is it ?\n",
    "MSRP/msr_paraphrase_train.txt": '﻿Quality\tA\tB\tS\tT\r\n1\t1\t2\ta "b\tc\r\n'.encode(),
    "MSRP/msr_paraphrase_test.txt": b"Quality\tA\tB\tS\tT\r\n0\t1\t2\td\te\r\n",
    "SICK/SICK_test_annotated.txt": b"pair_ID\tA\tB\tr\tj\n1\ta b\tc d\t4.5\tNEUTRAL\n2\te\tf\t1\tX\n",
    "SICK/SICK_train.txt": b"pair_ID\tA\tB\tr\tj\n7\tg\th\t2.5\tNEUTRAL\n",
    "STS/STS13-en-test/STS.input.FNWN.txt": b"a\tb\nc\td\n",
    "STS/STS13-en-test/STS.gs.FNWN.txt": b"3.5\n\n",
    "STS/STS13-en-test/STS.input.OnWN.txt": b"e\tf\n",
    "STS/STS13-en-test/STS.gs.OnWN.txt": b"1\n",
}


@pytest.fixture
def published(tmp_path):
    """The folder of small files in the form of the published sets."""
    for name, content in FILES.items():
        (tmp_path / "sentences" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sentences" / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    "name, first, second, y, train, graded",
    [
        ("mr", ["dull \x85 film", "bad", "café good"], None, [0, 0, 1], 0, False),
        ("trec", ["How did it ?", "How many ?", "What is it ?"], None, [0, 1, 0], 2, False),
        ("msrp", ['a "b', "d"], ["c", "e"], [1, 0], 1, False),
        ("sick", ["a b", "e"], ["c d", "f"], [4.5, 1], 0, True),
        ("sick_pearson", ["g", "a b", "e"], ["h", "c d", "f"], [2.5, 4.5, 1], 1, True),
        ("sts13", ["a", "e"], ["b", "f"], [3.5, 1], 0, True),  # one pair has no degree
    ],
)
def test_a_published_set_is_read(published, monkeypatch, name, first, second, y, train, graded):
    about = benchmarks.PUBLISHED[name]
    paths = benchmarks._paths(published / "sentences", about["files"])
    content = b"".join(path.read_bytes() for path in paths)
    digest = hashlib.sha256(content).hexdigest()[:16]
    monkeypatch.setitem(benchmarks.PUBLISHED, name, about | {"digest": digest})
    one = benchmarks.load(name, published)
    assert (one.first, one.second, one.y.tolist()) == (first, second, y)
    assert (one.train, one.graded) == (train, graded)


@pytest.mark.parametrize("name, why", [("mr", "another edition"), ("cr", "custrev.neg")])
def test_a_set_that_is_missing_or_damaged_is_named(published, name, why):
    expected = rf"{name} is not in .*{why}.*from data/raw of .*harvardnlp"
    with pytest.raises(ValueError, match=expected):
        benchmarks.load(name, published)


# What embeddings are worth


def test_the_penalty_is_chosen_by_the_training_part_alone():
    rng = np.random.default_rng(0)
    classes = rng.permutation(np.arange(150) % 3)
    x = torch.from_numpy(rng.normal(size=(150, 5)) + 2 * np.eye(3, 5)[classes])
    y, (train, test) = torch.tensor([5, 3, 9])[classes], torch.arange(150).split([120, 30])
    ((found, seen),) = evaluation.classify(x, y, [(train, test)])
    assert (found == y[test]).double().mean() > 0.6
    noise = torch.randn(150, 60, generator=seeded())
    ((_, lucky),) = evaluation.classify(noise, y, [(train, test)])
    x[test], y[test] = 1e12, 7
    ((_, again),) = evaluation.classify(x, y, [(train, test)])
    assert lucky < 0.5 < again == seen


def test_relatedness_is_learned_from_the_training_part_alone():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(300, 4)))
    degrees = x[:, 1].numpy() + 0.5 * rng.normal(size=300)
    best = np.corrcoef(x[200:, 1], degrees[200:])[0, 1]
    assert transfer.pearson(x, degrees, 200) == pytest.approx(best, abs=0.02)
    other = np.r_[rng.permutation(degrees[:200]), degrees[200:]]
    assert transfer.pearson(x, other, 200) < 0.7 * best


def test_scores_of_pairs(corpus):
    """Of single letters, each a token with an embedding of its own."""
    torch.manual_seed(0)
    model, rng = encoders.build("bag", 300, 6).eval(), np.random.default_rng(0)
    first, second = rng.integers(8, size=(2, 90))

    def scores(name, y, **more):
        texts = (["abcdefgh"[i] for i in part] for part in (first, second))
        pairs = benchmarks.Benchmark(name, next(texts), y, next(texts), **more)
        return transfer.EncodedBenchmark(pairs, corpus.tokenizer, 8).scores(model, 0)

    letters = torch.tensor([corpus.tokenizer.encode(letter).ids for letter in "abcdefgh"])
    z = torch.nn.functional.normalize(model(letters).double()).detach().numpy()
    degrees = rng.normal(size=90)
    expected = spearmanr((z[first] * z[second]).sum(1).round(6), degrees).statistic
    found, right = scores("alike", degrees)
    assert found["alike"] == pytest.approx(expected) and not right
    y = (first == second).astype(int) | (rng.random(90) < 0.2)
    found, right = scores("msrp", y, train=60)
    assert right["msrp"].shape == (30,) and found["msrp"] == right["msrp"].double().mean()
    predicted = np.where(right["msrp"], y[60:], 1 - y[60:])
    assert found["msrp_f1"] == pytest.approx(f1_score(y[60:], predicted))


# Runs


@pytest.mark.slow
def test_training_relates_the_words_of_a_topic():
    chosen = dict(dataset="topics", progress=False, device="cpu", dimension=16)
    more = dict(method="hcl", beta=2.0, epochs=2, batch_size=200, evaluate_every=1)
    done = train("sentences", **chosen, **more)
    assert all({"topic", "alike", "loss"} <= row.keys() for row in done.history)
    right = records.unpack(done.record["correct"]["topic"], 300)
    assert right.mean() == done.metrics["topic"]
    untrained = train("sentences", **chosen, method=None, epochs=0)
    assert done.metrics["alike"] > untrained.metrics["alike"] + 0.2
