"""What stands in a page's head and beside the pages."""

import json
from pathlib import Path
from types import SimpleNamespace

import html_repairs
import page_metadata
from docutils import nodes
from docutils.utils import new_document


def test_a_description_is_the_first_paragraph_without_a_formula():
    """But not one of a box; it is cut at a word."""
    page, long = new_document("page"), "A sentence that says what it is about. " * 9
    page += nodes.note("", nodes.paragraph("", "What a box says."))
    page += nodes.paragraph("", "Let ", nodes.math("", "x"))
    assert page_metadata.description(page) == ""
    page += nodes.paragraph("", long)
    found = page_metadata.description(page)
    assert 150 < len(found) <= 200 and found.endswith(" …") and found[:-2] in long


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
    words = "<figcaption>Left: accuracy; what is right.</figcaption>"
    context = {"body": f"{images[0]} {words}{images[1]} {words}"}
    app = SimpleNamespace(env=env, outdir=tmp_path)
    html_repairs.offer_narrow(app, "page", "", context, "a tree")
    source = f'<source media="(max-width: 600px)" srcset="../_images/{name}-narrow.svg">'
    both = '<span class="hn-on-wide">Left</span><span class="hn-on-narrow">Top</span>'
    stacked = words.replace("Left", both)
    picture = f"<picture>{source}{images[0]}</picture>"
    assert context["body"] == f"{picture} {stacked}{images[1]} {words}"
    assert Path(tmp_path, "_images", f"{name}-narrow.svg").read_text() == "<svg/>"
