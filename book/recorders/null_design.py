"""Simulate null model 3 before it is trained: what it can find, and what it must not.

    PYTHONPATH=book python book/recorders/null_design.py

writes `book/results/null_design.json` (about a quarter of an hour of two idle cores). Scores are
drawn around the landscapes that null model 2 recorded, 16 temperatures at four rates, between which
they are interpolated. A new seed is a random mixture of the deviations of the eight recorded ones,
so that settings and queries covary over seeds as they did. Two more landscapes have these
deviations and other means: a sharp optimum, which falls by a third of the margin a step of N1's
grid and lies between two of its temperatures, and one that moves with the rate.
"""

import functools
import itertools
import math
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import ledgers
import numpy as np

from hnlib import experiments
from hnlib.experiments import comparisons, null, selection

TRIALS = 100
SPLITS = 8  # halves of the queries; a verdict has more
BEST = 14  # settings of a side that may be chosen: others never are
LANDSCAPES = ("as recorded", "sharp", "moving")
SCENARIOS = (
    "identity",
    "any 1",
    "any 2",
    "any 4",
    "any 8",
    "near 1",
    "near 2",
    "near 4",
    "two margins",
)
RANGE = (0.05, 0.53)  # of the temperatures of random sets
READOUTS = {"banking": ("ndcg",), "digits": ("knn", "knn_validation")}


def recorded(task: str) -> tuple[np.ndarray, np.ndarray]:
    """Return temperatures and mean scores by halves [temperatures, rates, seeds, halves]."""
    recorded, found = experiments.recorded("null-2"), {}
    for family in ("N1", "disguise"):
        for arm in recorded.design.matching(f"{family} *", task):
            _, t, lr = arm.split()
            group = recorded.group(arm, task)
            parts = [comparisons.by_example(group, metric) for metric in READOUTS[task]]
            scores = np.hstack([1.0 * part for part in parts])
            found[float(t[1:]), float(lr[2:])] = selection.halved(scores[None], SPLITS)[0]
    temperatures, rates = (sorted({key[k] for key in found}) for k in (0, 1))
    return np.array(temperatures), np.array([[found[t, r] for r in rates] for t in temperatures])


class Landscape:
    """True scores and deviations of seeds at any temperature, at four rates."""

    def __init__(self, task: str, kind: str):
        self.temperatures, scores = recorded(task)
        self.true = scores.mean(2)
        self.deviations = (scores - self.true[:, :, None]) / math.sqrt(scores.shape[2] - 1)
        self.margin = null.protocol().blocks[task]["matters"] / 100
        self.grid = temperatures_of_n1(task)
        self.kind = kind

    def means(self, t: np.ndarray, rough: np.ndarray) -> np.ndarray:
        """Return the mean scores that the landscape has, from those recorded [settings, rates]."""
        if self.kind == "as recorded":
            return rough
        best = self.true.mean(2).max(0)
        k = int(
            np.abs(np.log(self.grid / self.temperatures[self.true.mean((1, 2)).argmax()])).argmin()
        )
        between = np.log(self.grid[k : k + 2])
        if self.kind == "sharp":
            step = self.margin / 3 / np.diff(between)
            return best - step * np.abs(np.log(t)[:, None] - between.mean())
        centres = between.mean() + np.array([-0.6, -0.2, 0.2, 0.6])
        return (best + best.max()) / 2 - 0.02 * (np.log(t)[:, None] - centres) ** 2

    def at(self, several) -> tuple[np.ndarray, np.ndarray]:
        """Return true scores [settings, halves] and deviations [settings, seeds, halves]."""
        t, own = np.asarray(several, float), np.log(self.temperatures)
        k = np.clip(np.searchsorted(own, np.log(t)) - 1, 0, len(own) - 2)
        part = np.clip((np.log(t) - own[k]) / (own[k + 1] - own[k]), 0, 1)[:, None, None]
        true = (1 - part) * self.true[k] + part * self.true[k + 1]
        true += (self.means(t, true.mean(2)) - true.mean(2))[:, :, None]
        part = part[..., None]
        low, high = self.deviations[k], self.deviations[k + 1]
        mixed = (1 - part) * low + part * high
        size, *ends = ((x**2).sum((2, 3), keepdims=True) for x in (mixed, low, high))
        mixed = mixed * np.sqrt(((1 - part) * ends[0] + part * ends[1]) / size)
        return true.reshape(-1, true.shape[-1]), mixed.reshape(-1, *mixed.shape[2:])

    @functools.cached_property
    def near(self) -> np.ndarray:
        """Return temperatures less than a third of the margin below the best of all."""
        fine = np.geomspace(*RANGE, 80)
        heights = [self.at(t)[0].mean(1).reshape(-1, 4).max(1) for t in (fine, self.grid)]
        return fine[heights[0] > max(map(np.max, heights)) - self.margin / 3]


def temperatures_of_n1(task: str) -> np.ndarray:
    """Return the temperatures of N1."""
    design = null.protocol()
    arms = [design.arms[task][name] for name in design.matching("N1 *", task)]
    return np.array(sorted({one["options"]["temperature"] for one in arms}))


def side(true, deviations, mixtures) -> np.ndarray:
    """Return scores [settings, seeds, halves] as the protocol trains them, NaN where it does not."""
    choosing = len(null.protocol().seeds)
    first = true[:, None] + np.einsum("sk,nkh->nsh", mixtures[:choosing], deviations)
    order = (-first.mean((1, 2))).argsort(kind="stable")[:BEST]
    scores = np.full((len(order), len(mixtures), true.shape[1]), np.nan)
    scores[:, :choosing] = first[order]
    kept = order[: null.FINALISTS]
    fresh = np.einsum("sk,nkh->nsh", mixtures[choosing:], deviations[kept])
    scores[: len(kept), choosing:] = true[kept, None] + fresh
    return scores


def temperatures(world: Landscape, scenario: str, rng) -> np.ndarray:
    """Return the temperatures of a trial."""
    kind, _, count = scenario.rpartition(" ")
    if kind == "any":
        return np.exp(rng.uniform(*np.log(RANGE), int(count)))
    if kind == "near":
        return rng.choice(world.near, int(count))
    return world.grid if scenario == "identity" else rng.choice(world.near, 4)


def shares(task: str, world: Landscape, scenario: str) -> dict[str, float]:
    """Return how often each verdict is given; sets of temperatures have the seeds of N1."""
    protocol, rng, words = null.protocol(), np.random.default_rng(0), Counter()
    block, base, count = protocol.blocks[task], world.at(world.grid), len(protocol.blocks)
    lead = 2 * block["matters"] if scenario == "two margins" else 0.0
    for _ in range(TRIALS):
        shape = (len(protocol.seeds) + block["fresh"], world.deviations.shape[2])
        mixtures = rng.standard_normal(shape)
        is_paired = scenario not in ("identity", "two margins")
        own = mixtures if is_paired else rng.standard_normal(shape)
        true, deviations = world.at(temperatures(world, scenario, rng))
        ours = side(true + lead / 100, deviations, own)
        theirs, choosing = side(*base, mixtures), len(protocol.seeds)
        effect = selection.fit(ours, theirs, choosers=choosing)
        effect = replace(effect, family=count, holm=min(1.0, count * effect.p))
        best, of_n1 = (one[0, choosing:].mean() for one in (ours, theirs))  # on all queries
        words[null.judge(effect, block["matters"], 100 * (best - of_n1))] += 1
    return {word: number / TRIALS for word, number in words.most_common()}


def verdicts(task: str, kind: str) -> dict:
    """Return the shares of all scenarios around a landscape."""
    selection.DRAWN = 24  # a verdict has more
    world = Landscape(task, kind)
    near = [round(float(end), 3) for end in (world.near.min(), world.near.max())]
    found = {"near": near} | {one: shares(task, world, one) for one in SCENARIOS}
    print(task, kind, found, flush=True)
    return found


def measure() -> dict:
    """Return what the simulation finds."""
    protocol, found = null.protocol(), {}
    with ProcessPoolExecutor() as pool:
        for task, block in protocol.blocks.items():
            found[task] = {"margin": block["matters"], "fresh": block["fresh"]}
            found[task] |= {kind: pool.submit(verdicts, task, kind) for kind in LANDSCAPES}
        for task, kind in itertools.product(found, LANDSCAPES):
            found[task][kind] = found[task][kind].result()
    return {"trials": TRIALS, "choosing": len(protocol.seeds), "tasks": found}


if __name__ == "__main__":
    ledgers.record("null_design.json", measure)
