"""A question of a page: comparisons asked together, on these test images and on new ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hnlib.book.tables import TITLES, Table, interval, table
from hnlib.results import comparisons
from hnlib.results.comparisons import Effect, between

if TYPE_CHECKING:
    import pandas as pd

READOUTS = ("knn", "linear")
NEEDED = ("record", "seed", "dataset", "dataset_digest", "test_images", "correct")
TARGETS = ("these images", "new images")


def word(effect: Effect, margin: float | None = None) -> str:
    """`comparisons.verdict`, and where a family's interval has zero in it all the same, on what the
    word stands: Holm's p finds more than intervals that hold together."""
    said = comparisons.verdict(effect, margin)
    alone = said == "different" and effect.low <= 0 <= effect.high
    return f"{said}, by p alone" if alone else said


@dataclass(frozen=True, eq=False)
class Question:
    r"""Comparisons `pairs`, in words, of two groups of runs each; those of one readout are one
    family.

    `pool`: the groups, with the same seeds, that are taken to have one variance of accuracy, a seed
    to shift all of them alike; then every difference has the residual variance of the table
    [groups, seeds], $\mathrm{between}^2=2\hat\sigma^2/n$ (`comparisons.family`). Without it each
    has its own. `margin`: differences, in points, that would not matter. A pair with an empty
    group is not measured. ValueError: groups of the pool with different seeds, as in `between`.
    """

    pairs: dict[str, tuple[pd.DataFrame, pd.DataFrame]]
    pool: tuple[pd.DataFrame, ...] = ()
    margin: float | None = None

    @functools.cache  # noqa: B019, a page asks a handful
    def effects(
        self, metric: str = "linear", target: str = "these images", pooled: bool = True
    ) -> dict[str, Effect]:
        """The family of a readout, by the words of its pairs."""
        measured = {words: pair for words, pair in self.pairs.items() if all(map(len, pair))}
        sides = [[_narrow(group, metric) for group in pair] for pair in measured.values()]
        found = [between(ours, base, metric, target) for ours, base in sides]
        if pooled and self.pool:
            found = [replace(effect, **self.common(metric)) for effect in found]
        return dict(zip(measured, comparisons.family(found), strict=True))

    @functools.cache  # noqa: B019
    def common(self, metric: str) -> dict:
        """`between` and `df` of every difference, from the pool."""
        if len(seeds := {tuple(sorted(group["seed"])) for group in self.pool}) > 1:
            raise ValueError(f"groups that are pooled need the same seeds; found {sorted(seeds)}")
        first, *others = (100 * group.set_index("seed")[metric] for group in self.pool)
        values = [(group - first).sort_index() for group in others]
        alike = [
            Effect(
                d.mean(), d.std() / len(d) ** 0.5, len(d) - 1, "", seeds=(*d.index,), values=(*d,)
            )
            for d in values
        ]
        known = comparisons.family(alike, pooled=True)[0]
        return {"between": known.between, "df": known.df}

    def verdicts(self, target: str = "these images") -> dict[tuple[str, str], str]:
        """`comparisons.verdict` of each pair and readout."""
        return {
            (words, metric): comparisons.verdict(effect, self.margin)
            for metric in READOUTS
            for words, effect in self.effects(metric, target).items()
        }

    def found(self, word: str = "different", target: str = "these images") -> set[tuple[str, str]]:
        """The pairs and readouts with this verdict."""
        return {key for key, verdict in self.verdicts(target).items() if verdict == word}

    def show(self) -> Table:
        """A line for each pair and readout, and what the lines mean as a caption."""
        rows = []
        for words in self.effects():
            for metric in READOUTS:
                effect = self.effects(metric)[words]
                row = {
                    "comparison": words if metric == READOUTS[0] else "",
                    "": TITLES.get(metric, metric),
                }
                row |= {"difference": interval(effect), "p": _p(effect.p)}
                for target in TARGETS:
                    row[target] = word(self.effects(metric, target)[words], self.margin)
                rows.append(row)
        return table(rows, words=True, caption=self.note() if rows else "")

    def note(self) -> str:
        """What the intervals of `show` hold for, and what they could have found."""
        one = next(iter(self.effects().values()))
        seeds, count = ", ".join(map(str, one.seeds)), len(self.effects())
        text = f"Points, paired by seed ({seeds}). 95\u00a0% intervals and Holm's p hold for the "
        text += f"{count} comparisons of a readout together; p finds more, and alone where the "
        text += "interval has zero in it. "
        if self.pool:
            text += f"One variance for {len(self.pool)} settings; with the own of each "
            text += f"{self._alone()} of {2 * count} lines would be different. "
        sizes = [self._sizes(metric) for metric in READOUTS]
        text += f"Differences of {sizes[0][0]} points (kNN) and {sizes[1][0]} (linear) would be "
        text += "found with 80\u00a0%. "
        if self.margin:
            text += f"Equivalent: within ±{self.margin:g}; equal methods would be called so with "
            text += f"80\u00a0% only for ±{sizes[0][1]} and ±{sizes[1][1]}. "
        bound = any(e.bound for e in self.effects("linear", "new images").values())
        bits = "a bound, as some runs kept no bits" if bound else "from the recorded bits"
        text += "These images: all seeds on the same test images; new images: on all others too, "
        return text + f"{bits}."

    def _alone(self) -> int:
        families = [self.effects(metric, pooled=False).values() for metric in READOUTS]
        return sum(effect.p <= 0.05 for family in families for effect in family)

    def _sizes(self, metric: str) -> tuple[str, str]:
        """What `detectable` and `decidable` say, from the least error to the largest."""
        order = sorted(self.effects(metric).values(), key=lambda effect: effect.error)
        ends = order[:1] if order[0].error == order[-1].error else (order[0], order[-1])
        rules = (comparisons.detectable, comparisons.decidable)
        first, second = (" to ".join(f"{rule(effect):.1f}" for effect in ends) for rule in rules)
        return first, second


def _narrow(group: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The columns that a comparison reads: a frame of records has many, and each costs time."""
    return group.filter(items=[*NEEDED, metric])


def _p(p: float) -> str:
    return "<\u00a00.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
