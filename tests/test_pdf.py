"""The book as one document, from which the PDF is printed."""

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
    text = pdf.document(tmp_path, pdf.toc())
    assert '<li><a href="#a/one">1. A &lt; B</a></li><li><a href="#book/results">' in text
    assert text.index('data-page="a/one">') < text.index('data-page="book/results" data-folded>')
    assert text.count('src="_images/x.svg"') == 2 and "../" not in text and "Print" not in text
