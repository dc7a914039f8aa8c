"""Predictions made before the runs, and their verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy import stats

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.words import interval

SEVERITY = (
    "Severity: how probably these seeds would refute the line if the truth were the value named."
)


def inside(effect: Effect, margin: float) -> bool:
    """Return whether two one-sided tests find the difference within ± margin."""
    return effect.df > 0 and comparisons.equivalence(effect, margin) <= 0.05


def severity(effect: Effect, low: float, high: float) -> tuple[float, float]:
    """Return a true difference that would matter, and the probability that it is refuted.

    The difference lies as far below [low, high] as the middle of the range lies above its edge
    (below a range without an upper edge, as far as the edge is from zero, or one point if it is
    zero). Refuted means that the whole interval lies outside. The seeds' deviation counts as true.
    """
    if math.isinf(low):
        truth, chance = severity(effect, -high, math.inf)
        return 0.0 - truth, chance  # not −0 of a truth of 0
    truth = low - ((abs(low) or 1.0) if math.isinf(high) else (high - low) / 2)
    quantile = stats.t.isf(0.025 / effect.family, effect.df)
    return truth, float(stats.nct.cdf(-quantile, effect.df, (truth - low) / effect.between))


def worded(found: dict) -> str:
    """Write differences with their intervals, or levels, each after its name."""
    texts = {k: interval(e) if isinstance(e, Effect) else e.text for k, e in found.items()}
    return "; ".join(f"{name} {text}".strip() for name, text in texts.items())


def verdict(found: dict[str, Any], holds: dict, refuted: dict) -> str:
    """Return whether a prediction holds, is refuted or is unresolved.

    Ranges are written as {"inside": [-1, 1]}, {"above": 0} and so on. It holds if everything found
    lies in the first and is refuted if something lies wholly in the second. An effect lies in ± a
    margin by two one-sided tests, in another range with its whole interval; so it does in
    {"whole": [-1, 1]}.
    """
    known = [one for one in found.values() if not isinstance(one, Effect) or one.df > 0]
    if known and all(_lies(one, holds) for one in found.values()):
        return "holds"
    return "refuted" if any(_wholly(one, refuted) for one in known) else "unresolved"


def severe(found: dict[str, Any], holds: dict) -> str:
    """Write the smallest severity of the effects found, and at which truth."""
    effects = [one for one in found.values() if isinstance(one, Effect) and one.df > 0]
    sizes = [severity(one, *_range(holds)) for one in effects]
    truth, chance = min(sizes, key=lambda pair: pair[1], default=(0.0, 0.0))
    return f"{chance:.2f} at {truth:g}".replace("-", "−") if sizes else ""


@dataclass(frozen=True)
class Verdicts:
    """A table of predictions, a row each."""

    rows: list[dict]


def _range(words: dict) -> tuple[float, float]:
    """Return the range of {"inside": [low, high]}, {"above": low} or {"below": high}."""
    ((word, value),) = words.items()
    low, high = {"above": (value, math.inf), "below": (-math.inf, value)}.get(word, value)
    return low, high


def _lies(one, words: dict) -> bool:
    """Return whether an interval lies in a range, or an effect in ± a margin."""
    low, high = _range(words)
    if "inside" in words and low == -high and isinstance(one, Effect):
        return inside(one, high)
    return low <= one.low and one.high <= high


def _wholly(one, words: dict) -> bool:
    """Return whether an interval lies wholly in a range, or {"outside": [low, high]}."""
    low, high = _range(words)
    return (
        one.high < low or one.low > high if "outside" in words else low < one.low <= one.high < high
    )
