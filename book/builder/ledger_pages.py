"""The generated pages: *Claims* (claims.csv joined with what the chapters checked), *Results*."""

import html
import inspect
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from hnbook import claims
from hnbook.tables import DASH, Markup, format_value, myst
from hnlib import experiments
from hnlib.experiments import evidence
from hnlib.notebooks import inline_values
from hnlib.training import kinds, records

PAPERS = {"hcl": "HCL", "hclot": "HCL-OT", "hscl": "H-SCL", "dro": "ADNCE", "unremix": "UnReMix"}
NONE_YET = "*None yet.*\n"
#: The experiments of *Hardness or temperature?*
TITLE_PAGE = ["map", "equal-gamma", "images-longer", "hundred-edge", "resnet18"]
TITLE_PAGE += ["resnet18-temperatures"]
ENTRY = re.compile(r"^\*\*.*\((\w+)\)$", re.M)  # the title of an erratum, with its claim's code


def table(head: list[str], rows: list[list], widths: str = "auto") -> str:
    """Return a MyST list-table, which takes formulas with bars; cells are escaped, but `Markup`."""
    if not rows:
        return NONE_YET
    lines = ["`````{list-table}", ":header-rows: 1", f":widths: {widths}", ""]
    for row in [head, *rows]:
        marks = ["* -", *["  -"] * (len(row) - 1)]
        lines += [f"{mark} {myst(item) or DASH}" for mark, item in zip(marks, row)]
    return "\n".join([*lines, "`````", ""])


def inline_code(text: str) -> Markup:
    """Return a command for a cell; nothing in it is markup, whatever it holds."""
    text = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return Markup(f"{fence} {text} {fence}" if "`" in text else f"`{text}`")


# --- claims


def _number(value: float) -> str:
    return re.sub(r"e([-+])0*(?=\d)", r"e\1", f"{value:.2g}").replace("-", "−")


def _check(record: dict) -> str:
    """Return a check as a line: a link to it with its kind, discrepancy ≤ tolerance, control."""
    place = html.escape(f"{record['chapter']}.html#{claims.anchor(record)}")
    link = f'<a class="reference internal" href="{place}">{myst(record["kind"])}</a>'
    control = "" if record["control"] is None else f", control {_number(record['control'])}"
    return f"{link}: {_number(record['value'])}\u00a0≤\u00a0{_number(record['tolerance'])}{control}"


def _claim(claim: dict, checks: list[dict], erratum: bool) -> list[Markup]:
    """Return the row of a claim: its statement with a remark, its verdict, and its checks."""
    place = f" ({claim['location']})" if claim.get("location") else ""
    name = f'<span id="claim-{html.escape(claim["id"])}">**{myst(claim["id"])}**</span>'
    row = [name, f"{claim['statement']}{place}", "*open*", "&nbsp;"]  # no verdict before the check
    if checks:
        verdict, _, remark = (part.strip() for part in claim["verdict"].partition(";"))
        if remark:
            row[1] += f" <br> *{remark[:1].upper()}{remark[1:]}.*"
        at = f"#erratum-{html.escape(claim['id'])}"
        link = [f'<a class="reference internal" href="{at}">erratum</a>'] * erratum
        row[2:] = f"**{verdict}**", " <br> ".join([*link, *map(_check, checks)])
    return [*map(Markup, row)]


def claims_tables(listed: list[dict], checks: list[dict], errata=()) -> str:
    """Return the list of all claims: one table per paper; a claim without a check is open.

    Those in `errata` link to their entries there.

    Raises ValueError for a check of a claim that is not listed: the page would not show it.
    """
    by_id = {claim["id"]: [] for claim in listed}
    if strangers := sorted({record["id"] for record in checks} - by_id.keys()):
        raise ValueError(f"checked but not in book/results/claims.csv: {', '.join(strangers)}")
    for record in checks:
        by_id[record["id"]].append(record)
    checked = [claim for claim in listed if by_id[claim["id"]]]
    verdicts = Counter(claim["verdict"].split(";")[0] for claim in checked).most_common()
    done = f"{len(checked)} checked (by {len(checks)} checks)"
    text = [
        f"**{len(listed)} claims: {done}, {len(listed) - len(checked)} open.** "
        f"Verdicts on those checked: {', '.join(f'{name} {n}' for name, n in verdicts)}.\n"
    ]
    for paper in dict.fromkeys(claim["paper"] for claim in listed):
        here = [claim for claim in listed if claim["paper"] == paper]
        rows = [_claim(claim, by_id[claim["id"]], claim["id"] in errata) for claim in here]
        title = "Of this book" if paper == "ours" else f"{PAPERS[paper]}\n\n{{cite:t}}`{paper}`"
        head = ["Claim", "Statement", "Verdict", "Checks"]
        text += [f"### {title}\n", table(head, rows, "6 55 13 26")]
    return "\n".join(text)


def _require_controls(listed: list[dict], checks: list[dict]) -> None:
    """Raise ValueError for a claim without a control; of a definition, without a check."""
    checked = {check["id"] for check in checks}
    controlled = {check["id"] for check in checks if check["control"] is not None}
    unchecked = []
    for claim in listed:
        needed = checked if claim["verdict"].startswith("definition") else controlled
        if claim["id"] not in needed:
            unchecked.append(claim["id"])
    if unchecked:
        raise ValueError(f"no chapter checks {', '.join(unchecked)} with a negative control")


# --- results


def dataset_table(runs: pd.DataFrame) -> str:
    """Return every column of the packed records: in how many rows it is, its type and meaning.

    The meaning of an option is what the docstring of its class of runs says.
    """
    if runs.empty:
        return NONE_YET
    option = re.compile(r"^(\w+)(?: : .*)?\n((?: {4}.+\n?)+)", re.M)
    classes = [kinds.Configuration, *map(kinds.run_class, reversed(kinds.KINDS))]
    pages = [inspect.getdoc(one) or "" for one in classes]
    meaning = {key: "of the method" for run in runs["run"] for key in run.options}
    meaning |= {key: "metric" for one in runs["metrics"] for key in one}
    meaning |= {name: text for page in pages for name, text in option.findall(page)}
    rows = []
    for name in runs.columns.drop(["run", "metrics", "environment"]):
        known = runs[name]
        kind = "JSON or text" if known.dtype == object else str(known.dtype)
        text = " ".join(meaning.get(name, "").split())
        rows.append([inline_code(name), f"{known.notna().sum():,}", kind, text])
    return table(["Column", "Rows", "Type", "What it says"], rows, "24 10 14 52")


# --- pages


def fill_placeholders(page: Path, parts: dict[str, str]) -> None:
    """Replace the comments that name the parts by the parts."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        if (mark := f"<!-- {name} -->") not in text:
            raise ValueError(f"{page.name} has no line {mark}")
        # in a notebook the text is a string of JSON
        text = text.replace(mark, json.dumps(part)[1:-1] if page.suffix == ".ipynb" else part)
    page.write_text(text, encoding="utf-8")


def fill_values(page: Path, names: dict[str, Any]) -> None:
    """Replace each {eval}`EXPRESSION` in a page without code by its value, as in a notebook."""

    def value(match: re.Match) -> str:
        return format_value(eval(" ".join(match[1].split()), names))

    text = inline_values.EVAL.sub(value, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")


def gpu_costs() -> dict[str, Any]:
    """Return the names that *Run it on your GPU* uses."""
    gpu = evidence.measurement("gpu")
    views, versions = gpu["views_per_second"], gpu["versions"]

    def seconds(network: str) -> float:
        return 2 * 45_000 * 100 / views[network]["simclr"] + 15

    def planned(**given) -> str:
        """Return how many runs the page of the commands trains, and for how long."""
        given |= dict(dataset="cifar10", encoder="resnet18", epochs=100, train_size=45_000)
        every = (experiments.recorded(name, **given) for name in TITLE_PAGE)
        count = len({records.key(run.configuration) for one in every for run in one.missing()})
        return f"{count} runs, about {count * seconds('resnet18') / 3600:.0f} hours"

    about = f"torch {versions['torch']}, CUDA {versions['cuda']}"
    minutes = lambda network: f"{seconds(network) / 60:.0f} min"  # noqa: E731
    tuned = gpu["second session"]["fine-tunings of all-MiniLM-L6-v2"]
    later = gpu["fourth session"]
    names = {"views": views, "versions": about, "tuned": tuned}
    names |= {"later": later["views_per_second"], "pages": later["pages at small parameters"]}
    return names | {"planned": planned, "minutes": minutes}


def write(folder: Path, executed: dict[str, dict], runs, root: Path, draft: bool = False) -> None:
    """Fill *Claims and errata* and ``results.md`` in ``folder``, the staged pages.

    Raises ValueError if a claim has no check with a control (a definition: no check), unless it is
    a ``draft``.
    """
    claims_csv = pd.read_csv(root / "book/results/claims.csv", comment="#", dtype=str).fillna("")
    listed, checks = claims_csv.to_dict("records"), []
    for chapter, notebook in executed.items():
        checks += [check | {"chapter": chapter} for check in claims.harvest(notebook)]
    if not draft:
        _require_controls(listed, checks)
    if "errata" in executed:  # else a draft without it
        cells = executed["errata"]["cells"]
        errata = {code for cell in cells for code in ENTRY.findall("".join(cell["source"]))}
        parts = {"claims": claims_tables(listed, checks, errata)}
        fill_placeholders(folder / "notebooks/errata.ipynb", parts)
    fill_placeholders(folder / "book/results.md", {"columns": dataset_table(runs)})
