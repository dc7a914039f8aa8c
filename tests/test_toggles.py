"""Hidden cells become one toggle for each output, and no code is lost."""

import re

import pytest
from docutils import nodes
from docutils.utils import new_document
from hypothesis import given
from hypothesis import strategies as st
from scripts import script

toggles = script("book/ext/toggles.py")

HIDDEN, OUTPUT, SHOWN = "h", "o", "s"  # a hidden cell, one with an output, one that is shown


def cell(code, hidden=True, output=False):
    node = nodes.container(nb_element="cell_code")
    if hidden:
        node["hide_mode"] = "input"
    if code:
        source = nodes.container(nb_element="cell_code_source")
        source += nodes.literal_block(code, code, language="python")
        node += source
    if output:
        node += nodes.container("", nodes.paragraph("", "shown"), nb_element="cell_code_output")
    return node


def page(*sections):
    """A document; a cell is h, o or s, and its code is that letter and its place."""
    document, place = new_document("page"), 0
    for kinds in sections:
        section = nodes.section("", nodes.title("", "A section"))
        for kind in kinds:
            if kind.startswith("<"):
                section += nodes.raw("", kind, format="html")
            elif kind == "p":
                section += nodes.paragraph("", "words")
            else:
                section += cell(f"{kind}{place}", kind != SHOWN, kind == OUTPUT)
                place += 1
        document += section
    toggles.Walk(document)
    return document


def found(document):
    """The toggles: title and lines of code."""
    return [
        (t["prompt_show"], t.astext().split()) for t in document.findall(toggles.HideCodeCellNode)
    ]


def code(document):
    return [block.astext() for block in document.findall(nodes.literal_block)]


def rows(sections, set_up):
    """How many rows of outputs there are; the set-up, the first hidden cell, ends one."""
    text = "|".join(sections)
    text = text.replace(HIDDEN, SHOWN, 1) if set_up else text
    return len(re.findall(f"{OUTPUT}+", text.replace(HIDDEN, "")))


def test_a_run_becomes_one_toggle_behind_its_output():
    document = page("h", "phho")
    assert found(document) == [("Set-up", ["h0"]), ("How this was computed", ["h1", "h2", "o3"])]
    last = list(document.findall(nodes.container))[-3]
    assert [type(part).__name__ for part in last.children] == ["container", "HideCodeCellNode"]
    assert len(code(document)) == 2


def test_code_waits_for_the_next_output_of_its_section():
    assert found(page("h", "hpso"))[1][1] == ["h1", "o3"]


def test_code_behind_the_last_output_of_a_section_joins_it():
    assert found(page("h", "oh", "o"))[1:] == [
        ("How this was computed", ["o1", "h2"]),
        ("How this was computed", ["o3"]),
    ]


def test_outputs_in_a_row_share_a_toggle():
    document = page("h", "hoohopo")
    assert [lines for _, lines in found(document)[1:]] == [["h1", "o2", "o3", "h4", "o5"], ["o6"]]


def test_code_of_a_section_without_an_output_waits_for_the_next_section():
    assert found(page("h", "h", "o"))[1][1] == ["h1", "o2"]


def test_set_up_is_one_cell():
    assert found(page("hph", "so")) == [("Set-up", ["h0", "h1"]), ("How this was computed", ["o3"])]


@pytest.mark.parametrize("kind", ["checks", "fold: The solver"])
def test_what_is_closed_is_not_closed_twice(kind):
    document = page("h", [f"<!-- {kind} -->", "h", "o", "<!-- end of checks -->", "o"])
    assert found(document) == [("Set-up", ["h0"]), ("How this was computed", ["o3"])]
    assert code(document) == ["h0", "h1", "o2", "o3"]


@given(st.lists(st.text(f"{HIDDEN}{OUTPUT}{SHOWN}p", max_size=6), min_size=1, max_size=4))
def test_nothing_is_lost_and_every_toggle_has_its_output(sections):
    document = page(*sections)
    cells = [kind for kinds in sections for kind in kinds if kind != "p"]
    assert sorted(" ".join(code(document)).split()) == sorted(
        f"{kind}{i}" for i, kind in enumerate(cells)
    )
    toggle = [title for title, _ in found(document)]
    place = "".join(cells).replace(SHOWN, "").find(HIDDEN)
    assert toggle.count("Set-up") == (place == 0)
    assert toggle.count("How this was computed") == rows(sections, place == 0)
    for _, lines in found(document):  # in the order of the notebook
        assert lines == sorted(lines, key=lambda line: int(line[1:]))
    for node in document.findall(toggles.HideCodeCellNode):
        alone = len(node.parent.children) == 1
        assert alone == (node["prompt_show"] == "Set-up")
