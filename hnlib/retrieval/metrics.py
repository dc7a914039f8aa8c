"""Exact search, and how well rankings agree with judgements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from hnlib.retrieval.data import Judgements

DEPTH = 100


def search(
    queries: Tensor, documents: Tensor, depth: int = DEPTH, without: Sequence[Tensor] = ()
) -> Tensor:
    """Return the indices of the documents of largest inner product, best first, [Q, depth].

    Among equal scores the first document leads. Documents `without[i]` come after all others for
    query i.
    """
    ranked = []
    for start in range(0, len(queries), 256):
        scores = queries[start : start + 256] @ documents.T
        for row, left_out in zip(scores, without[start : start + 256]):
            row[left_out] = -torch.inf
        ranked.append(_first(scores, min(depth, len(documents))))
    return torch.cat(ranked)


def _first(scores: Tensor, depth: int) -> Tensor:
    """Return the first `depth` columns of a stable descending sort, at a fraction of its time."""
    best, columns = scores.topk(min(depth + 1, scores.shape[1]))
    columns = columns[:, :depth].sort().values  # so that equal scores keep their order
    order = scores.gather(1, columns).sort(descending=True, stable=True).indices
    ranked = columns.gather(1, order)
    if depth < scores.shape[1]:  # which of several equal scores is the last is not topk's to say
        tied = (best[:, depth - 1] == best[:, depth]).nonzero()[:, 0]
        ranked[tied] = scores[tied].sort(descending=True, stable=True).indices[:, :depth]
    return ranked


def evaluate(ranked: Tensor, judgements: Sequence[dict[int, float]]) -> dict[str, Tensor]:
    r"""Return nDCG@10, recall@10, recall@100 and MRR@10 of each query, [Q].

    As in trec_eval: $\mathrm{DCG}=\sum_r g_r/\log_2(1+r)$ over grades $g$ by rank $r$ from 1,
    divided by that of the best ranking; a document without a grade has $g=0$.
    """
    found = zip(judgements, ranked[:, :DEPTH].tolist(), strict=True)
    rows = [[judged.get(document, 0.0) for document in row] for judged, row in found]
    grades = torch.tensor(rows, dtype=torch.float)
    grades = functional.pad(grades, (0, DEPTH - grades.shape[1]))
    best = [sorted(judged.values(), reverse=True) for judged in judgements]
    depth = max(DEPTH, *map(len, best))
    padded = [row + [0.0] * (depth - len(row)) for row in best]
    ideal = torch.tensor(padded, dtype=torch.float)
    discount = 1 / torch.arange(2.0, 12).log2()
    relevant, number = grades > 0, (ideal > 0).sum(1)
    first = relevant[:, :10] / torch.arange(1.0, 11)
    return {
        "ndcg": grades[:, :10] @ discount / (ideal[:, :10] @ discount),
        "recall10": relevant[:, :10].sum(1) / number,
        "recall100": relevant.sum(1) / number,
        "mrr": first.amax(1),
    }


def judged_rankings(
    queries: Tensor, documents: Tensor, judgements: Judgements, seen: Judgements | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return rankings and scores of the judged queries, from embeddings of all queries."""
    asked = torch.tensor(list(judgements))
    without = (
        [torch.tensor(list(seen.get(q, {})), dtype=torch.long) for q in judgements] if seen else ()
    )
    ranked = search(queries[asked], documents, without=without)
    return ranked, evaluate(ranked, list(judgements.values()))


def tail_share(ranked: Tensor, counts: Tensor, head: float = 0.8) -> dict[str, float]:
    """Return the tail's share of the first ten places, and the share of documents that appear.

    The head is the most frequent documents, by `counts` [N], that together have a share `head` of
    all counts; the rest is the tail.
    """
    order = counts.argsort(descending=True, stable=True)
    before = counts[order].double().cumsum(0) - counts[order]
    tail = torch.zeros(len(counts), dtype=torch.bool)
    tail[order] = before >= head * counts.sum()
    top = ranked[:, :10]
    return {"tail": float(tail[top].double().mean()), "coverage": len(top.unique()) / len(counts)}
