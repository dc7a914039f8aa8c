"""What stands in a page's head and beside the pages."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.utils import new_document
from PIL import Image
from scripts import script

import hnlib
from builder import build

web = script("book/ext/web.py")
pages = script("book/ext/pages.py")
search = script("book/ext/search.py")


def document(*texts):
    page = new_document("page")
    for text in texts:
        page += text if isinstance(text, nodes.Node) else nodes.paragraph("", text)
    return page


def test_a_description_is_the_first_sentences_of_the_first_paragraph():
    """Neither those of a box nor the reading time; a short one will do."""
    box = nodes.note("", nodes.paragraph("", "What a box says is not what a page is about. " * 3))
    minutes = nodes.emphasis("", "27 minutes for the core, 80 with proofs, pencil and exercises.")
    time = nodes.paragraph("", "", minutes)
    long = "A sentence of some words that says what the page is about, and ends. " * 4
    found = web.description(document(box, time, long))
    assert (
        found
        == (2 * "A sentence of some words that says what the page is about, and ends. ").strip()
    )
    assert web.description(document(time, "What a run is.", long)) == "What a run is."
    assert web.description(document(box, time)) == ""


def test_formulas_keep_their_letters_and_lose_their_accents():
    text = r"$\hat\Pi \ne \Lambda$, $\lambda \in \langle a\rangle$"
    assert " ".join(re.sub(r"\\(\w+)\s*", web.letter, text).split()) == "$Π ≠ Λ$, $λ ∈ ⟨a⟩$"


ADDRESS = "https://name.github.io/book/"


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_beside_the_pages_stand_those_for_machines(tmp_path, monkeypatch, address):
    """With an address also the map of the site, every link whole; without one none is invented."""
    built = ["one", "part/two"]
    monkeypatch.setattr(web, "toc", lambda: [*built, "not/built"])
    for page in (*built, "404"):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        head = '<html><head><meta name="description" content="A &lt; B."></head>'
        (tmp_path / f"{page}.html").write_text(head)
    env = SimpleNamespace(titles={page: nodes.title("", f"Title of {page}") for page in built})
    config = SimpleNamespace(html_baseurl=address, html_title="Book")
    builder = SimpleNamespace(name="html")
    web._site(SimpleNamespace(builder=builder, outdir=tmp_path, config=config, env=env), None)
    texts = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    assert texts["index.html"] == texts["one.html"].replace(
        "<head>", '<head><base href="one.html">'
    )
    assert f'<head><base href="{address or "/"}">' in texts["404.html"]
    if address:
        assert texts["sitemap.txt"].split() == [f"{ADDRESS}{page}.html" for page in built]
        assert texts["robots.txt"] == f"Sitemap: {ADDRESS}sitemap.txt\n"
    else:
        assert not {"sitemap.txt", "robots.txt"} & texts.keys() and "https:" not in str(texts)


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_an_entry_for_citing_names_page_book_and_version(address):
    config = SimpleNamespace(
        author="A & B", html_title="Book", html_baseurl=address, copyright="2026"
    )
    app, page = SimpleNamespace(config=config), "notebooks/theory/packing"
    entry = web.entry(app, page, "8. Packing", "22 November 2026")
    assert entry.startswith("@misc{hnlib-packing,") and entry.count("{") == entry.count("}")
    assert "title = {Packing}" in entry and r"{Chapter 8 of \emph{Book}}" in entry
    assert f"note = {{version {hnlib.__version__}, 22 November 2026}}" in entry
    assert r"{In \emph{Book}}" in web.entry(app, page, "Packing", "")
    assert (f"url = {{{address}notebooks/theory/packing.html}}" in entry) == bool(address)


def test_a_theorem_gets_a_link_to_itself_and_a_note_does_not():
    box = '<div class="{}" id="here">\n<p class="admonition-title">A title</p>'
    linked = pages.TITLE.sub(pages.LINK, box.format("proof theorem admonition"))
    assert '<a class="headerlink" href="#here" title="Link to this theorem">#</a></p>' in linked
    note = box.format("admonition note")
    assert pages.TITLE.sub(pages.LINK, note) == note


def test_fine_print_is_an_appendix_of_its_chapter(monkeypatch):
    """Its chapter stands above its title."""
    monkeypatch.setattr(web, "toc", lambda: ["theory/packing", "theory/packing-more"])
    builder = SimpleNamespace(
        render_partial=lambda title: {"title": title},
        get_relative_uri=lambda *pages: "packing.html",
    )
    app = SimpleNamespace(
        builder=builder, env=SimpleNamespace(titles={"theory/packing": "Packing"})
    )
    context = {"body": "<h1>9. Excess</h1><h1>9.1. One</h1>"}
    web._appended(app, "theory/packing-more", context)
    link = '<em><a href="packing.html">Packing</a></em>'
    head = f'<p class="hn-appendix">Fine print of {link}</p>\n<h1>9. Excess</h1>'
    assert context["body"] == f"{head}<h1>9.1. One</h1>"


def test_a_page_of_source_says_what_it_is():
    """A page without a document that is none, as the search's, stays as it is."""
    app = SimpleNamespace(config=SimpleNamespace(html_baseurl="", html_title="Book"))
    source = {"title": "hnlib.negatives", "pathto": lambda *_, **options: "../"}
    web._page(app, "_modules/hnlib/negatives", "page.html", source, None)
    assert '<meta name="description" content="The source of hnlib.negatives' in source["metatags"]
    assert 'content="../_static/card.png"' in source["metatags"]
    other = source | {"title": "Search"}
    del other["metatags"]
    web._page(app, "search", "search.html", other, None)
    assert "metatags" not in other


def test_a_number_in_a_table_has_a_minus_and_a_name_breaks_after_its_dots():
    """Code, formulas, ranges and names that hold a hyphen stay as they are."""
    row = "<td>-0.5 (-.2, p-1) 2-3 CIFAR-10</td><th><code>lr -1</code></th>"
    row += (
        '<td title="-1"><span class="math">\\(-1\\)</span><code><span>hnlib.a.b</span></code></td>'
    )
    assert pages.CELL.sub(pages._cell, f"-1 {row}") == f"-1 {row}".replace(
        "-0.5 (-.2", "−0.5 (−.2"
    ).replace("hnlib.a.b", "hnlib.<wbr>a.<wbr>b")


def test_no_line_breaks_a_value():
    said = "at t = 0.1 it is 5 % [−0.2, +0.4], a = b"
    shown = said.replace("t = 0", "t\u00a0=\u00a00").replace("5 %", "5\u00a0%")
    code = "<pre>\nt = 0.1</pre>"
    joined = pages.VALUE.sub(pages._value, said + code)
    assert joined == shown.replace("2, +", "2,\u00a0+") + code


def test_a_phone_is_offered_the_narrow_drawing_of_a_figure(tmp_path):
    """One with a narrow drawing in its output, whose panels are stacked; others stay as they are."""
    outputs = [
        {"data": {"image/svg+xml": ["<svg>\n", "wide</svg>"]}, "metadata": {"narrow": "<svg/>"}},
        {"data": {"image/svg+xml": "<svg/>"}, "metadata": {}},
    ]
    (tmp_path / "page.ipynb").write_text(json.dumps({"cells": [{"outputs": outputs}]}))
    name = pages.hashlib.sha256(b"<svg>\nwide</svg>").hexdigest()
    images = [f'<img alt="A" src="../_images/{file}.svg" />' for file in (name, "other")]
    env = SimpleNamespace(doc2path=lambda page: str(tmp_path / f"{page}.ipynb"))
    words = "<figcaption>Left: accuracy; what is right. (right)</figcaption>"
    context = {"body": f"{images[0]} {words}{images[1]} {words}"}
    pages._narrow(SimpleNamespace(env=env, outdir=tmp_path), "page", "", context, "a tree")
    source = f'<source media="(max-width: 600px)" srcset="../_images/{name}-narrow.svg">'
    both = '<span class="hn-on-wide">{}</span><span class="hn-on-narrow">{}</span>'.format
    stacked = words.replace("Left", both("Left", "Top")).replace(
        "(right", f"({both('right', 'bottom')}"
    )
    picture = f"<picture>{source}{images[0]}</picture>"
    assert context["body"] == f"{picture} {stacked}{images[1]} {words}"
    assert Path(tmp_path, "_images", f"{name}-narrow.svg").read_text() == "<svg/>"


def test_the_index_of_the_search_has_sections_statements_and_checks():
    """Each with its own text alone, formulas without markup, code and links left out."""
    page = """<section id="one"><h2>1. Title<a class="headerlink">#</a></h2>
    <p>Words \\(\\tfrac{a}{\\beta}\\) here.</p><pre>code</pre>
    <div class="proof theorem" id="thm"><p class="admonition-title">Theorem 2.6 (Name)</p><p>Stated.</p></div>
    <div class="hn-claim" id="check"><a class="hn-claim-id">O9</a><span class="hn-claim-title">verified</span></div>
    </section>"""
    assert search.entries(page) == [
        ["one", "1. Title", "Words a/β here."],
        ["thm", "Theorem 2.6 (Name)", "Stated."],
        ["check", "O9 verified", "O9"],
    ]


def test_a_fraction_in_a_line_keeps_its_meaning():
    said = {
        r"\tfrac12": "1/2",
        r"\frac{1+\beta}t": r"(1+\beta)/t",
        r"\frac{Q\tau^+}{1-\tau^+}": r"Q\tau^+/(1-\tau^+)",
        r"\frac1{\frac ab}": "1/a/b",
    }
    assert {tex: web.fractions(tex) for tex in said} == said


def test_a_card_says_what_a_page_is_about(tmp_path):
    """Its words stand on the left; the picture of the book stays on the right."""
    paths = [tmp_path / "cards" / name for name in ("one.png", "other.png")]
    for path, title in zip(paths, ("A title of a page", "Another")):
        web.card(title, "What the page says first. " * 6, path)
    one, other = (Image.open(path).convert("RGB") for path in paths)
    left, right = (0, 0, 690, 630), (700, 0, 1200, 630)
    assert one.size == (1200, 630)
    assert one.crop(left).tobytes() != other.crop(left).tobytes()
    assert one.crop(right).tobytes() == other.crop(right).tobytes()


def test_each_module_of_the_api_has_a_page(tmp_path):
    """And the page of all lists them, with the first line that each says of itself."""
    (tmp_path / "book").mkdir()
    block = "```{eval-rst}\n.. automodule:: hnlib.negatives\n```"
    text = f"# API\n\n## Losses\n\n### `hnlib.negatives`\n\n{block}\n\n## Others\n\nWords.\n"
    (tmp_path / "book/api.md").write_text(text)
    (tmp_path / "_toc.yml").write_text("      - file: book/api\n      - file: book/references\n")
    build._api_pages(tmp_path)
    assert (
        tmp_path / "book/api/hnlib.negatives.md"
    ).read_text() == f"# hnlib.negatives\n\n{block}\n"
    listed = (tmp_path / "book/api.md").read_text()
    assert "- {doc}`/book/api/hnlib.negatives`: Distributions over negatives" in listed
    assert "\n\n## Others" in listed and "automodule" not in listed
    toc = "- file: book/api\n        sections:\n          - file: book/api/hnlib.negatives\n"
    assert toc in (tmp_path / "_toc.yml").read_text()
