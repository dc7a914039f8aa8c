"""Evaluate encoders of sentences on a text itself, without labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hnlib.texts.evaluation import embed
from hnlib.texts.tokens import Corpus


class NextSentence:
    """Pairs of neighbours that are not trained on: the first half validates, the second tests.

    For each first sentence the one that follows it is sought, the nearest by cosine among all
    second sentences of its half but itself. It needs no labels, so it judges a text of yours.
    """

    def __init__(self, corpus: Corpus, first: Tensor, length: int):
        if len(first) < 4:
            raise ValueError(
                f"{corpus.name} has {len(first)} pairs of neighbours in its last tenth; need 4"
            )
        half = len(first) // 2
        self.corpus, self.length = corpus, length
        self.parts = {"next_validation": first[:half], "next": first[half + 1 :]}

    def scores(self, encoder: nn.Module, seed: int) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Return accuracies and the mean reciprocal rank, and which pairs were right, bool [N]."""
        scores, correct = {}, {}
        for name, first in self.parts.items():
            pair = (embed(encoder, self.corpus, self.length, x) for x in (first, first + 1))
            u, v = (functional.normalize(x.double(), dim=1) for x in pair)
            s = (u @ v.T).masked_fill(first[:, None] == first + 1, -torch.inf)
            # a copy of the answer counts as half a wrong one
            above, ties = (s > s.diagonal()[:, None]).sum(1), (s == s.diagonal()[:, None]).sum(1)
            rank = 1 + above + (ties - 1) / 2
            correct[name] = rank == 1
            scores[name] = float(correct[name].double().mean())
            if name == "next":
                scores["next_mrr"] = float((1 / rank).mean())
        return scores, correct
