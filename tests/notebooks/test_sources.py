"""The sources of the chapters: what a reader who copies, listens or sets parameters relies on."""

import ast
import re

import jupytext
import pytest

from builder import build
from builder.reading_time import figure, hidden, minutes
from hnlib.notebooks import execute

CHAPTERS = sorted((execute.root() / "notebooks").rglob("*.md"))
DRAWS = re.compile(
    r"\.(subplots|figure|subplot_mosaic)\(|\bfigures\.(?!use_style|COLOU?RS|LABELS|interactive|coordinates)[a-z_]+\("
)


def unseen(cells) -> set[str]:
    """Return the functions that shown code calls and hidden code defines."""
    found, defined = set(), {}
    for cell in cells:
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


def draws(cell) -> bool:
    """Whether a cell shows a figure; a function draws where it is called, or by its decorator."""
    statements = ast.parse(cell.source).body
    shown = (s for s in statements if not isinstance(s, ast.FunctionDef) or s.decorator_list)
    return any(DRAWS.search(ast.unparse(statement)) for statement in shown)


def violations(chapter) -> dict:
    """Return everything that is wrong with a chapter's source, by rule."""
    cells = [cell for cell in chapter.cells if cell.cell_type == "code"]
    silent = [c.source for c in cells if draws(c) and len(figure(c, "image", "alt")) < 20]
    rules = {
        "figure without an alternative text": silent,
        "shown code calls hidden code": unseen(cells),
    }
    return {rule: found for rule, found in rules.items() if found}


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter(path):
    chapter = jupytext.read(path)
    assert violations(chapter) == {}
    execute.parameters_of(chapter)  # literals, which `hnlib run` can check


def test_every_violation_is_found_and_reading_time_counts_what_is_open():
    """Negative control: a chapter that breaks the rules, and how many times each."""
    text = """# A title
One $x+y$ two.

```{code-cell} ipython3
:tags: [hide-input]
def f(x): return x
g = f
```

<!-- checks -->

Three hundred words.

```{code-cell} ipython3
h = map(f, [g(1)])
ax = plt.subplots()
```

<!-- end of checks -->

```{code-cell} ipython3
@figures.panels(1, (7, 3))
def draw(ax):
    ax.plot(x)
```

Four <!-- more: Title --> five <!-- end of more --> six.
"""
    chapter = jupytext.reads(text, "md:myst")
    found = {rule: len(wrong) for rule, wrong in violations(chapter).items()}
    assert found == {"figure without an alternative text": 2, "shown code calls hidden code": 2}
    assert minutes(chapter) == pytest.approx(33 / 200)


def test_every_notebook_is_in_the_table_of_contents():
    assert set(build.chapters()) == set(CHAPTERS)
