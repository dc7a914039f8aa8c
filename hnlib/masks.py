"""Which candidates are positives or negatives: masks that all batches of one size share."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from hnlib._checks import on_cpu, traced


class kept_property(cached_property):
    """A property that is kept, but not what a compiler or torch.func makes of it.

    `functools` takes a lock in Python 3.11, which a compiler cannot read.
    """

    def __get__(self, instance, owner=None) -> Any:
        """Compute the value, which once kept is found without this."""
        if instance is None:
            return self
        value = self.func(instance)
        if not traced():
            vars(instance)[self.attrname] = value
        return value


@dataclass(frozen=True, eq=False)
class Masks:
    """The roles of the candidates; shared by all batches of one size, so do not write to them.

    Parameters
    ----------
    positives, admissible : bool Tensor of shape [n, m]
        Whether candidate j is a positive of anchor i, and whether it may be its negative.
    dtype : torch.dtype
        Type of the similarities.
    positive_index : int64 Tensor of shape [n], optional
        The column of the positive, where every anchor has exactly one.
    never_empty : bool, default False
        Whether every anchor is certain to have a negative.
    """

    positives: Tensor
    admissible: Tensor
    dtype: torch.dtype
    positive_index: Tensor | None = None
    never_empty: bool = False

    @kept_property
    def negative_counts(self) -> Tensor:
        """Number of admissible negatives, of shape [n]."""
        return as_numbers(self.admissible, torch.float32).sum(1).long()

    @kept_property
    def uniform_log_weights(self) -> Tensor:
        """Minus the log of the number of negatives where admissible, −inf elsewhere."""
        # log 1 stays slightly positive: 0 * inf is NaN
        log_count = (
            self.negative_counts.to(self.dtype).log().clamp_min(torch.finfo(self.dtype).tiny)
        )
        return as_numbers(self.admissible, self.dtype).reciprocal_().mul_(-log_count[:, None])

    @kept_property
    def columns(self) -> tuple[Tensor, Tensor | None]:
        """Columns [n, k] of each anchor's positives, and a mask of those that are not padding."""
        n, m = self.positives.shape
        if self.positive_index is not None:
            return self.positive_index[:, None], None
        # an accelerator would wait for the largest count, and numpy reads nothing that is traced
        if traced() or not on_cpu(self.positives):
            columns = torch.arange(m, device=self.positives.device).expand(n, m)
            return columns, self.positives
        cells = np.flatnonzero(self.positives.numpy())  # several times as fast as torch
        counts = np.diff(cells.searchsorted(m * np.arange(n + 1)))
        counted = np.arange(counts.max()) < counts[:, None]
        columns = np.zeros(counted.shape, dtype=np.int64)
        columns[counted] = cells % m
        return torch.from_numpy(columns), torch.from_numpy(counted)

    def at_positives(self, matrix: Tensor) -> Tensor:
        """Return the values of a matrix [n, m] at the positives, of shape [n, k]."""
        return matrix.gather(1, self.columns[0])

    def total(self, values: Tensor) -> Tensor:
        """Return the sums of values [n, k] over the positives of each anchor, of shape [n]."""
        counted = self.columns[1]
        if counted is not None:
            values = values * as_numbers(counted, values.dtype)
        return values.sum(1)


# Nothing here keeps them: large masks would stay for the life of the process
_alive: WeakValueDictionary[tuple, Masks] = WeakValueDictionary()


def shared_masks(n: int, m: int, shift: int, device: torch.device, dtype: torch.dtype) -> Masks:
    """Return the masks of `own_masks` that a contrast or a method holds, else new ones."""
    if traced():
        return own_masks(torch.arange(n, device=device), m, shift, dtype)
    key = n, m, shift, device, dtype
    masks = _alive.get(key)
    if masks is None:
        with torch.inference_mode(False):  # else those first made there could not serve training
            masks = own_masks(torch.arange(n, device=device), m, shift, dtype)
            _alive[key] = masks
            _ = masks.uniform_log_weights, masks.columns  # now, not when first used
    return masks


def alive() -> list[Masks]:
    """Return the masks that somebody holds now, for who needs them to stay."""
    return list(_alive.values())


def own_masks(rows: Tensor, m: int, shift: int, dtype: torch.dtype) -> Masks:
    """Make the masks in which the positive of anchor i of `rows` is column i + `shift` (mod m).

    With a shift, that of two views, column i is the anchor itself and not a negative.
    """
    columns, index = torch.arange(m, device=rows.device), (rows + shift) % m
    positives = index[:, None] == columns  # [rows, m]
    admissible = ~positives & (rows[:, None] != columns)  # without a shift the same cells
    return Masks(positives, admissible, dtype, index, never_empty=True)


class RecentMasks:
    """Keep the masks of the last two sizes of a batch, for the next batches of a method.

    Two, for the last batch of an epoch may be smaller. Copies and pickles start without any.
    """

    def __init__(self):
        self._masks: deque[Masks] = deque(maxlen=2)

    def keep(self, masks: Masks | None) -> None:
        """Keep masks, and forget those of the size before the last."""
        if masks is not None and not traced() and masks not in self._masks:
            self._masks.append(masks)

    def __reduce__(self):
        return RecentMasks, ()


def as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 and 1 for a mask: on a CPU torch converts bytes much faster than booleans."""
    return mask.view(torch.uint8).to(dtype)
