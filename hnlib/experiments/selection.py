"""Repeat the choice of settings, from arrays of scores or from records."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from hnlib.experiments import compared, comparisons
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.found_records import Found

MOST = 2000  # ways to halve the seeds: all of up to thirteen
DRAWN = 200  # random ones where there are more


def cross_fit(ours, base, splits: int = 400, best: int = 1, choosers: int | None = None) -> Effect:
    r"""Compare what is chosen in two families of settings, the choice included.

    On each side half of the examples and half of the selection seeds choose the setting with the
    best mean; the other examples, on all other seeds, judge it. Then the halves of examples swap
    roles. The effect is the mean over random halves of examples and all ways to halve the seeds, or
    `DRAWN` random ways where there are more than `MOST`.

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
        single seed judges its own choice, by the other examples. A single one that could only
        decide is left out where three can choose.

    Raises
    ------
    ValueError
        If the shapes differ, there is one example, a score is above 1 (as percents are), or no seed
        has all settings.

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
    if shapes[0][2] < 2:  # one half chooses and the other judges
        raise ValueError(f"need two examples or more, got {shapes[0][2]}; use comparisons.between")
    if (largest := max(np.nanmax(abs(side), initial=0) for side in sides)) > 1:
        raise ValueError(
            f"scores must be shares, at most 1, got {largest:g}; divide percents by 100"
        )
    first, second = (halved(side, splits) for side in sides)
    return fit(first, second, best, choosers)


def halved(scores, splits: int) -> np.ndarray:
    """Return means over random halves of the examples, then over what each half leaves.

    From scores [settings, seeds, examples] to means [settings, seeds, 2 splits]; the halves are the
    same in every call.
    """
    rng, count = np.random.default_rng(0), scores.shape[2]
    half = np.stack([rng.permutation(count) < count // 2 for _ in range(splits)], 1)
    halves = 1.0 * np.hstack([half, ~half])
    return np.tensordot(scores, halves, 1) / halves.sum(0)


def fit(ours: np.ndarray, base: np.ndarray, best: int = 1, choosers: int | None = None) -> Effect:
    """Return the effect of `cross_fit` from the means of `halved`."""
    sides, seeds = (ours, base), range(ours.shape[1])
    complete = [s for s in seeds if not any(np.isnan(side[:, s]).any() for side in sides)]
    choosing = [s for s in complete if choosers is None or s < choosers]
    deciding = [s for s in seeds if s not in choosing]
    paired = [s for s in deciding if all((~np.isnan(side[:, s])).any() for side in sides)]
    if len(choosing) > 2 and len(paired) < 2:  # a single one shows no variance
        seeds, deciding = choosing, []
    if not choosing:
        raise ValueError(f"need a seed that has all settings, got {len(seeds)} that have some")
    size = max(len(choosing) // 2, 1)
    few, rng = math.comb(len(choosing), size) <= MOST, np.random.default_rng(0)
    judge = [np.roll(side, side.shape[2] // 2, axis=2) for side in sides]  # on the other half
    orders = [] if few else [rng.permutation(choosing).tolist() for _ in range(DRAWN)]

    def parts(own: list[int]) -> Iterable[tuple[int, ...]]:
        if few:
            return itertools.combinations(own, size)
        return (tuple(s for s in order if s in own)[:size] for order in orders)

    @functools.cache
    def differences(part: tuple[int, ...]) -> np.ndarray:
        """Return ours minus base, as seeds and halves choose and the other halves judge."""
        return np.subtract(*(_of_best(*both, part, best) for both in zip(sides, judge)))

    def means(left_out: int | None = None) -> np.ndarray:
        """Return the mean without a choosing seed, and that without each deciding seed, too."""
        own, found = [s for s in choosing if s != left_out], []
        for part in parts(own):
            rows, known = differences(part), ~np.isnan(differences(part))
            rows = np.where(known, rows, 0)
            others = [s for s in seeds if s not in (*part, left_out)] or [*part]
            less = [np.vstack([0 * x[:1], x[deciding]]) for x in (rows, known)]
            with np.errstate(invalid="ignore"):
                by_half = (rows[others].sum(0) - less[0]) / (known[others].sum(0) - less[1])
            found.append(_mean(by_half.T))
        return 100 * np.mean(found, 0)

    mean, *without = means()
    if len(choosing) < 3:  # without one seed nobody would choose, or nobody judge
        return Effect(float(mean), math.inf, 0, "these images", seeds=tuple(seeds))
    groups = [group for group in ([means(s)[0] for s in choosing], without) if len(group)]
    variance = sum((len(group) - 1) * np.var(group) for group in groups)
    df = min(map(len, groups)) - 1
    return Effect(float(mean), math.sqrt(variance), df, "these images", seeds=tuple(seeds))


def _of_best(choose, judge, part: tuple[int, ...], best: int) -> np.ndarray:
    """Return what judges [seeds, halves] of the settings that a part of the seeds chooses."""
    _, seeds, halves = choose.shape
    order = (-choose[:, part].mean(1)).argsort(0, kind="stable")[:best]
    return _mean(judge[order[:, None], np.arange(seeds)[:, None], np.arange(halves)])


def _mean(scores):
    """Return the mean over the first axis of what is not NaN, NaN where all is."""
    known = ~np.isnan(scores)
    with np.errstate(invalid="ignore"):
        return np.where(known, scores, 0).sum(0) / known.sum(0)


def effect(found: Found, ours, base, metric: str | None = None, block: str = "") -> Effect:
    """Return the effect of `cross_fit` for two families of a design's arms.

    A family is a chosen arm, which stands for all arms among which it was chosen and is judged by
    its own runs as well, or an arm or pattern. Raises ValueError if runs or scores are missing.
    """
    return effects(found, ours, base, metric, [block])[block]


def effects(found: Found, ours, base, metric: str | None = None, blocks=None) -> dict[str, Effect]:
    """Return the same by block, by default of all blocks, corrected together."""
    asked = {
        block: (ours, base, metric or found.design.metric(block), block, compared.REPEATED)
        for block in blocks or found.design.blocks
    }

    def made(of: Found) -> compared.Made:
        several = [x for x in asked.values() if of is found or compared.is_recorded(of, *x[:4])]
        return dict(zip(several, comparisons.family(_effect(of, *x[:4]) for x in several)))

    here = made(found)
    compared.note(found.design, here, made)
    return {block: here[arguments] for block, arguments in asked.items()}


def _effect(found: Found, ours, base, metric: str, block: str) -> Effect:
    sides = [_scores(found, family, metric, block) for family in (ours, base)]
    seeds = sorted({seed for side in sides for scores in side for seed in scores})
    none = [np.nan] * len(next(iter(sides[0][0].values())))
    arrays = ([[one.get(seed, none) for seed in seeds] for one in side] for side in sides)
    made = cross_fit(*arrays)
    return replace(made, seeds=tuple(seeds[i] for i in made.seeds))  # one may be left out


def _scores(found: Found, family, metric: str, block: str) -> list[dict[int, list]]:
    """Return the scores by example of each setting of a family, by seed."""
    source, settings = found.candidates(family, block)
    groups = {name: source.group(name, block) for name in settings}
    for name, group in groups.items():
        if len(group) < len(source.design.seeds):
            raise ValueError(f"{source.design.name} lacks runs of {name!r}; hnlib queue lists them")
        if comparisons.by_example(group, metric) is None:
            raise ValueError(
                f"{source.design.name} has no {metric} by example to choose and judge by"
            )
    if source is not found:
        best = source.best(tuple(settings), found.design.chosen[family]["by"], block)
        groups[best] = pd.concat([groups[best], found.group(family, block)])
    every = groups.values()
    return [dict(zip(x["seed"].tolist(), comparisons.by_example(x, metric))) for x in every]
