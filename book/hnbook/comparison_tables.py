"""The comparisons behind one question of a page, on these test images and on new ones."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hnbook.tables import TITLES, Markup, Table, interval, table, term
from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect, between

if TYPE_CHECKING:
    import pandas as pd

READOUTS = ("knn", "linear")
TARGETS = ("these images", "new images")
MARGIN = 1.0  # point: differences within it would not matter to a reader

CAPTION = (  # words in brackets are terms of the glossary
    "Points, 95 % intervals, [paired by seed] (seeds {seeds}). The {count} comparisons of a "
    "readout are [corrected together], with [one variance] over {settings} settings; [equivalent] "
    "within ±{margin:g}."
)


def word(effect: Effect, margin: float = 0.0) -> str:
    """Return the verdict; equivalent effects may be different from zero, too.

    "By p alone": Holm's p excludes zero and the family's interval does not.
    """
    verdict = comparisons.verdict(effect, margin)
    if verdict == "equivalent" and effect.p <= 0.05:
        return "different, within the margin"
    if verdict in ("equivalent", "unresolved"):
        return verdict
    return "different, by p alone" if effect.low <= 0 <= effect.high else "different"


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

    def effects(
        self,
        metric: str = "linear",
        target: str = "these images",
        pooled: bool = True,
        corrected: bool = True,
    ) -> dict[str, Effect]:
        """Return the family of a readout, by the names of the pairs."""
        effects = self._alone(metric, target)
        if pooled:
            shared = self.shared_variance(metric)
            effects = {name: replace(effect, **shared) for name, effect in effects.items()}
        if not corrected:
            return effects
        return dict(zip(effects, comparisons.family(list(effects.values())), strict=True))

    @functools.cache  # noqa: B019, a page asks a handful
    def _alone(self, metric: str, target: str) -> dict[str, Effect]:
        """Return the differences of a readout, each with the variance of its own runs."""
        pairs = {name: pair for name, pair in self.pairs.items() if all(map(len, pair))}
        return {name: between(*pair, metric, target) for name, pair in pairs.items()}

    @functools.cache  # noqa: B019
    def shared_variance(self, metric: str) -> dict:
        """Return `between` and `df` of every difference, from the pool."""
        first, *others = self.pool
        effects = [between(group, first, metric, mixed=True) for group in others]
        pooled = comparisons.family(effects, pooled=True)[0]
        return {"between": pooled.between, "df": pooled.df}

    def show(self) -> Table:
        """Return a line for each pair and readout, with a caption that links to the glossary.

        New images have a column where their verdicts differ from line to line.
        """
        words = {
            (target, metric, name): word(effect, MARGIN)
            for target in TARGETS
            for metric in READOUTS
            for name, effect in self.effects(metric, target).items()
        }
        new = {verdict for (target, *_), verdict in words.items() if target == TARGETS[1]}
        rows = []
        for name in self.effects():
            for metric in READOUTS:
                effect = self.effects(metric)[name]
                row = {"comparison": name if metric == READOUTS[0] else ""}
                row |= {"": TITLES.get(metric, metric), "difference": interval(effect)}
                row["p"] = _p(effect.p)
                for target in TARGETS if len(new) > 1 else TARGETS[:1]:
                    row[term(target)] = words[target, metric, name]
                rows.append(row)
        return table(rows, words=True, caption=self.note() if rows else "")

    def note(self) -> Markup:
        """Say how the intervals of `show` are made."""
        effects = self.effects()
        caption = CAPTION.format(
            seeds=", ".join(map(str, next(iter(effects.values())).seeds)),
            count=len(effects),
            settings=len(self.pool),
            margin=MARGIN,
        )
        return Markup(re.sub(r"\[(.*?)\]", lambda match: term(match[1]), caption))


def searches(asked: dict, blocks=("",), others=()) -> Table:
    """Show named pairs of arms of experiments: the lines of a block are one family.

    Further columns have the line's own interval for new queries, and the differences of `others`.
    """
    rows, several = [], False
    for block in blocks:
        pairs = {
            words: (experiment, *pair)
            for experiment, lines in asked.items()
            for words, pair in lines.items()
            if block in experiment.blocks_with(pair)
        }
        several = several or len(pairs) > 1
        families = [
            comparisons.family(x.effect(*pair, metric, block) for x, *pair in pairs.values())
            for metric in (None, *others)
        ]
        begin = len(rows)
        for (words, (x, ours, base)), effect, *more in zip(pairs.items(), *families):
            new = x.effect(ours, base, block=block, target="new images")
            row = {"": words}
            row |= {"difference": interval(effect), "new queries": interval(new)}
            row |= {"verdict": word(effect, MARGIN)} | dict(zip(others, map(interval, more)))
            rows.append(row)
        if block:  # on a line of its own: a column of it would push the intervals off a phone
            rows.insert(begin, dict.fromkeys(row, "") | {"": Markup(f"<b>{block}</b>")})
    caption = f"Points, {term('paired by seed')} ({len(effect.values)} seeds)"
    if several:
        caption += f", the lines{' of a bag' * (blocks != ('',))} {term('corrected together')}"
    return table(rows, words=True, caption=Markup(f"{caption}."))


def _p(p: float) -> str:
    return "<\u00a00.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
