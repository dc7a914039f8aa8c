"""Predictions made before the runs, and their verdicts."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from hnlib.experiments import comparisons, evidence, findings
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.findings import together
from hnlib.experiments.found_records import Found, found
from hnlib.experiments.words import TITLES, interval

SYMBOLS = {"gamma": "γ", "temperature": "t"}


def verdicts(have: Found) -> list[dict]:
    """Return a row for each prediction of an experiment, in the order of its file.

    The comparisons of a line are corrected together with those of its `family`, unless it says
    `together = false`. If one metric decides all lines, the columns are named after it. At other
    parameters than the published there are none: nothing was predicted of such runs.
    """
    design = have.design
    asked = [] if design.changed else design.predictions
    metrics = {line["metric"] for line in asked}
    heads = ("decides", "beside")
    if len(metrics) == 1:
        (metric,) = metrics
        heads = metric, design.secondary_metric(metric)
    rows = []
    for line in asked:
        title = "" if len(metrics) == 1 else f" ({TITLES.get(line['metric'], line['metric'])})"
        row = {"": line["id"], "prediction": line["says"] + title}
        rows.append(row | _judged(have, line, heads))
    return rows


def outcome(have: Found, name: str, metric: str | None = None) -> Any:
    """Return a prediction's outcome, corrected with its family; several numbers by label."""
    lines = {line["id"]: line for line in have.design.predictions}
    missing = f"{have.design.name}.toml has no prediction"
    line = lines[evidence.one_of(lines, name, missing)]
    quantities = of_family(have, line, metric or line["metric"])
    return next(iter(quantities.values())) if len(quantities) == 1 else quantities


def _judged(have: Found, line: dict, heads: tuple[str, str]) -> dict[str, str]:
    """Return a prediction's findings by both read-outs, its severity and its verdict.

    No verdict is given before all of its runs are recorded: there is one look, fixed beforehand.
    What a line `settled` is not computed again.
    """
    if settled := line.get("settled"):
        parts = [settled.get(name, "") for name in ("decides", "beside", "severity", "verdict")]
        return dict(zip((*heads, "severity", "verdict"), parts))
    if "seeds" in line:
        have = found(replace(have.design, seeds=line["seeds"]))
    arms = [pair[:2] for pair in line["compare"]] if "compare" in line else [line["arms"]]
    left = findings.waiting(have, arms, line.get("blocks"))
    decides, beside = {}, {}
    if not left:
        decides = of_family(have, line, line["metric"])
        beside = of_family(have, line, have.design.secondary_metric(line["metric"]))
    verdict = judge(decides, line["holds"], line["refuted"])
    return dict(zip(heads, map(worded, (decides, beside)))) | {
        "severity": line.get("severe", severe(decides, line["holds"])),
        "verdict": f"open: {left:,} runs" if left else verdict,
    }


def of_family(have: Found, line: dict, metric: str) -> dict[str, Any]:
    """Return the quantities that a prediction is about, corrected with all of its `family`."""
    name = line.get("family")
    members = [x for x in have.design.predictions if name and x.get("family") == name] or [line]
    every = {}
    for one in members:
        decides = metric == line["metric"]
        own = one["metric"] if decides else have.design.secondary_metric(one["metric"])
        every |= {(one["id"], label): x for label, x in _quantities(have, one, own).items()}
    if line.get("together", True):
        every = together(every)
    return {label: x for (id_, label), x in every.items() if id_ == line["id"]}


def _quantities(have: Found, line: dict, metric: str) -> dict[str, Any]:
    """Return the quantities that a prediction is about, by block and label, uncorrected."""
    blocks = line.get("blocks", have.design.blocks)
    if "compare" in line:
        alone = findings.effects(have, line["compare"], metric, blocks=blocks, corrected=False)
    else:
        name = evidence.one_of(STATISTICS, line["statistic"], "there is no statistic")
        alone = {
            f"{block} {label}".strip(): x
            for block in blocks
            for label, x in STATISTICS[name](have, line, metric, block).items()
        }
    block = blocks[0] if "blocks" in line and len(blocks) == 1 else ""  # needs no name
    return {label.removeprefix(block).strip(): x for label, x in alone.items()}


def judge(found: dict[str, Any], holds: dict, refuted: dict) -> str:
    """Return whether a prediction holds, is refuted or is unresolved.

    Ranges are written as {"inside": [-1, 1]}, {"above": 0} and so on. It holds if everything found
    lies in the first and is refuted if something lies wholly in the second. An effect lies in ± a
    margin by two one-sided tests, in another range with its whole interval; so it does in
    {"whole": [-1, 1]}.
    """
    known = [one for one in found.values() if not isinstance(one, Effect) or one.df > 0]
    if known and all(_lies(one, holds) for one in found.values()):
        return "holds"
    return "refuted" if any(_wholly(one, refuted) for one in known) else "unresolved"


def _range(words: dict) -> tuple[float, float]:
    """Return the range of {"inside": [low, high]}, {"above": low} or {"below": high}."""
    ((word, value),) = words.items()
    low, high = {"above": (value, math.inf), "below": (-math.inf, value)}.get(word, value)
    return low, high


def _lies(one, words: dict) -> bool:
    """Return whether an interval lies in a range, or an effect in ± a margin."""
    low, high = _range(words)
    if "inside" in words and low == -high and isinstance(one, Effect):
        return one.df > 0 and comparisons.equivalence(one, high) <= 0.05
    return low <= one.low and one.high <= high


def _wholly(one, words: dict) -> bool:
    """Return whether an interval lies wholly in a range, or {"outside": [low, high]}."""
    low, high = _range(words)
    if "outside" in words:
        return one.high < low or one.low > high
    return low < one.low <= one.high < high


def worded(found: dict) -> str:
    """Write differences with their intervals, or levels, each after its name."""
    texts = {k: interval(e) if isinstance(e, Effect) else e.text for k, e in found.items()}
    return "; ".join(f"{name} {text}".strip() for name, text in texts.items())


def severe(found: dict[str, Any], holds: dict) -> str:
    """Write the smallest severity of the effects found, and at which truth."""
    effects = [one for one in found.values() if isinstance(one, Effect) and one.df > 0]
    sizes = [severity(one, *_range(holds)) for one in effects]
    truth, chance = min(sizes, key=lambda pair: pair[1], default=(0.0, 0.0))
    return f"{chance:.2f} at {truth:g}".replace("-", "−") if sizes else ""


def severity(effect: Effect, low: float, high: float) -> tuple[float, float]:
    """Return a true difference that would matter, and the probability that it is refuted.

    The difference lies as far below [low, high] as the middle of the range lies above its edge
    (below a range without an upper edge, as far as the edge is from zero, or one point if it is
    zero). Refuted means that the whole interval lies outside. The seeds' deviation counts as true.
    """
    if math.isinf(low):
        truth, chance = severity(effect, -high, math.inf)
        return 0.0 - truth, chance  # not −0 of a truth of 0
    truth = low - ((abs(low) or 1.0) if math.isinf(high) else (high - low) / 2)
    quantile = stats.t.isf(0.025 / effect.family, effect.df)
    return truth, float(stats.nct.cdf(-quantile, effect.df, (truth - low) / effect.between))


# --- statistics


@dataclass(frozen=True)
class Level:
    """A number with bounds that are not in points, and its printed form."""

    text: str
    low: float
    high: float


def format_share(share) -> str:
    """Format a share and its interval in percent: 97 % [93, 99]; it may be unknown."""
    if math.isnan(share[0]):
        return "not known"
    shown = "{:.0f}\u00a0% [{:.0f}, {:.0f}]".format(*(100 * x for x in share))
    return shown.replace("-", "\u2212")


def over_seeds(values, seeds: tuple[int, ...] = ()) -> Effect:
    """Return the mean of one value for each seed, in points, with Student's interval."""
    values = np.asarray(values, float)
    n = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return Effect(
        float(values.mean()), error, n - 1, "these images", seeds=seeds, values=tuple(values)
    )


def mean(have: Found, line: dict, metric: str, block: str) -> dict[str, Any]:
    """Return the mean gain of the first over pairs of `arms`; a list stands for its arms' mean."""

    def points(arms) -> np.ndarray:
        several = [arms] if isinstance(arms, str) else arms
        return np.mean([[*have.values(x, metric, block).values()] for x in several], 0)

    gains = [100 * (points(ours) - points(base)) for ours, base in line["arms"]]
    return {"": over_seeds(np.mean(gains, 0), have.design.seeds)}


def widest(have: Found, line: dict, metric: str, block: str) -> dict[str, Any]:
    """Return the largest of all differences between `arms`, which are one family."""
    pairs = itertools.combinations(line["arms"], 2)
    alone = [findings.effect(have, *pair, metric, block) for pair in pairs]
    return {"": max(comparisons.family(alone), key=lambda effect: abs(effect.difference))}


def share(have: Found, line: dict, metric: str, block: str) -> dict[str, Any]:
    """Return the share of the variance between `arms` that a smooth curve in γ explains."""
    explained = findings.map_of(have, block, line["arms"]).share(metric)
    return {"": Level(format_share(explained), explained[0], explained[0])}


def chosen(have: Found, line: dict, metric: str, block: str) -> dict[str, Any]:
    """Return a field, an option or "gamma" of the best of `arms` by another metric, `by`."""
    if metric != line["metric"]:  # a choice has no second read-out
        return {}
    best = have.best(line["arms"], line["by"], block)
    value = have.value_of(best, line["of"], block)
    title = SYMBOLS.get(line["of"], line["of"])
    return {"": Level(f"{title} = {round(value, 2):g}", value, value)}


def level(have: Found, line: dict, metric: str, block: str) -> dict[str, Any]:
    """Return the mean of a metric, or of a column of the last epoch, for each of `arms`."""
    if metric != line["metric"]:
        return {}
    means = {name: have.mean(name, metric, block) for name in line["arms"]}
    return {name: Level(f"{mean:.3f}", mean, mean) for name, mean in means.items()}


#: What a prediction may be about besides the difference of two arms: a closed list. A function
#: takes an experiment, the line of `[[predictions]]`, a metric and a block, and returns by label
#: what was found: an `Effect` with an interval, or a `Level` without one.
STATISTICS = {one.__name__: one for one in (mean, widest, share, chosen, level)}
