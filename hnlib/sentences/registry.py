"""The data sets that runs on sentences name: a new one is an entry. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hnlib._files import downloads
from hnlib.texts.registry import GENERATED


@dataclass(frozen=True)
class DataSet:
    """What is known of a corpus before it is read.

    Parameters
    ----------
    title
        as tables write it
    documents, sentences
        their numbers
    tasks
        that judge encoders where a run names none
    digest
        SHA-256 of the file of its sentences; without one the corpus is made here
    """

    title: str
    documents: int
    sentences: int
    tasks: tuple[str, ...]
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.title}: {self.documents} documents, {self.sentences:,} sentences"


DATASETS = {
    "topics": DataSet("topics", 60, 1800, GENERATED),
    "novels": DataSet(
        "novels",
        98,
        744_649,
        tuple(downloads("sentences")),
        "d96b7d2ec2f6a389295d436ccdc9853a98c028ceded2320d5ee3f9c9df48cf13",
    ),
}
