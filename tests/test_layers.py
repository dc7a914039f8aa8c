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


#: Methods that somebody has to know of one class
MOST = 20
CACHES = {"cache", "lru_cache"}
CODE = [
    path
    for folder in ("hnlib", "book/hnbook", "book/recorders")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def classes(source: str) -> list[tuple[str, list[ast.FunctionDef]]]:
    """Return the classes of a module with their methods and properties."""
    every = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(one.name, [x for x in one.body if isinstance(x, kinds)]) for one in every]


def caching(method: ast.FunctionDef) -> bool:
    """Return whether a method has a decorator that keeps what it returned for each object."""
    used = (x.func if isinstance(x, ast.Call) else x for x in method.decorator_list)
    return any(getattr(x, "attr", getattr(x, "id", "")) in CACHES for x in used)


def test_no_module_has_more_lines_than_one_reads_at_a_time():
    lines = {str(path): path.read_text("utf-8").count("\n") for path in LIBRARY}
    assert {name: count for name, count in lines.items() if count > 500} == {}
    assert max(lines.values()) > 400  # the sources are found


def test_no_class_has_more_methods_than_one_can_know():
    found = {
        (path.name, name): len(methods)
        for path in CODE
        for name, methods in classes(path.read_text("utf-8"))
    }
    assert len(found) > 100
    assert {one: count for one, count in found.items() if count > MOST} == {}


def test_no_method_is_cached():
    """That would keep every object for ever, and what it returned when the object has changed."""
    every = [(path.name, *one) for path in CODE for one in classes(path.read_text("utf-8"))]
    assert [x[:2] for x in every if any(map(caching, x[2]))] == []


@pytest.mark.parametrize(
    "decorator", ["cache", "functools.cache", "lru_cache", "functools.lru_cache(maxsize=8)"]
)
def test_a_cached_method_is_seen(decorator):
    within = "    @{}\n    def near(self):\n        return 1\n"
    ((name, (method,)),) = classes(f"class One:\n{within.format(decorator)}")
    assert name == "One" and caching(method)
    ((_, (method,)),) = classes(f"class One:\n{within.format('functools.cached_property')}")
    assert not caching(method)
