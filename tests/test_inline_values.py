"""Numbers in the sentences of a page without code."""

from builder import ledger_pages


def test_a_page_without_code_has_its_numbers_too(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A gain of {eval}`gain\n  * 2` points.")
    ledger_pages.fill_values(page, {"gain": 0.25})
    assert page.read_text() == "A gain of 0.5 points."
