"""The configuration of a run on sentences; needs no torch."""

from __future__ import annotations

import itertools
from collections.abc import Container
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter
from pydantic import Field
from pydantic.dataclasses import dataclass

from hnlib.sentences.registry import DATASETS
from hnlib.texts.registry import ENCODERS, GENERATED, SIMILARITY, TRANSFER
from hnlib.training.config import Configuration, Hidden, Rare, checked, listed

__all__ = ["SentenceRun"]

OWN_DATASETS = ("text:PATH",)
#: "next" finds the sentence that follows, in the last tenth of a text of yours
TASKS = (*TRANSFER, *SIMILARITY, "sick_pearson", *GENERATED, "next")


def trained_pairs(count: int) -> int:
    """Return how many of the pairs of a text of yours train: the last tenth and a gap do not."""
    return count - count // 10 - 1


def split(content: bytes, name: str) -> list[list[str]]:
    """Return the documents of a text, which has a sentence a line and an empty line between them.

    A line of blanks counts as empty. Raises ValueError unless it is UTF-8 and each document has two
    sentences; `name` is the text's.
    """
    try:
        lines = content.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be UTF-8: {error.reason} at byte {error.start}") from None
    parts = itertools.groupby(lines, lambda line: bool(line.strip()))
    documents = [[*sentences] for filled, sentences in parts if filled]
    short = [one[0] for one in documents if len(one) < 2]
    if short or not documents:
        count = f"{len(short)} of {len(documents)} have one" if short else "it is empty"
        where = f", such as {short[0][:50]!r}; join it to the next one" if short else ""
        raise ValueError(
            f"documents of {name} must have two sentences, a sentence a line and an empty line "
            f"between documents; {count}{where}"
        )
    return documents


def counted_pairs(dataset: str) -> int | None:
    """Return the pairs that a corpus has to train on; a text of yours is read; None if unknown."""
    if known := DATASETS.get(dataset):
        return known.sentences - known.documents  # neighbours in a document
    path = Path(dataset.removeprefix("text:")).expanduser()
    if not dataset.startswith("text:") or not path.is_file():
        return None
    documents = split(path.read_bytes(), dataset)
    return trained_pairs(sum(len(one) - 1 for one in documents))


@dataclass(frozen=True, kw_only=True, config=checked)
class SentenceRun(Configuration):
    """An encoder of sentences, trained on neighbours of a corpus, with a tokenizer learned on it.

    Parameters
    ----------
    encoder
        of the registry of texts, see CONTRIBUTING
    views
        what a pair is
    train_size
        pairs, the same for all seeds
    dimension
        of an encoder's embeddings
    towers
        2: one encoder for each sentence of a pair
    vocabulary
        largest number of tokens
    length
        tokens after which a sentence is cut
    tasks
        mr, …, sts12, …, topic, next (default: the corpus's)
    """

    experiment: Annotated[str, Field(min_length=1), Rare] = "sentences"
    dataset: Annotated[str, listed(DATASETS.keys(), OWN_DATASETS)] = "topics"
    encoder: Annotated[str, listed(ENCODERS)] = "bag"
    views: Annotated[Literal["neighbours"], Hidden] = "neighbours"
    train_size: Annotated[int, Field(ge=2)] | None = None
    dimension: Annotated[int, Field(ge=1)] = 256
    towers: Annotated[int, Field(ge=1, le=2)] = 1
    vocabulary: Annotated[int, Field(ge=300, le=32767)] = 16384
    length: Annotated[int, Field(ge=2, le=64)] = 64
    tasks: Annotated[tuple[Literal[TASKS], ...], Parameter(consume_multiple=True)] = ()  # pyright: ignore
    precision: Annotated[Literal["32-true"], Hidden] = "32-true"

    kind: ClassVar = "sentences"
    recorded: ClassVar = (
        *Configuration.recorded,
        *("encoder", "views", "train_size", "dimension", "vocabulary", "length"),
    )
    accuracies: ClassVar = (*TRANSFER, "msrp_f1", "topic", "transfer", "next", "next_validation")
    correlations: ClassVar = (*SIMILARITY, "alike", "sts", "sick_pearson", "next_mrr")
    datasets: ClassVar = DATASETS
    own_datasets: ClassVar = OWN_DATASETS
    encoders: ClassVar = ENCODERS

    @classmethod
    def fitting(cls, dataset: str, chosen: dict, asked: Container[str] = ()) -> dict:
        """Return training and batch size where those chosen ask for more pairs than a text has."""
        if not dataset.startswith("text:") or (count := counted_pairs(dataset)) is None:
            return {}
        if count < 4:
            raise ValueError(
                f"{cls.dataset_title(dataset)} must have more sentences: it has {count} pairs to "
                "train on, and two batches of two are the least"
            )
        size, batch = chosen.get("train_size"), chosen.get("batch_size") or 256
        used = min(size or count, count)
        fit = {"train_size": used if size else None}
        if batch > used // 4:
            fit["batch_size"] = cls.smaller_batch(used // 4)
        return {k: v for k, v in fit.items() if v is not None and v != chosen.get(k)}

    def check_names(self, root: Path | None = None, given: Container[str] = ()) -> None:
        """Raise ValueError for unknown names, and for more pairs than a corpus has."""
        super().check_names(root, given)
        count = None if "dataset" in given else counted_pairs(self.dataset)
        if count is not None and (self.train_size or 0) > count:
            title = self.dataset_title(self.dataset)
            raise ValueError(
                f"train_size must be at most the {count} pairs of {title}, got {self.train_size}"
            )
        left = self.train_size or count
        if left is not None:
            self.check_batch(left, "pairs for training")

    def defaults_for_run(self) -> dict:
        """Return the defaults of fields that are None."""
        lr = 0.1 if self.encoder == "bag" else 1e-3  # a token is rare, and then moves alone
        return super().defaults_for_run() | dict(epochs=5, batch_size=256, lr=lr)


Run = SentenceRun
