"""What every page says at its foot, and how its figures are numbered."""

import json
from types import SimpleNamespace

import html_repairs
import page_metadata

import hnlib

CHAPTER, START, APPENDIX = (
    f"notebooks/{x}" for x in ("theory/sharpness", "start-here", "theory/loudness")
)


def cell(name, *tags):
    return {"metadata": {"tags": [*tags], "mystnb": {"figure": {"name": name}}}}


def test_the_static_twin_of_a_moving_picture_has_no_number_and_the_next_one_takes_it(tmp_path):
    """On a chapter, on the start page, whose figures begin at 1, and in an appendix, with its letter."""
    page = tmp_path / "page.ipynb"
    cells = [cell("fig-twin", "remove-input", "static-of-picture"), cell("fig-next", "hide-input")]
    page.write_text(json.dumps({"cells": cells}))
    names = "fig-twin", "fig-next", "fig-last"
    given = {CHAPTER: (9,), START: (), APPENDIX: ()}
    numbers = {
        name: {
            kind: {x: (*place, i) for i, x in enumerate(names, 1)} for kind in ("figure", "table")
        }
        for name, place in given.items()
    }
    env = SimpleNamespace(toc_fignumbers=numbers, doc2path=lambda name: str(page))
    assert html_repairs.number_figures(None, env) == []
    assert numbers[CHAPTER]["figure"] == {"fig-next": (9, 1), "fig-last": (9, 2)}
    assert numbers[CHAPTER]["table"]["fig-next"] == (9, 2)
    assert numbers[START]["figure"] == {"fig-next": (1,), "fig-last": (2,)}
    (letter, *_), second = numbers[APPENDIX]["figure"].values()
    assert letter[0] == "A" and second == (letter, 2)


def test_a_page_says_its_licence_and_how_to_cite_it():
    context = {"pathto": lambda name: f"../../{name}.html"}
    page_metadata.show_foot(None, CHAPTER, "page.html", context, None)
    foot = context["theme_extra_footer"]
    assert hnlib.__version__ in foot and "MIT licence" in foot
    assert '<a href="../../book/references.html#how-to-cite">How to cite</a>' in foot
