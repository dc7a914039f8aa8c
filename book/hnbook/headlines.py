"""The headlines of the book (`headlines.toml`): numbers, evidence, and how to take one apart.

`python -m hnbook.headlines NAME` prints the runs of a headline, what was chosen, and the number;
without a name it lists the names.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import tomllib
from dataclasses import dataclass, replace

import pandas as pd

from hnbook.asked import RATES, TEMPERATURES, asked, behind, lost, percent, unlabelled  # noqa: F401, *Questions*
from hnbook.comparison_tables import OneVariance
from hnbook.tables import Markup, interval
from hnlib import experiments
from hnlib.experiments import comparisons, selection
from hnlib.experiments import evidence as recorded
from hnlib.experiments.comparisons import Effect
from hnlib.training import records

#: Bags of words in search: pretrained embeddings, and random ones.
BAGS = ("static", "random")
NOT_DONE = "not done"
#: What a sceptic asks of a headline, by the columns of `evidence`.
ASKED = {
    "here": "as printed",
    "seeds": "seeds (degrees of freedom)",
    "choice": "with the choice repeated",
    "tuned": "rate (search: length, too) chosen on both sides",
    "beside": "by the second read-out",
    "elsewhere": "on other data",
    "again": "on other seeds",
    "finds": "a control that must show",
    "spares": "a control that must not",
    "command": "to take it apart",
}


@dataclass(frozen=True)
class Headline:
    """Two arms that are compared in blocks of an experiment, with answers to `ASKED`."""

    words: str
    experiment: str
    ours: str
    base: str
    blocks: tuple[str, ...]
    chosen: bool
    answers: dict[str, str]

    def effect(self, metric: str | None = None, block: str = "") -> Effect:
        """Return the difference in a block, uncorrected."""
        compare = selection.effect if self.chosen else experiments.effect
        return compare(experiments.recorded(self.experiment), self.ours, self.base, metric, block)


def _read(words: str, compare: tuple[str, str, str], blocks=("",), chosen=False, **answers):
    """Return a headline from its table in the file."""
    return Headline(words, *compare, tuple(blocks), chosen, answers)


_FILE = tomllib.loads(recorded.path("headlines.toml").read_text(encoding="utf-8"))
HEADLINES = {name: _read(**row) for name, row in _FILE.items()}


# --- numbers


@functools.cache
def headlines(metric: str = "linear") -> dict[str, Effect]:
    """Return the quoted differences on images, in points.

    Four are corrected together, of which those of short runs have one variance for all arms of
    their experiment. The others stand alone, as they were predicted, but for H5, "long hcl at one
    rate", which was predicted with three others. "long hcl, one processor" reads seed 6, which was
    run on two, from that of the other seeds.
    """
    primary = {x.experiment: experiments.load(x.experiment).primary for x in HEADLINES.values()}
    images = {name: one for name, one in HEADLINES.items() if primary[one.experiment] == "linear"}
    effects = {name: one.effect(metric, one.blocks[0]) for name, one in images.items()}
    short, catalogue = experiments.recorded("map"), experiments.recorded("catalogue")
    pairs = {"short temperature": ("temperature", "t0.5 b0"), "short tilt": ("t0.5 b1", "t0.5 b0")}
    arms = short.design.matching("t* b*", "CIFAR-10")
    four = OneVariance(short, pairs, arms, "CIFAR-10").effects(metric, corrected=False)
    four["long temperature"] = experiments.effect(
        experiments.recorded("confirmation"), "t0.1", "t0.5", metric
    )
    labels = OneVariance(catalogue, {"labels": ("scl", "simclr")})
    four |= labels.effects(metric, corrected=False)
    effects |= dict(zip(four, comparisons.family(four.values())))
    effects["long hcl at one rate"] = experiments.outcome(
        experiments.recorded("decomposition"), "H5", metric
    )
    amd = on_processor("AMD", "confirmation", "released", "t0.5", metric)
    return effects | {"long hcl, one processor": amd}


def on_processor(maker: str, name: str, ours: str, base: str, metric: str) -> Effect:
    """Return an effect of the runs on processors of one maker alone."""
    whole, groups = experiments.recorded(name), []
    for arm in (ours, base):
        every = (whole.replicates(arm, seed) for seed in whole.design.seeds)
        made = map(experiments.by_processor, every)
        of_maker = (run for one in made for on, run in one.items() if on.startswith(maker))
        groups.append(records.frame([*of_maker]))
    return comparisons.between(*groups, metric=metric)


def resnet(metric: str = "linear") -> Effect:
    """Return what HCL gains over t = 0.2 with a ResNet-18, on five seeds.

    Three of them chose the temperature; the other two are the whole seeds of a confirmation.
    """
    every = [experiments.recorded(f"resnet18-{x}") for x in ("temperatures", "confirmed")]
    ours, base = (pd.concat([x.group(arm) for x in every]) for arm in ("released", "t0.2"))
    return comparisons.between(ours, base, metric)


def seeds_ahead_with_resnet() -> int:
    """Return how many seeds HCL with a ResNet-18 leads under kNN, of t = 0.25 or of 0.2.

    Raises ValueError unless these are all seeds.
    """
    first = experiments.effect(experiments.recorded("resnet18"), "released", "t0.25", "knn")
    gains = [*first.values, *resnet("knn").values]
    if min(gains) <= 0:
        raise ValueError(f"a text says that HCL leads under kNN on all of {len(gains)} seeds")
    return len(gains)


@functools.cache
def recall_of_near_ties() -> str:
    """Return the range of the tilt's gain in recall@100 on Banking77 over tied temperatures.

    Validation with two seeds cannot tell these three settings apart; all runs are the seeds that
    choose.
    """
    rates = experiments.recorded("banking77-rates")
    tilt, *ties = (
        rates.mean(name, "recall100")
        for name in ("tilt20 lr0.0001", "t0.05 lr0.0001", "t0.1 lr0.0001", "t0.1 lr0.0002")
    )
    gains = sorted(100 * (tilt - one) for one in ties)
    return f"{gains[-1]:+.1f} to {gains[0]:+.1f}".replace("-", "−")


@functools.cache
def searches(bag: str) -> dict[str, Effect]:
    """Return the quoted differences of nDCG@10 on SciFact of a bag, corrected together.

    The best of four temperatures is chosen on validation claims.
    """
    pairs = {"temperature": ("temperature", "t0.05"), "tilt": ("tilt", "temperature")}
    pairs |= {"mined": ("mined", "t0.05"), "strength": ("mined strength", "mined t1/29")}
    search = experiments.recorded("search")
    alone = [experiments.effect(search, *pair, block=bag) for pair in pairs.values()]
    return dict(zip(pairs, comparisons.family(alone)))


def tuned_searches(metric: str = "ndcg") -> dict[str, Effect]:
    """Return, for each bag, the tilt minus the temperature, each with its own rate and length.

    Validation claims choose rates, lengths and sharpnesses; the ten seeds chose nothing, and the
    intervals leave the choice out.
    """
    return experiments.effects(
        experiments.recorded("search-tilts"), [("tilt", "temperature")], metric
    )


@functools.cache
def chosen_searches() -> dict[str, Effect]:
    """Return the nDCG@10 of `tuned_searches`, corrected, with the choice in the interval."""
    tuned = HEADLINES["search tuned"]
    return dict(zip(BAGS, comparisons.family(tuned.effect(block=bag) for bag in BAGS)))


#: What a method gains over a temperature: words, experiment, the two arms, block. The rows of the
#: front page and of the README; `gain_rows` tells all of them by one rule.
GAINS = {
    "equal": (
        "Images, ten epochs: β = 4, t = 0.5 over t = 0.1",
        "equal-gamma",
        "t0.5 b4.0",
        "t0.1",
    ),
    "short": ("… the best tilt over the best t", "map", "tilt", "temperature", "CIFAR-10"),
    "short hcl": ("… HCL at 0.003", "images-rates", "released tuned", "temperature tuned"),
    "long held": (
        "Images, fifteen epochs: a held tilt at 0.003",
        "images-longer",
        "held",
        "temperature",
    ),
    "long": ("… HCL at 0.003", "images-longer", "released", "temperature"),
    "one rate": ("… HCL at 0.001", "decomposition", "released", "tuned"),
    "hundred": ("… HCL at 0.003, CIFAR-100", "hundred-edge", "released", "temperature"),
    "labels": (
        "Images, ten epochs: labels, both sides tuned",
        "labels-tuned",
        "SCL",
        "temperature",
    ),
    "static": ("Search: a tilt, pretrained bag", "search-tilts", "tilt", "temperature", "static"),
    "random": ("… random bag", "search-tilts", "tilt", "temperature", "random"),
    "questions": ("… MiniLM, a bank's questions", "banking77", "tilt", "temperature"),
    "captions": ("… MiniLM, captions", "captions", "tilt", "temperature"),
}


def _runs(name: str) -> experiments.Found:
    """Return the records of one of `GAINS`; of an experiment of several rates those at its own."""
    return experiments.recorded(GAINS[name][1], lr=0.003 if name == "short hcl" else None)


def given(name: str, metric: str | None = None) -> Effect:
    """Return one of `GAINS` with the choice of settings as given. Its interval stands alone."""
    _, _, ours, base, *block = GAINS[name]
    return experiments.effect(_runs(name), ours, base, metric, *block)


@functools.cache
def repeated(name: str) -> Effect | str:
    """Return one of `GAINS` with the choice repeated, or why there is none."""
    _, _, ours, base, *block = GAINS[name]
    found = _runs(name)
    if not {ours, base} & found.design.chosen.keys():
        return "nothing was chosen"
    effect = selection.effect(found, ours, base, None, *block)
    source, _ = found.candidates(base, *block)
    return effect if effect.df else f"{len(source.design.seeds)} seeds chose"


def gain_rows() -> list[dict[str, str]]:
    """Return the rows of a table: each of `GAINS` as chosen and with the choice repeated."""
    rows = []
    for name, (words, *_) in GAINS.items():
        again = repeated(name)
        again = again if isinstance(again, str) else interval(again)
        row = {"": words, "seeds": f"{len(given(name).values)}", "as chosen": interval(given(name))}
        rows.append(row | {"choice repeated": again})
    return rows


#: By length and rate of training: experiment, HCL held fixed and as released, best temperature
RATED = {
    ("ten epochs", rate): ("images-rates", "tilt0.5 tuned", "released tuned", "temperature tuned")
    for rate in (0.0003, 0.001, 0.003, 0.01)
}
RATED["fifteen, all images", 0.001] = ("decomposition", "held", "released", "tuned")
RATED["fifteen, all images", 0.003] = ("images-longer", "held", "released", "temperature")


def rate_rows() -> list[dict[str, str]]:
    """Return what HCL at t = 0.5, β = 1 gains over the best temperature at each length and rate.

    Each is told as chosen and with the choice of the temperature repeated.
    """
    rows = []
    for (length, rate), (name, held, released, base) in RATED.items():
        found, row = experiments.recorded(name, lr=rate), {"trained": length, "rate": f"{rate:g}"}
        for words, ours in (("held fixed", held), ("as released", released)):
            row[words] = interval(experiments.effect(found, ours, base))
            row[f"{words}, choice repeated"] = interval(selection.effect(found, ours, base))
        rows.append(row)
    return rows


def apart(found, field: str, value: float, metric: str = "ndcg") -> float | None:
    """Return the points from a temperature to a tilt that share a field's value and a rate.

    Of the rates that both have, the one at which validation likes both best; None without one.
    """
    design = found.design
    every = [x for x in design.names() if found.mean(x, metric) is not None]
    every = [x for x in every if found.value_of(x, field) == value]
    tilts, temperatures = ([x for x in every if x.startswith(y)] for y in ("tilt", "t0."))
    rate = functools.partial(found.value_of, field="lr")
    pairs = [(x, y) for x in tilts for y in temperatures if rate(x) == rate(y)]
    if not pairs:
        return None
    best = max(pairs, key=lambda pair: sum(found.mean(x, "ndcg_validation") for x in pair))
    tilt, temperature = (100 * found.mean(x, metric) for x in best)
    return tilt - temperature


def printed(name: str) -> Effect | dict[str, Effect]:
    """Return the number of a headline as the pages print it; for search by bag."""
    if name == "search tuned":
        return chosen_searches()
    if name in ("search temperature", "search tilt"):
        return {bag: searches(bag)[name.removeprefix("search ")] for bag in BAGS}
    return headlines()[name] if name in headlines() else HEADLINES[name].effect()


def found(name: str, prediction: str) -> list[Effect]:
    """Return what a prediction of an experiment found."""
    outcome = experiments.outcome(experiments.recorded(name), prediction)
    return [*outcome.values()] if isinstance(outcome, dict) else [outcome]


# --- evidence


def formatted(answer: Effect | dict[str, Effect] | str) -> str:
    """Return an answer as text: intervals by block, and in a text those of its references."""
    if isinstance(answer, dict):
        return "; ".join(f"{name} {interval(one)}".strip() for name, one in answer.items())
    if isinstance(answer, Effect):
        return interval(answer)
    return re.sub(r"\{(.*?)\}", lambda found: _referred(*found[1].split(" | ")), answer)


def _referred(name: str, *parts: str) -> str:
    """Return the number of a headline, or of two arms of an experiment in one block or in all."""
    if not parts:
        return formatted(printed(name))
    whole, (ours, base, *rest) = experiments.recorded(name), parts
    if rest and rest[0] in whole.design.blocks:
        return interval(experiments.effect(whole, ours, base, block=rest[0]))
    if experiments.waiting(whole, [(ours, base)]):
        return NOT_DONE
    return formatted(experiments.effects(whole, [(ours, base)], *rest))


def answer(name: str, key: str) -> str:
    """Return what was found for a column of `ASKED`. Raises ValueError for a blank."""
    one, here = HEADLINES[name], printed(name)
    pair = (one.ours, one.base)
    effects = here.values() if isinstance(here, dict) else [here]
    if key in one.answers:
        found = one.answers[key]
    elif key == "here":
        found = here
    elif key == "seeds":
        found = "; ".join(dict.fromkeys(f"{len(x.seeds)} ({x.df})" for x in effects))
    elif key == "beside":
        found = headlines("knn")[name]
    elif key == "command":
        return Markup(f"<code>python -m hnbook.headlines {name}</code>")
    elif key == "choice" and one.chosen:
        found = "as printed"
    elif key == "choice" and not experiments.load(one.experiment).chosen.keys() & {*pair}:
        found = "nothing was chosen"
    elif key == "choice":
        found = {x: replace(one, chosen=True).effect(block=x) for x in one.blocks}
    else:
        found = ""
    if not found:
        raise ValueError(f"{name!r} has no answer to {ASKED[key]!r}; give one, or {NOT_DONE!r}")
    return formatted(found)


def evidence() -> dict[str, dict[str, str]]:
    """Return, for each headline, what was found for every column of `ASKED`, or why nothing was.

    Cells of one column stand alone; those of the first are the corrected ones of the front page.
    """
    return {one.words: {key: answer(name, key) for key in ASKED} for name, one in HEADLINES.items()}


def report(name: str) -> list[str]:
    """Return the runs of a headline, what was chosen among them, and in the last line the number.

    The line of a run has its arm, seed, name in the records, and value in percent.
    """
    if name not in HEADLINES:
        raise ValueError(f"there is no headline {name!r}; choose from {', '.join(HEADLINES)}")
    one, lines = HEADLINES[name], [HEADLINES[name].words]
    whole = experiments.recorded(one.experiment)
    for block, arm in itertools.product(one.blocks, (one.ours, one.base)):
        metric = whole.design.metric(block)
        lines.append(f"{block} {arm} of {whole.design.name}, {metric}".strip())
        source, settings = whole.candidates(arm, block)
        names = {arm: whole}
        if rule := whole.design.chosen.get(arm):
            best = source.best(rule["among"], rule["by"], block)
            among = f"the best of {len(settings)} by {rule['by']}"
            lines.append(f"  is {best} of {source.design.name}, {among}")
        if rule and one.chosen:
            names = dict.fromkeys(settings, source) | (names if source is not whole else {})
        for label, of in names.items():
            runs = of.group(label, block)
            table = zip(runs["seed"], runs["record"], runs[metric])
            lines += [f"  {label}  {seed}  {record}  {100 * x:.2f}" for seed, record, x in table]
    if one.chosen:
        lines.append("Half of the seeds and of the examples choose again; the others judge.")
    return [*lines, formatted(printed(name))]


if __name__ == "__main__":
    if sys.argv[1:]:
        print(*report(" ".join(sys.argv[1:])), sep="\n")
    else:
        print(*(f"{name:26} {one.words}" for name, one in HEADLINES.items()), sep="\n")
