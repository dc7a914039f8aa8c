"""Comparisons of arms that share one variance, as *How we compare* explains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from hnlib.experiments import compared, comparisons
from hnlib.experiments.comparisons import Effect, between

READOUTS = ("knn", "linear")


class OneVariance:
    r"""Named comparisons of two arms each, ours first; those of one readout are one family.

    The arms of a pool, by default all of a block, have the same seeds and one variance of accuracy,
    and a seed shifts all of them equally. Every difference has the residual variance of the table
    [arms, seeds], $\mathrm{between}^2=2\hat\sigma^2/n$. A pair of which an arm has no runs is left
    out.
    """

    def __init__(
        self,
        found,
        pairs: dict[str, tuple[str, str]],
        pool: Iterable[str] | None = None,
        block: str = "",
    ):
        self.found, self.block, known = found, block, found.design.names(block)
        self.pool = [arm for arm in (pool or known) if arm in known]
        self.pairs = {name: pair for name, pair in pairs.items() if {*pair} <= {*known}}

    def effects(self, metric: str = "linear", corrected: bool = True) -> dict[str, Effect]:
        """Return the effects by a readout, by the names of the pairs."""
        made = self._together(metric) if corrected else self._alone(metric)
        if corrected:
            again = partial(self._again, metric=metric)
            compared.note(self.found.design, self._by_arguments(made, metric), again)
        return made

    def _alone(self, metric: str) -> dict[str, Effect]:
        groups = {name: [*map(self._group, pair)] for name, pair in self.pairs.items()}
        groups = {name: pair for name, pair in groups.items() if all(map(len, pair))}
        if not groups:
            return {}
        arms = {arm for pair in self.pairs.values() for arm in pair}
        mixed = compared.mixes(self.found, arms, self.block)
        first, *others = map(self._group, self.pool)
        each = [between(group, first, metric, mixed=True) for group in others]
        pooled = comparisons.family(each, pooled=True)[0]
        shared = dict(between=pooled.between, df=pooled.df)
        return {
            name: replace(between(ours, base, metric, mixed=mixed), **shared)
            for name, (ours, base) in groups.items()
        }

    def _together(self, metric: str) -> dict[str, Effect]:
        alone = self._alone(metric)
        return dict(zip(alone, comparisons.family(alone.values())))

    def _group(self, arm: str):
        return self.found.group(arm, self.block)

    def _by_arguments(self, made: dict[str, Effect], metric: str) -> compared.Made:
        where = metric, self.block, "these images"
        return {(*self.pairs[name], *where): one for name, one in made.items()}

    def _again(self, found, metric: str) -> compared.Made:
        """Return the same comparisons of what was found for another design."""
        pool = None if self.pool == self.found.design.names(self.block) else self.pool
        other = OneVariance(found, self.pairs, pool, self.block)
        return other._by_arguments(other._together(metric), metric)
