"""Simulate null model 2 before it is trained: how its controls come out, and what it can find.

    PYTHONPATH=book python book/recorders/null_design.py

writes `book/results/null_design.json` (about an hour of one idle core). New seeds are
drawn from recorded ones: a training scores the mean of two recorded seeds of its setting plus the
deviation of a seed from its mean, that of a random setting with a random sign, query by query.
"""

import math
from dataclasses import replace

import ledgers
import numpy as np

from hnlib import experiments
from hnlib.experiments import comparisons, null, selection

TRIALS = 200
KEPT = 8  # settings of a side: the rest is hardly ever among the four best
SPLITS = 8  # halves of the queries; a verdict has more
BANKING = ("batch-rates", "Banking77", "random t{} *", ("ndcg",))
DIGITS = ("null-1", "digits", "N1 t{} x120 *", ("knn", "knn_validation"))
SOURCES = {"banking": BANKING, "digits": DIGITS}  # experiment, block, settings, read-outs
LABELS = {  # what labels gain there: experiment, with them, without
    "banking": ("batches", "random masked", "random"),
    "digits": ("losses-on-trial", "labels", "N1"),
}
TEMPERATURES = {
    "banking": [0.05, 0.1, 0.2, 0.5],
    "digits": [0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0],
}


def scores(task: str, experiment, arm: str) -> np.ndarray:
    """Return the scores of an arm [seeds, queries] by the read-outs of a task."""
    _, block, _, metrics = SOURCES[task]
    group = experiment.group(arm, block)
    return np.hstack([1.0 * comparisons.by_example(group, metric) for metric in metrics])


def recorded(task: str) -> np.ndarray:
    """Return the recorded scores [temperatures, rates, 2 seeds, queries]."""
    name, block, pattern, _ = SOURCES[task]
    experiment = experiments.load(name)
    rows = [experiment.matching(pattern.format(t), block) for t in TEMPERATURES[task]]
    return np.stack([[scores(task, experiment, arm) for arm in arms] for arms in rows])


def gain(task: str) -> float:
    """Return what labels gained in recorded runs, in points, over all examples that are scored."""
    name, *arms = LABELS[task]
    ours, base = (scores(task, experiments.load(name), arm).mean() for arm in arms)
    return 100 * float(ours - base)


def landscape(task: str, shrunk: bool, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return true scores [settings, queries] and deviations of seeds [settings, queries].

    The mean of two seeds spreads more than the truth; `shrunk` takes that part of the spread
    between the better half of the settings away. `factor` multiplies the temperatures.
    """
    x = recorded(task)
    true, deviation = x.mean(2), (x[:, :, 0] - x[:, :, 1]) / math.sqrt(2)
    t = np.log(TEMPERATURES[task])
    if task == "banking":  # between the recorded temperatures
        between = (true[1:] + true[:-1]) / 2
        order = np.argsort(np.concatenate([t, (t[1:] + t[:-1]) / 2]))
        true, t = np.concatenate([true, between])[order], np.sort([*t, *(t[1:] + t[:-1]) / 2])
    part = math.log(factor) / np.diff(t)[:, None, None]
    true = np.concatenate([(1 - part) * true[:-1] + part * true[1:], true[-1:]])
    true = true.reshape(-1, x.shape[-1])
    deviation = deviation.reshape(-1, x.shape[-1])
    if shrunk:
        mean = true.mean(1)
        better = mean[mean >= np.median(mean)]
        noise = np.var(deviation.mean(1)) / 2
        kept = math.sqrt(max(0.0, 1 - noise / np.var(better)))
        true = true - (1 - kept) * (mean - better.mean())[:, None]
    return true.astype(np.float32), deviation.astype(np.float32)


def side(rng, true: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return scores [settings, seeds, queries] as the protocol trains them, NaN where it does not."""
    choosing, fresh = len(null.protocol().seeds), null.FRESH

    def drawn(shape) -> np.ndarray:
        sign = rng.choice([-1, 1], (*shape, 1)).astype(np.float32)
        return sign * deviation[rng.integers(len(deviation), size=shape)]

    scores = np.full((len(true), choosing + fresh, true.shape[1]), np.nan, np.float32)
    scores[:, :choosing] = true[:, None] + drawn((len(true), choosing))
    order = (-scores[:, :choosing].mean((1, 2))).argsort()
    for setting in order[: null.BEST]:
        scores[setting, choosing:] = true[setting] + drawn((fresh,))
    return scores[order[:KEPT]]


def shares(task: str, shrunk: bool, world: tuple[float, float]) -> dict[str, float]:
    """Return how often each verdict is given; `world` is our lead and the temperatures' factor."""
    lead, factor = world
    rng, margin = np.random.default_rng(0), null.protocol().blocks[task]["matters"]
    count, words = len(null.protocol().blocks), []
    ours, base = landscape(task, shrunk, factor), landscape(task, shrunk)
    for _ in range(TRIALS):
        sides = side(rng, *ours) + np.float32(lead / 100), side(rng, *base)
        effect = selection.cross_fit(*sides, splits=SPLITS, best=null.BEST)
        effect = replace(effect, family=count, holm=min(1.0, count * effect.p))
        words.append(comparisons.verdict(effect, margin))
    return {word: words.count(word) / TRIALS for word in sorted({*words})}


def main() -> None:
    """Write what the simulation finds."""
    found = {}
    for task in SOURCES:
        margin, gained = null.protocol().blocks[task]["matters"], gain(task)
        worlds = {"identity": (0.0, 1.0), "disguise": (0.0, 1.07), "two margins": (2 * margin, 1.0)}
        worlds["labels"] = (gained, 1.0)
        score = 100 * float(landscape(task, False)[0].mean(1).max())
        found[task] = {"margin": margin, "gain of labels": gained, "score": score} | {
            name: {
                ("shrunk" if shrunk else "as recorded"): shares(task, shrunk, world)
                for shrunk in (False, True)
            }
            for name, world in worlds.items()
        }
    design = {"choosing": len(null.protocol().seeds), "fresh": null.FRESH, "best": null.BEST}
    ledgers.write("null_design.json", {"trials": TRIALS, "design": design, "tasks": found})


if __name__ == "__main__":
    main()
