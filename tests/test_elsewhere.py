"""The book away from its checkout: one address for all, and notebooks that start elsewhere."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from builder import portable_notebooks
from hnlib.notebooks import plain_markdown
from hnlib.training import records

LABELS = {
    "a-label": "A title",
    "thm-prices": "Theorem 3.1",
    "eq-one": "(3.1)",
    "ex-one": "Exercise 3.1",
    "/notebooks/other": "Other *losses*",
}
THEOREM = "````{prf:theorem} Prices\n:label: thm-prices\n\nx\n````"
SOLUTION = "```{solution} ex-one\n:label: sol-one\n:class: dropdown\n$y$\n```"


@pytest.mark.parametrize(
    ("myst", "plain"),
    [
        (THEOREM, "**Theorem 3.1 (Prices)**\n\nx"),
        ("{prf:ref}`thm-prices`, {eq}`eq-one`, {ref}`a-label`", "Theorem 3.1, (3.1), A title"),
        ("{cite:p}`hcl,hclot`", "[Robinson et al., 2021; Jiang et al., 2023]"),
        ("[that\npage](../notebooks/other.md), [](other.md)", "*that\npage*, *Other losses*"),
        ("{py:func}`~hnlib.transport.sinkhorn`", "`hnlib.transport.sinkhorn`"),
        ("$$\nx\n$$ (eq-one)", "$$\nx\n\\tag{3.1}\n$$"),
        (SOLUTION, "<details><summary>Solution to Exercise 3.1</summary>\n\n$y$\n\n</details>"),
    ],
)
def test_myst_becomes_markdown_that_any_notebook_shows(monkeypatch, myst, plain):
    monkeypatch.setattr(plain_markdown, "LABELS", LABELS)
    assert plain_markdown.plain(myst, "notebooks/one").strip() == plain


def test_a_download_hides_what_the_page_hides_and_says_what_a_figure_shows(monkeypatch):
    monkeypatch.setattr(plain_markdown, "LABELS", {"fig-packing-rates": "Fig. 8.2"})
    figure = {"mystnb": {"figure": {"name": "fig-packing-rates", "caption": "See {cite:t}`hcl`."}}}
    cells = [
        new_markdown_cell("<!-- fold: Set-up -->"),
        new_code_cell("1"),
        new_markdown_cell("<!-- end of fold -->"),
        new_code_cell("2", metadata={"tags": ["remove-input"]} | figure),
        new_code_cell("3"),
    ]
    node = portable_notebooks.portable(new_notebook(cells=cells), "", "notebooks/theory/packing")
    _, title, folded, drawn, caption, last = node.cells
    assert title.source == "**Set-up**"
    assert caption.source == "**Fig. 8.2.** See Robinson et al., 2021."
    hidden = [tuple(cell.metadata.jupyter.values()) for cell in (folded, drawn, last)]
    assert hidden == [(True, True), (True, False), (False, False)]


def a_page(tags=("parameters",)):
    """An executed page with both kinds of text."""
    text = "It has {eval}`len(x)` runs. <!-- finding -->It gains {eval}`y`.<!-- end of finding -->"
    shown = text.replace("{eval}`len(x)`", "18").replace("{eval}`y`", "+1.7")
    figure = {"name": "fig-one", "caption": "Dots. <!-- finding -->Up.<!-- end of finding -->"}
    cells = [
        new_code_cell("small = False", metadata={"tags": [*tags]}),
        new_code_cell("experiments.train(one)"),
        new_markdown_cell(shown, metadata={"computed": text}),
        new_code_cell("draw()", metadata={"mystnb": {"figure": figure}}),
    ]
    inline = {"len(x)": "18", "y": "+1.7"}
    return new_notebook(cells=cells, metadata={"hnlib": {"inline": inline}})


def test_a_download_computes_what_follows_and_quotes_what_we_found():
    node = portable_notebooks.portable(a_page(), "", "notebooks/one")
    _, _, _, said, _, caption, title, table = node.cells
    assert "say(r" in said.source and "{eval}`len(x)` runs." in said.source
    assert "> *In the published runs:* It gains +1.7." in said.source
    assert "It has 18 runs." in said.outputs[0].data["text/markdown"]
    assert caption.source == "**fig-one.** Dots."
    assert title.source.startswith("## Yours beside") and "beside()" in table.source


def test_who_reads_the_book_reads_no_quotations():
    for node in (
        portable_notebooks.portable(a_page(), "", "notebooks/one", as_notebook=False),
        portable_notebooks.portable(a_page(tags=()), "", "notebooks/one"),  # without parameters
    ):
        assert "It has 18 runs. It gains +1.7." in [cell.source for cell in node.cells]
        assert not any("say(" in cell.source or "beside()" in cell.source for cell in node.cells)


def test_records_are_found_in_the_checkout_or_beside_the_notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "project_root", lambda: tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HNLIB_RECORDS", raising=False)
    with pytest.raises(ValueError, match=r"put that file, which the book links, beside the noteb"):
        records.tracked()
    (tmp_path / records.PARQUET).touch()
    assert records.tracked() == tmp_path / records.PARQUET
    folder = tmp_path / "here/book/results/records"
    folder.mkdir(parents=True)
    assert records.tracked() == folder
    monkeypatch.setenv("HNLIB_RECORDS", str(tmp_path))
    assert records.tracked() == tmp_path
    monkeypatch.setenv("HNLIB_RECORDS", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="neither a folder nor a Parquet"):
        records.tracked()
