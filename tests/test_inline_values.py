"""Numbers of sentences: expressions in a notebook's text, and what stands for them."""

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from builder import ledger_pages
from hnbook.tables import format_value
from hnlib.notebooks import inline_values


def test_an_expression_is_what_it_is_where_the_text_stands():
    cells = [
        new_markdown_cell("Without."),
        new_code_cell("x = 1.25"),
        new_markdown_cell("Then {eval}`x` and\n{eval}`f'{x:.0f} %'`."),
        new_code_cell("x = 2.0"),
        new_markdown_cell("Now {eval}`x`."),
    ]
    node = new_notebook(cells=cells)
    inline_values.add_cells(node)
    assert [cell.cell_type[0] for cell in node.cells] == list("mccmccm")
    names, said = {}, []
    for cell in node.cells:
        if "inline" in cell.metadata.get("tags", ()):
            asked = cell.source.partition("show_inline(")[2][:-1]
            said = [format_value(value) for value in eval(f"[{asked}]", names)]
            cell.outputs = [new_output("display_data", {inline_values.MIME: said})]
        elif cell.cell_type == "code":
            exec(cell.source, names)
    inline_values.substitute(node)
    texts = [cell.source for cell in node.cells if cell.cell_type == "markdown"]
    assert texts == ["Without.", "Then 1.2 and\n1 %.", "Now 2.0."]
    assert len(node.cells) == len(cells)


def test_a_page_without_code_has_its_numbers_too(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A gain of {eval}`gain\n  * 2` points.")
    ledger_pages.fill_values(page, {"gain": 0.25})
    assert page.read_text() == "A gain of 0.5 points."
