"""What a run on graphs is; needs neither torch nor PyTorch Geometric."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter
from pydantic import Field
from pydantic.dataclasses import dataclass

from hnlib.training.config import Configuration, Hidden, Rare, catalogue, checked

TWO_VIEWS = ("framework", "graphcl")


@dataclass(frozen=True, kw_only=True, config=checked)
class GraphRun(Configuration):
    """A GIN trained by InfoGraph, or by GraphCL on two views of each graph.

    Parameters
    ----------
    framework
        infograph (nodes against graphs) or graphcl
    layers
        of the GIN
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
    dataset: str = "motifs"
    method: str | None = "infograph"
    framework: Literal["infograph", "graphcl"] = "infograph"
    layers: Annotated[int, Field(ge=1)] = 3
    hidden: Annotated[int, Field(ge=1)] = 32
    labels: Literal["fold", "all"] | None = None
    folds: Annotated[int, Field(ge=2)] = 10
    augmentations: Annotated[
        tuple[Literal["drop", "edges", "subgraph", "mask"], ...], Parameter(consume_multiple=True)
    ] = ("drop", "edges", "subgraph", "mask")
    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.2
    original: bool = False
    precision: Annotated[Literal["32-true"], Hidden] = "32-true"
    compile: Annotated[Literal[False], Hidden] = False

    kind: ClassVar = "graphs"
    headline: ClassVar = (*Configuration.headline, "framework", "layers")
    named: ClassVar = (*Configuration.named, "hidden", "labels", "folds", "augmentations", "ratio")
    requires: ClassVar = Configuration.requires | {
        "augmentations": TWO_VIEWS,
        "ratio": TWO_VIEWS,
        "original": TWO_VIEWS,
    }
    scores: ClassVar = {"svm": "SVM"}
    accuracies: ClassVar = ("svm",)
    datasets: ClassVar = (
        "motifs",
        "MUTAG",
        "PTC_MR",
        "ENZYMES",
        "PROTEINS",
        "IMDB-BINARY",
        "IMDB-MULTI",
        "NCI1",
        "DD",
        "REDDIT-BINARY",
    )
    title: ClassVar = "{dataset}, {framework}, {encoder}, {epochs} epochs"

    @property
    def encoder(self) -> str:
        """The name of the encoder, by which records state its layers."""
        return f"gin{self.layers}"

    @property
    def configuration(self) -> dict:
        """What the record holds and is named by; the encoder's name has the number of layers."""
        chosen = super().configuration
        del chosen["layers"]
        return chosen | {"encoder": self.encoder}

    @classmethod
    def read(cls, configuration: dict):
        """Return the run of a record's configuration."""
        chosen = dict(configuration)
        layers = int(chosen.pop("encoder").removeprefix("gin"))
        return super().read(chosen | {"layers": layers})

    def shown(self) -> dict:
        """Return the fields as numbers and words."""
        return super().shown() | {"encoder": self.encoder}

    @property
    def catalogue(self) -> dict:
        """The options of the framework's methods."""
        if self.framework == "graphcl":
            return super().catalogue
        return catalogue("hnlib.graphs.methods")

    def usual(self) -> dict:
        """Return what is taken where a field is None."""
        return self.absent | dict(epochs=20, batch_size=128, lr=1e-3)

    def resolved(self):
        """Return this run with nothing left to recipe and catalogue."""
        run = super().resolved()
        entry = run.catalogue.get(run.method)
        if entry is None and run.method:
            return run  # the user's own
        labels = (run.labels or "fold") if entry and entry.supervised else None
        return replace(run, labels=labels)


Run = GraphRun
