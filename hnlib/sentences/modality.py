"""Sentences as the training loop meets them: batches of pairs, and their loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hnlib.sentences import encoders
from hnlib.sentences.data import Corpus


class Pairs:
    """Pairs of a corpus: neighbours, or with `views="dropout"` every sentence twice.

    `size`: so many of them, the same for all seeds. `both`: the loss of neighbours is that of both
    directions. Sentences are cut after `length` tokens. ValueError: a corpus without neighbours,
    fewer pairs than asked for or than a batch has.
    """

    title, unit, first_epoch, fused, draws_on = "", "pair", 0, True, "cpu"
    labels = torch.zeros(0)  # no method that trains here asks for any

    def __init__(
        self,
        corpus: Corpus,
        batch_size: int,
        encoder: tuple = ("bag", 256, 1),
        views: str = "neighbours",
        both: bool = False,
        length: int = 64,
        size: int | None = None,
        device: torch.device | str = "cpu",
    ):
        every = corpus.neighbours if views == "neighbours" else torch.arange(len(corpus))
        if size is not None and size < len(every):
            chosen = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))
            every = every[chosen[:size].sort().values]
        if len(every) < max(batch_size, size or 0):
            raise ValueError(
                f"{corpus.name} has {len(every)} pairs, fewer than batch_size={batch_size} or "
                f"train_size={size}; choose at most {len(every)}"
            )
        self.corpus, self.first, self.batch_size, self.encoder = corpus, every, batch_size, encoder
        self.twice = views != "neighbours"
        self.both, self.length, self.device = both, length, device

    def __len__(self) -> int:
        return len(self.first) // self.batch_size * self.batch_size

    def model(self) -> encoders.Towers:
        name, dimension, towers = self.encoder
        return encoders.build(name, self.corpus.vocabulary, dimension, towers)

    def batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Index vectors of one epoch: a permutation, the last partial batch dropped."""
        order = torch.randperm(len(self.first), generator=generator)
        return order[: len(self)].split(self.batch_size)

    def views(self, batch: Tensor, generator: torch.Generator, share: slice) -> tuple:
        """The tokens of the first sentences and of the second."""
        first = self.first[batch[share]]
        return tuple(
            self.corpus.rows(index, self.length).to(self.device)
            for index in (first, first + (not self.twice))
        )

    def loss(self, model: nn.Module, method, views: tuple, labels, gather: Callable) -> Tensor:
        """The loss of the batch whose `views` these are."""
        z1, z2 = (gather(model(view, tower)) for tower, view in enumerate(views))
        return method(z1, z2) if self.twice else method.pairs(z1, z2, both=self.both)

    def mean_loss(self, losses: Tensor, batches: Sequence[Tensor]) -> float:
        return float(losses.mean())
