"""The sources of the chapters: what a reader who copies, listens or sets parameters relies on."""

import ast

import jupytext
import pytest

from builder import build
from builder.portable_notebooks import hidden
from hnlib.notebooks import execute

CHAPTERS = sorted((execute.root() / "notebooks").rglob("*.md"))


def unseen(chapter) -> set[str]:
    """Return the functions that shown code calls and hidden code defines."""
    found, defined = set(), {}
    for cell in (cell for cell in chapter.cells if cell.cell_type == "code"):
        nodes = list(ast.walk(ast.parse(cell.source)))
        functions = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        stored = [n for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
        bound = functions | {n.id for n in stored}
        if hidden(cell):
            defined |= {name: name in functions for name in bound}
            continue
        called = {n.func.id for n in nodes if isinstance(n, ast.Call) and hasattr(n.func, "id")}
        read = {n.id for n in nodes if isinstance(n, ast.Name)}
        defined = {name: function for name, function in defined.items() if name not in bound}
        found |= {
            name for name, function in defined.items() if name in (read if function else called)
        }
    return found


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter(path):
    chapter = jupytext.read(path)
    assert unseen(chapter) == set()
    execute.parameters_of(chapter)  # literals, which `hnlib run` can check


def test_hidden_code_that_is_called_is_found():
    text = """# A title

```{code-cell} ipython3
:tags: [hide-input]
def f(x): return x
g = f
```

```{code-cell} ipython3
h = map(f, [g(1)])
```
"""
    chapter = jupytext.reads(text, "md:myst")
    assert unseen(chapter) == {"f", "g"}


def test_every_notebook_is_in_the_table_of_contents():
    assert set(build.chapters()) == set(CHAPTERS)
