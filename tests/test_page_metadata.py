"""What stands in a page's head and beside the pages."""

import json
from pathlib import Path
from types import SimpleNamespace

from docutils import nodes
from docutils.utils import new_document
from scripts import script

page_metadata = script("book/ext/page_metadata.py")
html_repairs = script("book/ext/html_repairs.py")
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
    found = page_metadata.description(document(box, time, long))
    assert (
        found
        == (2 * "A sentence of some words that says what the page is about, and ends. ").strip()
    )
    assert page_metadata.description(document(time, "What a run is.", long)) == "What a run is."
    assert page_metadata.description(document(box, time)) == ""


def test_a_phone_is_offered_the_narrow_drawing_of_a_figure(tmp_path):
    """One with a narrow drawing in its output, whose panels are stacked; others stay as they are."""
    outputs = [
        {"data": {"image/svg+xml": ["<svg>\n", "wide</svg>"]}, "metadata": {"narrow": "<svg/>"}},
        {"data": {"image/svg+xml": "<svg/>"}, "metadata": {}},
    ]
    (tmp_path / "page.ipynb").write_text(json.dumps({"cells": [{"outputs": outputs}]}))
    name = html_repairs.hashlib.sha256(b"<svg>\nwide</svg>").hexdigest()
    images = [f'<img alt="A" src="../_images/{file}.svg" />' for file in (name, "other")]
    env = SimpleNamespace(doc2path=lambda page: str(tmp_path / f"{page}.ipynb"))
    words = "<figcaption>Left: accuracy; what is right. (right)</figcaption>"
    context = {"body": f"{images[0]} {words}{images[1]} {words}"}
    html_repairs._narrow(SimpleNamespace(env=env, outdir=tmp_path), "page", "", context, "a tree")
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
    assert {tex: page_metadata.fractions(tex) for tex in said} == said
