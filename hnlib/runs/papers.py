"""Every number that the five papers print, and the run whose record is that number.

A cell of `cells()` has a run or one of the `REASONS` why there is none. What a paper does not
print is not guessed: our value stands in and is named in `ours`. What has to be decided to read a
table is decided here, once, and stands beside the number in `note`.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from hnlib.runs import config, records

#: Why a printed number has no run; a colon and what is meant may follow.
REASONS = (
    "not printed",  # the encoder, the length, a course, a tuned temperature
    "not in the library",
    "data not obtainable",
    "needs pretrained weights",
    "derived from other cells",
    "not yet: sentences",
)
PAPERS = {"hcl": "HCL", "hclot": "HCL-OT", "hscl": "H-SCL", "dro": "ADNCE", "unremix": "UnReMix"}
#: The metric of a record that stands beside a printed one.
READOUTS = {"linear top-1": "linear", "accuracy": "linear", "SVM accuracy": "svm"}
SENTENCES = {"MR", "CR", "SUBJ", "MPQA", "TREC", "MSRP", "SICK"}
SIMILARITY = ("STS", "SICK-R")
LABELLED = 5000  # training images of STL-10 that have labels

#: Thousands of images, or of nodes, in an epoch; Tiny-ImageNet's have four times the pixels.
SIZES = {"cifar10": 50, "cifar100": 50, "stl10": 105, "tiny-imagenet": 400}
SIZES |= {"MUTAG": 3, "PTC_MR": 5, "ENZYMES": 20, "IMDB-BINARY": 20, "IMDB-MULTI": 20}
SIZES |= {"PROTEINS": 43, "NCI1": 123, "DD": 335, "REDDIT-BINARY": 859}
HALF = "the released cost has no factor ½: our ε is half the printed one"
LEARNED = ("All (UnReMix)", "UnReMix", "UnReMix CE", "UnReMix Learned")
MIXTURES = {"Uncertainty": [1.0, 0.0, 0.0], "Representativeness": [0.0, 0.0, 1.0]}


@dataclass(frozen=True)
class Cell:
    """One printed number: where it stands, what was said beside it, and its run, with its `key`,
    or the reason why there is none. `ours`: what the paper does not print, with our values."""

    paper: str
    table: str
    row: str
    column: str
    dataset: str
    metric: str
    value: float
    spread: float
    run: Any = None
    key: str = ""
    reason: str = ""
    ours: tuple[str, ...] = ()
    note: str = ""


@functools.cache
def cells(path: Path | None = None) -> tuple[Cell, ...]:
    """The printed numbers in the order of papers.csv. ValueError: a row that no rule covers."""
    return tuple(_cell(row) for row in records.papers(path).to_dict("records"))


def key(run) -> str:
    """What a cell asks of a record: all but seed, precision, compilation, devices, additional
    readouts, and the names of recipe and experiment."""
    run = run.resolved(channels=1 if run.dataset == "digits" else 3)
    same = dict(seed=0, precision="32-true", compile=False, devices=1, dataset_digest=None)
    if isinstance(run, config.ImageRun):
        same |= dict(protocols=("clean",), recipe="book")
    chosen = replace(run, experiment="", **same).configuration
    return config.name(json.loads(json.dumps(chosen), parse_int=float))  # β = 1 is β = 1.0


def measured(frame: Any) -> dict[str, Any]:
    """The rows of `records.frame` by the `key` of their run."""
    runs = frame[frame["kind"] != "measurement"]
    return dict(iter(runs.groupby(runs["run"].map(key)))) if len(runs) else {}


def table(frame: Any, path: Path | None = None) -> pd.DataFrame:
    """A row for each printed number: `cell`, how many `seeds` are on record, and their accuracies
    `found` in percent."""
    known, rows = measured(frame), []
    for cell in cells(path):
        runs = known.get(cell.key) if cell.key else None
        found = [] if runs is None else (100 * runs[READOUTS[cell.metric]].dropna()).tolist()
        rows.append({"cell": cell, "seeds": len(found), "found": found})
    return pd.DataFrame(rows)


def command(run, *more: str) -> str:
    """One line of shell that makes the run's record."""
    kind, parts = type(run), ["hnlib train"]
    parts += ["--dataset", shlex.quote(run.dataset), "--method", shlex.quote(run.method)]
    for field in fields(kind):
        about, value = field.metadata, getattr(run, field.name)
        plain = about["derived"] or field.name in ("dataset", "method", "options", "experiment")
        if plain or value is None or value == config.default(field):
            continue
        flag = "--" + field.name.replace("_", "-")
        parts += [flag] if value is True else [flag, shlex.quote(str(config.words(value)))]
    for name, value in run.options.items():
        word = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        parts += ["-o", shlex.quote(f"{name}={word}")]
    return " ".join([*parts, *more])


def _cell(row: dict[Any, Any]) -> Cell:
    parts = row["note"].split("; ") if isinstance(row["note"], str) else []
    note = dict(part.split("=", 1) for part in parts if "=" in part)
    where = {k: row[k] for k in ("paper", "table", "row", "column", "dataset", "metric")}
    printed = Cell(**where, value=row["value"], spread=row["spread"])
    if printed.paper not in PAPERS:
        raise ValueError(
            f"papers.csv names the paper {printed.paper!r}; known: {', '.join(PAPERS)}"
        )
    if reason := _reason(printed, note):
        return replace(printed, reason=reason)
    make: Callable = _graph_run if row["metric"] == "SVM accuracy" else _image_run
    return make(printed, note)


def _reason(cell: Cell, note: dict) -> str:
    """Why the cell has no run; empty if it has one."""
    method = note.get("method")
    derived = cell.metric not in {*READOUTS, "Spearman", "F1", "Pearson", "top-1", "top-5"}
    if derived or cell.dataset == "STS average":
        return "derived from other cells"
    if cell.dataset.startswith(SIMILARITY):
        return "needs pretrained weights"
    if cell.dataset in SENTENCES:
        return "not yet: sentences"
    if cell.dataset not in SIZES:
        return f"data not obtainable: {cell.dataset}"
    if method is None:
        return f"not in the library: {cell.row}"
    if note.get("loss") == "bcl" and method == "ot":
        return "not in the library: transport with the basic loss"
    if cell.row == "UnReMix NT-Xent":
        return "not in the library: scores from the gradient of NT-Xent"
    if method == "h-scl-threshold":
        return "not printed: the course of the threshold"
    if "τ*" in cell.row and "temperature" not in note:
        return "not printed: the temperature"
    graphs = cell.metric == "SVM accuracy"
    lacking = [what for what in ("encoder", "epochs") if what not in note and not graphs]
    return f"not printed: {' and '.join(lacking)}" if lacking else ""


def _image_run(cell: Cell, note: dict) -> Cell:
    recipe = {"hclot": "hcl-ot", "dro": "adnce", "hscl": "h-scl"}.get(cell.paper, cell.paper)
    method, notes = note["method"], []
    said: dict[str, Any] = _printed(note)
    if note.get("loss") == "bcl":
        method = "bcl"
    if note.get("loss") == "nce" or cell.row == "H-UCL":
        said["tau_plus"] = 0.0
    if method == "unremix":
        said["learn"] = "minimise" if cell.row in LEARNED else "fixed"
        said |= {"mixture": MIXTURES[cell.row]} if cell.row in MIXTURES else {}
        notes.append("on plain views; the paper's stands on Un-Mix")
    if "epsilon" in said:
        said["epsilon"], notes = said["epsilon"] / 2, [*notes, HALF]
    if cell.paper == "hscl":
        notes.append("without the noise on its views, whose strength is not printed")
    kept = dict(dataset=cell.dataset, encoder=note["encoder"], recipe=recipe, method=method)
    if "labelled part" in note.get("remark", ""):
        kept["train_size"] = LABELLED
    if int(note.get("batch", 0)) not in (0, config.RECIPES[recipe]["batch_size"]):
        kept["batch_size"] = int(note["batch"])
    run = config.ImageRun(**kept, epochs=int(note["epochs"]))
    return _with_options(cell, run, said, notes)


def _graph_run(cell: Cell, note: dict) -> Cell:
    said, notes = _printed(note), []
    views = cell.paper == "dro" and note["method"] != "infograph"
    kept: dict[str, Any] = dict(dataset=cell.dataset, method=note["method"])
    kept["epochs"] = int(note.get("epochs", 20))
    unsaid = []
    if cell.paper == "hcl":
        kept["weight_decay"] = 1e-6
    elif views or cell.paper != "dro":
        kept["lr"] = 0.01
    if views:
        kept["framework"] = "graphcl"
        said |= {"temperature": 0.2} if "τ0" in cell.row else {}
    if cell.paper == "dro":
        unsaid += [f"epochs={kept['epochs']}", f"lr={kept.get('lr', 0.001):g}"]
        notes.append("length and rate as in the code that GraphCL released")
    if cell.paper == "hscl" and note["method"] in ("scl", "h-scl"):
        notes.append("labels of the training graphs; the paper does not say which were seen")
    if "epsilon" in said:
        notes.append("ε as printed; no graph code of transport is released")
    run = config.GraphRun(**kept)
    return _with_options(cell, run, said, notes, unsaid)


def _with_options(cell: Cell, run, said: dict, notes: list[str], unsaid=()) -> Cell:
    """The cell with its run, all of whose options are either printed or named as ours."""
    known = run.catalogue[run.method].options
    if wrong := [name for name, value in said.items() if value and name not in known]:
        where = f"{cell.paper}, {cell.table}, {cell.row}"
        raise ValueError(f"{where}: {run.method} has no option {wrong[0]!r}; correct papers.csv")
    said = {name: value for name, value in said.items() if name in known}
    recipe = run.usual() if isinstance(run, config.ImageRun) else {}
    given = {name: value for name, value in recipe.items() if name in known}
    whole = known | given | said
    missing = [name for name in PRINTED if name in known and name not in said]
    ours = tuple([*unsaid, *(f"{name}={whole[name]:g}" for name in missing)])
    options = {k: v for k, v in whole.items() if k in given or k in said or v != known[k]}
    run = replace(run, options=options)
    return replace(cell, run=run, key=key(run), ours=ours, note="; ".join(notes))


PRINTED = ("temperature", "beta", "tau_plus", "mu", "sigma", "epsilon")


def _printed(note: dict) -> dict:
    note = note | ({"epsilon": note["eps"]} if "eps" in note else {})
    return {name: float(note[name]) for name in PRINTED if name in note}
