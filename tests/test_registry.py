"""Data sets and encoders of all kinds are entries: what follows from them, and what they say."""

import hashlib
import itertools
import json
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from hnlib import experiments
from hnlib.experiments import findings
from hnlib.notebooks import execute
from hnlib.training import kinds

ROOT = Path(__file__).resolve().parents[1]
REGISTRIES = {
    kind: import_module(f"{name}.registry")
    for kind, name in kinds.KINDS.items()
    if kinds.run_class(kind).datasets  # a task of your own is a file
}
NEW = {
    "images": ("New: 6 + 3 images of 4×4, 2 classes", dict(size=4, channels=3, train=6, test=3)),
    "graphs": ("New: 6 graphs, 2 classes", dict(graphs=6, smallest=10)),
    "sentences": ("New: 6 documents, 30 sentences", dict(documents=6, sentences=30, tasks=("mr",))),
    "retrieval": ("New: 9 documents, 3 queries", dict(documents=9, train=0, test=3)),
}


@pytest.mark.parametrize("kind", REGISTRIES)
def test_a_new_data_set_is_one_entry(kind, monkeypatch, prints, refuses):
    known, (line, about) = REGISTRIES[kind], NEW[kind]
    about |= {"classes": 2} if kind in ("images", "graphs") else {}
    words = ("train", kind, "--dataset", "new", "--dry-run", "--epochs", "1", "--batch-size", "2")
    assert "got 'new'" in refuses(*words)
    monkeypatch.setitem(known.DATASETS, "new", known.DataSet("New", **about))
    assert line in prints("data") and "new" in prints(*words)
    assert kinds.run_class(kind).dataset_title("new") == "New"


def test_a_corpus_of_the_registry_is_a_text_in_its_place(tmp_path, monkeypatch):
    """Of which nothing is downloaded, and whose digest is checked."""
    known, data = REGISTRIES["sentences"], import_module("hnlib.sentences.data")
    text = "\n\n".join("\n".join(f"one word {i} {j}" for j in range(9)) for i in range(3)) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    monkeypatch.setitem(known.DATASETS, "new", known.DataSet("New", 3, 27, ("topic",), digest))
    monkeypatch.setattr(data, "_prepare_novels", None)
    with pytest.raises(ValueError, match=r"new is not downloaded; \S+/sentences/new.txt must be"):
        data.load("new", tmp_path, 300)
    (tmp_path / "sentences").mkdir()
    (tmp_path / "sentences/new.txt").write_text(text)
    found = data.load("new", tmp_path, 300)
    assert (found.name, len(found), int(found.documents.max()) + 1) == ("new", 27, 3)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_help_names_every_data_set_and_encoder(kind, prints):
    said, known = " ".join(prints("train", kind, "--help").split()), kinds.run_class(kind)
    said = re.sub(r"[│ ]+", " ", said)
    for names in ([*known.datasets, *known.own_datasets], known.encoders):
        found = [re.search(rf"[ (]{re.escape(name)}[ ,]", said) for name in names]
        assert all(found), (names, said)


def test_what_is_made_here_is_as_large_as_its_entry_says():
    made = {kind: import_module(f"{kinds.KINDS[kind]}.data") for kind in REGISTRIES}
    graphs, known = made["graphs"].load("motifs"), REGISTRIES["graphs"].DATASETS["motifs"]
    assert (len(graphs), len(graphs.labels.unique())) == (known.graphs, known.classes)
    topics, known = made["sentences"].topics(), REGISTRIES["sentences"].DATASETS["topics"]
    assert (len(topics), sum(map(len, topics))) == (known.documents, known.sentences)
    texts, known = made["retrieval"].load(), REGISTRIES["retrieval"].DATASETS["generated"]
    sizes = [len(texts.texts), *(len(texts.judgements[x]) for x in ("train", "test"))]
    assert sizes == [known.documents, known.train, known.test]


def test_what_was_recorded_is_as_large_as_its_entry_says():
    """Graphs, sentences and judged queries of every recorded data set that has an entry."""
    size = {
        "graphs": lambda one, known: (one["graphs"], known.graphs),
        "sentences": lambda one, known: (one["sentences"], known.sentences),
        "retrieval": lambda one, known: (one["judged"]["ndcg"], known.test),
    }
    seen = set()
    for path in (ROOT / "book/results/records").glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            one = json.loads(line)
            if not isinstance(one, dict) or one.get("kind") not in size:
                continue
            kind, name = one["kind"], one["configuration"]["dataset"]
            known = REGISTRIES[kind].DATASETS.get(name)
            if known and (kind, name) not in seen:
                found, said = size[kind](one, known)
                assert found == said, (kind, name)
                seen.add((kind, name))
    assert len(seen) >= 12, seen


@pytest.mark.parametrize(("kind", "encoder"), [("sentences", "bags"), ("retrieval", "minilm6")])
def test_an_encoder_without_an_entry_is_refused_before_data_are_read(kind, encoder, monkeypatch):
    monkeypatch.setattr(f"hnlib.{kind}.data.load", None)
    train = import_module("hnlib.training.train").train
    run = kinds.run_class(kind)
    with pytest.raises(ValueError, match=f"encoder must be one of bag, gru.*, got '{encoder}'"):
        train(run(encoder=encoder), progress=False)
    with pytest.raises(TypeError, match="NoneType"):  # the control: they would have been
        train(run(), progress=False)


def test_every_encoder_of_texts_has_a_class():
    from hnlib.texts import encoders, registry

    assert {*encoders.CLASSES} == {*registry.ENCODERS}


@pytest.mark.parametrize(
    ("name", "dataset", "titles"),
    [
        ("map", "stl10", {"CIFAR-10": "STL-10"}),
        ("map", "cifar100", {"CIFAR-100": "CIFAR-100"}),
        ("map", "folder:mine-01234567", {"CIFAR-10": "mine-01234567"}),
        ("search", "ml-100k", {"static": "static", "random": "random"}),
        ("graphs", "NCI1", {"MUTAG": "NCI1"}),
        ("null-1-quick", None, {"generated": "generated", "digits": "digits"}),
    ],
)
def test_a_block_is_called_by_the_data_set_that_it_has(name, dataset, titles):
    """Its name stays what the file, and so its arms and choices, go by."""
    design = experiments.load(name, dataset=dataset)
    assert {block: design.title(block) for block in design.blocks} == titles


def test_a_block_is_called_by_the_encoder_that_takes_the_place_of_its_own():
    another, own = (experiments.load("search", encoder=x) for x in ("gru", "bag"))
    assert {block: another.title(block) for block in another.blocks} == {"static": "gru"}
    assert {block: own.title(block) for block in own.blocks} == {"random": "random"}


def test_effects_are_called_by_the_data_set_that_they_are_of(monkeypatch):
    monkeypatch.setattr(findings, "effect", lambda *_: None)
    found = SimpleNamespace(design=experiments.load("map", dataset="stl10"))
    named = experiments.effects(found, [("t0.1 b0", "t0.5 b0")], corrected=False)
    assert [*named] == ["STL-10"]


# --- the first cells of pages

PAGES = {}
for path in sorted((ROOT / "notebooks").rglob("*.md")):
    page = execute.read(path)
    if {"dataset", "small"} & {*execute.parameters_of(page)} == {"dataset", "small"}:
        PAGES[path.stem] = [cell.source for cell in page.cells if cell.cell_type == "code"]


def comment(page: str, parameter: str) -> str:
    """Return what a page says of a parameter, "" if it has none."""
    pattern = rf"^{parameter} = [^#\n]*# (.*)$"
    found = [re.search(pattern, source, re.M) for source in PAGES[page]]
    return next((one[1] for one in found if one), "")


@cache
def loaded(page: str) -> frozenset:
    """Return the kinds of runs that a page loads; one that trains by itself has images."""
    names = {*re.findall(r'"([\w-]+)"', "\n".join(PAGES[page]))} & {*experiments.names()}
    designs = [experiments.load(name) for name in sorted(names)]
    found = {
        block.get("kind", one.fields["kind"]) for one in designs for block in one.blocks.values()
    }
    return frozenset(map(kinds.run_class, found or {"images"}))


def wrong_names(page: str, parameter: str) -> list[str]:
    """Return what a page names that there is not, and lists of names that a new entry makes false.

    A list therefore ends with an ellipsis; the refusal of a wrong name, and the help, name all.
    """
    said, classes = comment(page, parameter), loaded(page)
    registries = {"dataset": lambda one: one.datasets, "encoder": lambda one: one.encoders}
    names = {name for one in classes for name in registries[parameter](one)}
    names |= {name for one in classes for name in one.own_datasets}
    word = r"[\w-]+(?::PATH)?"
    lists = re.findall(rf"(?:^|[:;] (?:or )?)({word}(?:, {word})+)(, …)?(?=$|:(?!PATH))", said)
    after = re.findall(rf"\bor ({word})|(?<![^ ])({word}):(?!PATH)", said)
    named = {x for some, _ in lists for x in some.split(", ")} | {x for one in after for x in one}
    closed = [f"{some}, and no …" for some, more in lists if not more]
    return sorted(named - names - {"", "None"}) + closed


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("parameter", ["dataset", "encoder"])
def test_a_page_names_data_sets_and_encoders_that_there_are(page, parameter):
    """A list stays open, so that a new entry of the registry leaves it true."""
    assert not wrong_names(page, parameter)


def test_what_contributing_adds_leaves_every_page_true(monkeypatch):
    """An entry is all that has to be written."""
    text, known = (ROOT / "CONTRIBUTING.md").read_text("utf-8"), REGISTRIES["images"]
    (entries,) = re.findall(r"^(DATASETS\[.*?)^```", text, re.M | re.S)
    added = {"DATASETS": {}, "ENCODERS": {}, "DataSet": known.DataSet}
    exec(entries, added)
    for names in ("DATASETS", "ENCODERS"):
        for name, entry in added[names].items():
            monkeypatch.setitem(getattr(known, names), name, entry)
    assert "fashion-mnist" in kinds.run_class("images").datasets
    asked = itertools.product(PAGES, ("dataset", "encoder"))
    wrong = {one: wrong_names(*one) for one in asked}
    assert not any(wrong.values()), wrong


def test_a_name_without_an_entry_and_a_closed_list_are_found(monkeypatch):
    """The two near misses."""
    source = PAGES["anatomy"]
    at = next(i for i, one in enumerate(source) if one.startswith("dataset ="))
    for text, wrong in (
        ("dataset = None  # None: digits; or cifar10, cifar11, …", ["cifar11"]),
        ("dataset = None  # None: digits; or cifar10, cifar100", ["cifar10, cifar100, and no …"]),
    ):
        monkeypatch.setitem(PAGES, "anatomy", [*source[:at], text, *source[at + 1 :]])
        assert wrong_names("anatomy", "dataset") == wrong
