"""Figures on a phone, the index of the search, and fractions in a line."""

import json
from pathlib import Path
from types import SimpleNamespace

from scripts import script

web = script("book/ext/web.py")
pages = script("book/ext/pages.py")
search = script("book/ext/search.py")


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
