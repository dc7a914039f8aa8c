"""The sources of the chapters: what can be read, and that nothing is cut, small or unexplained."""

import ast
import functools
import re

import jupytext
import pytest
from format_cells import COLUMNS

from builder import build
from builder.reading_time import figure, hidden, minutes
from hnlib.notebooks import execute

CHAPTERS = sorted((execute.root() / "notebooks").rglob("*.md"))
#: What an experiment's parameters name, so that papermill can drive it.
FIELDS = ("dataset", "encoder|layers", "methods?", "epochs", "seeds?", "precision", "checkpoints")
DRAWS = re.compile(
    r"\.(subplots|figure|subplot_mosaic)\(|\bfigures\.(?!use_style|COLOU?RS|LABELS|interactive|coordinates)[a-z_]+\("
)
SIZE = re.compile(r"(?:fontsize|labelsize|font_size)=([\d.]+)")


@functools.cache
def source(path):
    """The chapter at a path, read once."""
    return jupytext.read(path)


def code_cells(chapter):
    return [cell for cell in chapter.cells if cell.cell_type == "code"]


def words(chapter):
    return [cell.source for cell in chapter.cells if cell.cell_type == "markdown"]


def unseen(chapter) -> set[str]:
    """Return the functions that shown code calls and hidden code defines."""
    found, defined = set(), {}
    for cell in code_cells(chapter):
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


def without_bars_explained(chapter) -> list[str]:
    """Return the captions of figures with error bars that do not say what the bars are."""
    found = []
    for cell in code_cells(chapter):
        caption = figure(cell, "figure", "caption")
        bars = re.search(r"(?<!def )errorbars?\(|figures\.effect\(|± ?sd|[-+] sd\b", cell.source)
        explained = re.search(r"standard\s+deviation|95\s%\s+interval", caption)
        if (bars and caption and not explained) or re.search(r"standard\s+error", caption):
            found.append(caption)
    return found


def draws(cell) -> bool:
    """Return whether a cell draws; a function draws where it is called, or by its decorator."""
    statements = ast.parse(cell.source).body
    shown = (s for s in statements if not isinstance(s, ast.FunctionDef) or s.decorator_list)
    return any(DRAWS.search(ast.unparse(statement)) for statement in shown)


def violations(chapter) -> list:
    """Return everything that is wrong with a chapter's source."""
    cells, text = code_cells(chapter), "\n".join(words(chapter))
    lines = [line for cell in cells for line in cell.source.splitlines()]
    titles = re.findall(r"^# .*", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    shown = [cell.source for cell in cells if not hidden(cell)]
    every = [cell.source for cell in chapter.cells]
    alt = [(cell, figure(cell, "image", "alt")) for cell in cells]
    rules = {
        "more than 25 minutes": [minutes(chapter)] * (round(minutes(chapter)) > 25),
        "shown code calls hidden code": unseen(chapter),
        "shown cell of more than 25 lines": [s for s in shown if len(s.splitlines()) > 25],
        "line that is cut": [line for line in lines if len(line) > COLUMNS],
        "figure without an alternative text": [
            c.source for c, a in alt if draws(c) and len(a) < 20
        ],
        # figures are shown at five sixths of their size or more (book.js), and 9 pt are 10 px then
        "letters below 9 pt": [
            size for line in lines for size in SIZE.findall(line) if float(size) < 9
        ],
        # its least cells are white: book.css turns them round where the class says so
        "heat map that is white in the dark": [
            cell.source
            for cell in cells
            if re.search(r"\bheat_map\((?!.*cmap=)", cell.source)
            and figure(cell, "image", "classes") != "hn-heat-map"
        ],
        "bars without a meaning": without_bars_explained(chapter),
        "proof that begins with a list": re.findall(
            r"```\{prf:proof\}\n(?::.*\n)*(?:\d+\.|[-*]) .*", text
        ),
        "left to do": [s for s in every if re.search(r"\b(TODO|FIXME|XXX)\b", s)],
        "not one title, at the start": titles
        if len(titles) != 1 or not text.startswith("# ")
        else [],
        "two cells of parameters": tagged[1:],
        "output in the source": [cell.source for cell in cells if cell.outputs],
    }
    return [(rule, found) for rule, found in rules.items() if found]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter(path):
    chapter = source(path)
    assert violations(chapter) == []
    execute.parameters_of(chapter)  # literals, which `hnlib run` can check


def unnamed(chapter) -> list[str]:
    """Return the fields that an experiment's parameters do not name, none if it trains nothing."""
    names = execute.parameters_of(chapter)
    if "trains nothing, so it has no parameters" in " ".join("\n".join(words(chapter)).split()):
        return list(names)
    return [field for field in FIELDS if not any(re.fullmatch(field, name) for name in names)]


@pytest.mark.parametrize("path", [p for p in CHAPTERS if p.parent.name == "experiments"])
def test_an_experiment_that_trains_has_parameters(path):
    assert unnamed(source(path)) == []


def test_a_field_that_parameters_lack_is_noticed():
    source = "# T\n\n```{code-cell}\n:tags: [parameters]\nepochs = 1\n```\n"
    assert unnamed(jupytext.reads(source, "md:myst")) == [f for f in FIELDS if f != "epochs"]


def test_every_violation_is_found():
    """Negative control: a chapter that breaks the rules, and how many times each."""
    text = f"""# A title
```{{code-cell}} ipython3
:tags: [hide-input]
def f(x): return x
g = f
a = 1
```

# Another title

TODO

```{{prf:proof}}
1. A list.
```

```{{code-cell}} ipython3
---
mystnb:
  figure:
    caption: Accuracy, with bars.
---
h = map(f, [g(1)])
ax = plt.subplots()
ax.errorbar(x, y, e)
figures.heat_map(ax, w)
figures.heat_map(ax, w, cmap="mako")
ax.legend(fontsize=8.5)
ax.set_title("x", fontsize=9)
```

```{{code-cell}} ipython3
@figures.panels(1, (7, 3))
def draw(ax):
    ax.plot(x)
```

```{{code-cell}} ipython3
{"x" * 88}
# {"x" * 87}
"{"x" * 87}"
{("d = 1" + chr(10)) * 25}
```
"""
    found = dict(violations(jupytext.reads(text, "md:myst")))
    assert {rule: len(wrong) for rule, wrong in found.items()} == {
        "shown code calls hidden code": 2,
        "shown cell of more than 25 lines": 1,
        "line that is cut": 2,
        "figure without an alternative text": 2,
        "letters below 9 pt": 1,
        "heat map that is white in the dark": 1,
        "bars without a meaning": 1,
        "proof that begins with a list": 1,
        "left to do": 1,
        "not one title, at the start": 2,
    }


def test_reading_time_counts_what_is_open():
    """A strip may begin and end in a cell of its own, or among words."""
    text = """# A title
One $x+y$ two.

<!-- checks -->

Three hundred words.

```{code-cell} ipython3
closed()
```

<!-- end of checks -->

```{code-cell} ipython3
opened()
```

<!-- fold: A title -->

```{code-cell} ipython3
closed()
```

<!-- end of fold -->

```{solution} some
:class: dropdown
Closed.
```

Four <!-- more: Title --> five <!-- checks --> no <!-- end of checks --> no <!-- end of more --> six.
"""
    assert minutes(jupytext.reads(text, "md:myst")) == pytest.approx(17 / 200)


def test_every_notebook_is_in_the_table_of_contents():
    assert set(build.chapters()) == set(CHAPTERS)
