"""Repeat the choice of settings, from arrays of scores or from records."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.experiment import Experiment

MOST = 2000  # ways to halve the seeds: all of up to thirteen


def cross_fit(ours, base, splits: int = 400, best: int = 1, choosers: int | None = None) -> Effect:
    r"""Compare what is chosen in two families of settings, the choice included.

    On each side half of the examples and half of the selection seeds choose the setting with the
    best mean; the other examples, on all other seeds, judge it. Then the halves of examples swap
    roles. The effect is the mean over random halves of examples and all ways to halve the seeds, or
    `MOST` random ways where there are more.

    Parameters
    ----------
    ours, base : array of shape [settings, seeds, examples]
        Scores as shares: bits of images, or nDCG of queries. Both have the same seeds and examples.
        NaN where a setting has no run: a seed that lacks a setting decides and does not choose. A
        training that diverged scores 0.
    splits : int, default 400
        Random halves of the examples; the same in every call.
    best : int, default 1
        How many of the best settings are chosen on each side and averaged. One setting that leads
        by luck decides less, so the choice varies less.
    choosers : int, optional
        Seeds after so many decide and do not choose, even if they have all settings.

    Returns
    -------
    Effect
        In points, for these examples; without an interval if fewer than three seeds can choose. A
        single seed judges its own choice, by the other examples.

    Raises
    ------
    ValueError
        If the shapes differ, or no seed has all settings.

    Notes
    -----
    Let $\delta(c)$ be the true difference of what a selection $c$ chooses. An estimate of it from
    $n$ other seeds has the variance $\mathrm{Var}\,\delta(c)+\mathbb E\,\sigma^2(c)/n$, of which an
    interval around one choice contains the second part alone. In the mean $T$ each seed chooses in
    some splits and decides in others, so the estimates $T_{-s}$ without one seed show both parts:
    $\frac{n-1}n\sum_s(T_{-s}-\bar T)^2$ is on average not less than the variance of $T$ (C8). Seeds
    that only decide are left out in the same way; the two variances add, and the smaller number of
    degrees of freedom counts. With one setting on each side this is the paired interval.

    Examples
    --------
    >>> ours = [[[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]]]  # one setting, three seeds
    >>> base = [[[0, 1, 0, 1], [1, 0, 0, 1], [0, 1, 0, 1]]]
    >>> print(cross_fit(ours, base))
    +25.00 [−37.10, +87.10], p = 0.23; these images, df 2
    """
    sides = [np.asarray(side, float) for side in (ours, base)]
    shapes = [side.shape for side in sides]
    if any(len(shape) != 3 for shape in shapes) or shapes[0][1:] != shapes[1][1:]:
        raise ValueError(
            f"need [settings, seeds, examples], seeds and examples alike, got {shapes}"
        )
    seeds, count = range(shapes[0][1]), shapes[0][2]
    complete = [s for s in seeds if not any(np.isnan(side[:, s]).any() for side in sides)]
    choosing = [s for s in complete if choosers is None or s < choosers]
    deciding = [s for s in seeds if s not in choosing]
    if not choosing:
        raise ValueError(f"need a seed that has all settings, got {len(seeds)} that have some")
    rng = np.random.default_rng(0)
    half = np.stack([rng.permutation(count) < count // 2 for _ in range(splits)], 1)
    halves = 1.0 * np.hstack([half, ~half])
    # [settings, seeds, halves]
    choose = [np.tensordot(side, halves, 1) / halves.sum(0) for side in sides]
    judge = [np.roll(means, splits, axis=2) for means in choose]  # on the other half
    size = max(len(choosing) // 2, 1)
    few = math.comb(len(choosing), size) <= MOST
    orders = [] if few else [rng.permutation(choosing) for _ in range(MOST)]

    def parts(own: list[int]) -> Iterable:
        if few:
            return itertools.combinations(own, size)
        return ([s for s in order if s in own][:size] for order in orders)

    def mean(left_out: int | None = None) -> float:
        own, found = [s for s in choosing if s != left_out], []
        for part in parts(own):
            others = [[s] for s in seeds if s not in (*part, left_out)] or [[s] for s in part]
            ranks = [(-means[:, part].mean(1)).argsort(0, kind="stable") for means in choose]
            # [best, others, halves]: of each setting that is chosen on one half, by the other
            picked = [x[k[:best, None], others, range(2 * splits)] for k, x in zip(ranks, judge)]
            ours, base = (_mean(scores) for scores in picked)
            found.append(np.nanmean(_mean(ours - base)))
        return 100 * float(np.mean(found))

    if len(choosing) < 3:  # without one seed nobody would choose, or nobody judge
        return Effect(mean(), math.inf, 0, "these images", seeds=tuple(seeds))
    groups = [group for group in (choosing, deciding) if group]
    variance = sum((len(group) - 1) * np.var([mean(s) for s in group]) for group in groups)
    df = min(map(len, groups)) - 1
    return Effect(mean(), math.sqrt(variance), df, "these images", seeds=tuple(seeds))


def _mean(scores):
    """Return the mean over the first axis of what is not NaN, NaN where all is."""
    known = ~np.isnan(scores)
    with np.errstate(invalid="ignore"):
        return np.where(known, scores, 0).sum(0) / known.sum(0)


def effect(experiment, ours, base, metric: str | None = None, block: str = "") -> Effect:
    """Return the effect of `cross_fit` for two families of an experiment's arms.

    A family is a chosen arm, which stands for all arms among which it was chosen and is judged by
    its own runs as well, or an arm or pattern. Raises ValueError if runs or scores are missing.
    """
    metric = metric or experiment.metric(block)
    sides = [_scores(experiment, family, metric, block) for family in (ours, base)]
    seeds = sorted({seed for side in sides for scores in side for seed in scores})
    none = [np.nan] * len(next(iter(sides[0][0].values())))
    arrays = ([[one.get(seed, none) for seed in seeds] for one in side] for side in sides)
    return replace(cross_fit(*arrays), seeds=tuple(seeds))


def _scores(experiment: Experiment, family, metric: str, block: str) -> list[dict[int, list]]:
    """Return the scores by example of each setting of a family, by seed."""
    source, settings = experiment.candidates(family, block)
    groups = {name: source.group(name, block) for name in settings}
    for name, group in groups.items():
        if len(group) < len(source.seeds):
            raise ValueError(f"{source.name} lacks runs of {name!r}; hnlib queue lists them")
        if comparisons.by_example(group, metric) is None:
            raise ValueError(f"{source.name} has no {metric} by example to choose and judge by")
    if source is not experiment:
        best = source.best(tuple(settings), experiment.chosen[family]["by"], block)
        groups[best] = pd.concat([groups[best], experiment.group(family, block)])
    found = groups.values()
    return [dict(zip(x["seed"].tolist(), comparisons.by_example(x, metric))) for x in found]
