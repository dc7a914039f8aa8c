"""Scores and curves of tracked records as Parquet: a row a run, a column of lists a metric.

`EXPERIMENT.scores.DIGEST.parquet` is a part: the runs that were added together; its own content has
that digest. A row is found by `digest`, that of its record. Columns: `losses`; `history.NAME`, a
value an evaluation; `scores.METRIC`, a value an example; `bits.METRIC`, whether each example was
right (`numpy.unpackbits`); and `rest`, JSON of what fits none of these.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from hnlib import _files
from hnlib.training.config import canonical

REST = "rest"
PAGE = 2**24  # bytes: what compresses well together stands together
LARGEST = 2**27  # values of a part: twenty times what the largest of the book has


def of(lines: Path) -> list[Path]:
    """Return the parts of the file that has an experiment's lines."""
    return sorted(lines.parent.glob(f"{lines.stem}.scores.*.parquet"))


def lines_of(part: Path) -> Path:
    """Return the file whose lines a part belongs to."""
    return part.with_name(part.name.partition(".scores.")[0] + ".jsonl")


def write(lines: Path, scores: dict[str, dict]) -> Path:
    """Write the scores of records, by digest, as one part, which is on the disk on return."""
    pyarrow, parquet = _pyarrow()
    rows = [_columns(one) for one in scores.values()]
    forms: dict[str, set] = defaultdict(set)
    for row in rows:
        for column, (form, _) in row.items():
            forms[column].add(form)
    float_ = pyarrow.float64()
    types = {
        "floats": pyarrow.list_(float_),
        "integers": pyarrow.list_(pyarrow.int64()),
        "lists": pyarrow.list_(pyarrow.list_(float_)),
        "bits": pyarrow.binary(),
    }
    arrays = {"digest": pyarrow.array([*scores])}
    apart = sorted(
        column for column, found in forms.items() if found - {"rest"} and len(found) == 1
    )
    for column in apart:
        (form,) = forms[column]
        values = [row[column][1] if column in row else None for row in rows]
        arrays[column] = pyarrow.array(values, types[form])
    left = [{k: value for k, (_, value) in row.items() if k not in arrays} for row in rows]
    arrays[REST] = pyarrow.array([canonical(one) if one else None for one in left])
    sink, packed = pyarrow.BufferOutputStream(), dict(compression="zstd", compression_level=19)
    parquet.write_table(pyarrow.table(arrays), sink, data_page_size=PAGE, **packed)
    content = sink.getvalue().to_pybytes()
    part = lines.with_name(f"{lines.stem}.scores.{_digest(content)}.parquet")
    _files.write_atomically(part, content, synced=True)
    return part


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _table(part: Path, **which):
    """Return the table of a part; ValueError if its content was changed."""
    pyarrow, parquet = _pyarrow()
    content = part.read_bytes()
    if part.name.split(".")[-2] != _digest(content):
        raise ValueError("its content has not the digest in its name: restore it from git")
    about = parquet.read_metadata(pyarrow.BufferReader(content))
    groups = (about.row_group(i) for i in range(about.num_row_groups))
    values = sum(x.column(i).num_values for x in groups for i in range(x.num_columns))
    if values > LARGEST:
        raise ValueError(f"it has {values:,} values, more than {LARGEST:,}")
    return parquet.read_table(pyarrow.BufferReader(content), **which)


def digests(part: Path) -> list[str]:
    """Return the digests of a part's rows; OSError or ValueError if it cannot be read."""
    return _table(part, columns=["digest"])["digest"].to_pylist()


def read(part: Path, wanted: set[str]) -> dict[str, dict]:
    """Return the scores of a part's records by digest; OSError or ValueError if it is damaged."""
    kept = [row for row, digest in enumerate(digests(part)) if digest in wanted]
    if not kept:
        return {}
    table = _table(part).take(kept).combine_chunks()
    columns = {name: _values(table[name]) for name in table.column_names}
    rest = [json.loads(text) if text else {} for text in columns.pop(REST)]
    found = {}
    for row, digest in enumerate(columns.pop("digest")):
        here = {name: values[row] for name, values in columns.items() if values[row] is not None}
        found[digest] = _scores(here | rest[row])
    return found


def _pyarrow():
    """Return the library and its module of Parquet."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        text = (
            "the scores of tracked records are Parquet; pip install 'hnlib[notebooks]' to read them"
        )
        raise ModuleNotFoundError(text, name="pyarrow") from None
    return pyarrow, parquet


def _values(column) -> list:
    """Return the values of a column as lists, numbers, text or bytes."""
    pyarrow, _ = _pyarrow()
    (array,) = column.chunks or [pyarrow.array([], column.type)]
    floats = pyarrow.types.is_list(array.type) and pyarrow.types.is_floating(array.type.value_type)
    if not floats or array.values.null_count:
        return array.to_pylist()
    values, ends = array.values.to_numpy(), array.offsets.to_numpy()  # 20 times as fast
    valid = array.is_valid().to_pylist()
    return [
        values[start:end].tolist() if there else None
        for start, end, there in zip(ends, ends[1:], valid)
    ]


def _columns(scores: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return scores and curves by column, each with the form that it has."""
    found = {}
    for part, value in scores.items():
        rows = value if isinstance(value, list) else []
        if part == "losses":
            found[part] = _form(value), value
        elif part == "correct" and isinstance(value, dict) and value:
            for metric, one in value.items():
                bits = _bits(one)
                form = ("bits", bits) if bits is not None else (_form(one), one)
                found[f"{'scores' if bits is None else 'bits'}.{metric}"] = form
        elif _is_table(rows):
            for name in rows[0]:
                column = [row[name] for row in rows]
                found[f"{part}.{name}"] = _form(column), column
        else:
            found[part] = "rest", value
    return found


def _is_table(rows: list) -> bool:
    """Return whether rows are dictionaries of the same keys, and not of none."""
    first = rows[0] if rows else {}
    return bool(first) and all(isinstance(x, dict) and x.keys() == first.keys() for x in rows)


def _form(values: Any) -> str:
    """Return which column holds values without loss."""
    if not isinstance(values, list):
        return "rest"
    there = [one for one in values if one is not None]
    kinds = {*map(type, there)}
    if kinds <= {float}:
        return "floats"
    if kinds == {int} and max(map(abs, there)) < 2**63:
        return "integers"
    if kinds == {list} and there == values and all(_form(one) == "floats" for one in values):
        return "lists"
    return "rest"


def _bits(text: Any) -> bytes | None:
    """Return the bytes of base64, None of anything else."""
    try:
        content = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except ValueError:
        return None
    return content if content is not None and base64.b64encode(content).decode() == text else None


def _scores(columns: dict[str, Any]) -> dict[str, Any]:
    """Return scores and curves from their columns."""
    found: dict[str, Any] = {}
    curves: dict[str, dict[str, list]] = defaultdict(dict)
    for column, value in columns.items():
        part, dot, name = column.partition(".")
        if not dot:
            found[part] = value
        elif part == "bits":
            found.setdefault("correct", {})[name] = base64.b64encode(value).decode()
        elif part == "scores":
            found.setdefault("correct", {})[name] = value
        else:
            curves[part][name] = value
    for part, by_name in curves.items():
        found[part] = [dict(zip(by_name, row)) for row in zip(*by_name.values())]
    return found
