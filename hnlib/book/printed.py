"""The generated page *The papers' numbers*: every printed number beside ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hnlib.book import pages, papers, queue
from hnlib.book.tables import DASH, Markup, percent
from hnlib.results.comparisons import Effect

HEAD = ["Row", "Column", "Data", "Printed", "Ours", "Difference", "Run, or why there is none"]
LISTED = 25  # runs of the queue that the page shows


def difference(ours: list[float], printed: float) -> str:
    """Format ours − printed with Student's 95 % interval over our seeds, `printed` being exact."""
    if not ours:
        return DASH
    mean = float(np.mean(ours)) - printed
    if len(ours) < 2:
        return f"{mean:+.1f}".replace("-", "−")
    error = float(np.std(ours, ddof=1)) / len(ours) ** 0.5
    effect = Effect(mean, error, len(ours) - 1, "")
    return f"{mean:+.1f} [{effect.low:+.1f}, {effect.high:+.1f}]".replace("-", "−")


def _by_readout(row: dict, form: Callable[[list[float]], str]) -> str:
    """Format our accuracies, and those read out as released."""
    readouts = {"": row["found"], "as released ": row["released"]}
    return "; ".join(name + form(values) for name, values in readouts.items() if values)


def _line(row: dict) -> list:
    cell = row["cell"]
    spread = "" if np.isnan(cell.spread) else f" ± {cell.spread:g}"
    ours = _by_readout(row, lambda values: percent(np.array(values) / 100))
    ours += f" ({pages.count(row['seeds'], 'seed')})" if ours else ""
    gap = _by_readout(row, lambda values: difference(values, cell.value))
    origin = cell.reason
    if cell.run is not None:
        remarks = [f"ours: {cell.ours}" if cell.ours else "", cell.note, cell.remark]
        text = "".join(f"; {remark}" for remark in remarks if remark)
        origin = Markup(pages.literal(papers.command(cell.run)) + pages.myst(text))
    return [cell.row, cell.column, cell.dataset, f"{cell.value:g}{spread}", ours, gap, origin]


def parts(frame, root: Path) -> dict[str, str]:
    """Return the page's summary, the tables of each paper, and the first runs of the queue.

    The table with the most missing numbers of a paper comes first; in it, the numbers with a run
    but no record, then those with a record, then those without a run.
    """
    every = papers.table(frame, root / "book/results/papers.csv")
    every["runs"] = [cell.run is not None for cell in every["cell"]]
    every["missing"] = every["runs"] & every["seeds"].eq(0)
    every["rank"] = 2 * ~every["runs"] - every["missing"].astype(int)
    summary, text = [], []
    for paper in papers.PAPERS:
        text += pages.paper_heading(paper, root, "##")
        tables = every[every["paper"] == paper].groupby("table", sort=False)
        for name, group in sorted(tables, key=lambda pair: -pair[1]["missing"].sum()):
            recorded = int((group["seeds"] > 0).sum())
            counts = [len(group), int(group["runs"].sum()), recorded, int(group["missing"].sum())]
            summary.append([papers.PAPERS[paper], name, *counts])
            ordered = group.sort_values("rank", kind="stable").to_dict(orient="records")  # pyright: ignore
            lines = [_line(row) for row in ordered]
            title = f"{pages.myst(name)}: {pages.count(len(group), 'number')}, {recorded} on record"
            text += [f"``````{{dropdown}} {title}", "", pages.table(HEAD, lines), "``````", ""]
    head = ["Paper", "Table", "Printed", "With a run", "On record", "Missing"]
    summary.append(["", "all", *(sum(row[k] for row in summary) for k in range(2, 6))])
    missing = queue.jobs(frame, device="cuda")
    first = []
    for job in missing[:LISTED]:
        command = pages.literal(papers.command(job.run, "--record"))
        first.append([job.numbers, queue.duration(job), command])
    total = f"Missing, with one seed: {queue.total(missing)}.\n\n"
    listed = pages.table(["Numbers", "Time", "Command"], first)
    return {
        "summary": pages.table(head, summary),
        "printed": "\n".join(text),
        "queue": total + listed,
    }


def write(folder: Path, runs, root: Path) -> None:
    """Fill ``papers.md`` in ``folder``, the staged ``book``."""
    pages.fill(folder / "papers.md", parts(runs, root))
