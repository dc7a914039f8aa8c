"""The configuration of a run on retrieval; needs no torch."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter
from pydantic import Field
from pydantic.dataclasses import dataclass

from hnlib._files import data_folder
from hnlib.retrieval.registry import DATASETS, ENCODERS, LOCAL, OWN
from hnlib.texts.registry import SIMILARITY
from hnlib.training.config import Configuration, Positive, Rare, checked, defaults, listed

__all__ = ["RetrievalRun"]

Rank = Annotated[int, Field(ge=0)]
OWN_DATASETS = ("folder:PATH",)
METRICS = ("ndcg", "recall10", "recall100", "mrr")  # of test queries, and of those held out
READ = (*SIMILARITY, "alike")


@dataclass(frozen=True, kw_only=True, config=checked)
class RetrievalRun(Configuration):
    """An encoder of queries and documents, trained on pairs of a collection, judged by search.

    Parameters
    ----------
    dataset
        name of a collection, or folder:PATH, a folder of BEIR's layout
    encoder
        of the registry of retrieval, see CONTRIBUTING; of a transformer, the mean of the last
        states
    pairs
        titles (with their texts), judged, or both
    leak
        train on queries that share judged documents with test queries
    dimension
        of an encoder's embeddings
    towers
        2: one encoder for queries and one for documents
    vocabulary
        largest number of tokens
    length
        tokens after which a text is cut in training, and by a transformer in search (else: 512)
    mined
        ranks documents for further negatives: bm25 or model
    negatives
        mined negatives of each query
    ranks
        half-open range of ranks to draw from; judged documents are skipped
    best_of
        a mined negative is the most similar of this many drawn ones
    margin
        documents that score above this multiple of the judged one's score are mined last
    refresh
        mine again with the model before each epoch
    hardness_mode
        negatives that hardness_strength applies to: all, mined or in-batch
    hardness_strength
        as in sentence-transformers; it has no unit
    logq
        correct for the frequency of documents in training: on (positives too) or refined
    guide
        model that removes negatives: self, or, as it is before training, static or bm25
    guide_margin
        negatives that the guide scores above the judged document plus this margin are removed,
        unless none would be left
    teacher
        model whose scores are soft targets: static or bm25
    composition
        of a batch: random pairs; similar, a pair and those whose documents the static bag finds
        nearest; or distinct, no document (or topic, where they are known) twice
    transfer
        further collections to search
    tasks
        graded pairs of sentences to compare: stsb, sick, sts12, …
    pairs_only
        the loss gets embeddings of queries and of their answers and nothing else, as `hnlib null`
        has it: other answers of a query in the batch stay its negatives
    """

    experiment: Annotated[str, Field(min_length=1), Rare] = "retrieval"
    dataset: Annotated[str, listed(DATASETS.keys(), OWN_DATASETS)] = "generated"
    encoder: Annotated[str, listed(ENCODERS)] = "bag"
    pairs: Literal["titles", "judged", "both"] = "both"
    leak: Annotated[bool, Rare] = False
    dimension: Annotated[int, Field(ge=1)] = 256
    towers: Annotated[int, Field(ge=1, le=2), Rare] = 1
    vocabulary: Annotated[int, Field(ge=300, le=32767), Rare] = 16384
    length: Annotated[int, Field(ge=2)] = 128
    mined: Literal["bm25", "model"] | None = None
    negatives: Annotated[int, Field(ge=1), Rare] = 1
    ranks: Annotated[tuple[Rank, Rank], Rare] = (0, 30)
    best_of: Annotated[int, Field(ge=1), Rare] = 1
    margin: Annotated[Positive | None, Rare] = None
    refresh: Annotated[bool, Rare] = False
    hardness_mode: Annotated[Literal["all", "mined", "in-batch"], Rare] = "all"
    hardness_strength: Annotated[float, Field(ge=0), Rare] = 0.0
    logq: Annotated[Literal["on", "refined"] | None, Rare] = None
    guide: Annotated[Literal["self", "static", "bm25"] | None, Rare] = None
    guide_margin: Annotated[float, Rare] = 0.0
    teacher: Annotated[Literal["static", "bm25"] | None, Rare] = None
    composition: Annotated[Literal["random", "similar", "distinct"], Rare] = "random"
    transfer: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    tasks: Annotated[tuple[Literal[READ], ...], Parameter(consume_multiple=True)] = ()  # pyright: ignore
    pairs_only: Annotated[bool, Rare] = False

    kind: ClassVar = "retrieval"
    recorded: ClassVar = (
        *Configuration.recorded,
        *("encoder", "pairs", "dimension", "vocabulary", "length"),
    )
    requires: ClassVar = Configuration.requires | {
        "dimension": ("encoder", *OWN),
        "vocabulary": ("encoder", *OWN),
        "negatives": ("mined",),
        "ranks": ("mined",),
        "best_of": ("mined",),
        "margin": ("mined",),
        "refresh": ("mined", "model"),
        "hardness_mode": ("hardness_strength",),
        "guide_margin": ("guide",),
    }
    correlations: ClassVar = READ
    accuracies: ClassVar = (*METRICS, *(f"{name}_validation" for name in METRICS))
    datasets: ClassVar = DATASETS
    own_datasets: ClassVar = OWN_DATASETS
    encoders: ClassVar = ENCODERS

    @classmethod
    def fitting(cls, dataset: str, chosen: dict, asked: Container[str] = ()) -> dict:
        """Return a smaller batch where a collection of yours has too few pairs; it is read.

        Training queries near test queries are left out unless all are, as of Banking77.
        """
        if not dataset.startswith("folder:"):
            return {"leak": dataset == "banking77"}
        from hnlib.retrieval.data import load

        collection, which = load(dataset), chosen.get("pairs") or defaults(cls)["pairs"]
        fit: dict = {"leak": bool(collection.split(True)[0]) and not collection.split()[0]}
        answers = collection.answers(which, fit["leak"])
        most = min(len(answers) // 2, len({*answers}))  # a batch may have each document once
        if most and (chosen.get("batch_size") or 128) > most:
            fit["batch_size"] = cls.smaller_batch(most)
        return fit

    @classmethod
    def serves(cls, dataset: str, arm: dict) -> bool:
        """Return whether a collection of yours, which is read, has the ranks that are mined."""
        if not dataset.startswith("folder:") or not arm.get("ranks"):
            return True
        from hnlib.retrieval.data import load

        collection = load(dataset)
        judged = max(map(len, collection.split(True)[0].values()), default=0)
        return arm["ranks"][1] <= len(collection.documents) - judged

    def check_names(self, root: Path | None = None, given: Container[str] = ()) -> None:
        """Raise ValueError for unknown names, and for batches that the pairs cannot fill.

        A collection that is there is read for it.
        """
        super().check_names(root, given)
        folder = Path(self.encoder.removeprefix(LOCAL)).expanduser()
        if self.encoder.startswith(LOCAL) and "encoder" not in given and not folder.is_dir():
            raise ValueError(f"encoder must name a folder that is there, got {self.encoder!r}")
        made = self.dataset in DATASETS and not DATASETS[self.dataset].form
        own = self.dataset.startswith("folder:")
        there = made or own or (data_folder(root, "retrieval") / self.dataset).is_dir()
        if "dataset" in given or self.epochs == 0 or not there:
            return
        from hnlib.retrieval.data import load

        collection = load(self.dataset, root)
        answers = collection.answers(self.pairs, self.leak)
        if len(answers) < 2:
            raise ValueError(
                "dataset must have two pairs to train on (of a folder: qrels/train.tsv, or titles "
                f"of documents), got {len(answers)} of {self.dataset!r}"
            )
        topics = collection.topics
        self.check_distinct([topics[x] for x in answers] if topics else answers, bool(topics))
        self.check_batch(len(answers), "pairs for training")

    def check_data(self, root: Path | str | None = None) -> None:
        """Raise ValueError unless collections are in place that are not downloaded; reads them."""
        from hnlib.retrieval.data import load

        for name in (self.dataset, *self.transfer):
            load(name, root)

    def check_distinct(self, keys: Iterable[int], topics: bool) -> None:
        """Raise ValueError if the pairs have too few documents, or topics, for a distinct batch."""
        if self.composition == "distinct":
            self.check_batch(len({*keys}), "distinct topics" if topics else "distinct documents")

    def validates(self) -> bool:
        """Return whether some queries validate; a collection of yours is read."""
        if known := DATASETS.get(self.dataset):
            return known.train > 0
        from hnlib.retrieval.data import load

        own = self.dataset.startswith("folder:")
        return not own or bool(load(self.dataset).split(self.leak)[1])

    def __post_init__(self):
        super().__post_init__()
        more = self.mined, self.guide, self.teacher, self.logq, self.hardness_strength
        if self.pairs_only and any(more):
            raise ValueError("pairs_only allows no mined, guide, teacher, logq, hardness_strength")
        if self.ranks[1] - self.ranks[0] < self.negatives * self.best_of:
            raise ValueError(
                f"ranks={self.ranks} are too few for {self.negatives} negatives, each the best "
                f"of {self.best_of}"
            )
        if self.encoder == "static" and self.dimension != 256:
            raise ValueError(f"dimension must be 256 with static vectors, got {self.dimension}")

    def dataset_choices(self, root=None) -> tuple[str, ...]:
        """Return what `dataset` can be: also a folder that you have put beside the others."""
        found = {path.parent.name for path in data_folder(root, "retrieval").glob("*/corpus.jsonl")}
        return *super().dataset_choices(), *sorted(found - {*self.datasets})

    @property
    def is_transformer(self) -> bool:
        """Whether the encoder is a transformer that others have trained."""
        return self.encoder not in OWN

    @property
    def evaluate_every(self) -> int:  # pyright: ignore
        """A transformer's epoch takes minutes, so each is read out."""
        return int(self.is_transformer)

    def defaults_for_run(self) -> dict:
        """Return the defaults of fields that are None."""
        if self.is_transformer:
            usual = dict(lr_schedule="warm-up", weight_decay=0.01)
            return usual | dict(epochs=1, batch_size=64, lr=1e-4)
        return super().defaults_for_run() | dict(epochs=5, batch_size=128, lr=1e-3)

    def resolved(self):
        """Return this run with all defaults of the catalogue filled in."""
        entry = self.entry
        if entry is not None and (entry.supervised or "mixture" in entry.defaults):
            what = "class labels" if entry.supervised else "each other document as a negative"
            raise ValueError(f"method {self.method} needs {what}; choose another for retrieval")
        if self.teacher and (entry is None or "teacher_temperature" not in entry.defaults):
            raise ValueError(f"teacher={self.teacher} requires method soft-targets")
        return super().resolved()


Run = RetrievalRun
