"""Which runs a folder of records has, without a look at their lines.

`.index.json`, beside the lines, says of each file how far it was read and where in it which run
stands. Whatever adds records brings it up to date; a file that grew is read from there on, and one
that changed in another way is read anew.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic_core import from_json, to_json

from hnlib import _files
from hnlib.training import kinds, store
from hnlib.training.config import canonical, key

NAME = ".index.json"
FORM = 2  # of the file; of another one it is made anew
#: Fields of a run that decide, beside its size, how long an epoch takes
DECISIVE = ("dataset", "encoder", "framework", "labels", "max_steps")


class Place(NamedTuple):
    """Where a record stands, and what tells it from the replicates of its run."""

    file: str
    offset: int
    digest: str


class Cost(NamedTuple):
    """What a run took: seconds an epoch, and at most so many bytes, at which sizes, on what."""

    pace: float
    memory: float | None
    train_size: int | None  # None: all
    batch_size: int | None
    hardware: dict


@dataclass(eq=False)
class Index:
    """The runs of a folder: places by key, and costs by `setting_of`.

    What was read once is kept as long as the index, which is made anew when a file changes.
    """

    folder: Path
    places: dict[str, list[Place]]
    superseded: set[str]  # digests
    costs: dict[str, list[Cost]]
    known: dict[str, list[dict]] = field(default_factory=dict)

    def has(self, keys: Iterable[str]) -> set[str]:
        """Return the keys of runs that have a record that counts."""
        return {one for one in keys if self._places(one)}

    def find(self, keys: Iterable[str]) -> dict[str, list[dict]]:
        """Return the records that count, without their scores, replicates by date."""
        wanted = [*dict.fromkeys(keys)]
        if new := [one for one in wanted if one not in self.known]:
            places = dict.fromkeys(place for one in new for place in self._places(one))
            self.known |= {one: [] for one in new}
            for record in store.at(self.folder, [(one.file, one.offset) for one in places]):
                self.known[key(record["configuration"])].append(record)
        return {one: found for one in wanted if (found := self.known[one])}

    def _places(self, run: str) -> list[Place]:
        return [x for x in self.places.get(_short(run), ()) if x.digest not in self.superseded]


def of(folder: Path) -> Index:
    """Return the index of a folder of records."""
    return _of(folder, _stamps(folder))


def update(folder: Path) -> dict[str, dict]:
    """Read the lines added since the index was written, write it, and return it by file."""
    return _files_of(folder, _stamps(folder))


def _stamps(folder: Path) -> tuple:
    stats = [(path.name, path.stat()) for path in store.files(folder)]
    return tuple((name, one.st_size, one.st_mtime_ns) for name, one in stats)


def _files_of(folder: Path, stamps: tuple) -> dict[str, dict]:
    path, kept = folder / NAME, {}
    with suppress(OSError, ValueError, LookupError, TypeError):  # what is no index is made anew
        content = from_json(path.read_bytes())
        kept = content["files"] if content["form"] == FORM else {}
    files = {name: _read(folder / name, stamp, kept.get(name)) for name, *stamp in stamps}
    if files != kept:
        with suppress(OSError):  # where nothing can be written it is made each time
            _files.write_atomically(path, to_json({"form": FORM, "files": files}))
    return files


@functools.lru_cache(maxsize=8)
def _of(folder: Path, stamps: tuple) -> Index:
    files, known = _files_of(folder, stamps), store.environments(folder)
    places, took, superseding = defaultdict(list), [], []
    for name, file in files.items():
        store.report(folder / name, file["faults"])
        superseding += file["superseding"]
        for run, offset, digest, names, *cost in file["runs"]:
            places[run].append(Place(name, offset, digest))
            took.append(([known.get(one, {}) for one in names], *cost))
    last = {digest: why for _, digest, why in sorted(superseding, key=lambda one: one[0])}
    gone = {digest for digest, why in last.items() if why is not None}
    return Index(folder, dict(places), gone, _costs(took))


def of_records(source: Path, known: dict[str, list[dict]]) -> Index:
    """Return the index of records by `key` that were read whole, as from a Parquet."""
    places, took = {}, []
    for run, several in known.items():
        places[_short(run)] = [Place("", 0, one["digest"]) for one in several]
        for one in several:
            used = [one.get("environment", {}), *(one.get("sessions") or ())]
            took.append((used, *cost_of(one)))
    return Index(source, places, set(), _costs(took), known)


def _costs(took: Iterable[tuple]) -> dict[str, list[Cost]]:
    """Return costs by setting, from the environments and the `cost_of` each record."""
    costs = defaultdict(list)
    for used, setting, pace, memory, train_size, batch_size in took:
        if pace and used:
            peaks = [memory, *(one.get("peak_memory") for one in used)]
            most = max((one for one in peaks if one), default=None)
            hardware = used[0].get("hardware", {})
            costs[setting].append(Cost(pace, most, train_size, batch_size, hardware))
    return dict(costs)


def _read(path: Path, stamp: list[int], kept: dict | None) -> dict:
    """Return what the index has of a file, from what it had."""
    if kept and kept["stamp"] == stamp:
        return kept
    content = path.read_bytes()
    if not kept or not _grown(content, kept["stamp"][0], kept["tail"]):
        kept = {"stamp": [0, 0], "lines": 0, "runs": [], "superseding": [], "faults": []}
    file = {name: [*kept[name]] for name in ("runs", "superseding", "faults")}
    start, count = kept["stamp"][0], kept["lines"]
    for number, offset, entry in store.numbered(content[start:], store.RUN_LINE):
        if isinstance(entry, str):
            file["faults"].append([count + number, entry])
        elif "supersedes" in entry:
            file["superseding"].append([entry["date"], entry["digest"], entry["why"]])
        elif entry["kind"] != kinds.MEASUREMENT:
            place = [_short(key(entry["configuration"])), start + offset, entry["digest"]]
            used = [entry, *(entry.get("sessions") or ())]
            names = [*dict.fromkeys(one["environment"] for one in used if "environment" in one)]
            file["runs"].append([*place, names, *cost_of(entry)])
    lines = count + content[start:].count(b"\n")
    return {"stamp": stamp, "tail": _tail(content), "lines": lines} | file


def _grown(content: bytes, size: int, tail: str | None) -> bool:
    """Return whether lines were appended to a file of some size and last line."""
    return tail is not None and size < len(content) and _tail(content[:size]) == tail


def _tail(content: bytes) -> str | None:
    """Return a digest of the last line, None if it is not ended: then no line can follow it."""
    if not content.endswith(b"\n"):
        return None
    return hashlib.sha256(content[content.rfind(b"\n", 0, -1) + 1 :]).hexdigest()[:16]


def cost_of(entry: dict) -> tuple[str, float, float | None, int | None, int | None]:
    """Return a record's setting, seconds an epoch, bytes if its metrics say so, and its sizes."""
    chosen = entry["configuration"]
    pace = (entry.get("seconds") or 0) / (chosen.get("epochs") or 1)
    megabytes = entry["metrics"].get("peak_memory_mb")
    memory, sizes = megabytes and megabytes * 2**20, ("train_size", "batch_size")
    return setting_of(chosen), pace, memory, *map(chosen.get, sizes)  # pyright: ignore[reportReturnType]


def setting_of(configuration: dict) -> str:
    """Return a digest of what decides, beside its size, how long an epoch takes."""
    return _setting(to_json([configuration.get(name) for name in DECISIVE]))


@functools.cache  # few settings, many records
def _setting(values: bytes) -> str:
    return _short(canonical(from_json(values)))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
