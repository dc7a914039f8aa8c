"""A method of the catalogue as a loss of sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hnlib import methods
from hnlib.distributed import gather

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

USUAL = {"temperature": 0.05, "tau_plus": 0.0}


class HardNegatives(nn.Module):
    r"""A method of `hnlib.methods` where `MultipleNegativesRankingLoss` would stand.

    `HardNegatives(model, "hcl", beta=1.0)` is given to a `SentenceTransformerTrainer`. Columns of
    the data: query, answer, and any number of further negatives, which serve all queries
    ($n$ queries, $m=n\cdot$columns keys; see `hnlib.contrast.Contrast.from_pairs`). `method` and
    `options`: as `hnlib.methods.build` takes them, but $t=.05$ (their `scale=20`) and $\tau^+=0$
    unless said: a class prior silences the negatives of a query whose answer leads by
    $t\log\frac1{\tau^+}$, at so low a temperature very early (see *Pairs and sentences*). The
    method "simclr" is `MultipleNegativesRankingLoss`. `both`: the mean of both directions.
    `gather_across_devices`: negatives from all processes. Methods that learn from labels take them
    from the column `label`; others do not look at it.

    ValueError: a method that needs more than two embeddings; an option out of range; a row of data
    without an answer, or without the label that the method learns from; further negatives with
    `both` or with labels.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        method: str = "hcl",
        *,
        both: bool = False,
        gather_across_devices: bool = False,
        **options,
    ):
        super().__init__()
        entry = methods.entry_of(methods.CATALOGUE, method)
        if entry.features:
            raise ValueError(
                f"{method} needs the inputs of the last linear layer, which sentence-transformers "
                "does not hand on; choose another method"
            )
        usual = {name: value for name, value in USUAL.items() if name in entry.options}
        self.model = model
        self.method = methods.build(method, **usual | options)
        self.both, self.gather_across_devices = both, gather_across_devices

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        columns = [self.model(features)["sentence_embedding"] for features in sentence_features]
        return self.of_columns(columns, labels)

    def of_columns(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        """The loss of the embeddings $[n,d]$ of each column."""
        if len(embeddings) < 2:
            raise ValueError("one column of texts has no answers; give pairs: query, answer")
        supervised = self.method.entry.supervised
        if supervised and labels is None:
            raise ValueError(
                f"{self.method.name} learns from labels; give the data a column `label`, the class "
                "of each pair"
            )
        classes = labels if supervised else None
        if classes is not None and len(embeddings) > 2:
            raise ValueError(
                f"{self.method.name} needs the class of each key, and a row has one label; "
                "give queries and answers alone"
            )
        if self.gather_across_devices:
            embeddings = [gather(column) for column in embeddings]
            classes = None if classes is None else gather(classes)
        queries, *keys = embeddings
        return self.method.pairs(queries, torch.cat(keys), labels=classes, both=self.both)

    def get_config_dict(self) -> dict:
        """What the model card says."""
        known = {"method": self.method.name, **self.method.options, "both": self.both}
        return {k: v for k, v in known.items() if isinstance(v, str | bool | int | float)}
