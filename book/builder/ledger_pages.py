"""The generated pages: *Claims* (claims.csv joined with what the chapters checked), *Results*."""

import html
import inspect
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from hnbook import claims
from hnbook.paper_numbers import PAPERS
from hnbook.tables import DASH, Markup, format_value, myst, percent
from hnlib import experiments
from hnlib.experiments import evidence
from hnlib.notebooks import inline_values
from hnlib.training import kinds, records, store

METRICS = kinds.scores()  # shown of a run; its file holds more
CHOSEN = ["Data", "Method", "Options", "Setting", "Encoder", "Epochs"]  # shown beside the seeds
UNITS = {"images": "images", "sentences": "pairs"}  # of a training set
BLANK = Markup("&nbsp;")
REPEATED = "repeats a run that has a record"
NONE_YET = "*None yet.*\n"
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


def _number(value) -> str:
    if value is None:
        return DASH
    text = f"{value:,}" if isinstance(value, int) else f"{value:.2g}"
    return re.sub(r"e([-+])0*(?=\d)", r"e\1", text).replace("-", "−")


def _check_link(record: dict) -> Markup:
    """Return the title of a check, linked to its line, which may be in a closed strip."""
    place = html.escape(f"../notebooks/{record['chapter']}.html#{claims.anchor(record)}")
    return Markup(f'<a class="reference internal" href="{place}">{myst(record["title"])}</a>')


def pluralise(n: int, what: str) -> str:
    """Return a number with its noun, as "2 seeds"."""
    return f"{n} {what}{'s' * (n != 1)}"


def _paper_heading(key: str, root: Path) -> list[str]:
    """Return the heading of a paper's claims and a citation; "ours" is not in the bibliography."""
    from pybtex.database import parse_file

    if key == "ours":
        return ["## Of this book", ""]
    title = parse_file(root / "book/references.bib").entries[key].fields["title"]
    title = re.sub(r"[{}]", "", title)
    return [f"## {PAPERS.get(key, myst(title))}", "", f"{{cite:t}}`{key}`, *{title}*.", ""]


def _unchecked(listed: list[dict], checks: list[dict]) -> list[str]:
    """Return the claims without a check that could fail; for a definition any check will do."""
    checked = {check["id"] for check in checks}
    controlled = {check["id"] for check in checks if check["control"] is not None}
    definitions = {claim["id"] for claim in listed if claim["verdict"].startswith("definition")}
    needed = {claim["id"] for claim in listed}
    return sorted(needed - controlled - (definitions & checked))


def _check(record: dict) -> str:
    """Return a check as a line: its link and kind, discrepancy ≤ tolerance, instances, control."""
    control = f", control {_number(record['control'])}" if record["control"] is not None else ""
    numbers = f"{_number(record['value'])}\u00a0≤\u00a0{_number(record['tolerance'])}"
    numbers += f", {_number(record['instances'])} instance{'s' * (record['instances'] != 1)}"
    return f"{_check_link(record)} ({myst(record['kind'])}): {numbers}{control}"


def _claim(claim: dict, checks: list[dict], erratum: bool) -> list:
    """Return the row of a claim: its statement, its verdict, and its checks in a fold."""
    statement = claim["statement"] + (f" ({claim['location']})" if claim.get("location") else "")
    name = Markup(f'<span id="claim-{html.escape(claim["id"])}">**{myst(claim["id"])}**</span>')
    if not checks:  # no verdict before the check
        return [name, Markup(statement), Markup("*open*"), BLANK]
    verdict, _, remark = claim["verdict"].partition(";")
    remark = [f"*{remark.strip()[:1].upper()}{remark.strip()[1:]}.*"] if remark else []
    lines = " <br> ".join([*remark, *map(_check, checks)])
    count = pluralise(len(checks), "check")
    # begins with a span, or all of it were a block of HTML, in which MyST's escapes escape nothing
    place = f"../notebooks/errata.html#erratum-{html.escape(claim['id'])}"
    link = f'<a class="reference internal" href="{place}">erratum</a>' if erratum else ""
    fold = f"<summary>{count}</summary>{lines}"
    fold = f'<span>{link}</span><details class="hn-line">{fold}</details>'
    return [name, Markup(statement), Markup(f"**{verdict}**"), Markup(fold)]


def claims_tables(listed: list[dict], checks: list[dict], root: Path, errata=()) -> str:
    """Return the *Claims* page: one table per paper; a claim without a check is open.

    Those in `errata` link to their entries there.

    Raises ValueError for a check of a claim that is not listed: the page would not show it.
    """
    by_id = {claim["id"]: [] for claim in listed}
    if strangers := sorted({record["id"] for record in checks} - by_id.keys()):
        raise ValueError(f"checked but not in book/claims.csv: {', '.join(strangers)}")
    for record in checks:
        by_id[record["id"]].append(record)
    checked = [claim for claim in listed if by_id[claim["id"]]]
    verdicts = Counter(claim["verdict"].split(";")[0] for claim in checked).most_common()
    done = f"{len(checked)} checked (by {pluralise(len(checks), 'check')})"
    text = [
        f"**{len(listed)} claims: {done}, {len(listed) - len(checked)} open.** "
        f"Verdicts on those checked: {', '.join(f'{name} {n}' for name, n in verdicts)}.\n"
    ]
    for paper in dict.fromkeys(claim["paper"] for claim in listed):
        here = [claim for claim in listed if claim["paper"] == paper]
        rows = [_claim(claim, by_id[claim["id"]], claim["id"] in errata) for claim in here]
        listed_here = table(["Claim", "Statement", "Verdict", "Checks"], rows, "6 62 15 17")
        text += [*_paper_heading(paper, root), listed_here]
    return "\n".join(text)


def duration(seconds) -> str:
    """Format seconds of a run."""
    if pd.isna(seconds):
        return DASH
    return f"{seconds:.0f}\u00a0s" if seconds < 600 else f"{seconds / 60:.0f}\u00a0min"


def _run(row: dict) -> dict:
    """Return what the page says of one run of `records.frame`."""
    run, size = row["run"], getattr(row["run"], "train_size", None)
    steps = f", {run.max_steps} steps at most" if run.max_steps else ""
    framework = [f"framework {run.framework}"] if hasattr(run, "framework") else []
    return {
        "Data": run.dataset + (f", {size:,} {UNITS[row['kind']]}" if size else ""),
        "Method": run.method or "",
        "Options": row["options"].replace("=", " ").replace(",", ", "),
        "Setting": ", ".join(filter(None, [*framework, row["changed"]])),
        "Encoder": run.encoder,
        "Epochs": f"{run.epochs}{steps}",
        "Hardware": row["hardware"],
        "Seeds": run.seed,
        **{METRICS[name]: row.get(name) for name in METRICS},
        "Time": duration(row["seconds"]),
        "Date": row["date"],
        "experiment": row["experiments"],
        "order": (run.dataset, run.encoder, run.epochs or 0, size or 0, run.method or ""),
    }


def _runs(runs: pd.DataFrame) -> str:
    """Return a folded table for each experiment; a line has the runs that differ in their seed.

    Lines of one data set, encoder and length are ordered by method, then by accuracy.
    """
    if runs.empty:
        return NONE_YET
    rows = runs.explode("experiments").sort_values("record").to_dict("records")
    every: Any = pd.DataFrame(map(_run, rows)).sort_values(["order", "Seeds"], kind="stable")
    text = []
    for experiment, here in every.groupby("experiment"):
        metrics = list(here[list(METRICS.values())].dropna(axis=1, how="all").columns)
        head = [*CHOSEN, "Seeds", *metrics, "Time", "Hardware", "Date"]
        rows = []
        for _, group in here.groupby([*CHOSEN, "Hardware"], sort=False):
            row = group.iloc[0].to_dict() | {name: percent(group[name]) for name in metrics}
            row["Seeds"] = ", ".join(map(str, group["Seeds"]))
            best = -group[metrics].mean().fillna(-1.0)
            rows.append(((row["order"], *best), [row[name] for name in head]))
        lines = [cells for _, cells in sorted(rows, key=lambda row: row[0])]
        text += [f"### {myst(experiment).capitalize()}", ""]
        text += [f":::{{dropdown}} Runs: {len(here)}, settings: {len(lines)}", table(head, lines)]
        text += [":::", ""]
    return "\n".join(text)


def results_tables(runs: pd.DataFrame, left_out: Iterable[str] = ()) -> str:
    """Return the tables of the *Results* page: every run of `records.frame` with an accuracy.

    Experiments that are `left_out` are in the file of all runs alone.
    """
    columns = [*runs.columns, *({"experiment", *METRICS} - {*runs.columns})]
    runs = runs.reindex(columns=columns)
    shown = runs[list(METRICS)].notna().any(axis=1) & ~runs["experiment"].isin([*left_out])
    return _runs(runs[shown])


def choosing() -> set[str]:
    """Return the experiments without predictions from which others take what validation chose."""
    every = [experiments.load(name) for name in experiments.names()]
    asked = {rule.get("experiment") for one in every for rule in one.chosen.values()}
    return {one.name for one in every if one.name in asked and not one.predictions}


def set_aside() -> list[dict]:
    """Return the tracked records that `frame` leaves out: superseded, or further runs of a name."""
    aside, first = [], set()
    for record in store.read(records.tracked()):
        if "superseded" in record or record["run"] in first:
            aside.append(record)
        else:
            first.add(record["run"])
    return aside


def aside_table(aside: list[dict]) -> str:
    """Return how many records of each experiment and data set are left out of `frame`, and why."""
    why = Counter(
        (
            f"{chosen.get('experiment', '').capitalize()}, {chosen.get('dataset', '')}",
            record.get("superseded", REPEATED),
        )
        for record in aside
        for chosen in [record["configuration"]]
    )
    rows = [[where, n, reason] for (where, reason), n in sorted(why.items())]
    return table(["Experiment, data", "Records", "Why"], rows, "30 10 60")


def described() -> dict[str, str]:
    """Return what the docstrings of runs say of each option, for the card of the data set."""
    option = re.compile(r"^(\w+)(?: : .*)?\n((?: {4}.+\n?)+)", re.M)
    pages = [inspect.getdoc(kinds.run_class(kind)) for kind in kinds.KINDS]
    pages.append(inspect.getdoc(kinds.Configuration))
    found = [one for page in pages for one in option.findall(page or "")]
    return {name: " ".join(text.split()) for name, text in reversed(found)}


def dataset_table(runs: pd.DataFrame) -> str:
    """Return every column of the packed records: in how many rows it is, its type and meaning."""
    if runs.empty:
        return NONE_YET
    meaning, metrics = described(), {key for one in runs["metrics"] for key in one}
    options = {key for run in runs["run"] for key in getattr(run, "options", None) or ()}
    kinds_of = {column: "metric" for column in metrics} | dict.fromkeys(options, "of the method")
    rows = []
    for column in runs.columns.drop(["run", "metrics", "environment"]):
        known = runs[column]
        text = meaning.get(column, kinds_of.get(column, ""))
        kind = "JSON or text" if str(known.dtype) == "object" else str(known.dtype)
        rows.append([inline_code(column), f"{known.notna().sum():,}", kind, text])
    return table(["Column", "Rows", "Type", "What it says"], rows, "24 10 14 52")


def fill_placeholders(page: Path, parts: dict[str, str]) -> None:
    """Replace the comments that name the parts by the parts."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        if (mark := f"<!-- {name} -->") not in text:
            raise ValueError(f"book/{page.name} has no line {mark}")
        text = text.replace(mark, part)
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

    def minutes(network: str) -> str:
        return f"{(2 * 45_000 * 100 / views[network]['simclr'] + 15) / 60:.0f} min"

    about = f"torch {versions['torch']}, CUDA {versions['cuda']}"
    return {"views": views, "versions": about, "minutes": minutes}


def write(folder: Path, executed: dict[str, dict], runs, root: Path, draft: bool = False) -> None:
    """Fill ``claims.md`` and ``results.md`` in ``folder``, the staged ``book``.

    Raises ValueError if a claim has no check with a control (a definition: no check), unless it is
    a ``draft``.
    """
    claims_csv = pd.read_csv(root / "book/claims.csv", comment="#", dtype=str).fillna("")
    listed, checks = claims_csv.to_dict("records"), []
    for chapter, notebook in executed.items():
        checks += [check | {"chapter": chapter} for check in claims.harvest(notebook)]
    if not draft and (unchecked := _unchecked(listed, checks)):
        raise ValueError(f"no chapter checks {', '.join(unchecked)} with a negative control")
    cells = executed["errata"]["cells"] if "errata" in executed else []
    errata = {code for cell in cells for code in ENTRY.findall("".join(cell["source"]))}
    tables = claims_tables(listed, checks, root, errata)
    fill_placeholders(folder / "claims.md", {"claims": tables})
    parts = {"runs": results_tables(runs, choosing()), "aside": aside_table(set_aside())}
    parts["columns"] = dataset_table(runs)
    fill_placeholders(folder / "results.md", parts)
