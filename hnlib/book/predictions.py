"""Predictions that were written down before the runs, and what the runs say of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hnlib.book.tables import Table, interval, table
from hnlib.results import comparisons
from hnlib.results.comparisons import Effect


def inside(effect: Effect, margin: float) -> bool:
    """Whether the difference is within ± margin by two one-sided tests; one seed says nothing."""
    return effect.df > 0 and comparisons.verdict(effect, margin) == "equivalent"


def outside(effect: Effect, margin: float) -> bool:
    """Whether the whole interval lies outside ± margin."""
    return effect.low > margin or effect.high < -margin


def worded(effects: dict[str, Effect]) -> str:
    """Write differences with their intervals, each after its name."""
    return "; ".join(f"{name} {interval(effect)}".strip() for name, effect in effects.items())


@dataclass
class Verdicts:
    """The table of predictions, filled line by line."""

    rows: dict[str, dict] = field(default_factory=dict)

    def add(
        self,
        name: str,
        prediction: str,
        measured: str = "",
        holds: bool = False,
        refuted: bool = False,
        missing: str = "",
    ) -> None:
        """A line with its verdict: "open" while something is `missing`, unless the runs so far
        refute it already; else what was found, or "unresolved" where that is neither. ValueError:
        both were."""
        if holds and refuted and not missing:
            raise ValueError(f"{name} cannot both hold and be refuted; one of the two is wrong")
        word = "holds" if holds else "unresolved"
        word = "refuted" if refuted else f"open: {missing}" if missing else word
        row = {"": name, "prediction": prediction, "measured": measured, "verdict": word}
        self.rows[name] = row

    def undefined(self, name: str, prediction: str, reason: str) -> None:
        """Add a line that the runs cannot decide, and why."""
        self.rows[name] = {
            "": name,
            "prediction": prediction,
            "measured": reason,
            "verdict": "undefined",
        }

    def equivalent(
        self, name: str, prediction: str, effects: dict[str, Effect], margin: float, missing=""
    ) -> None:
        """Add a line that holds if every difference is within ± margin, and is refuted if one
        interval lies wholly outside."""
        self.add(
            name,
            prediction,
            worded(effects),
            bool(effects) and all(inside(effect, margin) for effect in effects.values()),
            any(outside(effect, margin) for effect in effects.values()),
            missing,
        )

    def between(
        self, name: str, prediction: str, effect: Effect | None, low: float, high: float, missing=""
    ) -> None:
        """Add a line that holds if the interval lies in [low, high], and is refuted if it lies
        wholly outside."""
        self.add(
            name,
            prediction,
            "" if effect is None else interval(effect),
            effect is not None and low <= effect.low and effect.high <= high,
            effect is not None and (effect.high < low or effect.low > high),
            missing,
        )

    def show(self, caption: str) -> Table:
        """The lines as a table."""
        return table(self.rows.values(), words=True, caption=caption)
