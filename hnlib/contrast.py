"""The set-up every method shares: anchors, candidates, who is a positive, who is admissible as a negative."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Contrast:
    r"""Similarities of $n$ anchors and $m$ candidates with the masks that give them their roles.

    `similarity` $[n,m]$ holds $s_{ij}=\langle z_i,z_j\rangle$, float32 or float64; `positives` and `admissible`
    are boolean $[n,m]$: candidate $j$ is a positive of anchor $i$, or may serve as its negative (the set $N(i)$).
    `labels` $[n]$ and `candidate_labels` $[m]$ are optional. `scale` is the default $Q$ of the objectives. `features`
    $[m,k]$, the inputs of the last linear layer, and `norms` $[m]$, the lengths of its outputs before normalisation,
    serve weights made of last-layer gradients.
    Build one with `from_views`, `from_queue`, `from_nodes` or `from_similarity`; the constructor trusts its arguments.
    Masks are shared by all batches of one size: read them, do not write to them.
    """

    similarity: Tensor
    positives: Tensor
    admissible: Tensor
    scale: int
    anchors: Tensor | None = None
    candidates: Tensor | None = None
    labels: Tensor | None = None
    candidate_labels: Tensor | None = None
    symmetric: bool = False
    never_empty: bool = False
    features: Tensor | None = None
    norms: Tensor | None = None

    @classmethod
    def from_views(
        cls, z1: Tensor, z2: Tensor, labels: Tensor | None = None, positives: str = "class",
        features: tuple[Tensor, Tensor] | None = None,
    ) -> Contrast:
        r"""Two views of a batch: $n=m=2B$ anchors and candidates, row $i$'s other view in row $i\pm B$.

        Rows of `z1`, `z2` $[B,d]$ are normalised; similarities are float32 also under autocast (float64 if given).
        Without `labels`: the positive is the other view, every candidate but the two views is admissible.
        With `labels` $[B]$: negatives are the candidates of other classes; `positives="class"` takes every candidate
        of the anchor's class but the anchor as a positive, `positives="view"` the other view only. `features`: the
        inputs $[B,k]$ of the last linear layer for both views, for methods that ask for them.
        ValueError: shapes that disagree, $B<2$, labels of another length; on the CPU a zero or non-finite row (on an
        accelerator that check would stall every step, and such a row makes the loss NaN).
        """
        if z1.ndim != 2 or z1.shape != z2.shape:
            raise ValueError(
                f"the two views must have one shape [batch, dimension]; got {tuple(z1.shape)} and {tuple(z2.shape)}"
            )
        batch = len(z1)
        if batch < 2:
            raise ValueError(f"a batch of {batch} has no negative; use a batch of at least 2 images")
        if positives not in ("class", "view"):
            raise ValueError(f'positives={positives!r} is unknown; use "class" or "view"')
        if features is not None:
            shapes = [tuple(getattr(h, "shape", ())) for h in features]
            if len(shapes) != 2 or shapes[0] != shapes[1] or len(shapes[0]) != 2 or shapes[0][0] != batch:
                given = " and ".join(map(str, shapes))
                raise ValueError(f"features must be one [{batch}, k] for each view; got {given}")
            features = torch.cat(list(features))
        with torch.autocast(z1.device.type, enabled=False):
            z, norms = _unit_rows(torch.cat([z1, z2]))
            similarity = z @ z.T
        own, admissible, pairs, uniform = _view_masks(batch, z.device, z.dtype)
        common = dict(anchors=z, candidates=z, scale=2 * batch - 2, symmetric=True, features=features, norms=norms)
        if labels is None:
            contrast = cls(similarity, own, admissible, never_empty=True, **common)
            vars(contrast).update(positive_pairs=pairs, uniform_log_weights=uniform)  # known beforehand
            return contrast
        labels = torch.as_tensor(labels)
        if labels.shape != (batch,):
            raise ValueError(f"labels have shape {tuple(labels.shape)}; {batch} images need labels of shape ({batch},)")
        y = labels.to(z.device).repeat(2)
        same = y[:, None] == y
        if positives == "class":
            own = same & (admissible | own)  # admissible | own: everyone but the anchor
        return cls(similarity, own, ~same, labels=y, candidate_labels=y, **common)

    @classmethod
    def from_queue(
        cls, queries: Tensor, keys: Tensor, queue: Tensor, labels: Tensor | None = None,
        queue_labels: Tensor | None = None, positives: str = "class",
    ) -> Contrast:
        r"""Queries $[B,d]$ against their keys $[B,d]$ and a queue $[K,d]$ of older keys: $n=B$, $m=B+K$.

        Query $i$'s positive is key $i$; the other keys and the whole queue are admissible, $Q=m-1$. Rows are
        normalised as by `from_views`. With `labels` $[B]$ and `queue_labels` $[K]$ keys of other classes are the
        negatives, and `positives="class"` takes every key of the query's class, "view" its own key alone. No
        gradient is stopped here: give keys that carry none.
        ValueError: shapes that disagree, labels without the queue's, on the CPU a zero or non-finite row.
        Source: He et al. (2020), whose negatives are the queue alone.
        """
        if queries.ndim != 2 or queries.shape != keys.shape or queue.shape[1:] != keys.shape[1:] or queue.ndim != 2:
            raise ValueError("queries and keys must be [B, d] and the queue [K, d]; got "
                             + ", ".join(str(tuple(x.shape)) for x in (queries, keys, queue)))
        batch, size = len(queries), len(queries) + len(queue)
        if size < 2:
            raise ValueError("one query with an empty queue has no negative; use a batch of at least 2 images")
        if positives not in ("class", "view"):
            raise ValueError(f'positives={positives!r} is unknown; use "class" or "view"')
        if (labels is None) != (queue_labels is None):
            raise ValueError("labels of the batch and of the queue are needed together; give both or neither")
        with torch.autocast(queries.device.type, enabled=False):
            z, _ = _unit_rows(queries, "of the queries")
            candidates, norms = _unit_rows(torch.cat([keys, queue]), "of keys and queue")
            similarity = z @ candidates.T
        own = torch.zeros_like(similarity, dtype=torch.bool)
        own.fill_diagonal_(True)
        common = dict(scale=size - 1, anchors=z, candidates=candidates, norms=norms)
        if labels is None:
            contrast = cls(similarity, own, ~own, never_empty=True, **common)
            rows = torch.arange(batch, device=z.device)
            vars(contrast).update(positive_pairs=(rows, rows))  # known beforehand
            return contrast
        if labels.shape != (batch,) or queue_labels.shape != (len(queue),):
            raise ValueError(f"labels have shapes {tuple(labels.shape)} and {tuple(queue_labels.shape)}; "
                             f"{batch} queries and a queue of {len(queue)} need ({batch},) and ({len(queue)},)")
        y = torch.cat([labels, queue_labels])
        same = labels[:, None] == y
        own = same if positives == "class" else own
        return cls(similarity, own, ~same, labels=labels, candidate_labels=y, **common)

    @classmethod
    def from_nodes(
        cls, nodes: Tensor, graphs: Tensor, batch: Tensor, labels: Tensor | None = None, positives: str = "class"
    ) -> Contrast:
        r"""Nodes against graphs: the nodes of a batch $[n,d]$ are the anchors, its graphs $[m,d]$ the candidates.

        `batch` $[n]$ says to which graph a node belongs. The similarity $T=\langle h_u,H_G\rangle$, the score of
        InfoGraph, is *not* normalised. A node's positive is its own graph, every other is admissible, $Q=m-1$. With
        `labels` $[m]$ (-1: unknown) graphs known to be of the node's class are not admissible, and `positives="class"`
        makes them positives; "own": its own graph alone.
        ValueError: a single graph, shapes that disagree, labels of another length; on the CPU a score that is not
        finite or a `batch` that does not point to the graphs.
        Source: Sun et al. (2020).
        """
        if nodes.ndim != 2 or graphs.ndim != 2 or nodes.shape[1:] != graphs.shape[1:] or batch.shape != nodes.shape[:1]:
            raise ValueError("nodes must be [n, d], graphs [m, d] and batch [n]; got "
                             + ", ".join(str(tuple(x.shape)) for x in (nodes, graphs, batch)))
        if (m := len(graphs)) < 2:
            raise ValueError(f"a batch of {m} graph has no negative; use a batch of at least 2 graphs")
        if positives not in ("class", "own"):
            raise ValueError(f'positives={positives!r} is unknown; use "class" or "own"')
        with torch.autocast(nodes.device.type, enabled=False):
            nodes, graphs = (z if z.dtype == torch.float64 else z.float() for z in (nodes, graphs))
            similarity = nodes @ graphs.T
        if nodes.device.type == "cpu":  # on an accelerator the checks would stall every step
            if not similarity.detach().sum().isfinite():
                raise ValueError("a score of nodes and graphs is not finite; lower the learning rate, or look for "
                                 "features that are not finite")
            if len(batch) and not 0 <= int(batch.min()) <= int(batch.max()) < m:
                bad = int(batch.min()) if batch.min() < 0 else int(batch.max())
                raise ValueError(f"batch points to graph {bad}; there are {m}, counted from 0")
        own = batch[:, None] == torch.arange(m, device=batch.device)
        common = dict(scale=m - 1, anchors=nodes, candidates=graphs)
        if labels is None:
            contrast = cls(similarity, own, ~own, never_empty=True, **common)
            rows = torch.arange(len(nodes), device=batch.device)
            vars(contrast).update(positive_pairs=(rows, batch))  # known beforehand
            return contrast
        labels = torch.as_tensor(labels)
        if labels.shape != (m,):
            raise ValueError(f"labels have shape {tuple(labels.shape)}; {m} graphs need labels of shape ({m},)")
        y = labels.to(batch.device)
        same = own | ((y[:, None] == y) & (y >= 0))[batch]
        own = same if positives == "class" else own
        return cls(similarity, own, ~same, labels=y[batch], candidate_labels=y, **common)

    @classmethod
    def from_similarity(
        cls, similarity: Tensor, positives: Tensor, admissible: Tensor, labels: Tensor | None = None,
        candidate_labels: Tensor | None = None, scale: int = 1, candidates: Tensor | None = None,
    ) -> Contrast:
        r"""Any finite space: a matrix $[n,m]$ of similarities and two masks. For theory, queues and other modalities.

        `candidates` $[m,d]$, the embeddings, are needed by weights that are not functions of similarity alone.

        ValueError: no anchor, masks, labels or embeddings of another shape, a similarity that is not float32 or
        float64 or not finite, an anchor without a positive.
        """
        if similarity.ndim != 2 or not len(similarity) or similarity.dtype not in (torch.float32, torch.float64):
            raise ValueError("similarities must be a matrix [n, m] of float32 or float64; "
                             f"got {similarity.dtype} of shape {tuple(similarity.shape)}")
        n, m = similarity.shape
        for name, given, length in (("labels", labels, n), ("candidate_labels", candidate_labels, m),
                                    ("candidates", candidates, m)):
            if given is not None and len(given) != length:
                raise ValueError(f"{name} of length {len(given)} do not fit; similarities [{n}, {m}] need {length}")
        for name, mask in (("positives", positives), ("admissible", admissible)):
            if mask.shape != similarity.shape or mask.dtype != torch.bool:
                raise ValueError(
                    f"{name} must be a boolean mask of shape {tuple(similarity.shape)}; "
                    f"got {mask.dtype} of shape {tuple(mask.shape)}"
                )
        bad = ~similarity.isfinite().all(1)
        if bad.any():
            row = int(bad.nonzero()[0])
            raise ValueError(f"similarities of row {row} are not finite; check the embeddings they come from")
        lonely = (~positives.any(1)).nonzero()
        if len(lonely):
            raise ValueError(f"anchor {int(lonely[0])} has no positive; give each anchor at least one")
        symmetric = bool(
            n == m and torch.equal(similarity, similarity.T) and torch.equal(admissible, admissible.T)
        )
        return cls(similarity, positives, admissible, scale, labels=labels, candidate_labels=candidate_labels,
                   candidates=candidates, symmetric=symmetric)

    @cached_property
    def positive_pairs(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of the positives, row by row: two index vectors of equal length."""
        return tuple(self.positives.nonzero(as_tuple=True))

    @property  # not cached: a loss must not inherit a graph that another one has consumed
    def positive_similarity(self) -> Tensor:
        """The similarities of `positive_pairs`, in their order."""
        return self.similarity.flatten().index_select(0, self.positive_index)

    @cached_property
    def positive_index(self) -> Tensor:
        """`positive_pairs` as indices into the flattened matrix."""
        rows, columns = self.positive_pairs
        return rows * self.similarity.shape[1] + columns

    @cached_property
    def negative_counts(self) -> Tensor:
        r"""$|N(i)|$ $[n]$."""
        return self.admissible.sum(1)

    @cached_property
    def uniform_log_weights(self) -> Tensor:
        r"""$-\log|N(i)|$ where admissible, $-\infty$ elsewhere $[n,m]$; a row without negatives is all $-\infty$."""
        log_count = self.negative_counts.to(self.similarity.dtype).log()
        return torch.where(self.admissible, -log_count[:, None], -torch.inf)

    def same_class(self, labels: Tensor | None = None) -> Tensor:
        """Mask $[n,m]$ of the candidates that share the anchor's class; the anchor and its other views included.

        `labels` $[B]$ or $[2B]$ may be given for a contrast of two views built without any.
        """
        y, other = self.labels, self.candidate_labels
        if labels is not None:
            n, m = self.similarity.shape
            if n != m:
                raise ValueError(f"{n} anchors and {m} candidates need labels each; give both to from_similarity")
            if labels.shape not in ((n,), (n / 2,)):
                raise ValueError(f"labels have shape {tuple(labels.shape)}; {n} anchors need ({n},) or ({n // 2},)")
            y = other = labels if len(labels) == n else labels.repeat(2)
        if y is None or other is None:
            raise ValueError("this contrast has no labels; pass labels=…")
        return y[:, None] == other


def _unit_rows(z: Tensor, where: str | None = None) -> tuple[Tensor, Tensor]:
    z = z if z.dtype == torch.float64 else z.float()
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    if z.device.type == "cpu":  # on an accelerator the check would stall the step; a bad row shows as a NaN loss
        bad = ~((norm > 0) & norm.isfinite()).squeeze(1)
        if bad.any():
            row, batch = int(bad.nonzero()[0]), len(z) // 2
            named = f"{row % batch} of view {1 + row // batch}" if where is None else f"{row} {where}"
            raise ValueError(f"row {named} has norm {norm[row].item():g} and so no direction; "
                             "check the encoder's output (a diverged run, or a dead projection)")
    return z / norm, norm.squeeze(1)


@lru_cache(maxsize=8)  # the masks of a batch depend on its size alone: one training run needs them once
@torch.inference_mode(False)  # or masks first made in inference mode could not serve training afterwards
def _view_masks(batch: int, device: torch.device, dtype: torch.dtype):
    n = 2 * batch
    rows = torch.arange(n, device=device)
    columns = (rows + batch) % n
    own = torch.zeros(n, n, dtype=torch.bool, device=device)
    own[rows, columns] = True
    admissible = ~own & ~torch.eye(n, dtype=torch.bool, device=device)
    log_count = torch.tensor(float(n - 2), dtype=dtype, device=device).log()
    uniform = torch.where(admissible, -log_count, -torch.inf)
    return own, admissible, (rows, columns), uniform
