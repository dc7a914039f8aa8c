"""What to run next: the runs that the experiments wait for, as commands, and carrying them out."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from hnlib import experiments
from hnlib.experiments import comparisons, runner
from hnlib.training import config, records


@dataclass(frozen=True)
class Job:
    """A run that an experiment waits for; `minutes` is None where nothing like it is recorded."""

    experiment: experiments.Experiment
    run: Any
    minutes: float | None


def jobs(only: str = "*", device: str = "cpu") -> list[Job]:
    """Return the runs without a record of all experiments that are not closed.

    Experiments with predictions come first, then those that need less time. `only` is a pattern or
    a part of "EXPERIMENT, DATASET, METHOD". Raises ValueError if no run of any experiment matches,
    recorded or not.
    """
    waiting = [(x, [*x.missing()]) for x in _all_experiments() if not x.closed]
    waiting.sort(key=lambda pair: (not pair[0].predictions, pair[0].minutes * len(pair[1])))
    found = []
    for experiment, runs in waiting:
        for run in runs:
            # no command evaluates an untrained encoder
            if run.method is not None and _matches(experiment, run, only):
                seconds = runner.seconds(run.resolved(), device)
                found.append(Job(experiment, run, None if seconds is None else seconds / 60))
    if not found:
        _require_match(only)
    return found


def _all_experiments() -> list[experiments.Experiment]:
    return [experiments.load(name) for name in experiments.names()]


def _matches(experiment, run, only: str) -> bool:
    text = f"{experiment.name}, {run.dataset}, {run.method}"
    return fnmatch(text, only) or only in text


def _require_match(only: str) -> None:
    """Raise ValueError unless `only` matches a run, or names an experiment (of unchosen arms)."""
    every = _all_experiments()
    names = [x.name for x in every]
    if only.split(",")[0] in names:
        return
    if not any(_matches(x, run, only) for x in every for run in x.runs(x.seeds[:1])):
        raise ValueError(
            f"no run of an experiment matches {only!r}; --only takes a part of 'EXPERIMENT, "
            f"DATASET, METHOD' with one of the experiments {', '.join(names)}"
        )


def listing(waiting: list[Job]) -> str:
    """Return one line per job, its minutes and its command, and how many hours all of them take."""
    lines = []
    for job in waiting:
        time = "not timed" if job.minutes is None else f"{job.minutes:.1f} min"
        lines.append(f"{time:>12}  {command(job.run)}")
    minutes = [job.minutes for job in waiting if job.minutes is not None]
    hours = f"{sum(minutes) / 60:,.1f} hours"
    total = f"{len(waiting)} runs; the {len(minutes)} whose time is known take {hours}"
    return "\n".join([*lines, total])


def elsewhere(waiting: list[Job], hardware: dict) -> list[str]:
    """Return a sentence for each seed of the experiments that another processor has begun."""
    here = comparisons.processor(hardware)
    several = dict.fromkeys(job.experiment for job in waiting)
    return [sentence for one in several for sentence in one.elsewhere(here)]


def work(waiting: list[Job], **how) -> int:
    """Train and record jobs, interrupted ones first; return how many were recorded.

    `how` is as for `hnlib.experiments.runner.train`. A run that fails is left out.
    """
    from hnlib.training.train import Diverged  # a list need not wait for Fabric

    folder = records.default_folder()
    runs = [job.run for job in waiting]
    runs.sort(key=lambda run: not runner.unfinished(run, folder).exists())

    def report(run, outcome) -> None:
        print(command(run))
        recorded = isinstance(outcome, dict)
        print(f"recorded after {outcome['seconds']:.0f} s" if recorded else f"left out: {outcome}")

    failures = Diverged, ValueError, OSError, ImportError
    return runner.train(runs, finished=report, leave_out=failures, **how)


def command(run) -> str:
    """Return the shell command that makes the run's record."""
    parts = ["hnlib train", run.kind, "--dataset", run.dataset, "--method", run.method]
    for name, default in config.defaults(type(run)).items():
        value = getattr(run, name)
        if value in (default, None) or name in ("dataset", "method", "dataset_digest", "options"):
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, dict):
            parts += [part for pair in config.to_text(value).split(",") for part in (flag, pair)]
        elif isinstance(value, tuple):
            parts += [flag, *map(str, value)]
        else:
            parts += [flag] if value is True else [flag, str(value)]
    for name, value in run.options.items():
        word = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        parts += ["-o", f"{name}={word}"]
    return " ".join([parts[0], *map(shlex.quote, parts[1:])])
