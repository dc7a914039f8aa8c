"""Comparisons of arms that share one variance, as *How we compare* explains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect, between

READOUTS = ("knn", "linear")


class OneVariance:
    r"""Named comparisons of two arms each, ours first; those of one readout are one family.

    The arms of a pool have the same seeds and one variance of accuracy, and a seed shifts all of
    them equally. Every difference has the residual variance of the table [arms, seeds],
    $\mathrm{between}^2=2\hat\sigma^2/n$. A pair of which an arm has no runs is left out.
    """

    def __init__(self, found, pairs: dict[str, tuple[str, str]], pool, block: str = ""):
        group = partial(found.group, block=block)
        self.pool = [group(arm) for arm in pool]
        self.pairs = {name: (group(a), group(b)) for name, (a, b) in pairs.items()}

    def effects(self, metric: str = "linear", corrected: bool = True) -> dict[str, Effect]:
        """Return the effects by a readout, by the names of the pairs."""
        if not self.pairs:
            return {}
        first, *others = self.pool
        each = [between(group, first, metric, mixed=True) for group in others]
        pooled = comparisons.family(each, pooled=True)[0]
        pairs = {name: pair for name, pair in self.pairs.items() if all(map(len, pair))}
        shared = dict(between=pooled.between, df=pooled.df)
        effects = {name: replace(between(*pair, metric), **shared) for name, pair in pairs.items()}
        family = comparisons.family(list(effects.values())) if corrected else effects.values()
        return dict(zip(effects, family, strict=True))
