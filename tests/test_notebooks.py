"""The executor: parameters, fingerprints, failures, and pages that are never half-published."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from hnlib import __main__ as cli
from hnlib.book import build, claims, execute, pages, sweep
from hnlib.training import records

ROOT = Path(__file__).resolve().parents[1]

HEAD = (
    "---\nkernelspec:\n  name: python3\n  display_name: Python 3\njupytext:\n  text_representation:\n    "
    "extension: .md\n    format_name: myst\n---\n\n"
)
CHAPTER = (
    HEAD
    + """# A chapter

```{code-cell} ipython3
:tags: [parameters]
epochs = 3
rate = 0.1
method = "hcl"
deep = False
folder = None
seeds = [0, 1]
names = ["a", "b"]
```

```{code-cell} ipython3
from hnlib.book import claims
print(epochs * 2, names)
claims.check("X1", "two is two", kind="identity", value=0.0, tolerance=0.0, control=1.0)
```
"""
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A book of one chapter and a library of three rooms, in a folder of its own."""
    (tmp_path / "notebooks/theory").mkdir(parents=True)
    (tmp_path / "book/results/runs").mkdir(parents=True)
    (tmp_path / "hnlib").mkdir()
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: notebooks/theory/one\n")
    (tmp_path / "_config.yml").write_text("title: T\n")
    (tmp_path / "requirements.txt").write_text("a==1\n")
    (tmp_path / "book/claims.csv").write_text(
        "id,paper,location,statement,verdict\nX1,ours,,two is two,true\n"
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("claims", "results", "reproduce"):
        shutil.copy(ROOT / f"book/{name}.md", tmp_path / "book")
    (tmp_path / "notebooks/theory/one.md").write_text(CHAPTER)
    (tmp_path / "hnlib/book").mkdir()
    for room, text in {
        "__init__": "",
        "book/__init__": "",
        "book/claims": "import math\n",
        "data": "",
        "contrast": "",
        "robust": "from hnlib import transport\n",
        "transport": "def f():\n    from hnlib.contrast import Contrast\n",
    }.items():
        (tmp_path / f"hnlib/{room}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    execute.root.cache_clear()
    build.toc.cache_clear()
    execute._imports.cache_clear()
    yield tmp_path
    execute.root.cache_clear()
    build.toc.cache_clear()
    execute._imports.cache_clear()


@pytest.fixture
def one(project):
    return project / "notebooks/theory/one.md"


KNOWN = {
    "epochs": 3,
    "rate": 0.1,
    "method": "hcl",
    "deep": False,
    "folder": None,
    "seeds": [0, 1],
    "names": ["a"],
}


def test_parameters_are_read_from_the_tagged_cell(one):
    assert execute.parameters_of(execute.read(one)) == {**KNOWN, "names": ["a", "b"]}


def test_parameters_must_be_literals(one):
    one.write_text(CHAPTER.replace("epochs = 3", "epochs = int(3)"))
    with pytest.raises(ValueError, match="not `name = literal`"):
        execute.parameters_of(execute.read(one))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epochs", "7", 7),
        ("epochs", "-1", -1),
        ("rate", "1e-3", 1e-3),
        ("rate", "2", 2.0),
        ("rate", "inf", float("inf")),
        ("method", "12", "12"),
        ("method", "true", "true"),
        ("deep", "true", True),
        ("deep", "False", False),
        ("folder", "null", None),
        ("folder", "runs/x", "runs/x"),
        ("folder", "2020-01-01", "2020-01-01"),
        ("folder", "1e-3", 1e-3),
        ("folder", "010", "010"),
        ("folder", "1:30", "1:30"),
        ("folder", "[1, a]", [1, "a"]),
        ("folder", "b'x'", "b'x'"),
        ("seeds", "4", [4]),
        ("seeds", "[4, 5]", [4, 5]),
        ("seeds", "4,5", [4, 5]),
        ("seeds", "[]", []),
        ("names", "hcl,h-scl", ["hcl", "h-scl"]),
        ("names", "[ot]", ["ot"]),
        ("names", "['ot', \"hcl\"]", ["ot", "hcl"]),
        ("names", "010,true", ["010", "true"]),
    ],
)
def test_parameters_take_the_type_of_their_default(name, text, value):
    result = execute.guard_parameters(KNOWN, {name: text})[name]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("epochs", "3.5"),
        ("epochs", "abc"),
        ("epochs", "true"),
        ("epochs", "010"),
        ("epochs", "1:30"),
        ("epochs", "0x10"),
        ("epochs", "[[[" * 9999),
        ("rate", "1:30"),
        ("rate", "010"),
        ("rate", "1e400"),
        ("rate", "1" + 400 * "0"),
        ("deep", "yes"),
        ("rate", "fast"),
        ("rate", "false"),
        ("deep", "1"),
        ("deep", "[true"),
        ("seeds", "a,b"),
        ("seeds", "[1.5]"),
        ("seeds", "[4, 5],[6]"),
        ("seeds", "4,,5"),
        ("seeds", "010,1:30"),
        ("names", "['a, b']"),
        ("names", "'a"),
    ],
)
def test_parameters_that_do_not_parse_are_refused(name, text):
    with pytest.raises(
        ValueError, match=rf"parameter {name} must be .*{re.escape(repr(text))}.*epochs=3"
    ):
        execute.guard_parameters(KNOWN, {name: text})


@given(
    st.integers(), st.floats(allow_nan=False), st.booleans(), st.lists(st.integers(), min_size=1)
)
def test_what_python_prints_is_parsed_back(integer, number, flag, items):
    given_ = {"epochs": str(integer), "rate": repr(number), "deep": str(flag), "seeds": str(items)}
    parsed = execute.guard_parameters(KNOWN, given_)
    assert parsed == {"epochs": integer, "rate": number, "deep": flag, "seeds": items}


TEXTS = st.one_of(
    st.text(),
    st.text("0123456789+-.:_exn", max_size=8),
    st.text("[]{},'\"a1 \n", max_size=12),
    st.sampled_from(
        ["true", "Null", "nan", "-inf", "1e400", "2020-01-01", "0x10", "!!python/none"]
    ),
)


@given(st.sampled_from(sorted(KNOWN)), TEXTS)
def test_a_text_is_read_as_what_it_says_or_refused(name, text):
    """What is accepted as a number or a truth value reads back as itself; nothing else happens."""
    default = KNOWN[name]
    try:
        value = execute.guard_parameters(KNOWN, {name: text})[name]
    except ValueError as error:
        assert str(error).startswith(f"parameter {name} must be ") and name != "method"
        return
    if default is not None:
        assert type(value) is type(default)
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, float):
            assert one == float(text.strip("[] \n,'\"")) or one != one or name == "folder"
        elif type(one) is int:
            assert str(one) in text or one == 0
        elif isinstance(one, str):
            assert one in text
        else:
            assert str(one).lower() in text.lower() or one is None or isinstance(one, list)


@given(
    st.lists(st.tuples(st.sampled_from(["epochs", "seeds", "names", "x", ""]), TEXTS), max_size=3)
)
def test_a_grid_is_read_or_refused(pairs):
    try:
        values = sweep.grid([f"{name}={text}" for name, text in pairs])
        read = {
            name: [execute.guard_parameters(KNOWN, {name: v}) for v in values[name]]
            for name in values
        }
    except ValueError as error:
        assert str(error).endswith(".")
        return
    assert read.keys() == {name.strip() for name, _ in pairs} <= KNOWN.keys()


def test_an_unknown_parameter_stops_before_anything_runs(one, monkeypatch):
    monkeypatch.setattr(execute, "execute", lambda *a, **k: pytest.fail("it was executed"))
    with pytest.raises(
        ValueError, match=r"theory/one: unknown parameter 'epoch'; the notebook has: epochs=3, "
    ):
        execute.run("theory/one", {"epoch": "1"}, "out.ipynb")
    assert not (one.parents[2] / "out.ipynb").exists()
    assert not (one.parents[2] / "_build").exists()


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_is_positive(one, timeout):
    with pytest.raises(ValueError, match="--timeout must be at least 1 second"):
        execute.run("theory/one", {}, timeout=timeout)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kernelspec:", "kernelspec: [", "theory/one.md cannot be read as a notebook"),
        ("epochs = 3", "epochs = = 3", "line 1 of the parameters cell is not `name = literal`"),
        ("rate = 0.1", "%time rate = 1", "line 2 of the parameters cell is not"),
    ],
)
def test_a_broken_chapter_is_one_sentence(one, capsys, old, new, words):
    one.write_text(CHAPTER.replace(old, new))
    assert cli.main(["run", "theory/one"]) == 2
    error = capsys.readouterr().err
    assert words in error and error.startswith("hnlib: ") and error.count("\n") == 1


def test_the_book_refuses_a_broken_header_in_a_sentence(one, capsys):
    one.write_text(CHAPTER.replace("kernelspec:", "kernelspec: ["))
    assert cli.main(["book"]) == 2
    assert "theory/one.md cannot be read as a notebook" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{}", "[]", "", '{"cells": 3}', "\0"])
def test_an_ipynb_that_is_no_notebook_is_one_sentence(project, capsys, text):
    (project / "x.ipynb").write_text(text)
    assert cli.main(["run", "x.ipynb"]) == 2
    error = capsys.readouterr().err
    assert "x.ipynb cannot be read as a notebook" in error and error.count("\n") == 1


def test_output_must_be_a_notebook(one):
    with pytest.raises(ValueError, match=r"written as .ipynb"):
        execute.run("theory/one", {}, "out.html")


def test_the_fingerprint_follows_what_the_chapter_uses(one, project):
    def mark():
        execute._imports.cache_clear()
        return execute.fingerprint(one)

    one.write_text(
        CHAPTER.replace(
            "from hnlib.book import claims",
            "from hnlib import robust\nfrom hnlib.book import claims",
        )
    )
    first = mark()
    assert mark() == first
    assert execute.fingerprint(one, {"epochs": 4}) != first
    (project / "hnlib/data.py").write_text("x = 1\n")
    assert mark() == first, "it does not use data"
    for room in ("book/claims", "book/__init__", "robust", "transport", "contrast"):
        before = mark()
        (project / f"hnlib/{room}.py").write_text(
            (project / f"hnlib/{room}.py").read_text() + "# edited\n"
        )
        assert mark() != before, room
    before = mark()
    (project / "requirements.txt").write_text("a==2\n")
    assert mark() != before


def test_the_fingerprint_follows_the_ledgers_only_where_they_are_read(one, project):
    first = execute.fingerprint(one)
    (project / "book/results/runs/a.json").write_text("{}")
    assert execute.fingerprint(one) == first
    one.write_text(
        CHAPTER.replace(
            "from hnlib.book import claims",
            "from hnlib.runs import records\nfrom hnlib.book import claims",
        )
    )
    first = execute.fingerprint(one)
    (project / "book/results/runs/b.json").write_text("{}")
    assert execute.fingerprint(one) != first


def test_only_what_is_read_counts_as_a_ledger(one, project):
    one.write_text(
        CHAPTER.replace("import claims", "import claims\nfrom hnlib.runs import records")
    )
    first = execute.fingerprint(one)
    for name in ("papers.csv~", ".papers.csv.swp", "runs/.a.json-x", "runs/a.json~", "QUEUE.md"):
        (project / "book/results" / name).write_text("x")
        assert execute.fingerprint(one) == first, name
    (project / "book/results/papers.csv").write_text("x")
    assert execute.fingerprint(one) != first


@pytest.mark.parametrize(
    "code", ["import hnlib", "!python -m hnlib train", "x = (", "import importlib"]
)
def test_where_imports_cannot_be_told_everything_counts(project, code):
    assert execute.sources(code) == sorted((project / "hnlib").rglob("*.py"))


def executed(project, one, text=CHAPTER, **parameters):
    """The chapter executed in the real checkout's environment, from the temporary project."""
    one.write_text(
        text.replace("from hnlib.book import claims\n", "").replace(
            'claims.check("X1", "two is two", kind="identity", value=0.0, tolerance=0.0, control=1.0)',
            "",
        )
    )
    out = project / "_build/out.ipynb"
    execute.execute(one, out, parameters, timeout=60)
    return nbformat.read(out, as_version=4)


def test_execution_stores_outputs_and_little_else(project, one):
    notebook = executed(project, one, epochs=5, names=["z"])
    assert any(
        "10 ['z']" in output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert notebook.metadata.papermill == {"parameters": {"epochs": 5, "names": ["z"]}}
    assert notebook.metadata.hnlib.fingerprint == execute.fingerprint(
        one, {"epochs": 5, "names": ["z"]}
    )
    assert not any(
        "papermill" in cell.metadata or "execution" in cell.metadata for cell in notebook.cells
    )
    assert str(project) not in json.dumps(notebook)
    assert [path.name for path in (project / "_build").iterdir()] == ["out.ipynb"]


def test_a_failing_cell_is_named_and_kept(project, one):
    with pytest.raises(execute.NotebookError) as caught:
        executed(project, one, CHAPTER.replace("print(epochs * 2, names)", "print(1)\n1 / 0"))
    message = str(caught.value)
    assert message.startswith("theory/one: cell 2 failed.")
    assert "ZeroDivisionError" in message
    assert "_build/out.failed.ipynb" in message
    assert not (project / "_build/out.ipynb").exists()
    kept = nbformat.read(project / "_build/out.failed.ipynb", as_version=4)
    outputs = [output for cell in kept.cells for output in cell.get("outputs", [])]
    assert any(output.get("ename") == "ZeroDivisionError" for output in outputs)


def test_a_failing_chapter_stops_the_book(project, one, monkeypatch):
    one.write_text(CHAPTER.replace("print(epochs * 2, names)", "1 / 0"))
    monkeypatch.setattr(build, "render", lambda *a: pytest.fail("pages were rendered"))
    with pytest.raises(
        execute.NotebookError, match=r"(?s)theory/one: cell 2 failed.*The book was not built"
    ):
        build.book(jobs=1)
    assert (project / "_build/failed/theory/one.ipynb").is_file()
    assert not (project / "_build/html").exists()


def test_after_a_failure_no_other_chapter_is_begun(project, one, monkeypatch):
    names = ["one", "two", "three", "four", "five"]
    chapters = "".join(f"  - file: notebooks/theory/{name}\n" for name in names[1:])
    (project / "_toc.yml").write_text(
        f"format: jb-book\nroot: notebooks/theory/one\nchapters:\n{chapters}"
    )
    for name in names:
        (project / f"notebooks/theory/{name}.md").write_text(
            HEAD + "# T\n\n```{code-cell}\n1 / 0\n```\n"
        )
    with pytest.raises(execute.NotebookError, match=r"theory/one: cell 1 failed"):
        build.book(jobs=1)
    assert not (project / "_build/failed/theory/five.ipynb").exists()


ENDLESS = """import os, pathlib, subprocess
child = subprocess.Popen(["sleep", "600"])
pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
while True:
    pass"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition):
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it did not happen")


def command(*words):
    """``hnlib`` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hnlib", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("words", [["book", "--jobs", "2"], ["run", "theory/one"]])
@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_a_kill_is_obeyed_and_leaves_nothing(project, one, words, kill):
    """A polite one takes the kernel and its children along; after the other no worker stays."""
    one.write_text(CHAPTER.replace("print(epochs * 2, names)", ENDLESS))
    process = command(*words)
    wait_for((project / "pids").is_file)
    tree = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(kill)
    kernel, child = (project / "pids").read_text().split()
    if kill == signal.SIGKILL:  # the child is nobody's then, and holds our pipes
        os.kill(int(child), kill)
    _, error = process.communicate(timeout=60)
    assert process.returncode == (130 if kill == signal.SIGTERM else -signal.SIGKILL)
    assert ("hnlib: interrupted\n" in error) == (kill == signal.SIGTERM)
    wait_for(lambda: not any(map(alive, [kernel, child, *tree])))
    assert not [path.name for path in project.rglob("*.part*")]


def test_a_second_build_says_at_its_start_that_it_waits(project):
    with FileLock(project / "_build/.lock"):
        second = command("book")
        assert second.stdout.readline() == "waiting for another build of the book to finish\n"
        second.terminate()
        assert second.wait(timeout=60) == 130
    assert not (project / "_build/executed").exists()


def test_pages_stay_when_sphinx_fails(project):
    (project / "_build/html").mkdir(parents=True)
    (project / "_build/html/index.html").write_text("old")
    (project / "_build/stage").mkdir()
    (project / "_build/stage/_config.yml").write_text("title: T\n")
    (project / "_build/stage/_toc.yml").write_text("format: jb-book\nroot: one\n")
    (project / "_build/stage/one.md").write_text("# One\n\n{doc}`nowhere`\n")
    with pytest.raises(ValueError, match=r"(?s)_build/html is as it was.*nowhere"):
        build.render(project / "_build/stage", draft=False)
    assert (project / "_build/html/index.html").read_text() == "old"


def test_a_page_without_a_source_is_an_error(project):
    (project / "_toc.yml").write_text(
        "format: jb-book\nroot: notebooks/theory/one\nchapters:\n- file: notebooks/two\n"
    )
    with pytest.raises(ValueError, match=r"chapters that do not exist: two"):
        build.book()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"jobs": 0}, "--jobs must be"), ({"only": "nothing"}, "no chapter matches")],
)
def test_bad_options_of_the_book(one, options, words):
    with pytest.raises(ValueError, match=words):
        build.book(**options)


RECORD = {
    "id": "X1",
    "title": "t",
    "kind": "identity",
    "value": 2.2e-16,
    "tolerance": 1e-12,
    "instances": 4000,
    "control": 0.5,
    "chapter": "theory/one",
}
CLAIMS = [
    {"id": "X10", "paper": "ours", "location": "", "statement": "b", "verdict": "true"},
    {
        "id": "X1",
        "paper": "ours",
        "location": "Thm 1",
        "statement": "a $|x|$",
        "verdict": "slip; a sign",
    },
]


def test_claims_page_joins_claims_and_records(project):
    page = pages.claims_tables(CLAIMS, [RECORD, RECORD | {"title": "once more"}], project)
    assert (
        "**2 claims: 1 checked (by 2 checks), 1 open.** Verdicts on those checked: slip 1." in page
    )
    assert "**true**" not in page  # no verdict before the check
    assert page.index("**X1**") < page.index("theory/one.html#check-x1-") < page.index("**X10**")
    for text in (
        "a $|x|$ (Thm 1)",
        "4,000",
        "2.2e−16\u00a0≤\u00a01e−12",
        "once more",
        "*open*",
        "## Of this book",
    ):
        assert text in page


def test_a_record_without_a_claim_is_an_error(project):
    with pytest.raises(ValueError, match=r"not in book/claims.csv: X9"):
        pages.claims_tables(CLAIMS, [RECORD | {"id": "X9"}], project)


def test_a_claim_nobody_checks_stops_the_book_but_not_a_draft(project):
    def write(verdict, record, draft=False):
        row = f"X10,ours,,a,{verdict}\n"
        (project / "book/claims.csv").write_text("id,paper,location,statement,verdict\n" + row)
        cell = {"outputs": [{"data": {claims.MIME: record}}]}
        about = {
            "seconds": 1.0,
            "executed": "2026-01-02T03:04+00:00",
            "python": "3.11",
            "torch": "2.13",
        }
        chapter = {"cells": [cell] * (record is not None), "metadata": {"hnlib": about}}
        for name in ("claims", "results"):
            shutil.copy(ROOT / f"book/{name}.md", project / "book")
        pages.write(project / "book", {"theory/one": chapter}, project, draft)
        text = (project / "book/claims.md").read_text()
        assert ("**1 claims: 1 checked" in text) == (record is not None) and "<!--" not in text

    record = RECORD | {"id": "X10"}
    write("true", record)
    write("true", None, draft=True)
    write("definition", record | {"control": None})
    for verdict, found in (
        ("true", None),
        ("definition", None),
        ("loose; a remark", record | {"control": None}),
    ):
        with pytest.raises(ValueError, match="no chapter checks X10 with a negative control"):
            write(verdict, found)


CLAIMS_HEAD = b"id,paper,location,statement,verdict\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xef\xbb\xbfid,paper,location,statement,verdict\nX1,ours,,a,true\n", None),
        (
            b"id,paper,location,statement\nX1,ours,,a\n",
            r"has the columns .*; it needs \['id', 'paper'",
        ),
        (CLAIMS_HEAD + b"X1,ours,,a\n", "line 2 of .* has not 5 values"),
        (CLAIMS_HEAD + b"X1,a,b,c,d,e\n", "line 2 of .* has not 5 values"),
        (CLAIMS_HEAD + b"X1,\xff,,a,b\n", "not a CSV file in UTF-8"),
        (CLAIMS_HEAD + b"# of ours\nX1,ours,,,b\n", "line 3 of .* has no statement; write one"),
        (CLAIMS_HEAD + b"X1,ours,,a,\n", "line 2 of .* has no verdict; write one"),
        (
            CLAIMS_HEAD + b"X1,ours,,a,true\nX1,ours,,a,true\n",
            "line 3 of .*X1 stands in line 2 already",
        ),
        (
            CLAIMS_HEAD + "X²,ours,,a,true\n".encode(),
            "line 2 of .*the id 'X²' is not letters and a num",
        ),
        (
            CLAIMS_HEAD + "²,ours,,a,true\n".encode(),
            "line 2 of .*the id '²' is not letters and a num",
        ),
        (CLAIMS_HEAD + b"1,ours,,a,true\n", "line 2 of .*the id '1' is not letters and a number"),
        (b"", r"has the columns \[\]; it needs"),
    ],
)
def test_a_ledger_is_read_whole_or_refused(project, text, words):
    (project / "book/claims.csv").write_bytes(text)
    if words is None:
        pages.write(project / "book", {}, project, draft=True)
        assert "**X1**" in (project / "book/claims.md").read_text()
    else:
        with pytest.raises(
            ValueError, match=rf"(?s)claims.csv.*{words}|{words}.*claims.csv|{words}"
        ):
            pages.write(project / "book", {}, project, draft=True)


IMAGE_RUN = {
    "configuration": {
        "experiment": "images",
        "dataset": "digits",
        "method": "h_cl",
        "options": {"beta": 1.0, "mixture": [1 / 3, 0.5, 1 / 6]},
        "encoder": "small-cnn",
        "epochs": 3,
        "seed": 0,
    },
    "metrics": {"knn": 0.987654, "history": [1]},
    "image_shape": [1, 8, 8],
    "seconds": 12.3,
    "environment": {"hardware": {"cpu": "A CPU", "threads": 2}, "date": "2026-01-02T03:04"},
}
GRAPH_RUN = {
    "configuration": {"framework": "infograph", "dataset": "MUTAG", "method": "infograph"},
    "graphs": 188,
    "metrics": {"svm": 0.8},
    "seconds": 1.0,
    "environment": {"hardware": {"cpu": "c", "threads": 1}, "date": "2026-01-02", "versions": {}},
}
WRONG = [None, "x", 1, -1.5, True, [], {}, [1], {"a": 1}, float("nan"), 10**400]


@pytest.mark.parametrize("record", [IMAGE_RUN, GRAPH_RUN], ids=["images", "graphs"])
def test_a_record_of_wrong_types_is_shown_or_named(project, record):
    """Whatever stands in a record, the page is written or a sentence names the file."""

    def places(part, *above):
        for key, value in part.items():
            yield *above, key
            if isinstance(value, dict):
                yield from places(value, *above, key)

    path = project / "book/results/runs/wrong.json"
    for place, value in itertools.product(places(record), WRONG):
        changed = part = json.loads(json.dumps(record))
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = value
        path.write_text(json.dumps(changed))
        shutil.copy(ROOT / "book/results.md", project / "book")
        shutil.copy(ROOT / "book/claims.md", project / "book")
        try:
            pages.write(project / "book", {}, project, draft=True)
        except ValueError as error:
            assert "wrong.json" in str(error), (place, value)


def test_results_page_shows_runs_papers_and_times(project):
    run = IMAGE_RUN
    chapter = {
        "metadata": {
            "hnlib": {
                "seconds": 3.2,
                "executed": "2026-01-02T03:04+00:00",
                "python": "3.11",
                "torch": "2.13",
            }
        }
    }
    again = run | {
        "configuration": run["configuration"] | {"seed": 1},
        "metrics": {"knn": 0.967654},
    }
    queued = run | {"configuration": run["configuration"] | {"queue": 64}}
    cost = {"configuration": {"experiment": "cost_of", "seed": 0}, "metrics": {"megabytes": 1.0}}
    frame = records.frame([run, again, queued, cost])
    parts = pages.results_parts(frame, {"theory/one": chapter})
    page = "\n".join(parts.values())
    for text in (
        "h\\_cl",
        "beta 1.0",
        "mixture 0.333/0.5/0.167",
        "0, 1",
        "97.8\u00a0±\u00a01.4",
        "98.8",
        "queue 64",
        "shown by their chapters: 1 (cost\\_of)",
        "12\u00a0s",
        "A CPU, 2 threads",
        "2026-01-02",
        "theory/one <../notebooks/theory/one>",
        "2026-01-02 03:04",
    ):
        assert text in page


def test_a_page_without_a_place_for_its_tables_is_refused(project):
    (project / "book/claims.md").write_text("# Claims\n")
    with pytest.raises(ValueError, match=r"book/claims.md has no line <!-- claims -->"):
        pages.write(project / "book", {}, project, draft=True)
