"""The generated pages: *Claims* (claims.csv joined with what the chapters recorded) and *Results* (runs, papers)."""

import csv
import json
import re
import statistics
from collections import Counter
from pathlib import Path

from hnlib import claims

NICKNAMES = {"hclot": "HCL-OT", "hcl": "HCL", "dro": "ADNCE", "hscl": "H-SCL", "unremix": "UnReMix"}
METRICS = {"knn": "kNN", "linear": "Linear", "svm": "SVM"}  # shown of a run; its file holds more


def harvest(executed: dict[str, dict]) -> list[dict]:
    """Every record that `hnlib.claims.check` left in ``executed`` (chapter name: notebook), with its chapter."""
    return [
        record | {"chapter": chapter} for chapter, notebook in executed.items() for record in claims.harvest(notebook)
    ]


def read_csv(path: Path) -> list[dict]:
    """The rows of a CSV file; none when there is no such file."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def _unchecked(listed: list[dict], records: list[dict]) -> list[str]:
    controlled = {record["id"] for record in records if record["control"] is not None}
    seen = {record["id"] for record in records}
    return [claim["id"] for claim in listed if claim["id"] not in
            (seen if claim["verdict"].partition(";")[0] == "definition" else controlled)]


def _number(value) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return re.sub(r"e([-+])0*(?=\d)", r"e\1", f"{value:.2g}").replace("-", "−")


def _table(head: list[str], rows: list[list[str]], widths: str = "auto") -> str:
    """A MyST list-table: unlike a pipe table it takes formulas with bars."""
    if not rows:
        return "*None yet.*\n"
    lines = ["`````{list-table}", ":header-rows: 1", f":widths: {widths}", ""]
    for row in [head, *rows]:
        for position, item in enumerate(row):
            text = " ".join(str(item).split()) or "–"
            lines.append(f"{'* -' if position == 0 else '  -'} {text}")
    return "\n".join([*lines, "`````", ""])


def _link(text: str, chapter: str) -> str:
    text = text.replace("`", "’").replace("<", "‹")  # what ends the text of a role
    return f"{{doc}}`{text} <../notebooks/{chapter}>`"


def _order(identifier: str) -> tuple:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", identifier))


def claims_page(listed: list[dict], records: list[dict], root: Path) -> str:
    """The *Claims* page: one table per paper; a claim without a record is open.

    ``listed`` are rows with id, paper, location, statement, verdict. A record for a claim that is not listed is a
    ValueError: the ledger would hide it.
    """
    known = {claim["id"] for claim in listed}
    strangers = sorted({record["id"] for record in records} - known)
    if strangers:
        raise ValueError(f"checked but not in book/claims.csv: {', '.join(strangers)}; add a row for each.")
    by_id = {identifier: [record for record in records if record["id"] == identifier] for identifier in known}
    checked = sum(bool(found) for found in by_id.values())
    verdicts = Counter(claim["verdict"].split(";")[0] for claim in listed if by_id[claim["id"]])
    text = [
        "# Claims", "",
        "Every statement that this book takes from a paper, or adds to one, with what the chapters found when they "
        "checked it. A check computes a discrepancy by a route independent of the proof, over random instances and "
        "edge cases, and passes when it stays below the tolerance; the *control* is the discrepancy of a false "
        "variant of the statement under the same check, and must exceed it. A claim that no chapter has checked is "
        "*open*. This page is generated; the chapters stop when a check fails.", "",
        "Kinds: an *identity* has two sides that agree; an *inequality* is measured by its worst violation, negative "
        "when there is room; a *refutation* checks the corrected statement, with the printed one as control; a *rate* "
        "checks an exponent or a constant; a *definition* is compared with the code. Verdicts: *loose* says more than "
        "is proved, a *slip* is of the pen, *true with remark* holds under other words or fewer hypotheses.", "",
        f"**{len(listed)} claims: {checked} checked (by {len(records)} check{'s' * (len(records) != 1)}), "
        f"{len(listed) - checked} open.** "
        + f"Verdicts on those checked: {', '.join(f'{name} {count}' for name, count in verdicts.most_common())}.", "",
    ]
    for paper in dict.fromkeys(claim["paper"] for claim in listed):
        rows = []
        for claim in sorted((c for c in listed if c["paper"] == paper), key=lambda c: _order(c["id"])):
            statement = claim["statement"] + (f" ({claim['location']})" if claim.get("location") else "")
            found = by_id[claim["id"]]
            if found:  # no verdict before the check
                verdict, mark, remark = claim["verdict"].partition(";")
                statement += f" <br> **{verdict}**{mark}{remark}"
            rows.append([f"**{claim['id']}**", statement, "&nbsp;" if found else "*open*", "&nbsp;", "&nbsp;"])
            for record in found:
                rows.append([
                    "&nbsp;", f"{_link(record['title'], record['chapter'])} ({record['kind']})",
                    f"{_number(record['value'])}&nbsp;≤&nbsp;{_number(record['tolerance'])}",
                    _number(record["instances"]), _number(record["control"]),
                ])
        head = ["Claim", "Statement, **verdict**, checks", "Discrepancy ≤ tolerance", "Instances", "Control"]
        text += [*_paper(paper, root, "##"), _table(head, rows, "6 56 20 9 9"), ""]
    return "\n".join(text)


def paper_title(key: str, root: Path) -> str:
    """The title of the paper with bibliography key ``key``, for a heading; what is not in the bibliography is ours."""
    from pybtex.database import parse_file

    bibliography = root / "book/references.bib"
    entry = parse_file(bibliography).entries.get(key) if bibliography.is_file() else None
    return re.sub(r"[{}]", "", entry.fields["title"]) if entry else {"ours": "Of this book"}.get(key, key)


def _paper(key: str, root: Path, level: str) -> list[str]:
    title = paper_title(key, root)
    cited = [f"{{cite:t}}`{key}`, *{title}*.", ""] if title not in (key, "Of this book") else []
    return [f"{level} {NICKNAMES.get(key, title)}", "", *cited]


def results_page(runs: list[dict], papers: list[dict], executed: dict[str, dict], root: Path) -> str:
    """The *Results* page: every tracked run, the numbers printed in the papers, and when each chapter was executed."""
    text = [
        "# Results", "",
        "Numbers measured by the code of this book, in each line the recorded runs that differ in their seed alone, "
        "and the numbers printed in the papers. Nothing on this page is written by hand.", "", "## Recorded runs", "",
        "Accuracies are in percent, mean ± standard deviation over the seeds; options are those that are not the "
        "catalogue's. Times are of one run on its machine, which may have been busy with other work: they say what it "
        "cost, and compare nothing.", "",
    ]
    speed = [run for run in runs if _chosen(run, "experiment") == "benchmark"]
    costs = [run for run in runs if run not in speed and not METRICS.keys() & run["metrics"].keys()]
    runs = [run for run in runs if run not in speed + costs]
    for experiment in sorted({_chosen(run, "experiment") for run in runs}):
        groups: dict[str, list[dict]] = {}
        here = [run for run in runs if _chosen(run, "experiment") == experiment]
        shown = [name for name in METRICS if any(name in run["metrics"] for run in here)]
        for run in sorted(here, key=_key):
            but_seed = {key: value for key, value in run["configuration"].items() if key != "seed"}
            groups.setdefault(json.dumps([but_seed, _hardware(run)], sort_keys=True), []).append(run)
        rows = [
            [
                _sample(run), _plain(_chosen(run, "method")), _options(run), _setting(run),
                _plain(_chosen(run, "encoder")), _length(run), ", ".join(str(_chosen(r, "seed")) for r in group),
                *(_accuracy([r["metrics"].get(name) for r in group]) for name in shown),
                _time(run.get("seconds")), _hardware(run), str(run.get("environment", {}).get("date", ""))[:10],
            ]
            for run, *more in groups.values() for group in [[run, *more]]
        ]
        head = ["Data", "Method", "Options", "Setting", "Encoder", "Epochs", "Seeds",
                *(METRICS[name] for name in shown), "Time", "Hardware", "Date"]
        text += [f"### {_plain(experiment).capitalize()}", "", _table(head, rows), ""]
    if not runs:
        text += ["*None yet.*", ""]
    if costs:
        chapters = ", ".join(sorted({_plain(_chosen(run, "experiment")) for run in costs}))
        text += [f"Records of other things than accuracies, shown by their chapters: {len(costs)} ({chapters}).", ""]
    text += ["## Speed", "", "One training step, measured by `tests/benchmarks/training_speed.py`, beside a *plain* "
             "one in the same run: one image at a time through PIL in worker processes, float32, contiguous tensors, "
             "two forward passes. An image counts once, not its two views; the last column is 400 epochs of 50,000 "
             "images at the measured rate.", ""]
    text += [part for run in speed for part in _speed(run)] or ["*None yet.*", ""]
    text += ["## Printed in the papers", "", "As printed, with the place where each stands.", ""]
    for paper in dict.fromkeys(row["paper"] for row in papers):
        text += _paper(paper, root, "###")
        for table in dict.fromkeys(row["table"] for row in papers if row["paper"] == paper):
            group = [row for row in papers if (row["paper"], row["table"]) == (paper, table)]
            columns = [name for name in group[0] if name not in ("paper", "table") and any(row[name] for row in group)]
            rows = [[_plain(row[name]) for name in columns] for row in group]
            text += [f"``````{{dropdown}} {_plain(table)} ({len(group)} number{'s' * (len(group) > 1)})", "",
                     _table([name.capitalize() for name in columns], rows), "``````", ""]
    if not papers:
        text += ["*None yet.*", ""]
    rows = []
    for chapter, notebook in executed.items():
        about = notebook["metadata"]["hnlib"]
        rows.append([_link(chapter, chapter), f"{about['seconds']:.0f} s", about["executed"][:16].replace("T", " "),
                     about["python"], about["torch"]])
    text += ["## Status", "", "How long each chapter took when it was last executed, and on what. Times are UTC.", "",
             _table(["Chapter", "Run time", "Executed", "Python", "PyTorch"], rows), ""]
    return "\n".join(text)


def _speed(run: dict) -> list[str]:
    """One benchmark: its steps, what the methods add to a step, what the loop adds."""
    chosen, found, versions = run["configuration"], run["metrics"], run.get("environment", {}).get("versions", {})
    rates = ", ".join(f"{_metric(rate)} TFLOP/s in {name}" for name, rate in found["matrix_tflops"].items())
    text = [f"### {_plain(_chosen(run, 'device'))}", "",
            f"{chosen['method']}, batch size {chosen['batch_size']}, PyTorch {versions.get('torch', '?')}, "
            f"{str(run.get('environment', {}).get('date', ''))[:10]}. A large product of matrices: {rates}."
            + " **Toy size, as on every CPU: it shows that the benchmark works, not how fast anything is.**"
            * bool(found["toy"]), ""]
    rows = []
    for row in found["rows"]:
        kind = {"ours": "compiled" if row["compiled"] else "ours"}.get(row["kind"], row["kind"])
        name = [kind, row["encoder"], row["precision"]]
        if row["error"] or row["left_out"]:
            rows.append([*name, _plain(row["error"] or row["left_out"]), *["–"] * 7])
        elif "hours_400" in row:
            shares, memory = row["shares"], row["peak_memory_mb"]
            share = f" ({100 * row['share_of_rate']:.0f}&nbsp;%)" if row["share_of_rate"] else ""
            parts = ("augmentation", "forward_backward", "loss", "optimiser")
            rows.append([*name, f"{row['images_per_second']:,.0f}", f"{_metric(row['tflops'])}{share}",
                         *(_percent(shares.get(part)) for part in parts),
                         "–" if memory is None else f"{memory / 1024:.1f}&nbsp;GiB", _time(3600 * row["hours_400"])])
    head = ["Step", "Encoder", "Precision", "Images/s", "TFLOP/s (of the matrices')", "Augmentation", "Network", "Loss",
            "Optimiser", "Memory", "400 epochs"]
    text += [_table(head, rows), ""]
    for encoder, times in found["speedup"].items():
        text += [f"{encoder}: {times['fastest']:.1f} times the plain step ({times['fastest_is']}).", ""]
    for row in found["rows"]:
        where = f"{row['encoder']}, {row['precision']}"
        if "extra" in row:
            added = sorted(row["extra"].items(), key=lambda item: item[1])
            text += [f"Added to a whole step by each method ({where}): "
                     + ", ".join(f"{name} {_percent(extra, '+.1f')}" for name, extra in added) + ".", ""]
        if "overhead" in row:
            text += [f"Added by the augmentation to a step on views that are ready: "
                     f"{_percent(row['overhead']['augmentation'], '+.1f')}; by the training loop to that: "
                     f"{_percent(row['overhead']['loop'], '+.1f')} ({where}).", ""]
    return text


def _percent(share, form: str = ".0f") -> str:
    return "–" if share is None else f"{100 * share:{form}}&nbsp;%".replace("-", "−")


def _chosen(run: dict, name: str):
    """What the configuration of a run says under ``name``; an empty text where it says nothing."""
    value = run["configuration"].get(name)
    return "" if value is None else value


def _key(run: dict) -> tuple:
    return tuple(str(_chosen(run, name)) for name in ("dataset", "encoder", "method")) + tuple(
        _chosen(run, name) or 0 for name in ("epochs", "train_size", "seed")
    )


def _sample(run: dict) -> str:
    size = _chosen(run, "train_size")
    return _plain(_chosen(run, "dataset")) + (f", {size:,} images" if size else "")


def _length(run: dict) -> str:
    steps = _chosen(run, "max_steps")
    return f"{_chosen(run, 'epochs')}" + (f", {steps} steps at most" if steps else "")


def _setting(run: dict) -> str:
    """What is unusual about the training, beside the options of the method."""
    usual = {"batch_size": 256, "lr": 1e-3}
    usual |= {"batch_size": 128, "ratio": 0.2, "hidden": 32, "folds": 10} if _chosen(run, "framework") else {}
    shown = ("framework", "labels", "ratio", "hidden", "folds", "recipe", "batch_size", "lr", "lr_schedule", "schedule",
             "oracle_positives", "queue", "momentum")
    return _plain(", ".join(f"{key} {_chosen(run, key)}" for key in shown
                            if _chosen(run, key) not in ("", usual.get(key))))


def _accuracy(values: list) -> str:
    values = [100 * value for value in values if value is not None]
    if not values:
        return "–"
    spread = f"&nbsp;±&nbsp;{statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def _metric(value) -> str:
    return "–" if value is None else f"{value:.4g}"


def _time(seconds) -> str:
    if not isinstance(seconds, int | float):
        return "–"
    return f"{seconds:.0f}&nbsp;s" if seconds < 600 else f"{seconds / 60:.0f}&nbsp;min"


def _plain(value) -> str:
    """``value`` as text in which Markdown finds nothing of its own; formulas stay."""
    text = str(value)
    return text if "$" in text else re.sub(r"([*_<>`\\])|(?<!\w)([\[\]])", r"\\\g<0>", text)


def _options(run: dict) -> str:
    from hnlib import methods

    changed = methods.changed(_chosen(run, "method"), _chosen(run, "options") or {}, _chosen(run, "framework"))
    return _plain(", ".join(f"{name} {_short(value)}" for name, value in changed.items() if value is not None))


def _short(value):
    return "/".join(f"{x:.3g}" for x in value) if isinstance(value, list | tuple) else value


def _hardware(run: dict) -> str:
    hardware = run.get("environment", {}).get("hardware", {})
    return _plain(hardware.get("gpu") or f"{hardware.get('cpu', '')}, {hardware.get('threads', '?')} threads")


def write(folder: Path, executed: dict[str, dict], root: Path, draft: bool = False) -> None:
    """Generate ``claims.md``, ``results.md`` and ``claims.json`` in ``folder``, the staged ``book``.

    ValueError: a claim that no chapter checks with a control (for a definition: at all), unless it is a ``draft``.
    """
    listed = read_csv(root / "book/claims.csv")
    records = harvest(executed)
    if not draft and (unchecked := _unchecked(listed, records)):
        raise ValueError(f"no chapter checks {', '.join(unchecked)} with a negative control; add a claims.check for "
                         "each, or take its row out of book/claims.csv.")
    papers = read_csv(root / "book/results/papers.csv")
    runs = []
    if any((root / "book/results/runs").glob("*.json")):
        from hnlib import records as room

        runs = room.load_all(root / "book/results/runs")
    (folder / "claims.md").write_text(claims_page(listed, records, root), encoding="utf-8")
    (folder / "results.md").write_text(results_page(runs, papers, executed, root), encoding="utf-8")
    (folder / "theme").mkdir(exist_ok=True)
    (folder / "theme/claims.json").write_text(json.dumps(records, indent=1, sort_keys=True), encoding="utf-8")
