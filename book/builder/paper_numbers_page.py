"""The generated page *The papers' numbers*: every printed number beside ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from builder.ledger_pages import fill_placeholders, inline_code, table
from hnbook import paper_numbers
from hnbook.tables import DASH, Markup, interval, myst, percent
from hnlib.experiments import run_queue
from hnlib.experiments.comparisons import Effect

HEAD = ["Printed in", "Row", "Data", "Printed", "Ours, difference", "Run, or why there is none"]
WIDTHS = "11 14 12 10 18 35"


def difference(ours: list[float], printed: float) -> str:
    """Format ours − printed with Student's 95 % interval over our seeds, `printed` being exact."""
    mean = float(np.mean(ours)) - printed
    error = float(np.std(ours, ddof=1)) / len(ours) ** 0.5 if len(ours) > 1 else np.inf
    return interval(Effect(mean, error, len(ours) - 1, ""))


def _by_readout(row: dict, form: Callable[[list[float]], str]) -> str:
    """Format our accuracies, and those read out as released."""
    readouts = {"": row["found"], "as released ": row["released"]}
    return "; ".join(name + form(values) for name, values in readouts.items() if values)


def _line(row: dict) -> list:
    """Return where a number is printed, ours with its difference, and the command of its run."""
    cell, seeds = row["cell"], row["seeds"]
    column = "" if cell.column in (cell.dataset, cell.row) else f", {cell.column}"
    printed = f"{cell.value:g}" + ("" if np.isnan(cell.spread) else f" ± {cell.spread:g}")
    name = f"{paper_numbers.PAPERS[cell.paper]}, {cell.table}"
    where = [name, cell.row + column, cell.dataset, printed]
    if cell.run is None:
        return [*where, Markup(DASH), cell.reason]
    ours = _by_readout(row, lambda values: percent(np.array(values) / 100))
    ours += f" ({seeds} seed{'s' * (seeds != 1)})"
    gap = _by_readout(row, lambda values: difference(values, cell.value)).replace("\u00a0[", " [")
    shown = Markup(f"{myst(ours)} <br> {myst(gap)}" if seeds else DASH)
    remarks = [cell.ours and f"ours: {cell.ours}", cell.note, cell.remark]
    code = inline_code(run_queue.command(cell.run))
    return [*where, shown, Markup(f"{code} {myst('; '.join(filter(None, remarks)))}")]


def _counts(every: pd.DataFrame) -> str:
    """Return how many numbers of each paper are printed, have a run, and are on record."""
    has_run = [cell.run is not None for cell in every["cell"]]
    flags = every.assign(printed=True, runs=has_run, recorded=every["seeds"] > 0)
    counts = flags.groupby("paper", sort=False)[["printed", "runs", "recorded"]].sum()
    counts.loc["all"] = counts.sum()
    lines = [[paper_numbers.PAPERS.get(row[0], row[0]), *row[1:]] for row in counts.itertuples()]
    return table(["Paper", "Printed", "With a run", "Measured here"], lines)


def parts(frame) -> dict[str, str]:
    """Return the page's counts and all numbers, those on record first."""
    every = paper_numbers.table(frame)
    rows = sorted(every.to_dict("records"), key=lambda row: (not row["seeds"], not row["cell"].run))
    lines = [_line(row) for row in rows]
    return {"counts": _counts(every), "printed": table(HEAD, lines, WIDTHS)}


def write(folder: Path, runs) -> None:
    """Fill ``papers.md`` in ``folder``, the staged ``book``."""
    fill_placeholders(folder / "papers.md", parts(runs))
