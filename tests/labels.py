"""The names of statements and claims: those that stand in the sources, and the list of all there have been."""

import csv
import re
from pathlib import Path

from scripts import ROOT

LIST, CLAIMS = "book/labels.csv", "book/results/claims.csv"
LEDGER = "notebooks/errata"  # whose rows have the claims' names
STATEMENT = re.compile(r"^`{3,}\{prf:(?!proof\})\w+\}.*\n((?::\w+:.*\n)*)", re.M)


def read(text: str) -> list[dict[str, str]]:
    """Return the rows of the list: a label with its page, or with where it went."""
    return [*csv.DictReader(text.splitlines(), strict=True)]


def listed(root: Path = ROOT) -> list[dict[str, str]]:
    return read((root / LIST).read_text("utf-8"))


def standing(root: Path = ROOT) -> dict[str, str]:
    """Return the page of every label of a statement in the sources, and of every claim."""
    found = {}
    for page in sorted([*root.glob("notebooks/**/*.md"), *root.glob("book/*.md")]):
        where = page.relative_to(root).with_suffix("").as_posix()
        for options in STATEMENT.findall(page.read_text("utf-8")):
            (label,) = re.findall(r"^:label: (\S+)$", options, re.M) or [f"no label: {where}"]
            found[label] = where
    claims = csv.DictReader((root / CLAIMS).read_text("utf-8").splitlines())
    return found | {f"claim-{claim['id']}": LEDGER for claim in claims}


def unbuilt(html: Path, root: Path = ROOT) -> list[str]:
    """Return the listed labels that their built pages do not have."""
    built = {}
    for page in {one["page"] for one in listed(root) if one["page"]}:
        text = (html / f"{page}.html").read_text("utf-8")
        built[page] = {*re.findall(r'\bid="([^"]+)"', text)}
    return [
        one["label"]
        for one in listed(root)
        if one["label"] not in built.get(one["page"], [one["label"]])
    ]
