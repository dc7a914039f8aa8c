"""Comparisons of arms that share one variance, as *How we compare* explains."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect, between

if TYPE_CHECKING:
    import pandas as pd

READOUTS = ("knn", "linear")


def one_variance(experiment, pairs: dict[str, tuple[str, str]], pool, block: str = "") -> Question:
    """Return comparisons of arms by label that share the variance of a pool of arms."""
    pooled = tuple(experiment.group(name, block) for name in pool)
    groups = {k: tuple(experiment.group(one, block) for one in pair) for k, pair in pairs.items()}
    return Question(groups, pooled)


@dataclass(frozen=True, eq=False)
class Question:
    r"""Named comparisons of two groups of runs each; those of one readout are one family.

    Parameters
    ----------
    pairs : dict of str to pairs of DataFrames
        The groups to compare, ours first. A pair with an empty group is left out.
    pool : tuple of DataFrames
        Groups with the same seeds and one variance of accuracy, in which a seed shifts all groups
        equally. Every difference has the residual variance of the table [groups, seeds],
        $\mathrm{between}^2=2\hat\sigma^2/n$.
    """

    pairs: dict[str, tuple[pd.DataFrame, pd.DataFrame]]
    pool: tuple[pd.DataFrame, ...]

    @functools.cache  # noqa: B019, a page asks a handful
    def effects(self, metric: str = "linear", corrected: bool = True) -> dict[str, Effect]:
        """Return the family of a readout, by the names of the pairs."""
        first, *others = self.pool
        each = [between(group, first, metric, mixed=True) for group in others]
        pooled = comparisons.family(each, pooled=True)[0]
        pairs = {name: pair for name, pair in self.pairs.items() if all(map(len, pair))}
        shared = dict(between=pooled.between, df=pooled.df)
        effects = {name: replace(between(*pair, metric), **shared) for name, pair in pairs.items()}
        family = comparisons.family(list(effects.values())) if corrected else effects.values()
        return dict(zip(effects, family, strict=True))
