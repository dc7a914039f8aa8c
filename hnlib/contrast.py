"""The set-up every method shares: anchors, candidates, who is a positive, who is admissible as a
negative."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from hnlib import _checks
from hnlib._checks import one_of, outside_autocast, readable, refuse, transformed


def _known(make: Callable[[Contrast], Tensor]) -> property:
    """What follows from the masks, once; torch.compile cannot trace a `cached_property`."""

    def get(self):
        if make.__name__ not in self._facts:
            self._facts[make.__name__] = make(self)
        return self._facts[make.__name__]

    return property(get, doc=make.__doc__)


@dataclass(frozen=True, eq=False)
class Contrast:
    r"""Similarities of $n$ anchors and $m$ candidates with the masks that give them their roles.

    `similarity` $[n,m]$ holds $s_{ij}=\langle z_i,z_j\rangle$, float32 or float64; `positives` and
    `admissible` are boolean $[n,m]$: candidate $j$ is a positive of anchor $i$, or may serve as its
    negative (the set $N(i)$). `positive_index` $[n]$: where every anchor has exactly one positive,
    its column. `labels` $[n]$ and `candidate_labels` $[m]$ are optional. `scale` is the default $Q$
    of the objectives. `features` $[m,k]$, the inputs of the last linear layer, and `norms` $[m]$,
    the lengths of its outputs before normalisation, serve weights made of last-layer gradients.
    Build one with `from_views`, `from_pairs`, `from_queue`, `from_nodes` or `from_similarity`; the
    constructor trusts its arguments. Masks are shared by all batches of one size: read them, do not
    write to them.
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
    positive_index: Tensor | None = None
    _facts: dict = field(default_factory=dict, repr=False)

    @classmethod
    def from_views(
        cls,
        z1: Tensor,
        z2: Tensor,
        labels: Tensor | None = None,
        positives: str = "class",
        features: tuple[Tensor, Tensor] | None = None,
    ) -> Contrast:
        r"""Two views of a batch: $n=m=2B$ anchors and candidates, row $i$'s other view in row $i\pm
        B$.

        Rows of `z1`, `z2` $[B,d]$ are normalised; similarities are float32 also under autocast
        (float64 if given). Without `labels`: the positive is the other view, every candidate but
        the two views is admissible. With `labels` $[B]$: negatives are the candidates of other
        classes; `positives="class"` takes every candidate of the anchor's class but the anchor as a
        positive, `positives="view"` the other view only. `features`: the inputs $[B,k]$ of the last
        linear layer for both views, for methods that ask for them. ValueError: shapes that
        disagree, $B<2$, labels of another length, a zero or non-finite row (see `unit_rows`).
        """
        check_views(z1, z2)
        batch = len(z1)
        one_of("positives", positives, ("class", "view"))
        both = None if features is None else _both_views(features, batch)
        z, norms = unit_rows(torch.cat([z1, z2]))
        masks = _masks(2 * batch, 2 * batch, batch, z)
        known = dict(symmetric=True, features=both, norms=norms) | masks
        contrast = cls(inner_products(z, z), scale=2 * batch - 2, anchors=z, candidates=z, **known)
        if labels is None:
            return contrast
        y = _checks.labels(labels, batch, "images").to(z.device).repeat(2)
        return contrast._told(_alike(y, y), y, y, positives)

    @classmethod
    def from_queue(
        cls,
        queries: Tensor,
        keys: Tensor,
        queue: Tensor,
        labels: Tensor | None = None,
        queue_labels: Tensor | None = None,
        positives: str = "class",
    ) -> Contrast:
        r"""Queries $[B,d]$ against their keys $[B,d]$ and a queue $[K,d]$ of older keys: $n=B$,
        $m=B+K$.

        Query $i$'s positive is key $i$; the other keys and the whole queue are admissible, $Q=m-1$.
        Rows are normalised as by `from_views`. With `labels` $[B]$ and `queue_labels` $[K]$ keys of
        other classes are the negatives, and `positives="class"` takes every key of the query's
        class, "view" its own key alone. No gradient is stopped here: give keys that carry none.
        ValueError: shapes that disagree, labels without the queue's, a zero or non-finite row.
        Source: He et al. (2020), whose negatives are the queue alone.
        """
        check_queue(queries, keys, queue)
        one_of("positives", positives, ("class", "view"))
        if (labels is None) != (queue_labels is None):
            raise ValueError(
                "labels of the batch and of the queue are needed together; give both or neither"
            )
        contrast = cls._two_towers(queries, torch.cat([keys, queue]), "of keys and queue")
        if labels is None:
            return contrast
        labels = _checks.labels(labels, len(queries), "queries").to(queries.device)
        older = _checks.labels(queue_labels, len(queue), "keys of the queue").to(queries.device)
        y = torch.cat([labels, older])
        return contrast._told(_alike(labels, y), labels, y, positives)

    @classmethod
    def from_pairs(
        cls,
        queries: Tensor,
        keys: Tensor,
        positives: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Contrast:
        r"""Two towers: $n$ queries against $m\ge n$ keys, of which key $i$ answers query $i$.

        Rows are normalised. Keys beyond the first $n$ are negatives for all, hard negatives that
        were mined for one. A boolean mask `positives` $[n,m]$ names further answers, duplicates for
        example; `labels` $[m]$ of the keys, the first $n$ of them of the queries too, make every
        key of a query's class an answer. An answer is no negative; $Q=m-1$. ValueError: shapes that
        disagree, fewer keys than queries or than two, a zero or non-finite row.
        """
        _checks.floating(queries=queries, keys=keys)
        if queries.ndim != 2 or keys.ndim != 2 or queries.shape[1:] != keys.shape[1:]:
            raise ValueError(
                "queries must be [n, d] and keys [m, d]; got "
                f"{tuple(queries.shape)} and {tuple(keys.shape)}"
            )
        n, m = len(queries), len(keys)
        if not 1 <= n <= m or m < 2:
            raise ValueError(
                f"{n} queries and {m} keys are no pairs: key i answers query i, so give at least "
                "as many keys as queries, and at least 2"
            )
        contrast = cls._two_towers(queries, keys, "of the keys")
        own = contrast.positives
        if positives is not None:
            _checks.mask("positives", positives, own)
            own = own | positives
        if labels is not None:
            y = _checks.labels(labels, m, "keys").to(keys.device)
            return contrast._told(own | _alike(y[:n], y), y[:n], y, "class")
        if positives is None:
            return contrast
        changed = dict(positives=own, admissible=~own, positive_index=None, _facts={})
        return replace(contrast, never_empty=False, **changed)

    @classmethod
    def _two_towers(cls, queries: Tensor, keys: Tensor, named: str) -> Contrast:
        queries, keys = in_one_precision(queries, keys)
        z, _ = unit_rows(queries, "of the queries")
        candidates, norms = unit_rows(keys, named)
        known = dict(scale=len(keys) - 1, norms=norms) | _masks(len(z), len(keys), 0, z)
        return cls(inner_products(z, candidates), anchors=z, candidates=candidates, **known)

    def reversed(self) -> Contrast:
        """The same pairs with the keys as anchors, for a loss in both directions. ValueError: keys
        that answer no query; labels; features."""
        n, m = self.similarity.shape
        if n != m or self.labels is not None or self.features is not None:
            raise ValueError(
                f"{n} queries and {m} keys cannot be exchanged; give pairs alone, without further "
                "keys, labels or features"
            )
        turned = {name: getattr(self, name).T for name in ("similarity", "positives", "admissible")}
        ends = dict(anchors=self.candidates, candidates=self.anchors, norms=None)
        return replace(self, **turned, **ends, positive_index=None, never_empty=False, _facts={})

    @classmethod
    def from_nodes(
        cls,
        nodes: Tensor,
        graphs: Tensor,
        batch: Tensor,
        labels: Tensor | None = None,
        positives: str = "class",
    ) -> Contrast:
        r"""Nodes against graphs: the nodes of a batch $[n,d]$ are the anchors, its graphs $[m,d]$
        the candidates.

        `batch` $[n]$ says to which graph a node belongs. The similarity $T=\langle h_u,H_G\rangle$,
        the score of InfoGraph, is *not* normalised. A node's positive is its own graph, every other
        is admissible, $Q=m-1$. With `labels` $[m]$ (-1: unknown) graphs known to be of the node's
        class are not admissible, and `positives="class"` makes them positives; "own": its own graph
        alone. ValueError: a single graph, shapes that disagree, labels of another length, a score
        that is not finite or a `batch` that does not point to the graphs. Source: Sun et al.
        (2020).
        """
        _checks.floating(nodes=nodes, graphs=graphs)
        if (batch := _checks.as_tensor("batch", batch)).is_floating_point():
            raise ValueError(f"batch is {batch.dtype}; it must say by whole numbers which graph")
        batch = batch.long()
        if graphs.ndim != 2 or batch.ndim != 1 or nodes.shape != batch.shape + graphs.shape[1:]:
            raise ValueError(
                "nodes must be [n, d], graphs [m, d] and batch [n]; got "
                + ", ".join(str(tuple(x.shape)) for x in (nodes, graphs, batch))
            )
        m = len(graphs)
        _at_least_two(m, "graph")
        one_of("positives", positives, ("class", "own"))
        nodes, graphs = in_one_precision(nodes, graphs)
        similarity = inner_products(nodes, graphs)
        refuse(
            ~similarity.detach().sum().isfinite()[None],
            "a score of nodes and graphs is not finite; lower the learning rate, or look for "
            "features that are not finite",
        )
        stray = f"batch points to graph {{value}}; there are {m}, counted from 0"
        refuse((batch < 0) | (batch >= m), stray, batch)
        own = batch[:, None] == torch.arange(m, device=batch.device)
        known = dict(positive_index=batch, never_empty=True)
        contrast = cls(similarity, own, ~own, m - 1, nodes, graphs, **known)
        if labels is None:
            return contrast
        y = _checks.labels(labels, m, "graphs").to(batch.device)
        refuse(
            y < -1, "graph {row} has label {value}; -1 is an unknown one, classes are at least 0", y
        )
        same = own | ((y[:, None] == y) & (y >= 0))[batch]
        return contrast._told(same, y[batch], y, positives)

    def without(self, candidates: Tensor) -> Contrast:
        """The contrast in which the pairs of a boolean mask $[n,m]$ are no negatives; all else
        stays, $Q$ too."""
        _checks.mask("candidates", candidates, self.similarity)
        kept = self.admissible & ~candidates
        symmetric = self.symmetric and readable(kept) and torch.equal(kept, kept.T)
        return replace(self, admissible=kept, symmetric=symmetric, never_empty=False, _facts={})

    def with_candidates(self, made: Tensor, admissible: Tensor | None = None) -> Contrast:
        r"""The contrast with $k$ more negatives for each anchor, its own: `made` $[n,k,d]$.

        Rows are normalised; $Q$ grows by $k$. Gradient flows through `made` where it has one.
        `admissible`, a boolean mask $[n,k]$ or $[n,1]$, says which count; default: all. Embeddings,
        norms, features and labels of the candidates are those of shared ones and are dropped, so
        weights that need them refuse the result. ValueError: a contrast without embeddings or, as
        `from_nodes`, with anchors that are not normalised, shapes that disagree, a zero or
        non-finite row.
        """
        z, n = self.anchors, len(self.similarity)
        if z is None:
            raise ValueError(
                "more candidates need the anchors' embeddings; build the contrast from views, "
                "pairs or a queue"
            )
        _checks.floating(made=made)
        if made.ndim != 3 or made.shape[::2] != z.shape:
            raise ValueError(
                f"made-up candidates have shape {tuple(made.shape)}; {n} anchors of {z.shape[1]} "
                f"dimensions need [{n}, k, {z.shape[1]}]"
            )
        k = made.shape[1]
        refuse(
            (z.detach().norm(dim=1) - 1).abs() > 1e-3,
            "anchor {row} is not normalised, and made-up candidates are; build the contrast from "
            "views, pairs or a queue",
        )
        rows, _ = unit_rows(made.to(z).flatten(0, 1), "of the made-up candidates")
        # not a matrix product: a backward pass inside autocast would take half precision for it
        similarity = (z[:, None] * rows.view(made.shape)).sum(2)
        count = torch.ones_like(similarity, dtype=torch.bool)
        count = count if admissible is None else count & admissible
        wide = dict(similarity=similarity, positives=torch.zeros_like(count), admissible=count)
        grown = {name: torch.cat([getattr(self, name), more], 1) for name, more in wide.items()}
        known = dict(candidates=None, candidate_labels=None, features=None, norms=None)
        known |= dict(scale=self.scale + k, symmetric=False, _facts={})
        return replace(self, **grown, **known)

    def _told(self, same: Tensor, labels: Tensor, candidate_labels: Tensor, positives: str):
        """The contrast with classes known: none of the anchor's is a negative, and all of it may be
        positives."""
        told = dict(admissible=~same, labels=labels, candidate_labels=candidate_labels)
        if positives == "class":  # everyone of it but the anchor
            own = same & (self.admissible | self.positives)
            told |= dict(positives=own, positive_index=None)
        return replace(self, never_empty=False, _facts={}, **told)

    @classmethod
    def from_similarity(
        cls,
        similarity: Tensor,
        positives: Tensor,
        admissible: Tensor,
        labels: Tensor | None = None,
        candidate_labels: Tensor | None = None,
        scale: int = 1,
        candidates: Tensor | None = None,
    ) -> Contrast:
        r"""Any finite space: a matrix $[n,m]$ of similarities and two masks. For theory, queues and
        other modalities.

        `candidates` $[m,d]$, the embeddings, are needed by weights that are not functions of
        similarity alone.

        ValueError: no anchor, masks, labels or embeddings of another shape, a similarity that is
        not float32 or float64 or not finite, an anchor without a positive.
        """
        _checks.floating(similarity=similarity)
        if similarity.ndim != 2 or not len(similarity) or similarity.dtype not in _PRECISE:
            raise ValueError(
                "similarities must be a matrix [n, m] of float32 or float64; "
                f"got {similarity.dtype} of shape {tuple(similarity.shape)}"
            )
        n, m = similarity.shape
        if labels is not None:
            labels = _checks.labels(labels, n, "anchors")
        if candidate_labels is not None:
            candidate_labels = _checks.labels(candidate_labels, m, "candidates")
        if candidates is not None:
            _checks.floating(candidates=candidates)
            if candidates.ndim != 2 or len(candidates) != m:
                raise ValueError(f"candidates have shape {tuple(candidates.shape)}; give [{m}, d]")
        known = dict(labels=labels, candidate_labels=candidate_labels, candidates=candidates)
        for name, mask in (("positives", positives), ("admissible", admissible)):
            _checks.mask(name, mask, similarity)
        refuse(
            ~similarity.isfinite().all(1),
            "similarities of row {row} are not finite; check the embeddings they come from",
        )
        refuse(~positives.any(1), "anchor {row} has no positive; give each anchor at least one")
        symmetric = n == m and all(  # where it cannot be seen, the general case is as right
            readable(x) and torch.equal(x, x.T) for x in (similarity, admissible)
        )
        return cls(similarity, positives, admissible, scale, symmetric=symmetric, **known)

    @_known
    def pairs(self) -> Positives:
        """The pairs (anchor, positive), in the form that is cheapest where they are."""
        n, m = self.similarity.shape
        if self.positive_index is not None:
            rows = torch.arange(n, device=self.similarity.device)
            return ListedPositives(None, rows * m + self.positive_index, torch.ones_like(rows))
        if transformed() or self.positives.device.type != "cpu":
            return MaskedPositives(self.positives)
        cells = np.flatnonzero(self.positives.numpy())  # twice as fast as torch
        counts = np.diff(cells.searchsorted(m * np.arange(n + 1)))
        rows = np.arange(n).repeat(counts)
        return ListedPositives(*(torch.from_numpy(x) for x in (rows, cells, counts)))

    @property  # not kept: a loss must not inherit a graph that another one has consumed
    def positive_similarity(self) -> Tensor:
        """The similarities of the positives, row by row; an accelerator waits for their number."""
        return self.similarity[self.positives]

    @_known
    def negative_counts(self) -> Tensor:
        r"""$|N(i)|$ $[n]$."""
        return as_numbers(self.admissible, torch.float32).sum(1).long()

    @_known
    def uniform_log_weights(self) -> Tensor:
        r"""$-\log|N(i)|$ where admissible, $-\infty$ elsewhere $[n,m]$; a row without negatives is
        all $-\infty$."""
        dtype = self.similarity.dtype
        # of a single negative a little above 0, as 0 times inf is not a number
        log_count = self.negative_counts.to(dtype).log().clamp_min(torch.finfo(dtype).tiny)
        return as_numbers(self.admissible, dtype).reciprocal_().mul_(-log_count[:, None])

    def same_class(self, labels: Tensor | None = None) -> Tensor:
        """Mask $[n,m]$ of the candidates that share the anchor's class; the anchor and its other
        views included.

        `labels` $[B]$ or $[2B]$ may be given for a contrast of two views built without any.
        """
        y, other = self.labels, self.candidate_labels
        if labels is not None:
            n, m = self.similarity.shape
            if n != m:
                raise ValueError(
                    f"{n} anchors and {m} candidates need labels each; give both to from_similarity"
                )
            of_both = tuple(getattr(labels, "shape", ())) == (n,)
            y = _checks.labels(labels, n if of_both else n // 2, "images")
            y = other = y if of_both else y.repeat(2)
        if y is None or other is None:
            raise ValueError("this contrast has no labels; pass labels=…")
        return _alike(y, other)


@dataclass(frozen=True, eq=False)
class ListedPositives:
    """The pairs (anchor, positive) as a list $[P]$, row by row; no `rows` if each anchor has one.

    `cells` are the pairs as indices into the flattened matrix, `counts` $[n]$ the positives of each
    anchor. `gather` takes a value for each pair out of a matrix, `spread` gives each pair its
    anchor's, `total` adds them up for each anchor.
    """

    rows: Tensor | None
    cells: Tensor
    counts: Tensor

    def gather(self, matrix: Tensor) -> Tensor:
        return matrix.flatten().index_select(0, self.cells)

    def spread(self, values: Tensor) -> Tensor:
        return values if self.rows is None else values.index_select(0, self.rows)

    def total(self, values: Tensor) -> Tensor:
        if self.rows is None:
            return values
        return torch.zeros_like(self.counts, dtype=values.dtype).index_add(0, self.rows, values)


@dataclass(frozen=True, eq=False)
class MaskedPositives:
    """The same as a matrix $[n,m]$, for a device that would have to wait for the length of a list;
    values outside `mask` mean nothing."""

    mask: Tensor
    cells = None

    @property
    def counts(self) -> Tensor:
        return self.mask.sum(1)

    def gather(self, matrix: Tensor) -> Tensor:
        return matrix

    def spread(self, values: Tensor) -> Tensor:
        return values[:, None]

    def total(self, values: Tensor) -> Tensor:
        return torch.where(self.mask, values, 0.0).sum(1)


Positives = ListedPositives | MaskedPositives


def unit_rows(z: Tensor, *parts: str) -> tuple[Tensor, Tensor]:
    """The rows of `z` $[n,d]$ divided by their norms, in float32 or better, and the norms $[n]$.

    ValueError: a zero or non-finite row, named after its part of `z` ("of view 1" and "of view 2"
    if nothing else is said); on an accelerator such a row makes the loss NaN, and the error comes
    when a training loop asks for it.
    """
    parts = parts or ("of view 1", "of view 2")
    z = z if z.dtype == torch.float64 else z.float()
    norm = torch.linalg.vector_norm(z, dim=1)
    for part, rows in zip(parts, norm.detach().chunk(len(parts))):
        sentence = (
            f"row {{row}} {part} has norm {{value:g}} and so no direction; "
            "check the encoder's output (a diverged run, or a dead projection)"
        )
        refuse(~((rows > 0) & (rows < torch.inf)), sentence, rows)
    return z / norm[:, None], norm


def check_views(z1: Tensor, z2: Tensor) -> None:
    """ValueError unless they are two views of at least two images."""
    _checks.floating(z1=z1, z2=z2)
    if z1.ndim != 2 or z1.shape != z2.shape:
        raise ValueError(
            "the two views must have one shape [batch, dimension]; "
            f"got {tuple(z1.shape)} and {tuple(z2.shape)}"
        )
    _at_least_two(len(z1), "image")


def check_queue(queries: Tensor, keys: Tensor, queue: Tensor) -> None:
    """ValueError unless each query has its key and, with the queue, another one."""
    _checks.floating(queries=queries, keys=keys, queue=queue)
    if queue.ndim != 2 or not queries.shape == keys.shape == keys.shape[:1] + queue.shape[1:]:
        raise ValueError(
            "queries and keys must be [B, d] and the queue [K, d]; got "
            + ", ".join(str(tuple(x.shape)) for x in (queries, keys, queue))
        )
    _at_least_two(len(keys) + len(queue), "key")


_PRECISE = torch.float32, torch.float64


def in_one_precision(*tensors: Tensor) -> Iterator[Tensor]:
    """All in float64 if one of them is, else in float32."""
    double = any(z.dtype == torch.float64 for z in tensors)
    return (z.double() if double else z.float() for z in tensors)


def as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 and 1 for a mask. On a CPU torch converts bytes seven times as fast as booleans, and to
    choose by a scattered mask takes twenty times as long as to multiply."""
    return mask.view(torch.uint8).to(dtype)


class _InnerProducts(torch.autograd.Function):
    """A backward pass that starts inside autocast would multiply in half precision; not here."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b.T

    @staticmethod
    def backward(ctx, grad: Tensor):
        a, b = ctx.saved_tensors
        needs_a, needs_b = ctx.needs_input_grad
        in_a = inner_products(grad, b.T) if needs_a else None
        return in_a, inner_products(a.T, grad.T).T if needs_b else None


def inner_products(a: Tensor, b: Tensor) -> Tensor:
    r"""$\langle a_i,b_j\rangle$ $[n,m]$ of the rows of two matrices, outside autocast, as are all
    derivatives."""
    with outside_autocast(a.device):
        return a @ b.T if transformed() else _InnerProducts.apply(a, b)


def _masks(n: int, m: int, shift: int, like: Tensor) -> dict:
    """The masks of a `Contrast` in which row i's positive is column i + `shift` (mod n), and what
    follows from them; with a shift, that of two views, column i is row i itself and no negative."""
    make = _made_masks.__wrapped__ if transformed() else _made_masks
    made = make(n, m, shift, like.device, like.dtype)
    return made | dict(_facts=dict(made["_facts"]))


@lru_cache(maxsize=2)  # of the batches of a run and of its last one; each may be large
@torch.inference_mode(False)  # or masks first made in inference mode could not serve training
def _made_masks(n: int, m: int, shift: int, device: torch.device, dtype: torch.dtype) -> dict:
    rows, columns = torch.arange(n, device=device), torch.arange(m, device=device)
    index = rows.roll(shift)
    own = index[:, None] == columns
    admissible = ~own & (rows[:, None] != columns)  # without a shift the same cells
    count = m - 2 if shift else m - 1
    each = torch.full((), -math.log(count), dtype=dtype, device=device)
    uniform = torch.where(admissible, each, -torch.inf)
    facts = dict(uniform_log_weights=uniform, negative_counts=torch.full_like(rows, count))
    known = dict(positive_index=index, never_empty=True, _facts=facts)
    return dict(positives=own, admissible=admissible, **known)


def _alike(labels: Tensor, others: Tensor) -> Tensor:
    """Which labels are the same $[n,m]$. On a CPU it is several times cheaper to compare each class
    once and to copy the row than to compare all, if classes are few."""
    if readable(labels):
        classes, which = labels.unique(return_inverse=True)
        if 4 * len(classes) < len(labels):
            return (classes[:, None] == others).index_select(0, which)
    return labels[:, None] == others


def _both_views(features: tuple[Tensor, Tensor], batch: int) -> Tensor:
    views = list(features) if isinstance(features, tuple | list) else [features]
    shapes = [tuple(getattr(h, "shape", ())) for h in views]
    if len(shapes) != 2 or shapes[0] != shapes[1] or len(shapes[0]) != 2 or shapes[0][0] != batch:
        given = " and ".join(map(str, shapes))
        raise ValueError(f"features must be one [{batch}, k] for each view; got {given}")
    for h in views:
        _checks.floating(features=h)
    return torch.cat(views)


def _at_least_two(count: int, kind: str) -> None:
    if count < 2:
        raise ValueError(
            f"a batch of {count} {kind} has no negative; use a batch of at least 2 {kind}s"
        )
