"""Predictions that were written down before the runs, and what the runs say of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hnlib.book.tables import Table, table
from hnlib.results import comparisons
from hnlib.results.comparisons import Effect


def inside(effect: Effect, margin: float) -> bool:
    """Whether the difference is within ± margin by two one-sided tests; one seed says nothing."""
    return effect.df > 0 and comparisons.verdict(effect, margin) == "equivalent"


def outside(effect: Effect, margin: float) -> bool:
    """Whether the whole interval lies outside ± margin."""
    return effect.low > margin or effect.high < -margin


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

    def show(self, caption: str) -> Table:
        """The lines as a table."""
        return table(self.rows.values(), words=True, caption=caption)
