"""The commands of `hnlib`. Each imports what it uses."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from hnlib.training import kinds
from hnlib.training.config import Execution

flattened = Parameter(name="*")
app = App(
    "hnlib",
    help="Train with hard negatives, look at results, build the book.",
    version_flags=[],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=(), show_default=False, show_choices=False),
)
train = App("train", help="Train one encoder with one method.")
app.command(train)
app.command("hnlib.book.sweep:sweep", help="Execute one notebook over a grid of parameters.")


def _train_command(kind: str):
    """Return the command that trains runs of a kind."""
    run_class = kinds.run_class(kind)
    usual, usually = run_class(), Execution()

    def command(
        run: Annotated[run_class, flattened] = usual,  # pyright: ignore[reportInvalidTypeForm]
        execution: Annotated[Execution, flattened] = usually,
        *,
        option: Annotated[list[str], Parameter("-o", help="KEY=VALUE, of the method")] = [],  # noqa: B006
        schedule: Annotated[list[str], Parameter(help="KEY=START:END or KEY=START:END:STEPS")] = [],  # noqa: B006
        record: Annotated[bool, Parameter(help="write to book/results/runs")] = False,
        restart: Annotated[bool, Parameter(help="ignore the checkpoint")] = False,
        rehearse: Annotated[
            bool, Parameter(help="list the printed numbers it fills", show=False)
        ] = False,
    ) -> None:
        from dataclasses import replace

        from hnlib.training import records

        options = {key: _value(value) for key, value in map(_pair, option)}
        schedules = {key: value.split(":") for key, value in map(_pair, schedule)}
        run = replace(run, options=options, schedule=schedules)
        if rehearse:
            _rehearse(run)
            return
        execution = replace(
            execution,
            resume=not restart,
            record_to=records.tracked_folder() if record else records.default_folder(),
            progress=sys.stderr.isatty(),
        )
        _train(run, execution)

    command.__doc__ = run_class.__doc__.split("\n\n")[0]
    return command


for kind in kinds.KINDS:
    train.command(_train_command(kind), name=kind)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"{text!r} must be KEY=VALUE")
    return key, value


def _value(text: str):
    try:
        return json.loads(text)
    except ValueError:
        return text


def _train(run, execution: Execution) -> None:
    from hnlib.training.run import train

    trained = train(run, **vars(execution))
    if os.environ.get("RANK", "0") != "0":  # one of several processes of torchrun
        return
    row = trained.record["configuration"]
    scores = {**dict.fromkeys(run.accuracies, " %"), **dict.fromkeys(run.correlations, "")}
    shown = [
        f"{metric} {100 * trained.metrics[metric]:.1f}{unit}"
        for metric, unit in scores.items()
        if metric in trained.metrics
    ]
    options = " ".join(f"{key}={value}" for key, value in row["options"].items())
    print(f"{row['method']} ({options})", f"{trained.record['seconds']:.1f} s", *shown, sep="  ")
    print(execution.record_to / f"{run.name}.json")


def _rehearse(run) -> None:
    from hnlib.book import papers

    kinds.task_class(run.kind).build_method(run.resolved())  # ValueError: no such method or option
    key = papers.key(run)
    print(key)
    for cell in papers.cells():
        if cell.key == key:
            print(f"{cell.paper}, {cell.table}, {cell.row}, {cell.column}: {cell.value:g}")


@app.command
def book(
    *,
    only: Annotated[str | None, Parameter(help="a draft of chapters, e.g. 'theory/*'")] = None,
    jobs: Annotated[int | None, Parameter(help="chapters at once (default: CPU count)")] = None,
) -> int:
    """Execute the chapters that changed and write _build/html."""
    from hnlib.book import build

    return build.book(only=only, jobs=jobs)


@app.command
def run(
    notebook: Annotated[str, Parameter(help="e.g. experiments/images")],
    /,
    *,
    parameters: Annotated[
        list[tuple[str, str]],
        Parameter(
            "-p",
            help="NAME VALUE of a parameter (repeatable)",
            allow_leading_hyphen=True,
            json_list=False,
        ),
    ] = [],  # noqa: B006
    out: Annotated[
        str | None, Parameter("-o", help="the executed notebook (default: below _build/runs)")
    ] = None,
    timeout: Annotated[int | None, Parameter(help="seconds for each cell")] = None,
) -> None:
    """Execute one notebook with other parameters."""
    from hnlib.book import execute

    execute.run(notebook, execute.once(parameters), out, timeout=timeout)


@app.command
def data(
    name: Annotated[str | None, Parameter(help="load and describe this data set")] = None,
    /,
    *,
    root: Annotated[Path | None, Parameter(help="default: $HNLIB_DATA or the cache")] = None,
) -> None:
    """List the data sets, or download, verify and describe one."""
    from importlib import import_module

    from hnlib._files import data_folder

    by_name = {known: kind for kind in kinds.KINDS for known in kinds.run_class(kind).datasets}
    if name is None:
        for kind in kinds.KINDS:
            print(f"{kind:13}{', '.join(kinds.run_class(kind).datasets)}")
    elif name in by_name:
        module = import_module(f"{kinds.KINDS[by_name[name]]}.data")
        print(module.describe(module.load(name, root)))
    else:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(by_name)}")
    print(f"{'folder':13}{data_folder(root)}")


@app.command
def results(
    *, folder: Annotated[Path | None, Parameter(help="default: tracked and own records")] = None
) -> None:
    """List the recorded runs, with accuracies in percent."""
    from hnlib.results import comparisons
    from hnlib.training import records

    for place in [folder] if folder else [records.tracked_folder(), records.default_folder()]:
        if folder and not place.is_dir():
            raise ValueError(f"{place} is not a folder")
        runs = records.frame(place).query("kind != 'measurement'").fillna({"method": "untrained"})
        print(f"{place}: {len(runs)} trained encoders")
        for _, group in runs.groupby(["title", "method", "options"]):
            title, method, options = group.iloc[0][["title", "method", "options"]]
            scores = ", ".join(
                f"{metric} {comparisons.spread(100 * group[metric])}"
                for metric in ("knn", "linear", "svm", "transfer", "sts", "topic", "alike")
                if not any(group[metric].isna())
            )
            named = " ".join([method, *options.split(",")]).strip()
            print(f"{title}: {named}: {scores} ({len(group)} run{'s' * (len(group) > 1)})")


@app.command
def queue(
    *,
    run: Annotated[bool, Parameter(help="carry the runs out")] = False,
    minutes: Annotated[float, Parameter(help="with --run: start none after so long")] = 10,
    device: Annotated[str, Parameter(help="auto, cpu or cuda")] = "auto",
    only: Annotated[
        str, Parameter(help="part of 'PAPER TABLE, DATASET, METHOD' or 'chapters …', or a pattern")
    ] = "*",
    seeds: Annotated[int, Parameter(help="runs of each setting")] = 1,
    data_root: Annotated[Path | None, Parameter(help="default: $HNLIB_DATA or the cache")] = None,
) -> None:
    """List the runs that the papers' numbers wait for, best first, and carry them out."""
    import torch

    from hnlib.book import queue as jobs
    from hnlib.training import records

    on = device
    if device == "auto":
        on = "cuda" if torch.cuda.is_available() else "cpu"
    frame, waiting = records.frame(), []
    if not only.startswith("chapters"):
        waiting = jobs.jobs(frame, seeds, only, on)
    if only == "*" or not waiting:
        waiting += jobs.planned(frame, only, on)
    if not run:
        print(jobs.listing(waiting))
        return
    done = jobs.work(waiting, minutes, device, data_root=data_root)
    print(f"{done} recorded, {len(waiting) - done} left")
