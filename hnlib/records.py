"""The ledger of results: one JSON file per measured run, and the numbers printed in the papers beside them.

A record is a dictionary with at least `configuration` (everything that was chosen, the seed included) and `metrics`
(everything that was measured); `history`, `environment` and `seconds` are usual. Its file is named by a short hash of
the configuration, so the same run has the same name on every machine.
"""

from __future__ import annotations

import argparse
import base64
import errno
import functools
import hashlib
import json
import math
import os
import platform
import shutil
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

if TYPE_CHECKING:  # only the papers' table needs pandas; training and data do without it
    import numpy as np
    import pandas as pd

PAPER_COLUMNS = ["paper", "table", "row", "column", "dataset", "metric", "value", "spread", "note"]


def project_root() -> Path:
    """The checkout: the nearest folder above the working directory, or above this package, with a `_toc.yml`.

    Where there is none, as in a script of one's own, the working directory.
    """
    for folder in (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[1]):
        if (folder / "_toc.yml").is_file() and (folder / "notebooks").is_dir():
            return folder
    return Path.cwd()


def default_folder() -> Path:
    """`_build/results`: runs started by hand, by tests or by the default build."""
    return project_root() / "_build" / "results"


def tracked_folder() -> Path:
    """`book/results/runs`: the recorded runs that the book shows; only `--record` writes here."""
    return project_root() / "book" / "results" / "runs"


def name(configuration: dict) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the configuration's canonical JSON."""
    return hashlib.sha256(_canonical(configuration).encode()).hexdigest()[:12]


def write(record: dict, folder: Path | str | None = None, overwrite: bool = False) -> Path:
    """Write a record to `folder/NAME.json` atomically and return the path.

    A run measured a second time with the same metrics leaves the first file as it is. Other metrics under the same
    configuration are refused unless `overwrite=True`; a file whose configuration does not belong to its name always is.
    ValueError: as said, and for a record without configuration or metrics, or not expressible in JSON.
    """
    for key in ("configuration", "metrics"):
        if not isinstance(record.get(key), dict):
            raise ValueError(f"a record needs a dictionary {key!r}; this one has the keys {sorted(record)}")
    folder = default_folder() if folder is None else Path(folder)
    path = folder / f"{name(record['configuration'])}.json"
    text = _canonical(record, indent=1) + "\n"
    if path.exists():
        old = _read(path)
        if _canonical(old["configuration"]) != _canonical(record["configuration"]):
            raise ValueError(f"{path} holds another configuration than its name says; move it away")
        if not overwrite:
            if _canonical(old["metrics"]) == _canonical(record["metrics"]):
                return path
            raise ValueError(f"{path} already holds this run with other metrics; pass overwrite=True to replace it")
    write_atomically(path, text.encode())
    return path


def write_atomically(path: Path | str, data) -> None:
    """Write bytes, or call `data(temporary_path)`, then rename: the old file is intact until the new one is whole.

    OSError: a full disk, among others; it names the file and says that the old one is intact.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-",
                                         suffix=path.suffix or ".part")  # torch.save wants an ending
    os.close(handle)
    try:
        data(temporary) if callable(data) else Path(temporary).write_bytes(data)
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())  # the new name must not outlive a power cut without its contents
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp makes files only their owner can read
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch.save makes a RuntimeError of a full disk
        full = shutil.disk_usage(path.parent).free < 2**20 or getattr(error, "errno", None) == errno.ENOSPC
        if isinstance(error, RuntimeError) and not full:
            raise
        state = "the file that was there is intact" if path.exists() else "nothing was left there"
        remedy = "the disk is full: free space or choose another folder" if full else error
        raise OSError(f"{path} could not be written and {state}; {remedy}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextmanager
def alone(path: Path | str):
    """Keep other processes of this machine from making the same file while the block runs, however it ends.

    ValueError: another process is making it.
    """
    path = Path(path).resolve()
    # Locks live apart and stay: one that is deleted beside its file can be held twice.
    folder = Path(tempfile.gettempdir()) / f"hnlib-locks-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(folder / hashlib.sha256(str(path).encode()).hexdigest()[:32], timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"another process is making {path} right now; wait for it, or change the seed or the path"
                         ) from None
    try:
        yield
    finally:
        lock.release()


def load_all(folder: Path | str | None = None) -> list[dict]:
    """All records of a folder, ordered by name; an absent folder has none. ValueError names an unreadable file."""
    folder = default_folder() if folder is None else Path(folder)
    return [_read(path) for path in sorted(folder.glob("[!.]*.json"))]  # not what is being written


def pack(right) -> str:
    """Which images were right, bool [N], as text for a record: one bit an image, base64."""
    import numpy as np

    return base64.b64encode(np.packbits(np.asarray(right.cpu(), bool)).tobytes()).decode()


def unpack(text: str, n: int) -> np.ndarray:
    """What `pack` wrote about `n` images, bool [n]."""
    import numpy as np

    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=n).astype(bool)


def percent(records: list[dict], metric: str) -> np.ndarray:
    """A metric of each run, in percent."""
    import numpy as np

    return 100 * np.array([record["metrics"][metric] for record in records])


def spread(x) -> str:
    """Mean ± standard deviation over $n-1$, or the one value there is."""
    return f"{x.mean():.1f}\u00a0±\u00a0{x.std(ddof=1):.1f}" if len(x) > 1 else f"{x.mean():.1f}"


def difference(ours: list[dict], base: list[dict], metric: str = "linear") -> tuple[float, float]:
    """Mean difference of two groups of runs in percent, seed by seed where they have the same seeds; standard error.

    The error adds the variance over seeds to the binomial variance of two accuracies on finitely many test images; the
    images are the same for both, so it errs on the cautious side.
    """
    by_seed = [sorted(group, key=lambda r: r["configuration"].get("seed", 0)) for group in (ours, base)]
    paired = len({tuple(r["configuration"].get("seed") for r in group) for group in by_seed}) == 1
    a, b = (percent(group, metric) for group in by_seed)
    d = a - b if paired else a - b.mean()
    between = [d] if paired else [a, b]
    seeds = sum(x.var(ddof=1) / len(x) for x in between if len(x) > 1)
    images = sum(x.mean() * (100 - x.mean()) / ours[0]["test_images"] for x in (a, b))
    return float(d.mean()), float((seeds + images) ** 0.5)


def papers(path: Path | str | None = None) -> pd.DataFrame:
    """The numbers printed in the papers: columns paper, table, row, column, dataset, metric, value, spread, note."""
    import pandas as pd

    path = project_root() / "book" / "results" / "papers.csv" if path is None else Path(path)
    frame = pd.read_csv(path, comment="#", skipinitialspace=True)
    if list(frame.columns) != PAPER_COLUMNS:
        raise ValueError(f"{path} has the columns {list(frame.columns)}; expected {PAPER_COLUMNS}")
    return frame


def environment(device=None) -> dict:
    """Where and with what a run was measured: hardware, versions, digest of the library's sources, date (UTC)."""
    import torch

    device = torch.device("cpu" if device is None else device)
    hardware = {"cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
    versions = {"python": platform.python_version()}
    for package in ("torch", "torchvision", "torch-geometric", "lightning-fabric", "numpy", "scikit-learn"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {"hardware": hardware, "versions": versions, "hnlib": source_digest(),
            "date": datetime.now(UTC).isoformat(timespec="seconds")}


@functools.cache
def source_digest() -> str:
    """The first 12 hexadecimal digits of the SHA-256 over all sources of this package."""
    digest, here = hashlib.sha256(), Path(__file__).resolve().parent
    for path in sorted(here.rglob("*.py")):
        digest.update(path.relative_to(here).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def main(argv: list[str] | None = None) -> int:
    """`hnlib results [--folder …]`: the runs on disk; accuracies in percent over the seeds of each setting."""
    from hnlib import methods, training  # floors above, which alone know what is unusual about a run

    parser = argparse.ArgumentParser(prog="hnlib results", description="Print the recorded runs as a table.")
    parser.add_argument("--folder", type=Path, help=f"default: {tracked_folder()} and {default_folder()}")
    args = parser.parse_args(argv)
    for folder in [args.folder] if args.folder else [tracked_folder(), default_folder()]:
        if args.folder and not folder.is_dir():
            raise ValueError(f"{folder} is not a folder; give the one the records are in")
        groups: dict[str, list[dict]] = {}
        for record in load_all(folder):
            c = record["configuration"]
            if {"linear", "svm"} & record["metrics"].keys() and {"image_shape", "graphs"} & record.keys():
                options = methods.changed(c["method"], c["options"], c.get("framework"))
                named = " ".join([str(c["method"] or "untrained"), *(f"{k}={v}" for k, v in options.items())])
                groups.setdefault(f"{training.setting(record)}: {named}", []).append(record)
        print(f"{folder}: {sum(map(len, groups.values()))} trained encoders")
        for name, runs in sorted(groups.items()):
            scores = ", ".join(f"{metric} {spread(percent(runs, metric))}" for metric in ("knn", "linear", "svm")
                               if metric in runs[0]["metrics"])
            print(f"{name}: {scores} ({len(runs)} run{'s' * (len(runs) > 1)})")
    return 0


def _canonical(value, indent=None) -> str:
    separators = (",", ": ") if indent else (",", ":")
    try:
        return json.dumps(_finite(value), sort_keys=True, ensure_ascii=False, indent=indent, separators=separators,
                          allow_nan=False)
    except TypeError as error:
        raise ValueError(f"a record holds what JSON cannot: {error}") from error


def _finite(value):
    """JSON has no NaN or infinity: what could not be measured is null, an infinite choice is a word."""
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def _read(path: Path) -> dict:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record["configuration"], dict) or not isinstance(record["metrics"], dict):
            raise TypeError("configuration and metrics must be dictionaries")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a whole record ({error}); delete it and repeat the run") from error
    return record


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
