"""The ledger of null model 1, which is closed: losses against a tuned temperature."""

from __future__ import annotations

import functools
from dataclasses import replace

from hnbook import figures
from hnbook.figures import COLOURS, GREY
from hnbook.tables import TITLES, interval
from hnlib import experiments
from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect

MARGINS = {"ndcg": 1.0, "knn": 0.5}  # points that would matter
TASKS = {
    "digits": "digits",
    "static": "SciFact, static bag",
    "random": "SciFact, random bag",
    "films": "MovieLens",
}
LOSSES = {
    "weince": "WEINCE",
    "artanh": "Artanh",
    "bpr": "BPR",
    "focal": "Focal InfoNCE",
    "llave": "LLaVE's weights",
}
FILES = {  # of examples/losses
    "amplifier": "gradient amplifier",
    "filter": "ColPali's filter",
    "scales": "dual scales",
}
CONTROLS = {
    "tilt": "a tilt held fixed",
    "warm": "temperatures that N₁ lacks",
    "one": "InfoNCE at t = 1",
    "labels": "labels as positives",
}


def margin(block: str) -> float:
    """Return the difference, in points, that matters on a task."""
    return MARGINS[experiments.load("null-1").metric(block)]


def metrics(block: str, of: str = "losses-on-trial") -> tuple[str, str]:
    """Return the metric that decides on a task, and the one that is shown beside it."""
    trial = experiments.load(of)
    return trial.metric(block), trial.secondary_metric(trial.metric(block))


@functools.cache
def judged(
    loss: str,
    base: str = "N1",
    of: str = "losses-on-trial",
    beside: bool = False,
    target: str = "these images",
) -> dict[str, Effect]:
    """Return the differences of a loss on the tasks that are recorded, corrected for all four.

    They are those of the metric that decides, or of the one `beside` it; `target` as in `between`.
    """
    trial = experiments.load(of)
    count, found = len(TASKS), {}
    for block in trial.blocks_with([loss, base]):
        if not trial.waiting([(loss, base)], [block]):
            one = trial.effect(loss, base, metrics(block, of)[beside], block, target)
            found[block] = replace(one, family=count, holm=min(1.0, count * one.p))
    return found


def verdict(loss: str, block: str, base: str = "N1") -> str:
    """Return the word for a loss on a task."""
    return comparisons.verdict(judged(loss, base)[block], margin(block))


def line(
    loss: str, title: str, base: str = "N1", of: str = "losses-on-trial", beside: bool = False
) -> dict[str, str] | None:
    """Return a line of the ledger, a column for each recorded task; None without any.

    Only the metric that decides is judged; the other one, `beside` it, gets no verdict.
    """
    cells = {}
    for block, found in judged(loss, base, of, beside).items():
        metric = metrics(block, of)[beside]
        word = "" if beside else comparisons.verdict(found, margin(block))
        cells[f"{TASKS[block]}, {TITLES.get(metric, metric)}"] = f"{interval(found)} {word}".strip()
    return {"loss": title} | cells if cells else None


def draw(ax, block: str) -> None:
    """Draw what losses gain over the tuned temperature on a task; controls are filled."""
    rows = {"N2": "N₂: another loudness"} | LOSSES | CONTROLS
    half = margin(block)
    ax.axvspan(-half, half, color=GREY, alpha=0.2, lw=0)
    shown = [loss for loss in rows if block in judged(loss)]
    for row, loss in enumerate(shown):
        figures.effect(ax, judged(loss)[block], row, COLOURS["accent"], loss not in CONTROLS)
    figures.effect_rows(ax, [rows[loss] for loss in shown], "minus N₁ [points]")
    ax.set_title(TASKS[block])
