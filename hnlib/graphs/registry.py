"""The data sets that runs on graphs name: a new one is an entry. Needs no torch.

An encoder has no entry: `gin` and any number of layers is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from hnlib._files import downloads


@dataclass(frozen=True)
class DataSet:
    """What is known of a data set before it is read.

    Parameters
    ----------
    title
        as tables write it
    graphs, classes
        their numbers
    smallest
        graphs of the smallest class
    archive, digest
        of the file that is downloaded and of the graphs in it; without them the set is made here
    """

    title: str
    graphs: int
    classes: int
    smallest: int
    archive: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.title}: {self.graphs:,} graphs, {self.classes} classes"


DATASETS = {"motifs": DataSet("motifs", 180, 6, 30)}
DATASETS |= {name: DataSet(name, **about) for name, about in downloads("graphs").items()}
