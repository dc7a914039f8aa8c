"""The page *The papers' numbers*: every printed number with its run, or the reason why it has none.

The ledger is `papers.csv` of the evidence; the settings of the runs are in `papers.toml` beside it.
"""

from __future__ import annotations

import functools
import json
import shlex
import tomllib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from builder.ledger_pages import PAPERS, inline_code, table
from hnbook import public_tables
from hnbook.tables import DASH, Markup, interval, myst, percent
from hnlib.experiments import evidence
from hnlib.experiments.predictions import over_seeds
from hnlib.training import config, kinds

#: Why a printed number has no run; details may follow a colon.
REASONS = (
    "not printed",  # the encoder, the length, a tuned temperature
    "not in the library",
    "no recipe",  # the paper does not say enough, or the library cannot train so
    "needs pretrained weights",  # the reader's download
    "read off a learning curve",
    "derived from other cells",
)
#: The metric of a record that is compared with a printed one.
READOUTS = {"linear top-1": "linear", "accuracy": "linear", "SVM accuracy": "svm"}
SENTENCES = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MSRP", "SICK")
READOUTS |= {f"{name} accuracy": name.lower() for name in SENTENCES}
READOUTS |= {"MSRP F1": "msrp_f1", "SICK Pearson": "sick_pearson"}
REMARKS = {
    "stl10": "trains on STL-10's labelled and unlabelled images",
    "tiny-imagenet": "from a file of your own; views of 64 pixels, the released codes crop to 32",
}


@functools.cache
def cells() -> tuple[SimpleNamespace, ...]:
    """Return the printed numbers in the order of papers.csv.

    Each has the columns of that file, its `run` with the run's `key`, or the `reason` why it has
    none. `ours` names what the paper does not print, with our values; `remark` says how the table
    was read, and what the ledger says of the number.
    """
    return tuple(map(_cell, public_tables.printed().to_dict("records")))


@functools.cache
def settings() -> dict[str, dict]:
    """Return the settings of papers.toml by group and name."""
    path = evidence.path("papers.toml")
    groups = tomllib.loads(path.read_text(encoding="utf-8"))
    by_name = {}
    for group, shared in groups.items():
        for name, setting in shared.pop("settings").items():
            by_name[f"{group} {name}"] = shared | setting
    return by_name


def _cell(row: dict[Any, Any]) -> SimpleNamespace:
    cell = SimpleNamespace(**row | dict(run=None, key="", reason="", ours="", remark=""))
    if row["run"].startswith(REASONS):
        cell.reason = row["run"]
        return cell
    printed = parse_note(row["note"])
    chosen = {"dataset": cell.dataset, "ours": "", "note": ""} | settings()[row["run"]]
    kind, cell.ours, note = (chosen.pop(name) for name in ("kind", "ours", "note"))
    if "epochs" not in chosen:
        chosen["epochs"] = int(printed["epochs"])
    views = "" if "train_size" in chosen else REMARKS.get(cell.dataset)
    cell.remark = "; ".join(filter(None, (note, views, printed.get("remark"))))
    cell.run = kinds.run_class(kind)(**chosen)
    cell.key = key(cell.run)
    return cell


def parse_note(note: str) -> dict[str, str]:
    """Return the entries of a note of papers.csv, "KEY=VALUE; KEY=VALUE; remark=…"."""
    if not note:
        return {}
    return dict(part.split("=", 1) for part in note.split("; "))


def key(run) -> str:
    """Return the key of the records that belong to a cell.

    Seed, precision, compilation, additional readouts and the names of recipe and experiment do not
    matter.
    """
    same = dict(seed=0, precision="32-true", dataset_digest=None)
    same |= dict(protocols=("clean",), recipe="book")
    same = {name: value for name, value in same.items() if name in config.defaults(type(run))}
    chosen = replace(run.resolved(), **same).configuration | {"experiment": ""}
    return config.name(json.loads(json.dumps(chosen), parse_int=float))  # β = 1 is β = 1.0


def measured(frame: Any) -> dict[str, Any]:
    """Return the rows of `records.frame` by the `key` of their run."""
    if frame.empty:
        return {}
    every = [cell.run.configuration for cell in cells() if cell.run is not None]
    printed = {(one["dataset"], one["method"], one["epochs"]) for one in every}
    trained = zip(frame["dataset"], frame["method"], frame["epochs"])
    runs = frame[[setting in printed for setting in trained]]  # of the others no key is needed
    return dict(iter(runs.groupby(runs["run"].map(key))))


def readouts(cell: SimpleNamespace, runs) -> dict[str, list[float]]:
    """Return our accuracies of a printed number in percent, and those read out as released."""
    metric = READOUTS.get(f"{cell.dataset} {cell.metric}") or READOUTS.get(cell.metric)
    names = {"": metric, "as released ": "linear_paper"} if runs is not None else {}
    found = {words: runs[name].dropna() for words, name in names.items() if name in runs}
    return {words: (100 * values).tolist() for words, values in found.items() if len(values)}


def difference(ours: list[float], printed: float) -> str:
    """Format ours − printed with Student's 95 % interval over our seeds, `printed` being exact."""
    return interval(over_seeds(np.subtract(ours, printed))).replace("\u00a0[", " [")


def _line(cell: SimpleNamespace, found: dict[str, list[float]]) -> list:
    """Return where a number is printed, ours with its difference, and the command of its run."""
    column = "" if cell.column in (cell.dataset, cell.row) else f", {cell.column}"
    printed = f"{cell.value:g}" + ("" if np.isnan(cell.spread) else f" ± {cell.spread:g}")
    where = [f"{PAPERS[cell.paper]}, {cell.table}", cell.row + column, cell.dataset, printed]
    if cell.run is None:
        return [*where, DASH, cell.reason]
    ours = "; ".join(words + percent(np.array(x) / 100) for words, x in found.items())
    gap = "; ".join(words + difference(x, cell.value) for words, x in found.items())
    seeds = len(next(iter(found.values()), []))
    ours += f" ({seeds} seed{'s' * (seeds != 1)})"
    remarks = filter(None, (cell.ours and f"ours: {cell.ours}", cell.remark))
    origin = f"{inline_code(command(cell.run))} {myst('; '.join(remarks))}"
    return [*where, Markup(f"{myst(ours)} <br> {myst(gap)}") if found else DASH, Markup(origin)]


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


def parts(frame) -> dict[str, str]:
    """Return the page's counts by paper and of images, and all numbers, those on record first."""
    by_key = measured(frame)
    every = [(cell, readouts(cell, by_key.get(cell.key))) for cell in cells()]
    head, counts = ["Paper", "Printed", "With a run", "Measured here"], []
    for paper, title in PAPERS.items():
        here = [(cell.run, found) for cell, found in every if cell.paper == paper]
        runs = sum(run is not None for run, _ in here)
        counts.append([title, len(here), runs, sum(bool(found) for _, found in here)])
    images = [bool(found) for cell, found in every if cell.run and cell.run.kind == "images"]
    left = f"{images.count(False)} of the" if any(images) else "all"
    waiting = f"{left} {len(images)} with a command still wait for a GPU."
    every.sort(key=lambda pair: (not pair[1], pair[0].run is None))
    where = ["Printed in", "Row", "Data", "Printed", "Ours, difference"]
    where += ["Run, or why there is none"]
    numbers = table(where, [_line(*pair) for pair in every], "11 14 12 10 18 35")
    return {"counts": table(head, counts), "images": waiting, "printed": numbers}
