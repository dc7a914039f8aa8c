"""Losses on trial: what the ledger compares, and how often a comparison detects a lead."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from scipy import stats

from hnbook import figures
from hnbook.figures import COLOURS, GREY
from hnbook.tables import TITLES, interval
from hnlib import experiments
from hnlib.experiments import null_verdicts
from hnlib.experiments.comparisons import Effect

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
    return null_verdicts.MARGINS[experiments.load(null_verdicts.PROTOCOL).metric(block)]


@functools.cache
def spreads() -> dict[str, float]:
    """Return the deviation of a difference, in points, by task whose selection is recorded."""
    protocol = experiments.load(null_verdicts.PROTOCOL)
    found = {block: null_verdicts.deviation(protocol, block) for block in TASKS}
    return {block: spread for block, spread in found.items() if spread is not None}


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
    return null_verdicts.word(judged(loss, base)[block], margin(block))


def summary(block: str) -> str:
    """Return which published losses beat a tuned temperature on a task, and which lose to it."""
    words = {title: verdict(loss, block) for loss, title in LOSSES.items()}
    ahead, behind = (
        [title for title, word in words.items() if word == wanted] for wanted in ("beats", "loses")
    )
    text = f"on {TASKS[block]} {_listed(ahead, 'beat') if ahead else 'none beats'} it"
    return f"{text} and {_listed(behind, 'lose')} to it" if behind else text


def _listed(names: list[str], verb: str) -> str:
    """Join names with commas and "and", and make the verb singular or plural to match."""
    *some, last = names
    one = f"{', '.join(some)} and {last}" if some else last
    return f"{one} {verb}" + "s" * (len(names) == 1)


def line(
    loss: str, title: str, base: str = "N1", of: str = "losses-on-trial", beside: bool = False
) -> dict[str, str] | None:
    """Return a line of the ledger, a column for each recorded task; None without any.

    Only the metric that decides is judged; the other one, `beside` it, gets no verdict.
    """
    cells = {}
    for block, found in judged(loss, base, of, beside).items():
        metric = metrics(block, of)[beside]
        word = "" if beside else null_verdicts.word(found, margin(block))
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


def landscape(trials: int, rng) -> np.ndarray:
    """Return true scores [trials, 64] of configurations, in points; the best of each has 0."""
    scores = rng.normal(0, 1.0, (trials, 64))
    return scores - scores.max(1, keepdims=True)


def chosen(scores: np.ndarray, deviation: float, rng) -> np.ndarray:
    """Return the true score of the configuration that is best on two validation seeds."""
    seen = scores + rng.normal(0, deviation / 2**0.5, scores.shape)
    return np.take_along_axis(scores, seen.argmax(1)[:, None], 1)


def beats(lead: float, tuned: int = 64, trials: int = 4000, seed: int = 0) -> np.ndarray:
    """Return whether a loss with a true lead beats a null model of that many configurations.

    bool [trials, tasks]. The lead is the same on every task.
    """
    rng, found = np.random.default_rng(seed), []
    for block, spread in spreads().items():
        ours = chosen(landscape(trials, rng), spread / 2**0.5, rng) + lead
        base = chosen(landscape(trials, rng)[:, :tuned], spread / 2**0.5, rng)
        d = ours - base + rng.normal(0, spread, (trials, 10))
        half = stats.t.isf(0.025 / len(TASKS), 9) * d.std(1, ddof=1) / 10**0.5
        found.append(d.mean(1) - half > margin(block))
    return np.stack(found, 1)
