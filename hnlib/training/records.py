"""The ledger of results: one JSON file per measured run, all of them as one table, and the numbers
printed in the papers beside them.

A record is a dictionary with at least `configuration` (everything that was chosen, the seed
included) and `metrics` (everything that was measured); `history`, `environment` and `seconds` are
usual. Its file is named by a short hash of the configuration, so the same run has the same name on
every machine.
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import json
import math
import os
import platform
import reprlib
import sys
import typing
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hnlib._files import project_root, write_atomically
from hnlib.training import config
from hnlib.training.config import canonical, name

if TYPE_CHECKING:  # only tables need pandas; training does without it
    import numpy as np
    import pandas as pd

PACKAGES = ["torch", "torchvision", "torch-geometric", "lightning-fabric", "numpy", "scikit-learn"]
PACKAGES += ["tokenizers"]
#: Accuracies; they and the correlations must agree in two records of one run.
ACCURACIES = ("knn", "linear", "linear_paper", "svm", "knn_validation", "linear_validation")
ACCURACIES += (*config.TRANSFER, "msrp_f1", "topic", "transfer")
#: Rank correlations, which may be negative.
CORRELATIONS = (*config.SIMILARITY, "alike", "sts")
INSTALLED = Path(__file__).resolve().parents[1] / "_ledgers"  # a wheel's, of setup.py
#: Parts of a record that are a column each, as they are.
SHOWN = ("test_images", "graphs", "sentences", "judged", "history", "losses", "correct")
#: What this process has read of the book's records, each with its digest: a file, or a selection.
READ: dict[str, str] = {}
PAPER_COLUMNS = ["paper", "table", "row", "column", "dataset", "metric", "value", "spread"]
PAPER_COLUMNS += ["run", "note"]  # the setting in papers.toml, or why there is none


def ledger(name: str) -> Path:
    """A file or folder of the book that pages read, as `book/claims.csv`: the checkout's, elsewhere
    the copy that was installed with the library. ValueError: there is neither."""
    for folder in (project_root(), INSTALLED):
        path = folder / name
        if path.exists():
            if path.is_file():
                READ[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            return path
    raise ValueError(
        f"{name} is neither in a checkout around {Path.cwd()} nor installed with hnlib; change "
        "into a checkout, or install hnlib from one with pip."
    )


def default_folder() -> Path:
    """`_build/results`: runs started by hand, by tests or by the default build."""
    return project_root() / "_build" / "results"


def tracked_folder() -> Path:
    """`book/results/runs`: the recorded runs that the book shows; only `--record` writes here, and
    only in a checkout. ValueError: as in `ledger`."""
    return ledger("book/results/runs")


def write(record: dict, folder: Path | str | None = None, overwrite: bool = False) -> Path:
    """Write a record to `folder/NAME.json` atomically and return the path.

    A run measured a second time with the same metrics leaves the first file as it is. Other metrics
    under the same configuration are refused unless `overwrite=True`; a file whose configuration
    does not belong to its name always is. ValueError: as said, and for a record that could not be
    read back.
    """
    for key in ("configuration", "metrics"):
        if not isinstance(record.get(key), dict):
            raise ValueError(
                f"a record needs a dictionary {key!r}; this one has the keys {sorted(record)}"
            )
    folder = default_folder() if folder is None else Path(folder)
    if folder.is_relative_to(INSTALLED):
        raise ValueError("what is recorded for the book belongs to a checkout; change into one.")
    path = folder / f"{name(record['configuration'])}.json"
    text = canonical(record, indent=1) + "\n"
    check(json.loads(text))
    _row(json.loads(text))
    if path.exists():
        old = read(path)
        if not overwrite:
            if canonical(old["metrics"]) == canonical(record["metrics"]):
                return path
            raise ValueError(
                f"{path} already holds this run with other metrics; pass overwrite=True to "
                "replace it"
            )
    write_atomically(path, text.encode())
    return path


def load_all(folder: Path | str | None = None) -> list[dict]:
    """All records of a folder, ordered by name; an absent folder has none. ValueError: a file that
    was not written so, with the field."""
    folder = default_folder() if folder is None else Path(folder)
    return [read(path) for path in sorted(folder.glob("[!.]*.json"))]  # not what is being written


def pack(right) -> str:
    """Which images were right, bool [N], as text for a record: one bit an image, base64."""
    import numpy as np

    return base64.b64encode(np.packbits(np.asarray(right.cpu(), bool)).tobytes()).decode()


def unpack(text: str, n: int) -> np.ndarray:
    """What `pack` wrote about `n` images, bool [n]."""
    import numpy as np

    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=n).astype(bool)


def digest(runs: pd.DataFrame) -> str:
    """Return a digest of the names and metrics of the runs of a `frame`."""
    rows = [] if runs.empty else zip(runs["record"], map(str, runs["metrics"]))
    text = repr(sorted(rows))
    return hashlib.sha256(text.encode()).hexdigest()


def unchanged(read: dict[str, str], runs: pd.DataFrame) -> bool:
    """Return whether what another process has `READ` is the same today; `runs`: all tracked runs."""
    for key, before in read.items():
        if not key.startswith("["):
            path = project_root() / key
            now = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
        else:
            kind, where = json.loads(key)
            rows = runs if kind is None else runs[runs["kind"] == kind]
            now = digest(rows.query(where) if where else rows)
        if now != before:
            return False
    return True


def frame(
    *sources: Path | str | list[dict], kind: str | None = None, where: str | None = None
) -> pd.DataFrame:
    """The records as one table, a row a run: `frame().query("method == 'hcl' and beta == 1")`.

    Columns: `record` (its name), `kind` ("images", "graphs", "sentences" or "measurement"), every
    field of the run (`config.ImageRun`, `GraphRun`, `SentenceRun`), every option of its method and
    every metric under its own name; `changed` and `title`, what is unusual about the run and where
    it was made, and `options`, those that are not the catalogue's, in words; `seconds`, `date`,
    `hardware`, `test_images`, `graphs`, `sentences`; as they are in the record, `judged` (examples
    of a task), `history`, `losses`, `correct`, `metrics`, `environment`; and `run` itself. What a
    record does not name is at its default. Several values are one word, as on the command line:
    `schedule == "beta=0.0:4.0:5"`.

    Runs whose configurations differ in `experiment` alone are one; `experiments` has all of them.
    ValueError: two such records of one source disagree in a score. `sources` are folders
    (default: the tracked one) or lists of records; where two have the same run, the later one's
    row stands. `kind`: no other rows (those of graphs wait for PyTorch Geometric). `where` is a
    query, as of `DataFrame.query`; the build of the book executes a chapter again when the tracked
    rows change that it asked for.
    """
    import pandas as pd

    rows: dict[str, dict] = {}
    for source in sources or (tracked_folder(),):
        here: dict[str, dict] = {}
        for record in source if isinstance(source, list) else load_all(source):
            if kind not in (None, _kind(record)):
                continue
            try:
                row = _row(record)
            except ValueError as error:
                place = "the record" if isinstance(source, list) else f"{source}:"
                raise ValueError(f"{place} {name(record['configuration'])}: {error}") from error
            key = f"{row['kind']} {canonical(record['configuration'] | {'experiment': None})}"
            known = here.get(key, rows.get(key, row))["experiments"]
            row["experiments"] = tuple(sorted({row["experiment"], *known}))
            here[key] = _agreeing(here.get(key, row), row)
        rows |= here
    table = pd.DataFrame(list(rows.values()))
    types = {int: "Int64", bool: "boolean"}  # which stay what they are where a row has none
    expected = {"kind": str, "title": str, **dict.fromkeys(ACCURACIES + CORRELATIONS, float)}
    kinds = (config.ImageRun, config.GraphRun, config.SentenceRun)
    for run in kinds[: 1 if kind == "images" else 3]:
        expected |= config.hints(run)
        expected |= {o: float for entry in run().catalogue.values() for o in entry.options}
    for column, hint in expected.items():
        if column not in table:
            table[column] = None
        if dtype := types.get((*typing.get_args(hint), hint)[0]):
            table[column] = table[column].astype(dtype)
    table = table.query(where) if where else table
    if not sources or tracked_folder() in sources:
        tracked = {path.stem for path in tracked_folder().glob("[!.]*.json")}
        rows = table if table.empty else table[table["record"].isin(tracked)]
        READ[json.dumps([kind, where])] = digest(rows)
    return table


def _kind(record: dict) -> str:
    kinds = {"image_shape": "images", "graphs": "graphs", "sentences": "sentences"}
    return next((kind for key, kind in kinds.items() if key in record), "measurement")


def _agreeing(first: dict, second: dict) -> dict:
    """The first of two rows of one run, with the experiments of both."""
    for metric in ACCURACIES + CORRELATIONS:
        values = [row["metrics"].get(metric) for row in (first, second)]
        if None not in values and values[0] != values[1]:
            raise ValueError(
                f"{first['record']}.json and {second['record']}.json hold one run, which differs "
                f"in {metric}: {values[0]} and {values[1]}; delete the wrong one"
            )
    return first | {"experiments": second["experiments"]}


def _row(record: dict) -> dict:
    chosen, metrics = record["configuration"], record["metrics"]
    environment = record.get("environment", {})
    hardware = environment.get("hardware", {})
    row = {"record": name(chosen), "kind": _kind(record), "run": None}
    if row["kind"] != "measurement":
        run: Any = config.read(chosen)
        _check_options(run)
        row |= run.row(record.get("image_shape", [None])[0]) | {"run": run}
    else:
        row |= {"experiment": ""} | {key: config.words(value) for key, value in chosen.items()}
    numbers = {key: value for key, value in metrics.items() if not isinstance(value, dict)}
    return (
        numbers
        | row
        | {
            "seconds": record.get("seconds", metrics.get("seconds")),
            "date": environment.get("date", "")[:10],
            "hardware": hardware.get("gpu")
            or f"{hardware.get('cpu', '')}, {hardware.get('threads', '?')} threads",
            "experiments": (),
            "metrics": metrics,
            "environment": environment,
            **{key: record.get(key) for key in SHOWN},
        }
    )


def _check_options(run: config.Configuration) -> None:
    """ValueError: an option that the method has not, or of another kind than its default."""
    if (entry := run.catalogue.get(run.method)) is None:  # a method of one's own
        return
    for key, value in run.options.items():
        if key not in entry.options:
            raise ValueError(f"options.{key}: {run.method} has no such option")
        usual = entry.options[key]
        if usual is None:
            fits, kind = isinstance(value, str | None) or _number(value), "a word, a number or null"
        elif isinstance(usual, bool | str):
            fits, kind = isinstance(value, type(usual)), type(usual).__name__
        elif isinstance(usual, tuple):
            fits = isinstance(value, list | tuple) and len(value) == len(usual) and _numbers(value)
            kind = f"{len(usual)} numbers"
        else:
            fits, kind = _number(value) or value in (math.inf, -math.inf), "a number"
        if not fits:
            raise ValueError(f"options.{key}={reprlib.repr(value)} must be {kind}")


def papers(path: Path | str | None = None) -> pd.DataFrame:
    """The numbers printed in the papers: columns paper, table, row, column, dataset, metric, value,
    spread, note; the index is the line. ValueError: as in `read_csv`; a value that is no number."""
    import pandas as pd

    path = ledger("book/results/papers.csv") if path is None else Path(path)
    rows = read_csv(path, PAPER_COLUMNS, empty=("column", "spread", "note"))
    for line, row in rows.items():
        for column in ("value", "spread"):
            try:
                row[column] = config.number(row[column]) if row[column] else math.nan
            except ValueError as error:
                raise ValueError(f"line {line} of {path}: {column}: {error}; correct it") from None
        row["note"] = row["note"] or math.nan
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=PAPER_COLUMNS)
    return frame.astype({"value": float, "spread": float})


def read_csv(path: Path, columns: list[str], empty: tuple[str, ...] = ()) -> dict[int, dict]:
    """The rows of a CSV file by the line where they end; lines that begin with # are remarks.

    ValueError, with the line: it is not UTF-8 or not there, other `columns`, more or fewer values,
    one that is not among the `empty` and says nothing.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = ("\n" if line.startswith("#") else line for line in file)
            table = csv.reader(lines, strict=True, skipinitialspace=True)
            head, *rows = [(table.line_num, row) for row in table if row] or [(0, [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8 ({error})") from None
    if head[1] != columns:
        raise ValueError(f"{path} has the columns {head[1]}; it needs {columns}")
    for line, row in rows:
        if len(row) != len(columns):
            text = f"has not {len(columns)} values; quote what holds a comma"
            raise ValueError(f"line {line} of {path} {text}")
        lacking = [c for c, word in zip(columns, row) if c not in empty and not word.strip()]
        if lacking:
            raise ValueError(f"line {line} of {path} has no {lacking[0]}; write one")
    return {line: dict(zip(columns, row)) for line, row in rows}


def environment(device=None) -> dict:
    """Where and with what a run was measured: hardware, versions, digest of the library's sources,
    date (UTC)."""
    import torch

    device = torch.device("cpu" if device is None else device)
    hardware = {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "hardware": hardware,
        "versions": versions,
        "hnlib": source_digest(),
        "predictions": predictions_digest(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@functools.cache
def predictions_digest() -> str | None:
    """Return 12 hexadecimal digits of the SHA-256 of `predictions.md`, None without a checkout."""
    try:
        text = (project_root() / "book/results/predictions.md").read_bytes()
    except OSError:
        return None
    return hashlib.sha256(text).hexdigest()[:12]


@functools.cache
def source_digest() -> str:
    """The first 12 hexadecimal digits of the SHA-256 over all sources of this package."""
    digest, here = hashlib.sha256(), Path(__file__).resolve().parents[1]
    for path in sorted(here.rglob("*.py")):
        digest.update(
            path.relative_to(here).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()[:12]


def read(path: Path) -> dict:
    """The record in a file. ValueError, with file and field: it was not written so."""
    try:
        text = path.read_text(encoding="utf-8")
        record = json.loads(text)
        if "\\u" in text:  # half a character can be escaped, and then be shown nowhere
            json.dumps(record, ensure_ascii=False).encode()
        if not isinstance(record, dict) or not {"configuration", "metrics"} <= record.keys():
            raise ValueError("it needs configuration and metrics")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a whole record ({error}); delete it and repeat the run"
        ) from error
    try:
        check(record)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; delete it and repeat the run") from error
    if name(record["configuration"]) != path.stem:
        raise ValueError(f"{path} holds another configuration than its name says; move it away")
    return record


def _number(value) -> bool:
    """Whether JSON's value is a number of everyday size."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) <= sys.float_info.max


def _numbers(value) -> bool:
    """Whether a value is made of numbers, and of null where there was nothing to measure."""
    if isinstance(value, dict | list):
        return all(map(_numbers, value.values() if isinstance(value, dict) else value))
    return value is None or _number(value)


# Forms: what a value must satisfy, in words. A dictionary has one for each key, or under `...` for
# all others; a list has one for its entries.
WORD = (lambda v: isinstance(v, str), "a word")
COUNT = (
    lambda v: isinstance(v, int) and _number(v) and 0 <= v <= config.LARGEST[int],
    "a whole number",
)
NUMBER = (lambda v: v is None or _number(v), "a number or null")
NUMBERS = (_numbers, "made of numbers")
EXACT = (_number, "a number")
SECONDS = (lambda v: _number(v) and v >= 0, "a number from 0")
SHARE = (lambda v: v is None or (_number(v) and 0 <= v <= 1), "a number from 0 to 1 or null")
CORRELATION = (
    lambda v: v is None or (_number(v) and -1 <= v <= 1),
    "a number from -1 to 1 or null",
)
HARDWARE = {"cpu": WORD, "gpu": WORD, ...: COUNT}
VERSIONS = {...: (lambda v: v is None or isinstance(v, str), "a word or null")}
ENVIRONMENT = {"hardware": HARDWARE, "versions": VERSIONS, "hnlib": WORD, "date": WORD}
FORM = {
    "configuration": {"experiment": WORD},
    "metrics": {"seconds": NUMBER},
    "environment": ENVIRONMENT,
    "seconds": NUMBER,
    "sessions": [ENVIRONMENT | {"seconds": NUMBER}],
}
FOLDS = {"svm_folds": [SHARE], "inner_folds": [SHARE], "C": [NUMBER]}
OF_A_RUN = {
    "configuration": {"augmentation": (lambda v: isinstance(v, dict), "a dictionary")},
    "metrics": dict.fromkeys(ACCURACIES, SHARE)
    | dict.fromkeys(CORRELATIONS, CORRELATION)
    | FOLDS
    | {...: NUMBER},
    "image_shape": [COUNT],
    "test_images": COUNT,
    "graphs": COUNT,
    "sentences": COUNT,
    "judged": {...: COUNT},
    "history": [{"epoch": COUNT, "loss": NUMBER, "knn": NUMBER} | FOLDS | {...: NUMBERS}],
    "losses": [NUMBER],
    "correct": {...: WORD},
}


def check(record: dict) -> None:
    """ValueError, with the field: a record that was not written so."""
    fits(record, FORM)
    chosen, metrics = record["configuration"], record["metrics"]
    if not chosen.get("experiment"):
        raise ValueError("the configuration lacks experiment, a word")
    if _kind(record) != "measurement":
        fits(record, OF_A_RUN)
        run = config.read(chosen, whole=True)
        if not isinstance(run, config.Configuration):
            raise ValueError("it is no run, but has the metrics of one")
        if len(record.get("image_shape", "chw")) != 3:
            raise ValueError(f"image_shape={record['image_shape']} must be three numbers")
        for metric, text in record.get("correct", {}).items():
            part = "validation" if metric.endswith("_validation") else "test_images"
            counts = record.get("judged", {part: (record | chosen).get(part, 0)})
            part = metric if "judged" in record else part
            _check_bits(f"correct.{metric}", text, part, counts.get(part, 0))
        return
    if found := {*ACCURACIES, *CORRELATIONS} & metrics.keys():
        raise ValueError(
            f"it has metrics.{min(found)}, but neither image_shape nor graphs nor sentences"
        )
    if "measured" in chosen:
        config.read(chosen, whole=True)
        fits(metrics, {...: NUMBER}, "metrics")


def check_run(run: config.Configuration) -> None:
    """ValueError: a record of the run could not be read back."""
    if not run.experiment.strip():
        raise ValueError("experiment='' is no heading; leave it out or write one")
    _check_options(config.read(run.configuration, whole=True))


def fits(value, form, field: str = "") -> None:
    """ValueError, with the field, unless the value has such a form."""
    if isinstance(form, tuple):
        fit, words = form
        if not fit(value):
            raise ValueError(f"{field}={reprlib.repr(value)} must be {words}")
    elif not isinstance(value, type(form)):
        kind = "a dictionary" if isinstance(form, dict) else "a list"
        raise ValueError(f"{field}={reprlib.repr(value)} must be {kind}")
    elif isinstance(form, list):
        for entry in value:
            fits(entry, form[0], field)
    else:
        for key, inner in value.items():
            if (known := form.get(key, form.get(...))) is not None:
                fits(inner, known, f"{field}.{key}".removeprefix("."))


def _check_bits(field: str, text: str, part: str, n: int) -> None:
    try:
        length = len(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise ValueError(f"{field} is no base64: {error}") from None
    if length != -(-n // 8):
        raise ValueError(f"{field} has {length} bytes; {part}={n} take {-(-n // 8)}")


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
