"""The runs that the book's chapters still wait for, in order of what they decide.

A block leaves this list when all its runs are recorded: the records hold their configurations. An
arm is a dictionary of fields of a run; a grid crosses a list of arms with values of fields.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from hnlib.book import experiments
from hnlib.images.run import ImageRun
from hnlib.sentences.run import SentenceRun
from hnlib.training import config, records

Runs = Iterator[config.Configuration]
Arms = list[dict]
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
            kind = SentenceRun if arm["dataset"] == "novels" else ImageRun
            yield kind(**arm)


# Images

TEMPERATURES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05)
BETAS = (1.0, 2.0, 4.0, 8.0)
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
BOTH = ("cifar10", "cifar100")
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


def images(experiment: str, cells: Iterable[tuple], **over) -> Runs:
    """Yield cells (t, β) on small sets, for an experiment."""
    return grid(SMALL | dict(experiment=experiment), [cell(*pair) for pair in cells], **over)


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


def campaign() -> Runs:
    """Yield all runs, what decides most first."""
    catalogue = [arm(method, experiment="images") for method in ImageRun().catalogue]
    pools = on(dict(experiment="pools"), [arm(m) for m in ("simclr", "debiased", "hcl")])
    blocks = (
        images("length", LENGTHENED, seed=range(3), epochs=(10, 40, 160)),
        images("temperatures", [(1 / n,) for n in (15, 30, 40)], seed=range(3), dataset=BOTH),
        images("equal-gamma", EQUAL_GAMMA, seed=range(3, 13)),
        grid(NOVELS, cells((0.5, 0.1, 0.05)), seed=range(5), lr=(0.01, 0.03, 0.1, 0.3)),
        grid(SMALL | dict(dataset="cifar100"), catalogue, seed=range(3)),
        grid(SMALL, pools, seed=range(3), batch_size=(32, 64, 128, 256)),
        grid(SMALL | dict(experiment="made-up"), MADE_UP, seed=range(10), dataset=BOTH),
        sentences(),
        images("equal-gamma", PAIRED, seed=range(5), batch_size=(64, 512)),
    )
    return itertools.chain.from_iterable(blocks)


def missing() -> Runs:
    """Yield the runs without a record, in their order, then those of the experiments' files."""
    recorded = records.by_key()
    for run in campaign():
        if records.key(run.configuration) not in recorded:
            yield run
    for name in experiments.names():
        yield from experiments.load(name).missing()
