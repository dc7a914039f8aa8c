"""A method of the catalogue as a loss of sentence-transformers, and a linter of its trainings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from hnlib import _checks, lint, methods, streaming
from hnlib.contrast import Contrast
from hnlib.distributed import gather

__all__ = ["HardNegatives", "watch"]

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEFAULTS = {"temperature": 0.05, "tau_plus": 0.0}


class HardNegatives(nn.Module):
    r"""Any loss of `hnlib.methods` in a sentence-transformers trainer.

    Each query is pulled to its answer and pushed from the other answers of the batch, harder from
    those that score high: how much harder is the method's sharpness. Columns of the data are query,
    answer, and any number of further negatives, which serve all queries. "simclr" is
    `MultipleNegativesRankingLoss` with a scale of one over the temperature.

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
    mini_batch_size : int, optional
        Texts that are embedded at a time, for batches whose activations do not fit into memory, as
        in `CachedMultipleNegativesRankingLoss`. Loss and gradient stay the same; the model is
        called twice for each text, and must not normalise over the batch.
    mask : callable, optional
        ``mask(contrast, labels)`` returns bool [n, m]: candidates that are not negatives; of shape
        [n, n] it is about the answers, and no further column is masked. With
        ``lambda c, _: c.similarity > c.similarity.diagonal()[:, None] + 0.1`` the model is its own
        guide; a guide that is another model is in `GISTEmbedLoss`.
    **options
        Options as in `hnlib.methods.build`, with the defaults $t = 0.05$ (``scale=20``; also for
        "artanh", whose paper has 0.5) and $\tau^+ = 0$.

    Raises
    ------
    ValueError
        If the method needs more than two embeddings, an option is out of range, or, when called,
        columns or labels do not suit it.

    Notes
    -----
    A batch of one pair has no negatives, and its loss is 0. A class prior silences the negatives of
    a query whose answer leads by $t\log\frac1{\tau^+}$, at so low a temperature very early (see
    *Pairs and sentences*). Methods that learn from labels take them from the column `label`; others
    do not read it.

    With `mini_batch_size` texts are embedded without their activations, which the backward pass
    makes again, one mini-batch after the other with the same dropout (GradCache), and the loss is
    `hnlib.streaming.streamed` if the method can be.

    Examples
    --------
    A trainer is given the loss, ``SentenceTransformerTrainer(model, loss=loss, …)``, and calls it:

    >>> import torch
    >>> from hnlib.integrations.sentence_transformers import HardNegatives
    >>> model = torch.nn.Identity()  # stands for a SentenceTransformer
    >>> loss = HardNegatives(model, "hcl", beta=1.0, temperature=0.1)
    >>> queries, answers = ({"sentence_embedding": torch.eye(8)} for _ in range(2))
    >>> loss([queries, answers]) < 0.01
    tensor(True)

    A large batch, of which three texts are embedded at a time:

    >>> large = HardNegatives(model, "hcl", beta=1.0, temperature=0.1, mini_batch_size=3)
    >>> torch.isclose(large([queries, answers]), loss([queries, answers]))
    tensor(True)
    """

    def __init__(
        self,
        model: SentenceTransformer,
        method: str = "hcl",
        *,
        both: bool = False,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
        mask: Callable | None = None,
        **options,
    ):
        super().__init__()
        _checks.flag("both", both)
        _checks.flag("gather_across_devices", gather_across_devices)
        if mini_batch_size is not None:
            _checks.integer("mini_batch_size", mini_batch_size, 1)
        entry = methods.entry_of(methods.CATALOGUE, method)
        defaults = {name: value for name, value in DEFAULTS.items() if name in entry.defaults}
        self.model = model
        self.method = methods.build(method, **defaults | options)
        self.both, self.gather_across_devices, self.mask = both, gather_across_devices, mask
        self.mini_batch_size = mini_batch_size

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch of texts, one dictionary for each column."""
        columns = [self._embedded(column) for column in sentence_features]
        return self.of_columns(columns, labels)

    def _embedded(self, column: dict[str, Tensor]) -> Tensor:
        """Return the embeddings [n, d] of a column of texts."""
        if self.mini_batch_size is None:
            return self.model(column)["sentence_embedding"]

        def embedded(part: dict[str, Tensor]) -> Tensor:
            # copies, for a model adds to its features and may write into them: it is called twice
            return self.model({k: _copied(x) for k, x in part.items()})["sentence_embedding"]

        # each part's activations are dropped, and made again by its part of the backward pass
        parts = _parts(column, self.mini_batch_size)
        return torch.cat([checkpoint(embedded, part, use_reentrant=False) for part in parts])

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
        if self.gather_across_devices:
            embeddings = [gather(column) for column in embeddings]
            labels = None if labels is None else gather(labels)
        queries, *further = embeddings
        keys, excluded = torch.cat(further) if len(further) > 1 else further[0], None
        if len(queries) == len(keys) == 1:  # an epoch's last batch
            return 0 * (queries.sum() + keys.sum())
        if self.mask is not None:
            with torch.no_grad():
                excluded = self.mask(Contrast.from_pairs(queries, keys), labels)
            if excluded.shape == (len(queries),) * 2:
                excluded = pad(excluded, (0, len(keys) - len(queries)))
        if self.method.entry.supervised and len(further) > 1:
            rule = f"{self.method.name} learns from labels of pairs; give two columns"
            raise ValueError(f"{rule}, got {len(embeddings)}")
        labels = labels if self.method.entry.supervised else None
        pairs = self.method.pairs
        if self.mini_batch_size is not None and not streaming.compares_anchors(self.method):
            pairs = streaming.streamed(self.method).pairs
        return pairs(queries, keys, labels=labels, both=self.both, excluded=excluded)

    def get_config_dict(self) -> dict:
        """Return what the model card shows."""
        shown = {"method": self.method.name, **self.method.options, "both": self.both}
        shown["mini_batch_size"] = self.mini_batch_size
        return {k: v for k, v in shown.items() if isinstance(v, str | bool | int | float)}


def _copied(x):
    return x.clone() if isinstance(x, Tensor) else x


def _parts(column: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    """Split the features of a column, each of n rows, into parts of `size` rows."""
    by_row = {k: x for k, x in column.items() if isinstance(x, Tensor) and x.ndim}
    rows = {len(x) for x in by_row.values()}
    if len(rows) != 1:
        shown = ", ".join(f"{k} {list(x.shape)}" for k, x in by_row.items())
        rule = "features must have a row for each text, or leave out mini_batch_size"
        raise ValueError(f"{rule}, got {shown}")
    starts = range(0, rows.pop(), size)
    return [column | {k: x[i : i + size] for k, x in by_row.items()} for i in starts]


def watch(loss: nn.Module, every: int = 1000) -> nn.Module:
    """Let `hnlib.lint` look at the batches of a sentence-transformers trainer.

    At the first step and at one of so many after it, the columns of the batch are embedded once
    more and put to the loss. Each cause of a mistake is a warning, once.

    Parameters
    ----------
    loss : Module
        The trainer's loss, which calls its `model` for each column.
    every : int, default 1000
        Steps between two looks.

    Returns
    -------
    Module
        The loss itself.

    Raises
    ------
    ValueError
        If `every` is not a positive integer.

    Examples
    --------
    A trainer is given the watched loss, ``SentenceTransformerTrainer(model, loss=loss, …)``:

    >>> import torch
    >>> from hnlib.integrations.sentence_transformers import HardNegatives, watch
    >>> loss = watch(HardNegatives(torch.nn.Identity(), "simclr"))
    """
    return lint.watch(loss, every, look=_look)  # pyright: ignore[reportReturnType]


def _look(loss: nn.Module, sentence_features, labels: Tensor | None = None) -> lint.Findings:
    """Return what the linter finds in a batch of tokens, one dictionary for each column."""
    model, columns = loss.model, [dict(column) for column in sentence_features]
    devices = range(torch.cuda.device_count())
    with torch.no_grad(), torch.random.fork_rng([*devices]):
        embedded = [model(dict(column))["sentence_embedding"] for column in columns]  # pyright: ignore[reportCallIssue]
    masks = [column.get("attention_mask") for column in columns]
    tokens = [column.get("input_ids") for column in columns]
    inputs = None
    if all(isinstance(x, Tensor) and x.ndim == 2 for x in (*masks, *tokens)):
        inputs = [
            [tuple(row[kept.bool()].tolist()) for row, kept in zip(*part)]
            for part in zip(tokens, masks)
        ]

    def of_embeddings(*z: Tensor, labels: Tensor | None = labels) -> Tensor:
        if getattr(loss, "uses_gradient_cache", False):  # else by a hook of the backward pass alone
            return loss.calculate_loss([[x] for x in z], labels)  # pyright: ignore[reportCallIssue]
        loss.model = _Given()
        try:
            return loss([{"sentence_embedding": x} for x in z], labels)
        finally:
            loss.model = model

    told = labels is not None and len(labels.unique()) > 1  # else they are filled in
    return lint.lint(of_embeddings, *embedded, inputs=inputs, **{"labels": labels} if told else {})


class _Given(nn.Module):
    """Stands where the model is, for columns that are embedded already."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return features
