"""The long runs of the book on a CPU, one after another: `python book/results/campaign.py [--list]
[--folder RUNS]`.

Each run is resumed from its checkpoint, recorded when it ends and left out where its record exists,
so the script may be stopped and started at any time. One process, one thread: runs are timed as
they would be alone.
"""

import argparse
import itertools
from pathlib import Path

import torch

from hnlib.runs import records, training

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


def campaign():
    """All runs, what decides most first."""
    for dataset in ("cifar10", "cifar100"):
        for seed in range(3):
            yield from the_map(dataset, seed)
    for seed in range(6):  # that bf16 may stand for float32
        for method in ("simclr", "hcl"):
            options = dict(temperature=0.5) | (
                {} if method == "simclr" else dict(beta=1.0, **FIXED)
            )
            for precision in ("bf16-mixed", "32-true"):
                yield dict(
                    dataset="cifar10",
                    method=method,
                    seed=seed,
                    **options,
                    **(SMALL | {"precision": precision}),
                )


def recorded(run: dict, known: list[dict]) -> bool:
    """Whether a record has every choice of the run."""
    return any(
        all(c.get(k, c["options"].get(k)) == v for k, v in run.items() if k != "experiment")
        for c in known
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the runs that are missing")
    parser.add_argument(
        "--folder", type=Path, default=records.tracked_folder(), help="of the records"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    for run in campaign():
        known = [r["configuration"] for r in records.load_all(args.folder) if "image_shape" in r]
        if recorded(run, known):
            continue
        print(run, flush=True)
        if not args.list:
            checkpoint = args.folder.parents[2] / "_build" / "campaign.pt"
            try:
                done = training.train(
                    **run, checkpoint=checkpoint, record_to=args.folder, progress=False
                )
            except ValueError as error:
                if not any(words in str(error) for words in ("another run", "hnlib 0.1")):
                    raise
                checkpoint.unlink()
                done = training.train(
                    **run, checkpoint=checkpoint, record_to=args.folder, progress=False
                )
            checkpoint.unlink()
            print(
                {k: round(v, 4) for k, v in done.metrics.items() if "knn" in k or "linear" in k},
                done.record["seconds"],
                flush=True,
            )


if __name__ == "__main__":
    main()
