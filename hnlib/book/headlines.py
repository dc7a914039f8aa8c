"""The comparisons that pages of advice quote: one family for images, one for each bag in search."""

from __future__ import annotations

import functools
from dataclasses import replace

from hnlib.book import dial, experiments
from hnlib.book.compared import differences, whole_seeds
from hnlib.book.tables import interval
from hnlib.results import comparisons
from hnlib.results.comparisons import Effect
from hnlib.training import records

PLAIN = "mined == '' and "
MINED = (
    "mined == 'bm25' and method == 'simclr' and guide == '' and ranks == '0,30' and best_of == 1 "
    "and negatives == 1 and margin == 0 and "
)
TEMPERATURES = {
    f"t = {t}": PLAIN + f"method == 'simclr' and temperature == {t}" for t in (0.2, 0.1, 0.05, 0.02)
}
SEARCHES = TEMPERATURES | {
    "tilt": PLAIN + "method == 'hcl' and temperature == 0.2 and beta == 4",
    "tilt at γ = 10": PLAIN + "method == 'hcl' and temperature == 0.5 and beta == 4",
    "dcl": PLAIN + "method == 'dcl' and temperature == 0.1",  # γ = 10, too
    "mined": MINED + "temperature == 0.05 and hardness_strength == 0",
    "mined, α = 9": MINED + "hardness_strength == 9 and hardness_mode == 'all'",
    "mined, t = 1/29": MINED + "temperature < 0.04",
}


NOT_DONE = "not done"
#: What a sceptic asks of a headline, by the columns of `evidence`.
ASKED = {
    "here": "as printed",
    "tuned": "rate and length chosen on both sides",
    "beside": "by the second read-out",
    "elsewhere": "on other data",
    "again": "on other seeds",
    "finds": "a control that must show",
    "spares": "a control that must not",
}


@functools.cache
def small_map(block: str = "cifar10") -> dial.Map:
    """Return the map of ten epochs of 10,000 images; that of CIFAR-100 has two processors."""
    return dial.Map(experiments.load("map").table(block), mixed=block == "cifar100")


def headlines(metric: str = "linear") -> dict[str, Effect]:
    """Return the quoted differences in points, corrected together as one family.

    The map and the catalogue have three seeds and one variance for all their arms; each comparison
    of the long runs has its own.
    """
    small, long = small_map(), experiments.load("confirmation")
    catalogue = experiments.load("catalogue")
    cold, tilt = small.chosen(lambda beta: beta == 0), small.chosen(lambda beta: beta > 0)
    pairs = {"short temperature": (cold, (0.5, 0.0)), "short tilt": ((0.5, 1.0), (0.5, 0.0))}
    pairs["short both"] = (tilt, cold)
    effects = {name: small.compare(*pair, metric, pooled=True) for name, pair in pairs.items()}

    best = f"t{cold[0]:g}"
    pairs = {"long hcl": ("released", "t0.5"), "long temperature": (best, "t0.5")}
    pairs["long hcl over temperature"] = ("released", best)
    effects |= {name: long.effect(*pair, metric) for name, pair in pairs.items()}

    gains = {name: catalogue.effect(name, "simclr", metric) for name in catalogue.names()}
    del gains["simclr"]
    shared = comparisons.family(gains.values(), pooled=True)[0]  # three seeds
    effects["labels"] = replace(gains["scl"], between=shared.between, df=shared.df)
    return dict(zip(effects, comparisons.family(effects.values())))


def said(effect: Effect) -> str:
    """Write an effect and its interval in a sentence, and whether its sign is unresolved."""
    return interval(effect) + ", {term}`unresolved`" * bool(effect.low <= 0 <= effect.high)


@functools.cache
def searches(encoder: str) -> dict[str, Effect]:
    """Return the quoted differences of nDCG@10 on SciFact of a bag, corrected together.

    The best of four temperatures is chosen on validation claims.
    """
    groups = whole_seeds(_searched().query("encoder == @encoder"), SEARCHES)
    best = max(TEMPERATURES, key=lambda name: groups[name]["ndcg_validation"].mean())
    pairs = {"temperature": (best, "t = 0.05"), "tilt": ("tilt", best)}
    pairs |= {"dcl": ("dcl", "tilt at γ = 10"), "mined": ("mined", "t = 0.05")}
    pairs["strength"] = ("mined, α = 9", "mined, t = 1/29")
    return differences(groups, pairs, "ndcg")


def tuned_searches(metric: str = "ndcg") -> dict[str, Effect]:
    """Return by bag the tilt minus the temperature, both with rate and length of their own.

    Validation claims choose rates, lengths and the temperature; the ten seeds chose nothing.
    """
    return experiments.load("search-lengths").effects([("tilt", "temperature")], metric)


def evidence() -> dict[str, dict[str, str]]:
    """Return, for each headline, what was found for every column of `ASKED`, or `NOT_DONE`.

    Cells of one column stand alone; those of the first are the corrected ones of the front page.
    """
    linear, knn, hundred = headlines(), headlines("knn"), small_map("cifar100")
    where = "experiment == 'loudness' and method == 'simclr' and dataset == 'cifar10'"
    again = records.frame(kind="images", where=where)
    again = [again.query(f"temperature == {t}") for t in (0.1, 0.5)]
    small = dict(
        finds="labels: " + interval(linear["labels"]),
        spares=f"two precisions: {_of('precision', 'mixed', 'exact')}",
    )
    short, tilt = small_map().chosen(lambda beta: beta == 0), (0.5, 1.0)
    both = small_map().chosen(lambda beta: beta > 0)
    rows = {
        "Short training: t = 0.1 over t = 0.5": dict(
            here=linear["short temperature"],
            tuned=_of("images-rates", "t0.1 tuned", "t0.5 tuned"),
            beside=knn["short temperature"],
            elsewhere=hundred.compare(short, (0.5, 0.0)),
            again=comparisons.between(*again),
            **small,
        ),
        "Short training: a tilt of β = 1 over none, at t = 0.5": dict(
            here=linear["short tilt"],
            tuned=_of("images-rates", "tilt0.5 tuned", "t0.5 tuned"),
            beside=knn["short tilt"],
            elsewhere=hundred.compare(tilt, (0.5, 0.0)),
            **small,
        ),
        "Short training: the best tilt over the best temperature": dict(
            here=linear["short both"],
            tuned=_of("images-rates", "tilt0.1 tuned", "t0.1 tuned"),
            beside=knn["short both"],
            elsewhere=hundred.compare(both, short),
            **small,
        ),
        "Longer training: HCL over t = 0.5": dict(here=linear["long hcl"], beside=knn["long hcl"]),
        "Longer training: HCL over t = 0.1": dict(
            here=linear["long hcl over temperature"],
            tuned=_of("images-long", "released", "t0.1"),
            beside=knn["long hcl over temperature"],
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
            here=_bags({bag: searches(encoder)[key] for bag, encoder in BAGS.items()}),
            tuned=_of("search-lengths", *pair),
            beside=_of("search-lengths", *pair, "recall100"),
            elsewhere=_of("search-lengths", *pair, "transfer_ndcg"),
            again=_of("search-lengths", *at_100),
            finds="training at all: " + _bags(_trained()),
            spares="DCL, the tilt of its sharpness: "
            + _bags({bag: searches(encoder)["dcl"] for bag, encoder in BAGS.items()}),
        )
    return {name: {key: _cell(row.get(key)) for key in ASKED} for name, row in rows.items()}


BAGS = {"static": "static", "random": "bag"}


def _bags(effects: dict[str, Effect]) -> str:
    return "; ".join(f"{bag} {interval(effect)}" for bag, effect in effects.items())


def _cell(found: Effect | str | None) -> str:
    return interval(found) if isinstance(found, Effect) else found or NOT_DONE


def _of(name: str, ours: str, base: str, metric: str | None = None) -> str:
    """Return an experiment's effects by block, `NOT_DONE` while runs are missing."""
    experiment = experiments.load(name)
    if experiment.waiting([(ours, base)]):
        return NOT_DONE
    return _bags(experiment.effects([(ours, base)], metric)).strip()


def _trained() -> dict[str, Effect]:
    """Return by bag what training at t = 0.1 gains over the embeddings as they were."""
    where = "dataset == 'scifact' and not leak and experiment == 'retrieval' and method.isna()"
    before = records.frame(kind="retrieval", where=where)
    after = _searched().query(TEMPERATURES["t = 0.1"])
    after, before = (dict(list(runs.groupby("encoder"))) for runs in (after, before))
    return {bag: comparisons.between(after[e], before[e], "ndcg") for bag, e in BAGS.items()}


@functools.cache
def _searched():
    where = "dataset == 'scifact' and not leak and max_steps == 100 and experiment == 'retrieval'"
    blank = {"mined": "", "guide": "", "margin": 0.0}
    runs = records.frame(kind="retrieval", where=where)
    return runs.astype(dict.fromkeys(blank, object)).fillna(blank)
