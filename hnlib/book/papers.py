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

from hnlib.training import config, records

#: Why a printed number has no run; a colon and what is meant may follow.
REASONS = (
    "not printed",  # the encoder, the length, a tuned temperature
    "not in the library",
    "data not obtainable",
    "needs pretrained weights",
    "derived from other cells",
)
PAPERS = {"hcl": "HCL", "hclot": "HCL-OT", "hscl": "H-SCL", "dro": "ADNCE", "unremix": "UnReMix"}
WHERE = ("paper", "table", "row", "column", "dataset", "metric")
#: The metric of a record that stands beside a printed one.
READOUTS = {"linear top-1": "linear", "accuracy": "linear", "SVM accuracy": "svm"}
SENTENCES = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MSRP", "SICK")
READOUTS |= {f"{name} accuracy": name.lower() for name in SENTENCES} | {"MSRP F1": "msrp_f1"}
DERIVED = ("anchors satisfying Assumption 1 (%)", "epochs", "linear top-1 improvement (points)")
METRICS = (*READOUTS, "Spearman", "F1", "Pearson", "top-1", "top-5", *DERIVED)
#: What a note may say: numbers, one of several words, or any word.
NOTED = {
    "method": (),
    "loss": ("bcl", "nce", "jsd", "debiased"),
    "encoder": ("resnet50", "resnet18", "small-cnn", "gin3", "bert-base", "roberta-base"),
    **dict.fromkeys(("epochs", "batch", "runs", "folds", "negatives"), int),
    **dict.fromkeys(
        ("temperature", "beta", "tau_plus", "eps", "mu", "sigma", "lr", "weight_decay"), float
    ),
    "gain": (),
}
SIMILARITY = ("STS", "SICK-R")
LABELLED = 5000  # training images of STL-10 that have labels

#: Thousands of images, nodes or pairs in an epoch; Tiny-ImageNet's have four times the pixels.
SIZES = {"cifar10": 50, "cifar100": 50, "stl10": 105, "tiny-imagenet": 400}
SIZES |= {"MUTAG": 3, "PTC_MR": 5, "ENZYMES": 20, "IMDB-BINARY": 20, "IMDB-MULTI": 20}
SIZES |= {"novels": 745}
SIZES |= {"PROTEINS": 43, "NCI1": 123, "DD": 335, "REDDIT-BINARY": 859}
HALF = "the released cost has no factor ½: our ε is half the printed one"
#: dro's released commands for graphs: the tuned temperature, μ, and the kinds of augmentation.
COMMANDS = {
    "NCI1": (0.05, 0.7, ("drop", "edges", "subgraph")),
    "PROTEINS": (0.05, 1.5, ("drop", "edges", "subgraph", "mask")),
    "DD": (0.2, 0.2, ("drop", "subgraph")),
    "REDDIT-BINARY": (0.15, 0.3, ("drop", "subgraph")),
}
LEARNED = ("All (UnReMix)", "UnReMix", "UnReMix CE", "UnReMix NT-Xent", "UnReMix Learned")
LEVELS = (-0.3, 0.1)  # of H-SCL(τ), start and end; the best of the printed grid is not named
#: Baselines of unremix Table 1, for which it prints no option, as their own papers have them:
#: MoCo-v2 on ImageNet (Chen et al., 2020), i-Mix on CIFAR, MoCHi on ImageNet-100, Un-Mix on SimCLR.
BASELINES = {
    "MoCo": dict(method="simclr", queue=65536, temperature=0.2, separate_views=False),
    "i-Mix": dict(method="simclr", mixing="i-mix", temperature=0.2, separate_views=False),
    "Mochi": dict(method="mochi", queue=16384, temperature=0.2, separate_views=False)
    | dict(hardest=1024, pairs=1024, with_anchor=128),
    "Un-Mix": dict(method="simclr", mixing="un-mix"),
    "UnReMix": dict(method="unremix", mixing="un-mix"),
}
#: Those that are none of our runs: what they have in the place of negatives that are weighted.
OUTSIDE = {"SwAV": "SwAV, prototypes", "Patch-Based NS": "patches of the anchor as negatives"}
MIXTURES = {"Uncertainty": [1.0, 0.0, 0.0], "Representativeness": [0.0, 0.0, 1.0]}


@dataclass(frozen=True)
class Cell:
    """One printed number: where it stands, what was said beside it, and its run, with its `key`,
    or the reason why there is none. `ours`: what the paper does not print, with our values;
    `note`: how the table was read; `remark`: what the ledger says of the number itself."""

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
    remark: str = ""


@functools.cache
def cells(path: Path | None = None) -> tuple[Cell, ...]:
    """The printed numbers in the order of papers.csv. ValueError: a row that no rule covers."""
    found = []
    for line, row in records.papers(path).to_dict("index").items():
        try:
            found.append(_cell(row))
        except ValueError as error:
            raise ValueError(f"papers.csv, line {line}: {error}") from error
    return tuple(found)


def key(run) -> str:
    """What a cell asks of a record: all but seed, precision, compilation, additional
    readouts, and the names of recipe and experiment."""
    run = run.resolved(channels=1 if run.dataset == "digits" else 3)
    same = dict(seed=0, precision="32-true", compile=False, dataset_digest=None)
    if isinstance(run, config.ImageRun):
        same |= dict(protocols=("clean",), recipe="book")
    chosen = replace(run, **same).configuration | {"experiment": ""}
    return config.name(json.loads(json.dumps(chosen), parse_int=float))  # β = 1 is β = 1.0


def measured(frame: Any) -> dict[str, Any]:
    """The rows of `records.frame` by the `key` of their run."""
    runs = frame[frame["kind"] != "measurement"]
    return dict(iter(runs.groupby(runs["run"].map(key)))) if len(runs) else {}


def table(frame: Any, path: Path | None = None) -> pd.DataFrame:
    """A row for each printed number: where it stands, its `cell`, how many `seeds` are on record,
    and their accuracies in percent, `found` and, read out as released, `released`."""
    known, rows = measured(frame), []
    for cell in cells(path):
        runs = known.get(cell.key) if cell.key else None
        found = _percents(runs, readout(cell))
        released = _percents(runs, "linear_paper")
        where = {name: getattr(cell, name) for name in WHERE}
        rows.append(where | dict(cell=cell, seeds=len(found), found=found, released=released))
    return pd.DataFrame(rows)


def readout(cell: Cell) -> str:
    """The metric of a record that stands beside the printed one."""
    return READOUTS.get(f"{cell.dataset} {cell.metric}") or READOUTS.get(cell.metric, "")


def _percents(runs: Any, metric: str) -> list[float]:
    return [] if runs is None or metric not in runs else (100 * runs[metric].dropna()).tolist()


def command(run, *more: str) -> str:
    """One line of shell that makes the run's record."""
    kind, parts = type(run), ["hnlib train"]
    parts += ["--dataset", shlex.quote(run.dataset), "--method", shlex.quote(run.method)]
    for field in fields(kind):
        about, value = field.metadata, getattr(run, field.name)
        plain = about["derived"] or field.name in ("dataset", "method", "options")
        if plain or value is None or value == config.default(field):
            continue
        flag = "--" + field.name.replace("_", "-")
        parts += [flag] if value is True else [flag, shlex.quote(str(config.words(value)))]
    for name, value in run.options.items():
        word = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        parts += ["-o", shlex.quote(f"{name}={word}")]
    return " ".join([*parts, *more])


def _cell(row: dict[Any, Any]) -> Cell:
    note = told(row["note"])
    printed = Cell(**{name: row[name] for name in WHERE}, value=row["value"], spread=row["spread"])
    printed = replace(printed, remark=note.get("remark", ""))
    if printed.paper not in PAPERS:
        raise ValueError(f"unknown paper {printed.paper!r}; known: {', '.join(PAPERS)}")
    if printed.metric not in METRICS:
        raise ValueError(f"unknown metric {printed.metric!r}; known: {', '.join(METRICS)}")
    note |= {"method": own["method"]} if (own := _baseline(printed)) else {}
    if reason := _reason(printed, note):
        return replace(printed, reason=reason)
    make: Callable = _graph_run if row["metric"] == "SVM accuracy" else _image_run
    return (_sentence_run if row["dataset"] in SENTENCES else make)(printed, note)


def told(note: Any) -> dict[str, str]:
    """What papers.csv says beside a number, "KEY=VALUE; KEY=VALUE; remark=…". ValueError: a key
    that is not known or stands twice, a value that is no number, an unknown encoder or loss."""
    said, mark, remark = (note if isinstance(note, str) else "").partition("remark=")
    words = {"remark": remark} if mark else {}
    for part in filter(None, said.split("; ")):
        key, _, value = part.partition("=")
        if key not in NOTED or key in words:
            what = "is given twice" if key in words else f"is unknown; known: {', '.join(NOTED)}"
            raise ValueError(f"the note's {key!r} {what}")
        known = NOTED[key]
        if isinstance(known, tuple) and known and value not in known:
            raise ValueError(f"the note's {key}={value} is unknown; known: {', '.join(known)}")
        if known in (int, float):
            config.number(value, whole=known is int)
        words[key] = value
    return words


def _baseline(cell: Cell) -> dict[str, Any]:
    return BASELINES.get(cell.row, {}) if (cell.paper, cell.table) == ("unremix", "Table 1") else {}


def _reason(cell: Cell, note: dict) -> str:
    """Why the cell has no run; empty if it has one."""
    method = note.get("method")
    if cell.metric in DERIVED or cell.dataset == "STS average":
        return "derived from other cells"
    if cell.dataset.startswith(SIMILARITY):
        return "needs pretrained weights"
    if cell.dataset in SENTENCES and method == "unremix":
        return "not in the library: UnReMix on pairs, which are no two views of a batch"
    if cell.dataset in SENTENCES:
        pearson = "not in the library: the regression whose predictions are correlated"
        return pearson if cell.metric == "Pearson" else ""
    if cell.dataset not in SIZES:
        return f"data not obtainable: {cell.dataset}"
    if method is None:
        return f"not in the library: {OUTSIDE.get(cell.row, cell.row)}"
    graphs = cell.metric == "SVM accuracy"
    if "τ*" in cell.row and "temperature" not in note and not graphs:
        return "not printed: the temperature"
    lacking = [what for what in ("encoder", "epochs") if what not in note and not graphs]
    return f"not printed: {' and '.join(lacking)}" if lacking else ""


def _image_run(cell: Cell, note: dict) -> Cell:
    recipe = {"hclot": "hcl-ot", "dro": "adnce", "hscl": "h-scl"}.get(cell.paper, cell.paper)
    method, notes = note["method"], []
    said: dict[str, Any] = _printed(note)
    own = _baseline(cell)
    if note.get("loss") == "bcl":
        method = {"hcl": "bcl", "ot": "bcl-ot"}[method]
    if note.get("loss") == "nce" or cell.row == "H-UCL":
        said["tau_plus"] = 0.0
    if method == "unremix":
        said["learn"] = "minimise" if cell.row in LEARNED else "fixed"
        said |= {"mixture": MIXTURES[cell.row]} if cell.row in MIXTURES else {}
        said |= {"gradient": "nt-xent"} if cell.row == "UnReMix NT-Xent" else {}
        if not own:
            notes.append("on plain views; the paper's stands on Un-Mix")
    if "epsilon" in said:
        said["epsilon"], notes = said["epsilon"] / 2, [*notes, HALF]
    if cell.paper == "hscl":
        notes.append("without the noise on its views, whose strength is not printed")
    kept: dict[str, Any] = dict(dataset=cell.dataset, encoder=note["encoder"], recipe=recipe)
    kept |= dict(method=method, separate_views=True)  # as all the released code that they build on
    if "labelled part" in note.get("remark", ""):
        kept["train_size"] = LABELLED
    elif cell.dataset == "stl10":
        notes.append("trains on STL-10's labelled and unlabelled images")
    if method in ("scl", "h-scl", "h-scl-threshold"):
        notes.append("averaged over anchors; the released code over all pairs")
    if int(note.get("batch", 0)) not in (0, config.RECIPES[recipe]["batch_size"]):
        kept["batch_size"] = int(note["batch"])
    kept |= {name: value for name, value in own.items() if name in config.hints(config.ImageRun)}
    said |= {name: value for name, value in own.items() if name not in kept}
    named = ("method", "mixing", "separate_views")
    unsaid = [f"{name}={value}" for name, value in own.items() if name not in named]
    notes += ["its own paper's options; this one prints none"] if unsaid else []
    if method == "h-scl-threshold":
        kept |= dict(schedule={"level": LEVELS}, reach_end=True)
        unsaid = [f"level={LEVELS[0]:g} to {LEVELS[1]:g}"]
    run = config.ImageRun(**kept, epochs=int(note["epochs"]))
    return _with_options(cell, run, said, notes, unsaid)


def _graph_run(cell: Cell, note: dict) -> Cell:
    said, notes = _printed(note), []
    views = cell.paper == "dro" and note["method"] != "infograph"
    kept: dict[str, Any] = dict(dataset=cell.dataset, method=note["method"])
    kept["epochs"] = int(note.get("epochs", 20))
    kept |= {name: float(note[name]) for name in ("lr", "weight_decay") if name in note}
    unsaid = []
    if cell.paper == "dro":
        kept |= {"lr": 0.01} if views else {}
        unsaid += [f"epochs={kept['epochs']}", f"lr={kept.get('lr', 0.001):g}"]
        notes.append("length and rate as in the code that GraphCL released")
    if views:
        tuned, mu, kinds = COMMANDS[cell.dataset]
        kept |= dict(framework="graphcl", augmentations=kinds, original=True)
        kept["options"] = {"temperature": 0.2 if "τ0" in cell.row else tuned}
        kept["options"] |= {"mu": mu} if note["method"] == "adnce" else {}
        notes.append("temperature (GraphCL's for τ0), μ and kinds of views as in released commands")
        notes.append("the share .2 as GraphCL prints, .1 in its code")
    if cell.paper == "hscl" and note["method"] in ("scl", "h-scl"):
        kept["labels"] = "all"
        notes.append("one encoder sees all labels, as far as the text tells; hidden ones: Graphs")
    if "epsilon" in said:
        notes.append("ε as printed; no graph code of transport is released")
    run = config.GraphRun(**kept)
    return _with_options(cell, run, said, notes, unsaid)


def _sentence_run(cell: Cell, note: dict) -> Cell:
    """Quick-Thoughts: two recurrent encoders, trained on neighbours, beside each other."""
    batch = int(note.get("batch", 400))
    kept: dict[str, Any] = dict(dataset="novels", encoder="gru", towers=2, batch_size=batch)
    run = config.SentenceRun(**kept, method=note["method"], epochs=1)
    usual = run.resolved()
    unsaid = [f"dimension={run.dimension} twice", f"epochs={run.epochs}", f"lr={usual.lr:g}"]
    unsaid += [] if "batch" in note else [f"batch={batch}"]
    notes = ["98 novels stand in for 7,000 books that are not to be had"]
    return _with_options(cell, run, _printed(note), notes, unsaid)


def _with_options(cell: Cell, run, said: dict, notes: list[str], unsaid=()) -> Cell:
    """The cell with its run, all of whose options are either printed or named as ours."""
    if run.method not in run.catalogue:
        raise ValueError(f"unknown method {run.method!r}; known: {', '.join(run.catalogue)}")
    known = run.catalogue[run.method].options
    if wrong := [name for name, value in said.items() if value and name not in known]:
        where = f"{cell.paper}, {cell.table}, {cell.row}"
        raise ValueError(f"{where}: {run.method} has no option {wrong[0]!r}; correct papers.csv")
    said = {name: value for name, value in said.items() if name in known}
    recipe = run.usual() if isinstance(run, config.ImageRun) else run.options
    given = {name: value for name, value in recipe.items() if name in known}
    whole = known | given | said
    missing = [name for name in PRINTED if name in known and name not in said]
    ours = tuple([*unsaid, *(f"{name}={whole[name]:g}" for name in missing)])
    options = {k: v for k, v in whole.items() if k in given or k in said or v != known[k]}
    run = replace(run, options=options)
    return replace(cell, run=run, key=key(run), ours=ours, note="; ".join(notes))


PRINTED = ("temperature", "beta", "tau_plus", "mu", "sigma", "epsilon", "exponent")


def _printed(note: dict) -> dict:
    note = note | ({"epsilon": note["eps"]} if "eps" in note else {})
    return {name: float(note[name]) for name in PRINTED if name in note}
