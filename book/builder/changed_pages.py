"""Execute every page that trains at other parameters: all that it shows must follow from them.

`make small` executes each at small parameters, and `make beside` at two unusual settings of its own
(`book/beside.toml`), own data among them. What may stay stands in `book/unchanged.csv` with its
reason.
"""

import html
import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from builder import own_data
from builder.build import chapters, execute_chapters
from hnbook.claims import MIME
from hnlib.experiments.words import DASH
from hnlib.notebooks import execute, two_texts
from hnlib.notebooks.execute import load_json, name, root
from hnlib.training import kinds

SMALL = {"small": True}
SHORT = 8  # characters
DIGITS = 5  # of a number that does not agree by chance
SHOWN = ("text/html", "image/svg+xml", "image/png", "text/plain")
NUMBER = re.compile(r"[-+−]?\d+(?:[.,]\d+)*(?: ± [\d.]+\d)?(?: \[[-+−\d., ]+\])?")
#: Data that is made here or comes with a package, which settings beside the published may be on
HERE = ("digits", "motifs", "topics", "generated")
#: What pages also call public data
CALLED = ("the hundred classes",)


def _public() -> re.Pattern:
    """Return what names public data: no setting beside the published is on one of them.

    A name counts in any case from four letters on, and without what follows a digit or a hyphen if
    it is in capitals, such as IMDB-BINARY.
    """
    every = {kind: kinds.run_class(kind).datasets for kind in kinds.KINDS}
    known = {name: one for names in every.values() for name, one in names.items()}
    names = {x for name, one in known.items() if name not in HERE for x in (name, one.title)}
    names |= {re.split(r"[-_\d]", x)[0] for x in names if x.isupper()} | {*CALLED}
    words = {re.escape(x).replace(r"\-", "-?") for x in names if len(x) >= 4}
    short = {re.escape(x) for x in names if len(x) < 4 and x.isupper()}
    some = "|".join(sorted(words, key=len, reverse=True))
    return re.compile(rf"(?i:(?<!\w)(?:{some}))|(?<![\w-])(?:{'|'.join(sorted(short))})(?![\w-])")


DATA = _public()


def pages() -> list[Path]:
    """Return the pages that train at small parameters."""
    return [page for page in chapters() if "small" in execute.parameters_of(execute.read(page))]


def settings() -> list[tuple[Path, dict, Path]]:
    """Return page, parameters and executed form of each setting of `book/beside.toml`.

    Raises ValueError unless every page has two, each of parameters that the page has.
    """
    given = tomllib.loads((root() / "book/beside.toml").read_text("utf-8"))
    known = {name(page): page for page in pages()}
    if given.keys() != known.keys() or any(len(each) != 2 for each in given.values()):
        raise ValueError(f"book/beside.toml must have two settings of each of {', '.join(known)}")
    found = []
    for page, each in given.items():
        defaults = execute.parameters_of(execute.read(known[page]))
        for i, one in enumerate(each, 1):
            values = {key: own_data.place(value) for key, value in one.items()}
            execute.guard_parameters(defaults, values)
            stored = root() / "_build/beside" / f"{page}-{i}.ipynb"
            found.append((known[page], values, stored))
    return found


def published(page: Path) -> dict:
    """Return the executed form of a published page. Raises ValueError if there is none."""
    found = load_json(execute.executed_path(page))
    if "inline" not in found.get("metadata", {}).get("hnlib", {}):
        raise ValueError(f"{name(page)} has not been executed; run `make book` first")
    return found


def execute_small(jobs: int) -> dict[Path, dict]:
    """Execute what has changed; return the executed notebooks."""
    stored = {page: root() / "_build/small" / f"{name(page)}.ipynb" for page in pages()}
    _execute([(page, SMALL, path) for page, path in stored.items()], jobs)
    return {page: load_json(path) for page, path in stored.items()}


def _execute(wanted: list[tuple[Path, dict, Path]], jobs: int) -> None:
    os.environ.pop("HNLIB_RECALL", None)
    todo = [one for one in wanted if not execute.is_current(one[2], one[0], one[1])]
    while todo:  # one setting of each page at a time
        first = {page: (given, path) for page, given, path in reversed(todo)}
        targets = {page: path for page, (_, path) in first.items()}
        parameters = {page: given for page, (given, _) in first.items()}
        execute_chapters(targets, jobs, parameters, threads=1)
        todo = [one for one in todo if one[2] not in targets.values()]


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


def outputs(executed: dict) -> Iterator[tuple[str, list[str]]]:
    """Yield what cells show, by the first line of each.

    Checks of claims are left out, because theorems do not depend on parameters.
    """
    for cell in executed["cells"]:
        if cell["cell_type"] == "markdown":
            continue
        found = [one.get("data", {"text/plain": one.get("text", "")}) for one in cell["outputs"]]
        if any(MIME in data for data in found):
            continue
        content = [next(data[kind] for kind in SHOWN if kind in data) for data in found]
        if content:
            lines = "".join(cell["source"]).splitlines()
            yield next(line for line in lines if line.strip(" #")), ["".join(x) for x in content]


def shown(executed: dict) -> dict[str, str]:
    """Return what a page shows, by the first line of a cell or by the expression in a text.

    Short numbers in texts are left out, which may agree by chance.
    """
    said = executed["metadata"]["hnlib"]["inline"]
    found = {asked: value for asked, value in said.items() if len(value) > SHORT}
    return found | {line: json.dumps(content) for line, content in outputs(executed)}


def unchanged(published: dict, small: dict, excused: list[str]) -> list[str]:
    """Return a sentence for each output that both executions show and no reason excuses."""
    before, after = shown(published), shown(small)
    same = {key for key in before.keys() & after.keys() if before[key] == after[key]}
    return [f"{key!r} does not follow the parameters" for key in sorted(same - {*excused})]


def told(executed: dict) -> dict[str, str]:
    """Return what a page at other parameters says with code, as plain text, by where it stands.

    That are tables, the texts of figures, captions, computed paragraphs and headings; quotations of
    what was found in the published runs, and the table of yours beside them, are left out.
    """
    found = {}
    for cell in executed["cells"]:
        text = "".join(cell["source"])
        if "experiments.train" in text:  # which prints its plan
            continue
        if cell["cell_type"] == "markdown":
            own = "\n".join(x for x in text.splitlines() if not x.lstrip().startswith(">"))
            parts = re.split(r"\n\s*\n", own)
            computed = "computed" in cell["metadata"]
            found |= {x[:40]: x for x in parts if computed or x.startswith("#")}
        about = cell["metadata"].get("mystnb", {})
        for kind, key in (("figure", "caption"), ("image", "alt")):
            if caption := about.get(kind, {}).get(key):
                found[f"{key} {caption[:30]}"] = caption
        if text != two_texts.BESIDE_CODE:
            for line, content in outputs({"cells": [cell]}):
                found[line] = "\n".join(map(_plain, content))
    return {place: text.replace("\u00a0", " ") for place, text in found.items()}


def _plain(shown: str) -> str:
    """Return the text of HTML, or of a figure, whose texts stand in comments beside its shapes."""
    if "<svg" in shown:
        return "\n".join(x.strip() for x in re.findall(r"<!--(.*?)-->", shown, re.S))
    text = re.sub(r"<style.*?</style>", "", shown, flags=re.S)
    text = re.sub(r"</?(?:tr|td|th|p|caption)[^>]*>", "\n", text) if "<" in text else text
    return html.unescape(re.sub(r"<[a-zA-Z/][^>]*>", "", text))


def numbers(texts: dict[str, str]) -> set[str]:
    """Return numbers, with their intervals, that do not agree by chance."""
    every = itertools.chain.from_iterable(map(NUMBER.findall, texts.values()))
    return {one for one in every if sum(map(str.isdigit, one)) >= DIGITS}


def false(published: dict, beside: dict, parameters: dict, excused: list[str]) -> list[str]:
    """Return a sentence for each thing told at other parameters that cannot follow from them."""
    texts, given = told(beside), json.dumps(parameters)
    stayed = numbers(told(published)) - numbers({"": given})
    found = []
    for place, text in texts.items():
        if place in excused:
            continue
        wrong = [f"the published {x}" for x in sorted(numbers({"": text}) & stayed)]
        wrong += ["nan"] * bool(re.search(r"(?<![\w.])(?:nan|inf)(?!\w)", text, re.IGNORECASE))
        lone = rf"(?:^|\s|\|){DASH}(?:[.,;:]?\s|\||$)"
        wrong += ["a lone dash"] * bool(re.search(lone, text, re.MULTILINE))
        wrong += sorted({x for x in DATA.findall(text) if x not in given})
        found += [f"{place!r} shows {one}" for one in wrong]
    return found


def reasons(beside: bool = False) -> dict[str, list[str]]:
    """Return the outputs of each page that have a reason not to change, at small or beside."""
    excused = pd.read_csv(root() / "book/unchanged.csv")
    if beside:
        excused = excused[excused["at"] != "small"]
    return excused.groupby("page")["output"].agg(list).to_dict()


def check_small(jobs: int) -> int:
    """Execute and check all pages; return 1 and say why if one shows what it was not asked for."""
    known, found = reasons(), []
    for page, small in execute_small(jobs).items():
        wrong = outside_plan(small)
        wrong += unchanged(published(page), small, known.get(name(page), []))
        found += [f"{name(page)}: {one}" for one in wrong]
    return _report(found, f"{len(pages())} pages at small parameters")


def check_beside(jobs: int, only: tuple[str, ...] = ()) -> int:
    """Execute and check the settings beside the published; return 1 and say why if one is false.

    What was trained on data of your own must be found again.
    """
    wanted = settings()
    known = {name(page) for page, *_ in wanted}
    if unknown := {*only} - known:
        raise ValueError(f"no page {min(unknown)!r}; choose from {', '.join(sorted(known))}")
    wanted = [one for one in wanted if not only or name(one[0]) in only]
    before, excused, found = {page: published(page) for page, *_ in wanted}, reasons(True), []
    _execute(wanted, jobs)
    for page, given, path in wanted:
        beside, reason = load_json(path), excused.get(name(page), [])
        wrong = outside_plan(beside) + unchanged(before[page], beside, reason)
        wrong += false(before[page], beside, given, reason)
        wrong += untrained(page, given) if own_data.is_in(given) else []
        found += [f"{path.stem}: {one}" for one in dict.fromkeys(wrong)]
    return _report(found, f"{len(wanted)} pages beside the published")


def untrained(page: Path, parameters: dict) -> list[str]:
    """Return a sentence if a page that was executed has something left to train."""
    again = execute.plan(name(page), parameters)
    found_again = "Nothing is left to train." in again  # "trains nothing": in no plan of its own
    return [] if found_again else [f"own data are trained again: {again.splitlines()[-1]}"]


def _report(found: list[str], of: str) -> int:
    for sentence in found:
        print(sentence)
    print(f"{of}, {len(found)} findings")
    return int(bool(found))
