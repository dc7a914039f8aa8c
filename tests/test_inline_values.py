"""Numbers of sentences: expressions in a notebook's text, and what stands for them."""

import re

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from scripts import ROOT

from builder import ledger_pages
from hnbook import headlines
from hnbook.tables import format_value
from hnlib import experiments
from hnlib.experiments.comparisons import Effect
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


def test_a_draft_has_a_dash_for_each():
    node = new_notebook(cells=[new_markdown_cell("A {eval}`x[0]` b.")])
    assert inline_values.blank(node).cells[0].source == "A \u2013 b."


def test_an_effect_has_its_interval_and_says_whether_its_sign_is_unresolved():
    sure = Effect(1.25, 0.1, 9, "these images")
    assert format_value(sure) == "+1.2\u00a0[+1.0,\u00a0+1.5]"
    assert format_value(Effect(0.1, 0.1, 9, "these images")).endswith(", {term}`unresolved`")
    both = {"static": sure, "random": Effect(-1.0, 0.0, 9, "these images")}
    said = "+1.2\u00a0[+1.0,\u00a0+1.5] (static) and \u22121.0\u00a0[\u22121.0,\u00a0\u22121.0] (random)"
    assert format_value(both) == said
    assert format_value(-0.26) == "\u22120.3" and format_value("7") == "7"


def test_a_page_without_code_has_its_numbers_too(tmp_path):
    """No expression of *Questions people ask* is left, and a margin costs what its runs say."""
    page = tmp_path / "questions.md"
    page.write_text((ROOT / "book/questions.md").read_text("utf-8"), "utf-8")
    ledger_pages.fill_values(page, vars(headlines))
    text = " ".join(page.read_text("utf-8").split())
    (cost,) = re.findall(r"`margin=0.1` changed nDCG@10, in points, by −(\d\.\d)", text)
    guides = experiments.load("search-guides")
    without, own = (guides.group(arm, "random")["ndcg"] for arm in ("none", "self, −0.1"))
    assert "{eval}" not in text and abs(100 * (without.mean() - own.mean()) - float(cost)) < 0.05
    assert abs(100 * (without.mean() - own.mean()) - 1.2) > 0.05  # of runs that were superseded
