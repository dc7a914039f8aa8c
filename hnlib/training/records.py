"""The ledger of results: what every recorded run has, and all of them as one table.

A record is a dictionary with at least `configuration` (everything that was chosen, the seed
included) and `metrics` (everything that was measured); `kind`, `history`, `environment` and
`seconds` are usual. It is named by a short hash of the configuration, so the same run has the same
name on every machine. `hnlib.training.store` keeps them.
"""

from __future__ import annotations

import base64
import functools
import gc
import hashlib
import json
import os
import platform
import sys
import typing
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from hnlib import _files
from hnlib._files import project_root
from hnlib.training import index, kinds, store
from hnlib.training.config import canonical, defaults, key, name

__all__ = ["frame"]

if TYPE_CHECKING:  # training needs no pandas
    import numpy as np
    import pandas as pd

PACKAGES = ("torch", "torchvision", "torch-geometric", "lightning-fabric", "numpy", "scikit-learn")
PACKAGES += ("tokenizers",)
#: All of them in one file, for those without a checkout
PARQUET = "records.parquet"
#: Parts of a record that are a column each, as they are
SHOWN = ("test_images", "graphs", "sentences", "judged")
#: Types of fields that stay what they are where a row has none
DTYPES = {int: "Int64", bool: "boolean"}
#: Digest of each file that this process has read, by its path in the checkout
DEPENDENCIES: dict[str, str] = {}
#: Names of the runs whose records this process has used; "*" stands for all of a folder
USED: set[str] = set()
#: What each experiment that was trained or recalled here has changed, and where it was made
PLANNED: dict[str, dict[str, Any]] = {}


def default_folder() -> Path:
    """Return the folder to which every run appends its record."""
    return project_root() / "_build" / "results"


def tracked() -> Path:
    """Return where the tracked records are: a folder, or the Parquet of all of them.

    That is `$HNLIB_RECORDS`, else the checkout's folder, else `records.parquet` in the working
    directory. Only `hnlib results --add` changes the folder.
    """
    if chosen := os.environ.get("HNLIB_RECORDS"):
        path = Path(chosen).expanduser().resolve()
        if path.is_dir() or (path.is_file() and path.suffix == ".parquet"):
            return path
        raise ValueError(f"$HNLIB_RECORDS is {chosen}, which is neither a folder nor a Parquet")
    for path in (project_root() / _files.EVIDENCE / "records", Path(PARQUET).resolve()):
        if path.exists():
            return path
    raise ValueError(
        f"there are no recorded runs: neither a checkout around {Path.cwd()} nor {PARQUET} in it; "
        "put that file, which the book links, beside the notebook, or name it in $HNLIB_RECORDS"
    )


def load_all(source: Path | str) -> list[dict]:
    """Return all records of a folder, with their scores, ordered by name and date."""
    return store.complete(store.read(source))


def depend(path: Path) -> None:
    """Note that a chapter reads a file, or all files of a folder: it is stale when they change."""
    root = project_root()
    if path.is_relative_to(root):
        DEPENDENCIES[path.relative_to(root).as_posix()] = content_digest(path)


def content_digest(path: Path) -> str:
    """Return a digest of a file, or of the records of a folder."""
    of_records = (*path.glob("*.jsonl"), *path.glob("*.parquet"))
    files = of_records if path.is_dir() else [path] * path.exists()
    return _digest(files, path.parent)


def _digest(files: Iterable[Path], folder: Path) -> str:
    """Return the SHA-256 of files and of their paths in a folder."""
    digest = hashlib.sha256()
    for one in sorted(files):
        place = one.relative_to(folder).as_posix()
        digest.update(place.encode() + b"\0" + one.read_bytes() + b"\0")
    return digest.hexdigest()


def pack(right) -> str:
    """Encode which examples were right, bool [N], as text: one bit for each, base64."""
    import numpy as np

    return base64.b64encode(np.packbits(np.asarray(right.cpu(), bool)).tobytes()).decode()


def unpack(text: str, n: int) -> np.ndarray:
    """Decode what `pack` wrote about `n` examples, bool [n]."""
    import numpy as np

    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=n).astype(bool)


def add(folder: Path) -> tuple[int, int]:
    """Add a folder's records to the tracked ones; return how many were new, of how many.

    Read are files of the store, and files of one record each, as an earlier version wrote them.
    Raises ValueError, and adds nothing, if one is malformed or there is none.
    """
    if not (tracked_folder := tracked()).is_dir():
        raise ValueError(f"{tracked_folder} is not a folder; records are added in a checkout")
    found, several = store.read(folder), {}
    for one, whole in zip(found, store.complete(found)):
        if "file" in one and store.digest_of(whole) != one["digest"]:
            raise ValueError(
                f"{one['file']} has the record {one['run']} changed, or without its scores, and "
                "none is added; copy the whole folder again"
            )
        several[f"{one.get('file', folder)}, {one['digest']}"] = whole
    for path in sorted(folder.glob("[!.]*.json")) if folder.is_dir() else ():
        several[str(path)] = path
    if not several:
        raise ValueError(f"{folder} has no records: neither EXPERIMENT.jsonl nor NAME.json")
    for place, record in several.items():
        try:
            if isinstance(record, Path):
                record = several[place] = json.loads(record.read_text("utf-8"))
            kinds.check(record.get("kind"))
            if record["kind"] != kinds.MEASUREMENT:
                _row(record, _identity(record))  # as `frame` reads it
        except (ValueError, TypeError, LookupError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{place} has a malformed record, none is added: {reason}") from error
    new = store.add(several.values(), tracked_folder)
    index.update(tracked_folder)
    return new, len(several)


def append(record: dict, folder: Path | str) -> Path:
    """Append a record to a folder, as `store.append`, and to the index beside its lines."""
    path = store.append(record, folder)
    index.update(path.parent)
    return path


def indices(own: bool = True) -> tuple[index.Index, ...]:
    """Return which runs the tracked records have, and, if `own`, those of this machine."""
    folder = default_folder()
    return tuple(map(index_of, [tracked(), *[folder] * (own and folder.is_dir())]))


def index_of(source: Path) -> index.Index:
    """Return which runs a folder or a Parquet of records has."""
    if source.is_dir():
        return index.of(source)
    return _index_of_parquet(source, source.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _index_of_parquet(path: Path, changed: int) -> index.Index:
    return index.of_records(path, by_key(path))


def by_key(source: Path | None = None) -> dict[str, list[dict]]:
    """Return the records of runs by `key`, those of a folder or the tracked ones, without scores.

    Replicates follow the first, by date.
    """
    found = defaultdict(list)
    for record in store.read(source or tracked()):
        if "superseded" not in record and record["kind"] != kinds.MEASUREMENT:
            found[key(record["configuration"])].append(record)
    return dict(found)


def frame(source: Path | str | list[dict] | None = None, scores: bool = False) -> pd.DataFrame:
    """Return the records of runs as a table: `frame().query("method == 'hcl' and beta == 1")`.

    Columns: `record` (its name), `kind` (a key of `kinds.KINDS`), every field of runs of these
    kinds, every option of their methods and every metric under its name; `seconds`, `date`,
    `hardware`; as they are in the record, `test_images`, `graphs`, `sentences`, `judged` (examples
    of a task), `metrics`, `environment`, and with `scores` also `history`, `losses`, `correct`; and
    `run` itself. Several values are one word: `schedule == "beta=0.0:4.0:5"`.

    Runs whose configurations differ in `experiment` alone count as one. Of replicates the first is
    taken; superseded records are left out. `source` is a folder (default: the tracked one) or a
    list of records.
    """
    if source is None:
        depend(source := tracked())
        USED.add("*")
    found: dict[tuple, dict] = {}
    gc.disable()  # it would search all records for cycles, which have none, a quarter of the time
    try:
        for record in source if isinstance(source, list) else store.read(source):
            if "superseded" not in record and record["kind"] != kinds.MEASUREMENT:
                found.setdefault(_identity(record), record)
        return _table(found.values(), found, scores)
    finally:
        gc.enable()


def _identity(record: dict) -> tuple[str, bytes, int]:
    """Return kind, setting and seed, which identify a run whatever experiment it was made for.

    The setting is JSON of everything else that was chosen.
    """
    chosen = record["configuration"]
    rest = {key: chosen[key] for key in sorted(chosen) if key not in ("experiment", "seed")}
    nested = {key: dict(sorted(x.items())) for key, x in rest.items() if isinstance(x, dict)}
    return record["kind"], to_json(rest | nested), chosen["seed"]


def _table(several: Iterable[dict], identities: Iterable, scores: bool = False) -> pd.DataFrame:
    """Return a table of records, given the identity of each."""
    import pandas as pd

    rows = [_row(*pair) for pair in zip(several, identities)]
    if scores:
        for row, whole in zip(rows, store.complete(several)):
            row |= {part: whole.get(part) for part in store.SCORES}
    table = pd.DataFrame(rows)
    # a column for every field that a run of these kinds can have
    dtypes, expected = {}, {"kind", *(store.SCORES if scores else ())}
    for kind in dict.fromkeys(row["kind"] for row in rows) or kinds.KINDS:
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


def _row(record: dict, identity: tuple[str, bytes, int]) -> dict[str, Any]:
    """Return the row of a record."""
    run, shared = _setting(*identity[:2])
    chosen, metrics = record["configuration"], record["metrics"]
    environment = record.get("environment", {})
    hardware = environment.get("hardware", {})
    threads = hardware.get("threads", "?")
    cpu = f"{hardware.get('cpu', '')}, {threads} thread{'' if threads == 1 else 's'}"
    named = {"experiment": chosen["experiment"], "seed": chosen["seed"]}
    return {
        **shared,
        **{key: value for key, value in metrics.items() if not isinstance(value, dict)},
        **named,
        "run": run.renamed(**named),
        "record": record.get("run") or name(chosen),
        "kind": record["kind"],
        "seconds": record.get("seconds"),
        "date": environment.get("date", "")[:10],
        "hardware": hardware.get("gpu") or cpu,
        "metrics": metrics,
        "environment": environment,
        **{key: record.get(key) for key in SHOWN},
    }


@functools.cache
def _setting(kind: str, setting: bytes) -> tuple[Any, dict[str, Any]]:
    """Return a run and the columns that its setting determines."""
    recorded = from_json(setting)
    run = kinds.run_class(kind).read(recorded)
    options = (run.entry.defaults if run.entry else {}) | run.options
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    shown = options | run.display_values() | {"method": recorded["method"]}
    apart = {"experiment", "seed", "transfer"}  # of its own record; a metric of sentences
    return run, {k: v for k, v in shown.items() if k not in apart}


def write_parquet(path: Path) -> None:
    """Write all tracked records of runs as one Parquet.

    Its columns are those of `frame`, lists as JSON; `counts` says whether `frame` takes the record,
    `superseded` why not, and `record_json`, which `store.read` reads, is all of it.
    """
    import pandas as pd

    several = [one for one in load_all(tracked()) if one["kind"] != kinds.MEASUREMENT]
    identities = [_identity(record) for record in several]
    table = _table(several, identities).drop(columns=["run", "environment", "metrics"])
    table["superseded"] = [record.get("superseded") for record in several]
    aside = table["superseded"].notna()
    table["counts"] = ~aside & ~pd.Series(list(zip(aside, identities)), table.index).duplicated()
    table["record_json"] = [canonical(record) for record in several]
    plain = ("string", "integer", "floating", "boolean", "empty")
    objects = [c for c in table if pd.api.types.is_object_dtype(table[c])]
    nested = [c for c in objects if pd.api.types.infer_dtype(table[c], skipna=True) not in plain]
    text = {c: table[c].map(json.dumps, na_action="ignore") for c in nested}
    _files.write_atomically(path, table.assign(**text).to_parquet(index=False, compression="zstd"))


def environment(device=None) -> dict:
    """Return where and with what a run is measured: hardware, versions, digests, date (UTC)."""
    import torch

    device = torch.device("cpu" if device is None else device)
    about = _processor()
    cpu = about.get("model name") or platform.processor() or platform.machine()
    hardware = {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
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
    here = Path(__file__).resolve().parents[1]
    return _digest(here.rglob("*.py"), here)[:12]


def _processor() -> dict[str, str]:
    """Return what Linux says about the first processor."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}
