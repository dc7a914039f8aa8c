"""What to run next: printed numbers without a record, then the runs that the chapters wait for."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hnlib._files import project_root
from hnlib.book import campaign, papers
from hnlib.training import records

#: Seconds of an epoch of 1,000 images, nodes or pairs, where no record says: on one H200 in bf16,
#: and on one thread of a CPU.
SECONDS = {
    "cuda": {"resnet50": 0.18, "small-cnn": 0.02, "gin3": 0.004, "gru": 0.05, "bag": 0.01},
    "cpu": {"resnet50": 150.0, "small-cnn": 1.0, "gin3": 0.013, "gru": 2.0, "bag": 0.1},
}
#: Thousands of images, nodes or pairs; Tiny-ImageNet's have four times the pixels.
SIZES = {
    "cifar10": 50,
    "cifar100": 50,
    "stl10": 105,
    "tiny-imagenet": 400,
    "MUTAG": 3,
    "PTC_MR": 5,
    "ENZYMES": 20,
    "IMDB-BINARY": 20,
    "IMDB-MULTI": 20,
    "PROTEINS": 43,
    "NCI1": 123,
    "DD": 335,
    "REDDIT-BINARY": 859,
    "novels": 745,
}


@dataclass(frozen=True)
class Job:
    """A run without a record: how many printed numbers it fills, and its minutes."""

    run: Any
    numbers: int
    minutes: float
    measured: bool  # else estimated


def jobs(frame: Any = None, seeds: int = 1, only: str = "*", device: str = "cpu") -> list[Job]:
    """Return the runs of printed numbers without a record, most numbers a minute first.

    `only` matches "PAPER TABLE, DATASET, METHOD". Raises ValueError if nothing matches.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    frame = records.frame() if frame is None else frame
    by_key: dict[str, list[papers.Cell]] = {}
    for cell in papers.cells():
        if cell.run is not None:
            by_key.setdefault(cell.key, []).append(cell)
    recorded, seconds = papers.measured(frame), epoch_seconds(frame, device)
    matches, missing = False, []
    for key, cells in by_key.items():
        names = [f"{c.paper} {c.table}, {c.dataset}, {c.run.method}" for c in cells]
        if not any(_matches(name, only) for name in names):
            continue
        matches = True
        done = set(recorded[key]["seed"]) if key in recorded else set()
        free = (seed for seed in itertools.count() if seed not in done)
        for seed in itertools.islice(free, max(0, seeds - len(done))):
            run = replace(cells[0].run, seed=seed)
            if run.kind == "images":  # neither changes the cell's key
                run = replace(run, precision="bf16-mixed", protocols=("clean", "paper"))
            missing.append(_job(run, len(cells), seconds, device))
    if not matches:
        raise ValueError(f"no printed number with a run matches {only!r}; hnlib queue lists all")
    return sorted(missing, key=lambda job: (-job.numbers / job.minutes, job.run.seed))


def planned(frame: Any = None, only: str = "*", device: str = "cpu") -> list[Job]:
    """Return the runs that the chapters wait for, in the order of `campaign`.

    `only` matches "chapters EXPERIMENT, DATASET, METHOD".
    """
    seconds = epoch_seconds(records.frame() if frame is None else frame, device)
    return [
        _job(run, 0, seconds, device)
        for run in campaign.missing()
        if run.method is not None  # no command evaluates an untrained encoder
        and _matches(f"chapters {run.experiment}, {run.dataset}, {run.method}", only)
    ]


def _matches(text: str, only: str) -> bool:
    return fnmatch(text, only) or only in text


def epoch_seconds(frame: Any, device: str) -> dict[tuple, float]:
    """Return the median seconds of an epoch by setting, evaluation included."""
    seconds = defaultdict(list)
    for row in frame.filter(items=["run", "seconds", "environment"]).to_dict("records"):
        run, on_gpu = row["run"], "gpu" in row["environment"].get("hardware", {})
        if run is not None and run.epochs and on_gpu == (device != "cpu"):
            seconds[_setting(run)].append(row["seconds"] / run.epochs)
    return {setting: statistics.median(times) for setting, times in seconds.items()}


def _setting(run) -> tuple:
    names = ("dataset", "encoder", "train_size", "framework", "labels")
    return tuple(getattr(run, name, None) for name in names)


def _job(run, numbers: int, measured: dict[tuple, float], device: str) -> Job:
    resolved = run.resolved()
    seconds = measured.get(_setting(resolved))
    if seconds is None:
        size = (getattr(run, "train_size", None) or 0) / 1000 or SIZES[run.dataset]
        folds = resolved.folds if getattr(resolved, "labels", None) == "fold" else 1
        estimate = SECONDS["cpu" if device == "cpu" else "cuda"][run.encoder] * size * folds
        return Job(run, numbers, estimate * run.epochs / 60, False)
    return Job(run, numbers, seconds * run.epochs / 60, True)


def listing(found: list[Job]) -> str:
    """Return one line per job: what it fills, its minutes, its command."""
    lines = []
    for job in found:
        minutes = f"{job.minutes:8.1f} min {'measured ' if job.measured else 'estimated'}"
        fills = f"{job.numbers:2} numbers" if job.numbers else "a chapter "
        lines.append(f"{fills} {minutes}  {papers.command(job.run, '--record')}")
    total = sum(job.minutes for job in found) / 60
    return "\n".join([*lines, f"{len(found)} runs, {total:,.1f} hours"])


def work(
    found: list[Job],
    minutes: float,
    device: str = "auto",
    folder: Path | None = None,
    data_root: Path | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Train and record jobs until `minutes` have passed; return how many were recorded.

    The job under way is finished. Each epoch is checkpointed, and a run that was interrupted comes
    first in the next call. A run that fails, for instance without its data, is left out.
    """
    from hnlib.training.run import Diverged, train  # a list need not wait for torch

    end, done = time.monotonic() + 60 * minutes, 0
    folder = folder or records.tracked_folder()

    def state(job: Job) -> Path:
        return project_root() / "_build" / "queue" / f"{job.run.name}.pt"

    for job in sorted(found, key=lambda job: not state(job).exists()):
        if time.monotonic() > end:
            break
        say(papers.command(job.run, "--record"))
        where = dict(device=device, checkpoint=state(job), record_to=folder, data_root=data_root)
        try:
            trained = train(job.run, **where, progress=sys.stderr.isatty())
        except (Diverged, ValueError, OSError, ImportError) as error:
            say(f"left out: {error}")
            continue
        done += 1
        say(f"recorded after {trained.record['seconds']:.0f} s")
        state(job).unlink(missing_ok=True)
    return done
