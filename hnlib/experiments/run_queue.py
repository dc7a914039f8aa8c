"""What to run next: printed numbers without a record, then the runs that the chapters wait for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

from hnlib import experiments
from hnlib.experiments import comparisons, evidence, paper_numbers, runner
from hnlib.training import records

USUAL_SIZE = 50_000  # images of a data set where a run names no number
READOUT = 15  # seconds


@dataclass(frozen=True)
class Job:
    """A run without a record: how many printed numbers it fills, and its minutes, if known.

    They are `estimated` from arithmetic where no comparable run is recorded.
    """

    run: Any
    numbers: int
    minutes: float | None
    estimated: bool = False


def jobs(frame: Any, seeds: int = 1, only: str = "*", device: str = "cpu") -> list[Job]:
    """Return the runs of printed numbers without a record, most numbers a minute first.

    On a GPU only images have known minutes, and so come before all others.

    `only` matches "PAPER TABLE, DATASET, METHOD". Raises ValueError if it matches neither a printed
    number nor a run of an experiment, recorded or not.
    """
    by_key: dict[str, list[paper_numbers.Cell]] = {}
    for cell in paper_numbers.cells():
        if cell.run is not None:
            by_key.setdefault(cell.key, []).append(cell)
    recorded = paper_numbers.measured(frame)
    missing, matches = [], False
    for key, cells in by_key.items():
        rest = [(c.paper, f"{c.table}, {c.dataset}, {c.run.method}") for c in cells]
        names = [
            f"{name} {text}" for key, text in rest for name in (key, paper_numbers.PAPERS[key])
        ]
        if not any(_matches(name, only) for name in names):
            continue
        matches = True
        done = set(recorded[key]["seed"]) if key in recorded else set()
        free = (seed for seed in itertools.count() if seed not in done)
        for seed in itertools.islice(free, max(0, seeds - len(done))):
            run = replace(cells[0].run, seed=seed)
            if run.kind == "images":  # neither changes the cell's key
                run = replace(run, precision="bf16-mixed", protocols=("clean", "paper"))
            missing.append(_job(run, len(cells), device))
    known = experiments.names()
    matches = matches or only.removeprefix("chapters ").split(",")[0] in known  # arms not chosen
    if not matches and not any(_matches(_words(run), only) for run in _of_experiments()):
        raise ValueError(
            f"no run of the book matches {only!r}; --only takes a part of 'PAPER TABLE, DATASET, "
            "METHOD', such as 'hclot Table V, MUTAG', or of 'chapters EXPERIMENT, DATASET, METHOD' "
            f"with one of the experiments {', '.join(known)}"
        )
    return sorted(missing, key=lambda job: (-job.numbers / (job.minutes or 1e9), job.run.seed))


def planned(only: str, device: str) -> list[Job]:
    """Return the runs that the experiments wait for, in the order of `experiments.missing`.

    Those of this machine that were not added to the tracked ones yet are left out.

    `only` matches "chapters EXPERIMENT, DATASET, METHOD".
    """
    return [
        _job(run, 0, device)
        for run in experiments.missing()
        if run.method is not None  # no command evaluates an untrained encoder
        and _matches(_words(run), only)
    ]


def _of_experiments() -> Iterator:
    """Yield one seed of each run of the experiments."""
    for experiment in map(experiments.load, experiments.names()):
        yield from experiment.runs(experiment.seeds[:1])


def _words(run) -> str:
    return f"chapters {run.experiment}, {run.dataset}, {run.method}"


def _matches(text: str, only: str) -> bool:
    return fnmatch(text, only) or only in text


def _job(run, numbers: int, device: str) -> Job:
    resolved = run.resolved()
    seconds = runner.seconds(resolved, device)
    if seconds is None and device != "cpu" and run.kind == "images":
        return Job(run, numbers, _by_arithmetic(resolved) / 60, estimated=True)
    return Job(run, numbers, None if seconds is None else seconds / 60)


def _by_arithmetic(run) -> float:
    """Return the seconds of a run of images on an H200, by those of a ResNet-18 and its FLOPs."""
    views = 2 * (run.train_size or USUAL_SIZE) * run.epochs
    rate = evidence.measurement("gpu")["views_per_second"]["resnet18"]["simclr"]
    return views / rate * _flops(run.encoder) / _flops("resnet18") + READOUT


@functools.cache
def _flops(encoder: str) -> int:
    """Return the operations of one forward pass over an image of 32 × 32 pixels."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from hnlib.images import encoders

    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        encoders.build(encoder)(torch.empty(1, 3, 32, 32))
    return counted.get_total_flops()


def listing(waiting: list[Job]) -> str:
    """Return one line per job: the numbers that it fills, its minutes, and its command."""
    lines = []
    for job in waiting:
        fills = f"{job.numbers:2} printed" if job.numbers else "a chapter "
        time = "not timed" if job.minutes is None else f"{job.minutes:.1f} min"
        time = f"about {time}" if job.estimated else time
        lines.append(f"{fills} {time:>14}  {paper_numbers.command(job.run)}")
    return "\n".join([*lines, total(waiting)])


def elsewhere(waiting: list[Job], hardware: dict) -> list[str]:
    """Return a sentence for each seed of the experiments that another processor has begun."""
    asked = {job.run.experiment for job in waiting if not job.numbers}
    several = [experiments.load(name) for name in experiments.names() if name in asked]
    here = comparisons.processor(hardware)
    return [sentence for one in several for sentence in one.elsewhere(here)]


def total(waiting: list[Job]) -> str:
    """Format how many jobs there are, and the hours of those that are timed."""
    minutes = [job.minutes for job in waiting if job.minutes is not None]
    hours = f"{sum(minutes) / 60:,.1f} hours"
    return f"{len(waiting)} runs; the {len(minutes)} whose time is known take {hours}"


def work(waiting: list[Job], **how) -> int:
    """Train and record jobs, interrupted ones first; return how many were recorded.

    `how` is as for `hnlib.experiments.runner.train`. A run that fails is left out.
    """
    from hnlib.training.train import Diverged  # a list need not wait for Fabric

    folder = records.default_folder()
    runs = [job.run for job in waiting]
    runs.sort(key=lambda run: not runner.unfinished(run, folder).exists())

    def report(run, outcome) -> None:
        print(paper_numbers.command(run))
        recorded = isinstance(outcome, dict)
        print(f"recorded after {outcome['seconds']:.0f} s" if recorded else f"left out: {outcome}")

    failures = Diverged, ValueError, OSError, ImportError
    return runner.train(runs, finished=report, leave_out=failures, **how)
