"""What to run next: printed numbers without a record, best first, and working them off within a
time."""

from __future__ import annotations

import itertools
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
from hnlib.runs import config, papers, records

#: Seconds for 1,000 images and for 1,000 nodes, an epoch, where no record tells: estimates for one
#: H200 in bf16 and for one thread of a CPU.
SECONDS = {
    "cuda": {"resnet50": 0.18, "resnet18": 0.07, "small-cnn": 0.02, "gin3": 0.004},
    "cpu": {"resnet50": 150.0, "resnet18": 25.0, "small-cnn": 1.0, "gin3": 0.013},
}
START = 30.0  # seconds before the first step, and for the readouts


@dataclass(frozen=True)
class Job:
    """A run that is missing: how many printed numbers it fills, its minutes, whether they were
    measured, and the seconds of one of its epochs."""

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
    wanted: dict[str, list[papers.Cell]] = {}
    for cell in papers.cells():
        text = f"{cell.paper} {cell.table}, {cell.dataset}, {cell.run and cell.run.method}"
        if cell.run is not None and (fnmatch(text, only) or only in text):
            wanted.setdefault(cell.key, []).append(cell)
    if not wanted:
        raise ValueError(f"no printed number with a run matches {only!r}; hnlib queue lists all")
    known, found = papers.measured(frame), []
    for key, cells in wanted.items():
        done = set(known[key]["seed"]) if key in known else set()
        seconds, measured = _epoch(cells[0].run, frame, device)
        free = (seed for seed in itertools.count() if seed not in done)
        for seed in itertools.islice(free, max(0, seeds - len(done))):
            run = _executed(cells[0].run, seed)
            minutes = (START + seconds * run.epochs) / 60
            found.append(Job(run, len(cells), minutes, measured, seconds))
    return sorted(found, key=lambda job: (-job.value, job.run.seed, job.run.dataset))


def _executed(run, seed: int):
    """The cell's run as the queue carries it out; what is changed here does not tell cells
    apart."""
    if isinstance(run, config.GraphRun):
        return replace(run, seed=seed)
    return replace(run, seed=seed, precision="bf16-mixed", protocols=("clean", "paper"))


def _epoch(run, frame: Any, device: str) -> tuple[float, bool]:
    """Seconds of an epoch, and whether records on such a device say so."""
    same = (frame["dataset"] == run.dataset) & (frame["encoder"] == run.encoder)
    like = frame[same & frame["epochs"].gt(0) & frame["train_size"].isna()]
    gpu = like["environment"].map(lambda e: "gpu" in e.get("hardware", {})) if len(like) else []
    like = like[gpu == (device != "cpu")] if len(like) else like
    if len(like):
        long = like[like["epochs"] == like["epochs"].max()]  # readouts weigh least there
        return float((long["seconds"] / long["epochs"]).median()), True
    kind = SECONDS["cpu" if device == "cpu" else "cuda"]
    size = papers.LABELLED / 1000 if run.dataset == "stl10" and run.train_size else None
    return kind[run.encoder] * (size or papers.SIZES[run.dataset]), False


def listing(found: list[Job]) -> str:
    """One line a job: what it fills, its minutes, its command."""
    lines = []
    for job in found:
        time_ = f"{job.minutes:8.1f} min {'measured ' if job.measured else 'estimated'}"
        lines.append(f"{job.numbers:2} numbers {time_}  {papers.command(job.run, '--record')}")
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
    from hnlib.runs import training  # here: a list need not wait for torch
    from hnlib.runs.loop import Diverged, launch

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
        except (ValueError, OSError) as error:
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
    if isinstance(run, config.GraphRun):
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
