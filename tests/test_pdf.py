"""The book as one document, and what is said where no browser is."""

import numpy as np
import paper

from builder import pdf


def test_all_pages_make_one_document(tmp_path, monkeypatch):
    """In their order, with a contents, and with paths of pictures that hold for the one file."""
    monkeypatch.setattr(pdf, "toc", lambda: ["a/one", "book/results"])
    page = """<head><meta property="og:site_name" content="Book">
    <link rel="stylesheet" href="../_static/book.css"></head>
    <h1>Print</h1><article class="bd-article"><h1>1. A &lt; B<a class="headerlink" href="#">#</a></h1>
    <img src="../_images/x.svg"></article>"""
    for name in pdf.toc():
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.html").write_text(page)
    text = pdf.document(tmp_path)
    assert '<li><a href="#a/one">1. A &lt; B</a></li><li><a href="#book/results">' in text
    assert text.index('data-page="a/one">') < text.index('data-page="book/results" data-folded>')
    assert text.count('src="_images/x.svg"') == 2 and 'href="_static/book.css"' in text
    assert "../" not in text and "Print" not in text
    alone = pdf.document(tmp_path, "a/one")
    assert "hn-leaflet" in alone and "<title>1. A &lt; B" in alone
    assert 'data-page="book/results"' not in alone and "hn-cover" not in alone


def test_a_half_empty_page_is_found():
    """Not the last page of a chapter."""
    white = np.zeros((280, 198))
    full, half = white.copy(), white.copy()
    full[20:250, 20:180] = 1
    half[20:100, 20:180] = half[270, 99] = 1  # and the number of the page
    assert paper.half_empty([full, half, half, full], {3}) == [2]
    assert paper.half_empty([white], set()) == [1]
