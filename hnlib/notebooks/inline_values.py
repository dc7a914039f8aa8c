"""Numbers in sentences: {eval}`EXPRESSION` in a text is replaced by the expression's value.

As in MyST-NB, names in the expression have the values that they have once the cells above have run.
An executed notebook holds the text with its numbers, so pages, downloads and the search have them.
"""

from __future__ import annotations

import re
from functools import partial

from hnlib.notebooks import two_texts

EVAL = re.compile(r"\{eval\}`([^`]+)`")
MIME = "application/x-hnlib-inline"
CODE = "from hnlib.experiments.words import show_inline\nshow_inline({})"


def add_cells(node) -> None:
    """Before every text with expressions, add a code cell that evaluates them."""
    from nbformat.v4 import new_code_cell

    cells = []
    for cell in node.cells:
        if cell.cell_type == "markdown" and (found := EVAL.findall(cell.source)):
            lines = ", ".join(" ".join(one.split()) for one in found)
            cells.append(new_code_cell(CODE.format(lines), metadata={"tags": ["inline"]}))
        cells.append(cell)
    node.cells = cells


def fix_findings(node, values: dict[str, str]) -> None:
    """Put the published values into the findings of a notebook that is not executed yet."""
    for cell in node.cells:
        if cell.cell_type == "markdown":
            cell.source = two_texts.in_findings(cell.source, partial(_with, values))


def of_findings(node) -> set[str]:
    """Return the expressions in the findings of a notebook."""
    texts = (cell.source for cell in node.cells if cell.cell_type == "markdown")
    return {
        one
        for text in texts
        for part in two_texts.FINDING.findall(text)
        for one in EVAL.findall(part)
    }


def say(text: str) -> None:
    """Display a text with the values of its expressions, as a page's sentences in a notebook."""
    from IPython import get_ipython
    from IPython.display import Markdown, display

    from hnlib.experiments.words import format_value

    names = get_ipython().user_ns
    value = lambda found: format_value(eval(" ".join(found[1].split()), names))  # noqa: E731
    display(Markdown(EVAL.sub(value, text)))


def substitute(node) -> dict[str, str]:
    """Remove the cells of `add_cells`, put their values into the text and return them.

    What a text outside its findings was before stays in the cell, as ``computed``: a notebook
    computes it again. Raises ValueError if an expression of a finding has two values on the page:
    at other parameters its published value is looked up by the expression.
    """
    cells, said, values, found = [], iter(()), {}, of_findings(node)
    for cell in node.cells:
        if "inline" in cell.metadata.get("tags", ()):
            said = iter(cell.outputs[0].data[MIME])
            continue
        if cell.cell_type == "markdown":
            two_texts.check(cell.source)
            for one in EVAL.findall(cell.source):
                value = next(said)
                if one in found and values.get(one, value) != value:
                    raise ValueError(
                        f"{{eval}}`{one}` of a finding is {value} here, and {values[one]} before; "
                        "give one of them another name"
                    )
                values[one] = value
            if EVAL.search(two_texts.outside(cell.source)):
                cell.metadata["computed"] = cell.source
            cell.source = _with(values, cell.source)
        cells.append(cell)
    node.cells = cells
    return values


def _with(values: dict[str, str], text: str) -> str:
    return EVAL.sub(lambda found: values[found[1]], text)
