"""The runs that the book's chapters wait for, in order of what they decide."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from hnlib.images.run import ImageRun
from hnlib.retrieval.run import RetrievalRun
from hnlib.sentences.run import SentenceRun
from hnlib.training import config, records

TEMPERATURES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05)
BETAS = (1.0, 2.0, 4.0, 8.0)
EPSILONS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
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
SMALL = dict(
    train_size=10000, epochs=10, validation=5000, precision="bf16-mixed", experiment="hardness"
)
FULL = SMALL | dict(dataset="cifar10", train_size=None, epochs=15)
#: Temperature, the tilt that is as hard as MoCHi there, and how MoCHi mixes
MADE_UP = ((0.5, 0.4, {}), (0.5, 1.15, dict(pairs=128, with_anchor=16)), (0.2, 0.3, {}))
FIXED = dict(tau_plus=0.0, weights_gradient=False)
NOVELS = dict(dataset="novels", train_size=200_000, epochs=1, batch_size=512, lr=0.1, towers=2)
#: Methods that apply to pairs: the others need labels, two views or the inputs of a last layer
ON_PAIRS = ("simclr", "debiased", "hcl", "ot", "ot-semirelaxed", "hcl-exact", "centred-hcl")
ON_PAIRS += ("bcl", "alpha-cl", "adnce", "mw", "chi2-dro", "kl-budget")
KINDS = {"novels": SentenceRun, "scifact": RetrievalRun, "ml-100k": RetrievalRun}
SCIFACT = dict(dataset="scifact", epochs=3, max_steps=100)
SCIFACT |= dict(transfer=("cranfield", "cisi", "med", "npl"))
#: A bag of random embeddings, and the one that wordllama trained; temperatures of their maps
BAGS = {
    "random": (SCIFACT | dict(vocabulary=8192, lr=0.1), (0.5, 0.2, 0.1, 0.05, 0.02)),
    "static": (SCIFACT | dict(encoder="static", lr=0.01), (0.2, 0.1, 0.05, 0.02)),
}
MINED = dict(mined="bm25")
FILMS = dict(dataset="ml-100k", towers=2, dimension=64, batch_size=256, epochs=3, lr=0.03)

Runs = Iterator[config.Configuration]


def _run(method: str | None, fields: dict, **options) -> config.Configuration:
    return KINDS.get(fields["dataset"], ImageRun)(method=method, options=options, **fields)


def _cell(t: float, beta: float, fields: dict) -> config.Configuration:
    """Return SimCLR (β = 0) or HCL with its weights held fixed."""
    if beta == 0:
        return _run("simclr", fields, temperature=t)
    return _run("hcl", fields, temperature=t, beta=beta, **FIXED)


def the_map(dataset: str, seed: int) -> Runs:
    """Yield temperature × β, a row with the gradient through the weights, and transport."""
    fields = dict(dataset=dataset, seed=seed, **SMALL)
    for t in TEMPERATURES:
        yield _cell(t, 0, fields)
    for t, beta in itertools.product(TEMPERATURES, BETAS):
        yield _cell(t, beta, fields)
    for beta in BETAS:
        yield _run("hcl", fields, temperature=0.5, beta=beta, tau_plus=0.0, weights_gradient=True)
    for epsilon in EPSILONS:
        yield _run("ot", fields, temperature=0.5, epsilon=epsilon, tau_plus=0.0)


def false_negatives(seed: int) -> Runs:
    """Yield each temperature where a pair of one class stays negative with probability < 1."""
    for admitted, t in itertools.product((0.0, 0.25, 0.5), TEMPERATURES):
        yield _cell(t, 0, dict(dataset="cifar10", seed=seed, admitted=admitted, **SMALL))


def precisions(seed: int) -> Runs:
    """Yield two methods in bf16 and in float32."""
    for precision in ("bf16-mixed", "32-true"):
        fields = dict(dataset="cifar10", seed=seed) | SMALL | dict(precision=precision)
        yield _cell(0.5, 0, fields)
        yield _cell(0.5, 1.0, fields)


def confirmation(seed: int) -> Runs:
    """Yield the confirmation on all of CIFAR-10."""
    fields = FULL | dict(seed=seed, experiment="confirmation")
    yield _cell(0.5, 0, fields)
    yield _run("hcl", fields, temperature=0.5, beta=1.0)
    yield _cell(CHOSEN, 0, fields)
    if seed < 3:
        yield _run("hcl", fields, temperature=0.5, beta=4.0)
        yield _run("ot", fields, temperature=0.5)


def decomposition(seed: int) -> Runs:
    """Yield what may explain HCL's gain on all of CIFAR-10.

    The temperatures between those of the confirmation, and HCL without the gradient through its
    weights, without tau_plus, without both.
    """
    fields = FULL | dict(seed=seed, experiment="decomposition")
    for t in (0.25, 0.35, 0.2):
        yield _cell(t, 0, fields)
    yield _cell(0.5, 1.0, fields)
    for tau_plus, gradient in ((0.0, True), (0.1, False)):
        released = dict(tau_plus=tau_plus, weights_gradient=gradient)
        yield _run("hcl", fields, temperature=0.5, beta=1.0, **released)


def full_size() -> Runs:
    """Yield all arms seed by seed, so that those of a seed share a machine."""
    for seed in range(6, 12):
        yield from confirmation(seed)
        yield from decomposition(seed)


def lengths(seed: int) -> Runs:
    """Yield pairs of equal γ at 10, 40 and 160 epochs."""
    for epochs, cell in itertools.product((10, 40, 160), LENGTHENED):
        length = dict(seed=seed, epochs=epochs, experiment="length")
        yield _cell(*cell, SMALL | dict(dataset="cifar10") | length)


def low_temperatures(dataset: str, seed: int) -> Runs:
    """Yield SimCLR at temperatures between and below those of the map."""
    for t in (1 / 15, 1 / 30, 1 / 40):
        yield _cell(t, 0, SMALL | dict(dataset=dataset, seed=seed, experiment="temperatures"))


def equal_gamma(seed: int) -> Runs:
    """Yield the cells of the map that share their γ with others."""
    for cell in EQUAL_GAMMA:
        yield _cell(*cell, SMALL | dict(dataset="cifar10", seed=seed, experiment="equal-gamma"))


def batch_sizes(seed: int) -> Runs:
    """Yield pairs of equal γ at a quarter of the batch and at twice the batch."""
    for batch_size, cell in itertools.product((64, 512), PAIRED):
        fields = dict(dataset="cifar10", seed=seed, batch_size=batch_size)
        yield _cell(*cell, SMALL | fields | dict(experiment="equal-gamma"))


def learning_rates(seed: int) -> Runs:
    """Yield temperature × learning rate on sentences."""
    for lr, t in itertools.product((0.01, 0.03, 0.1, 0.3), (0.5, 0.1, 0.05)):
        yield _cell(t, 0, NOVELS | dict(seed=seed, lr=lr))


def pools(seed: int) -> Runs:
    """Yield batch sizes, without and with hardness."""
    for batch_size, method in itertools.product((32, 64, 128, 256), ("simclr", "debiased", "hcl")):
        fields = dict(dataset="cifar10", seed=seed, batch_size=batch_size)
        yield _run(method, SMALL | fields | dict(experiment="pools"))


def every_method(seed: int) -> Runs:
    """Yield the catalogue on CIFAR-100."""
    for method in ImageRun().catalogue:
        yield _run(method, SMALL | dict(dataset="cifar100", seed=seed, experiment="images"))


def made_up(dataset: str, seed: int) -> Runs:
    """Yield mixtures beside the tilts that are as hard, and beside what they leave out.

    MoCHi's counterpart lacks the mixtures, that of i-Mix the partner. The tilts were chosen before
    (predictions.md).
    """
    fields = SMALL | dict(dataset=dataset, seed=seed, experiment="made-up")
    for t in (0.5, 0.2):
        yield _cell(t, 0, fields)
    for t, beta, mixing in MADE_UP:
        yield _run("mochi", fields, temperature=t, **mixing)
        yield _cell(t, beta, fields)
    for mixed in (dict(mixing="i-mix"), dict(mixing="i-mix", mixing_share=1.0)):
        yield _cell(0.5, 0, fields | mixed)
    yield _cell(0.5, 0, fields | dict(mixing="un-mix"))


def loudness() -> Runs:
    """Yield five losses that differ in how loud each anchor is, at three temperatures."""
    losses = (("simclr", {}), ("dcl", {}), ("focal", {}), ("focal", {"loudness": 3.0}))
    losses += (("siglip", {}),)
    for seed, t in itertools.product(range(20, 25), (0.5, 0.1, 0.05)):
        fields = SMALL | dict(dataset="cifar10", seed=seed, experiment="loudness")
        for method, options in losses:
            yield _run(method, fields, temperature=t, **options)


def mixtures() -> Runs:
    """Yield `made_up` on both data sets, seed by seed."""
    for seed, dataset in itertools.product(range(10), ("cifar10", "cifar100")):
        yield from made_up(dataset, seed)


def sentences() -> Runs:
    """Yield pairs of sentences, seed by seed, then three settings on all pairs.

    The untrained encoders, every method that applies, what their predictions compare besides, and
    the map of temperature × β.
    """
    for seed in range(10):
        fields = NOVELS | dict(seed=seed)
        yield _run(None, fields | dict(epochs=0))
        for method in ON_PAIRS:
            prior = (
                {"tau_plus": 0.01} if "tau_plus" in ImageRun().catalogue[method].defaults else {}
            )
            yield _run(method, fields, **prior)
        yield from hardness(fields)
        for t in TEMPERATURES if seed < 6 else ():
            for beta in (0.0, *BETAS):
                yield _cell(t, beta, fields)
    for seed in range(3):
        fields = NOVELS | dict(seed=seed, train_size=None)
        for cell in ((0.5, 0), (0.1, 0), (0.5, 4.0)):
            yield _cell(*cell, fields)


def hardness(fields: dict) -> Runs:
    """Yield forms of `hardness_strength`, HCL as in its Table 2, and transport beside its tilt."""
    yield _cell(0.05, 0, fields)
    for alpha in (5.0, 9.0):
        yield _run("simclr", fields, temperature=0.05, hardness_strength=alpha)
        yield _cell(1 / (20 + alpha), 0, fields)
    yield _cell(0.05, 0.25, fields)
    for beta in (1.0, 2.0):
        yield _run("hcl", fields, tau_plus=0.0, beta=beta)
    yield _run("hcl", fields, **FIXED)
    yield _run("ot", fields, tau_plus=0.0)


def searches(seed: int, bag: str) -> Runs:
    """Yield retrieval by a bag: the map, `hardness_strength`, and for the random one the rest."""
    fields, temperatures = BAGS[bag]
    fields = fields | dict(seed=seed)
    yield _run(None, fields | dict(epochs=0, max_steps=None))
    for t in temperatures:
        yield _cell(t, 0, fields)
    for t, beta in ((0.5, 4.0), (0.2, 4.0)):
        yield _cell(t, beta, fields)
    yield _cell(0.05, 0, fields | MINED)
    yield _cell(1 / 29, 0, fields | MINED)
    modes = ("all", "mined", "in-batch") if bag == "random" else ("all",)
    for mode in modes:
        harder = MINED | dict(hardness_mode=mode, hardness_strength=9.0)
        yield _cell(0.05, 0, fields | harder)
    if bag == "static":
        yield _cell(0.05, 0, fields | MINED | dict(guide="static"))
        return
    for t, beta in itertools.product(temperatures, (1.0, 4.0)):
        if (t, beta) not in ((0.5, 4.0), (0.2, 4.0)):
            yield _cell(t, beta, fields)
    yield from mining(fields)
    for method, options in IN_BATCH.items():
        yield _run(method, fields, temperature=0.1, **options)


def mining(fields: dict) -> Runs:
    """Yield mined negatives: further down, the hardest of four, by the model, with a margin."""
    further = dict(ranks=(30, 100))
    hardest = dict(best_of=4)
    model = dict(mined="model", refresh=True)
    for chosen in (further, hardest, dict(guide="self"), model, model | dict(margin=0.95)):
        yield _cell(0.05, 0, fields | MINED | chosen)


#: Methods beside InfoNCE at t = 0.1, with negatives of the batch alone
IN_BATCH = {
    "debiased": dict(tau_plus=0.01),
    "ot": dict(tau_plus=0.0),
    "adnce": {},
    "dcl": {},
    "siglip": {},
}


def two_towers(seed: int) -> Runs:
    """Yield users and films: three corrections, a tilt, and the most similar of M films."""
    fields = FILMS | dict(seed=seed)
    yield _run(None, fields | dict(epochs=0))
    for logq, t in itertools.product((None, "on", "refined"), (0.1, 0.2, 0.4)):
        yield _cell(t, 0, fields | dict(logq=logq))
    yield _cell(0.4, 1.0, fields | dict(logq="refined"))
    for best_of in (1, 4, 16):
        drawn = dict(mined="model", refresh=True, ranks=(0, 600), best_of=best_of)
        yield _cell(0.2, 0, fields | drawn)


def further(seed: int) -> Runs:
    """Yield the second round: the rest of the static map, loudness, modes, ranks and margins."""
    for bag, (fields, temperatures) in BAGS.items():
        fields = fields | dict(seed=seed, transfer=())
        mined, longer = fields | MINED, fields | dict(epochs=5, max_steps=200)
        yield _cell(0.2, 4.0, longer)
        yield _cell(0.1 if bag == "static" else 0.2, 0, longer)
        yield _cell(0.05, 0, mined | dict(negatives=4))
        yield _run("dcl", mined, temperature=1 / 29)
        if bag == "static":
            yield _run("dcl", fields, temperature=0.1)
            yield _cell(0.05, 0, mined | dict(guide="self"))
            for mode in ("mined", "in-batch"):
                yield _cell(0.05, 0, mined | dict(hardness_mode=mode, hardness_strength=9.0))
            first = {(0.5, 4.0), (0.2, 4.0), *itertools.product(temperatures, (0.0,))}
            for cell in itertools.product((0.5, *temperatures), (0.0, 1.0, 4.0)):
                if cell not in first:
                    yield _cell(*cell, fields)
            continue
        yield _run("focal", fields, temperature=0.1)
        below = dict(negatives=4, ranks=(30, 100))
        guides = [dict(guide="self", guide_margin=margin) for margin in (0.1, -0.1)]
        for chosen in (below, dict(margin=0.95), *guides):
            yield _cell(0.05, 0, mined | chosen)


def retrieval() -> Runs:
    """Yield retrieval and two towers, seed by seed, then the second round."""
    for seed in range(10):
        yield from searches(seed, "random")
        yield from two_towers(seed)
        yield from searches(seed, "static")
        yield _cell(0.1, 0, BAGS["random"][0] | dict(seed=seed, leak=True))
    for seed in range(10):
        yield from further(seed)


#: Parts that a second process may work on
PARTS = {"retrieval": retrieval, "sentences": sentences, "made-up": mixtures, "loudness": loudness}


def campaign() -> Runs:
    """Yield all runs, what decides most first."""
    blocks = (
        *(the_map("cifar10", seed) for seed in range(3)),
        *(precisions(seed) for seed in range(6)),
        *(false_negatives(seed) for seed in range(3)),
        full_size(),
        *(lengths(seed) for seed in range(3)),
        *(low_temperatures(d, seed) for seed in range(3) for d in ("cifar10", "cifar100")),
        *(the_map("cifar100", seed) for seed in range(3)),
        *(equal_gamma(seed) for seed in range(3, 13)),
        *(learning_rates(seed) for seed in range(5)),
        *(confirmation(seed) for seed in range(6)),
        *(every_method(seed) for seed in range(3)),
        *(pools(seed) for seed in range(3)),
        mixtures(),
        loudness(),
        sentences(),
        retrieval(),
        *(batch_sizes(seed) for seed in range(5)),
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
    return config.canonical(configuration | {"experiment": None, "dataset_digest": None})


def key_of(run: config.Configuration) -> str:
    """Return the key that the run's record will have."""
    return key(run.configuration)
