"""How findings are written: intervals, means, titles of metrics, where runs were made."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pandas as pd

from hnlib.experiments.comparisons import Effect

DASH = "–"  # what was not measured
#: Titles of metrics whose name differs in a record: heads of columns.
TITLES = {"knn": "kNN", "svm": "SVM", "sts": "STS", "ndcg": "nDCG@10", "mrr": "MRR@10"}
TITLES |= {"recall10": "recall@10", "recall100": "recall@100", "transfer_ndcg": "others' nDCG@10"}
TITLES |= {"transfer": "six tasks", "stsb": "STS-B"}
TITLES |= dict.fromkeys(("last_loudness", "last_loudness_low"), "at the end of training")


def spread(x) -> str:
    """Format the mean ± standard deviation over $n-1$, or the only value."""
    mean = f"{x.mean():.1f}".replace("-", "\u2212")
    return f"{mean}\u00a0±\u00a0{x.std(ddof=1):.1f}" if len(x) > 1 else mean


def percent(shares) -> str:
    """Format the mean and sample standard deviation of `shares` as percentages, ignoring NaN."""
    values = 100 * pd.Series(shares, dtype=float).dropna()
    return spread(values) if len(values) else DASH


def interval(effect: Effect) -> str:
    """Return an effect in points and its 95 % interval, as +1.7 [+0.6, +2.8].

    One seed has no interval. An end that rounds to zero gets a second digit, which shows its sign,
    and so does an effect that rounds to zero although the interval does not contain it.
    """
    if not effect.df:
        return difference(effect)
    ends = (effect.low, effect.high)
    one_digit = ends[0] < 0 < ends[1] or abs(effect.difference) >= 0.05
    low, high = (f"{x:+z.{1 + (abs(x) < 0.05)}f}" for x in ends)
    shown = f"{effect.difference:+z.{2 - one_digit}f}\u00a0[{low},\u00a0{high}]"
    return shown.replace("-", "\u2212")


def difference(found: Effect | dict[str, Effect]) -> str:
    """Return an effect without its interval, as +1.7, or effects by block; a table has the rest."""
    if isinstance(found, dict):
        return " and ".join(f"{difference(one)} ({block})" for block, one in found.items())
    return f"{found.difference:+z.1f}".replace("-", "\u2212")


def where(found: Iterable[dict[str, Any]]) -> str:
    """Return a sentence on where records were made: machines, precision and speed."""
    found = [*found]
    if not found:
        return "No runs."
    machines = Counter(machine(one["environment"].get("hardware", {})) for one in found)
    precisions = {one["configuration"].get("precision", "32-true") for one in found}
    rates = [r for one in found if (r := one["metrics"].get("images_per_second"))]
    speed = f"; {statistics.median(rates):,.0f} images/s" if rates else ""
    made = " and ".join(f"{n} on {one}" for one, n in machines.most_common())
    runs = f"{len(found)} run{'s' * (len(found) != 1)}"
    return f"{runs}, {' and '.join(sorted(precisions))}: {made}{speed}."


def machine(hardware: dict[str, Any]) -> str:
    """Return a machine in words: its GPU, or its processor and threads; steps unless eager."""
    step = f", step={hardware['step']}" if "step" in hardware else ""
    if gpu := hardware.get("gpu"):
        return f"{gpu}{step}"
    named = hardware.get("cpu", "an unknown processor").removesuffix(" Processor")
    model = [hardware[part] for part in ("family", "model") if part in hardware]
    threads = hardware.get("threads", 1)
    about = f"{named} {'/'.join(model)}, {threads} thread{'s' * (threads != 1)}{step}"
    return about.replace(" ,", ",")


def format_value(value) -> str:
    """Write a value in a sentence: an effect in points with its interval, a number as 1.7.

    Effects by block are written as +1.3 [+0.8, +1.9] (static) and +2.9 [+1.8, +4.0] (random).
    """
    if isinstance(value, dict):
        return " and ".join(f"{interval(one)} ({block})" for block, one in value.items())
    if isinstance(value, Effect):
        return interval(value)
    return f"{value:.1f}".replace("-", "\u2212") if isinstance(value, float) else str(value)


def show_inline(*values) -> None:
    """Display the values of the expressions in a text, see ``hnlib.notebooks.inline_values``."""
    from IPython.display import display

    display({"application/x-hnlib-inline": [*map(format_value, values)]}, raw=True)
