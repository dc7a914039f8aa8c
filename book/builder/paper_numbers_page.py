"""The generated page *The papers' numbers*: every printed number beside ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from builder import ledger_pages
from hnbook import paper_numbers
from hnbook.tables import DASH, Markup, interval, myst, percent
from hnlib.experiments import evidence, run_queue, runner
from hnlib.experiments.comparisons import Effect

WHERE = ["Printed in", "Row", "Data", "Printed"]
HEAD = [*WHERE, "Ours, difference", "State", "Run, or why there is none"]
WIDTHS = "11 14 12 10 14 9 30"
QUICK = 4  # of the numbers that are reproduced fastest
SEEDS = 5  # of one setting, from which the deviation of a seed is estimated
SETTING = ["dataset", "method", "options", "framework", "labels", "epochs", "lr", "batch_size"]


def difference(ours: list[float], printed: float) -> str:
    """Format ours − printed with Student's 95 % interval over our seeds, `printed` being exact."""
    if not ours:
        return DASH
    mean = float(np.mean(ours)) - printed
    error = float(np.std(ours, ddof=1)) / len(ours) ** 0.5 if len(ours) > 1 else np.inf
    return interval(Effect(mean, error, len(ours) - 1, ""))


def _by_readout(row: dict, form: Callable[[list[float]], str]) -> str:
    """Format our accuracies, and those read out as released."""
    readouts = {"": row["found"], "as released ": row["released"]}
    return "; ".join(name + form(values) for name, values in readouts.items() if values)


def _where(cell: paper_numbers.Cell) -> list[str]:
    column = "" if cell.column in (cell.dataset, cell.row) else f", {cell.column}"
    return [f"{paper_numbers.PAPERS[cell.paper]}, {cell.table}", cell.row + column, cell.dataset]


def _ours(row: dict) -> str:
    ours = _by_readout(row, lambda values: percent(np.array(values) / 100))
    return f"{ours} ({ledger_pages.pluralise(row['seeds'], 'seed')})" if ours else ""


def _line(row: dict, minutes: dict[str, float]) -> list:
    cell = row["cell"]
    spread = "" if np.isnan(cell.spread) else f" ± {cell.spread:g}"
    gap = _by_readout(row, lambda values: difference(values, cell.value)).replace("\u00a0[", " [")
    origin = cell.reason
    if cell.run is not None:
        time = minutes.get(cell.key)  # of a run that is missing
        remarks = [f"ours: {cell.ours}" if cell.ours else "", cell.note, cell.remark]
        remarks += [ledger_pages.duration(row["seconds"]) if row["seeds"] else ""]
        remarks += [f"{time:.0f} min on a CPU" if time else ""]
        code = ledger_pages.inline_code(run_queue.command(cell.run))
        origin = Markup(f"{code} {myst('; '.join(filter(None, remarks)))}")
    state = "on record" if row["seeds"] else "no record yet" if cell.run else "no run"
    printed = f"{cell.value:g}{spread}"
    ours = Markup(f"{myst(_ours(row))} <br> {myst(gap)}" if row["seeds"] else DASH)
    return [*_where(cell), printed, ours, state, origin]


def _quick(rows: list[dict]) -> str:
    """Return the numbers on record that take the least time, one of each paper's data set."""
    fastest = {}
    for row in sorted(rows, key=lambda row: row["seconds"]):
        if row["seeds"]:
            fastest.setdefault(row["cell"].dataset, row)
    lines = []
    for row in [*fastest.values()][:QUICK]:
        cell = row["cell"]
        command = ledger_pages.inline_code(run_queue.command(cell.run))
        time = ledger_pages.duration(row["seconds"])
        lines.append([*_where(cell), f"{cell.value:g}", _ours(row), time, command])
    return ledger_pages.table([*WHERE, "Ours", "Time", "Command"], lines)


def _apart(every: pd.DataFrame, frame: pd.DataFrame) -> str:
    """Return by graph set which of our numbers are far from print, for what a seed changes."""
    recorded = every[every["recorded"] & (every["kind"] == "graphs")]
    if recorded.empty:
        return ledger_pages.NONE_YET
    runs = frame[frame["kind"] == "graphs"].groupby(SETTING, dropna=False)["svm"]
    settings = runs.agg(["std", "count"]).query(f"count >= {SEEDS}").reset_index()
    deviations = 100 * settings.groupby("dataset")["std"].median()
    lines = []
    for name, group in recorded.groupby("dataset", sort=False):
        gaps = [np.mean(ours) - cell.value for ours, cell in zip(group["found"], group["cell"])]
        deviation = float(deviations.get(name, np.nan))
        far = [
            f"{paper_numbers.PAPERS[cell.paper]}, {cell.row} " + f"{gap:+.1f}".replace("-", "−")
            for cell, gap in zip(group["cell"], gaps)
            if abs(gap) > 2 * deviation
        ]
        beyond = sum(abs(gap) > 2 for gap in gaps)
        shown = DASH if np.isnan(deviation) else f"{deviation:.1f}"
        lines.append([name, shown, len(gaps), beyond, "; ".join(far)])
    head = ["Data", "Deviation of a seed", "Numbers", "More than 2 points from print"]
    head += ["More than two deviations from print"]
    return ledger_pages.table(head, lines, "16 14 12 14 44")


def _on_record(every: pd.DataFrame) -> str:
    """Return how many of the numbers are on record, by kind of data and in all."""
    kinds = every["kind"].fillna("without a run")
    lines = []
    for kind, group in [*every.groupby(kinds), ("**all**", every)]:
        recorded, alone = group["recorded"].sum(), (group["seeds"] == 1).sum()
        lines.append([Markup(kind), len(group), recorded, alone])
    return ledger_pages.table(["On", "Printed", "Measured here", "Of these, one seed"], lines)


def _summary(every: pd.DataFrame) -> str:
    """Return how many numbers of each table are on record; tables without any fold."""
    rows = {True: [], False: []}
    for paper, title in paper_numbers.PAPERS.items():
        for name, group in every[every["paper"] == paper].groupby("table", sort=False):
            runs, recorded = int(group["runs"].sum()), int(group["recorded"].sum())
            rows[recorded > 0].append([title, name, len(group), runs, recorded, runs - recorded])
    head = ["Paper", "Table", "Printed", "With a run", "On record", "Missing"]
    whole = every[["runs", "recorded"]].sum()
    whole = [len(every), *whole, whole["runs"] - whole["recorded"]]
    shown = ledger_pages.table(head, [*rows[True], ["", "all", *map(int, whole)]])
    rest = ledger_pages.table([*head[:4]], [row[:4] for row in rows[False]])
    title = f"{len(rows[False])} tables without a number on record"
    return f"{shown}\n::::{{dropdown}} {title}\n{rest}::::\n"


def _statistics(path: Path) -> str:
    """Return the printed statistics of graph sets beside those of the sets as they are loaded."""
    lines = []
    for row in pd.read_csv(path).to_dict("records"):
        counts = [f"{row[n]:,} / {row[f'loaded_{n}']:,}" for n in ("graphs", "classes")]
        means = [f"{row[n]:.2f} / {row[f'loaded_{n}']:.3f}" for n in ("nodes", "edges")]
        lines.append([f"HCL, {row['table']}", row["dataset"], *counts, *means])
    return ledger_pages.table(["Printed in", "Data", "Graphs", "Classes", "Nodes", "Edges"], lines)


def parts(frame) -> dict[str, str]:
    """Return the page's summary, the quickest numbers, all of them, and how many are missing."""
    every: Any = paper_numbers.table(frame)
    every["runs"] = [cell.run is not None for cell in every["cell"]]
    every["kind"] = [cell.run and cell.run.kind for cell in every["cell"]]
    every["recorded"] = every["seeds"] > 0
    missing = {c.key: c.run for c in every["cell"][~every["recorded"]] if c.run is not None}
    images = sum(run.kind == "images" for run in missing.values())
    minutes = {key: runner.seconds(run.resolved()) for key, run in missing.items()}
    minutes = {key: one / 60 for key, one in minutes.items() if one is not None}
    # those on record first
    rows = sorted(every.to_dict("records"), key=lambda row: -row["runs"] - row["recorded"])
    return {
        "counts": _on_record(every),
        "images": ledger_pages.pluralise(images, "run"),
        "summary": _summary(every),
        "quick": _quick(rows),
        "apart": _apart(every, frame),
        "statistics": _statistics(evidence.path("graph_sets.csv")),
        "printed": ledger_pages.table(HEAD, [_line(row, minutes) for row in rows], WIDTHS),
        "missing": f"{len(missing)} runs; the {len(minutes)} whose time is known take "
        f"{sum(minutes.values()) / 60:,.1f} hours",
    }


def write(folder: Path, runs) -> None:
    """Fill ``papers.md`` in ``folder``, the staged ``book``."""
    ledger_pages.fill_placeholders(folder / "papers.md", parts(runs))
