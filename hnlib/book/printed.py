"""The generated page *The papers' numbers*: every printed number, ours beside it, its command or
its reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hnlib.book import pages, papers, queue
from hnlib.book.tables import DASH, Markup, percent
from hnlib.results.comparisons import Effect

HEAD = ["Row", "Column", "Data", "Printed", "Ours", "Difference", "Run, or why there is none"]
LISTED = 25  # runs of the queue that the page shows


def difference(found: list[float], printed: float) -> str:
    """Ours − printed with Student's 95 % interval over our seeds; the printed number is taken as
    it stands."""
    if not found:
        return DASH
    mean = float(np.mean(found)) - printed
    if len(found) < 2:
        return f"{mean:+.1f}".replace("-", "−")
    between = float(np.std(found, ddof=1)) / len(found) ** 0.5
    effect = Effect(mean, between, len(found) - 1, "")
    return f"{mean:+.1f} [{effect.low:+.1f}, {effect.high:+.1f}]".replace("-", "−")


def _by_readout(row, tell: Callable[[list[float]], str]) -> str:
    """What is to be told of our accuracies, and of those read out as released."""
    found = {"": row["found"], "as released ": row["released"]}
    return "; ".join(name + tell(values) for name, values in found.items() if values)


def _line(row) -> list:
    cell = row["cell"]
    spread = "" if np.isnan(cell.spread) else f" ± {cell.spread:g}"
    ours = _by_readout(row, lambda found: percent(np.array(found) / 100))
    ours += f" ({pages.count(row['seeds'], 'seed')})" if ours else ""
    apart = _by_readout(row, lambda found: difference(found, cell.value))
    said = [f"ours: {', '.join(cell.ours)}" if cell.ours else "", cell.note, cell.remark]
    about = cell.reason
    if cell.run is not None:
        words = "".join(f"; {part}" for part in said if part)
        about = Markup(pages.literal(papers.command(cell.run)) + pages.myst(words))
    printed = f"{cell.value:g}{spread}"
    where = [cell.row, cell.column, cell.dataset, printed]
    return [*where, ours, apart, about]


def parts(frame, root: Path) -> dict[str, str]:
    """What stands on the page: a summary, the tables of each paper, the first runs of the queue.

    Of each paper's tables the one with most numbers missing comes first; in a table come the
    numbers that have a run but no record, then those with one, then those without a run.
    """
    every = papers.table(frame, root / "book/results/papers.csv")
    every["runs"] = [cell.run is not None for cell in every["cell"]]
    every["missing"] = every["runs"] & every["seeds"].eq(0)
    rows, text = [], []
    for paper in papers.PAPERS:
        text += pages.paper_heading(paper, root, "##")
        tables = every[every["paper"] == paper].groupby("table", sort=False)
        for name, group in sorted(tables, key=lambda pair: -pair[1]["missing"].sum()):
            counts = [len(group), int(group["runs"].sum()), int((group["seeds"] > 0).sum())]
            rows.append([papers.PAPERS[paper], name, *counts, int(group["missing"].sum())])
            ranks = [2 * (not r) - m for r, m in zip(group["runs"], group["missing"])]
            order = group.assign(rank=ranks).sort_values("rank", kind="stable")
            lines = [_line(row) for row in order.to_dict("records")]
            title = f"{pages.myst(name)}: {pages.count(counts[0], 'number')}, {counts[2]} on record"
            text += [f"``````{{dropdown}} {title}", "", pages.table(HEAD, lines), "``````", ""]
    head = ["Paper", "Table", "Printed", "With a run", "On record", "Missing"]
    rows.append(["", "all", *(sum(row[k] for row in rows) for k in range(2, 6))])
    found = queue.jobs(frame, device="cuda")
    first = []
    for job in found[:LISTED]:
        how = f"{job.minutes:.1f}", "measured" if job.measured else "estimated"
        first.append([job.numbers, *how, pages.literal(papers.command(job.run, "--record"))])
    listed = pages.table(["Numbers", "Minutes", "", "Command"], first)
    hours = sum(job.minutes for job in found) / 60
    more = f"{len(found)} runs of one seed are missing, about {hours:,.0f} hours.\n\n"
    return {"summary": pages.table(head, rows), "printed": "\n".join(text), "queue": more + listed}


def write(folder: Path, runs, root: Path) -> None:
    """Fill ``papers.md`` in ``folder``, the staged ``book``."""
    pages.fill(folder / "papers.md", parts(runs, root))
