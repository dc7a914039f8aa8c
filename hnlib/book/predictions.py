"""Predictions made before the runs, and their verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scipy import stats

from hnlib.book.tables import Table, interval, table
from hnlib.results import comparisons
from hnlib.results.comparisons import Effect

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
        return -truth, chance
    truth = low - ((abs(low) or 1.0) if math.isinf(high) else (high - low) / 2)
    quantile = stats.t.isf(0.025 / effect.family, effect.df)
    return truth, float(stats.nct.cdf(-quantile, effect.df, (truth - low) / effect.between))


def worded(found: dict) -> str:
    """Write differences with their intervals, or levels, each after its name."""
    texts = {k: interval(e) if isinstance(e, Effect) else e.text for k, e in found.items()}
    return "; ".join(f"{name} {text}".strip() for name, text in texts.items())


def ends(one) -> tuple[float, float]:
    """Return the interval of an effect, or what decides of a level."""
    return one.low, one.high


@dataclass
class Verdicts:
    """A table of predictions, filled line by line.

    The first of `metrics` is the primary one and decides; the second is shown beside it. Nothing is
    called before all runs of a prediction are there: one look, fixed beforehand.
    """

    metrics: tuple[str, str] = ("linear", "knn")
    rows: list[dict] = field(default_factory=list)

    def add(
        self,
        name: str,
        prediction: str,
        measured: tuple[str, str] = ("", ""),
        holds: bool = False,
        refuted: bool = False,
        missing: str = "",
        severe: str = "",
        otherwise: str = "unresolved",
    ) -> None:
        """Add a line: open while something is `missing`, else holds, refuted or `otherwise`."""
        verdict = "holds" if holds else "refuted" if refuted else otherwise
        line = {"": name, "prediction": prediction}
        line |= dict(zip(self.metrics, measured, strict=True)) | {"severity": severe}
        self.rows.append(line | {"verdict": f"open: {missing}" if missing else verdict})

    def judge(
        self,
        name: str,
        prediction: str,
        found: Callable[[str], dict],
        holds: dict,
        refuted: dict,
        missing: str = "",
        severe: str | None = None,
    ) -> None:
        """Add a line whose ranges are written as {"inside": [-1, 1]}, {"above": 0} and so on.

        It holds if everything found lies in the first range and is refuted if something lies wholly
        in the second. An effect lies in ± a margin by two one-sided tests, in another range with
        its whole interval; so it does in {"whole": [-1, 1]}.
        """
        low, high = _range(holds)
        tested = low == -high and math.isfinite(high) and "inside" in holds
        lies, lost = _inside(low, high, tested), _wholly(refuted)
        primary, beside = (found(metric) for metric in self.metrics)
        effects = [one for one in primary.values() if isinstance(one, Effect)]
        known = [one for one in primary.values() if one not in effects or one.df > 0]
        sizes = [severity(one, low, high) for one in effects if one.df > 0]
        if severe is None:
            truth, chance = min(sizes, key=lambda pair: pair[1], default=(0.0, math.nan))
            severe = f"{chance:.2f} at {truth:g}".replace("-", "−") if sizes else ""
        self.add(
            name,
            prediction,
            (worded(primary), worded(beside)),
            bool(known) and all(map(lies, primary.values())),
            any(map(lost, known)),
            missing,
            severe,
        )

    def show(self, caption: str) -> Table:
        """Return the lines as a table whose caption also says what severity is."""
        return table(self.rows, words=True, caption=f"{caption} {SEVERITY}")


def _range(words: dict) -> tuple[float, float]:
    """Return the range of {"inside": [low, high]}, {"above": low} or {"below": high}."""
    ((word, value),) = words.items()
    ranges = {"above": (value, math.inf), "below": (-math.inf, value)}
    low, high = ranges.get(word, value)
    return low, high


def _inside(low: float, high: float, tested: bool) -> Callable[[Any], bool]:
    """Return the test whether an interval lies in a range, or an effect in ± a margin."""

    def holds(one) -> bool:
        if tested and isinstance(one, Effect):
            return inside(one, high)
        return low <= ends(one)[0] and ends(one)[1] <= high

    return holds


def _wholly(words: dict) -> Callable[[Any], bool]:
    """Return the test whether an interval lies wholly in a range, or {"outside": [low, high]}."""
    low, high = _range(words)
    if "outside" in words:
        return lambda one: ends(one)[1] < low or ends(one)[0] > high
    return lambda one: low < ends(one)[0] and ends(one)[1] < high
