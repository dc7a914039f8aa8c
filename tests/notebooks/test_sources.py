"""The sources of the chapters keep the rules of the house."""

import ast
import re

import jupytext
import pytest
from format_cells import COLUMNS

from hnlib.book import build, execute

CHAPTERS = sorted((execute.root() / "notebooks").rglob("*.md"))
DRAWS = re.compile(
    r"\.(subplots|figure|subplot_mosaic)\(|\bfigures\.(?!use_style|COLOU?RS|LABELS|interactive)[a-z_]+\("
)
# What is closed on a page: strips, code and words under a title (book/ext/checks.py).
STRIP = re.compile(r"<!-- (end of )?(checks|fold|more)\b[^>]*-->")
HIDDEN = {"hide-input", "remove-input", "remove-cell"}
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$]+\$", re.S)
DROPDOWN = re.compile(r"^(`{3,}|:{3,})\{.*\n(?::.*\n)*?:class:.*dropdown.*\n[\s\S]*?^\1$", re.M)


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    return jupytext.read(request.param)


def code_cells(chapter):
    return [cell for cell in chapter.cells if cell.cell_type == "code"]


def hidden(cell):
    return bool(HIDDEN & {*cell.metadata.get("tags", [])})


def opened(chapter):
    """The cells of a page and the words between them that no strip closes, in order."""
    closed = False
    for cell in chapter.cells:
        if cell.cell_type == "code":
            if not closed:
                yield cell
            continue
        parts = STRIP.split(cell.source)  # text, "end of ", kind, text, …
        for text, end in zip(parts[::3], [*parts[1::3], None], strict=True):
            if not closed:
                yield text
            closed = closed if text is parts[-1] else end is None


def minutes(chapter) -> float:
    """Reading time of a page's core at 200 words a minute, a formula counted as three words: prose,
    captions and the code that is shown; strips and dropdowns are closed."""
    core = []
    for part in opened(chapter):
        if isinstance(part, str):
            core.append(re.sub(r"^\s*[`:]{3,}.*$", "", DROPDOWN.sub("", part), flags=re.M))
        else:
            core.append(part.metadata.get("mystnb", {}).get("figure", {}).get("caption", ""))
            core.append("" if hidden(part) else part.source)
    return len(re.findall(r"\S*\w\S*", FORMULA.sub(" f f f ", "\n".join(core)))) / 200


def test_a_core_is_read_in_25_minutes(chapter):
    assert minutes(chapter) <= 25


def test_a_reader_who_must_choose_needs_40_minutes():
    way = ("start-here", "experiments/which-method", "experiments/hardness-or-temperature")
    pages = (execute.root() / f"notebooks/{name}.md" for name in way)
    assert sum(minutes(jupytext.read(page)) for page in pages) <= 40


def test_reading_time_counts_what_is_open():
    text = """# A title
One $x+y$ two.

<!-- checks -->

Three hundred words.

<!-- end of checks -->

```{solution} some
:class: dropdown
Closed.
```

Four <!-- more: Title --> five <!-- end of more --> six.
"""
    assert minutes(jupytext.reads(text, "md:myst")) == pytest.approx(9 / 200)


def unseen(chapter) -> set[str]:
    """What shown code calls of the functions that hidden code defines."""
    found, kept = set(), {}
    for cell in code_cells(chapter):
        names = list(ast.walk(ast.parse(cell.source)))
        functions = {n.name for n in names if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        bound = functions | {
            n.id for n in names if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
        }
        if hidden(cell):
            kept |= {name: name in functions for name in bound}
            continue
        called = {n.func.id for n in names if isinstance(n, ast.Call) and hasattr(n.func, "id")}
        read = {n.id for n in names if isinstance(n, ast.Name)}
        kept = {name: function for name, function in kept.items() if name not in bound}
        found |= {name for name, function in kept.items() if name in (read if function else called)}
    return found


def test_shown_code_calls_what_was_shown(chapter):
    """Or what a library exports; hidden code is for figures and tables (a title makes it shown)."""
    assert unseen(chapter) == set()


def test_a_call_of_hidden_code_is_found():
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
    assert unseen(jupytext.reads(text, "md:myst")) == {"f", "g"}


def test_there_are_chapters():
    assert set(build.chapters()) == set(CHAPTERS), (
        "a notebook is missing in _toc.yml, or named there in vain"
    )


def test_cells_fit_on_a_screen(chapter):
    assert [cell.source for cell in code_cells(chapter) if len(cell.source.splitlines()) > 25] == []


def too_wide(chapter) -> list[str]:
    """Lines of code that a page shows only in part, strings and comments too: those ruff leaves."""
    lines = (line for cell in code_cells(chapter) for line in cell.source.splitlines())
    return [line for line in lines if len(line) > COLUMNS]


def test_lines_fit_their_box(chapter):
    assert too_wide(chapter) == []


def test_a_line_that_is_too_wide_is_found():
    fits, comment, string = "x" * 88, f"# {'x' * 87}", f'"{"x" * 87}"'
    text = f"# A title\n{'x' * 99}\n\n```{{code-cell}} ipython3\n{fits}\n{comment}\n{string}\n```\n"
    assert too_wide(jupytext.reads(text, "md:myst")) == [comment, string]


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


def small(chapter) -> list[float]:
    """Sizes of letters, in pt, that are too small: figures are shown at five sixths of their size
    or more (``book.js``), and 9 pt are 10 px then."""
    sizes = re.compile(r"(?:fontsize|labelsize|font_size)=([\d.]+)")
    found = [float(size) for cell in code_cells(chapter) for size in sizes.findall(cell.source)]
    return [size for size in found if size < 9]


def test_letters_of_figures_are_large_enough(chapter):
    assert small(chapter) == []


def unsaid(chapter) -> list[str]:
    """Captions of figures whose bars mean we do not know what."""
    found = []
    for cell in code_cells(chapter):
        caption = cell.metadata.get("mystnb", {}).get("figure", {}).get("caption", "")
        bars = re.search(r"(?<!def )errorbars?\(|± ?sd|[-+] sd\b", cell.source)
        said = re.search(r"standard\s+deviation|95\s%\s+interval", caption)
        if (bars and caption and not said) or re.search(r"standard\s+error", caption):
            found.append(caption)
    return found


def test_bars_mean_one_thing(chapter):
    """Of runs the deviation over seeds, of all else the 95 % interval; a caption says which."""
    assert unsaid(chapter) == []


def test_small_letters_and_bars_of_no_meaning_are_found():
    text = """# A title
```{code-cell} ipython3
---
mystnb:
  figure:
    caption: Accuracy, with bars.
---
ax.errorbar(x, y, e)
ax.legend(fontsize=8.5)
ax.set_title("x", fontsize=9)
```
"""
    assert small(bad := jupytext.reads(text, "md:myst")) == [8.5]
    assert unsaid(bad) == ["Accuracy, with bars."]
    for words, count in (("95 % interval", 0), ("standard error", 1)):
        other = jupytext.reads(text.replace("bars", words), "md:myst")
        assert len(unsaid(other)) == count


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
