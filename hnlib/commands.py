"""The commands that train, describe data and list runs. The flags of `hnlib train` are the fields
of `config`."""

from __future__ import annotations

import inspect
import json
import os
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
from cyclopts import App, Parameter

from hnlib import _checks
from hnlib.book import papers
from hnlib.book import queue as jobs
from hnlib.images import augment
from hnlib.images import data as images
from hnlib.training import config, records
from hnlib.training import run as training

#: Flags of the command alone; they stand for `INSTEAD` of an `Execution`.
OWN = {
    "record": (bool, False, "write to book/results/runs, which the book shows"),
    "restart": (bool, False, "ignore an existing checkpoint"),
    "rehearse": (bool, False, "train nothing; say which printed numbers the record would fill"),
}
INSTEAD = ("resume", "record_to", "progress")


def train(tokens: list[str]) -> int:
    """`hnlib train --dataset … --method … -o key=value …`: one run from the command line."""
    kind, given = _kind(tokens), []  # which --help leaves empty

    def command(**values):
        given.append(values)

    command.__signature__ = _signature(kind)
    command.__doc__ = (
        "Train one encoder with one method; `--dataset MUTAG --help` for graphs, `--dataset topics "
        "--help` for sentences."
    )
    app = App(
        "hnlib train", version_flags=[], result_action="return_value", default_command=command
    )
    app(tokens, print_error=False, exit_on_error=False)
    return _train(kind, given[0]) if given else 0


def _kind(tokens: list[str]) -> type:
    words = [word for token in tokens for word in token.split("=", 1)]
    return training.kind_of(next((b for a, b in pairwise(words) if a == "--dataset"), "digits"), {})


def _signature(kind) -> inspect.Signature:
    """One keyword for each field that a caller may give, as the command line spells it."""
    fields = config.given(kind, config.Execution)
    types, flags = config.hints(kind) | config.hints(config.Execution), dict(OWN)
    more = {"method": kind().catalogue, "augmentation": augment.RECIPES}
    for name, field in fields.items():
        known = ", ".join(field.metadata["choices"] or more.get(name, ()))
        help = ": ".join(filter(None, (field.metadata["help"], known)))
        if name not in INSTEAD:
            flags[name] = types[name], config.default(field), help
    return inspect.Signature([_flag(name, *flag) for name, flag in flags.items()])


def _flag(name: str, hint, value, help: str) -> inspect.Parameter:
    if isinstance(value, dict):
        hint, value = list[str], []  # KEY=VALUE, several times
    elif isinstance(value, tuple) or hint == str | dict | None:
        hint, value = str | None, config.words(value) or None  # with commas
    converters = {int: config.whole_number, float: config.any_number}
    about = Parameter(
        "-o" if name == "options" else None,
        converter=next((converters[k] for k in (hint, *get_args(hint)) if k in converters), None),
        help=help,
        negative=(),
        allow_leading_hyphen=hint is not bool,
        show_default=not (value is None or value is False or value == []),
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=value, annotation=Annotated[hint, about])


def _train(kind, given: dict) -> int:
    record, restart, rehearse = (given.pop(name, None) for name in OWN)
    folder = records.tracked_folder() if record else records.default_folder()
    fields = config.given(kind, config.Execution)
    options = _once("-o", map(_value, given.pop("options", [])))
    if clash := sorted(options.keys() & fields.keys()):
        raise ValueError(
            f"-o {clash[0]}: this is not an option of a method; use --{clash[0].replace('_', '-')}"
        )
    if "schedule" in given:
        given["schedule"] = _once("--schedule", map(_course, given["schedule"]))
    for name in given:
        if isinstance(config.default(fields[name]), tuple):
            given[name] = given[name].split(",")
    if "evaluate_at" in given:
        given["evaluate_at"] = _whole_numbers(given["evaluate_at"])
    run, execution = config.split(kind, given | {"options": options, "resume": not restart})
    if "labels" in given and run.resolved().labels is None:
        raise ValueError(f"--labels {run.labels} means nothing to {run.method}; leave it out")
    if restart and execution.checkpoint is None:
        raise ValueError("--restart means nothing without --checkpoint; leave it out")
    if rehearse:
        print(_rehearsed(run))
        return 0
    watched = {"record_to": folder, "progress": sys.stderr.isatty()}
    trained = training.train(run, **vars(execution) | watched)
    if os.environ.get("RANK", "0") != "0":  # one of several processes of torchrun
        return 0
    print(_summary(trained.record, folder))
    return 0


def _rehearsed(run) -> str:
    """The run's key, and the printed numbers beside which its record will stand."""
    training.room(type(run)).method_of(run)  # ValueError: no such method or option
    key = papers.key(run)
    cells = (cell for cell in papers.cells() if cell.key == key)
    places = [f"{c.paper}, {c.table}, {c.row}, {c.column}: {c.value:g}" for c in cells]
    return "\n".join([key, *(places or ["no printed number asks for it"])])


def queue(work: bool, minutes: float, device: str, only: str, seeds: int, root: Path | None) -> int:
    """`hnlib queue`: the runs that printed numbers and chapters wait for; with `work`, carry them
    out."""
    if not 1 <= seeds <= 1000 or not 0 < minutes < 1e6:
        raise ValueError(
            f"seeds={seeds} and minutes={minutes:g} must be positive numbers of everyday size"
        )
    _checks.one_of("--device", device, ("auto", "cpu", "cuda"))
    kind = "cpu" if device == "cpu" or not torch.cuda.is_available() else "cuda"
    frame = records.frame()
    found = [] if only.startswith("chapters") else jobs.jobs(frame, seeds, only, kind)
    if only == "*" or not found:
        found += jobs.planned(frame, only, kind)
    if not work:
        print(jobs.listing(found))
        return 0
    done = jobs.work(found, minutes, device, data_root=root)
    print(f"{done} recorded, {len(found) - done} left")
    return 0


def _summary(record: dict, folder: Path) -> str:
    metrics, chosen = record["metrics"], record["configuration"]
    run: Any = config.read(chosen)
    options = " ".join(f"{key}={value}" for key, value in chosen["options"].items())
    title = run.row(record.get("image_shape", [None])[0])["title"]
    names = {"knn": "kNN", "linear": "linear", "linear_paper": "linear as released", "svm": "SVM"}
    names |= {m: m.upper() for m in (*config.SENTENCE_TASKS, "transfer", "sts") if m in metrics}
    unit = {m: "" if m in records.CORRELATIONS else " %" for m in names}
    scores = [f"{names[m]} {100 * metrics[m]:.1f}{unit[m]}" for m in names if m in metrics]
    return (
        f"{run.method} ({options}): {title}, batch {run.batch_size}, lr {run.lr:g}\n"
        f"{'  '.join(scores)}  {record['seconds']:.1f} s  {folder / run.name}.json"
    )


def _whole_numbers(words: list[str]) -> list[int]:
    try:
        return [int(config.number(word, whole=True)) for word in words]
    except ValueError:
        text = ",".join(words)
        raise ValueError(f"--evaluate-at {text}: write epochs with commas between") from None


def _once(flag: str, pairs) -> dict:
    found = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{flag} {key} is given twice; leave one out")
        found[key] = value
    return found


def _course(text: str) -> tuple[str, list]:
    key, _, course = text.partition("=")
    try:
        start, end, *changes = course.split(":")
        ends = [config.number(start), config.number(end)]
        return key, [*ends, *(config.number(text, whole=True) for text in changes)]
    except ValueError:
        raise ValueError(
            f"--schedule {text}: write OPTION=START:END or OPTION=START:END:CHANGES, for example "
            "beta=1:0"
        ) from None


def _value(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"-o {text}: an option is written KEY=VALUE, for example -o beta=1.0")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def data(name: str | None, root: Path | None) -> int:
    """`hnlib data [NAME]`: fetch a data set if need be, describe it; without a name, list all."""
    kind = None if name is None else training.kind_of(name, {})
    if name is None:
        print(images.listing(root))
    elif kind is config.ImageRun:
        print(images.describe(name, root))
    for wing, (its, *_) in training.WINGS.items():
        try:
            found = import_module(f"hnlib.{wing}.data")
        except ImportError:  # an optional package
            continue
        if name is None:
            print(f"{wing:15}{', '.join(found.KNOWN)}: {found.location(root)}")
        elif kind is its:
            print(found.describe(found.load(name, root)))
    return 0


def results(folder: Path | None = None) -> int:
    """`hnlib results`: the runs on disk; accuracies in percent over the seeds of each setting."""
    from hnlib.results import comparisons  # scipy is slow to import

    for place in [folder] if folder else [records.tracked_folder(), records.default_folder()]:
        if folder and not place.is_dir():
            raise ValueError(f"{place} is not a folder; give the one the records are in")
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
            count = f"{len(group)} run{'s' * (len(group) > 1)}"
            print(f"{title}: {named}: {scores} ({count})")
    return 0
