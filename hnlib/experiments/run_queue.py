"""What to run next: the runs that the experiments wait for, as commands, and carrying them out."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from fnmatch import fnmatch
from typing import Any

from hnlib import experiments
from hnlib.experiments import runner
from hnlib.training import config, records


def jobs(only: str = "*", device: str = "cpu") -> list[tuple[str, Any, float | None]]:
    """Return experiment, run and seconds of what has no record, but for closed experiments.

    Experiments with predictions come first, then those that need less time. `only` is a pattern or
    a part of "EXPERIMENT, DATASET, METHOD". The seconds are None where nothing like a run is
    recorded.
    """
    every = (experiments.load(name) for name in experiments.names())
    waiting = [(x, [*x.missing()]) for x in every if not x.closed]
    waiting.sort(key=lambda pair: (not pair[0].predictions, pair[0].minutes * len(pair[1])))
    found = []
    for experiment, runs in waiting:
        for run in runs:
            text = f"{experiment.name}, {run.dataset}, {run.method}"
            # no command evaluates an untrained encoder
            if run.method is not None and (fnmatch(text, only) or only in text):
                found.append((experiment.name, run, runner.seconds(run.resolved(), device)))
    return found


def listing(waiting: list[tuple[str, Any, float | None]], commands: bool) -> str:
    """Return a line for each run or, without commands, each experiment, and the hours in all."""
    lines = []
    for _, run, seconds in waiting if commands else ():
        time = "not timed" if seconds is None else f"{seconds / 60:.1f} min"
        lines.append(f"{time:>12}  {command(run)}")
    if not commands:
        counts = Counter(name for name, *_ in waiting)
        lines = [f"{count:>7} runs  hnlib queue --only {name}" for name, count in counts.items()]
    known = [seconds for *_, seconds in waiting if seconds is not None]
    hours = f"{sum(known) / 3600:,.1f} hours"
    total = f"{len(waiting)} runs; the {len(known)} whose time is known take {hours}"
    return "\n".join([*lines, total])


def work(runs: list, **how) -> int:
    """Train and record runs, interrupted ones first; return how many were recorded.

    `how` is as for `hnlib.experiments.runner.train`. A run that fails is left out.
    """
    from hnlib.training.train import Diverged  # a list need not wait for Fabric

    folder = records.default_folder()

    def report(run, outcome) -> None:
        print(command(run))
        recorded = isinstance(outcome, dict)
        print(f"recorded after {outcome['seconds']:.0f} s" if recorded else f"left out: {outcome}")

    return runner.train(
        sorted(runs, key=lambda run: not runner.unfinished(run, folder).exists()),
        finished=report,
        leave_out=(Diverged, ValueError, OSError, ImportError),
        **how,
    )


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
