"""Collections of documents and queries with judgements, in the layout of BEIR."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from hnlib._files import data_folder, decode, path_behind
from hnlib.sentences import data as sentences

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
    def titled(self) -> list[int]:
        """Return the documents with a title and a text."""
        return [i for i, title in enumerate(self.titles) if title and self.texts[i]]

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
    and test.csv. `root` defaults to `$HNLIB_DATA`, else the user's cache.
    """
    if name == "generated":
        return generated()
    if name.startswith(PREFIX):
        folder = path_behind(PREFIX, name)
        made = read(folder, folder.stem)
        return replace(made, name=f"{PREFIX}{folder.stem}-{made.digest[:8]}")
    folder = data_folder(root, "retrieval") / name
    own = {"ml-100k": movielens, "banking77": banking}
    return own[name](folder) if name in own else read(folder, name)


def read(folder: Path, name: str) -> Collection:
    """Read a folder in BEIR's layout."""
    digest = hashlib.sha256()
    documents = _texts(folder / "corpus.jsonl", digest)
    queries = _texts(folder / "queries.jsonl", digest)
    for key, one in queries.items():
        if not one.text.strip():
            raise ValueError(f"query {key!r} of {folder} has no text; leave it out")
    number = {key: i for i, key in enumerate(documents)}
    asked = {key: i for i, key in enumerate(queries)}
    judgements = {}
    for path in sorted((folder / "qrels").glob("*.tsv")):
        split = judgements[path.stem] = {}
        seen: dict[tuple[str, str], float] = {}
        for line, query, document, grade in _table(path, digest, asked):
            if query not in asked or document not in number:
                raise ValueError(
                    f"line {line} of {path} judges document {document!r} for query {query!r}, "
                    f"but corpus.jsonl or queries.jsonl lacks it; remove the line or add the text"
                )
            if seen.setdefault((query, document), grade) != grade:
                raise ValueError(
                    f"line {line} of {path} grades document {document!r} for query {query!r} "
                    f"{grade:g}, after {seen[query, document]:g}; leave one of the lines"
                )
            if grade > 0:
                split.setdefault(asked[query], {})[number[document]] = grade
    if not judgements.get("test"):
        raise ValueError(f"{folder} judges no document relevant in qrels/test.tsv; add such a file")
    titles = [(one.title or "").strip() for one in documents.values()]
    texts = [one.text.strip() for one in documents.values()]
    asked_texts = [one.text for one in queries.values()]
    return Collection(name, titles, texts, asked_texts, judgements, digest.hexdigest()[:12])


def _content(path: Path, digest) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); a collection is a folder with "
            "corpus.jsonl, queries.jsonl and qrels/test.tsv, as BEIR writes it"
        ) from error
    digest.update(content)
    return decode(content, path)


def _rows(path: Path, digest) -> list[tuple[int, str]]:
    """Return the lines of a file that are not empty, with their numbers.

    Lines end only at a newline: a text may hold other characters at which `splitlines` splits.
    """
    lines = _content(path, digest).split("\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


class _Text(BaseModel):
    """A line of corpus.jsonl or queries.jsonl."""

    model_config = ConfigDict(strict=True)
    id: str | int = Field(alias="_id")
    text: str
    title: str | None = None


def _texts(path: Path, digest) -> dict[str, _Text]:
    """Return the objects of a JSON-lines file by `_id`."""
    rows = {}
    for number, line in _rows(path, digest):
        try:
            row = _Text.model_validate_json(line)
        except ValidationError:
            raise ValueError(
                f"line {number} of {path} must be a JSON object with _id (a string or an integer) "
                f"and text, perhaps title (strings), got {line[:80]}"
            ) from None
        if str(row.id) in rows:
            raise ValueError(f"{path} has the _id {row.id!r} twice; give each line its own")
        rows[str(row.id)] = row  # as qrels writes it
    if not rows:
        raise ValueError(f"{path} is empty; write one JSON object with _id and text a line")
    return rows


def _table(path: Path, digest, queries) -> list[tuple[int, str, str, float]]:
    """Return number, query, document and grade of each line of a TSV file, without a header."""
    table = []
    for i, (number, line) in enumerate(_rows(path, digest)):
        row = line.removesuffix("\r").split("\t")
        try:
            query, document, grade = *row[:2], float(row[2])
            fits = len(row) == 3 and math.isfinite(grade)
        except (ValueError, IndexError):
            if i == 0 and len(row) == 3 and row[0] not in queries:
                continue  # the head
            fits = False
        if not fits:
            raise ValueError(
                f"line {number} of {path} must be query, document, grade (a finite number) with "
                f"tabs between them, got {line[:80]!r}"
            )
        table.append((number, query, document, grade))
    return table


def movielens(folder: Path) -> Collection:
    """Read MovieLens: users as queries, films as documents, ratings of at least 4 as judgements.

    Users and films are their id and features as words. The first 80 % of a user's likes, by time,
    are the training part, then come dev and test.
    """
    try:
        return _movielens(folder)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"the files ml-100k.user, .item and .inter of {folder} are not as RecBole writes them "
            f"({error!r}); put them there anew"
        ) from error


def _movielens(folder: Path) -> Collection:
    digest = hashlib.sha256()

    def rows(part: str) -> list[dict]:
        _, *lines = cells = _rows(folder / f"ml-100k.{part}", digest)
        head = [name.split(":")[0] for name in cells[0][1].split("\t")]
        return [dict(zip(head, line.removesuffix("\r").split("\t"))) for _, line in lines]

    def number(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise ValueError(f"{text} is no number")
        return value

    users, items = rows("user"), rows("item")
    user_number = {one["user_id"]: i for i, one in enumerate(users)}
    item_number = {one["item_id"]: i for i, one in enumerate(items)}
    likes = [one for one in rows("inter") if number(one["rating"]) >= 4]
    likes.sort(key=lambda one: (number(one["timestamp"]), one["item_id"]))
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
    digest = digest.hexdigest()[:12]
    return Collection("ml-100k", titles, texts, queries, judgements, digest, repeated=True)


def banking(folder: Path) -> Collection:
    """Read Banking77: a customer's question is answered by those with the same intent.

    Of the training questions every tenth is a query of "dev"; the others are the documents, and
    queries of "train" that each have one document, another question of their intent.
    """
    digest = hashlib.sha256()

    def rows(name: str) -> list[tuple[str, str]]:
        text = _content(folder / name, digest)
        lines = [*csv.DictReader(io.StringIO(text))]
        if not lines or not {"text", "category"} <= lines[0].keys():
            raise ValueError(f"{folder / name} must have the columns text and category")
        return [(line["text"].strip(), line["category"]) for line in lines]

    given, test = rows("train.csv"), rows("test.csv")
    kept = [row for i, row in enumerate(given) if i % 10]
    intents = sorted({intent for _, intent in kept})
    of_intent = {name: [i for i, row in enumerate(kept) if row[1] == name] for name in intents}
    queries, judgements = [], {"train": {}, "dev": {}, "test": {}}
    rng = np.random.default_rng(0)
    for split, asked in (("train", kept), ("dev", given[::10]), ("test", test)):
        for text, intent in asked:
            relevant = of_intent[intent]
            if split == "train":
                relevant = [rng.choice([i for i in relevant if i != len(queries)])]
            judgements[split][len(queries)] = dict.fromkeys(map(int, relevant), 1.0)
            queries.append(text)
    texts, topics = [text for text, _ in kept], tuple(intents.index(name) for _, name in kept)
    made = digest.hexdigest()[:12]
    return Collection(
        "banking77", [""] * len(texts), texts, queries, judgements, made, topics=topics
    )


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
        return sentences.learned(collection.documents, vocabulary)
    tokenizer = Tokenizer(models.WordLevel(unk_token=sentences.UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [sentences.PAD, sentences.UNKNOWN]
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([*collection.documents, *collection.queries], trainer)
    return tokenizer


def tokenised(
    collection: Collection, tokenizer: Callable[[], Tokenizer], name: str, folder: Path
) -> sentences.Corpus:
    """Return the tokens of documents, queries, titles and texts, in that order.

    They are cached in a `folder` under the collection's digest and the tokenizer's `name`.
    """
    key = f"{collection.digest}-{name}"
    path = folder / f"{key}.safetensors"
    try:
        return _read_tokens(path, key)
    except ValueError:  # not there, or cut off
        titled = collection.titled
        every = [*collection.documents, *collection.queries]
        every += [collection.titles[i] for i in titled] + [collection.texts[i] for i in titled]
        sentences.write(sentences.texts(key, every, tokenizer()), path)
        return _read_tokens(path, key)


_read_tokens = functools.cache(sentences.read)


def part(texts: sentences.Corpus, start: int, stop: int) -> sentences.Corpus:
    """Return some texts in a row."""
    return replace(texts, ends=texts.ends[start : stop + 1], documents=torch.arange(stop - start))


def describe(collection: Collection) -> dict:
    """Return sizes of a collection, by name."""
    train, validation = collection.split()
    judged = {"train": train, "validation": validation, "test": collection.judgements["test"]}
    lines = {"documents": f"{len(collection.texts):,}, {len(collection.titled):,} with a title"}
    for split, queries in judged.items():
        lines[split] = f"{len(queries):,} queries, {sum(map(len, queries.values())):,} judged"
    lines["digest"] = collection.digest
    return lines
