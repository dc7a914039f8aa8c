"""The ledger of results: one JSON file for each measured run, and all of them as one table.

A record is a dictionary with at least `configuration` (everything that was chosen, the seed
included) and `metrics` (everything that was measured); `kind`, `history`, `environment` and
`seconds` are usual. Its file is named by a short hash of the configuration, so the same run has the
same name on every machine. A file that was damaged or altered is refused when it is read.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import math
import os
import platform
import sys
import typing
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json  # three times as fast as json

from hnlib._files import INSTALLED, project_root, write_atomically
from hnlib.training import kinds
from hnlib.training.config import canonical, defaults, name, to_text

if TYPE_CHECKING:  # training needs no pandas
    import numpy as np
    import pandas as pd

PACKAGES = ("torch", "torchvision", "torch-geometric", "lightning-fabric", "numpy", "scikit-learn")
PACKAGES += ("tokenizers",)
TRACKED = "book/results/runs"
#: Beside the tracked records: their `frame`, which the build packs and git does not track.
PARQUET = "runs.parquet"
#: Parts of a record that are a column each, as they are.
SHOWN = ("test_images", "graphs", "sentences", "judged", "history", "losses", "correct")
#: Digest of each file and record selection that this process has read.
DEPENDENCIES: dict[str, str] = {}
#: The selection of all tracked records
EVERY = "[all records]"


def default_folder() -> Path:
    """Return the folder of runs started by hand, by tests or by the default build."""
    return project_root() / "_build" / "results"


def tracked_folder() -> Path:
    """Return the folder of the tracked records: only `--record` writes there.

    It is `$HNLIB_RECORDS`, else the checkout's, else the one installed with the library.
    """
    if chosen := os.environ.get("HNLIB_RECORDS"):
        return Path(chosen)
    for folder in (project_root(), INSTALLED):
        if (path := folder / TRACKED).is_dir():
            return path
    raise ValueError(
        f"there are no tracked records: {TRACKED} is neither in a checkout around {Path.cwd()} nor "
        "installed; set $HNLIB_RECORDS"
    )


def write(record: dict, folder: Path | str) -> Path:
    """Write a record to `folder/NAME.json` atomically and return the path.

    In the tracked folder nothing is overwritten: a second run of a configuration is a replicate,
    NAME-2.json.
    """
    folder, content = Path(folder), (canonical(record, indent=1) + "\n").encode()
    stem = name(record["configuration"])
    path = folder / f"{stem}.json"
    replicates = itertools.count(2) if _is_tracked(folder) else ()
    for number in replicates:
        if not path.exists() or path.read_bytes() == content:
            break
        path = folder / f"{stem}-{number}.json"
    write_atomically(path, content)
    return path


def _is_tracked(folder: Path) -> bool:
    try:
        return folder.samefile(tracked_folder())
    except (OSError, ValueError):  # one of them does not exist
        return False


def load_all(folder: Path | str) -> list[dict]:
    """Return all records of a folder, ordered by name."""
    return [record for _, record, _ in _named(folder)]


def _named(source: Path | str | list[dict]) -> list[tuple[str, dict, str]]:
    """Return name, record and digest of a folder's files, read until one changes.

    For a list, which is not a file, the digests are empty.
    """
    if isinstance(source, list):
        return [(name(one["configuration"]), one, "") for one in source]
    folder = Path(source)
    with os.scandir(folder) if folder.is_dir() else nullcontext(()) as files:
        stamp = tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return _read(folder, stamp)


@functools.lru_cache(2)
def _read(folder: Path, stamp: tuple) -> list[tuple[str, dict, str]]:
    named = []
    for stem in names(folder):
        with open(f"{folder}/{stem}.json", "rb") as file:  # a Path each would take as long
            content = file.read()
        with _of_record(f"{folder}/{stem}.json"):
            record = from_json(content, allow_inf_nan=False)
            _check(record)
            if name(record["configuration"]) != stem[:12]:
                raise ValueError("its configuration is not the one that names it")
        named.append((stem, record, hashlib.sha256(content).hexdigest()))
    return named


class _Environment(BaseModel):
    hardware: dict[str, Any] = {}
    date: str = ""


class _Record(BaseModel):
    """What every record has: readers rely on it."""

    model_config = ConfigDict(strict=True)
    configuration: dict[str, Any]
    metrics: dict[str, Any]
    kind: str = ""
    environment: _Environment = _Environment()
    seconds: Annotated[float, Field(ge=0)] | None = None
    history: list[dict[str, Any]] | None = None
    losses: list[Any] | None = None
    correct: dict[str, str | list[Any]] | None = None
    superseded: str = ""


_MEASURED = TypeAdapter(dict[str, float | list[Any] | None], config=ConfigDict(strict=True))


def _check(record) -> None:
    """Raise ValueError where readers would fail on a record or misread its scores."""
    _Record.model_validate(record)
    kind = kinds.kind_of(record)
    if kind == "measurement":
        return
    _MEASURED.validate_python(record["metrics"])
    run = kinds.run_class(kind)
    for names, least in ((run.accuracies, 0), (run.correlations, -1)):
        for metric in names:
            value = record["metrics"].get(metric)
            if value is not None and (isinstance(value, list) or not least <= value <= 1):
                raise ValueError(f"metrics.{metric} must lie in {least} to 1, got {value!r}")


@contextmanager
def _of_record(path: str) -> Iterator[None]:
    """Add the record's name to an error in the block."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            one = error.errors()[0]
            reason = f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
        raise ValueError(
            f"the record {path} is damaged or altered ({reason}); restore or delete it"
        ) from error


def set_aside() -> list[dict]:
    """Return the tracked records that `frame` leaves out.

    They are superseded records, made under a definition that was found wrong, which say why; or
    replicates, further runs of a configuration that has a record.
    """
    aside, first = [], set()
    for stem, record, _ in _named(tracked_folder()):
        if "superseded" in record or stem[:12] in first:
            aside.append(record)
        else:
            first.add(stem[:12])
    return aside


def names(folder: Path) -> list[str]:
    """Return the names of a folder's records in their order."""
    files = os.listdir(folder) if folder.is_dir() else []
    return sorted(file[:-5] for file in files if file.endswith(".json") and file[0] != ".")


def pack(right) -> str:
    """Encode which examples were right, bool [N], as text: one bit for each, base64."""
    import numpy as np

    return base64.b64encode(np.packbits(np.asarray(right.cpu(), bool)).tobytes()).decode()


def unpack(text: str, n: int) -> np.ndarray:
    """Decode what `pack` wrote about `n` examples, bool [n]."""
    import numpy as np

    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=n).astype(bool)


def key(configuration: dict) -> str:
    """Return a key that identifies a run, whatever experiment it was made for."""
    same = {"experiment": None, "dataset_digest": None}
    return json.dumps(configuration | same, sort_keys=True)


def by_key(folder: Path | None = None) -> dict[str, list[dict]]:
    """Return the records of runs by `key`, those of a folder or the tracked ones.

    Replicates follow the first.
    """
    found = defaultdict(list)
    for _, record, _ in _named(folder or tracked_folder()):
        if "superseded" not in record and kinds.kind_of(record) != "measurement":
            found[key(record["configuration"])].append(record)
    if folder is None:
        DEPENDENCIES[EVERY] = everything()
    return dict(found)


def everything() -> str:
    """Return a digest of all tracked records."""
    return _digest((stem, content) for stem, _, content in _named(tracked_folder()))


def run_of(record: dict):
    """Return the run of a record."""
    return kinds.run_class(kinds.kind_of(record)).read(record["configuration"])


def digest(runs: pd.DataFrame) -> str:
    """Return a digest of the records of a `frame`."""
    return _digest([] if runs.empty else zip(runs["record"], runs["digest"]))


def _digest(named: Iterable[tuple[str, str]]) -> str:
    rows = sorted(f"{record} {content}\n" for record, content in named)
    return hashlib.sha256("".join(rows).encode()).hexdigest()


def frame(
    *sources: Path | str | list[dict],
    kind: str | None = None,
    where: str | None = None,
    latest: bool = False,
) -> pd.DataFrame:
    """Return the records as a table: `frame().query("method == 'hcl' and beta == 1")`.

    Columns: `record` (its name), `digest` (of its file), `kind` (a key of `kinds.KINDS` or
    "measurement"), every field of the runs, every option of their methods and every metric under
    its name; `changed` and `title`, what is unusual about the run and where it was made, and
    `options`, those that are not the catalogue's, in words; `seconds`, `date`, `hardware`; as they
    are in the record, `test_images`, `graphs`, `sentences`, `judged` (examples of a task),
    `history`, `losses`, `correct`, `metrics`, `environment`; and `run` itself. Several values are
    one word: `schedule == "beta=0.0:4.0:5"`.

    Runs whose configurations differ in `experiment` alone count as one; `experiments` names all of
    them. Of replicates the first is taken, with `latest` the last; superseded records are left out
    (`set_aside`). `sources` are folders (default: the tracked one) or lists of records; where two
    have the same run, the later one's row is taken. `kind` selects rows, and so does `where`, a
    query; the build of the book executes a chapter again when the tracked rows that it selected
    change.
    """
    table = None if sources or kind or latest else read_parquet()
    if table is None:
        table = _completed(_rows(sources or (tracked_folder(),), kind, latest))
    table = table.query(where) if where else table
    if not sources or tracked_folder() in sources:
        read = table if table.empty else table[table["record"].isin(names(tracked_folder()))]
        DEPENDENCIES[json.dumps([kind, where, latest])] = digest(read)
    return table


def _rows(sources: Iterable, kind: str | None, latest: bool) -> list[dict]:
    """Return a row for each run of the sources, see `frame`."""
    groups: dict[tuple, list[tuple[int, dict]]] = defaultdict(list)
    for number, source in enumerate(sources):
        for stem, record, content in _named(source):
            its_kind = kinds.kind_of(record)
            if kind not in (None, its_kind) or "superseded" in record:
                continue
            chosen = record["configuration"]
            setting = json.dumps(chosen | {"experiment": "-", "seed": 0}, sort_keys=True)
            with _of_record(stem):
                row = _row(stem, its_kind, record, setting) | {"digest": content}
            groups[its_kind, chosen.get("seed"), setting].append((number, row))
    rows = []
    for same in groups.values():
        replicates = [row for number, row in same if number == same[-1][0]]
        experiments = tuple(sorted({row["experiment"] for _, row in same}))
        rows.append(replicates[-1 if latest else 0] | {"experiments": experiments})
    return rows


def _row(stem: str, kind: str, record: dict, setting: str) -> dict:
    chosen, metrics = record["configuration"], record["metrics"]
    row = {key: value for key, value in metrics.items() if not isinstance(value, dict)}
    if kind == "measurement":
        row |= {"experiment": "", "run": None} | {key: to_text(v) for key, v in chosen.items()}
    else:
        row |= _setting(kind, setting) | {"run": kinds.run_class(kind).read(chosen)}
        row |= {"experiment": chosen["experiment"], "seed": chosen["seed"]}
    environment = record.get("environment", {})
    hardware = environment.get("hardware", {})
    threads = hardware.get("threads", "?")
    cpu = f"{hardware.get('cpu', '')}, {threads} thread{'' if threads == 1 else 's'}"
    row |= {
        "record": stem,
        "kind": kind,
        "seconds": record.get("seconds", metrics.get("seconds")),
        "date": environment.get("date", "")[:10],
        "hardware": hardware.get("gpu") or cpu,
        "metrics": metrics,
        "environment": environment,
    }
    return row | {key: record.get(key) for key in SHOWN}


@functools.cache
def _setting(kind: str, configuration: str) -> dict[str, Any]:
    """Return the columns shared by records that differ only in seed and experiment."""
    run = kinds.run_class(kind).read(json.loads(configuration))
    return {key: value for key, value in run.table_row().items() if key not in kinds.scores()}


def _completed(rows: list[dict]) -> pd.DataFrame:
    """Return a table of rows with a column for every field that a run can have."""
    import pandas as pd

    table = pd.DataFrame(rows)
    dtypes, expected = {}, {"kind", "title"}
    for kind in kinds.KINDS:
        run = kinds.run_class(kind)
        hints = typing.get_type_hints(run)
        expected |= {*defaults(run), *run.accuracies, *run.correlations}
        expected |= {option for entry in run().catalogue.values() for option in entry.defaults}
        for field in defaults(run):
            for hint, dtype in DTYPES.items():
                if hints[field] in (hint, hint | None):
                    dtypes[field] = dtype
    missing = sorted(expected - {*table.columns})
    whole = table.reindex(columns=[*table.columns, *missing]).astype(dtypes)
    return whole.copy()  # in few blocks: pandas warns when a column is added to many


def parquet() -> Path:
    """Return the path of the Parquet of the tracked records."""
    return tracked_folder().with_name(PARQUET)


def write_parquet(table: pd.DataFrame) -> Path:
    """Write a whole `frame` as Parquet beside the tracked records and return the path.

    Lists and dictionaries become JSON, and so does `configuration`, which stands for `run`. The
    file states the records and the sources of this package from which it was made.
    """
    import pandas as pd

    flat = table.drop(columns="run")
    runs = [run and json.dumps(run.configuration, sort_keys=True) for run in table["run"]]
    plain = {"boolean", "string", "empty"}
    objects = [c for c in flat if pd.api.types.is_object_dtype(flat[c])]
    nested = [c for c in objects if pd.api.types.infer_dtype(flat[c], skipna=True) not in plain]
    tuples = [c for c in nested if any(isinstance(value, tuple) for value in flat[c])]
    text = {c: [None if _absent(x) else json.dumps(x) for x in flat[c]] for c in nested}
    flat = flat.assign(**text, configuration=runs)
    flat.attrs = {"of": _of(), "columns": [*table.columns], "json": nested, "tuples": tuples}
    path = parquet()
    write_atomically(path, flat.to_parquet(index=False, compression="zstd"))
    return path


def _absent(value) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _of() -> list[str]:
    """Return digests of all tracked records, which are not parsed, and of this package."""
    folder = tracked_folder()
    with_digest = (
        (stem, hashlib.sha256((folder / f"{stem}.json").read_bytes()).hexdigest())
        for stem in names(folder)
    )
    return [_digest(with_digest), source_digest()]


def read_parquet() -> pd.DataFrame | None:
    """Return the packed `frame` of all tracked records; None if it is absent or not current."""
    import pandas as pd

    path = parquet()
    if not path.exists():
        return None
    try:
        table = pd.read_parquet(path)
    except (ImportError, OSError, ValueError):  # without pyarrow, or damaged: only a copy
        return None
    about, table.attrs = table.attrs, {}
    if about.get("of") != _of():
        return None
    nested = {
        column: [from_json(x) if isinstance(x, str) else None for x in table[column]]
        for column in about["json"]
    }
    for column in about["tuples"]:
        nested[column] = [x if x is None else tuple(x) for x in nested[column]]
    chosen = [from_json(x) if isinstance(x, str) else None for x in table["configuration"]]
    runs = [one and kinds.run_class(kind).read(one) for kind, one in zip(table["kind"], chosen)]
    columns = {name: pd.Series(x, dtype=object) for name, x in (nested | {"run": runs}).items()}
    return table.assign(**columns).loc[:, about["columns"]]


DTYPES = {int: "Int64", bool: "boolean"}  # which stay what they are where a row has none


def environment(device=None) -> dict:
    """Return where and with what a run is measured: hardware, versions, digests, date (UTC)."""
    import torch

    device = torch.device("cpu" if device is None else device)
    hardware = {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    about = _processor()
    hardware |= {"vendor": about.get("vendor_id"), "family": about.get("cpu family")}
    hardware |= {name: about.get(name) for name in ("model", "stepping")}
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
        hardware["tf32"] = torch.backends.cudnn.allow_tf32  # of convolutions, at 32-true
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    if fabric := sys.modules.get("lightning_fabric"):  # also comes inside pytorch-lightning
        versions["lightning-fabric"] = fabric.__version__
    if device.type == "cuda":
        versions |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    return {
        "hardware": hardware,
        "versions": versions,
        "hnlib": source_digest(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@functools.cache
def source_digest() -> str:
    """Return 12 hexadecimal digits of the SHA-256 of all sources of this package."""
    digest, here = hashlib.sha256(), Path(__file__).resolve().parents[1]
    for path in sorted(here.rglob("*.py")):
        digest.update(
            path.relative_to(here).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()[:12]


def cpu_name() -> str:
    """Return the name of the processor."""
    return _processor().get("model name") or platform.processor() or platform.machine()


def _processor() -> dict[str, str]:
    """Return what Linux says about the first processor."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}
