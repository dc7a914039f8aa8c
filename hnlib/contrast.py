"""Similarities of anchors and candidates, with the masks that give candidates their roles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hnlib import _checks
from hnlib._checks import on_cpu, one_of, outside_autocast, raise_if, shapes
from hnlib.masks import Masks, shared_masks

__all__ = ["Contrast", "Masks", "unit_rows"]


@dataclass(frozen=True, eq=False)
class Contrast:
    r"""Similarities of n anchors and m candidates with the masks that give them their roles.

    Build one with `from_views`, `from_pairs` or `from_similarity`; the constructor does not check
    its arguments.

    Parameters
    ----------
    similarity : Tensor of shape [n, m]
        $s_{ij} = \langle z_i, z_j\rangle$ in float32 or float64.
    masks : Masks
        Positives and admissible negatives.
    scale : int or Tensor of shape [n]
        Default scale $Q$ of the objectives.
    anchors : Tensor of shape [n, d], optional
        Embeddings of the anchors.
    candidates : Tensor of shape [m, d], optional
        Embeddings of the candidates.
    labels, candidate_labels : int64 Tensor of shape [n] and [m], optional
        Classes.
    symmetric : bool, default False
        Whether similarities and admissible negatives are symmetric matrices.
    features : Tensor of shape [m, k], optional
        Inputs of the last linear layer, for weights made of its gradients.
    norms : Tensor of shape [m], optional
        Norms of the embeddings before they were normalised.
    teacher : Tensor of shape [n, m], optional
        Scores of a teacher, for soft targets; set it by `dataclasses.replace`.
    shared : Masks, optional
        The masks without labels, which batches of one size share while somebody holds them.
    """

    similarity: Tensor
    masks: Masks
    scale: int | Tensor
    anchors: Tensor | None = None
    candidates: Tensor | None = None
    labels: Tensor | None = None
    candidate_labels: Tensor | None = None
    symmetric: bool = False
    features: Tensor | None = None
    norms: Tensor | None = None
    teacher: Tensor | None = None
    shared: Masks | None = None

    @property
    def positives(self) -> Tensor:
        """Mask of shape [n, m] of the positives."""
        return self.masks.positives

    @property
    def admissible(self) -> Tensor:
        """Mask of shape [n, m] of the admissible negatives, the sets $N(i)$."""
        return self.masks.admissible

    @property
    def negative_counts(self) -> Tensor:
        r"""Number of negatives $|N(i)|$, of shape [n]."""
        return self.masks.negative_counts

    @property
    def uniform_log_weights(self) -> Tensor:
        r"""$-\log|N(i)|$ where admissible, $-\infty$ elsewhere, of shape [n, m]."""
        return self.masks.uniform_log_weights

    @property
    def positive_similarity(self) -> Tensor:
        """Similarities of the positives in row order. Synchronises with an accelerator."""
        return self.similarity[self.positives]

    @classmethod
    def from_views(
        cls,
        z1: Tensor,
        z2: Tensor,
        labels: Tensor | None = None,
        positives: str = "class",
        features: tuple[Tensor, Tensor] | None = None,
    ) -> Contrast:
        r"""Contrast two views of a batch, $n = m = 2B$.

        The other view of row $i$ is row $i \pm B$. Both views are anchors, as in NT-Xent (SimCLR);
        `from_pairs` has one direction, and takes older keys, as in MoCo.

        Parameters
        ----------
        z1, z2 : Tensor of shape [B, d], B ≥ 2
            Embeddings of the views. Rows are normalised, and similarities are float32 even under
            autocast (float64 if the views are).
        labels : integers of shape [B], optional
            Classes. Without them the positive is the other view and every candidate but the two
            views is admissible; with them candidates of other classes are.
        positives : {"class", "view"}, default "class"
            With labels: whether all candidates of the anchor's class are positives, or only its
            other view.
        features : pair of Tensors of shape [B, k], optional
            Inputs of the last linear layer for both views, for methods that ask for them.

        Returns
        -------
        Contrast
            With scale $Q = 2B - 2$.

        Raises
        ------
        ValueError
            If shapes disagree, $B < 2$, or a row is zero or not finite (see `unit_rows`).

        Examples
        --------
        Each of 16 anchors has its other view as the positive and 14 negatives.

        >>> import torch
        >>> from hnlib.contrast import Contrast
        >>> z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
        >>> contrast = Contrast.from_views(z1, z2)
        >>> contrast.similarity.shape, int(contrast.admissible[0].sum())
        (torch.Size([16, 16]), 14)
        """
        check_views(z1, z2)
        batch = len(z1)
        one_of("positives", positives, ("class", "view"))
        if features is not None:
            alike = len(features) == 2 and features[0].shape == features[1].shape
            fits = alike and features[0].ndim == 2 and len(features[0]) == batch
            shapes(fits, f"features must be two matrices [{batch}, k], as the views", *features)
        both = None if features is None else torch.cat([*features])  # [2B, k]
        z, norms = unit_rows(torch.cat([z1, z2]))  # [2B, d], [2B]
        masks = shared_masks(2 * batch, 2 * batch, batch, z.device, z.dtype)
        contrast = cls(
            inner_products(z, z),  # [2B, 2B]
            masks,
            scale=2 * batch - 2,
            anchors=z,
            candidates=z,
            symmetric=True,
            features=both,
            norms=norms,
            shared=masks,
        )
        if labels is None:
            return contrast
        y = _checks.labels(labels, batch, "images").to(z.device).repeat(2)
        return contrast.with_labels(_same(y, y), y, y, positives)

    @classmethod
    def from_pairs(
        cls,
        queries: Tensor,
        keys: Tensor,
        positives: Tensor | None = None,
        labels: Tensor | None = None,
        label_positives: bool = True,
    ) -> Contrast:
        r"""Contrast two towers: key $i$ answers query $i$.

        All other keys are its negatives, as in MultipleNegativesRankingLoss of
        sentence-transformers. The mean of this loss and that of `reversed` is CLIP's.

        Parameters
        ----------
        queries : Tensor of shape [n, d]
            Embeddings; rows are normalised.
        keys : Tensor of shape [m, d], m ≥ n and m ≥ 2
            Embeddings. Keys beyond the first n are negatives for all queries, such as hard
            negatives that were mined for one, or a queue of older keys; detach these yourself.
        positives : bool Tensor of shape [n, m], optional
            Further answers, such as duplicates. An answer is not a negative.
        labels : integers of shape [m], optional
            Classes of the keys, the first n also of the queries. Keys of a query's class are not
            its negatives.
        label_positives : bool, default True
            Whether keys of a query's class are answers too.

        Returns
        -------
        Contrast
            With scale $Q = |N(i)|$, which is $m - 1$ where `positives` and `labels` take no
            negative away.

        Raises
        ------
        ValueError
            If shapes disagree, there are too few keys, or a row is zero or not finite.

        Examples
        --------
        Eight queries with their answers, and eight further keys such as mined negatives.

        >>> import torch
        >>> from hnlib.contrast import Contrast
        >>> queries, keys = torch.randn(8, 4), torch.randn(16, 4)
        >>> Contrast.from_pairs(queries, keys).similarity.shape
        torch.Size([8, 16])
        """
        check_pairs(queries, keys)
        n, m = len(queries), len(keys)
        queries, keys = in_one_precision(queries, keys)
        z, _ = unit_rows(queries, "of the queries")
        candidates, norms = unit_rows(keys, "of the keys")
        masks = shared_masks(n, m, 0, z.device, z.dtype)
        similarity = inner_products(z, candidates)  # [n, m]
        contrast = cls(similarity, masks, m - 1, z, candidates, norms=norms, shared=masks)
        y = None if labels is None else _checks.labels(labels, m, "keys").to(keys.device)
        if positives is not None:
            _checks.mask("positives", positives, similarity)
        return contrast.with_answers(positives, None if y is None else (y[:n], y), label_positives)

    def reversed(self) -> Contrast:
        """Return the same pairs with the keys as anchors, for a loss in both directions.

        A scale $Q$ for each anchor becomes the number of negatives of each key.

        Raises
        ------
        ValueError
            If some keys answer no query, or the contrast has labels or features.
        """
        check_reversible(*self.similarity.shape, self.labels, self.features)
        masks = Masks(self.positives.T, self.admissible.T, self.masks.dtype)
        ends = dict(anchors=self.candidates, candidates=self.anchors, norms=None)
        ends["teacher"] = None if self.teacher is None else self.teacher.T
        other = replace(self, similarity=self.similarity.T, masks=masks, **ends)
        return other.rescaled() if isinstance(self.scale, Tensor) else other

    @classmethod
    def from_similarity(
        cls,
        similarity: Tensor,
        positives: Tensor,
        admissible: Tensor,
        scale: int = 1,
        candidates: Tensor | None = None,
    ) -> Contrast:
        r"""Build a contrast from any matrix of similarities and two masks.

        Parameters
        ----------
        similarity : Tensor of shape [n, m], n ≥ 1
            Finite similarities in float32 or float64.
        positives : bool Tensor of shape [n, m]
            Positives, at least one for each anchor.
        admissible : bool Tensor of shape [n, m]
            Admissible negatives.
        scale : int, default 1
            Default scale $Q$ of the objectives.
        candidates : Tensor of shape [m, d], optional
            Embeddings, for weights that are not functions of similarity alone.

        Returns
        -------
        Contrast
            The contrast; whether it is symmetric is read off on a CPU.

        Raises
        ------
        ValueError
            If a shape or type is wrong, a similarity is not finite, or an anchor has no positive.
        """
        fits = similarity.ndim == 2 and len(similarity) > 0
        shapes(fits, "similarities must be a matrix [n, m]", similarity)
        n, m = similarity.shape
        if similarity.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"similarity must be float32 or float64, got {similarity.dtype}")
        _checks.mask("positives", positives, similarity)
        _checks.mask("admissible", admissible, similarity)
        raise_if(
            ~similarity.isfinite().all(1),
            "similarities of row {row} are not finite; check the embeddings they come from",
        )
        raise_if(~positives.any(1), "anchor {row} has no positive; give each anchor at least one")
        symmetric = n == m and all(
            on_cpu(x) and torch.equal(x, x.T) for x in (similarity, admissible)
        )
        masks = Masks(positives, admissible, similarity.dtype)
        return cls(similarity, masks, scale, candidates=candidates, symmetric=symmetric)

    def without(self, candidates: Tensor) -> Contrast:
        """Return the contrast in which the pairs of a boolean mask [n, m] are not negatives.

        Everything else stays, including the scale $Q$; `rescaled` sets it to the number that is
        left.
        """
        _checks.mask("candidates", candidates, self.similarity)
        admissible = self.admissible & ~candidates
        symmetric = self.symmetric and on_cpu(admissible) and torch.equal(admissible, admissible.T)
        masks = replace(self.masks, admissible=admissible, never_empty=False)
        return replace(self, masks=masks, symmetric=symmetric)

    def rescaled(self) -> Contrast:
        """Return the contrast with scale $Q = |N(i)|$, the number of each anchor's negatives."""
        return replace(self, scale=self.negative_counts.clamp_min(1))

    def with_answers(
        self,
        positives: Tensor | None,
        labels: tuple[Tensor, Tensor] | None,
        label_positives: bool = True,
    ) -> Contrast:
        """Return the contrast with the further answers of a mask [n, m], and with labels.

        `labels` are those of the n queries and of the m keys. Where either takes negatives away,
        the scale $Q$ becomes the number of those that are left. See `from_pairs`.
        """
        contrast = self
        if positives is not None:
            positives = self.positives | positives
            known = Masks(positives, ~positives, self.similarity.dtype)
            contrast = replace(self, masks=known)
        if labels is not None:
            same = contrast.positives | _same(*labels)
            contrast = contrast.with_labels(same, *labels, "class" if label_positives else "view")
        return contrast if contrast is self else contrast.rescaled()

    def with_labels(self, same: Tensor, labels: Tensor, others: Tensor, positives: str) -> Contrast:
        """Take candidates of the same class from the negatives, and for "class" as positives."""
        masks = replace(self.masks, admissible=~same, never_empty=False)
        if positives == "class":  # all of the class but the anchor itself
            chosen = same & (self.admissible | self.positives)
            masks = Masks(chosen, ~same, self.masks.dtype)
        return replace(self, masks=masks, labels=labels, candidate_labels=others)

    def same_class(self, labels: Tensor | None = None) -> Tensor:
        """Return the mask [n, m] of the candidates of the anchor's class, the anchor included.

        Parameters
        ----------
        labels : integers of shape [B] or [2B], optional
            Classes, for a contrast of two views that was built without them.
        """
        y, others = self.labels, self.candidate_labels
        if labels is not None:
            n = len(self.similarity)
            y = others = labels.repeat(n // len(labels))
            shapes(len(y) == n, f"labels must have shape ({n // 2},) or ({n},)", labels)
        if y is None or others is None:
            raise ValueError("this contrast has no labels; pass labels=…")
        return _same(y, others)


def unit_rows(z: Tensor, *parts: str) -> tuple[Tensor, Tensor]:
    """Normalise the rows of `z` and return them with their norms, in float32 or better.

    Raises
    ------
    ValueError
        If a row is zero or not finite. The message names the row and which of the `parts` of `z`
        ("of view 1" and "of view 2" by default) it is in. On an accelerator such a row makes the
        loss NaN, and the error comes when a training loop asks for it.
    """
    parts = parts or ("of view 1", "of view 2")
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    norm = torch.linalg.vector_norm(z, dim=1)
    for part, rows in zip(parts, norm.detach().chunk(len(parts))):
        message = (
            f"row {{row}} {part} has norm {{value:g}} and so no direction; "
            "check the encoder's output (a diverged run, or a dead projection)"
        )
        raise_if(~((rows > 0) & (rows < torch.inf)), message, rows)
    return z / norm[:, None], norm


def check_views(z1: Tensor, z2: Tensor) -> None:
    """Raise ValueError unless they are two views of at least two images."""
    fits = z1.ndim == 2 and z1.shape == z2.shape
    shapes(fits, "both views must have one shape [batch, dimension]", z1, z2)
    at_least_two(len(z1), "images")


def check_pairs(queries: Tensor, keys: Tensor) -> None:
    """Raise ValueError unless they are queries [n, d] and keys [m, d], m ≥ n and m ≥ 2."""
    fits = queries.ndim == keys.ndim == 2 and queries.shape[1] == keys.shape[1]
    shapes(fits, "queries must be [n, d] and keys [m, d]", queries, keys)
    n, m = len(queries), len(keys)
    if not 1 <= n <= m or m < 2:
        rule = f"need at least as many keys as queries, and 2, got {n} and {m}"
        raise ValueError(rule + "; drop_last=True leaves out a last batch of one" * (m == 1))


def check_reversible(n: int, m: int, *further: object) -> None:
    """Raise ValueError unless n = m and nothing further, labels or features, is given."""
    if n != m or any(part is not None for part in further):
        raise ValueError(
            "only pairs without further keys, labels or features can be reversed, "
            f"got {n} queries and {m} keys"
        )


def at_least_two(count: int, kind: str) -> None:
    """Raise ValueError unless a batch has at least two examples."""
    if count < 2:
        rule = f"a batch must have at least 2 {kind}, got {count}"
        raise ValueError(rule + "; drop_last=True leaves out a last batch of one" * (count == 1))


def in_one_precision(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in float64 if one of them is, else in float32."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return a.to(dtype), b.to(dtype)


def inner_products(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products of the rows of two matrices, outside autocast."""
    with outside_autocast(a.device):
        return a @ b.T


def _same(labels: Tensor, others: Tensor) -> Tensor:
    """Return which labels are equal, of shape [n, m].

    On a CPU it is several times cheaper to compare each class once and copy its row, if there are
    few classes.
    """
    if on_cpu(labels):
        classes, which = labels.unique(return_inverse=True)
        if 4 * len(classes) < len(labels):
            return (classes[:, None] == others).index_select(0, which)
    return labels[:, None] == others
