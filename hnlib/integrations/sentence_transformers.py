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

DEFAULTS = {"temperature": 0.05, "tau_plus": 0.0}


class HardNegatives(nn.Module):
    r"""A method of `hnlib.methods` in the place of `MultipleNegativesRankingLoss`.

    ``HardNegatives(model, "hcl", beta=1.0)`` is given to a `SentenceTransformerTrainer`. Columns of
    the data are query, answer, and any number of further negatives, which serve all queries.

    Parameters
    ----------
    model : SentenceTransformer
        The model that is trained.
    method : str, default "hcl"
        Key of `hnlib.methods.CATALOGUE`; "simclr" is `MultipleNegativesRankingLoss`.
    both : bool, default False
        Whether to take the mean of both directions, for two columns.
    gather_across_devices : bool, default False
        Whether negatives come from all processes.
    **options
        Options as in `hnlib.methods.build`, with the defaults $t = 0.05$ (``scale=20``) and
        $\tau^+ = 0$.

    Raises
    ------
    ValueError
        If the method needs more than two embeddings, an option is out of range, or, when called,
        columns or labels do not suit it.

    Notes
    -----
    A class prior silences the negatives of a query whose answer leads by $t\log\frac1{\tau^+}$, at
    so low a temperature very early (see *Pairs and sentences*). Methods that learn from labels take
    them from the column `label`; others do not read it.
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
            raise ValueError(f"{method} needs the inputs of the last linear layer, not given here")
        defaults = {name: value for name, value in DEFAULTS.items() if name in entry.defaults}
        self.model = model
        self.method = methods.build(method, **defaults | options)
        self.both, self.gather_across_devices = both, gather_across_devices

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch of texts, one dictionary for each column."""
        columns = [self.model(features)["sentence_embedding"] for features in sentence_features]
        return self.of_columns(columns, labels)

    def of_columns(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        """Return the loss of the embeddings of shape [n, d] of each column.

        Parameters
        ----------
        embeddings : list of Tensors of shape [n, d]
            At least queries and answers.
        labels : integers of shape [n], optional
            Class of each row, for methods that learn from labels; these take two columns.

        Returns
        -------
        Tensor of shape []
            The loss.
        """
        if len(embeddings) < 2:
            raise ValueError("one column of texts has no answers; give pairs: query, answer")
        labels = labels if self.method.entry.supervised else None
        if self.gather_across_devices:
            embeddings = [gather(column) for column in embeddings]
            labels = None if labels is None else gather(labels)
        queries, *keys = embeddings
        return self.method.pairs(queries, torch.cat(keys), labels=labels, both=self.both)

    def get_config_dict(self) -> dict:
        """Return what the model card shows."""
        shown = {"method": self.method.name, **self.method.options, "both": self.both}
        return {k: v for k, v in shown.items() if isinstance(v, str | bool | int | float)}
