"""Comparisons of methods: differences paired by seed, what they speak of, families, equivalence,
power. The chapter *How we compare* proves what is said here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, stats

from hnlib.training import records


@dataclass(frozen=True)
class Effect:
    r"""A `difference`, ours − base, and how sure it is: `error`, the 95 % interval `low` … `high`,
    the two-sided `p`; in a `family` of several, intervals that hold together and Holm's p.

    `target`: what it speaks of. $\mathrm{error}^2=\mathrm{between}^2+\mathrm{images}^2$: the part
    of the seeds, with `df` degrees of freedom, and of the images, at most that large if `bound`.
    `seeds`: those that both have, with their `values`; `unpaired`: those that only one has, left
    out.
    """

    difference: float
    between: float
    df: int
    target: str
    images: float = 0.0
    bound: bool = False
    seeds: tuple = ()
    values: tuple = ()
    unpaired: tuple = ()
    base: str = ""
    family: int = 1
    holm: float | None = None

    error = property(lambda self: math.hypot(self.between, self.images))
    low = property(lambda self: self.difference - self.half(0.05 / self.family))
    high = property(lambda self: self.difference + self.half(0.05 / self.family))
    p = property(lambda self: self.reach(self.difference) if self.holm is None else self.holm)

    def __str__(self) -> str:
        target = f"{self.target}{' (a bound)' * self.bound}, df {self.df}"
        interval = f"{self.difference:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"
        return f"{interval}, p = {self.p:.2g}; {target}".replace("-", "−")

    def half(self, alpha: float, seen=1.0):
        """Half the 1 − α interval, Student's t for the seeds and the normal law for the images; if
        the seeds' deviation were `seen` times as large."""
        t, z = stats.t.isf(alpha / 2, max(self.df, 1)), stats.norm.isf(alpha / 2)
        return np.hypot(t * self.between * seen, z * self.images)

    def reach(self, distance: float) -> float:
        """The α whose interval just reaches so far; it lies between the p of z and of t."""
        if self.error in (0, math.inf):
            return float(distance == 0 or self.error > 0)
        ratio = abs(distance) / self.error
        low, high = max(2 * stats.norm.sf(ratio), 1e-100), float(2 * stats.t.sf(ratio, self.df))
        gap = lambda alpha: self.half(alpha) - abs(distance)  # noqa: E731
        if self.images == 0:
            return high
        if gap(low) <= 0:
            return float(low)
        top = min(1.0, high * (1 + 1e-9))
        return optimize.root_scalar(gap, bracket=(low, top), xtol=1e-12 * high).root


def compare(table, ours, base, metric="linear", by="seed", target="these images") -> Effect:
    r"""The difference of two methods in points, paired by seed.

    `table` is a pandas frame with one row a run; `ours` and `base` are queries of it, such as
    `"method == 'hcl'"`. Of the differences $d_s$ of $n$ seeds let $\bar d$ be the mean and $s^2$
    the variance. The 95 % interval, for the target

    - "these images" (the mean over all seeds, on the same $m$ test images):
      $\bar d\pm t_{n-1}\sqrt{s^2/n}$,
    - "new images" (the mean over all seeds and all images, of which these are a sample):
      $\bar d\pm\sqrt{t_{n-1}^2s^2/n+z^2\hat\sigma_b^2/m}$,

    $\hat\sigma_b^2$ being the images' variance (`components`) from the bits in the column
    `correct`. Where runs have none it is at most
    $\frac m{m-1}[\min(\bar A+\bar B,2-\bar A-\bar B)-(\bar A-\bar B)^2]$, with the mean accuracies:
    this is taken, and `bound` is true. The deviation $s$ is taken to be at least that of
    rounding to multiples of $1/m$, $1/m\sqrt{12}$. One seed has an infinite error. ValueError: no
    run or no common seed; a seed twice; a metric that is absent, not finite, or, for new images, no
    share of counted images; different test images; bits that contradict the accuracy.
    """
    if target not in ("these images", "new images"):
        raise ValueError(f"target={target!r} is unknown; it is 'these images' or 'new images'")
    a, b = (_runs(table, query, metric, by) for query in (ours, base))
    seeds, unpaired = sorted({*a.index} & {*b.index}), sorted({*a.index} ^ {*b.index})
    if not seeds:
        raise ValueError(f"{ours!r} and {base!r} have no {by} in common, only {unpaired}")
    a, b, n = a.loc[seeds], b.loc[seeds], len(seeds)
    d = 100 * (a[metric] - b[metric]).to_numpy(float)
    m = _images(a, b, metric)
    images, bound = (0.0, False) if target == "these images" else _spread(a, b, metric, m)
    floor = 100 / m / math.sqrt(12) if m else 0.0
    between = max(float(d.std(ddof=1)), floor) / math.sqrt(n) if n > 1 else math.inf
    known = dict(seeds=tuple(seeds), values=tuple(d.tolist()), unpaired=tuple(unpaired), base=base)
    return Effect(float(d.mean()), between, n - 1, target, images, bound, **known)


def between(ours, base, metric="linear", target="these images") -> Effect:
    """`compare` of two groups of runs, each a frame of `records.frame`: for groups that no one
    query tells apart. ValueError: as there."""
    import pandas as pd

    sides = pd.concat([ours.assign(side="ours"), base.assign(side="base")], ignore_index=True)
    effect = compare(sides, "side == 'ours'", "side == 'base'", metric, target=target)
    return replace(effect, base=" ".join(sorted(base["record"])))


def components(d) -> tuple[float, float, float]:
    r"""Unbiased variances $\hat\sigma_a^2,\hat\sigma_b^2,\hat\sigma_e^2$ of seeds, of images and of
    their interaction in $d_{si}=\mu+a_s+b_i+e_{si}$, from differences $d$ [seeds, images].

    With $V$ the variance over images of the mean over seeds, $W$ the mean over seeds of the
    variance over images: $\hat\sigma_b^2=\frac{nV-W}{n-1}$, $\hat\sigma_e^2=\frac{n(W-V)}{n-1}$;
    $\hat\sigma_a^2$ is the variance of the seeds' means less $\hat\sigma_e^2/m$. Being unbiased
    they may be negative. ValueError: fewer than 2 seeds or images.
    """
    d = np.asarray(d, float)
    if d.ndim != 2 or min(d.shape) < 2:
        raise ValueError(f"differences {d.shape} must be [seeds, images], at least 2 of each")
    (n, m), v, w = d.shape, d.mean(0).var(ddof=1), d.var(1, ddof=1).mean()
    noise = n * (w - v) / (n - 1)
    return d.mean(1).var(ddof=1) - noise / m, (n * v - w) / (n - 1), noise


def cross_validated(ours, base, test_share: float | None = None) -> Effect:
    r"""Corrected resampled $t$-test of two methods on the same splits of one data set (Nadeau and
    Bengio, 2003).

    With the $J$ differences $d_j$ (`ours` − `base`, both [seeds, folds], in any one unit) and their
    variance $s^2$, $\mathrm{error}^2=\big(\frac1J+\frac{\rho}{1-\rho}\big)s^2$ and
    $\bar d/\mathrm{error}\sim t_{J-1}$ if the methods are equally good; $\rho$ = `test_share`, the
    share of the data in a test part, so $\rho/(1-\rho)=n_{test}/n_{train}$. By default
    $\rho=1/\mathrm{folds}$; where `ours` has only some of the folds, say $\rho$.

    The plain test has $1/J$ alone, as if the $d_j$ were independent; but training sets share rows
    and test rows return with every seed, so what one sample of the data happens to show is in all
    $d_j$, and no $J$ removes it. The correction is a rule of thumb (it takes their correlation
    to be $\rho$) and pools all splits: with few seeds, and more variance between them than between
    folds, it may be too sure. The target is other data sets of this size from this source.

    Differences that are all equal give error 0, and p = 1 if they are zero, otherwise 0.
    ValueError: not two tables of one shape, fewer than two values, values that are not finite,
    $\rho$ outside (0, 1).
    """
    ours, base = (np.asarray(v, dtype=float) for v in (ours, base))
    if ours.ndim != 2 or ours.shape != base.shape:
        shapes = f"ours of shape {ours.shape} and base of shape {base.shape}"
        raise ValueError(f"{shapes} cannot be paired; both are [seeds, folds]")
    if (count := ours.size) < 2:
        raise ValueError(f"a paired comparison needs at least 2 values of each method; got {count}")
    if bad := int((~(np.isfinite(ours) & np.isfinite(base))).sum()):
        unusable = f"{bad} of the {count} pairs are not finite numbers"
        raise ValueError(f"{unusable}; leave out the seeds that did not finish")
    share = 1 / ours.shape[1] if test_share is None else test_share
    if not 0 < share < 1:
        hint = "; with a single fold it has to be given" if test_share is None else ""
        meaning = "the share of the data in a test part, 0.1 in a 10-fold cross-validation"
        raise ValueError(f"test_share={share:g} must lie between 0 and 1: it is {meaning}{hint}")
    d = ours - base
    mean, error = float(d.mean()), float(d.std(ddof=1)) * math.sqrt(1 / count + share / (1 - share))
    rounding = 1e-12 * max(np.abs(ours).max(), np.abs(base).max())
    if np.ptp(d) <= rounding:
        mean, error = mean * (abs(mean) > rounding), 0.0
    return Effect(mean, error, count - 1, "new data sets")


def holm(p) -> np.ndarray:
    r"""Holm's adjusted p-values [m] of $m$ tests: reject those ≤ α, and any false rejection has
    probability ≤ α.

    $\tilde p_{(k)}=\max_{l\le k}\min\{1,(m-l+1)\,p_{(l)}\}$, $p_{(1)}\le\dots\le p_{(m)}$; no
    independence is needed. Source: Holm (1979). ValueError: not a vector of numbers from 0 to 1.
    """
    from statsmodels.stats.multitest import multipletests

    p = np.asarray(p, dtype=float)
    if p.ndim != 1:
        raise ValueError(f"p-values of shape {p.shape} must be a vector")
    if bad := [value for value in p.tolist() if not 0 <= value <= 1]:
        raise ValueError(f"p-value {bad[0]} must lie between 0 and 1")
    return np.asarray(multipletests(p, method="holm")[1])


def family(effects, pooled: bool = False) -> list[Effect]:
    r"""The same effects, asked together: p by Holm, intervals by Bonferroni, which hold at once
    (and may contain 0 where p ≤ 0.05).

    `pooled`: the $K$ methods and their one base are taken to have the same variance of accuracy, a
    seed to shift all of them alike; then the residual variance $\hat\sigma^2$ of the table
    [methods, seeds] gives $\mathrm{between}^2=2\hat\sigma^2/n$ with $K(n-1)$ degrees of freedom.
    ValueError: an effect that is in a family already; to be pooled, other seeds or another base."""
    effects = list(effects)
    if any(effect.family > 1 for effect in effects):
        raise ValueError("an effect is in a family already; pass effects as they were compared")
    if pooled and effects:
        if len({(e.seeds, e.base) for e in effects}) > 1 or len(effects[0].values) < 2:
            raise ValueError("to be pooled, effects need one base and the same two or more seeds")
        y = np.array([[0.0] * len(effects[0].values), *(e.values for e in effects)])
        residual = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
        df = len(effects) * (y.shape[1] - 1)
        between = math.sqrt(2 * (residual**2).sum() / df / y.shape[1])
        between = max(between, min(e.between for e in effects))  # which know the floor of rounding
        effects = [replace(e, between=between, df=df) for e in effects]
    adjusted = holm([effect.p for effect in effects]).tolist()
    return [replace(e, family=len(effects), holm=p) for e, p in zip(effects, adjusted)]


def equivalence(effect: Effect, margin: float) -> float:
    """p of two one-sided tests that the difference is within ± `margin`, chosen beforehand: p ≤
    0.05 if and only if the 90 % interval is inside (Schuirmann, 1987); times the size of a family.
    ValueError: a margin that is not positive and finite."""
    if not 0 < margin < math.inf:
        raise ValueError(f"margin={margin} must be positive and finite: what would not matter")
    room = margin - abs(effect.difference)
    half = effect.reach(room) / 2
    return min(1.0, effect.family * (half if room >= 0 else 1 - half))


def verdict(effect: Effect, margin: float | None = None, alpha: float = 0.05) -> str:
    """One word: "equivalent" if a margin is given and `equivalence` ≤ α, else "different" if p ≤ α,
    else "unresolved". Whatever the truth is, it is wrong with probability at most α."""
    if margin is not None and equivalence(effect, margin) <= alpha:
        return "equivalent"
    return "different" if effect.p <= alpha else "unresolved"


def detectable(design, power: float = 0.8, alpha: float = 0.05) -> float:
    """The difference that this design would have told from zero with probability `power`.

    `design`: an effect, or (deviation of the paired differences, seeds). The deviation counts as
    known; one estimated from a few seeds makes this rough. Infinite for one seed. ValueError: a
    power that is not between α and 1."""

    def chance(size, half, error):
        return stats.norm.sf((half - size) / error) + stats.norm.sf((half + size) / error)

    return _size(design, power, alpha, chance)


def decidable(design, power: float = 0.8, alpha: float = 0.05) -> float:
    """The margin within which this design would have called equal methods equivalent with
    probability `power`; the rest as in `detectable`."""

    def chance(margin, half, error):
        return 1 - 2 * stats.norm.sf(np.maximum(margin - half, 0) / error)

    return _size(design, power, 2 * alpha, chance)


def _size(design, power, alpha, chance) -> float:
    """The size at which `chance`, averaged over the s that may be seen, is the power."""
    if not alpha < power < 1:
        raise ValueError(f"power={power} must lie between the level {alpha:g} and 1")
    if not isinstance(design, Effect):
        sd, n = design
        design = Effect(0.0, sd / n**0.5 if n > 1 else math.inf, n - 1, "")
    if design.error in (0, math.inf):
        return float(design.error)
    quantiles = stats.chi2.ppf((np.arange(4096) + 0.5) / 4096, design.df)
    half = design.half(alpha / design.family, np.sqrt(quantiles / design.df))
    short = lambda size: np.mean(chance(size, half, design.error)) - power  # noqa: E731
    return optimize.root_scalar(short, bracket=(0.0, 1e6 * design.error)).root


def _runs(table, query, metric, by):
    """The runs of a query by seed."""
    if missing := {metric, by} - {*table.columns}:
        raise ValueError(f"the table has no column {min(missing)!r}, only {[*table.columns]}")
    rows = table.query(query)
    if rows.empty or rows[by].isna().any() or rows[by].duplicated().any():
        found = f"with {by} {rows[by].tolist()}; each must be there once" if len(rows) else "none"
        raise ValueError(f"{query!r} should be runs of one setting; it fits {found}")
    if not np.isfinite(rows[metric].to_numpy(float)).all():
        raise ValueError(f"{metric} of {query!r} is missing or not finite; leave such runs out")
    return rows.set_index(by)


def _images(a, b, metric) -> int | None:
    """Of how many images the metric is a share, the same for all runs; None if it is none."""
    count, found = "validation" if metric.endswith("_validation") else "test_images", set()
    for name in ("dataset", "dataset_digest", count):
        found = {v for rows in (a, b) if name in rows for v in rows[name].dropna()}
        if len(found) > 1:
            raise ValueError(f"the runs were tested on different images: {name} is {sorted(found)}")
    m = int(found.pop()) if found else 0
    right = m * np.r_[a[metric], b[metric]].astype(float)
    counted = (abs(right - right.round()) < 0.01).all() and 0 <= right.min() <= right.max() <= m
    return m if m > 1 and counted else None


def _spread(a, b, metric, m) -> tuple[float, bool]:
    """The images' part of the error in points, and whether it is only a bound."""
    if m is None:
        raise ValueError(f"{metric} is not a share of counted images; compare on these images")
    right = [_bits(rows, metric, m) for rows in (a, b)]
    total, difference = a[metric].mean() + b[metric].mean(), a[metric].mean() - b[metric].mean()
    variance = 0.0
    if bound := any(bits is None for bits in right):
        variance = (min(total, 2 - total) - difference**2) * m / (m - 1)
    elif len(a) > 1:
        variance = max(components(right[0] * 1.0 - right[1])[1], 0.0)
    return 100 * math.sqrt(variance / m), bound


def _bits(rows, metric, m):
    """Which images were right, bool [seeds, m]; None if a run does not say."""
    known = [c.get(metric) if isinstance(c, dict) else None for c in rows.get("correct", [None])]
    if None in known:
        return None
    right = np.stack([records.unpack(text, m) for text in known])
    if (abs(right.mean(1) - rows[metric].to_numpy(float)) * m > 0.01).any():
        raise ValueError(f"the recorded bits of {metric} contradict its value on {m} images")
    return right
