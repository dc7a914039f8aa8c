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
from hnlib.runs import config, records, training

TEMPERATURES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05)
BETAS = (1.0, 2.0, 4.0, 8.0)
EPSILONS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
SMALL = dict(
    train_size=10000, epochs=10, validation=5000, precision="bf16-mixed", experiment="hardness"
)
FIXED = dict(tau_plus=0.0, weights_gradient=False)


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


def every_method(seed: int):
    """The catalogue on CIFAR-100."""
    for method in methods.CATALOGUE:
        yield dict(
            dataset="cifar100", method=method, seed=seed, **(SMALL | {"experiment": "images"})
        )


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


def next_run(folder: Path):
    """The first run without a record; None when all are there."""
    read = [r for r in records.load_all(folder) if "image_shape" in r]
    known = {key(record["configuration"]): record for record in read}
    return next((run for run in campaign(known) if key_of(run) not in known), None)


def campaign(known: dict[str, dict]):
    """All runs, what decides most first."""
    yield from (run for seed in range(3) for run in the_map("cifar10", seed))
    yield from (run for seed in range(6) for run in precisions(seed))
    chosen = chosen_temperature(known)
    yield from (run for seed in range(3) for run in confirmation(seed, chosen))
    yield from (run for seed in range(3) for run in false_negatives(seed))
    yield from (run for seed in range(3) for run in the_map("cifar100", seed))
    yield from (run for seed in range(3, 12) for run in confirmation(seed, chosen))
    yield from (run for seed in range(3) for run in every_method(seed))


def key(configuration: dict) -> str:
    """What tells runs apart, whatever the experiment they were made for."""
    return config.canonical(configuration | {"experiment": None, "dataset_digest": None})


def key_of(run: dict) -> str:
    """The key that the run's record will have."""
    return key(config.split(config.ImageRun, run)[0].resolved(channels=3).configuration)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=records.tracked_folder(), help="of the records"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = project_root() / "_build" / "campaign.pt"
    while (run := next_run(args.folder)) is not None:
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
        shown = {k: round(v, 4) for k, v in done.metrics.items() if "knn" in k or "linear" in k}
        print(shown, done.record["seconds"], flush=True)


if __name__ == "__main__":
    main()
