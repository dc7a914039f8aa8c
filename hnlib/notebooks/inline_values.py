"""Numbers in sentences: {eval}`EXPRESSION` in a text is replaced by the expression's value.

As in MyST-NB, names in the expression have the values that they have once the cells above have run.
An executed notebook holds the text with its numbers, so pages, downloads and the search have them.
"""

from __future__ import annotations

import re

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


def substitute(node) -> dict[str, str]:
    """Remove the cells of `add_cells`, put their values into the text and return them."""
    cells, said, values = [], iter(()), {}
    for cell in node.cells:
        if "inline" in cell.metadata.get("tags", ()):
            said = iter(cell.outputs[0].data[MIME])
            continue
        if cell.cell_type == "markdown":
            values.update(zip(EVAL.findall(cell.source), said))
            cell.source = EVAL.sub(lambda found: values[found[1]], cell.source)
        cells.append(cell)
    node.cells = cells
    return values


def blank(node):
    """Return a notebook that was not executed with a dash for every expression."""
    for cell in node.cells:
        if cell.cell_type == "markdown":
            cell.source = EVAL.sub("\u2013", cell.source)
    return node
