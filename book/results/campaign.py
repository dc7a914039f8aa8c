"""The long runs of the book on a CPU, one after another: `python book/results/campaign.py`.

Each run is resumed from its checkpoint, recorded when it ends and left out where its record exists,
so the script may be stopped and started at any time. One process, one thread: runs are timed as
they would be alone.
"""

import argparse
import itertools
from pathlib import Path

import torch

from hnlib import methods
from hnlib._files import project_root
from hnlib.training import config, records
from hnlib.training import run as training

TEMPERATURES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05)
BETAS = (1.0, 2.0, 4.0, 8.0)
EPSILONS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
SMALL = dict(
    train_size=10000, epochs=10, validation=5000, precision="bf16-mixed", experiment="hardness"
)
#: Temperature, the tilt that is as hard as MoCHi there, and how MoCHi mixes
MADE_UP = ((0.5, 0.4, {}), (0.5, 1.15, dict(pairs=128, with_anchor=16)), (0.2, 0.3, {}))
FIXED = dict(tau_plus=0.0, weights_gradient=False)
NOVELS = dict(dataset="novels", train_size=200_000, epochs=1, batch_size=512, lr=0.1, towers=2)
NOVELS |= dict(experiment="sentences")
#: Those that apply to pairs: the others need labels, two views or the inputs of a last layer.
ON_PAIRS = ("simclr", "debiased", "hcl", "ot", "ot-semirelaxed", "hcl-exact", "centred-hcl")
ON_PAIRS += ("bcl", "alpha-cl", "adnce", "mw", "chi2-dro", "kl-budget")


def the_map(dataset: str, seed: int):
    """Temperature × β with weights held fixed; one row with the gradient through them; transport at
    t = .5."""
    common = dict(dataset=dataset, seed=seed, **SMALL)
    for t in TEMPERATURES:
        yield dict(method="simclr", temperature=t, **common)
    for t, beta in itertools.product(TEMPERATURES, BETAS):
        yield dict(method="hcl", temperature=t, beta=beta, **FIXED, **common)
    for beta in BETAS:
        yield dict(
            method="hcl", temperature=0.5, beta=beta, tau_plus=0.0, weights_gradient=True, **common
        )
    for epsilon in EPSILONS:
        yield dict(method="ot", temperature=0.5, epsilon=epsilon, tau_plus=0.0, **common)


def false_negatives(seed: int):
    """The temperature where pairs of one class stay negatives with probability 0, .25, .5 (1 is on
    the map)."""
    for admitted, t in itertools.product((0.0, 0.25, 0.5), TEMPERATURES):
        yield dict(
            dataset="cifar10", method="simclr", seed=seed, temperature=t, admitted=admitted, **SMALL
        )


def precisions(seed: int):
    """That bf16 may stand for float32."""
    for precision in ("bf16-mixed", "32-true"):
        common = dict(dataset="cifar10", seed=seed, **(SMALL | {"precision": precision}))
        yield dict(method="simclr", temperature=0.5, **common)
        yield dict(method="hcl", temperature=0.5, beta=1.0, **FIXED, **common)


def confirmation(seed: int, chosen: float | None):
    """All of CIFAR-10; `chosen` is the temperature of the best validation accuracy on its map."""
    full = dict(train_size=None, epochs=15, experiment="confirmation")
    common = dict(dataset="cifar10", seed=seed, **(SMALL | full))
    yield dict(method="simclr", temperature=0.5, **common)
    yield dict(method="hcl", temperature=0.5, beta=1.0, **common)
    if chosen is not None:
        yield dict(method="simclr", temperature=chosen, **common)
    if seed < 3:
        yield dict(method="hcl", temperature=0.5, beta=4.0, **common)
        yield dict(method="ot", temperature=0.5, **common)


def decomposition(seed: int):
    """What HCL's gain on all of CIFAR-10 is made of: the temperatures between the confirmation's,
    and HCL without the gradient through its weights, without tau_plus, without both."""
    full = dict(train_size=None, epochs=15, experiment="decomposition")
    common = dict(dataset="cifar10", seed=seed, **(SMALL | full))
    for t in (0.25, 0.35, 0.2):
        yield dict(method="simclr", temperature=t, **common)
    hcl = dict(method="hcl", temperature=0.5, beta=1.0, **common)
    yield hcl | FIXED
    yield hcl | dict(tau_plus=0.0, weights_gradient=True)
    yield hcl | dict(tau_plus=0.1, weights_gradient=False)


def full_size(chosen: float | None):
    """Seed by seed, so that all arms of a seed are of one machine."""
    for seed in range(6, 12):
        yield from confirmation(seed, chosen)
        yield from decomposition(seed)


def pools(seed: int):
    """Accuracy against the number of negatives, 2B − 2, without and with hardness."""
    for batch, method in itertools.product((32, 64, 128, 256), ("simclr", "debiased", "hcl")):
        small = SMALL | dict(batch_size=batch, experiment="pools")
        yield dict(dataset="cifar10", method=method, seed=seed, **small)


def every_method(seed: int):
    """The catalogue on CIFAR-100."""
    for method in methods.CATALOGUE:
        yield dict(
            dataset="cifar100", method=method, seed=seed, **(SMALL | {"experiment": "images"})
        )


def made_up(dataset: str, seed: int):
    """Mixtures beside the tilts that are as hard, and beside what they leave out: for MoCHi the
    mixtures, for i-Mix the partner. The tilts were chosen before (predictions.md)."""
    common = dict(dataset=dataset, seed=seed, **(SMALL | {"experiment": "made-up"}))
    for t in (0.5, 0.2):
        yield dict(method="simclr", temperature=t, **common)
    for t, beta, more in MADE_UP:
        yield dict(method="mochi", temperature=t, **more, **common)
        yield dict(method="hcl", temperature=t, beta=beta, **FIXED, **common)
    for mixed in (dict(mixing="i-mix"), dict(mixing="i-mix", mixing_share=1.0)):
        yield dict(method="simclr", temperature=0.5, **mixed, **common)
    yield dict(method="simclr", temperature=0.5, mixing="un-mix", **common)


def mixtures():
    """Both data sets, seed by seed."""
    for seed in range(5):
        yield from (run for dataset in ("cifar10", "cifar100") for run in made_up(dataset, seed))


def sentences():
    """Pairs of sentences, seed by seed: the untrained encoders and every method that applies, what
    their predictions compare besides, and the map of temperature × β with weights held fixed (β = 0
    is SimCLR)."""
    for seed in range(10):
        common = dict(NOVELS, seed=seed)
        yield common | dict(method=None, epochs=0)
        for method in ON_PAIRS:
            known = methods.CATALOGUE[method].options
            yield dict(method=method, **common) | (
                {"tau_plus": 0.01} if "tau_plus" in known else {}
            )
        yield from hardness(common)
        for t in TEMPERATURES if seed < 6 else ():
            yield dict(method="simclr", temperature=t, **common)
            for beta in BETAS:
                yield dict(method="hcl", temperature=t, beta=beta, **FIXED, **common)
    for seed in range(3):  # all pairs; the last two have (1 + β)/t in common
        common = dict(NOVELS, seed=seed, train_size=None)
        yield dict(method="simclr", temperature=0.5, **common)
        yield dict(method="simclr", temperature=0.1, **common)
        yield dict(method="hcl", temperature=0.5, beta=4.0, **FIXED, **common)


def hardness(common: dict):
    """`hardness_strength` at t = 1/20 against lower temperatures and its normalised form; HCL as
    its Table 2 has it; transport beside the tilt of the same sharpness."""
    yield dict(method="simclr", temperature=0.05, **common)
    for alpha in (5.0, 9.0):
        yield dict(method="simclr", temperature=0.05, hardness_strength=alpha, **common)
        yield dict(method="simclr", temperature=1 / (20 + alpha), **common)
    yield dict(method="hcl", temperature=0.05, beta=0.25, **FIXED, **common)
    for beta in (1.0, 2.0):
        yield dict(method="hcl", tau_plus=0.0, beta=beta, **common)
    yield dict(method="hcl", **FIXED, **common)
    yield dict(method="ot", tau_plus=0.0, **common)


#: What a second process may do meanwhile
PARTS = {"sentences": sentences, "made-up": mixtures}


def chosen_temperature(known: dict[str, dict]) -> float | None:
    """Of SimCLR on the map of CIFAR-10, by the mean of its three seeds on validation images; None
    before all have been run."""
    runs = [run for seed in range(3) for run in the_map("cifar10", seed)]
    found = dict.fromkeys(TEMPERATURES, 0.0)
    for run in (run for run in runs if run["method"] == "simclr"):
        if (record := known.get(key_of(run))) is None:
            return None
        found[run["temperature"]] += record["metrics"]["linear_validation"]
    return max(found, key=lambda t: found[t])


def next_run(folder: Path, only: str = ""):
    """The first run without a record; None when all are there."""
    return next(missing(folder, only), None)


def missing(folder: Path | None = None, only: str = ""):
    """The runs without a record, in their order."""
    read = records.load_all(folder or records.tracked_folder())
    read = [record for record in read if {"image_shape", "sentences"} & record.keys()]
    known = {key(record["configuration"]): record for record in read}
    runs = campaign(known) if not only else PARTS[only]()
    return (run for run in runs if key_of(run) not in known)


def campaign(known: dict[str, dict]):
    """All runs, what decides most first."""
    yield from (run for seed in range(3) for run in the_map("cifar10", seed))
    yield from (run for seed in range(6) for run in precisions(seed))
    yield from (run for seed in range(3) for run in false_negatives(seed))
    chosen = chosen_temperature(known)
    yield from full_size(chosen)
    yield from (run for seed in range(3) for run in the_map("cifar100", seed))
    yield from (run for seed in range(6) for run in confirmation(seed, chosen))
    yield from (run for seed in range(3) for run in every_method(seed))
    yield from (run for seed in range(3) for run in pools(seed))
    yield from mixtures()
    yield from sentences()


def key(configuration: dict) -> str:
    """What tells runs apart, whatever the experiment they were made for."""
    return config.canonical(configuration | {"experiment": None, "dataset_digest": None})


def key_of(run: dict) -> str:
    """The key that the run's record will have."""
    return key(run_of(run).resolved(channels=3).configuration)


def run_of(run: dict) -> config.Configuration:
    """The run of the kind that its data set asks for."""
    return config.split(training.kind_of(run["dataset"], run), run)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=records.tracked_folder(), help="of the records"
    )
    parser.add_argument(
        "--only", choices=tuple(PARTS), default="", help="a part, for a second process"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = project_root() / "_build" / f"campaign{args.only}.pt"
    while (run := next_run(args.folder, args.only)) is not None:
        print(run, flush=True)
        where = dict(checkpoint=checkpoint, record_to=args.folder, progress=False)
        try:
            done = training.train(**run, **where)
        except ValueError as error:
            if not any(words in str(error) for words in ("another run", "this version of hnlib")):
                raise
            checkpoint.unlink()
            done = training.train(**run, **where)
        checkpoint.unlink()
        scores = ("knn", "linear", "knn_validation", "linear_validation", "transfer", "sts")
        shown = {k: round(v, 4) for k, v in done.metrics.items() if k in scores}
        print(shown, done.record["seconds"], flush=True)


if __name__ == "__main__":
    main()
