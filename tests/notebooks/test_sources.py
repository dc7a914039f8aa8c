"""The sources of the chapters keep the rules of the house."""

import ast
import re

import jupytext
import pytest

from hnlib.book import build, execute

CHAPTERS = sorted((execute.root() / "notebooks").rglob("*.md"))
DRAWS = re.compile(
    r"\.(subplots|figure|subplot_mosaic)\(|\bfigures\.(?!use_style|COLOU?RS|LABELS|interactive)[a-z_]+\("
)


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    return jupytext.read(request.param)


def code_cells(chapter):
    return [cell for cell in chapter.cells if cell.cell_type == "code"]


def test_there_are_chapters():
    assert set(build.chapters()) == set(CHAPTERS), (
        "a notebook is missing in _toc.yml, or named there in vain"
    )


def test_cells_fit_on_a_screen(chapter):
    assert [cell.source for cell in code_cells(chapter) if len(cell.source.splitlines()) > 25] == []


def test_figures_have_an_alternative_text(chapter):
    """A cell that draws says in words what there is to see (``mystnb: image: alt``)."""
    silent = [
        cell.source
        for cell in code_cells(chapter)
        if any(
            DRAWS.search(ast.unparse(statement))
            for statement in ast.parse(cell.source).body
            if not isinstance(statement, ast.FunctionDef)
        )  # a function draws where it is called
        and len(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")) < 20
    ]
    assert silent == []


def test_proofs_begin_with_a_sentence(chapter):
    """A list in the first line of a proof is printed as running text."""
    assert [
        cell.source[:200]
        for cell in chapter.cells
        if re.search(r"```\{prf:proof\}\n(:.*\n)*(\d+\.|[-*]) ", cell.source)
    ] == []


def test_nothing_is_left_to_do(chapter):
    assert [
        cell.source for cell in chapter.cells if re.search(r"\b(TODO|FIXME|XXX)\b", cell.source)
    ] == []


def test_begins_with_its_title(chapter):
    assert chapter.cells[0].source.startswith("# ")
    titles = [
        line
        for cell in chapter.cells
        if cell.cell_type == "markdown"
        for line in re.sub(r"```.*?```", "", cell.source, flags=re.S).splitlines()
        if re.match(r"# ", line)
    ]
    assert len(titles) == 1


def test_parameters_can_be_read(chapter):
    """The parameters cell, where there is one, is a list of literal assignments, which `hnlib run`
    can check."""
    tagged = [cell for cell in code_cells(chapter) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) <= 1
    assert bool(execute.parameters_of(chapter)) == bool(tagged)


def test_has_no_outputs(chapter):
    assert all(not cell.outputs for cell in code_cells(chapter))
