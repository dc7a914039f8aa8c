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
from scipy import stats

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect

Found = dict[str, Any]


def format_share(share) -> str:
    """Format a share and its interval in percent: 97 % [93, 99]."""
    return "{:.0f}\u00a0% [{:.0f}, {:.0f}]".format(*(100 * x for x in share))


@dataclass(frozen=True)
class Level:
    """The printed form of a number whose interval is not in points, and the ends that decide."""

    text: str
    low: float
    high: float


def over_seeds(values, seeds: tuple[int, ...] = ()) -> Effect:
    """Return the mean of one value for each seed, in points, with Student's interval."""
    values = np.asarray(values, float)
    n = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return Effect(
        float(values.mean()), error, n - 1, "these images", seeds=seeds, values=tuple(values)
    )


def interaction(experiment, line: dict, metric: str, block: str) -> Found:
    """Return what the first pair of `arms` gains, minus what the second gains."""
    return {"": experiment.effect(*line["arms"], metric, block)}


def mean(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the mean gain of the first over pairs of `arms`; a list stands for its arms' mean."""
    gains = []
    for ours, base in line["arms"]:
        several = [ours] if isinstance(ours, str) else ours
        points = np.mean([_points(experiment, one, metric, block) for one in several], 0)
        gains.append(points - _points(experiment, base, metric, block))
    return {"": over_seeds(np.mean(gains, 0), experiment.seeds)}


def widest(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the largest of all differences between `arms`, which are one family."""
    pairs = itertools.combinations(line["arms"], 2)
    alone = [experiment.effect(*pair, metric, block) for pair in pairs]
    return {"": max(comparisons.family(alone), key=lambda effect: abs(effect.difference))}


def slope(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the least-squares slope of a seed's runs of `arms` over the numbers `over`.

    Named lists of arms have one slope each.
    """
    found, lists = {}, line["arms"]
    for name, arms in (lists if isinstance(lists, dict) else {"": lists}).items():
        points = [_points(experiment, one, metric, block) for one in arms]
        found[name] = over_seeds(np.polyfit(line["over"], points, 1)[0], experiment.seeds)
    return found


def share(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the share of the variance between `arms` that γ, or a field, explains.

    For "gamma" it is the share that a smooth curve explains, without the noise of seeds
    (`sharpness_map.Map.share`); for a field or an option, the variance between the means of its
    values. With "parabola" the curve is a parabola in the logarithm, and the share of a parabola in
    the field named there is printed, too.
    """
    names = experiment.matching(line["arms"], block)
    if "parabola" in line:
        if metric != line["metric"]:
            return {}
        points = np.array([_points(experiment, name, metric, block) for name in names])
        found, beside = (
            _by_parabola(points, [experiment.value_of(name, of, block) for name in names])
            for of in (line["of"], line["parabola"])
        )
        title = SYMBOLS.get(line["parabola"], line["parabola"])
        text = f"{found:.0%}; a parabola in log {title}: {beside:.0%}"
        return {"": Level(text, found, found)}
    if line["of"] == "gamma":
        found = experiment.map(block, line["arms"]).share(metric)
        return {"": Level(format_share(found), found[0], found[0])}
    means = np.array([_points(experiment, name, metric, block).mean() for name in names])
    values = np.array([experiment.value_of(name, line["of"], block) for name in names])
    between = [means[values == value].mean() for value in np.unique(values)]
    found = float(np.var(between) / np.var(means))
    return {"": Level(f"{found:.0%}", found, found)}


def chosen(experiment, line: dict, metric: str, block: str) -> Found:
    """Return a field, an option or "gamma" of the best of `arms` by another metric, `by`."""
    if metric != line["metric"]:  # a choice has no second read-out
        return {}
    best = experiment.best(line["arms"], line["by"], block)
    value = experiment.value_of(best, line["of"], block)
    title = SYMBOLS.get(line["of"], line["of"])
    return {"": Level(f"{title} = {round(value, 2):g}", value, value)}


def rank(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the rank correlation over `arms` of the means of two metrics."""
    if metric != line["metric"]:
        return {}
    names = experiment.matching(line["arms"], block)
    metrics = (metric, line["with"])
    means = [[_points(experiment, name, m, block).mean() for name in names] for m in metrics]
    found = float(stats.spearmanr(*means)[0])
    return {"": Level(f"{found:.2f}", found, found)}


def level(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the mean of a metric, or of a column of the last epoch, for each of `arms`."""
    if metric != line["metric"]:
        return {}
    means = {name: experiment.mean(name, metric, block) for name in line["arms"]}
    return {name: Level(f"{mean:.3f}", mean, mean) for name, mean in means.items()}


SYMBOLS = {"gamma": "γ", "temperature": "t", "epsilon": "ε"}


def above_curve(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the distance of `arms` from the curve over γ of another map, seed by seed."""
    here, found = experiment.map(block, line["map"]), {}
    curves = [here.smooth(points) for points in here.accuracy(metric).T]
    for name in line["arms"]:
        gamma = experiment.value_of(name, "gamma", block)
        points = _points(experiment, name, metric, block)
        above = [y - curve(gamma)[0] for y, curve in zip(points, curves, strict=True)]
        title = SYMBOLS.get(line["of"], line["of"])
        found[f"{title} = {experiment.value_of(name, line['of'], block):g}"] = over_seeds(above)
    return found


def vertex(experiment, line: dict, metric: str, block: str) -> Found:
    """Return the best γ over that of a block, `base`, by parabolas over log γ `until` a γ."""
    tops = [
        experiment.map(one, line["arms"]).vertex(metric, line["until"])
        for one in (block, line["base"])
    ]
    ratio = over_seeds(tops[0] - tops[1])
    middle, low, high = np.exp([ratio.difference, ratio.low, ratio.high])
    text = f"× {middle:.2f} [{low:.2f}, {high:.2f}]"
    beyond = bool(np.max(tops) > math.log(line["until"]))
    return {"": Level(text + f", beyond γ = {line['until']}" * beyond, low, high)}


#: Of a line: `arms` (names, pairs or a pattern), `of`, and what else a function names.
STATISTICS = {
    one.__name__: one
    for one in (interaction, mean, widest, slope, share, chosen, rank, level, above_curve, vertex)
}


def _points(experiment, name: str, metric: str, block: str) -> np.ndarray:
    """Return a metric of an arm in points, in the order of the seeds."""
    return 100 * np.array([*experiment.values(name, metric, block).values()])


def _by_parabola(points: np.ndarray, axis) -> float:
    """Return the share of the variance between arms, without noise, that a parabola explains."""
    mean, (arms, seeds) = points.mean(1), points.shape
    left = points - mean[:, None] - points.mean(0) + points.mean()
    noise = (left**2).sum() / ((arms - 1) * (seeds - 1)) / seeds
    x = np.log(axis)
    rest = mean - np.polyval(np.polyfit(x, mean, 2), x)
    share = (rest @ rest / (arms - 3) - noise) / (mean.var(ddof=1) - noise)
    return float(1 - max(share, 0.0))
