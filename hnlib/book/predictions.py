"""Predictions made before the runs, and their verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field

from hnlib.book.tables import Table, interval, table
from hnlib.results import comparisons
from hnlib.results.comparisons import Effect


def inside(effect: Effect, margin: float) -> bool:
    """Return whether two one-sided tests find the difference within ± margin."""
    return effect.df > 0 and comparisons.verdict(effect, margin) == "equivalent"


def outside(effect: Effect, margin: float) -> bool:
    """Return whether the whole interval lies outside ± margin."""
    return effect.low > margin or effect.high < -margin


def worded(effects: dict[str, Effect]) -> str:
    """Write differences with their intervals, each after its name."""
    return "; ".join(f"{name} {interval(effect)}".strip() for name, effect in effects.items())


@dataclass
class Verdicts:
    """A table of predictions, filled line by line."""

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
        """Add a line: refuted, else open while something is `missing`, else holds or unresolved."""
        if holds and refuted and not missing:
            raise ValueError(f"{name} cannot both hold and be refuted")
        verdict = "holds" if holds else "unresolved"
        if missing:
            verdict = f"open: {missing}"
        if refuted:  # no further run changes that
            verdict = "refuted"
        self._line(name, prediction, measured, verdict)

    def _line(self, name: str, prediction: str, measured: str, verdict: str) -> None:
        line = {"": name, "prediction": prediction, "measured": measured, "verdict": verdict}
        self.rows[name] = line

    def undefined(self, name: str, prediction: str, reason: str) -> None:
        """Add a line that the runs cannot decide, and why."""
        self._line(name, prediction, reason, "undefined")

    def equivalent(
        self, name: str, prediction: str, effects: dict[str, Effect], margin: float, missing=""
    ) -> None:
        """Add a line that holds if every difference is within ± margin.

        It is refuted if one interval lies wholly outside.
        """
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
        """Add a line that holds if the interval lies in [low, high].

        It is refuted if the interval lies wholly outside.
        """
        self.add(
            name,
            prediction,
            "" if effect is None else interval(effect),
            effect is not None and low <= effect.low and effect.high <= high,
            effect is not None and (effect.high < low or effect.low > high),
            missing,
        )

    def show(self, caption: str) -> Table:
        """Return the lines as a table."""
        return table(self.rows.values(), words=True, caption=caption)
