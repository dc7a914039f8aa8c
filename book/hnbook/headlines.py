"""The comparisons that pages of advice quote: one family for images, one for each bag in search.

`python -m hnbook.headlines WORDS` recomputes what *What each headline rests on* prints for the
headlines with these words.
"""

from __future__ import annotations

import functools
import sys

from hnbook.comparison_tables import one_variance
from hnbook.tables import Markup, format_effect, interval
from hnlib import experiments
from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect

#: Bags of words in search: pretrained embeddings, and random ones.
BAGS = ("static", "random")
NOT_DONE = "not done"
#: What a sceptic asks of a headline, by the columns of `evidence`.
ASKED = {
    "here": "as printed",
    "seeds": "seeds (degrees of freedom)",
    "tuned": "rate (search: length, too) chosen on both sides",
    "beside": "by the second read-out",
    "elsewhere": "on other data",
    "again": "on other seeds",
    "finds": "a control that must show",
    "spares": "a control that must not",
}

#: Of a question that a trial answers: the trial, its predictions, and the sentence.
TRIALS = {
    "teachers": (
        "soft-targets",
        ("F1", "F2", "F3"),
        "in points of nDCG@10 over InfoNCE at its best temperature: with BM25's scores as half of "
        "the target {}; with a static bag's {}; as masks of false negatives {} and {}.",
    ),
    "batches": (
        "batches",
        ("B2", "B3", "B5"),
        "in points of nDCG@10, similar pairs minus random ones: on SciFact {}; on Banking77 {}; "
        "with false negatives masked on both sides {} and {}.",
    ),
    "recommenders": (
        "recommender",
        ("W6", "W8", "W10"),
        "in points of nDCG@10 over InfoNCE: BPR {}; WARP {}; gBCE, with a bias, {}.",
    ),
    "sharpness": (
        "images-hundred",
        ("R7", "R8"),
        "in points under the linear probe: at γ = 20 {}; at γ = 2 {}.",
    ),
    "schedules": (
        "schedules-images",
        ("S4",),
        "in points of the linear probe over a constant temperature: a rising one {}; a falling one "
        "{}; a cosine of one period {}; of three periods {}.",
    ),
}


@functools.cache
def headlines(metric: str = "linear") -> dict[str, Effect]:
    """Return the quoted differences in points.

    Predicted differences have the intervals of their predictions (G3, G7, G8 and R9). The other
    four are corrected together; those of short runs have one variance for all arms of their
    experiment. "tuned": each loss at its own learning rate.
    """
    short, long = experiments.load("map"), experiments.load("confirmation")
    catalogue, ten = experiments.load("catalogue"), "CIFAR-10"
    pairs = {"short temperature": ("temperature", "t0.5 b0"), "short tilt": ("t0.5 b1", "t0.5 b0")}
    cells = short.matching("t* b*", ten)
    others = one_variance(short, pairs, cells, ten).effects(metric, corrected=False)
    others["long temperature"] = long.effect("t0.1", "t0.5", metric)
    labels = one_variance(catalogue, {"labels": ("scl", "simclr")}, catalogue.names())
    others |= labels.effects(metric, corrected=False)
    effects = dict(zip(others, comparisons.family(others.values())))
    effects["short both"] = short.effect("tilt", "temperature", metric, ten)
    effects["long hcl"] = long.effect("released", "t0.5", metric)
    effects["long hcl over temperature"] = long.effect("released", "t0.1", metric)
    effects["long hcl tuned"] = experiments.load("images-long").effect("released", "t0.25", metric)
    return effects


@functools.cache
def searches(bag: str) -> dict[str, Effect]:
    """Return the quoted differences of nDCG@10 on SciFact of a bag, corrected together.

    The best of four temperatures is chosen on validation claims.
    """
    pairs = {"temperature": ("temperature", "t0.05"), "tilt": ("tilt", "temperature")}
    pairs |= {"dcl": ("dcl", "b4 t0.5"), "mined": ("mined", "t0.05")}
    pairs["strength"] = ("mined strength", "mined t1/29")
    alone = [experiments.load("search").effect(*pair, block=bag) for pair in pairs.values()]
    return dict(zip(pairs, comparisons.family(alone)))


def tuned_searches(metric: str = "ndcg") -> dict[str, Effect]:
    """Return, for each bag, the tilt minus the temperature, each with its own rate and length.

    Validation claims choose rates, lengths and the temperature; the ten seeds chose nothing.
    """
    return experiments.load("search-lengths").effects([("tilt", "temperature")], metric)


def evidence() -> dict[str, dict[str, str]]:
    """Return, for each headline, what was found for every column of `ASKED`, or `NOT_DONE`.

    Cells of one column stand alone; those of the first are the corrected ones of the front page.
    """
    linear, knn, hundred = headlines(), headlines("knn"), _on("map", "CIFAR-100")
    pieces = experiments.load("decomposition").effect
    small = dict(
        finds="labels: " + interval(linear["labels"]),
        spares=f"two precisions: {_of('precision', 'simclr bf16-mixed', 'simclr 32-true')}",
    )
    rows = {
        "Short training: t = 0.1 over t = 0.5": dict(
            here=linear["short temperature"],
            tuned=_of("images-rates", "t0.1 tuned", "t0.5 tuned"),
            beside=knn["short temperature"],
            elsewhere=_of("images-hundred", "10", "2"),
            again=_of("loudness", "InfoNCE, t = 0.1", "InfoNCE, t = 0.5"),
            **small,
        ),
        "Short training: a tilt of β = 1 over none, at t = 0.5": dict(
            here=linear["short tilt"],
            tuned=_of("images-rates", "tilt0.5 tuned", "t0.5 tuned"),
            beside=knn["short tilt"],
            elsewhere=hundred("t0.5 b1", "t0.5 b0"),
            again=_of("images-rates", "tilt0.5 lr0.001", "t0.5 lr0.001"),
            **small,
        ),
        "Short training: the best tilt over the best temperature": dict(
            here=linear["short both"],
            tuned=_of("images-rates", "tilt0.1 tuned", "t0.1 tuned"),
            beside=knn["short both"],
            elsewhere=hundred("tilt", "temperature"),
            again=_of("images-rates", "tilt0.1 lr0.001", "t0.1 lr0.001"),
            **small,
        ),
        "Longer training: HCL over t = 0.5": dict(here=linear["long hcl"], beside=knn["long hcl"]),
        "Longer training: HCL over t = 0.1": dict(
            here=linear["long hcl over temperature"],
            tuned=_of("images-long", "released", "t0.1"),
            beside=knn["long hcl over temperature"],
            again=_of("images-long-rates", "released lr0.001", "t0.1 lr0.001"),
        ),
        "Longer training: HCL over t = 0.25": dict(
            here=pieces("released", "t0.25"),
            tuned=linear["long hcl tuned"],
            beside=pieces("released", "t0.25", "knn"),
            again=_of("images-long-rates", "released lr0.001", "t0.25 lr0.001"),
        ),
        "Labels over none": dict(here=linear["labels"], beside=knn["labels"]),
    }
    pairs = {
        "the best temperature over t = 0.05": ("temperature", "t0.05"),
        "a tilt over the best temperature": ("tilt", "temperature"),
    }
    for (words, pair), key in zip(pairs.items(), ("temperature", "tilt")):
        at_100 = [f"{'t0.1' if arm == 'temperature' else arm} x100" for arm in pair]
        rows[f"Search: {words}"] = dict(
            here={bag: searches(bag)[key] for bag in BAGS},
            tuned="; recall@100: ".join(
                _of("search-lengths", *pair, metric) for metric in ("ndcg", "recall100")
            ),
            beside=_of("search", *pair, "recall100"),
            elsewhere=_of("search", *pair, "transfer_ndcg"),
            again="100 steps, own rates: " + _of("search-lengths", *at_100),
            finds="training at all: " + _of("search", "t0.1", "untrained"),
            spares="DCL, the tilt of its sharpness: "
            + _bags({bag: searches(bag)["dcl"] for bag in BAGS}),
        )
    for row in rows.values():
        printed = row["here"] if isinstance(row["here"], dict) else {"": row["here"]}
        row["seeds"] = "; ".join({f"{len(x.seeds)} ({x.df})": 0 for x in printed.values()})
    return {name: {key: _cell(row.get(key)) for key in ASKED} for name, row in rows.items()}


def found(name: str, *ids: str) -> list[Effect]:
    """Return what predictions of an experiment found."""
    experiment = experiments.load(name)
    lines = [line for id_ in ids for line in experiment.predictions if line["id"] == id_]
    several = [experiment.of_family(line, line["metric"]).values() for line in lines]
    return [effect for effects in several for effect in effects]


def told(text: str, name: str, *ids: str) -> Markup:
    """Return a text whose {} are filled with the findings of predictions."""
    return Markup(text.format(*map(format_effect, found(name, *ids))))


def answers() -> dict[str, str]:
    """Return the sentences that *Questions people ask* takes from trials."""
    return {what: told(text, name, *ids) for what, (name, ids, text) in TRIALS.items()}


def _on(name: str, block: str):
    """Return what compares two arms in a block of an experiment."""
    return functools.partial(experiments.load(name).effect, block=block)


def _bags(effects: dict[str, Effect]) -> str:
    return "; ".join(f"{bag} {interval(effect)}" for bag, effect in effects.items())


def _cell(found: Effect | dict[str, Effect] | str | None) -> str:
    if isinstance(found, dict):
        return _bags(found)
    return interval(found) if isinstance(found, Effect) else found or NOT_DONE


def _of(name: str, ours: str, base: str, metric: str | None = None) -> str:
    """Return an experiment's effects by block, `NOT_DONE` while runs are missing."""
    experiment = experiments.load(name)
    if experiment.waiting([(ours, base)]):
        return NOT_DONE
    return _bags(experiment.effects([(ours, base)], metric)).strip()


if __name__ == "__main__":
    for headline, row in evidence().items():
        if " ".join(sys.argv[1:]) in headline:
            print(headline, *(f"  {ASKED[key]}: {cell}" for key, cell in row.items()), sep="\n")
