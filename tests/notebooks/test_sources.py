"""The sources of the chapters: all are in the book, and their parameters can be set."""

import pytest

from builder import build
from hnlib.notebooks import execute

CHAPTERS = sorted((execute.root() / "notebooks").rglob("*.md"))


def test_every_notebook_is_in_the_table_of_contents():
    assert set(build.chapters()) == set(CHAPTERS)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_parameters_are_literals(path):
    """Which `hnlib run` can check."""
    execute.parameters_of(execute.read(path))
