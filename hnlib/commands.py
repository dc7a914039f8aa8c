"""The commands of `hnlib`. Each imports what it uses."""

import itertools
import json
import os
import sys
import time
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.types import ExistingDirectory, ExistingFile, PositiveFloat, PositiveInt
from pydantic import TypeAdapter

from hnlib.training import config, kinds
from hnlib.training.config import Engine, Execution

flattened = Parameter(name="*")
here = Engine()
app = App(
    "hnlib",
    help="Train with hard negatives, look at results, run notebooks.",
    version_flags=[],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=(), show_default=False, show_choices=False),
)
train = App("train", help="Train one encoder with one method.")
app.command(train)
app.command("hnlib.experiments.null:null", help="Test whether a loss beats the best temperature.")


def _train_command(kind: str):
    """Return the command that trains runs of a kind."""
    run_class = kinds.run_class(kind)
    usual, usually = run_class(), Execution()

    def command(
        run: Annotated[run_class, flattened] = usual,  # pyright: ignore[reportInvalidTypeForm]
        execution: Annotated[Execution, flattened] = usually,
        *,
        option: Annotated[list[str], Parameter("-o")] = [],  # noqa: B006
        schedule: list[str] = [],  # noqa: B006
        restart: bool = False,
        dry_run: bool = False,
    ) -> None:
        from dataclasses import replace

        from hnlib import experiments, methods
        from hnlib.training import records, store

        options, schedules = [*map(_pair, option)], [*map(_course, schedule)]
        config.reject_duplicates([*options, *schedules], "option")
        options = {key: config.literal(value) for key, value in options}
        run = replace(run, options=options, schedule=dict(schedules))
        if run.method in methods.EXAMPLES:
            methods.build(run.method)  # ValueError: names the example's file
        run.check_names(execution.data_root)
        folder = records.default_folder()
        if dry_run:
            _describe(run, store.file_of(folder, run.configuration))
            return
        execution = replace(execution, predictions=experiments.digest(run.experiment))
        from hnlib.training.train import train

        progress = sys.stderr.isatty()
        execution = replace(execution, resume=not restart, record_to=folder, progress=progress)
        trained = train(run, **vars(execution))
        if os.environ.get("RANK", "0") == "0":  # the first of the processes of torchrun
            _report(run, trained, folder)

    command.__doc__ = run_class.__doc__.split("\n\n")[0] + TRAIN
    return command


TRAIN = """

Parameters
----------
option
    KEY=VALUE, of the method
schedule
    KEY=START:END, then :STEPS or :cosine:PERIODS
restart
    ignore the checkpoint
dry_run
    show the run and where its record goes
"""
for kind in kinds.KINDS:
    if kinds.run_class(kind).datasets:  # a task of your own has a command of its own, `null`
        train.command(_train_command(kind), name=kind)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"{text!r} must be KEY=VALUE")
    return key, value


def _course(text: str) -> tuple[str, config.Course]:
    key, _, ends = text.partition("=")
    try:
        course = TypeAdapter(config.Course, config=config.checked)
        return key, course.validate_python(ends.split(":"))
    except ValueError:
        raise ValueError(
            f"--schedule {text} must be KEY=START:END or KEY=START:END:STEPS, such as beta=1:0:5"
        ) from None


def _report(run, trained, folder: Path) -> None:
    """Print the scores of a run, and where its record is."""
    from hnlib.training import store

    row, metrics = trained.record["configuration"], trained.metrics
    shares = [f"{name} {100 * metrics[name]:.1f} %" for name in run.accuracies if name in metrics]
    ranks = [f"{name} {100 * metrics[name]:.1f}" for name in run.correlations if name in metrics]
    options = " ".join(f"{key}={value}" for key, value in row["options"].items())
    seconds = f"{trained.record['seconds']:.1f} s"
    print(f"{row['method']} ({options})", seconds, *shares, *ranks, sep="  ")
    print(f"{config.name(row)} in {store.file_of(folder, row)}")


def _describe(run, file: Path) -> None:
    if run.method is not None:  # ValueError: no such method, option or schedule
        from hnlib.training import loop

        resolved = run.resolved()
        loop.check_method(kinds.task_class(run.kind).build_method(resolved), resolved)
    shown = run.resolved().display_values()
    for field in run.configuration:
        if shown[field] not in (None, ""):
            print(f"{field:17}{shown[field]}")
    print(f"{'record':17}a line of {file}, named by a hash of this and of the data")


def _two_by_two(_, tokens) -> list[tuple[str, str]]:
    """Return tokens in pairs, as they are: a value may be JSON, which cyclopts would read."""
    values = [token.value for token in tokens]
    return [*zip(values[::2], values[1::2])]


@app.command
def run(
    notebook: str,
    /,
    *,
    parameters: Annotated[
        list[tuple[str, str]],
        Parameter("-p", allow_leading_hyphen=True, json_list=False, converter=_two_by_two),
    ] = [],  # noqa: B006
    grid: list[str] = [],  # noqa: B006
    out: Annotated[Path | None, Parameter("-o")] = None,
    engine: Annotated[Engine, flattened] = here,
    dry_run: bool = False,
    plan: bool = False,
) -> int:
    """Execute one notebook with other parameters, or at every point of a grid of them.

    An engine spreads the runs of the page, or the points of the grid.

    Parameters
    ----------
    notebook
        e.g. experiments/pairs
    parameters
        NAME VALUE of a parameter (repeatable)
    grid
        NAME=VALUE,VALUE,… (repeatable: all combinations)
    out
        the executed notebook, or the folder of the grid's (default: below _build/runs)
    dry_run
        list the points of the grid and which of them are executed already
    plan
        print what would be trained, where, for how long, with how much memory; train nothing
    """
    from hnlib.notebooks import execute
    from hnlib.notebooks import grid as grids

    given = config.reject_duplicates(parameters)
    if engine != here and not grid:  # then the page's own runs are spread
        given |= {"engine": json.dumps(engine.chosen)}
    if plan:
        if grid or out:
            raise ValueError("--plan is of one page and writes nothing; leave out --grid and -o")
        print(execute.plan(notebook, given))
        return 0
    if grid:
        axes = [*map(_pair, grid)]
        return grids.run(notebook, axes, [*given.items()], out, engine, dry_run)
    if dry_run:
        raise ValueError("--dry-run is for a grid; add --grid NAME=VALUE,VALUE, or give --plan")
    if made := execute.run(notebook, given, out):
        from hnlib.notebooks import report

        print(report.of_run(made, execute.find(notebook)))
    return 0


@app.command
def notebook(page: str, /, *, out: Annotated[Path | None, Parameter("-o")] = None) -> None:
    """Write the notebook of a page, as the built book offers it for download.

    Its findings are quoted with our numbers, and everything else is computed anew, in JupyterLab,
    by papermill or by `hnlib run`.

    Parameters
    ----------
    page
        e.g. experiments/pairs
    out
        default: the page's name in the working directory
    """
    from hnlib._files import write_atomically
    from hnlib.notebooks import execute

    path = execute.find(page)
    inside = path.relative_to(execute.root()).with_suffix(".ipynb")
    made = execute.root() / "_build/html/_sources" / inside
    if not made.is_file():
        raise ValueError(f"{execute.name(path)} is not built; run `make book` first")
    target = out or Path(made.name)
    write_atomically(target, made.read_bytes())
    print(target)


@app.command
def data(name: str | None = None, /, *, root: Path | None = None) -> None:
    """List the data sets, or download and verify one.

    Parameters
    ----------
    name
        load this data set
    root
        default: $HNLIB_DATA or the cache
    """
    from importlib import import_module

    from hnlib._files import data_folder

    every = {kind: kinds.run_class(kind).datasets for kind in kinds.KINDS}
    by_kind = {kind: names for kind, names in every.items() if names}
    if name is None:
        for kind, names in by_kind.items():
            print(f"{kind:13}{', '.join(names)}")
            print(*(f"{'':13}{one}" for one in names.values()), sep="\n")
    else:
        matches = [kind for kind, names in by_kind.items() if name in names]
        if not matches:
            choices = ", ".join(itertools.chain.from_iterable(by_kind.values()))
            raise ValueError(f"data set {name!r} is unknown; choose from {choices}")
        module = import_module(f"{kinds.KINDS[matches[0]]}.data")
        print(f"{name} is there, with the digest {module.load(name, root).digest}")
    print(f"{'folder':13}{data_folder(root)}")


@app.command
def profile(
    target: str,
    /,
    *,
    labels: bool = False,
    embeddings: ExistingFile | None = None,
    batch: PositiveInt = 32,
    as_json: Annotated[bool, Parameter("--json")] = False,
    latex: bool = False,
) -> None:
    """Measure how sharp, loud and balanced a loss is, on batches recorded while encoders trained.

    The batches are from the start, the middle and the end of training on CIFAR-10 and on SciFact.
    The page "Every loss on one dial" explains the words.

    Parameters
    ----------
    target
        FILE.py or FILE.py:NAME (default: loss), called as loss(z1, z2); loss gets the first of the
        file's CONFIGURATIONS, if it has them
    labels
        call it as loss(z, labels), with both embeddings of four pairs in each class; they are
        classes of these batches, not of the data
    embeddings
        your own in place of the recorded ones: a .npy array [2, pairs, d] of two views
    batch
        pairs in a batch of them, at most d/2; the first three batches are used, of 256 for minutes
    as_json
        print all numbers
    latex
        print rows of a table
    """
    import torch

    from hnlib.experiments import evidence
    from hnlib.profile import from_file, profile_loss, summary
    from hnlib.profile_findings import TABLE

    torch.set_num_threads(1)  # the matrices are small
    loss = from_file(target)
    batches = _batches(embeddings, batch) if embeddings else evidence.stages()
    found, failed = {}, {}
    if (options := getattr(loss, "keywords", None)) and not (as_json or latex):
        print(f"{'options':16}{options}")
    for name, (a, b) in {name: torch.from_numpy(z) for name, z in batches.items()}.items():
        if labels:
            a, b = torch.cat([a, b]), (torch.arange(len(a)) // 4).repeat(2)
        try:
            found[name] = profile_loss(loss, a, b, pairs=len(a))
        except ValueError as error:
            failed[name] = error
            continue
        if not (as_json or latex):
            print(f"{name:16}{found[name]}")
    if not found:
        error = next(iter(failed.values()))
        hint = "; options go into CONFIGURATIONS; for a loss of (z, labels) add --labels"
        raise ValueError(f"{error}{hint * ('raised' in str(error) and not labels)}") from error
    short = summary([*found.values()])
    if as_json:
        numbers = {name: x.numbers() | {"verdict": x.verdict} for name, x in found.items()}
        print(json.dumps({"batches": numbers, "in short": short}, indent=1, ensure_ascii=False))
    elif latex:
        print(TABLE, *(x.latex(name) for name, x in found.items()), sep="\n")
    else:
        print(f"{'in short':16}{short}")
    if failed:
        raise ValueError("; ".join(f"{name}: {error}" for name, error in failed.items()))


def _batches(file: Path, pairs: int) -> dict:
    """Return the first three batches of a file of embeddings, by name."""
    import numpy as np

    try:
        z = np.load(file)
        z = z.astype(float)  # an archive cannot, nor can texts
    except (ValueError, EOFError, AttributeError):
        raise ValueError(f"{file} is not a .npy array of numbers; save it by numpy.save") from None
    if z.ndim != 3 or len(z) != 2 or pairs > min(z.shape[1], z.shape[2] // 2):
        raise ValueError(
            f"{file} must be an array [2, pairs, d] of two views, with at least {pairs} pairs "
            f"(--batch) of twice as many dimensions, got {z.shape}"
        )
    starts = range(0, z.shape[1] - pairs + 1, pairs)[:3]
    return {f"pairs {i}–{i + pairs - 1}": z[:, i : i + pairs] for i in starts}


@app.command
def results(
    *, folder: ExistingDirectory | None = None, add: Path | None = None, compact: bool = False
) -> None:
    """Count the recorded runs of each experiment, or change the tracked ones.

    Parameters
    ----------
    folder
        default: the tracked records, then those of your runs
    add
        add the records of this folder, such as _build/results or another machine's, to the tracked
        ones, a finished block at a time; a malformed one is refused, and then none is added
    compact
        join the Parquet files of scores, of which each --add writes one, to one an experiment
    """
    from hnlib.training import records, store

    if add is not None:
        new, count = records.add(add)
        print(f"{new} of {count} records were new; they are in {records.tracked()}")
    if compact:
        print(f"{store.compact(records.tracked())} Parquet files of scores were joined to others")
    if compact or add is not None:
        return
    for place in [folder] if folder else [records.tracked(), records.default_folder()]:
        runs = defaultdict(list)
        for *_, last in records.by_key(place).values():
            date = last.get("environment", {}).get("date", "")[:10]
            runs[last["configuration"]["experiment"]].append(date)
        print(f"{place}: {sum(map(len, runs.values()))} trained encoders")
        for experiment, dates in sorted(runs.items()):
            print(f"{experiment}: {len(dates)} run{'s' * (len(dates) > 1)}, last {max(dates)}")


@app.command
def speed(
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    encoder: list[str] | None = None,
    method: list[str] | None = None,
    seconds: PositiveFloat = 3,
) -> None:
    """Measure how many views of images a second are trained here, in about a minute.

    Prints a line for each network, method and precision and keeps it in _build/results. By these
    rates --plan estimates runs for which nothing similar is recorded.

    Parameters
    ----------
    device
        auto, cpu or cuda
    encoder
        networks (default: all)
    method
        methods (default: simclr hcl ot)
    seconds
        of each measurement
    """
    from hnlib import methods
    from hnlib.experiments.words import machine
    from hnlib.images import speed
    from hnlib.images.registry import ENCODERS
    from hnlib.training import records

    encoders, losses = encoder or [*ENCODERS], method or speed.METHODS
    for name in encoders:
        config.check_choice("encoder", name, ENCODERS)
    for name in losses:
        config.check_choice("method", name, methods.CATALOGUE)
    for record in speed.measure(device, encoders, losses, seconds):
        records.append(record, records.default_folder())
        row, rate = record["configuration"], record["metrics"]["views_per_second"]
        where = machine(record["environment"]["hardware"])
        named = f"{row['encoder']:10} {row['method']:8} {row['precision']:10}"
        print(f"{named} {rate:>12,.0f} views/s  batch {row['batch_size']}, {where}", flush=True)


@app.command
def queue(
    *,
    run: bool = False,
    minutes: PositiveFloat = 10,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    only: str = "*",
    data_root: Path | None = None,
    engine: Annotated[Engine, flattened] = here,
) -> int:
    """List the experiments that wait for runs, or train them, one experiment after the other.

    Experiments with predictions come first, then those that need less time.

    Parameters
    ----------
    run
        train them; an experiment with a run that fails is left for the next one
    minutes
        with --run: stop after this time (default: 10); the same command goes on from there
    device
        auto, cpu or cuda
    only
        a part of an experiment's name, or a pattern
    data_root
        default: $HNLIB_DATA or the cache
    """
    from hnlib import experiments
    from hnlib.training import records, store

    named = [name for name in experiments.names() if fnmatch(name, only) or only in name]
    if not named:
        raise ValueError(f"no experiment is named like {only!r}; `hnlib queue` lists what waits")
    open_ = (one for one in map(experiments.load, named) if not one.closed)
    counts = {one: len([*experiments.found(one).missing()]) for one in open_}
    waiting = [one for one, count in counts.items() if count]
    waiting.sort(key=lambda one: (not one.predictions, one.minutes * counts[one]))
    if not run:
        plan = experiments.plan(*waiting, device=device, engine=engine)
        print(plan if waiting else "no experiment waits for runs")
        return 0
    folder, end = records.default_folder(), time.monotonic() + 60 * minutes
    before = len(store.read(folder))
    for one in waiting:
        if (left := round((end - time.monotonic()) / 60, 2)) <= 0:
            break
        try:
            how = dict(device=device, data_root=data_root, engine=engine)
            experiments.train(one, minutes=left, **how)
        except (ValueError, OSError, ImportError, MemoryError) as error:
            print(f"{one.name}: {error}")
    return int(bool(waiting) and len(store.read(folder)) == before)
