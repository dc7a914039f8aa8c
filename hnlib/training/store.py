"""Records on disk: a folder with a file for each experiment, and in it a line for each run.

- `EXPERIMENT.jsonl`: run, kind, configuration, metrics, environment, date, seconds, digest
- `EXPERIMENT.scores.jsonl`: digest, and the scores by example and the curves
- `environments.jsonl`: hardware, versions and digests of sources, which records name by `id`

Files only grow. A run made again is a replicate: a line more. Superseding is a line, too. Tracked
folders change by `add`, `supersede` and `compact`; they keep a digest of each line in
`digests.jsonl`, and scores not as lines but as Parquet (`hnlib.training.parts`).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic_core import SchemaValidator, ValidationError, from_json  # three times as fast as json
from pydantic_core import core_schema as schema

from hnlib import _files
from hnlib.training import kinds, parts
from hnlib.training.config import canonical, name

SCORES = ("history", "losses", "correct")  # what stands apart
ENVIRONMENTS, DIGESTS = "environments.jsonl", "digests.jsonl"
LOST = "{} has lost or changed {} of the lines that were added: restore it from git"
UNREADABLE = "{} cannot be read and is left out ({}); run again what it recorded"
WITHOUT = "{} has lines of {} records whose scores are gone: restore its Parquet files from git"
CHANGED = "{} has {} records that were changed since they were made: restore it from git"
ADD = "records come by `hnlib results --add FOLDER`, which also ends an adding that was interrupted"
WON = "{} has {} lines that were not added: " + ADD
ORPHANS = "{} has scores of {} records that have no line: " + ADD


def form(needs: dict[str, Any], may: dict[str, Any] | None = None) -> schema.CoreSchema:
    """Return the schema of an object with fields that it needs or may have, and any others."""
    fields = {key: schema.typed_dict_field(one) for key, one in needs.items()}
    for key, one in (may or {}).items():
        fields[key] = schema.typed_dict_field(one, required=False)
    return schema.typed_dict_schema(fields, extra_behavior="allow")


def _without_infinity(metrics: dict) -> dict:
    if math.inf in metrics.values() or -math.inf in metrics.values():  # 1e400 is read as one
        raise ValueError("metrics must be finite")
    return metrics


def _tag(entry) -> str:
    return "superseding" if isinstance(entry, dict) and "supersedes" in entry else "run"


TEXT, OBJECT = schema.str_schema(strict=True), schema.is_instance_schema(dict)
NUMBER = schema.float_schema(strict=True, allow_inf_nan=False)
#: What the lines of each file have
_run = form(
    {
        "run": TEXT,
        "digest": TEXT,
        "kind": schema.no_info_after_validator_function(kinds.check, TEXT),
        "configuration": OBJECT,
        "metrics": schema.no_info_after_validator_function(_without_infinity, OBJECT),
    },
    {
        "environment": TEXT,
        "date": TEXT,
        "seconds": schema.nullable_schema(NUMBER),
        "sessions": schema.nullable_schema(schema.list_schema(form({"environment": TEXT}))),
    },
)
_superseding = form(
    {"supersedes": TEXT, "digest": TEXT, "why": schema.nullable_schema(TEXT), "date": TEXT}
)
_both = {"run": _run, "superseding": _superseding}
RUN_LINE = SchemaValidator(schema.tagged_union_schema(_both, _tag))
SCORES_LINE = SchemaValidator(form({"digest": TEXT, "scores": OBJECT}))
ENVIRONMENT_LINE = SchemaValidator(form({"id": TEXT}, {"hardware": OBJECT, "versions": OBJECT}))
DIGESTS_LINE = SchemaValidator(form({"file": TEXT, "lines": schema.list_schema(TEXT)}))


def append(record: dict, folder: Path | str) -> Path:
    """Append a record to the files of a folder and return the one that has its line.

    Records of several processes all stay: one writes at a time, and each line in one call. Raises
    ValueError if the record does not name its kind.
    """
    kinds.check(record.get("kind"))
    folder = Path(folder)
    with _files.lock(folder / "records", wait=True):
        _append([record], folder)
    return file_of(folder, record["configuration"])


def _append(several: Iterable[dict], folder: Path, scores_as_parts: bool = False) -> None:
    """Append records to the files of a folder that is locked."""
    mains, scores = defaultdict(list), defaultdict(dict)
    environments: dict[str, dict] = {}
    for record in several:
        digest, path = digest_of(record), file_of(folder, record["configuration"])
        main, used = _line(record, digest)
        mains[path].append(main)
        if own := {part: record[part] for part in SCORES if part in record}:
            scores[path][digest] = own
        environments |= used
    known = {one["id"] for one in entries(folder / ENVIRONMENTS, ENVIRONMENT_LINE)}
    new = [line_of(one) for id_, one in environments.items() if id_ not in known]
    # what a line needs stands before it
    for path, by_digest in scores.items():
        if scores_as_parts:
            parts.write(path, by_digest)
        else:
            every = ({"digest": one, "scores": own} for one, own in by_digest.items())
            write(_scores_path(path), [*map(line_of, every)])
    for path, lines in [(folder / ENVIRONMENTS, new), *mains.items()]:
        write(path, lines)


def file_of(folder: Path, configuration: dict) -> Path:
    """Return the file of the records of an experiment."""
    heading = str(configuration.get("experiment", "measurements"))
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", heading)[:100]
    # these two files are the store's own
    return folder / f"{stem}{'_' * (stem in ('environments', 'digests'))}.jsonl"


def _scores_path(path: Path) -> Path:
    return path.with_suffix(".scores.jsonl")


def write(path: Path, lines: list[bytes]) -> None:
    """Append lines to a file; an unfinished line before them is ended first."""
    if not lines:
        return
    try:
        with open(path, "ab+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            ends = file.read(1) in (b"", b"\n")
            file.write(b"\n" * (not ends) + b"".join(lines))
    except OSError as error:
        raise OSError(f"{path} could not be written ({error})") from error


def line_of(entry: dict | list) -> bytes:
    """Return what `entries` reads back."""
    return (canonical(entry) + "\n").encode()


def _line(record: dict, digest: str) -> tuple[bytes, dict[str, dict]]:
    """Return the line of a record, and its environments by their id."""
    main = {k: v for k, v in record.items() if k not in (*SCORES, "environment", "sessions")}
    main |= {"run": name(record["configuration"]), "digest": digest}
    used: dict[str, dict] = {}

    def reference(environment: dict, *own: str) -> dict:
        rest = {k: v for k, v in environment.items() if k not in own}
        id_ = hashlib.sha256(canonical(rest).encode()).hexdigest()[:8]
        used[id_] = rest | {"id": id_}
        return {k: environment[k] for k in own if k in environment} | {"environment": id_}

    if "environment" in record:
        main |= reference(record["environment"], "date")
    if "sessions" not in record:  # before there were any
        main["sessions"] = None
    elif record["sessions"] != _usual_sessions(record):
        main["sessions"] = [reference(one, "date", "seconds") for one in record["sessions"]]
    return line_of(main), used


def _usual_sessions(record: dict) -> list[dict]:
    """Return the sessions of a record that was made in one."""
    return [record["environment"] | {"seconds": record.get("seconds")}]


def digest_of(record: dict) -> str:
    """Return 12 hexadecimal digits that identify a record among the replicates of its run."""
    content = {k: v for k, v in record.items() if k not in ("run", "superseded")}
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:12]


def files(folder: Path) -> list[Path]:
    """Return the files of a folder that have lines of runs."""
    apart = {folder / ENVIRONMENTS, folder / DIGESTS, *folder.glob("*.scores.jsonl")}
    return sorted({*folder.glob("*.jsonl")} - apart)


def read(folder: Path | str) -> list[dict]:
    """Return the records of a folder without their scores, ordered by run, date and digest.

    Each also has `run`, its name, `digest`, and `file`, where it stands; `superseded` says why a
    record does not count. `complete` adds the scores. The same record in two lines counts once.
    From the Parquet of `records.write_parquet` records come whole.
    """
    folder = Path(folder)
    if folder.suffix == ".parquet":
        return _read_parquet(folder)
    found: dict[str, dict] = {}
    lines = [(path, one) for path in files(folder) for one in entries(path, RUN_LINE)]
    # after the lines that name them: others may be writing
    superseding, known = [], environments(folder)
    for path, entry in lines:
        if "supersedes" in entry:
            superseding.append(entry)
        else:
            found[entry["digest"]] = _placed(entry, path, known)
    for entry in sorted(superseding, key=lambda one: one["date"]):
        if (record := found.get(entry["digest"])) is not None:
            record["superseded"] = entry["why"]
            if entry["why"] is None:  # it counts again
                del record["superseded"]
    return sorted(found.values(), key=_order)


def at(folder: Path, places: Iterable[tuple[str, int]]) -> list[dict]:
    """Return the records at places (file, offset) of a folder, as `read` returns them."""
    found, known = {}, environments(folder)
    for one, several in itertools.groupby(sorted(places), key=lambda place: place[0]):
        with open(folder / one, "rb") as file:
            for _, offset in several:
                file.seek(offset)
                entry = RUN_LINE.validate_python(from_json(file.readline(), allow_inf_nan=False))
                found[entry["digest"]] = _placed(entry, folder / one, known)
    return sorted(found.values(), key=_order)


def environments(folder: Path) -> dict[str, dict]:
    """Return the environments of a folder by the names that lines have for them."""
    return {one.pop("id"): one for one in entries(folder / ENVIRONMENTS, ENVIRONMENT_LINE)}


def _placed(entry: dict, path: Path, known: dict[str, dict]) -> dict:
    """Return a record from its line, with its environment and those of its sessions in full."""

    def whole(part: dict, *own: str) -> dict:
        if (id_ := part["environment"]) not in known:
            missing = f"environment {id_} of {ENVIRONMENTS}"
            raise ValueError(f"{path} has a line without {missing!r}; restore the file")
        return known[id_] | {k: part[k] for k in own if k in part}

    if "environment" in entry:
        entry["environment"] = whole(entry, "date")
        entry.pop("date", None)
    if sessions := entry.get("sessions"):
        entry["sessions"] = [whole(session, "date", "seconds") for session in sessions]
    return entry | {"file": path}


def _read_parquet(path: Path) -> list[dict]:
    import pandas as pd

    rows = pd.read_parquet(path, columns=["record", "record_json"])
    whole = ({"run": run} | from_json(text) for run, text in zip(rows.record, rows.record_json))
    return [record | {"digest": digest_of(record)} for record in whole]


def _order(record: dict) -> tuple[str, str, str]:
    return record["run"], record.get("environment", {}).get("date", ""), record["digest"]


def complete(several: Iterable[dict]) -> list[dict]:
    """Return records as they were measured, with scores, curves and sessions.

    Each file of scores is read once. A record without its scores is reported.
    """
    several = list(several)
    wanted: dict[Path, set[str]] = defaultdict(set)
    for record in several:
        if "file" in record:
            wanted[record["file"]].add(record["digest"])
    scores: dict[str, dict] = {}
    for path, digests in wanted.items():
        for one in entries(_scores_path(path), SCORES_LINE):
            scores[one["digest"]] = one["scores"]
        for part in parts.of(path):
            scores |= _reading(parts.read, part, digests)
    return [_whole(record, scores.get(record.get("digest", ""))) for record in several]


def _reading(read, part: Path, *more):
    """Return what `read` reads of a part, nothing of a damaged one, which is reported."""
    try:
        return read(part, *more)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        warnings.warn(UNREADABLE.format(part, " ".join(str(error).split())), stacklevel=4)
        return {}


def _whole(record: dict, scores: dict | None) -> dict:
    whole = {k: v for k, v in record.items() if k not in ("run", "digest", "file")}
    if "file" not in record:  # nothing stands apart
        return whole
    if "sessions" not in whole:
        whole["sessions"] = _usual_sessions(whole)
    if whole["sessions"] is None:
        del whole["sessions"]
    if scores is None and digest_of(whole) != record["digest"]:
        warnings.warn(
            f"the scores of {record['digest']} in {record['file']} are gone", stacklevel=3
        )
    return whole | (scores or {})


def entries(path: Path, form: SchemaValidator) -> Iterator[Any]:
    """Yield the lines of a file; one that has not this form is reported and left out.

    A process that is killed may leave such a line.
    """
    content = path.read_bytes() if path.exists() else b""
    for number, _, entry in numbered(content, form):
        if isinstance(entry, str):
            report(path, [(number, entry)])
        else:
            yield entry


def numbered(content: bytes, form: SchemaValidator) -> Iterator[tuple[int, int, Any]]:
    """Yield number, offset and entry of each line, or what is wrong with it as text."""
    offset = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            try:
                entry = form.validate_python(from_json(line, allow_inf_nan=False))
            except ValueError as error:
                entry = _reason(error)
            yield number, offset, entry
        offset += len(line) + 1


def report(path: Path, faults: Iterable[tuple[int, str]]) -> None:
    """Warn of lines that are left out."""
    for number, reason in faults:
        warnings.warn(UNREADABLE.format(f"line {number} of {path}", reason), stacklevel=4)


def _reason(error: ValueError) -> str:
    """Return what is wrong with a line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"][1:] or first["loc"]))
    return f"{place}: {first['msg']}, got {first['input']!r:.60}"


def add(several: Iterable[dict], folder: Path) -> int:
    """Append the records that a tracked folder lacks, in their order; return how many they are.

    Raises ValueError, and adds nothing, if a line of the folder was lost or changed.
    """
    new = {digest_of(one): one for one in several}

    def order(digest: str) -> tuple:
        date = new[digest].get("environment", {}).get("date", "")
        return name(new[digest]["configuration"]), date, digest

    with _files.lock(folder / "records", wait=True), _counted(folder):
        for record in read(folder):
            new.pop(record["digest"], None)
        _append([new[digest] for digest in sorted(new, key=order)], folder, scores_as_parts=True)
    return len(new)


def supersede(records: Iterable[dict], why: str | None, date: str, folder: Path) -> None:
    """Say, in a line, why records of a tracked folder do not count; None: they count again."""
    lines = defaultdict(list)
    for record in records:
        entry = {"supersedes": record["run"], "digest": record["digest"], "why": why, "date": date}
        lines[record["file"]].append(line_of(entry))
    with _files.lock(folder / "records", wait=True), _counted(folder):
        for path, its in lines.items():
            write(path, its)


def compact(folder: Path) -> int:
    """Join the scores of each experiment of a tracked folder to one part; return how many went."""
    before = 0
    with _files.lock(folder / "records", wait=True):
        _refuse_losses(folder)
        for path in files(folder):
            several = parts.of(path)
            if len(several) > 1:
                scores: dict[str, dict] = {}
                for part in several:
                    scores |= parts.read(part, {*parts.digests(part)})
                whole = parts.write(path, scores)
                for part in several:
                    if part != whole:
                        part.unlink()
                        before += 1
    return before


def _changes(folder: Path) -> Iterator[tuple[Path, set[str], set[str]]]:
    """Yield each file of a tracked folder, and the digests of the lines that it lost and won.

    Counted lines are a set: two branches that added some of the same lines merge.
    """
    counted: dict[str, set[str]] = defaultdict(set)
    for entry in entries(folder / DIGESTS, DIGESTS_LINE):
        counted[entry["file"]].update(entry["lines"])
    for file in sorted({path.name for path in files(folder)} | counted.keys()):
        path = folder / file
        lines = path.read_bytes().splitlines() if path.exists() else ()
        there = {hashlib.sha256(line).hexdigest()[:12] for line in lines if line}
        yield path, counted[file] - there, there - counted[file]


def _without_scores(folder: Path) -> Iterator[tuple[Path, list[dict], set[str]]]:
    """Yield each file of a tracked folder, its records without scores, and scores without line."""
    records: dict[Path, list[dict]] = defaultdict(list)
    for record in read(folder):
        records[record["file"]].append(record)
    apart = map(parts.lines_of, folder.glob("*.scores.*.parquet"))
    for path in sorted({*records, *apart}):
        have = {digest for part in parts.of(path) for digest in _reading(parts.digests, part)}
        own = {record["digest"]: record for record in records[path]}
        without = [record for digest, record in own.items() if digest not in have]
        with warnings.catch_warnings(action="ignore"):
            whole = zip(without, complete(without))
            lost = [one for one, more in whole if digest_of(more) != one["digest"]]
        yield path, lost, have - own.keys()


def _refuse_losses(folder: Path) -> None:
    """Raise ValueError if a line that was counted, or its scores, are gone."""
    for path, lost, _ in _changes(folder):
        if lost:
            raise ValueError(LOST.format(path, len(lost)))
    for path, lost, _ in _without_scores(folder):
        if lost:
            raise ValueError(WITHOUT.format(path, len(lost)))


@contextmanager
def _counted(folder: Path) -> Iterator[None]:
    """Count the lines that the block adds; ValueError if one that was counted is gone."""
    _refuse_losses(folder)
    yield
    new = {path.name: sorted(won) for path, _, won in _changes(folder) if won}
    write(folder / DIGESTS, [line_of({"file": file, "lines": won}) for file, won in new.items()])


def altered(folder: Path) -> list[str]:
    """Return a sentence for each way in which a file of a tracked folder is not as it was added.

    It lost, changed or won lines or scores. All records are read, and their digests made again.
    """
    said = [
        LOST.format(path, len(lost)) if lost else WON.format(path, len(won))
        for path, lost, won in _changes(folder)
        if lost or won
    ]
    changed = Counter()
    for path, lost, orphans in _without_scores(folder):
        said += [WITHOUT.format(path, len(lost))] * bool(lost)
        said += [ORPHANS.format(path, len(orphans))] * bool(orphans)
    several = read(folder)
    for record, whole in zip(several, complete(several)):
        changed[record["file"]] += (
            any(map(whole.get, SCORES)) and digest_of(whole) != record["digest"]
        )
    return said + [CHANGED.format(path, count) for path, count in changed.items() if count]
