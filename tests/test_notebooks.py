"""The executor and the build: parameters, what makes a chapter stale, failures, generated pages."""

import json

import jupytext
import nbformat
import pytest
from scripts import HEAD, ROOT, forget

from builder import build, ledger_pages
from hnbook import claims
from hnlib import __main__ as cli
from hnlib.notebooks import execute, grid
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
DEFAULTS = execute.parameters_of(jupytext.reads(CHAPTER, fmt="md:myst"))


@pytest.fixture
def project(new_checkout):
    """A book of one chapter, in a folder of its own."""
    files = {
        "_toc.yml": "format: jb-book\nroot: notebooks/theory/one\n",
        "_config.yml": "title: T\n",
        "requirements.txt": "a==1\n",
        "notebooks/helpers.py": "x = 1\n",
        "notebooks/unused.py": "x = 1\n",
        "notebooks/theory/one.md": CHAPTER,
    }
    copied = {name: (ROOT / name).read_text() for name in ("pyproject.toml", "book/results.md")}
    return new_checkout(files | copied)


@pytest.fixture
def one(project):
    return project / "notebooks/theory/one.md"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "2", 2.0),
        ("deep", "true", True),
        ("folder", "1e-3", 1e-3),
        ("names", "hcl,h-scl", ["hcl", "h-scl"]),
    ],
)
def test_parameters_take_the_type_of_their_default(name, text, value):
    result = execute.guard_parameters(DEFAULTS, {name: text})[name]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("old", "new", "parameter", "message"),
    [
        ("kernelspec:", "kernelspec: [", "epochs 1", "theory/one.md cannot be read as a notebook"),
        ("rate = 0.1", "rate = float(1)", "epochs 1", "cell is not `name = literal`"),
        ("", "", "epoch 1", "unknown parameter 'epoch'; the notebook has epochs=3"),
        ("", "", "epochs 3.5", "parameter epochs must be like 3, got '3.5'"),
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
    assert notebook.metadata.papermill == {"parameters": parameters}
    assert notebook.metadata.hnlib.files == ["notebooks/helpers.py"]
    assert str(project) not in json.dumps(notebook)
    assert [path.name for path in (project / "_build").iterdir()] == ["out.ipynb"]

    def current(**chosen):
        forget()
        return execute.is_current(out, one, parameters | chosen)

    assert current()
    assert not current(epochs=6)
    (project / "notebooks/unused.py").write_text("x = 2\n")
    assert current()
    for path, text in (("notebooks/helpers.py", "x = 2\n"), ("requirements.txt", "a==2\n")):
        before = (project / path).read_text()
        (project / path).write_text(text)
        assert not current(), path
        (project / path).write_text(before)
    one.write_text(CHAPTER + "\nMore.\n")
    assert not current()


def test_points_of_a_grid_are_all_combinations(one):
    values = [("rate", "0.5,1"), ("names", "[hcl],[ot, simclr]")]
    every = grid.points(one, values, [("method", "scl")])
    assert [[*point.values()] for point in every] == [
        [rate, names, "scl"] for rate in (0.5, 1.0) for names in (["hcl"], ["ot", "simclr"])
    ]


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
    index.unlink()
    assert built()


@pytest.mark.slow
def test_a_failing_chapter_stops_the_book_and_is_kept(project, one, monkeypatch):
    one.write_text(CHAPTER + "\n```{code-cell}\n1 / 0\n```\n")
    monkeypatch.setattr(build, "LIBRARIES", [])
    says = r"(?s)^theory/one failed\..*ZeroDivisionError.*Nothing was built\.$"
    with pytest.raises(execute.NotebookError, match=says):
        build.execute_chapters({one: execute.executed_path(one)}, jobs=1)
    failed = nbformat.read(project / "_build/executed/theory/one.failed.ipynb", as_version=4)
    shown = [output for cell in failed.cells for output in cell.get("outputs", [])]
    assert any("6 ['a', 'b']" in output.get("text", "") for output in shown)
    assert any(output.get("ename") == "ZeroDivisionError" for output in shown)
    assert not (project / "_build/executed/theory/one.ipynb").exists()


@pytest.mark.slow
def test_pages_stay_when_sphinx_fails(project):
    files = {"html/index.html": "old", "stage/_config.yml": "title: T\n"}
    files |= {"stage/_toc.yml": "format: jb-book\nroot: one\n", "stage/one.md": "{doc}`nowhere`\n"}
    for name, text in files.items():
        (project / "_build" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "_build" / name).write_text(text)
    with pytest.raises(ValueError, match=r"(?s)_build/html is unchanged.*nowhere"):
        build.render(project / "_build/stage", draft=False)
    assert (project / "_build/html/index.html").read_text() == "old"


NO_RUNS = records.frame([])


@pytest.mark.parametrize(
    ("verdict", "control", "fine"),
    [("true", 0.5, True), ("definition", None, True), ("loose; a remark", None, False)],
)
def test_a_claim_without_a_control_stops_the_book_but_not_a_draft(project, verdict, control, fine):
    row = f"X10,ours,,a,{verdict}\n"
    (project / "book/results/claims.csv").write_text("id,paper,location,statement,verdict\n" + row)
    record = dict(id="X10", title="t", kind="identity", control=control, instances=4000)
    record |= dict(value=2.2e-16, tolerance=1e-12)
    executed = {"theory/one": {"cells": [{"outputs": [{"data": {claims.MIME: record}}]}]}}
    executed["errata"] = {"cells": [{"source": "<!-- claims -->"}]}
    page = project / "notebooks/errata.ipynb"
    page.write_text(json.dumps(executed["errata"]))
    if not fine:
        with pytest.raises(ValueError, match="no chapter checks X10 with a negative control"):
            ledger_pages.write(project, executed, NO_RUNS, project)
    ledger_pages.write(project, executed, NO_RUNS, project, draft=not fine)
    (cell,) = json.loads(page.read_text())["cells"]
    assert "**1 claims: 1 checked" in cell["source"]
