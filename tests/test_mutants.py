"""The list of mutants fits the sources; `make mutants` puts it to the tests."""

import ast
from collections import Counter
from functools import cache

import mutants
import pytest


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((mutants.ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", mutants.ROWS, ids=lambda row: row["means"][:60])
def test_each_row_has_its_text_once_and_names_tests_that_exist(row):
    files = mutants.places(row)
    assert len(files) == 1, f"{row['text']!r} stands in {files}"
    assert row["wrong"] != row["text"] and row["tests"]
    for test in row["tests"]:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(file), test


def test_the_list_is_long_and_broad():
    areas = Counter(row["area"] for row in mutants.ROWS)
    assert len(mutants.ROWS) >= 150 and min(areas.values()) >= 10 and len(areas) >= 9
    assert sum(row.get("survived", False) for row in mutants.ROWS) >= 75


def test_no_row_starts_after_its_time_and_none_is_told_as_tried(monkeypatch, capsys):
    def tried(rows, jobs, until):
        return ((row, "noticed", 0.0, "") for row in rows[: 1 if until < float("inf") else None])

    monkeypatch.setattr(mutants, "tried", tried)
    rows = [dict(mutants.ROWS[0], means=str(i)) for i in range(9)]
    first = set()
    for commit in (b"a", b"b", b"c", b"d"):
        monkeypatch.setattr(mutants.subprocess, "check_output", lambda *_, c=commit, **__: c)
        assert mutants.judge(rows, 1, passed=True, minutes=0.1) == 0
        out = capsys.readouterr().out
        assert "8 rows were not tried within 0.1 minutes" in out
        first.add(out.splitlines()[0])
    assert len(first) > 1  # another commit begins with another row
    assert mutants.judge(rows, 1, passed=True) == 0
    assert "not tried" not in capsys.readouterr().out
