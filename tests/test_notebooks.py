"""The executor and the build: parameters, what makes a chapter stale, failures, generated pages."""

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import jupytext
import nbformat
import pytest
from scripts import HEAD, forget

from builder import build, ledger_pages
from hnbook import claims
from hnlib import __main__ as cli
from hnlib.notebooks import execute, grid, inline_values
from hnlib.training import records

CHAPTER = f"""{HEAD}# A chapter

```{{code-cell}} ipython3
:tags: [parameters]
epochs = 3
rate = 0.1
method = "hcl"
deep = False
folder = None
seeds = [0, 1]
names = ["a", "b"]
```

Then {{eval}}`epochs` and {{eval}}`f"{{rate:.0%}}"`.

```{{code-cell}} ipython3
from notebooks import helpers
print(epochs * 2, names)
epochs = 1.25
```

Now {{eval}}`epochs`.
"""


@pytest.fixture
def project(new_checkout):
    """A book of one chapter, in a folder of its own."""
    return new_checkout(
        {
            "_toc.yml": "format: jb-book\nroot: notebooks/theory/one\n",
            "requirements.txt": "a==1\n",
            "notebooks/helpers.py": "x = 1\n",
            "book/results.md": "<!-- columns -->\n",
            "notebooks/theory/one.md": CHAPTER,
        }
    )


@pytest.fixture
def one(project):
    return project / "notebooks/theory/one.md"


def test_parameters_take_the_type_of_their_default():
    texts = {"rate": "2", "deep": "true", "folder": "1e-3", "names": "hcl,h-scl"}
    values = {"rate": 2.0, "deep": True, "folder": 0.001, "names": ["hcl", "h-scl"]}
    defaults = execute.parameters_of(jupytext.reads(CHAPTER, fmt="md:myst"))
    assert repr(execute.guard_parameters(defaults, texts)) == repr(values)


@pytest.mark.parametrize(
    ("old", "new", "parameter", "message"),
    [
        ("kernelspec:", "kernelspec: [", "epochs 1", "theory/one.md cannot be read as a notebook"),
        ("rate = 0.1", "rate = float(1)", "epochs 1", "cell is not `name = literal`"),
        ("", "", "epoch 1", "unknown parameter 'epoch'; the notebook has epochs=3"),
        ("", "", "seeds a,b", "parameter seeds must be like [0, 1], got 'a,b'"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_runs(
    one, monkeypatch, refuses, old, new, parameter, message
):
    monkeypatch.setattr(execute, "execute", lambda *a, **k: pytest.fail("it was executed"))
    one.write_text(CHAPTER.replace(old, new))
    assert message in refuses("run", "theory/one", "-p", *parameter.split())


@pytest.mark.slow
def test_execution_stores_outputs_and_what_they_depend_on(project, one):
    out, parameters = project / "_build/out.ipynb", {"epochs": 5, "names": ["z"]}
    execute.execute(one, out, parameters, timeout=60)
    notebook = nbformat.read(out, as_version=4)
    *_, then, code, now = notebook.cells
    assert "10 ['z']" in code.outputs[0].text
    # an expression has the value that it has where the text stands
    assert (then.source, now.source) == ("Then 5 and 10%.", "Now 1.2.")
    assert str(project) not in json.dumps(notebook)
    assert [path.name for path in (project / "_build").iterdir()] == ["out.ipynb"]

    def current(**chosen):
        forget()
        return execute.is_current(out, one, parameters | chosen)

    assert current()
    assert not current(epochs=6)
    (project / "notebooks/unused.py").write_text("x = 2\n")
    assert current()
    for path in (project / "notebooks/helpers.py", project / "requirements.txt", one):
        before = path.read_text()
        path.write_text(f"{before}\n")
        assert not current(), path
        path.write_text(before)


FOUND = CHAPTER.replace(
    "Now {eval}`epochs`.",
    "Now {eval}`epochs`. <!-- finding -->We saw {eval}`rate`, and so\non.<!-- end of finding -->",
)


@pytest.mark.slow
def test_at_other_parameters_a_finding_is_quoted_with_its_published_number(project, one):
    one.write_text(FOUND)
    out = project / "_build/out.ipynb"
    for _ in range(2):  # executed as published on the way, and then not again
        execute.execute(one, out, {"rate": 0.7}, timeout=60)
        *_, last = nbformat.read(out, as_version=4).cells
        assert last.source == "Now 1.2.\n\n> *In the published runs:* We saw 0.1, and so\n> on."
    published = nbformat.read(execute.executed_path(one), as_version=4)
    assert published.cells[-1].source.startswith("Now 1.2. <!-- finding -->We saw 0.1")
    assert "HNLIB_RECALL" not in os.environ


def test_a_finding_has_one_value_for_an_expression():
    """Its value at the published parameters is looked up by the expression."""
    finding = "<!-- finding -->{eval}`n`<!-- end of finding -->"
    for texts, refused in (
        (["{eval}`n`", finding], True),
        ([finding, "{eval}`n`"], True),
        ([finding, finding], True),
        (["{eval}`n`", "{eval}`n`"], False),
    ):
        cells = []
        for value, source in zip("12", texts):
            data = {inline_values.MIME: [value]}
            shown = [nbformat.v4.new_output("display_data", data=data)]
            code = nbformat.v4.new_code_cell(metadata={"tags": ["inline"]}, outputs=shown)
            cells += [code, nbformat.v4.new_markdown_cell(source)]
        node = nbformat.v4.new_notebook(cells=cells)
        with (
            pytest.raises(ValueError, match="is 2 here, and 1 before") if refused else nullcontext()
        ):
            inline_values.substitute(node)


def test_a_fingerprint_sees_text_parameters_pins_and_code(project, one):
    """By itself: the slow test above executes, too."""

    def fingerprint(parameters=None, files=("notebooks/helpers.py",)):
        forget()
        return execute.fingerprint(one, parameters, [*files])

    first = fingerprint({"epochs": 5})
    assert first == fingerprint({"epochs": 5}) and first != fingerprint({"epochs": 6})
    for path in (project / "notebooks/helpers.py", project / "requirements.txt", one):
        before = path.read_text()
        path.write_text(f"{before}\n")
        assert fingerprint({"epochs": 5}) != first, path
        path.write_text(before)
    (project / "notebooks/unused.py").write_text("x = 2\n")
    assert fingerprint({"epochs": 5}) == first


def test_a_number_in_a_text_has_the_value_that_it_has_there():
    """The cell that evaluates stands before the text; a name that changes has two values."""
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [
        code("n = 1"),
        text("One {eval}`n`."),
        code("n = 2"),
        text("Two {eval}`n`, {eval}`-n`."),
    ]
    node = nbformat.v4.new_notebook(cells=cells)
    inline_values.add_cells(node)
    names = {}
    for cell in node.cells:
        if "inline" in cell.metadata.get("tags", ()):
            (listed,) = re.findall(r"^show_inline\((.*)\)$", cell.source, re.M)
            values = [str(one) for one in eval(f"[{listed}]", names)]
            data = {inline_values.MIME: values}
            cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
        elif cell.cell_type == "code":
            exec(cell.source, names)
    said = inline_values.substitute(node)
    assert [cell.source for cell in node.cells] == ["n = 1", "One 1.", "n = 2", "Two 2, -2."]
    assert said == {"n": "2", "-n": "-2"}


def test_points_of_a_grid_are_all_combinations(one):
    values = [("rate", "0.5,1"), ("names", "[hcl],[ot, simclr]")]
    every = [[*point.values()] for point in grid.points(one, values, [("method", "scl")])]
    names = (["hcl"], ["ot", "simclr"])
    assert every == [[rate, some, "scl"] for rate in (0.5, 1.0) for some in names]


FAILING = """
```{code-cell}
with open("log", "a") as log:
    log.write(method + " ")
assert method != "fail"
```
"""


@pytest.mark.slow
def test_a_grid_survives_a_failing_point_and_executes_only_what_is_missing(project, one, capsys):
    one.write_text(CHAPTER + FAILING)
    command = ["run", "theory/one", "-p", "rate", "2", "--grid"]
    assert cli.main([*command, "method=fail,pass"]) == 1
    assert "AssertionError" in capsys.readouterr().out
    passed = execute.parameter_hash({"rate": 2.0, "method": "pass"})
    assert (project / f"_build/runs/theory/one/{passed}.ipynb").is_file()
    assert cli.main([*command, "method=pass,more"]) == 0
    assert (project / "log").read_text().split() == ["fail", "pass", "more"]


def test_the_book_is_built_when_a_source_has_changed_and_not_otherwise(project, one, monkeypatch):
    def built(only=None):
        built = []
        monkeypatch.setattr(build, "_book", lambda *_: built.append(True) or index.touch())
        build.book(only)
        return bool(built)

    index = project / "_build/html/index.html"
    index.parent.mkdir(parents=True)
    assert built() and not built()
    for path in (one, project / "book/results/records/one.jsonl", project / "requirements.txt"):
        path.write_text("other\n")
        assert built() and not built(), path
    assert built("one") and built()  # a draft is not the book


@pytest.mark.slow
def test_a_failing_chapter_stops_the_book_and_is_kept(project, one, monkeypatch):
    one.write_text(CHAPTER + "\n```{code-cell}\n1 / 0\n```\n")
    monkeypatch.setattr(build, "LIBRARIES", [])
    says = r"(?s)^theory/one failed\..*ZeroDivisionError.*Nothing was built\.$"
    with pytest.raises(execute.NotebookError, match=says):
        build.execute_chapters({one: execute.executed_path(one)}, jobs=1)
    failed = (project / "_build/executed/theory/one.failed.ipynb").read_text()
    assert "6 ['a', 'b']" in failed and "ZeroDivisionError" in failed
    assert not execute.executed_path(one).exists()


@pytest.mark.slow
def test_pages_stay_when_sphinx_fails(new_checkout):
    files = {"_build/html/index.html": "old", "_build/stage/one.md": "{doc}`nowhere`\n"}
    files |= {"_build/stage/_toc.yml": "format: jb-book\nroot: one\n"}
    project = new_checkout(files | {"_build/stage/_config.yml": "title: T\n"})
    with pytest.raises(ValueError, match=r"(?s)_build/html is unchanged.*nowhere"):
        build.render(project / "_build/stage", draft=False)
    assert (project / "_build/html/index.html").read_text() == "old"


@pytest.mark.parametrize("verdict, fine", [("definition", True), ("loose; a remark", False)])
def test_a_claim_without_a_control_stops_the_book_but_not_a_draft(project, verdict, fine):
    row = f"X10,ours,,a,{verdict}\n"
    (project / "book/results/claims.csv").write_text("id,paper,location,statement,verdict\n" + row)
    numbers = dict(value=0.0, tolerance=0.0, instances=1, control=None)
    check = claims.Line("X10", "t", "definition", **numbers)
    checked = {"cells": [{"outputs": [{"data": {claims.MIME: check.record}}]}]}
    page = project / "notebooks/errata.ipynb"
    page.write_text(json.dumps(errata := {"cells": [{"source": "<!-- claims -->"}]}))
    given = project, {"theory/one": checked, "errata": errata}, records.frame([]), project
    if not fine:
        with pytest.raises(ValueError, match="no chapter checks X10 with a negative control"):
            ledger_pages.write(*given)
    ledger_pages.write(*given, draft=not fine)
    assert "**1 claims: 1 checked" in page.read_text()


def test_every_notebook_is_in_the_table_of_contents():
    assert set(build.chapters()) == set((execute.root() / "notebooks").rglob("*.md"))


def test_seeds_are_a_number_or_a_text_whatever_is_published():
    """Control: of another whole number a range is refused; pydantic alone takes "0-2" for -2."""
    read = lambda text, default: execute.guard_parameters({"seeds": default}, {"seeds": text})  # noqa: E731
    for default in (3, "0-2", None):
        assert read("4", default) == {"seeds": 4} and read("0-3", default) == {"seeds": "0-3"}
        assert read('"4"', default) == {"seeds": "4"} and read("None", default) == {"seeds": None}
    with pytest.raises(ValueError, match="parameter epochs must be like 3, got '0-2'"):
        execute.guard_parameters({"epochs": 3}, {"epochs": "0-2"})
    assert execute.guard_parameters({"size": 3}, {"size": "10_000"}) == {"size": 10_000}


COMPARES = f"""{HEAD}# A page

```{{code-cell}} ipython3
:tags: [parameters]
gain = 0.1
```

```{{code-cell}} ipython3
from types import SimpleNamespace
from hnlib.experiments import compared, comparisons

design = SimpleNamespace(name="one", changed={{"lr": (1, 2)}}, title=lambda block: block)
for arm, effect in (("tilt", gain), ("other", 9.0)):
    one = comparisons.Effect(effect, 0.1, 5, "these images", seeds=(0, 1))
    compared.note(design, {{(arm, "plain", "knn", "wide", "these images"): one}})
```
"""


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "said"), [("2", "beats, +2.0"), ("-2", "loses, −2.0")])
def test_the_last_line_of_a_run_is_the_verdict_of_its_first_comparison(one, prints, gain, said):
    one.write_text(COMPARES)
    last = prints("run", "theory/one", "-p", "gain", gain).splitlines()[-1]
    assert last.startswith(f"one wide: tilt − plain by kNN: {said}\xa0[")
    assert last.endswith("] on 2 seeds; published –")


def test_a_number_of_seeds_is_told_in_the_terminal_and_not_on_the_page(monkeypatch, capsys):
    monkeypatch.setattr(execute, "execute", lambda *_, **__: 1.0)
    execute.run("experiments/pairs", {"seeds": "3"})
    assert 'before 0.2 it was seed 3, which is seeds="3" now' in capsys.readouterr().err
    execute.run("experiments/pairs", {"seeds": '"3"'})
    assert not capsys.readouterr().err


def test_threads_that_need_a_published_page_execute_it_once_and_leave_the_environment(monkeypatch):
    made, done = [], []

    def slow(*_):
        made.append(os.environ["HNLIB_RECALL"])
        time.sleep(0.05)
        done.append(True)

    monkeypatch.delenv("HNLIB_RECALL", raising=False)
    monkeypatch.setattr(execute, "execute", slow)
    monkeypatch.setattr(execute, "is_current", lambda *_: bool(done))
    monkeypatch.setattr(execute, "execution_metadata", lambda _: {"inline": {"a": "1"}})
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(execute.published_values, [execute.root() / "notebooks/stuck.md"] * 3)]
    assert found == [{"a": "1"}] * 3 and made == ["1"] and "HNLIB_RECALL" not in os.environ
