"""Execute every experiment page at small parameters: all that it shows must follow from them.

What is allowed to stay stands in `book/unchanged.csv` with its reason.
"""

import itertools
import json
import os
from pathlib import Path

import pandas as pd

from builder.build import chapters, execute_chapters
from hnbook.claims import MIME
from hnlib.notebooks import execute
from hnlib.notebooks.execute import load_json, name, root

SMALL = {"small": True}
SHORT = 8  # characters
SHOWN = ("text/html", "image/svg+xml", "image/png", "text/plain")


def pages() -> list[Path]:
    """Return the pages that train at small parameters."""
    return [page for page in chapters() if "small" in execute.parameters_of(execute.read(page))]


def execute_small(jobs: int) -> dict[Path, dict]:
    """Execute what has changed; return the executed notebooks."""
    os.environ.pop("HNLIB_RECALL", None)
    stored = {page: root() / "_build/small" / f"{name(page)}.ipynb" for page in pages()}
    todo = {x: path for x, path in stored.items() if not execute.is_current(path, x, SMALL)}
    execute_chapters(todo, jobs, SMALL, threads=1)
    return {page: load_json(path) for page, path in stored.items()}


def outside_plan(small: dict) -> list[str]:
    """Return a sentence for each record that a small run used and did not plan."""
    about = small["metadata"]["hnlib"]
    planned = about["planned"]
    found = [f"{one} is as published" for one, plan in planned.items() if not plan["changed"]]
    known = {*itertools.chain.from_iterable(plan["runs"] for plan in planned.values())}
    if "*" in about["used"]:
        found.append("a table of all records was read")
    if outside := {*about["used"]} - known - {"*"}:
        found.append(f"{len(outside)} records of no planned run were used")
    return found if planned else ["no experiment was loaded", *found]


def shown(executed: dict) -> dict[str, str]:
    """Return what a page shows, by the first line of a cell or by the expression in a text.

    Checks of claims are left out, because theorems do not depend on parameters, and so are short
    numbers in texts, which may agree by chance.
    """
    said = executed["metadata"]["hnlib"]["inline"]
    found = {asked: value for asked, value in said.items() if len(value) > SHORT}
    for cell in executed["cells"]:
        if cell["cell_type"] == "markdown":
            continue
        outputs = [one.get("data", {"text/plain": one.get("text", "")}) for one in cell["outputs"]]
        if any(MIME in data for data in outputs):
            continue
        content = [next(data[kind] for kind in SHOWN if kind in data) for data in outputs]
        if content:
            lines = "".join(cell["source"]).splitlines()
            first = next(line for line in lines if line.strip(" #"))
            found[first] = json.dumps(content)
    return found


def unchanged(published: dict, small: dict, excused: list[str]) -> list[str]:
    """Return a sentence for each output that both executions show and no reason excuses."""
    before, after = shown(published), shown(small)
    same = {key for key in before.keys() & after.keys() if before[key] == after[key]}
    return [f"{key!r} does not follow the parameters" for key in sorted(same - {*excused})]


def reasons() -> dict[str, list[str]]:
    """Return the outputs of each page that have a reason not to change."""
    excused = pd.read_csv(root() / "book/unchanged.csv")
    return excused.groupby("page")["output"].agg(list).to_dict()


def check(jobs: int) -> int:
    """Execute and check all pages; return 1 and say why if one shows what it was not asked for."""
    known, wrong = reasons(), 0
    for page, small in execute_small(jobs).items():
        published = load_json(execute.executed_path(page))
        if "inline" not in published.get("metadata", {}).get("hnlib", {}):
            raise ValueError(f"{name(page)} has not been executed; run `make book` first")
        found = outside_plan(small)
        found += unchanged(published, small, known.get(name(page), []))
        wrong += len(found)
        for sentence in found:
            print(f"{name(page)}: {sentence}")
    print(f"{len(pages())} pages at small parameters, {wrong} findings")
    return int(wrong > 0)
