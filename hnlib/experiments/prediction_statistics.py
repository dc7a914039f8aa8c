"""What a prediction may be about besides the difference of two arms: a closed list.

A function takes an experiment, the line of `[[predictions]]`, a metric and a block, and returns by
label what was found: an `Effect` with an interval, or a `Level` without one.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect

Found = dict[str, Any]
SYMBOLS = {"gamma": "γ", "temperature": "t"}


@dataclass(frozen=True)
class Level:
    """A number with bounds that are not in points, and its printed form."""

    text: str
    low: float
    high: float


def format_share(share) -> str:
    """Format a share and its interval in percent: 97 % [93, 99]."""
    return "{:.0f}\u00a0% [{:.0f}, {:.0f}]".format(*(100 * x for x in share))


def over_seeds(values, seeds: tuple[int, ...] = ()) -> Effect:
    """Return the mean of one value for each seed, in points, with Student's interval."""
    values = np.asarray(values, float)
    n = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return Effect(
        float(values.mean()), error, n - 1, "these images", seeds=seeds, values=tuple(values)
    )


def mean(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the mean gain of the first over pairs of `arms`; a list stands for its arms' mean."""

    def points(arms) -> np.ndarray:
        several = [arms] if isinstance(arms, str) else arms
        return np.mean([[*experiment.values(x, metric, block).values()] for x in several], 0)

    gains = [100 * (points(ours) - points(base)) for ours, base in line["arms"]]
    return {"": over_seeds(np.mean(gains, 0), experiment.seeds)}


def widest(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the largest of all differences between `arms`, which are one family."""
    pairs = itertools.combinations(line["arms"], 2)
    alone = [experiment.effect(*pair, metric, block) for pair in pairs]
    return {"": max(comparisons.family(alone), key=lambda effect: abs(effect.difference))}


def share(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the share of the variance between `arms` that a smooth curve in γ explains."""
    found = experiment.map(block, line["arms"]).share(metric)
    return {"": Level(format_share(found), found[0], found[0])}


def chosen(experiment, line: dict, metric: str, block: str) -> Found:
    """Return a field, an option or "gamma" of the best of `arms` by another metric, `by`."""
    if metric != line["metric"]:  # a choice has no second read-out
        return {}
    best = experiment.best(line["arms"], line["by"], block)
    value = experiment.value_of(best, line["of"], block)
    title = SYMBOLS.get(line["of"], line["of"])
    return {"": Level(f"{title} = {round(value, 2):g}", value, value)}


def level(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the mean of a metric, or of a column of the last epoch, for each of `arms`."""
    if metric != line["metric"]:
        return {}
    means = {name: experiment.mean(name, metric, block) for name in line["arms"]}
    return {name: Level(f"{mean:.3f}", mean, mean) for name, mean in means.items()}


STATISTICS = {one.__name__: one for one in (mean, widest, share, chosen, level)}
