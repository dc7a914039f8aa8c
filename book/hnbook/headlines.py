"""The headlines of the book: what each compares, what it rests on, and how to take it apart.

`python -m hnbook.headlines NAME` prints the runs of a headline, what was chosen, and the number;
without a name it lists the names.
"""

from __future__ import annotations

import functools
import itertools
import sys
from dataclasses import dataclass, replace

from hnbook.asked import RATES, asked, behind, lost, percent, unlabelled  # noqa: F401, *Questions*
from hnbook.comparison_tables import one_variance
from hnbook.tables import Markup, interval
from hnlib import experiments
from hnlib.experiments import comparisons, predictions, selection
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
    """Two arms that are compared in blocks of an experiment.

    `chosen` headlines are about choosing, which their intervals contain; elsewhere an arm that was
    chosen counts as given.
    """

    words: str
    experiment: str
    ours: str
    base: str
    blocks: tuple[str, ...] = ("",)
    chosen: bool = False

    def effect(self, metric: str | None = None, block: str = "") -> Effect:
        """Return the difference in a block, uncorrected."""
        compare = selection.effect if self.chosen else experiments.Experiment.effect
        return compare(experiments.load(self.experiment), self.ours, self.base, metric, block)


SHORT, LONG, TEN = "Short training: ", "Longer training: ", ("CIFAR-10",)
HEADLINES = {
    "short temperature": Headline(
        f"{SHORT}t = 0.1 over t = 0.5", "map", "temperature", "t0.5 b0", TEN
    ),
    "short tilt": Headline(
        f"{SHORT}a tilt of β = 1 over none, t = 0.5", "map", "t0.5 b1", "t0.5 b0", TEN
    ),
    "short both": Headline(
        f"{SHORT}the best tilt over the best temperature", "map", "tilt", "temperature", TEN, True
    ),
    "short equal": Headline(
        f"{SHORT}β = 4, t = 0.5 over t = 0.1", "images-length", "t0.5 b4 e10", "t0.1 e10"
    ),
    "long hcl": Headline(f"{LONG}HCL over t = 0.5", "confirmation", "released", "t0.5"),
    "long hcl over temperature": Headline(
        f"{LONG}HCL over t = 0.1", "confirmation", "released", "t0.1"
    ),
    "long hcl at one rate": Headline(
        f"{LONG}HCL over t = 0.25, one rate", "decomposition", "released", "t0.25"
    ),
    "long hcl tuned": Headline(
        f"{LONG}HCL over t = 0.25, own rates", "images-long", "released", "t0.25", chosen=True
    ),
    "long hcl over best": Headline(
        f"{LONG}HCL over the best temperature",
        "images-longer",
        "released",
        "temperature",
        chosen=True,
    ),
    "network": Headline("ResNet-18: HCL over t = 0.25", "resnet18", "released", "t0.25"),
    "labels": Headline("Labels over none", "catalogue", "scl", "simclr"),
    "search temperature": Headline(
        "Search: the best temperature over t = 0.05", "search", "temperature", "t0.05", BAGS
    ),
    "search tilt": Headline(
        "Search: a tilt over the best temperature", "search", "tilt", "temperature", BAGS
    ),
    "search tuned": Headline(
        "Search: the same, own rates and lengths",
        "search-lengths",
        "tilt",
        "temperature",
        BAGS,
        True,
    ),
}


@functools.cache
def headlines(metric: str = "linear") -> dict[str, Effect]:
    """Return the quoted differences on images, in points.

    Four are corrected together, of which those of short runs have one variance for all arms of
    their experiment. The others stand alone, as they were predicted, but for H5, "long hcl at one
    rate", which was predicted with three others. "long hcl, one processor" reads seed 6, which was
    run on two, from that of the other seeds.
    """
    images = {name: one for name, one in HEADLINES.items() if one.blocks != BAGS}
    effects = {name: one.effect(metric, one.blocks[0]) for name, one in images.items()}
    short, catalogue = experiments.load("map"), experiments.load("catalogue")
    pairs = {"short temperature": ("temperature", "t0.5 b0"), "short tilt": ("t0.5 b1", "t0.5 b0")}
    four = one_variance(short, pairs, short.matching("t* b*", *TEN), *TEN)
    four = four.effects(metric, corrected=False)
    four["long temperature"] = experiments.load("confirmation").effect("t0.1", "t0.5", metric)
    labels = one_variance(catalogue, {"labels": ("scl", "simclr")}, catalogue.names())
    four |= labels.effects(metric, corrected=False)
    effects |= dict(zip(four, comparisons.family(four.values())))
    effects["long hcl at one rate"] = experiments.load("decomposition").outcome("H5", metric)
    amd = on_processor("confirmation", "AMD").effect("released", "t0.5", metric)
    return effects | {"long hcl, one processor": amd}


def on_processor(name: str, maker: str) -> experiments.Experiment:
    """Return an experiment that reads the runs on processors of one maker alone."""
    experiment = experiments.load(name)
    recorded = {}
    for arm, seed in itertools.product(experiment.names(), experiment.seeds):
        made = experiments.by_processor(experiment.replicates(arm, seed))
        key = records.key(experiment.run(arm, seed).configuration)
        recorded[key] = [record for on, record in made.items() if on.startswith(maker)]
    return replace(experiment, recorded=recorded)


@functools.cache
def searches(bag: str) -> dict[str, Effect]:
    """Return the quoted differences of nDCG@10 on SciFact of a bag, corrected together.

    The best of four temperatures is chosen on validation claims.
    """
    pairs = {"temperature": ("temperature", "t0.05"), "tilt": ("tilt", "temperature")}
    pairs |= {"mined": ("mined", "t0.05"), "strength": ("mined strength", "mined t1/29")}
    alone = [experiments.load("search").effect(*pair, block=bag) for pair in pairs.values()]
    return dict(zip(pairs, comparisons.family(alone)))


def tuned_searches(metric: str = "ndcg") -> dict[str, Effect]:
    """Return, for each bag, the tilt minus the temperature, each with its own rate and length.

    Validation claims choose rates, lengths and the temperature; the ten seeds chose nothing, and
    the intervals leave the choice out.
    """
    return experiments.load("search-lengths").effects([("tilt", "temperature")], metric)


def chosen_searches() -> dict[str, Effect]:
    """Return the differences of nDCG@10 of `tuned_searches` with the choice in the interval.

    The two bags are corrected together.
    """
    tuned = HEADLINES["search tuned"]
    return dict(zip(BAGS, comparisons.family(tuned.effect(block=bag) for bag in BAGS)))


def printed(name: str) -> Effect | dict[str, Effect]:
    """Return the number of a headline as the pages print it; for search by bag."""
    if name == "search tuned":
        return chosen_searches()
    if name.startswith("search "):
        return {bag: searches(bag)[name.removeprefix("search ")] for bag in BAGS}
    return headlines()[name]


def evidence() -> dict[str, dict[str, str]]:
    """Return, for each headline, what was found for every column of `ASKED`, or why nothing was.

    Cells of one column stand alone; those of the first are the corrected ones of the front page.
    Raises ValueError if a cell is empty.
    """
    knn, ten, hundred = headlines("knn"), _on("map", "CIFAR-10"), _on("map", "CIFAR-100")
    labels = interval(headlines()["labels"])
    precisions = f"two precisions: {_of('precision', 'simclr bf16-mixed', 'simclr 32-true')}"
    small = dict(finds=f"labels: {labels}", spares=precisions)
    others = _of("images-longer", "no false negatives", "t0.25")
    long = dict(
        elsewhere=NOT_DONE, spares=NOT_DONE, finds=f"negatives of other classes only: {others}"
    )
    one_rate = f"{NOT_DONE}: one rate"
    digits = experiments.load("losses-on-trial").effect("labels", "N1", block="digits")
    rows = {
        "short temperature": dict(
            tuned=_of("images-rates", "t0.1 tuned", "t0.5 tuned"),
            elsewhere=_of("images-hundred", "10", "2"),
            again=_of("loudness", "InfoNCE, t = 0.1", "InfoNCE, t = 0.5"),
            **small,
        ),
        "short tilt": dict(
            tuned=_of("images-rates", "tilt0.5 tuned", "t0.5 tuned"),
            elsewhere=hundred("t0.5 b1", "t0.5 b0"),
            again=_of("images-rates", "tilt0.5 lr0.001", "t0.5 lr0.001"),
            **small,
        ),
        "short both": dict(
            tuned=_of("images-rates", "tilt0.1 tuned", "t0.1 tuned"),
            elsewhere=hundred("tilt", "temperature"),
            again=_of("images-rates", "tilt0.1 lr0.001", "t0.1 lr0.001"),
            **small,
        ),
        "short equal": dict(
            tuned=one_rate,
            elsewhere=_of("images-hundred", "10 t0.5 b4", "10"),
            again=ten("t0.5 b4", "t0.1 b0"),
            **small,
        ),
        "long hcl": dict(tuned=one_rate, again=NOT_DONE, **long),
        "long hcl over temperature": dict(
            choice=f"{NOT_DONE}: short runs chose 0.1",
            tuned=_of("images-long", "released", "t0.1"),
            again=_of("images-long-rates", "released lr0.001", "t0.1 lr0.001"),
            **long,
        ),
        "long hcl at one rate": dict(
            tuned=_of("images-long", "released", "t0.25"),
            again=_of("images-long-rates", "released lr0.001", "t0.25 lr0.001"),
            **long,
        ),
        "long hcl tuned": dict(
            tuned="yes; the choice as given: " + _of("images-long", "released", "t0.25"),
            again="at 0.003: " + _of("images-longer", "released", "t0.25"),
            **long,
        ),
        "long hcl over best": dict(
            choice="as printed; the rate, 0.003, was not chosen again",
            tuned="yes, by other seeds",
            again="over t = 0.2: " + _of("images-long", "released", "t0.2"),
            **long,
        ),
        "network": dict(tuned=one_rate, again=NOT_DONE) | long | dict(finds=NOT_DONE),
        "labels": dict(
            tuned=one_rate,
            elsewhere=f"digits, kNN, over the best temperature: {interval(digits)}",
            again=NOT_DONE,
            finds="this is the control of others",
            spares=precisions,
        ),
    }
    for name in ("search temperature", "search tilt", "search tuned"):
        x, ours, base = (HEADLINES[name].experiment, HEADLINES[name].ours, HEADLINES[name].base)
        at_100 = [f"{'t0.1' if arm == 'temperature' else arm} x100" for arm in (ours, base)]
        recall = _of("search-lengths", ours, base, "recall100")
        rows[name] = dict(
            tuned=f"the choice as given: {_of('search-lengths', ours, base)}; recall@100: {recall}",
            beside=_of(x, ours, base, "recall100"),
            elsewhere=_of(x, ours, base, "transfer_ndcg"),
            again="100 steps, own rates: " + _of("search-lengths", *at_100),
            finds="training at all: " + _of("search", "t0.1", "untrained"),
            spares=NOT_DONE,
        )
    rows["search tuned"]["choice"] = (
        "as printed; not for recall@100, which is not recorded by claim"
    )
    return {one.words: _row(name, rows[name], knn) for name, one in HEADLINES.items()}


def _row(name: str, row: dict, knn: dict[str, Effect]) -> dict[str, str]:
    """Return the cells of a headline, with those that follow from its runs."""
    one, here = HEADLINES[name], printed(name)
    effects = here.values() if isinstance(here, dict) else [here]
    follows = {
        "here": here,
        "seeds": "; ".join(dict.fromkeys(f"{len(x.seeds)} ({x.df})" for x in effects)),
        "beside": knn.get(name),
        "command": Markup(f"<code>python -m hnbook.headlines {name}</code>"),
    }
    if one.chosen:
        follows["choice"] = "as printed"
    elif "choice" not in row:
        follows["choice"] = "nothing was chosen"
        if experiments.load(one.experiment).chosen.keys() & {one.ours, one.base}:
            again = replace(one, chosen=True)
            follows["choice"] = {x: again.effect(block=x) for x in one.blocks}
    row = follows | row
    return {key: _cell(one.words, key, row.get(key)) for key in ASKED}


def report(name: str) -> list[str]:
    """Return the runs of a headline, what was chosen among them, and in the last line the number.

    The line of a run has its arm, seed, name in the records, and value in percent.
    """
    if name not in HEADLINES:
        raise ValueError(f"there is no headline {name!r}; choose from {', '.join(HEADLINES)}")
    one, lines = HEADLINES[name], [HEADLINES[name].words]
    experiment = experiments.load(one.experiment)
    for block, arm in itertools.product(one.blocks, (one.ours, one.base)):
        metric = experiment.metric(block)
        lines.append(f"{block} {arm} of {experiment.name}, {metric}".strip())
        source, settings = experiment.candidates(arm, block)
        names = {arm: experiment}
        if rule := experiment.chosen.get(arm):
            best = source.best(rule["among"], rule["by"], block)
            lines.append(
                f"  is {best} of {source.name}, the best of {len(settings)} by {rule['by']}"
            )
        if rule and one.chosen:
            names = dict.fromkeys(settings, source) | (names if source is not experiment else {})
        for label, of in names.items():
            runs = of.group(label, block)
            table = zip(runs["seed"], runs["record"], runs[metric])
            lines += [f"  {label}  {seed}  {record}  {100 * x:.2f}" for seed, record, x in table]
    if one.chosen:
        lines.append("Half of the seeds and of the examples choose again; the others judge.")
    return [*lines, _cell(one.words, "here", printed(name))]


def found(name: str, *ids: str) -> list[Effect]:
    """Return what predictions of an experiment found."""
    experiment = experiments.load(name)
    lines = [line for id_ in ids for line in experiment.predictions if line["id"] == id_]
    several = [predictions.of_family(experiment, line, line["metric"]).values() for line in lines]
    return [effect for effects in several for effect in effects]


def summary() -> str:
    """Return every headline with its number and the command that takes it apart."""
    rows = ["| headline | points | command |", "|---|---|---|"]
    for name, one in HEADLINES.items():
        number = _cell(one.words, "here", printed(name))
        rows.append(f"| {one.words} | {number} | `python -m hnbook.headlines {name}` |")
    return "\n".join(rows)


def _on(name: str, block: str):
    """Return what compares two arms in a block of an experiment."""
    return functools.partial(experiments.load(name).effect, block=block)


def _bags(effects: dict[str, Effect]) -> str:
    return "; ".join(f"{bag} {interval(effect)}".strip() for bag, effect in effects.items())


def _cell(headline: str, key: str, found: Effect | dict[str, Effect] | str | None) -> str:
    if not found:
        raise ValueError(f"{headline!r} has no answer to {ASKED[key]!r}; give one, or {NOT_DONE!r}")
    if isinstance(found, dict):
        return _bags(found)
    return interval(found) if isinstance(found, Effect) else found


def _of(name: str, ours: str, base: str, metric: str | None = None) -> str:
    """Return an experiment's effects by block, `NOT_DONE` while runs are missing."""
    experiment = experiments.load(name)
    if experiment.waiting([(ours, base)]):
        return NOT_DONE
    return _bags(experiment.effects([(ours, base)], metric)).strip()


if __name__ == "__main__":
    if sys.argv[1:]:
        print(*report(" ".join(sys.argv[1:])), sep="\n")
    else:
        print(*(f"{name:26} {one.words}" for name, one in HEADLINES.items()), sep="\n")
