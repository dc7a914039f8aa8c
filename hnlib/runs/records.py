"""The ledger of results: one JSON file per measured run, all of them as one table, and the numbers
printed in the papers beside them.

A record is a dictionary with at least `configuration` (everything that was chosen, the seed
included) and `metrics` (everything that was measured); `history`, `environment` and `seconds` are
usual. Its file is named by a short hash of the configuration, so the same run has the same name on
every machine.
"""

from __future__ import annotations

import base64
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
from hnlib.runs import config
from hnlib.runs.config import canonical, name

if TYPE_CHECKING:  # only tables need pandas; training does without it
    import numpy as np
    import pandas as pd

PACKAGES = ["torch", "torchvision", "torch-geometric", "lightning-fabric", "numpy", "scikit-learn"]
#: What must agree in two records of one run.
ACCURACIES = ("knn", "linear", "linear_paper", "svm", "knn_validation", "linear_validation")
PAPER_COLUMNS = ["paper", "table", "row", "column", "dataset", "metric", "value", "spread", "note"]


def default_folder() -> Path:
    """`_build/results`: runs started by hand, by tests or by the default build."""
    return project_root() / "_build" / "results"


def tracked_folder() -> Path:
    """`book/results/runs`: the recorded runs that the book shows; only `--record` writes here."""
    return project_root() / "book" / "results" / "runs"


def write(record: dict, folder: Path | str | None = None, overwrite: bool = False) -> Path:
    """Write a record to `folder/NAME.json` atomically and return the path.

    A run measured a second time with the same metrics leaves the first file as it is. Other metrics
    under the same configuration are refused unless `overwrite=True`; a file whose configuration
    does not belong to its name always is. ValueError: as said, and for a record without
    configuration or metrics, or not expressible in JSON.
    """
    for key in ("configuration", "metrics"):
        if not isinstance(record.get(key), dict):
            raise ValueError(
                f"a record needs a dictionary {key!r}; this one has the keys {sorted(record)}"
            )
    folder = default_folder() if folder is None else Path(folder)
    path = folder / f"{name(record['configuration'])}.json"
    text = canonical(record, indent=1) + "\n"
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


def frame(*sources: Path | str | list[dict], kind: str | None = None) -> pd.DataFrame:
    """The records as one table, a row a run: `frame().query("method == 'hcl' and beta == 1")`.

    Columns: `record` (its name), `kind` ("images", "graphs" or "measurement"), every field of the
    run (`config.ImageRun`, `config.GraphRun`), every option of its method and every metric under
    its own name; `changed` and `title`, what is unusual about the run and where it was made, and
    `options`, those that are not the catalogue's, in words; `seconds`, `date`, `hardware`,
    `test_images`, `graphs`; as they are in the record, `history`, `losses`, `correct`, `metrics`,
    `environment`; and `run` itself. What a record does not name is at its default. Several values
    are one word, as on the command line: `schedule == "beta=0.0:4.0:5"`.

    Runs whose configurations differ in `experiment` alone are one; `experiments` has all of them.
    ValueError: two such records of one source disagree in an accuracy. `sources` are folders
    (default: the tracked one) or lists of records; where two have the same run, the later one's
    row stands. `kind`: no other rows (those of graphs wait for PyTorch Geometric).
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
    expected = {"kind": str, "title": str, **dict.fromkeys(ACCURACIES, float)}
    for run in (config.ImageRun, config.GraphRun)[: 1 if kind == "images" else 2]:
        expected |= config.hints(run)
        expected |= {o: float for entry in run().catalogue.values() for o in entry.options}
    for column, hint in expected.items():
        if column not in table:
            table[column] = None
        if dtype := types.get((*typing.get_args(hint), hint)[0]):
            table[column] = table[column].astype(dtype)
    return table


def _kind(record: dict) -> str:
    trained = "graphs" if "graphs" in record else "measurement"
    return "images" if "image_shape" in record else trained


def _agreeing(first: dict, second: dict) -> dict:
    """The first of two rows of one run, with the experiments of both."""
    for metric in ACCURACIES:
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
            **{
                key: record.get(key)
                for key in ("test_images", "graphs", "history", "losses", "correct")
            },
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
            fits, kind = isinstance(value, str | None), "a word or null"
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
    spread, note."""
    import pandas as pd

    path = project_root() / "book" / "results" / "papers.csv" if path is None else Path(path)
    frame = pd.read_csv(path, comment="#", skipinitialspace=True, encoding="utf-8-sig")
    if list(frame.columns) != PAPER_COLUMNS:
        raise ValueError(f"{path} has the columns {list(frame.columns)}; expected {PAPER_COLUMNS}")
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(f"{path} has a row of more than {len(PAPER_COLUMNS)} cells; quote commas")
    for column in ("value", "spread"):
        if not pd.api.types.is_numeric_dtype(frame[column]):
            raise ValueError(f"{path} has a {column} that is no number")
    return frame


def environment(device=None) -> dict:
    """Where and with what a run was measured: hardware, versions, digest of the library's sources,
    date (UTC)."""
    import torch

    device = torch.device("cpu" if device is None else device)
    hardware = {"cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
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
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


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
        _check(record)
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
SHARE = (lambda v: v is None or (_number(v) and 0 <= v <= 1), "a number from 0 to 1 or null")
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
    "metrics": dict.fromkeys(ACCURACIES, SHARE) | FOLDS | {...: NUMBER},
    "image_shape": [COUNT],
    "test_images": COUNT,
    "graphs": COUNT,
    "history": [{"epoch": COUNT, "loss": NUMBER, "knn": NUMBER} | FOLDS | {...: NUMBERS}],
    "losses": [NUMBER],
    "correct": {...: WORD},
}


def _check(record: dict) -> None:
    """ValueError, with the field: a record that was not written so."""
    _fits(record, FORM)
    chosen, metrics = record["configuration"], record["metrics"]
    if not chosen.get("experiment"):
        raise ValueError("the configuration lacks experiment, a word")
    if _kind(record) != "measurement":
        _fits(record, OF_A_RUN)
        run = config.read(chosen, whole=True)
        if not isinstance(run, config.Configuration):
            raise ValueError("it is no run, but has the metrics of one")
        if len(record.get("image_shape", "chw")) != 3:
            raise ValueError(f"image_shape={record['image_shape']} must be three numbers")
        for metric, text in record.get("correct", {}).items():
            part = "validation" if metric.endswith("_validation") else "test_images"
            _check_bits(f"correct.{metric}", text, part, (record | chosen).get(part, 0))
        return
    if found := {*ACCURACIES} & metrics.keys():
        raise ValueError(f"it has metrics.{min(found)}, but neither image_shape nor graphs")
    if "measured" in chosen:
        config.read(chosen, whole=True)
        _fits(metrics, {...: NUMBER}, "metrics")


def _fits(value, form, field: str = "") -> None:
    if isinstance(form, tuple):
        fits, words = form
        if not fits(value):
            raise ValueError(f"{field}={reprlib.repr(value)} must be {words}")
    elif not isinstance(value, type(form)):
        kind = "a dictionary" if isinstance(form, dict) else "a list"
        raise ValueError(f"{field}={reprlib.repr(value)} must be {kind}")
    elif isinstance(form, list):
        for entry in value:
            _fits(entry, form[0], field)
    else:
        for key, inner in value.items():
            if (known := form.get(key, form.get(...))) is not None:
                _fits(inner, known, f"{field}.{key}".removeprefix("."))


def _check_bits(field: str, text: str, part: str, n: int) -> None:
    try:
        length = len(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise ValueError(f"{field} is no base64: {error}") from None
    if length != -(-n // 8):
        raise ValueError(f"{field} has {length} bytes; {part}={n} take {-(-n // 8)}")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
