"""Data of the reader's own: a run is asked for under the key that it is recorded under."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from builder.own_data import collection, graphs, pictures, text
from hnlib import _files, experiments
from hnlib.graphs.data import motifs
from hnlib.graphs.registry import DATASETS as GRAPHS
from hnlib.images import data as images
from hnlib.images.config import ImageRun
from hnlib.images.registry import DATASETS, training_images
from hnlib.retrieval import task as retrieval
from hnlib.retrieval.config import RetrievalRun
from hnlib.sentences import data as sentences
from hnlib.sentences.config import SentenceRun
from hnlib.sentences.evaluation import NextSentence
from hnlib.sentences.task import Task

EXPERIMENTS = Path(__file__).resolve().parents[1] / "book/results/experiments"

KINDS = {
    "images": ("how-hard", pictures, dict(arms=["views b0", "views b1"], seeds="0")),
    "retrieval": ("search", collection, dict(arms=["t0.1", "t0.05"], max_steps=3)),
    "sentences": ("pairs", text, dict(arms=["simclr", "t0.05"], dimension=8)),
    "graphs": ("graphs", graphs, dict(arms=["InfoGraph", "untrained"], folds=2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_trained_on_data_of_your_own_is_found_again(kind, new_checkout, tmp_path, capsys):
    """Also from another place, and not once a file has changed."""
    name, make, few = KINDS[kind]
    texts = {path.stem: path.read_text() for path in EXPERIMENTS.glob("*.toml")}
    top = new_checkout({f"book/results/experiments/{x}.toml": t for x, t in texts.items()})
    own = make(top / "mine")
    blocks = [*experiments.load(name).blocks][-1:]
    few = {"seeds": "0-1", "blocks": blocks, "epochs": 1} | few
    design = experiments.load(name, dataset=own, **few)
    found = experiments.train(design, device="cpu")
    arms = design.names(design_block := next(iter(design.blocks)))
    assert not [*found.missing()] and len(arms) == 2
    assert experiments.effect(found, *arms, block=design_block).df == len(design.seeds) - 1
    capsys.readouterr()
    experiments.train(design, device="cpu")
    assert "Nothing is left to train." in capsys.readouterr().out
    prefix, path = own.split(":")
    moved = Path(path).rename(top / "elsewhere" if Path(path).is_dir() else top / "elsewhere.txt")
    again = (top / "elsewhere").with_name("mine") if moved.is_dir() else top / "mine"
    (top / "there").mkdir()
    moved.rename(there := top / "there" / again.name)
    elsewhere = experiments.load(name, dataset=f"{prefix}:{there}", **few)
    assert experiments.plan(elsewhere, device="cpu").left == 0
    changed = there if there.is_file() else sorted(x for x in there.rglob("*") if x.is_file())[0]
    changed.write_bytes(changed.read_bytes() + b"\n")
    os.utime(changed.parent, ns=(0, 1))  # on a file system of coarse times
    assert experiments.plan(elsewhere, device="cpu").left == 2 * len(design.seeds)


def test_a_name_of_your_own_is_that_of_its_content(tmp_path):
    """Names of files count, too; the place does not, and a size stays."""
    (tmp_path / "one/mine/a").mkdir(parents=True)
    (tmp_path / "other/mine/a").mkdir(parents=True)
    files = [tmp_path / part / "mine/a/x.png" for part in ("one", "other")]
    for file in files:
        file.write_bytes(b"content")
    first, second = (_files.own_name(f"folder:{file.parents[1]}") for file in files)
    assert first == second and first.startswith("folder:mine-") and len(first) == 20
    assert _files.own_name(f"folder:{files[0].parents[1]}@64") == f"{first}@64"
    files[0].rename(files[0].with_name("y.png"))
    assert _files.own_name(f"folder:{files[0].parents[1]}") != first
    files[1].with_name("z.png").write_bytes(b"")
    assert _files.own_name(f"folder:{files[1].parents[1]}") != first
    for name in ("cifar10", first, "folder:nowhere", "text:nowhere.txt"):
        assert _files.own_name(name) == name


@pytest.mark.parametrize("page", ["soft-targets", "two-towers"])
def test_what_chooses_by_validation_is_refused_data_that_have_none(page, tmp_path):
    """Before it trains; all that Banking77 has for training shares an intent with its test part."""
    own = collection(tmp_path / "mine")
    assert experiments.load(page, dataset=own).changed
    (tmp_path / "mine/qrels/dev.tsv").unlink()
    for name in (own, "cranfield"):
        with pytest.raises(ValueError, match="dataset must have validation queries") as found:
            experiments.load(page, dataset=name)
    proposed = {*re.search("these have: (.*) or", str(found.value))[1].split(", ")}
    assert "scifact" in proposed and "cranfield" not in proposed
    for name in proposed:
        assert experiments.load(page, dataset=name).names()
    every = experiments.load(page, dataset="banking77")
    assert all(run.leak for one in (every, *every.choosers()) for *_, run in one.runs())


def test_a_collection_of_which_all_is_linked_is_trained_on_all(tmp_path):
    """As are questions with few answers; the arm that has the leak would be another arm there."""
    own = collection(tmp_path / "mine")
    free = experiments.load("search", dataset=own)
    assert "leak" in free.names("random") and not all(run.leak for *_, run in free.runs())
    judged = tmp_path / "mine/qrels"
    asked = (judged / "train.tsv").read_text().splitlines(keepends=True)[1:]
    with (judged / "test.tsv").open("a") as test:
        test.writelines(asked)
    for name in ("search", "banking77-rates"):
        linked = experiments.load(name, dataset=own)
        assert all(run.leak for *_, run in linked.runs())
        assert "leak" not in linked.names([*linked.blocks][-1])


def test_ranks_beyond_the_documents_of_a_collection_are_not_mined(tmp_path):
    """The arm is left out where it could not be trained, and stays where it just can."""
    for count, there in ((100, False), (101, True)):
        own = collection(tmp_path / f"{count}", count)
        names = experiments.load("search", dataset=own).names("random")
        assert "mined" in names and ("ranks 30 to 100" in names) == there


def test_a_batch_that_pairs_cannot_fill_is_refused_before_anything_is_trained(tmp_path):
    """Whatever arms come first: some train on nothing, some do not ask for distinct documents."""
    own = collection(tmp_path / "mine", 60)
    for given, message in (
        (dict(dataset=own, batch_size=31), "at most the 30 pairs for training of mine, got 31"),
        (dict(dataset="generated", batch_size=700), "the 699 pairs for training of generated, got"),
    ):
        with pytest.raises(ValueError, match=message):
            experiments.load("two-towers", **given)
        assert experiments.load("two-towers", **given | {"batch_size": given["batch_size"] - 1})
    questions = tmp_path / "mine/qrels/train.tsv"
    lines = [f"{i}\t{j}\t1\n" for i in range(30) for j in range(i % 3, 12, 3)]
    questions.write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    with pytest.raises(ValueError, match="at most the 12 distinct documents of mine, got 13"):
        experiments.load("batches", dataset=own, batch_size=13)
    (distinct,) = {
        one.batch_size
        for *_, one in experiments.load("batch-rates", dataset=own).runs()
        if one.composition == "distinct"
    }
    assert distinct <= 12
    run = RetrievalRun(dataset=own, composition="distinct", batch_size=distinct, dimension=8)
    assert retrieval.Task(run, data_root=tmp_path).batches(torch.Generator())


def test_pictures_of_which_no_data_set_can_be_made_are_refused_before_they_are_read(tmp_path):
    """None in folders of classes, of one class, too few to test on, or a part that is missing."""
    flat, one, few, part = (
        pictures(tmp_path / name, counts)
        for name, counts in (("a", (9, 9)), ("b", (9,)), ("c", (4, 4, 4)), ("d", (9, 9)))
    )
    flat += "/class0"
    (tmp_path / "d").rename(tmp_path / "test")
    (tmp_path / "d").mkdir()
    (tmp_path / "test").rename(tmp_path / "d/test")
    for own in (flat, one, few, part):
        for name in ("large-batches", "how-hard"):
            with pytest.raises(
                ValueError, match="must be a folder with a subfolder of pictures for"
            ):
                experiments.load(name, dataset=own)
        with pytest.raises(ValueError, match="must be a folder with a subfolder of pictures for"):
            ImageRun(dataset=own).check_names()
    enough = pictures(tmp_path / "e", (4, 5))
    assert experiments.load("large-batches", dataset=enough, batch_size=2)


def test_validation_leaves_images_to_train_on_or_is_refused_by_its_name(tmp_path):
    own = pictures(tmp_path / "mine", (50, 75))
    with pytest.raises(ValueError, match="validation must leave two of the 100 training images"):
        experiments.load("images-rates", dataset=own, validation=99)
    assert experiments.load("images-rates", dataset=own, validation=98, batch_size=2)
    with pytest.raises(ValueError, match="ask for 55,000; give train_size at most 45,000"):
        experiments.load("images-rates", train_size=50_000)


def test_images_without_labels_join_no_part_of_a_page_alone():
    """Where an experiment takes all images, those of STL-10 with labels, as in the others."""
    for name in ("resnet18", "images-longer", "map"):
        runs = [run for *_, run in experiments.load(name, dataset="stl10").runs()]
        assert {run.train_size + run.validation for run in runs if run.train_size} <= {5000}
        assert all(run.train_size for run in runs)


def test_a_collection_without_pairs_is_refused_by_its_name(tmp_path):
    own = collection(tmp_path / "mine")
    (tmp_path / "mine/qrels/train.tsv").unlink()
    for name in ("two-towers", "banking77-rates"):
        with pytest.raises(
            ValueError, match=r"dataset must have two pairs to train on .* got 0 of"
        ):
            experiments.load(name, dataset=own)


def test_more_folds_than_a_class_of_graphs_has_are_refused_before_they_are_read(tmp_path):
    own = graphs(tmp_path / "mine")
    assert experiments.load("graphs", dataset=own, folds=11)
    with pytest.raises(ValueError, match=r"folds must be at most 11, .* class of mine, got 12"):
        experiments.load("graphs", dataset=own, folds=12)
    labels = [int(one.y) for one in motifs()]
    assert min(map(labels.count, labels)) == GRAPHS["motifs"].smallest == 30
    with pytest.raises(ValueError, match=r"folds must be at most 30, .* class of motifs, got 31"):
        experiments.load("graphs", small=True, folds=31)


def test_a_batch_that_nobody_gave_follows_a_smaller_train_size():
    """Without a data set, too: what a reader typed would be refused for what he did not."""
    for given, batch in (({}, 256), ({"train_size": 200}, 32), ({"train_size": 10_000}, 256)):
        runs = [run.resolved() for *_, run in experiments.load("corrections", **given).runs()]
        assert {run.batch_size for run in runs} == {batch}
    assert experiments.load("corrections", train_size=10_000) is experiments.load("corrections")
    with pytest.raises(ValueError, match="batch_size must be at most the 200 images"):
        experiments.load("corrections", train_size=200, batch_size=256)


def test_a_folder_smaller_than_a_small_page_is_trained_on_whole(tmp_path):
    """The sizes of a small page yield to the images that there are; those of a reader are refused."""
    own = pictures(tmp_path / "mine")
    sizes = [
        {run.train_size for *_, run in experiments.load("ground-cost", **given).runs()}
        for given in (dict(small=True), dict(small=True, dataset=own))
    ]
    assert sizes == [{300}, {training_images(own)}]
    with pytest.raises(ValueError, match=r"has 30 training images, .* ask for 299"):
        experiments.load("ground-cost", small=True, dataset=own, train_size=299)


def test_your_data_are_called_as_their_folder_or_file(tmp_path, monkeypatch):
    """With all of a folder's name, and also where that is not what was given."""
    (tmp_path / "flowers.v2").mkdir()
    monkeypatch.chdir(tmp_path / "flowers.v2")
    for name in (
        ".",
        "./",
        f"{tmp_path}/flowers.v2",
        f"{tmp_path}/flowers.v2/",
        "../flowers.v2@64",
    ):
        assert ImageRun.dataset_title(f"folder:{name}") == "flowers.v2"
    assert SentenceRun.dataset_title(f"text:{tmp_path}/novel.txt") == "novel"


@pytest.mark.parametrize("counts", [(5, 4), (13, 11, 12), (20, 1, 9)])
def test_sizes_of_a_folder_are_known_before_it_is_read(tmp_path, counts):
    own = pictures(tmp_path / "mine", counts)
    count = len(images.load(own).y_train)
    assert training_images(own) == training_images(f"{own}@48") == count
    (tmp_path / "mine").rename(tmp_path / "train")
    pictures(tmp_path / "test", counts)
    assert training_images(f"folder:{tmp_path}") == len(images.load(f"folder:{tmp_path}").y_train)
    assert training_images("folder:nowhere") is None and training_images("digits") == 1437


@pytest.mark.parametrize("seed", range(30))
def test_what_fits_a_data_set_can_be_trained_and_leaves_what_fits(seed):
    """Random published sizes: validation, training part and batch fit into any data set."""
    rng = np.random.default_rng(seed)
    chosen = {
        "train_size": rng.choice([None, 10, 1000, 10_000, 45_000]),
        "validation": int(rng.choice([0, 100, 5000])),
        "batch_size": rng.choice([None, 16, 256, 512]),
    }
    name = str(rng.choice([*DATASETS]))
    fit = ImageRun.fitting(name, chosen)
    size, count = {**chosen, **fit}, DATASETS[name].train
    trained = size["train_size"] or count - size["validation"]
    assert trained + size["validation"] <= count and trained >= 2
    assert (size["batch_size"] or 256) <= trained // 2
    unlabelled = name == "stl10" and not chosen["train_size"]  # else they would train, too
    fewer = {key: size[key] for key in fit if not (unlabelled and key == "train_size")}
    assert all(value < (chosen[key] or 257) for key, value in fewer.items())
    assert ImageRun.fitting(name, size) == {}  # what fits stays


def test_the_training_part_makes_room_for_the_validation_that_a_reader_asks_for():
    chosen = dict(train_size=10_000, validation=500, batch_size=64)
    assert ImageRun.fitting("digits", chosen, {"validation"}) == {"train_size": 937}
    assert ImageRun.fitting("digits", chosen) == {"validation": 287, "train_size": 1150}


def test_sizes_of_a_text_are_known_before_it_is_read(tmp_path):
    own = text(tmp_path / "mine.txt")
    fit = SentenceRun.fitting(own, {"train_size": 10_000, "batch_size": 512})
    task = Task(SentenceRun(dataset=own, dimension=8, **fit), data_root=tmp_path)
    assert task.examples == fit["train_size"] and fit["batch_size"] <= task.examples // 4
    assert SentenceRun.fitting(own, fit) == {} == SentenceRun.fitting("novels", {})
    pairs = sentences.load(own, tmp_path).neighbours
    (last,) = task.benchmarks
    for part in last.parts.values():  # a sentence between them is in no pair of both
        assert not np.intersect1d(part, [*task.first, *(task.first + 1)]).size
    assert len(pairs) > task.examples + sum(map(len, last.parts.values()))


@pytest.mark.parametrize("name", ["topics", "text"])
def test_more_pairs_than_a_corpus_has_are_refused_before_it_is_read(name, tmp_path):
    dataset = text(tmp_path / "mine.txt") if name == "text" else name
    examples = Task(SentenceRun(dataset=dataset, dimension=8), data_root=tmp_path).examples
    SentenceRun(dataset=dataset, train_size=examples, batch_size=examples).check_names()
    with pytest.raises(ValueError, match=f"train_size must be at most the {examples} pairs of "):
        experiments.load("pairs", dataset=dataset, train_size=examples + 1)
    for size, most in ((None, examples), (20, 20)):
        given = dict(dataset=dataset, train_size=size, batch_size=most + 1)
        SentenceRun(**given, epochs=0).check_names()  # what trains on none
        with pytest.raises(ValueError, match=f"batch_size must be at most the {most:,} pairs"):
            SentenceRun(**given).check_names()


def test_the_sentence_that_follows_is_sought_among_all_others_of_its_half(tmp_path):
    """By a slow loop over cosines. Control: the loop that may answer with the question."""
    corpus = sentences.load(text(tmp_path / "mine.txt", (60, 50)), tmp_path)
    first = corpus.neighbours[:41]
    table = torch.randn(len(corpus), 5, generator=torch.Generator().manual_seed(1))

    class Encoder(torch.nn.Module):
        """Looks sentences up by their tokens."""

        def forward(self, tokens):
            """Return the rows of the table of the sentences with these tokens."""
            every = corpus.rows(torch.arange(len(corpus)), 64)
            width = max(every.shape[1], tokens.shape[1])
            pad = lambda x: torch.nn.functional.pad(x, (0, width - x.shape[1]))  # noqa: E731
            return table[(pad(tokens)[:, None] == pad(every)).all(2).double().argmax(1)]

    scores, correct = NextSentence(corpus, first, 64).scores(Encoder(), seed=0)

    def loop(part, itself):
        ranks = []
        for i in part.tolist():
            cosine = lambda j: float(torch.cosine_similarity(table[i], table[j], dim=0))  # noqa: E731, B023
            others = [j + 1 for j in part.tolist() if itself or j + 1 != i]
            ranks.append(1 + sum(cosine(j) > cosine(i + 1) for j in others))
        return np.array(ranks)

    for name, part in (("next_validation", first[:20]), ("next", first[21:])):
        ranks = loop(part, False)
        assert scores[name] == pytest.approx((ranks == 1).mean())
        assert correct[name].tolist() == (ranks == 1).tolist()
    assert scores["next_mrr"] == pytest.approx((1 / ranks).mean())
    assert (1 / loop(part, True)).mean() < scores["next_mrr"] - 0.01
    with pytest.raises(ValueError, match=r"has 3 pairs of neighbours in its last tenth; need 4"):
        NextSentence(corpus, first[:3], 64)


def test_the_kind_of_a_block_says_how_your_data_are_read(tmp_path):
    """Also where other blocks of the file are of another kind, as of what chooses schedules."""
    design = experiments.load("schedules-images", dataset=pictures(tmp_path / "mine"))
    (rates,) = design.choosers()
    sizes = [[one.changed[x][1] for x in ("train_size", "validation")] for one in (design, rates)]
    assert sizes[0] == sizes[1] and sum(sizes[0]) <= 36 and [*rates.blocks] == ["images"]


def test_sizes_follow_the_data_while_a_notebook_is_open(tmp_path):
    """More pictures in the same place, and the same call: what fits them."""
    own = pictures(tmp_path / "mine", (20, 20))
    assert experiments.load("how-hard", dataset=own).changed["train_size"][1] == 32
    pictures(tmp_path / "mine", (40, 40))
    assert experiments.load("how-hard", dataset=own).changed["train_size"][1] == 64
    assert experiments.load("how-hard", dataset=own) is experiments.load("how-hard", dataset=own)
