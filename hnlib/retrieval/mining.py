"""Rank documents for training queries, and draw more negatives from the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


class BM25:
    """BM25 of bm25s over documents, without stemming."""

    def __init__(self, documents: Sequence[str]):
        import bm25s

        self._tokens = bm25s.tokenization.Tokenizer(stopwords="en")
        self._index = bm25s.BM25()
        tokens = self._tokens.tokenize(list(documents), show_progress=False)
        self._index.index(tokens, show_progress=False)

    def scores(self, queries: Sequence[str]) -> Tensor:
        """Return the scores of all documents, [Q, N]."""
        words = self._tokens.tokenize(
            list(queries), update_vocab=False, return_as="ids", show_progress=False
        )
        return torch.from_numpy(np.stack([self._index.get_scores(list(ids)) for ids in words]))


def candidates(
    scores: Callable[[Tensor], Tensor],
    positives: Tensor,
    relevant: Tensor,
    ranks: tuple[int, int],
    margin: float | None = None,
) -> Tensor:
    """Return the documents at some ranks of each pair's query, [P, last − first].

    `scores(rows)` returns the scores of all documents for some pairs; `positives` [P] are the
    pairs' documents. `relevant` holds, in ascending order, the numbers pair · N + document of all
    that is relevant, which is not ranked. Documents that score above `margin` times the positive
    come after all others, the least similar first.
    """
    first, last = ranks
    parts = []
    for rows in torch.arange(len(positives)).split(512):
        s = scores(rows)
        limit = s.gather(1, positives[rows][:, None])
        if margin is not None:
            s = torch.where(s > margin * limit, 2 * s.min() - 1 - s, s)
        ends = torch.stack([rows[0], rows[-1] + 1]) * s.shape[1]
        start, stop = torch.searchsorted(relevant, ends).tolist()
        s.view(-1)[relevant[start:stop] - ends[0]] = -torch.inf
        best, order = s.topk(min(last, s.shape[1]), dim=1)
        short = (best > -torch.inf).sum(1).min()
        if short < last:
            raise ValueError(
                f"ranks={ranks} reach beyond the {short} documents that a query has besides the "
                "judged ones; lower the last rank"
            )
        parts.append(order[:, first:].int())
    return torch.cat(parts)
