"""Numbers of *Questions people ask* that are no comparison of two arms."""

import functools
from statistics import fmean

import pandas as pd

from hnlib import experiments
from hnlib.experiments import evidence

#: The lowest is chosen; of any other number the highest.
LOWEST = ("last_uniformity", "last_alignment", "uniformity")
TEMPERATURES = ("0.02", "0.05", "0.1", "0.2", "0.5")  # of `book/recorders/asked.py`
RATES = ("t* lr*", "tilt* lr*")  # the arms of *images-rates* at four learning rates each


@functools.cache
def _means() -> dict:
    """Return the means over seeds of asked.csv, by what was done, its setting and quantity."""
    rows = pd.read_csv(evidence.path("asked.csv"), keep_default_na=False)
    return rows.pivot_table("value", ["of", "setting", "quantity"])["value"].to_dict()


def asked(of: str, setting: str, quantity: str) -> float:
    """Return a number that `book/recorders/asked.py` measured, the mean over its seeds."""
    return _means()[of, setting, quantity]


def _lost(scores: dict[str, float], numbers: dict[str, float], name: str) -> float:
    """Return how many points of a score are lost by choosing by a number of this name."""
    choose = min if name in LOWEST else max
    return 100 * (max(scores.values()) - scores[choose(numbers, key=numbers.__getitem__)])


def lost(by: str, name: str = "map", block: str = "CIFAR-10", arms="t* b*") -> float:
    """Return how many points of the linear probe are lost by choosing an arm by a mean metric."""
    found = experiments.recorded(name)
    every = found.design.matching(arms, block)
    linear, numbers = (
        {arm: fmean(found.values(arm, metric, block).values()) for arm in every}
        for metric in ("linear", by)
    )
    return _lost(linear, numbers, by)


def behind(selector: str, temperature: str) -> float:
    """Return how many points of nDCG@10 the checkpoint that a number selects is behind the best."""
    best = asked("temperature", temperature, "best nDCG")
    return 100 * (best - asked("temperature", temperature, f"nDCG by {selector}"))


def unlabelled(quantity: str) -> float:
    """Return how many points of nDCG@10 are lost by choosing a temperature by a number."""
    scores = {t: asked("temperature", t, "nDCG") for t in TEMPERATURES}
    numbers = {t: asked("temperature", t, quantity) for t in TEMPERATURES}
    return _lost(scores, numbers, quantity)


def percent(quantity: str) -> str:
    """Return a share that was measured at t = 0.1, in percent."""
    return f"{100 * asked('temperature', '0.1', quantity):.0f} %"
