"""The numbers that the five papers print, each with its run or the reason why it has none.

The ledger is `papers.csv` of the evidence; the settings of the runs are in `papers.toml` beside it.
"""

from __future__ import annotations

import functools
import json
import tomllib
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from hnlib.experiments import evidence
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
PAPERS = {"hcl": "HCL", "hclot": "HCL-OT", "hscl": "H-SCL", "dro": "ADNCE", "unremix": "UnReMix"}
WHERE = ("paper", "table", "row", "column", "dataset", "metric")
#: The metric of a record that is compared with a printed one.
READOUTS = {"linear top-1": "linear", "accuracy": "linear", "SVM accuracy": "svm"}
SENTENCES = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MSRP", "SICK")
READOUTS |= {f"{name} accuracy": name.lower() for name in SENTENCES}
READOUTS |= {"MSRP F1": "msrp_f1", "SICK Pearson": "sick_pearson"}
REMARKS = {
    "stl10": "trains on STL-10's labelled and unlabelled images",
    "tiny-imagenet": "views of 64 pixels; the released codes crop to 32",
}


@dataclass(frozen=True)
class Cell:
    """One printed number with its run and the run's `key`, or the `reason` why it has none.

    `ours` names what the paper does not print, with our values; `note` says how the table was
    read; `remark` is the ledger's comment on the number.
    """

    paper: str
    table: str
    row: str
    column: str
    dataset: str
    metric: str
    value: float
    spread: float
    remark: str = ""
    run: Any = None
    key: str = ""
    reason: str = ""
    ours: str = ""
    note: str = ""


@functools.cache
def cells() -> tuple[Cell, ...]:
    """Return the printed numbers in the order of papers.csv."""
    rows = evidence.printed().to_dict("records")
    return tuple(_cell(row, settings()) for row in rows)


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


def _cell(row: dict[Any, Any], by_name: dict[str, dict]) -> Cell:
    printed = parse_note(row["note"])
    where = {name: row[name] for name in (*WHERE, "value", "spread")}
    cell = Cell(**where, remark=printed.get("remark", ""))
    if row["run"].startswith(REASONS):
        return replace(cell, reason=row["run"])
    chosen = {"dataset": cell.dataset, "ours": "", "note": ""} | by_name[row["run"]]
    kind, ours, note = (chosen.pop(name) for name in ("kind", "ours", "note"))
    if "epochs" not in chosen:
        chosen["epochs"] = int(printed["epochs"])
    if cell.dataset in REMARKS and "train_size" not in chosen:
        note = "; ".join(filter(None, (note, REMARKS[cell.dataset])))
    run = kinds.run_class(kind)(**chosen)
    return replace(cell, run=run, key=key(run), ours=ours, note=note)


def parse_note(note: Any) -> dict[str, str]:
    """Return the entries of a note of papers.csv, "KEY=VALUE; KEY=VALUE; remark=…"."""
    if not isinstance(note, str):  # pandas' NaN
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
    runs = frame[frame["kind"] != "measurement"]
    if runs.empty:
        return {}
    printed = {(c.run.dataset, c.run.method, c.run.epochs) for c in cells() if c.run is not None}
    trained = zip(runs["dataset"], runs["method"], runs["epochs"])
    runs = runs[[setting in printed for setting in trained]]  # of the others no key is needed
    return dict(iter(runs.groupby(runs["run"].map(key))))


def table(frame: Any) -> pd.DataFrame:
    """Return a row for each printed number with our runs of it.

    Columns: the `paper`, the number's `cell`, how many `seeds` are recorded, and their accuracies
    in percent as `found` and, read out as released, `released`.
    """
    by_key, rows = measured(frame), []
    for cell in cells():
        runs = by_key.get(cell.key)
        ours = _percents(runs, readout(cell))
        released = _percents(runs, "linear_paper")
        rows.append(
            dict(paper=cell.paper, cell=cell, seeds=len(ours), found=ours, released=released)
        )
    return pd.DataFrame(rows)


def readout(cell: Cell) -> str:
    """Return the metric of a record that is compared with the printed one."""
    return READOUTS.get(f"{cell.dataset} {cell.metric}") or READOUTS.get(cell.metric, "")


def _percents(runs: Any, metric: str) -> list[float]:
    return [] if runs is None or metric not in runs else (100 * runs[metric].dropna()).tolist()
