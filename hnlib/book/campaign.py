"""The runs that the book's chapters wait for, in order of what they decide.

An arm is a dictionary of fields of a run; a grid crosses a list of arms with values of fields.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from hnlib.images.run import ImageRun
from hnlib.retrieval.run import RetrievalRun
from hnlib.sentences.run import SentenceRun
from hnlib.training import config, records

Runs = Iterator[config.Configuration]
Arms = list[dict]
KINDS = {"novels": SentenceRun, "scifact": RetrievalRun, "ml-100k": RetrievalRun}
FIXED = dict(tau_plus=0.0, weights_gradient=False)


def arm(method: str | None, /, options: dict | None = None, **fields) -> dict:
    """Return an arm that trains with a method of the catalogue."""
    return dict(method=method, options=options or {}, **fields)


def cell(t: float, beta: float = 0.0, **fields) -> dict:
    """Return SimCLR (β = 0) or HCL with its weights held fixed."""
    if beta == 0:
        return arm("simclr", dict(temperature=t), **fields)
    return arm("hcl", dict(temperature=t, beta=beta, **FIXED), **fields)


def cells(temperatures: Iterable[float], betas: Iterable[float] = (0.0,)) -> Arms:
    """Return the cells of a map of temperature × β."""
    return [cell(*pair) for pair in itertools.product(temperatures, betas)]


def on(fields: dict, arms: Arms) -> Arms:
    """Return arms with more fields; where an arm has one already, it stays."""
    return [fields | arm for arm in arms]


def grid(fields: dict, arms: Arms, **over) -> Runs:
    """Yield a run for every value of the fields `over`, the last of which varies faster, and arm.

    Arms vary fastest.
    """
    for values in itertools.product(*over.values()):
        for arm in on(fields | dict(zip(over, values)), arms):
            yield KINDS.get(arm["dataset"], ImageRun)(**arm)


# Images

TEMPERATURES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05)
BETAS = (1.0, 2.0, 4.0, 8.0)
#: Temperature of SimCLR with the best mean validation accuracy on the map of CIFAR-10
CHOSEN = 0.1
#: Cells (t, β) of the map that share γ = (1 + β)/t = 5, 10, 20, 30
EQUAL_GAMMA = ((1.0, 4.0), (0.2, 0.0), (0.5, 4.0), (0.3, 2.0), (0.2, 1.0), (0.1, 0.0))
EQUAL_GAMMA += ((0.1, 1.0), (0.05, 0.0), (0.3, 8.0), (0.1, 2.0))
#: One tilted and one untilted cell for each of γ = 2, 5, 10, 20
PAIRED = ((1.0, 1.0), (0.5, 0.0), (1.0, 4.0), (0.2, 0.0), (0.5, 4.0), (0.1, 0.0), (0.1, 1.0))
PAIRED += ((0.05, 0.0),)
#: Pairs of cells (t, β) that share γ, for longer and longer trainings
LENGTHENED = ((0.1, 0.0), (0.5, 4.0), (0.05, 0.0), (0.5, 9.0), (0.25, 0.0), (0.5, 1.0))
SMALL = dict(dataset="cifar10", train_size=10000, epochs=10, validation=5000)
SMALL |= dict(precision="bf16-mixed", experiment="hardness")
FULL = SMALL | dict(train_size=None, epochs=15)
#: Temperature × β, a row with the gradient through the weights, and transport
MAP = [*cells(TEMPERATURES), *cells(TEMPERATURES, BETAS)]
MAP += [arm("hcl", dict(temperature=0.5, beta=beta, tau_plus=0.0)) for beta in BETAS]
MAP += [
    arm("ot", dict(temperature=0.5, epsilon=epsilon, tau_plus=0.0))
    for epsilon in (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
]
#: On all of CIFAR-10, first in short and then with more arms
CONFIRMATION = [cell(0.5), arm("hcl", dict(temperature=0.5, beta=1.0)), cell(CHOSEN)]
CONFIRMATION = on(dict(experiment="confirmation"), CONFIRMATION)
MORE = [arm("hcl", dict(temperature=0.5, beta=4.0)), arm("ot", dict(temperature=0.5))]
MORE = on(dict(experiment="confirmation"), MORE)
#: What may explain HCL's gain on all of CIFAR-10: the temperatures between those of the
#: confirmation, and HCL without the gradient through its weights, without tau_plus, without both
DECOMPOSITION = [*cells((0.25, 0.35, 0.2)), cell(0.5, 1.0)]
DECOMPOSITION += [
    arm("hcl", dict(temperature=0.5, beta=1.0, tau_plus=tau_plus, weights_gradient=gradient))
    for tau_plus, gradient in ((0.0, True), (0.1, False))
]
DECOMPOSITION = on(dict(experiment="decomposition"), DECOMPOSITION)
#: Mixtures beside the tilts that are as hard, and beside what they leave out: MoCHi's counterpart
#: lacks the mixtures, that of i-Mix the partner. The tilts were chosen before (predictions.md).
MADE_UP = [
    *cells((0.5, 0.2)),
    arm("mochi", dict(temperature=0.5)),
    cell(0.5, 0.4),
    arm("mochi", dict(temperature=0.5, pairs=128, with_anchor=16)),
    cell(0.5, 1.15),
    arm("mochi", dict(temperature=0.2)),
    cell(0.2, 0.3),
    cell(0.5, mixing="i-mix"),
    cell(0.5, mixing="i-mix", mixing_share=1.0),
    cell(0.5, mixing="un-mix"),
]
#: Five losses that differ in how loud each anchor is, at three temperatures
LOUDNESS = [
    arm(method, dict(temperature=t, **options))
    for t in (0.5, 0.1, 0.05)
    for method, options in (
        *(("simclr", {}), ("dcl", {}), ("focal", {})),
        *(("focal", dict(loudness=3.0)), ("siglip", {})),
    )
]
#: SigLIP with a bias at which no similarity saturates
UNSATURATED = [arm("siglip", dict(temperature=t, bias=-1 / t)) for t in (0.1, 0.05)]


def images(experiment: str, cells: Iterable[tuple], **over) -> Runs:
    """Yield cells (t, β) on small sets, for an experiment."""
    return grid(SMALL | dict(experiment=experiment), [cell(*pair) for pair in cells], **over)


def mixtures() -> Runs:
    """Yield `MADE_UP` on both data sets, seed by seed."""
    fields = SMALL | dict(experiment="made-up")
    return grid(fields, MADE_UP, seed=range(10), dataset=("cifar10", "cifar100"))


def loudness() -> Runs:
    """Yield `LOUDNESS`, seed by seed, then `UNSATURATED`, on images and in search."""
    fields = SMALL | dict(experiment="loudness")
    for arms in (LOUDNESS, UNSATURATED):
        yield from grid(fields, arms, seed=range(20, 25))
    search = on(RANDOM | dict(transfer=(), experiment="loudness"), UNSATURATED[:1])
    yield from grid({}, search, seed=range(10))


# Sentences

NOVELS = dict(dataset="novels", train_size=200_000, epochs=1, batch_size=512, lr=0.1, towers=2)
#: Methods that apply to pairs: the others need labels, two views or the inputs of a last layer
ON_PAIRS = ("simclr", "debiased", "hcl", "ot", "ot-semirelaxed", "hcl-exact", "centred-hcl")
ON_PAIRS += ("bcl", "alpha-cl", "adnce", "mw", "chi2-dro", "kl-budget")
#: The untrained encoders, every method that applies, forms of `hardness_strength`, HCL as in its
#: Table 2, and transport beside its tilt
PAIRS = [arm(None, epochs=0)]
PAIRS += [
    arm(method, {"tau_plus": 0.01} if "tau_plus" in ImageRun().catalogue[method].defaults else {})
    for method in ON_PAIRS
]
PAIRS += [cell(0.05)]
for alpha in (5.0, 9.0):
    harder = dict(temperature=0.05, hardness_strength=alpha)
    PAIRS += [arm("simclr", harder), cell(1 / (20 + alpha))]
PAIRS += [cell(0.05, 0.25), *(arm("hcl", dict(tau_plus=0.0, beta=beta)) for beta in (1.0, 2.0))]
PAIRS += [arm("hcl", FIXED), arm("ot", dict(tau_plus=0.0))]


def sentences() -> Runs:
    """Yield pairs of sentences, seed by seed, with the map of six seeds, then all pairs."""
    yield from grid(NOVELS, PAIRS + cells(TEMPERATURES, (0.0, *BETAS)), seed=range(6))
    yield from grid(NOVELS, PAIRS, seed=range(6, 10))
    everything = [*cells((0.5, 0.1)), cell(0.5, 4.0)]
    yield from grid(NOVELS | dict(train_size=None), everything, seed=range(3))


# Retrieval: a bag of random embeddings, and the one that wordllama trained

SCIFACT = dict(dataset="scifact", epochs=3, max_steps=100)
SCIFACT |= dict(transfer=("cranfield", "cisi", "med", "npl"))
RANDOM = SCIFACT | dict(vocabulary=8192, lr=0.1)
STATIC = SCIFACT | dict(encoder="static", lr=0.01)
COLD = (0.2, 0.1, 0.05, 0.02)
MINED = dict(mined="bm25")
MODEL = dict(mined="model", refresh=True)
LONGER = dict(epochs=5, max_steps=200)
UNTRAINED = arm(None, epochs=0, max_steps=None)
TILTED = cells((0.5, 0.2), (4.0,))


def mined(*chosen: dict, t: float = 0.05) -> Arms:
    """Return SimCLR with mined negatives, chosen in several ways."""
    return [cell(t, **MINED | fields) for fields in chosen]


def modes(*names: str) -> Arms:
    """Return `hardness_strength` on negatives of several kinds."""
    return mined(*(dict(hardness_mode=mode, hardness_strength=9.0) for mode in names))


#: Each bag: its map and `hardness_strength`; for the random one also mined negatives (further down,
#: the hardest of four, by the model, with a margin) and other methods with negatives of the batch
SEARCHES = {
    "random": on(
        RANDOM,
        [
            *[UNTRAINED, *cells((0.5, *COLD)), *TILTED, *mined({}), *mined({}, t=1 / 29)],
            *modes("all", "mined", "in-batch"),
            *[*cells((0.5, 0.2), (1.0,)), *cells((0.1, 0.05, 0.02), (1.0, 4.0))],
            *mined(dict(ranks=(30, 100)), dict(best_of=4), dict(guide="self")),
            *mined(MODEL, MODEL | dict(margin=0.95)),
            arm("debiased", dict(temperature=0.1, tau_plus=0.01)),
            arm("ot", dict(temperature=0.1, tau_plus=0.0)),
            *(arm(method, dict(temperature=0.1)) for method in ("adnce", "dcl", "siglip")),
        ],
    ),
    "static": on(
        STATIC,
        [
            *[UNTRAINED, *cells(COLD), *TILTED, *mined({}), *mined({}, t=1 / 29)],
            *[*modes("all"), *mined(dict(guide="static"))],
        ],
    ),
}
#: Users and films: three corrections, a tilt, and the most similar of M films
TWO_TOWERS = on(
    dict(dataset="ml-100k", towers=2, dimension=64, batch_size=256, epochs=3, lr=0.03),
    [
        arm(None, epochs=0),
        *(cell(t, logq=logq) for logq in (None, "on", "refined") for t in (0.1, 0.2, 0.4)),
        cell(0.4, 1.0, logq="refined"),
        *(cell(0.2, **MODEL, ranks=(0, 600), best_of=best_of) for best_of in (1, 4, 16)),
    ],
)
LEAK = on(RANDOM, [cell(0.1, leak=True)])
#: The second round: the rest of the static map, loudness, modes, ranks and margins
FURTHER = on(
    RANDOM | dict(transfer=()),
    [
        *[cell(0.2, 4.0, **LONGER), cell(0.2, **LONGER), *mined(dict(negatives=4))],
        *[arm("dcl", dict(temperature=1 / 29), **MINED), arm("focal", dict(temperature=0.1))],
        *mined(dict(negatives=4, ranks=(30, 100)), dict(margin=0.95)),
        *mined(*(dict(guide="self", guide_margin=margin) for margin in (0.1, -0.1))),
    ],
)
FURTHER += on(
    STATIC | dict(transfer=()),
    [
        *[cell(0.2, 4.0, **LONGER), cell(0.1, **LONGER), *mined(dict(negatives=4))],
        *[arm("dcl", dict(temperature=1 / 29), **MINED), arm("dcl", dict(temperature=0.1))],
        *[*mined(dict(guide="self")), *modes("mined", "in-batch")],
        *[*cells((0.5,), (0.0, 1.0)), cell(0.2, 1.0), *cells((0.1, 0.05, 0.02), (1.0, 4.0))],
    ],
)


def retrieval() -> Runs:
    """Yield retrieval and two towers, seed by seed, then the second round."""
    arms = [*SEARCHES["random"], *TWO_TOWERS, *SEARCHES["static"], *LEAK]
    yield from grid({}, arms, seed=range(10))
    yield from grid({}, FURTHER, seed=range(10))


#: Parts that a second process may work on
PARTS = {"retrieval": retrieval, "sentences": sentences, "made-up": mixtures, "loudness": loudness}


def campaign() -> Runs:
    """Yield all runs, what decides most first."""
    catalogue = [arm(method, experiment="images") for method in ImageRun().catalogue]
    pools = on(dict(experiment="pools"), [arm(m) for m in ("simclr", "debiased", "hcl")])
    both, precisions = ("cifar10", "cifar100"), ("bf16-mixed", "32-true")
    blocks = (
        grid(SMALL, MAP, seed=range(3)),
        grid(SMALL, cells((0.5,), (0.0, 1.0)), seed=range(6), precision=precisions),
        grid(SMALL, cells(TEMPERATURES), seed=range(3), admitted=(0.0, 0.25, 0.5)),
        grid(FULL, CONFIRMATION + DECOMPOSITION, seed=range(6, 12)),
        images("length", LENGTHENED, seed=range(3), epochs=(10, 40, 160)),
        images("temperatures", [(1 / n,) for n in (15, 30, 40)], seed=range(3), dataset=both),
        grid(SMALL | dict(dataset="cifar100"), MAP, seed=range(3)),
        images("equal-gamma", EQUAL_GAMMA, seed=range(3, 13)),
        grid(NOVELS, cells((0.5, 0.1, 0.05)), seed=range(5), lr=(0.01, 0.03, 0.1, 0.3)),
        grid(FULL, CONFIRMATION + MORE, seed=range(3)),
        grid(FULL, CONFIRMATION, seed=range(3, 6)),
        grid(SMALL | dict(dataset="cifar100"), catalogue, seed=range(3)),
        grid(SMALL, pools, seed=range(3), batch_size=(32, 64, 128, 256)),
        mixtures(),
        loudness(),
        sentences(),
        retrieval(),
        images("equal-gamma", PAIRED, seed=range(5), batch_size=(64, 512)),
    )
    return itertools.chain.from_iterable(blocks)


def missing(folder: Path | None = None, part: str = "") -> Runs:
    """Yield the runs without a record, in their order."""
    recorded = records.load_all(folder or records.tracked_folder())
    keys = {key(record["configuration"]) for record in recorded}
    runs = PARTS[part]() if part else campaign()
    return (run for run in runs if key_of(run) not in keys)


def key(configuration: dict) -> str:
    """Return what tells runs apart, whatever the experiment they were made for."""
    same = {"experiment": None, "dataset_digest": None}
    return json.dumps(configuration | same, sort_keys=True)


def key_of(run: config.Configuration) -> str:
    """Return the key that the run's record will have."""
    return key(run.configuration)
