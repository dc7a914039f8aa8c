"""The data sets and encoders that runs on retrieval name: a new one is an entry. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hnlib.texts.registry import ENCODERS as OF_TEXTS


@dataclass(frozen=True)
class DataSet:
    """What is known of a collection before it is read.

    Parameters
    ----------
    title
        as tables write it
    documents, train, test
        documents, and judged queries for training and for testing
    form
        of the files in its folder, for each of which `hnlib.retrieval.data` has a reader; without
        one the collection is made here
    """

    title: str
    documents: int
    train: int
    test: int
    form: str = "BEIR"

    def __str__(self) -> str:
        train = f"{self.train:,} + " if self.train else ""
        return f"{self.title}: {self.documents:,} documents, {train}{self.test:,} queries"


DATASETS = {
    "generated": DataSet("generated", 500, 300, 100, ""),
    "scifact": DataSet("SciFact", 5183, 809, 300),
    "cranfield": DataSet("Cranfield", 1400, 0, 225),
    "cisi": DataSet("CISI", 1460, 0, 76),
    "med": DataSet("MED", 1033, 0, 30),
    "npl": DataSet("NPL", 11_429, 0, 93),
    "ml-100k": DataSet("MovieLens", 1682, 942, 942, "RecBole"),
    "banking77": DataSet("Banking77", 9002, 9002, 3080, "Banking77"),
    "flickr8k": DataSet("Flickr8k", 32_368, 6473, 809, "Flickr8k"),
}

#: Encoders of ours by name, what each is; others are transformers
OWN = OF_TEXTS | {"static": "wordllama's bag"}
LOCAL = "hf:"  # before the path of a Hugging Face encoder
ENCODERS = OWN | {"minilm": "all-MiniLM-L6-v2", f"{LOCAL}PATH": "folder of a Hugging Face encoder"}
