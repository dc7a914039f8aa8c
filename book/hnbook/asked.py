"""Numbers of *Questions people ask* that are no comparison of two arms."""

import csv
import functools
from statistics import fmean

from hnlib import experiments
from hnlib.experiments import evidence

#: The lowest is chosen; of any other number the highest.
LOWEST = ("last_uniformity", "last_alignment", "uniformity", "alignment")
TEMPERATURES = ("0.02", "0.05", "0.1", "0.2", "0.5")  # of `book/recorders/asked.py`
RATES = ("t* lr*", "tilt* lr*")  # the arms of *images-rates* at four learning rates each


@functools.cache
def _measured() -> dict[tuple[str, str, str], list[float]]:
    """Return the numbers of asked.csv of all seeds, by what was done, its setting and quantity."""
    found: dict[tuple[str, str, str], list[float]] = {}
    with evidence.path("asked.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = (row["of"], row["setting"], row["quantity"])
            found.setdefault(key, []).append(float(row["value"]))
    return found


def asked(of: str, setting: str, quantity: str) -> float:
    """Return a number that `book/recorders/asked.py` measured, the mean over its seeds."""
    return fmean(_measured()[of, setting, quantity])


def lost(by: str, name: str = "map", block: str = "CIFAR-10", arms="t* b*") -> float:
    """Return how many points of the linear probe are lost by choosing an arm by a mean metric."""
    experiment = experiments.load(name)

    def mean(arm: str, metric: str) -> float:
        return fmean(experiment.values(arm, metric, block).values())

    def rank(arm: str) -> float:
        return -mean(arm, by) if by in LOWEST else mean(arm, by)

    every = experiment.matching(arms, block)
    best = max(mean(arm, "linear") for arm in every)
    return 100 * (best - mean(max(every, key=rank), "linear"))


def behind(selector: str, *temperatures: str) -> float:
    """Return how many points of nDCG@10 the checkpoint that a number selects is behind the best."""

    def points(t: str) -> float:
        best = asked("temperature", t, "best nDCG")
        return 100 * (best - asked("temperature", t, f"nDCG by {selector}"))

    return fmean(map(points, temperatures or TEMPERATURES))


def unlabelled(quantity: str) -> float:
    """Return how many points of nDCG@10 are lost by choosing a temperature by a number."""
    sign = -1 if quantity in LOWEST else 1
    chosen = max(TEMPERATURES, key=lambda t: sign * asked("temperature", t, quantity))
    scores = {t: asked("temperature", t, "nDCG") for t in TEMPERATURES}
    return 100 * (max(scores.values()) - scores[chosen])


def percent(quantity: str, temperature: str = "0.1") -> str:
    """Return a measured share in percent."""
    return f"{100 * asked('temperature', temperature, quantity):.0f} %"
