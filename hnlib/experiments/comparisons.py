"""Compare methods: differences paired by seed, families, equivalence, power.

The chapter *How we compare* proves the formulas.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import optimize, special, stats

from hnlib.training import records

#: What an effect may be about
TARGETS = ("these images", "new images", "new data sets")
#: Columns that a comparison reads beside the seed and the metric
USED = (
    "dataset",
    "dataset_digest",
    "test_images",
    "graphs",
    "validation",
    "correct",
    "environment",
)


@dataclass(frozen=True)
class Effect:
    r"""A difference, ours − base, with its error.

    In a `family` of several effects the 95 % interval `low` … `high` holds for all together and `p`
    is Holm's.

    Attributes
    ----------
    difference : float
        In points.
    between, df : float, int
        The part of the error from the seeds, and its degrees of freedom.
    target : str
        What the effect is about: "these images", "new images", "new data sets".
    images, bound : float, bool
        The part of the error from the images, $\mathrm{error}^2 = \mathrm{between}^2 +
        \mathrm{images}^2$; whether it is only an upper bound.
    seeds, values : tuple
        The seeds that both have, and their differences.
    base : str
        The baseline.
    family, holm : int, float
        The number of effects corrected together, and Holm's p.
    """

    difference: float
    between: float
    df: int
    target: str
    images: float = 0.0
    bound: bool = False
    seeds: tuple = ()
    values: tuple = ()
    base: str = ""
    family: int = 1
    holm: float | None = None

    error = property(lambda self: math.hypot(self.between, self.images))
    low = property(lambda self: self.difference - self.half(0.05 / self.family))
    high = property(lambda self: self.difference + self.half(0.05 / self.family))
    p = property(lambda self: self.reach(self.difference) if self.holm is None else self.holm)

    def __str__(self) -> str:
        """Format the difference, its interval, p and target."""
        one, low, high = (f"{x:+.2f}" for x in (self.difference, self.low, self.high))
        target = f"{self.target}{' (a bound)' * self.bound}, df {self.df}"
        return f"{one} [{low}, {high}], p = {self.p:.2g}; {target}".replace("-", "−")

    def half(self, alpha: float, seen=1.0):
        """Return half the 1 − α interval, if the seeds' deviation were `seen` times as large.

        Student's t for the seeds and the normal distribution for the images.
        """
        t, z = -special.stdtrit(max(self.df, 1), alpha / 2), -special.ndtri(alpha / 2)
        return np.hypot(t * self.between * seen, z * self.images)

    def reach(self, distance: float) -> float:
        """Return the α at which half the interval equals the distance."""
        if self.error in (0, math.inf):
            return float(distance == 0 or self.error > 0)
        ratio = abs(distance) / self.error
        low, high = max(2 * special.ndtr(-ratio), 1e-100), float(2 * special.stdtr(self.df, -ratio))
        if self.images == 0:
            return high
        if self.half(low) <= abs(distance):
            return float(low)
        # between the p of the normal distribution and that of t
        bracket = low, min(1.0, high * (1 + 1e-9))
        gap = lambda alpha: self.half(alpha) - abs(distance)  # noqa: E731
        return optimize.root_scalar(gap, bracket=bracket, xtol=1e-12 * high).root


def between(ours, base, metric="linear", target="these images", mixed=False) -> Effect:
    r"""Compare two groups of runs, in points, paired by seed.

    On these images it is the paired t test (`scipy.stats.ttest_rel`) with its interval, except that
    the deviation has a minimum; `family` corrects several effects, and `equivalence` asks the
    opposite question.

    Parameters
    ----------
    ours, base : DataFrame
        One row a run, as of `records.frame`.
    metric : str, default "linear"
        Column to compare.
    target : {"these images", "new images", "new data sets"}, default "these images"
        What the effect is about. The last is that of `cross_validated`, and needs the scores of
        folds, a column such as "svm_folds".
    mixed : bool, default False
        Whether the two runs of a seed may come from different processors, whose rounding differs.

    Returns
    -------
    Effect
        One seed has an infinite error.

    Raises
    ------
    ValueError
        If a group has no run or a seed twice, no seed is common, the metric is not finite or, for
        new images, not a share of counted images, the test images differ, or a seed mixes
        processors and `mixed` is false.

    Notes
    -----
    Let $\bar d$ be the mean and $s^2$ the variance of the differences $d_s$ of $n$ seeds. The 95 %
    interval, for the target

    - "these images" (the mean over all seeds, on the same $m$ test images):
      $\bar d \pm t_{n-1}\sqrt{s^2/n}$,
    - "new images" (the mean over all seeds and all images, of which these are a sample):
      $\bar d \pm \sqrt{t_{n-1}^2 s^2/n + z^2 \hat\sigma_b^2/m}$,

    $\hat\sigma_b^2$ being the images' variance (`components`) from the bits in the column
    `correct`. If runs have no bits, it is at most
    $\frac m{m-1}[\min(\bar A+\bar B,2-\bar A-\bar B)-(\bar A-\bar B)^2]$, with the mean accuracies;
    this bound is used, and `bound` is true. The deviation $s$ is at least that of rounding to
    multiples of $1/m$, $1/(m\sqrt{12})$.

    Examples
    --------
    >>> import pandas as pd
    >>> from hnlib.experiments.comparisons import between
    >>> hcl = pd.DataFrame({"seed": [0, 1, 2], "linear": [0.81, 0.83, 0.82]})
    >>> simclr = pd.DataFrame({"seed": [0, 1, 2], "linear": [0.80, 0.81, 0.80]})
    >>> print(between(hcl, simclr))
    +1.67 [+0.23, +3.10], p = 0.038; these images, df 2
    """
    name = " ".join(sorted(base.get("record", ())))
    a, b = _runs(ours, "our group", metric), _runs(base, "the base group", metric)
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    seeds = sorted({*a["seed"]} & {*b["seed"]})
    if not seeds:
        raise ValueError(f"the groups have no seed in common: {a['seed']}, {b['seed']}")
    a, b, n = _ordered(a, seeds), _ordered(b, seeds), len(seeds)
    if not mixed and "environment" in a:
        _require_same_processor(a, b)
    if target == "new data sets":
        scores = [100 * np.array([*side[f"{metric}_folds"]]) for side in (a, b)]
        m = a["graphs"][0] / scores[0].shape[1] if "graphs" in a else math.inf  # of a fold
        found = cross_validated(*scores, least=100 / m / math.sqrt(12))
        return replace(found, seeds=tuple(seeds), base=name)
    d = 100 * np.subtract(a[metric], b[metric])
    m = _images(a, b, metric)
    images, bound = (0.0, False) if target == "these images" else _spread(a, b, metric, m)
    floor = 100 / m / math.sqrt(12) if m else 0.0
    error = max(float(d.std(ddof=1)), floor) / math.sqrt(n) if n > 1 else math.inf
    values = tuple(seeds), tuple(d.tolist())
    return Effect(float(d.mean()), error, n - 1, target, images, bound, *values, name)


def components(d) -> tuple[float, float, float]:
    r"""Estimate the variances of seeds, of images and of their interaction, without bias.

    Those are $\hat\sigma_a^2,\hat\sigma_b^2,\hat\sigma_e^2$ in $d_{si}=\mu+a_s+b_i+e_{si}$, from
    differences $d$ [seeds, images], at least 2 of each. With $V$ the variance over images of the
    mean over seeds, and $W$ the mean over seeds of the variance over images,
    $\hat\sigma_b^2=\frac{nV-W}{n-1}$, $\hat\sigma_e^2=\frac{n(W-V)}{n-1}$; $\hat\sigma_a^2$ is the
    variance of the seeds' means minus $\hat\sigma_e^2/m$. Since they are unbiased, they may be
    negative.
    """
    d = np.asarray(d, float)
    (n, m), v, w = d.shape, d.mean(0).var(ddof=1), d.var(1, ddof=1).mean()
    noise = n * (w - v) / (n - 1)
    return d.mean(1).var(ddof=1) - noise / m, (n * v - w) / (n - 1), noise


def cross_validated(ours, base, least: float = 0.0) -> Effect:
    r"""Compare two methods on the same splits of one data set (Nadeau and Bengio, 2003).

    Parameters
    ----------
    ours, base : array of shape [seeds, folds]
        Scores in one unit.
    least : float, default 0.0
        The smallest deviation of a difference, in that unit: that of rounding to multiples of 1/m
        in folds of m examples, $1/(m\sqrt{12})$.

    Returns
    -------
    Effect
        Its target is other data sets of this size from this source.

    Notes
    -----
    The corrected resampled $t$-test. With the $J$ differences $d_j$, their variance $s^2$ and the
    share $\rho$ = 1/folds of the data in a test part,
    $\mathrm{error}^2=\big(\frac1J+\frac{\rho}{1-\rho}\big)s^2$ and
    $\bar d/\mathrm{error}\sim t_{J-1}$ if the methods are equally good. The plain test has $1/J$
    alone, as if the $d_j$ were independent; but training sets share rows and test rows return with
    every seed. The correction is a rule of thumb (it takes their correlation to be $\rho$) and
    pools all splits: with few seeds, and more variance between them than between folds, it may be
    too sure.
    """
    if np.shape(ours) != np.shape(base):
        raise ValueError(f"both must be [seeds, folds], got {np.shape(ours)}, {np.shape(base)}")
    d = np.subtract(ours, base)
    share = 1 / d.shape[1]
    error = max(float(d.std(ddof=1)), least) * math.sqrt(1 / d.size + share / (1 - share))
    return Effect(float(d.mean()), error, d.size - 1, "new data sets")


def holm(p) -> np.ndarray:
    r"""Return Holm's adjusted p-values of $m$ tests.

    If those ≤ α are rejected, the probability of any false rejection is ≤ α (Holm, 1979):
    $\tilde p_{(k)}=\max_{l\le k}\min\{1,(m-l+1)\,p_{(l)}\}$, $p_{(1)}\le\dots\le p_{(m)}$; no
    independence is needed.
    """
    p = np.asarray(p, dtype=float)
    order = np.argsort(p)
    adjusted = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return adjusted[np.argsort(order)]


def family(effects, pooled: bool = False) -> list[Effect]:
    r"""Correct effects together: p by Holm, simultaneous intervals by Bonferroni.

    Such an interval may contain 0 where p ≤ 0.05. If `pooled`, the $K$ methods and their one base
    are taken to have the same variance of accuracy, and a seed to shift all of them alike; then the
    residual variance $\hat\sigma^2$ of the table [methods, seeds] gives
    $\mathrm{between}^2=2\hat\sigma^2/n$ with $K(n-1)$ degrees of freedom; a single seed has no
    variance. Raises ValueError if an effect is in a family already, or if effects to be pooled have
    other seeds or another base.
    """
    effects = list(effects)
    if any(effect.family > 1 for effect in effects):
        raise ValueError("an effect is in a family already; pass effects as they were compared")
    if pooled and len({(e.seeds, e.base) for e in effects}) > 1:
        raise ValueError("to be pooled, effects need one base and the same seeds")
    if pooled and effects and len(effects[0].values) > 1:
        y = np.array([[0.0] * len(effects[0].values), *(e.values for e in effects)])
        residual = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
        df = len(effects) * (y.shape[1] - 1)
        between = math.sqrt(2 * (residual**2).sum() / df / y.shape[1])
        between = max(between, min(e.between for e in effects))  # which know the floor of rounding
        effects = [replace(e, between=between, df=df) for e in effects]
    adjusted = holm([effect.p for effect in effects]).tolist()
    return [replace(e, family=len(effects), holm=p) for e, p in zip(effects, adjusted)]


def equivalence(effect: Effect, margin: float) -> float:
    """Return p of two one-sided tests that the difference is within ± `margin` > 0.

    The margin, chosen beforehand, is the largest difference that would not matter. p ≤ 0.05 if and
    only if the 90 % interval is inside (Schuirmann, 1987); in a family p is multiplied by its size.
    """
    distance = margin - abs(effect.difference)
    half = effect.reach(distance) / 2
    return min(1.0, effect.family * (half if distance >= 0 else 1 - half))


def verdict(effect: Effect, margin: float = 0.0) -> str:
    """Return what an effect shows of a difference that matters if it exceeds ± `margin` points.

    - "beats" or "loses": the whole interval lies above the margin, or below its negative
    - "equivalent": two one-sided tests find the difference within ± margin (`equivalence`)
    - "leads" or "trails": it is above or below zero (p ≤ 0.05), perhaps by less than the margin
    - "unresolved": none of these

    Of equal methods the first and third are said with probability at most 5 %, and so is the second
    of methods that differ by the margin.
    """
    if effect.low > margin:
        return "beats"
    if effect.high < -margin:
        return "loses"
    if margin > 0 and equivalence(effect, margin) <= 0.05:
        return "equivalent"
    if effect.p <= 0.05:
        return "leads" if effect.difference > 0 else "trails"
    return "unresolved"


def detectable(effect: Effect) -> float:
    """Return the difference that this design would have detected with probability 80 %.

    The deviation counts as exact; one estimated from a few seeds makes this rough. Infinite for one
    seed.
    """

    def chance(size, half, error):
        return special.ndtr((size - half) / error) + special.ndtr(-(half + size) / error)

    return _size(effect, 0.05, chance)


def decidable(effect: Effect) -> float:
    """Return the smallest margin at which this design would call equal methods equivalent.

    With probability 80 %; the rest as in `detectable`.
    """

    def chance(margin, half, error):
        return 1 - 2 * special.ndtr(-np.maximum(margin - half, 0) / error)

    return _size(effect, 0.1, chance)


def _size(effect, alpha, chance) -> float:
    """Return the size at which `chance`, averaged over the s that may be seen, is 80 %."""
    if effect.error in (0, math.inf):
        return float(effect.error)
    half = effect.half(alpha / effect.family, _deviations(effect.df))
    short = lambda size: np.mean(chance(size, half, effect.error)) - 0.8  # noqa: E731
    return optimize.root_scalar(short, bracket=(0.0, 1e6 * effect.error)).root


@functools.cache
def _deviations(df: int) -> np.ndarray:
    """Return quantiles of the estimate of a deviation of 1."""
    return np.sqrt(stats.chi2.ppf((np.arange(4096) + 0.5) / 4096, df) / df)


def _runs(rows, words, metric) -> dict[str, list]:
    """Return what a comparison needs from the runs of a group, as lists: small frames are slow."""
    wanted = ("seed", metric, f"{metric}_folds", *USED)
    columns = {name: rows[name].tolist() for name in wanted if name in rows}
    seeds = columns["seed"]
    if rows.empty or pd.isna(seeds).any() or len({*seeds}) < len(seeds):
        raise ValueError(f"{words} must select runs with one seed each, got seed {seeds}")
    if not np.isfinite(rows[metric].to_numpy(float)).all():
        raise ValueError(f"{metric} of {words} is missing or not finite; leave such runs out")
    return columns


def _ordered(columns, seeds) -> dict[str, list]:
    """Return the runs of these seeds in their order."""
    rows = [columns["seed"].index(seed) for seed in seeds]
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def _require_same_processor(a, b) -> None:
    """Refuse a seed whose two runs come from different processors."""
    for seed, first, second in zip(a["seed"], a["environment"], b["environment"], strict=True):
        pair = [processor(run["hardware"]) for run in (first, second)]
        if pair[0] != pair[1]:
            raise ValueError(
                f"seed {seed} ran on {pair[0]} for ours and on {pair[1]} for the base; run one of "
                "them again, or pass mixed=True"
            )


def processor(hardware: dict) -> str:
    """Return the name of a GPU, or of a CPU with family, model and stepping if recorded.

    Where training steps were compiled, or a graph, it says so, for they round differently.
    """
    step = f", step={hardware['step']}" if "step" in hardware else ""
    if "gpu" in hardware:
        return hardware["gpu"] + step
    details = "/".join(filter(None, map(hardware.get, ("family", "model", "stepping"))))
    return f"{hardware['cpu']} {details}".strip() + step


def _images(a, b, metric) -> int | None:
    """Return the number of images of which the metric is a share, the same for all runs."""
    for name in ("dataset", "dataset_digest"):
        _common(a, b, name)
    m = int(_common(a, b, _count(metric)) or 0)
    first = a.get("correct", [None])[0]
    if isinstance(first, dict) and isinstance(first.get(metric), list):
        return len(first[metric])  # the score of each query
    right = m * np.array(a[metric] + b[metric])
    counted = (abs(right - right.round()) < 0.01).all() and 0 <= right.min() <= right.max() <= m
    return m if m > 1 and counted else None


def _common(a, b, name: str):
    """Return the value of a column that all runs share, or None if none has one."""
    values = {value for value in (*a.get(name, ()), *b.get(name, ())) if not pd.isna(value)}
    if len(values) > 1:
        raise ValueError(f"the runs were tested on different images: {name} is {sorted(values)}")
    return next(iter(values), None)


def _spread(a, b, metric, m) -> tuple[float, bool]:
    """Return the images' part of the error in points, and whether it is only a bound."""
    if m is None:
        raise ValueError(f"{metric} is not a share of counted images; compare on these images")
    right = [by_example(rows, metric) for rows in (a, b)]
    bound, variance = any(bits is None for bits in right), 0.0
    if bound:
        ours, base = np.mean(a[metric]), np.mean(b[metric])
        variance = (min(ours + base, 2 - ours - base) - (ours - base) ** 2) * m / (m - 1)
    elif len(a[metric]) > 1:
        variance = max(components(right[0] * 1.0 - right[1])[1], 0.0)
    return 100 * math.sqrt(variance / m), bound


def by_example(rows, metric: str):
    """Return which images were right, or queries' scores, [seeds, examples]; None if unrecorded."""
    parts = [c.get(metric) if isinstance(c, dict) else None for c in rows.get("correct", [None])]
    if None in parts:
        return None
    (m, *_) = rows.get(_count(metric), [0])
    return np.stack([p if isinstance(p, list) else records.unpack(p, m) for p in parts])


def _count(metric: str) -> str:
    """Return the column with the number of images of which a metric is a share."""
    return "validation" if metric.endswith("_validation") else "test_images"
