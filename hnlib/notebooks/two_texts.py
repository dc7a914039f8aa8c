"""The two kinds of text of a page: what is true at any parameters, and what we found.

A finding stands between ``<!-- finding -->`` and ``<!-- end of finding -->``, in a text or in the
caption of a figure. The book shows it as prose. A notebook, and a page at other parameters, quote
it under *In the published runs*, with the published numbers, and leave it out of captions; they end
with the page's comparisons, yours beside the published.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

FINDING = re.compile(r"<!-- finding -->(.*?)<!-- end of finding -->", re.S)
APART = re.compile(
    r"\s*(?P<mark><!-- finding -->)(?P<inside>.*?)<!-- end of finding -->(?P<after>\s*)", re.S
)
MARK = re.compile(r"<!-- (?:end of )?finding -->")
HEAD = "*In the published runs:*"
BESIDE = """## Yours beside the published

Each comparison of this page, here and in the published runs, with its 95 % interval if there are
seeds enough. Intervals of what the page compares at once at these parameters hold together, on both
sides. *Beats* says that a number is higher, not that higher is better. A dash: not among the
published runs."""
BESIDE_CODE = "from hnlib.experiments import beside\n\nbeside()"
LIST = re.compile(r"^( *)([-*] |\d+\. )")


def check(text: str) -> None:
    """Raise ValueError if a mark stands alone or inside another finding."""
    marks = MARK.findall(text)
    if marks != ["<!-- finding -->", "<!-- end of finding -->"] * (len(marks) // 2):
        raise ValueError("a finding needs a beginning and an end, and none stands inside another")


def in_findings(text: str, change: Callable[[str], str]) -> str:
    """Return a text with its findings changed, marks included."""
    return FINDING.sub(lambda found: change(found[0]), text)


def outside(text: str) -> str:
    """Return what stands outside the findings of a text."""
    return FINDING.sub("", text)


def quoted(text: str) -> str:
    """Return a text with each finding as a quotation of its own.

    A paragraph is divided where a finding stands in it; in a list the quotation is in its item.
    """

    def quote(found: re.Match) -> str:
        line = text[text.rfind("\n", 0, found.start("mark")) + 1 : found.start("mark")]
        item = LIST.match(line)
        indent = " " * len(item[0] if item else re.match(" *", line)[0])
        inside = [one.removeprefix(indent) for one in found["inside"].strip().splitlines()]
        whole = LIST.match(inside[0])  # a list, whose first item needs a line of its own
        lines = [HEAD, "", *inside] if whole else [f"{HEAD} {inside[0]}", *inside[1:]]
        block = "\n".join(f"{indent}> {one}".rstrip() for one in lines)
        _, newline, of_next_line = found["after"].rpartition("\n")
        return f"\n\n{block}\n\n{of_next_line if newline else indent}"

    return APART.sub(quote, text).strip("\n")


def without_marks(text: str) -> str:
    """Return a text as the book shows it: findings stand in it like the rest."""
    return MARK.sub("", text)


def without_findings(caption: str) -> str:
    """Return a caption without its findings."""
    return " ".join(outside(caption).split())


def as_notebook(node) -> None:
    """Quote the findings of a notebook, and leave them out of its captions."""
    for cell in node.cells:
        if cell.cell_type == "markdown":
            cell.source = quoted(cell.source)
        figure = cell.metadata.get("mystnb", {}).get("figure", {})
        if "caption" in figure:
            figure["caption"] = without_findings(figure["caption"])


def add_beside(node) -> None:
    """Let a notebook that trains end with its comparisons."""
    from nbformat.v4 import new_code_cell, new_markdown_cell

    if trains(node.cells):
        ids = ("beside-title", "beside")
        node.cells += [new_markdown_cell(BESIDE, id=ids[0]), new_code_cell(BESIDE_CODE, id=ids[1])]


def trains(cells: Iterable) -> bool:
    """Return whether a page trains, so that it has comparisons of its own."""
    return any("experiments.train" in cell.source for cell in cells if cell.cell_type == "code")
