"""The configuration of a run on graphs; needs neither torch nor PyTorch Geometric."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from hnlib._files import own_path
from hnlib.graphs.registry import DATASETS
from hnlib.training.config import Configuration, Hidden, Rare, checked, listed

__all__ = ["GraphRun"]

TWO_VIEWS = ("framework", "graphcl")
OWN_DATASETS = ("folder:PATH",)


def _check_depth(encoder: str) -> str:
    if not re.fullmatch(r"gin[1-9]\d?", encoder):
        raise ValueError(f"encoder must be one of gin1, gin2, …, gin99, got {encoder!r}")
    return encoder


@dataclass(frozen=True, kw_only=True, config=checked)
class GraphRun(Configuration):
    """A GIN trained by InfoGraph, or by GraphCL on two views of each graph.

    Parameters
    ----------
    framework
        infograph (nodes against graphs) or graphcl
    encoder
        a GIN with that many layers: gin1, gin2, gin3, …
    hidden
        width of the GIN
    labels
        for methods with labels: fold (no test graphs), all
    folds
        of the cross-validation
    augmentations
        of the views: drop, edges, subgraph, mask
    ratio
        share of a graph that a view changes
    original
        the first view is the graph itself
    """

    experiment: Annotated[str, Field(min_length=1), Rare] = "graphs"
    dataset: Annotated[str, listed(DATASETS.keys(), OWN_DATASETS)] = "motifs"
    method: str | None = "infograph"
    framework: Literal["infograph", "graphcl"] = "infograph"
    encoder: Annotated[str, AfterValidator(_check_depth)] = "gin3"
    hidden: Annotated[int, Field(ge=1)] = 32
    labels: Literal["fold", "all"] | None = None
    folds: Annotated[int, Field(ge=2)] = 10
    augmentations: Annotated[
        tuple[Literal["drop", "edges", "subgraph", "mask"], ...], Parameter(consume_multiple=True)
    ] = ("drop", "edges", "subgraph", "mask")
    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.2
    original: bool = False
    precision: Annotated[Literal["32-true"], Hidden] = "32-true"

    kind: ClassVar = "graphs"
    recorded: ClassVar = (
        *Configuration.recorded,
        *("framework", "encoder", "hidden", "labels", "folds", "augmentations", "ratio"),
    )
    requires: ClassVar = Configuration.requires | {
        "augmentations": TWO_VIEWS,
        "ratio": TWO_VIEWS,
        "original": TWO_VIEWS,
    }
    accuracies: ClassVar = ("svm",)
    datasets: ClassVar = DATASETS
    own_datasets: ClassVar = OWN_DATASETS

    @property
    def layers(self) -> int:
        """The number of layers of the encoder."""
        return int(self.encoder.removeprefix("gin"))

    @property
    def catalogue(self) -> dict:
        """The options of the framework's methods."""
        if self.framework == "graphcl":
            return super().catalogue
        return import_module("hnlib.graphs.methods").CATALOGUE

    def check_names(self, root: Path | None = None, given: Container[str] = ()) -> None:
        """Raise ValueError for unknown names, and for more folds than a class has graphs."""
        super().check_names(root, given)
        fewest = None if "dataset" in given else self._smallest_class()
        if fewest is not None and self.folds > fewest:
            raise ValueError(
                f"folds must be at most {fewest}, the examples of the smallest class of "
                f"{self.dataset_title(self.dataset)}, got {self.folds}"
            )

    def _smallest_class(self) -> int | None:
        """Return how many graphs the smallest class has; None if that is not known yet."""
        if known := DATASETS.get(self.dataset):
            return known.smallest
        _, folder, _ = own_path(self.dataset)
        files = [*folder.glob("*_graph_labels.txt")]
        if len(files) != 1:  # whoever reads the graphs says what is wrong with several, or none
            return None
        return min(Counter(files[0].read_text("utf-8").split()).values(), default=0)

    def defaults_for_run(self) -> dict:
        """Return the defaults of fields that are None."""
        return super().defaults_for_run() | dict(epochs=20, batch_size=128, lr=1e-3)

    def resolved(self):
        """Return this run with all defaults of recipe and catalogue filled in."""
        run = super().resolved()
        if run.entry is None and run.method:
            return run  # the user's own
        labels = (run.labels or "fold") if run.entry and run.entry.supervised else None
        return replace(run, labels=labels)


Run = GraphRun
