"""The sources of the chapters: all are in the book."""

from builder import build
from hnlib.notebooks import execute


def test_every_notebook_is_in_the_table_of_contents():
    assert set(build.chapters()) == set((execute.root() / "notebooks").rglob("*.md"))
