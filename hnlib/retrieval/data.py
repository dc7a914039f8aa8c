"""Collections of documents and queries with judgements, in the layout of BEIR."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from hnlib._files import data_folder, own_name
from hnlib.retrieval.registry import DATASETS
from hnlib.texts import tokens

PREFIX = "folder:"  # before the path of a folder
Judgements = dict[int, dict[int, float]]
"""The judged documents of each query, with their grades; a grade above 0 means relevant."""


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents, each a title (perhaps empty) and a text, and queries with judgements by split.

    If `repeated`, training queries return in the test part (users of a shop), and the documents
    they had in training are not searched again; words are tokens. Documents of one of the `topics`,
    if they are known, answer the same queries.
    """

    name: str
    titles: list[str] = field(repr=False)
    texts: list[str] = field(repr=False)
    queries: list[str] = field(repr=False)
    judgements: dict[str, Judgements] = field(repr=False)
    digest: str
    repeated: bool = False
    topics: tuple[int, ...] = field(default=(), repr=False)

    @property
    def documents(self) -> list[str]:
        """Return each document's title and text as one text."""
        both = zip(self.titles, self.texts)
        # an encoder needs a token, and published collections have empty documents
        return [f"{title} {text}".strip() or "." for title, text in both]

    @property
    def all_texts(self) -> list[str]:
        """Return documents, queries, and of the titled documents the titles, then the texts."""
        apart = [part[i] for part in (self.titles, self.texts) for i in self.titled]
        return [*self.documents, *self.queries, *apart]

    @property
    def titled(self) -> list[int]:
        """Return the documents with a title and a text."""
        return [i for i, title in enumerate(self.titles) if title and self.texts[i]]

    def answers(self, which: str, leak: bool) -> list[int]:
        """Return the document of each pair to train on, of "titles", "judged" or "both"."""
        judged = itertools.chain.from_iterable(self.split(leak)[0].values())
        return [*(self.titled if which != "judged" else ()), *(judged if which != "titles" else ())]

    def split(self, leak: bool = False) -> tuple[Judgements, Judgements]:
        """Return the training and the validation part.

        Training queries that share a judged document with a test query, directly or through other
        queries, are left out of training unless `leak`; they validate if there is no split "dev".
        """
        train, test = self.judgements.get("train", {}), self.judgements.get("test", {})
        dev = self.judgements.get("dev", {})
        if leak or self.repeated:
            return train, dev
        linked = set(itertools.chain.from_iterable(test.values()))
        count = -1
        while count != len(linked):
            count = len(linked)
            for documents in train.values():
                if not linked.isdisjoint(documents):
                    linked.update(documents)
        left_out = {q: d for q, d in train.items() if not linked.isdisjoint(d)}
        return {q: d for q, d in train.items() if q not in left_out}, dev or left_out


def load(name: str = "generated", root: Path | str | None = None) -> Collection:
    """Load "generated" (made here), a folder of `root/retrieval`, or "folder:PATH".

    A folder has `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv` (BEIR), with the splits
    "train", "dev" and "test"; "ml-100k" has the files that RecBole writes, "banking77" train.csv
    and test.csv, "flickr8k" Flickr8k.token.txt. `root` defaults to `$HNLIB_DATA`, else the user's
    cache.
    """
    if name in DATASETS and not DATASETS[name].form:
        return generated()
    if name.startswith(PREFIX):
        folder = Path(name.removeprefix(PREFIX)).expanduser()
        made = _read(folder, folder.stem)
        return replace(made, name=own_name(name))
    return _read(data_folder(root, "retrieval") / name, name)


def _read(folder: Path, name: str) -> Collection:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    stats = [(path, path.stat()) for path in files]
    return _read_once(folder, name, tuple((x, s.st_mtime_ns, s.st_size) for x, s in stats))


@functools.lru_cache(maxsize=1)  # short runs on one collection take a third longer without
def _read_once(folder: Path, name: str, stamps: tuple) -> Collection:
    readers = {"BEIR": read, "RecBole": movielens, "Banking77": banking, "Flickr8k": captions}
    reader = readers[DATASETS[name].form if name in DATASETS else "BEIR"]
    files = _Files(folder)
    try:
        return reader(files, name)
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{files.at}{folder} cannot be read ({type(error).__name__}: {error}); put files there "
            f"as `python -m pydoc {__name__}.{reader.__name__}` says"
        ) from error


class _Files:
    """The files of a folder; `digest` covers those that were read."""

    def __init__(self, folder: Path):
        self.folder, self.at, self._digest = folder, "", hashlib.sha256()

    @property
    def digest(self) -> str:
        """Return twelve hexadecimal digits."""
        return self._digest.hexdigest()[:12]

    def text(self, name: str) -> str:
        """Return the text of a file."""
        content = (self.folder / name).read_bytes()
        self._digest.update(content)
        return content.decode("utf-8-sig").replace("\r\n", "\n")

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines that are not empty; `splitlines` would split within some texts."""
        for number, line in enumerate(self.text(name).split("\n"), 1):
            self.at = f"line {number} of {name} in "
            if line.strip():
                yield line
        self.at = ""


def read(files: _Files, name: str) -> Collection:
    """Read a folder in BEIR's layout.

    A line of `corpus.jsonl` and `queries.jsonl` is an object with `_id` and `text`, and perhaps
    `title`; one of `qrels/SPLIT.tsv` has query, document and grade, with tabs between them.
    """
    documents, queries = {}, {}
    for part, found in (("corpus", documents), ("queries", queries)):
        for one in map(json.loads, files.lines(f"{part}.jsonl")):
            if not one["text"].strip() and found is queries:
                raise ValueError("a query needs a text")
            if found.setdefault(str(one["_id"]), one) is not one:
                raise ValueError(f"the _id {one['_id']!r} is there twice")
    number, asked = ({key: i for i, key in enumerate(part)} for part in (documents, queries))
    judgements: dict[str, Judgements] = {}
    for path in sorted((files.folder / "qrels").glob("*.tsv")):
        split = judgements[path.stem] = {}
        for line in files.lines(f"qrels/{path.name}"):
            query, document, grade = line.split("\t")
            if query != "query-id" and float(grade) > 0:
                judged = split.setdefault(asked[query], {})
                if judged.setdefault(number[document], float(grade)) != float(grade):
                    raise ValueError("it grades a pair again, and differently")
    if not judgements.get("test"):
        raise ValueError("qrels/test.tsv judges no document relevant")
    titles = [(one.get("title") or "").strip() for one in documents.values()]
    texts = [one["text"].strip() for one in documents.values()]
    asked_texts = [one["text"] for one in queries.values()]
    return Collection(name, titles, texts, asked_texts, judgements, files.digest)


def movielens(files: _Files, name: str) -> Collection:
    """Read `ml-100k.user`, `.item` and `.inter` as RecBole writes them; users ask for films.

    Users and films are their id and features as words; ratings of at least 4 are judgements. The
    first 80 % of a user's likes, by time, are the training part, then come dev and test.
    """

    def rows(part: str) -> list[dict]:
        head, *lines = files.lines(f"{name}.{part}")
        names = [field.split(":")[0] for field in head.split("\t")]
        return [dict(zip(names, line.split("\t"), strict=True)) for line in lines]

    users, items = rows("user"), rows("item")
    user_number = {one["user_id"]: i for i, one in enumerate(users)}
    item_number = {one["item_id"]: i for i, one in enumerate(items)}
    likes = [one for one in rows("inter") if float(one["rating"]) >= 4]
    likes.sort(key=lambda one: (float(one["timestamp"]), one["item_id"]))
    by_user: dict[int, list[int]] = {}
    for one in likes:
        by_user.setdefault(user_number[one["user_id"]], []).append(item_number[one["item_id"]])
    judgements: dict[str, Judgements] = {"train": {}, "dev": {}, "test": {}}
    for user, films in by_user.items():
        ends = [0, int(0.8 * len(films)), int(0.9 * len(films)), len(films)]
        for split, (start, stop) in zip(judgements, itertools.pairwise(ends)):
            if start < stop:
                judgements[split][user] = dict.fromkeys(films[start:stop], 1.0)
    queries = [
        f"user{u['user_id']} age{int(u['age']) // 10} {u['gender']} {u['occupation']}"
        for u in users
    ]
    texts = [
        f"film{i['item_id']} year{i['release_year'][:3]} {i['class'].replace(' ', ' genre:')}"
        for i in items
    ]
    titles = [""] * len(items)
    return Collection(name, titles, texts, queries, judgements, files.digest, repeated=True)


def banking(files: _Files, name: str) -> Collection:
    """Read Banking77: a customer's question is answered by those with the same intent.

    `train.csv` and `test.csv`, from the folder banking_data of github.com/PolyAI-LDN/
    task-specific-datasets, have the columns text and category. Of the training questions every
    tenth is a query of "dev"; the others are the documents, and queries of "train" that each have
    one document, another question of their intent.
    """
    given, test = (
        [(row["text"].strip(), row["category"]) for row in csv.DictReader(io.StringIO(text))]
        for text in map(files.text, ("train.csv", "test.csv"))
    )
    kept = [row for i, row in enumerate(given) if i % 10]
    intents = sorted({intent for _, intent in kept})
    of_intent = {one: [i for i, row in enumerate(kept) if row[1] == one] for one in intents}
    queries, judgements = [], {"train": {}, "dev": {}, "test": {}}
    rng = np.random.default_rng(0)
    for split, asked in (("train", kept), ("dev", given[::10]), ("test", test)):
        for text, intent in asked:
            relevant = of_intent[intent]
            if split == "train":
                relevant = [rng.choice([i for i in relevant if i != len(queries)])]
            judgements[split][len(queries)] = dict.fromkeys(map(int, relevant), 1.0)
            queries.append(text)
    texts, topics = [text for text, _ in kept], tuple(intents.index(one) for _, one in kept)
    titles = [""] * len(texts)
    return Collection(name, titles, texts, queries, judgements, files.digest, topics=topics)


def captions(files: _Files, name: str) -> Collection:
    """Read Flickr8k: the first caption of a photograph is answered by its other four.

    A line of `Flickr8k.token.txt` has the photograph, # and the caption's number, and the caption.
    Of ten photographs in their order one is for "dev" and one for "test"; a query of "train" has
    one of the four answers.
    """
    lines = sorted(line.split(maxsplit=1) for line in files.lines("Flickr8k.token.txt"))
    texts, queries, judgements = [], [], {"train": {}, "dev": {}, "test": {}}
    rng = np.random.default_rng(0)
    photographs = itertools.groupby(lines, lambda line: line[0].split("#")[0])
    for i, (_, found) in enumerate(photographs):
        asked, *others = [text.strip() for _, text in found]
        relevant = range(len(texts), len(texts) + len(others))
        split = {0: "dev", 5: "test"}.get(i % 10, "train")
        if split == "train":
            relevant = [int(rng.choice(relevant))]
        judgements[split][i] = dict.fromkeys(relevant, 1.0)
        queries.append(asked)
        texts += others
    return Collection(name, [""] * len(texts), texts, queries, judgements, files.digest)


def generated(documents: int = 500, seed: int = 0) -> Collection:
    """Generate documents about four things each, and queries that name two of them in other words.

    Each thing has one word that titles and queries use and another that texts prefer, so words
    alone do not find everything. The documents with both things are relevant: false negatives are
    known.
    """
    rng = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(word) for word in itertools.product(syllables, repeat=2)]
    things = rng.choice(words, (100, 2), replace=False)
    filler = rng.choice(words, 60)
    about = np.array([rng.choice(100, 4, replace=False) for _ in range(documents)])
    titles = [" ".join(things[about[i], 0]) for i in range(documents)]
    texts = []
    for i in range(documents):
        named = [str(things[k, int(rng.random() < 0.8)]) for k in rng.choice(about[i], 8)]
        texts.append(" ".join(rng.permutation([*named, *rng.choice(filler, 12)])))
    queries, judgements = [], {"train": {}, "test": {}}
    for split, count in (("train", 300), ("test", 100)):
        for document in rng.choice(documents, count):
            pair = rng.choice(about[document], 2, replace=False)
            relevant = (about[:, :, None] == pair).any(1).all(1).nonzero()[0]
            judgements[split][len(queries)] = dict.fromkeys(map(int, relevant), 1.0)
            queries.append(" ".join([*things[pair, 0], *rng.choice(filler, 2)]))
    return collection("generated", titles, texts, queries, judgements)


def collection(
    name: str,
    titles: list[str],
    texts: list[str],
    queries: list[str],
    judgements: dict[str, Judgements],
) -> Collection:
    """Make a collection of your own; documents and queries are numbered from 0."""
    content = json.dumps([titles, texts, queries, list(map(str, judgements.items()))]).encode()
    digest = hashlib.sha256(content).hexdigest()[:12]
    return Collection(name, titles, texts, queries, judgements, digest)


def tokenizer_of(collection: Collection, vocabulary: int) -> Tokenizer:
    """Learn a tokenizer on the documents (words where queries repeat, else byte pairs)."""
    if not collection.repeated:
        return tokens.learned(collection.documents, vocabulary)
    tokenizer = Tokenizer(models.WordLevel(unk_token=tokens.UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [tokens.PAD, tokens.UNKNOWN]
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([*collection.documents, *collection.queries], trainer)
    return tokenizer


def tokenised(
    collection: Collection, tokenizer: Callable[[], Tokenizer], name: str, folder: Path
) -> tokens.Corpus:
    """Return the tokens of all texts of a collection.

    They are cached in a `folder` under the collection's digest and the tokenizer's `name`.
    """
    key = f"{collection.digest}-{name}"

    def make() -> tokens.Corpus:
        return tokens.texts(key, collection.all_texts, tokenizer())

    return tokens.cached(folder / f"{key}.safetensors", key, make)
