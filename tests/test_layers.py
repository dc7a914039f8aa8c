"""What import-linter does not see: names of files, and what a class has."""

import ast
import io
import re
import tokenize

import pytest
from scripts import ROOT

LIBRARY = sorted((ROOT / "hnlib").rglob("*.py"))
#: Where the tracked evidence is, which one function knows
KNOWN = {("hnlib/_files.py", "book/results")}


def pages() -> set[str]:
    """Return the names of the book's files, but for code and evidence."""
    every = {*(ROOT / "notebooks").rglob("*.*"), *(ROOT / "book").rglob("*.*")}
    evidence, code = ROOT / "book/results", (".py", ".pyc")
    kept = (x for x in every if not x.is_relative_to(evidence) and x.suffix not in code)
    return {path.name for path in kept}


def files_named(source: str, names: set[str]) -> list[str]:
    """Return what strings and comments of a module say of files of the book."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = [token.string for token in tokens if token.type == tokenize.COMMENT]
    constants = (node.value for node in ast.walk(ast.parse(source)) if hasattr(node, "value"))
    texts += [text for text in constants if isinstance(text, str)]
    within = re.compile(r"(?<![\w/.-])(?:notebooks|book)/\w[\w./-]*")
    found = [one.rstrip(".") for text in texts for one in within.findall(text)]
    return found + [
        one for text in texts for one in re.findall(r"[\w-]+\.\w+", text) if one in names
    ]


def test_the_library_names_no_file_of_the_book():
    """It would be wrong away from a checkout, and stays behind when a page moves."""
    names = pages()
    assert len(names) > 60 and {"every-loss.md", "typed.js"} < names
    found = {
        (path.relative_to(ROOT).as_posix(), one)
        for path in LIBRARY
        for one in files_named(path.read_text("utf-8"), names)
    }
    assert found == KNOWN


@pytest.mark.parametrize(
    "source",
    ['def f():\n    """See every-loss.md."""', "x = 1  # as book/theme/x", 'f"{x}/typed.js"'],
)
def test_a_name_in_a_docstring_a_comment_or_a_text_is_found(source):
    assert files_named(source, {"every-loss.md", "typed.js"})
    assert not files_named("x = 'hnlib/notebooks/execute.py'  # notebook/s, a book", pages())
