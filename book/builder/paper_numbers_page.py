"""The generated page *The papers' numbers*: every printed number beside ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from builder.ledger_pages import duration, fill_placeholders, inline_code, pluralise, table
from hnbook import paper_numbers
from hnbook.tables import DASH, Markup, interval, myst, percent
from hnlib.experiments import run_queue, runner
from hnlib.experiments.comparisons import Effect

WHERE = ["Printed in", "Row", "Data", "Printed"]
HEAD = [*WHERE, "Ours, difference", "State", "Run, or why there is none"]
WIDTHS = "11 14 12 10 14 9 30"
QUICK = 4  # of the numbers that are reproduced fastest
SEEDS = 5  # of one setting, from which the deviation of a seed is estimated
SETTING = ["dataset", "method", "options", "framework", "labels", "epochs", "lr", "batch_size"]


def difference(ours: list[float], printed: float) -> str:
    """Format ours − printed with Student's 95 % interval over our seeds, `printed` being exact."""
    mean = float(np.mean(ours)) - printed
    error = float(np.std(ours, ddof=1)) / len(ours) ** 0.5 if len(ours) > 1 else np.inf
    return interval(Effect(mean, error, len(ours) - 1, ""))


def _by_readout(row: dict, form: Callable[[list[float]], str]) -> str:
    """Format our accuracies, and those read out as released."""
    readouts = {"": row["found"], "as released ": row["released"]}
    return "; ".join(name + form(values) for name, values in readouts.items() if values)


def _where(cell: paper_numbers.Cell) -> list[str]:
    column = "" if cell.column in (cell.dataset, cell.row) else f", {cell.column}"
    printed = f"{cell.value:g}" + ("" if np.isnan(cell.spread) else f" ± {cell.spread:g}")
    name = f"{paper_numbers.PAPERS[cell.paper]}, {cell.table}"
    return [name, cell.row + column, cell.dataset, printed]


def _ours(row: dict) -> str:
    ours = _by_readout(row, lambda values: percent(np.array(values) / 100))
    return f"{ours} ({pluralise(row['seeds'], 'seed')})" if ours else ""


def _line(row: dict, minutes: dict[str, float]) -> list:
    cell = row["cell"]
    gap = _by_readout(row, lambda values: difference(values, cell.value)).replace("\u00a0[", " [")
    ours = Markup(f"{myst(_ours(row))} <br> {myst(gap)}" if row["seeds"] else DASH)
    if cell.run is None:
        return [*_where(cell), ours, "no run", cell.reason]
    time = minutes.get(cell.key)  # of a run that is missing
    remarks = [cell.ours and f"ours: {cell.ours}", cell.note, cell.remark]
    remarks += [
        duration(row["seconds"]) if row["seeds"] else "",
        time and f"{time:.0f} min on a CPU",
    ]
    code = inline_code(run_queue.command(cell.run))
    origin = Markup(f"{code} {myst('; '.join(filter(None, remarks)))}")
    return [*_where(cell), ours, "on record" if row["seeds"] else "no record yet", origin]


def _quick(rows: list[dict]) -> str:
    """Return the numbers on record that take the least time, one of each paper's data set."""
    fastest = {}
    for row in sorted(rows, key=lambda row: row["seconds"]):
        if row["seeds"]:
            fastest.setdefault(row["cell"].dataset, row)
    lines = []
    for row in [*fastest.values()][:QUICK]:
        command = inline_code(run_queue.command(row["cell"].run))
        lines.append([*_where(row["cell"]), _ours(row), duration(row["seconds"]), command])
    return table([*WHERE, "Ours", "Time", "Command"], lines)


def _apart(every: pd.DataFrame, frame: pd.DataFrame) -> str:
    """Return by graph set which of our numbers are far from print, for what a seed changes."""
    runs = frame[frame["kind"] == "graphs"].groupby(SETTING, dropna=False)["svm"]
    settings = runs.agg(["std", "count"]).query(f"count >= {SEEDS}").reset_index()
    deviations = 100 * settings.groupby("dataset")["std"].median()
    lines = []
    recorded = every[every["recorded"] & (every["kind"] == "graphs")]
    for name, group in recorded.groupby("dataset", sort=False):
        gaps = [np.mean(ours) - cell.value for ours, cell in zip(group["found"], group["cell"])]
        deviation = float(deviations.get(name, np.nan))
        far = [
            f"{paper_numbers.PAPERS[cell.paper]}, {cell.row} {gap:+.1f}"
            for cell, gap in zip(group["cell"], gaps)
            if abs(gap) > 2 * deviation
        ]
        beyond = sum(abs(gap) > 2 for gap in gaps)
        shown = DASH if np.isnan(deviation) else f"{deviation:.1f}"
        lines.append([name, shown, len(gaps), beyond, "; ".join(far).replace(" -", " −")])
    head = ["Data", "Deviation of a seed", "Numbers", "More than 2 points from print"]
    return table([*head, "More than two deviations from print"], lines, "16 14 12 14 44")


def _counts(every: pd.DataFrame, by: list[str], head: list[str]) -> str:
    """Return how many numbers of each group are printed, have a run, and are on record."""
    groups: Any = every.groupby(by, sort=False)[["printed", "runs", "recorded", "alone"]].sum()
    lines = groups.reset_index().sort_values("recorded", ascending=False, kind="stable")
    lines = [*lines.values.tolist(), ["all", *[""] * (len(by) - 1), *groups.sum()]]
    return table([*head, "Printed", "With a run", "Measured here", "Of these, one seed"], lines)


def parts(frame) -> dict[str, str]:
    """Return the page's counts, the quickest numbers, all of them, and how many are missing."""
    every: Any = paper_numbers.table(frame)
    runs = [cell.run for cell in every["cell"]]
    every = every.assign(
        title=every["paper"].map(paper_numbers.PAPERS),
        kind=[run.kind if run else "without a run" for run in runs],
        printed=1,
        runs=[int(run is not None) for run in runs],
        recorded=(every["seeds"] > 0).astype(int),
        alone=(every["seeds"] == 1).astype(int),
    )
    missing = {c.key: c.run for c in every["cell"][every["seeds"] == 0] if c.run is not None}
    images = sum(run.kind == "images" for run in missing.values())
    minutes = {key: runner.seconds(run.resolved()) for key, run in missing.items()}
    minutes = {key: one / 60 for key, one in minutes.items() if one is not None}
    # those on record first
    rows = sorted(every.to_dict("records"), key=lambda row: -row["runs"] - row["recorded"])
    return {
        "counts": _counts(every, ["kind"], ["On"]),
        "images": pluralise(images, "run"),
        "summary": _counts(every, ["title", "table"], ["Paper", "Table"]),
        "quick": _quick(rows),
        "apart": _apart(every, frame),
        "printed": table(HEAD, [_line(row, minutes) for row in rows], WIDTHS),
        "missing": f"{len(missing)} runs; the {len(minutes)} whose time is known take "
        f"{sum(minutes.values()) / 60:,.1f} hours",
    }


def write(folder: Path, runs) -> None:
    """Fill ``papers.md`` in ``folder``, the staged ``book``."""
    fill_placeholders(folder / "papers.md", parts(runs))
