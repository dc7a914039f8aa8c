"""What to run next: printed numbers without a record, best first, then what the book's own chapters
lack; and working them off within a time."""

from __future__ import annotations

import itertools
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hnlib._files import project_root
from hnlib.book import papers
from hnlib.training import config, records

#: Seconds for 1,000 images, nodes or pairs, an epoch, where no record tells: estimates for one
#: H200 in bf16 and for one thread of a CPU.
SECONDS = {
    "cuda": {"resnet50": 0.18, "resnet18": 0.07, "small-cnn": 0.02},
    "cpu": {"resnet50": 150.0, "resnet18": 25.0, "small-cnn": 1.0},
}
SECONDS["cuda"] |= {"gin3": 0.004, "gru": 0.05, "bag": 0.01}
SECONDS["cpu"] |= {"gin3": 0.013, "gru": 2.0, "bag": 0.1}
START = 30.0  # seconds before the first step, and for the readouts


@dataclass(frozen=True)
class Job:
    """A run that is missing: how many printed numbers it fills, its minutes, whether they were
    measured, and the seconds to a checkpoint."""

    run: Any
    numbers: int
    minutes: float
    measured: bool
    epoch: float

    @property
    def value(self) -> float:
        """What it is worth: printed numbers a minute."""
        return self.numbers / self.minutes


def jobs(frame: Any = None, seeds: int = 1, only: str = "*", device: str = "cpu") -> list[Job]:
    """The runs without a record, those of the highest `value` first; `only` matches "PAPER TABLE,
    DATASET, METHOD". ValueError: no seed, nothing that matches."""
    if seeds < 1:
        raise ValueError(f"seeds={seeds} must be at least 1")
    frame = records.frame() if frame is None else frame
    alike: dict[str, list[papers.Cell]] = {}
    for cell in papers.cells():
        if cell.run is not None:
            alike.setdefault(cell.key, []).append(cell)
    wanted = {
        key: cells
        for key, cells in alike.items()
        if any(_matches(f"{c.paper} {c.table}, {c.dataset}, {c.run.method}", only) for c in cells)
    }
    if not wanted:
        raise ValueError(f"no printed number with a run matches {only!r}; hnlib queue lists all")
    known, found = papers.measured(frame), []
    for key, cells in wanted.items():
        done = set(known[key]["seed"]) if key in known else set()
        free = (seed for seed in itertools.count() if seed not in done)
        for seed in itertools.islice(free, max(0, seeds - len(done))):
            found.append(_job(_executed(cells[0].run, seed), len(cells), frame, device))
    return sorted(found, key=lambda job: (-job.value, job.run.seed, job.run.dataset))


def _matches(text: str, only: str) -> bool:
    return fnmatch(text, only) or only in text


def planned(frame: Any = None, only: str = "*", device: str = "cpu") -> list[Job]:
    """The runs that the book's chapters wait for, in the order of `book/results/campaign.py`;
    `only` matches "chapters EXPERIMENT, DATASET, METHOD"."""
    frame = records.frame() if frame is None else frame
    plan = runpy.run_path(str(project_root() / "book" / "results" / "campaign.py"))
    runs = map(plan["run_of"], plan["missing"]())
    return [
        _job(run, 0, frame, device)
        for run in runs
        if run.method is not None  # no command evaluates an untrained encoder
        and _matches(f"chapters {run.experiment}, {run.dataset}, {run.method}", only)
    ]


def _job(run, numbers: int, frame: Any, device: str) -> Job:
    seconds, measured = _epoch(run, frame, device)
    return Job(
        run, numbers, (START + seconds * run.epochs) / 60, measured, seconds / _trainings(run)
    )


def _trainings(run) -> int:
    """How many encoders a run trains: where labels train, one for each fold."""
    whole = run.resolved()
    return whole.folds if getattr(whole, "labels", None) == "fold" else 1


def _executed(run, seed: int):
    """The cell's run as the queue carries it out; what is changed here does not tell cells
    apart."""
    if not isinstance(run, config.ImageRun):
        return replace(run, seed=seed)
    return replace(run, seed=seed, precision="bf16-mixed", protocols=("clean", "paper"))


def _epoch(run, frame: Any, device: str) -> tuple[float, bool]:
    """Seconds of an epoch of all its trainings, and whether records on such a device say so."""
    like, whole = frame[frame["epochs"].gt(0)], run.resolved(3)
    for name in ("dataset", "encoder", "train_size", "framework", "labels"):
        if name in like:
            value = getattr(whole, name, None)
            like = like[like[name].isna() if value is None else like[name].eq(value)]
    gpu = like["environment"].map(lambda e: "gpu" in e.get("hardware", {})) if len(like) else []
    like = like[gpu == (device != "cpu")] if len(like) else like
    if len(like):
        long = like[like["epochs"] == like["epochs"].max()]  # readouts weigh least there
        return float((long["seconds"] / long["epochs"]).median()), True
    kind = SECONDS["cpu" if device == "cpu" else "cuda"]
    size = (getattr(run, "train_size", None) or 0) / 1000 or papers.SIZES[run.dataset]
    return kind[run.encoder] * size * _trainings(run), False


def listing(found: list[Job]) -> str:
    """One line a job: what it fills, its minutes, its command."""
    lines = []
    for job in found:
        time_ = f"{job.minutes:8.1f} min {'measured ' if job.measured else 'estimated'}"
        fills = f"{job.numbers:2} numbers" if job.numbers else "a chapter "
        lines.append(f"{fills} {time_}  {papers.command(job.run, '--record')}")
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
    """Carry out jobs until `minutes` are over, recording each as it ends; how many were recorded.

    A run that the time cuts short is continued by the next call, first of all. None is started
    whose first checkpoint would come too late. One that cannot be run (data that are not to be
    had) is named and left. ValueError: minutes that are not positive.
    """
    from hnlib.training import run as training  # here: a list need not wait for torch
    from hnlib.training.loop import Diverged, launch

    if not minutes > 0:
        raise ValueError(f"minutes={minutes} must be positive")
    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        raise ValueError("a queue needs the main thread of a system with timers; not this one")
    launch(device, "32-true")  # ValueError: no such device
    end, done = time.monotonic() + 60 * minutes, 0
    folder = records.tracked_folder() if folder is None else folder
    states = project_root() / "_build" / "queue"
    begun = [job for job in found if _state(states, job.run).exists()]
    for job in [*begun, *(job for job in found if job not in begun)]:
        left = end - time.monotonic()
        if left < START + 1.5 * job.epoch:
            continue
        say(papers.command(job.run, "--record"))
        state = _state(states, job.run)
        where = dict(device=device, checkpoint=state, record_to=folder, data_root=data_root)
        where["progress"] = sys.stderr.isatty()
        trained = None
        try:
            with _alarm(left) as rang:
                trained = training.train(job.run, **where)
        except KeyboardInterrupt as stop:
            if not rang:
                raise
            if trained is None:
                say(f"the time is over; {stop}" if str(stop) else "the time is over")
                break
        except Diverged as error:
            state.unlink(missing_ok=True)  # it would be tried first of all, each time
            say(f"left out: {error}")
            continue
        except (ValueError, OSError, ImportError) as error:  # a wing's library may not be there
            say(f"left out: {error}")
            continue
        done += 1
        say(f"recorded after {trained.record['seconds']:.0f} s")
        if not _goes_on(found, job):
            state.unlink(missing_ok=True)
    return done


def _lineage(run) -> str:
    """Runs of images that differ in their length alone continue one another, if nothing was
    scheduled."""
    if not isinstance(run, config.ImageRun):
        return papers.key(run)
    alone = run.schedule or run.resolved(3).lr_schedule == "cosine"
    return f"{papers.key(run if alone else replace(run, epochs=0))}-{run.recipe}"


def _state(folder: Path, run) -> Path:
    return folder / f"{_lineage(run)}-{run.seed}.pt"


def _goes_on(found: list[Job], job: Job) -> bool:
    """Whether a longer run would continue this one's state."""
    seed, name = job.run.seed, _lineage(job.run)
    longer = (j.run for j in found if j.run.seed == seed and j.run.epochs > job.run.epochs)
    return any(_lineage(run) == name for run in longer)


@contextmanager
def _alarm(seconds: float) -> Iterator[list]:
    """Interrupt the block, as Ctrl-C would, after so many seconds; the list then is not empty."""
    rang: list = []

    def ring(*_):
        rang.append(True)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
