"""What is installed with what: declared dependencies, and the wheel beside torch and numpy alone."""

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from packaging.requirements import Requirement

from builder import build, portable_notebooks
from hnlib.notebooks import execute
from hnlib.training import records

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: The extra that brings what a package imports; the losses need none.
EXTRA = {
    "images": "training",
    "training": "training",
    "experiments": "training",
    "commands": "training",
    "_files": "training",
    "__main__": "training",
    "graphs": "graphs",
    "sentences": "sentences",
    "retrieval": "retrieval",
    "integrations": "sentence-transformers",
    "notebooks": "book",
}
OPTIONAL = {"experiments.runner": "cluster"}  # imported inside functions
OPTIONAL |= dict.fromkeys(("experiments.null", "experiments.words"), "notebooks")
LOSSES = [path.stem for path in (ROOT / "hnlib").glob("[!_]*.py") if path.stem not in EXTRA]


def normalised(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def declared(extra=None):
    """Names of the distributions that `pip install hnlib[extra]` asks for on this Python."""
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    found = set() if extra is None else declared()
    for requirement in map(Requirement, lines):
        if requirement.marker and not requirement.marker.evaluate():
            continue
        if requirement.name == "hnlib":
            found = found.union(*map(declared, requirement.extras))
        else:
            found = found | {normalised(requirement.name)}
    return frozenset(found)


def imports(path):
    """(top-level module, whether at the top of the file) of each import outside hnlib."""
    tree = ast.parse(path.read_text())
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = {node for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        for name in imported(node) - {"hnlib", "__future__"}:
            yield name, node not in inside


def imported(node):
    """Return the top-level modules that a statement imports, those of Python aside."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module] if isinstance(node, ast.ImportFrom) else []
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


@cache
def distributions(module):
    found = DISTRIBUTIONS.get(module, [])
    return {normalised(name) for name in found} or {normalised(module)}


DISTRIBUTIONS = metadata.packages_distributions()


def undeclared(path):
    """Return what a module imports and its package's extra does not bring."""
    name = ".".join(path.relative_to(ROOT / "hnlib").with_suffix("").parts)
    always = declared(EXTRA.get(name.partition(".")[0]))
    in_functions = always | (declared(OPTIONAL[name]) if name in OPTIONAL else set())
    return {
        (name, module)
        for module, at_import in imports(path)
        if not distributions(module) & (always if at_import else in_functions)
    }


def test_what_a_module_imports_is_declared_by_its_package():
    paths = sorted((ROOT / "hnlib").rglob("*.py"))
    assert [found for path in paths for found in undeclared(path)] == []


# The wheel


def closure(names):
    """The distributions that these need, themselves included, as installed here."""
    found, open_ = {}, list(names)
    while open_:
        name = normalised(open_.pop())
        if name in found:
            continue
        found[name] = metadata.distribution(name)
        wanted = map(Requirement, found[name].requires or [])
        open_ += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the checkout's own files, offline, by the pinned setuptools."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("hnlib", "book", "notebooks", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    command = "-m pip wheel --quiet --no-deps --no-build-isolation --no-index -w out ."
    subprocess.run([sys.executable, *command.split()], cwd=folder, check=True)
    (built,) = (folder / "out").glob("hnlib-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """environment(extra): the python of one with the wheel and what the extra asks for."""

    def make(extra=None):
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, symlinks=os.name != "nt")
        python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        site = Path(
            inside(python, "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        )
        for distribution in closure(declared(extra)).values():
            for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
                source = Path(distribution.locate_file(top))
                if source.exists() and not (site / top).exists():
                    (site / top).symlink_to(source)
        command = "-m pip install --quiet --no-deps --no-index --no-compile --target"
        subprocess.run([sys.executable, *command.split(), str(site), str(wheel)], check=True)
        return python

    return cache(make)


def run(python, *arguments):
    """The finished process; no variable of this environment leads out of that one."""
    command = [python, "-I", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=python.parent)


def inside(python, code):
    """Return what the code prints there; it must not complain."""
    done = run(python, "-c", code)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_has_every_module_and_asks_for_torch_and_numpy(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(about).decode()
    modules = {str(p.relative_to(ROOT).as_posix()) for p in (ROOT / "hnlib").rglob("*.py")}
    modules |= {
        p.relative_to(ROOT / "book").as_posix() for p in (ROOT / "book/hnbook").rglob("*.py")
    }
    assert wheel.stat().st_size < 1.5e6 and not [n for n in names if n.endswith(".jsonl")]
    assert modules | {"hnlib/py.typed"} <= names and any(n.endswith("/LICENSE") for n in names)
    asked = [Requirement(value) for value in re.findall(r"^Requires-Dist: (.*)$", text, re.M)]
    assert {r.name for r in asked if "extra" not in str(r.marker)} == {"torch", "numpy"}


@pytest.mark.slow
def test_the_losses_work_beside_torch_and_numpy_alone(environment):
    bare = environment()
    code = f"""
import importlib, importlib.util, sys
for name in "scipy pandas sklearn lightning_fabric torchvision torch_geometric".split():
    assert importlib.util.find_spec(name) is None, name
rooms = [importlib.import_module("hnlib." + name) for name in {LOSSES}]
assert "filelock" not in sys.modules
import torch
from hnlib import methods
torch.manual_seed(0)
for name in ("hcl", "ot", "h-scl"):
    z1, z2 = (torch.randn(8, 5, requires_grad=True) for _ in range(2))
    loss = methods.build(name)(z1, z2, torch.arange(8) % 3)
    loss.backward()
    assert loss.isfinite() and z1.grad.norm() > 0
print(rooms[0].__file__)
"""
    assert Path(inside(bare, code).strip()).is_relative_to(bare.parents[1]), "not the checkout's"


def test_the_losses_are_tested_at_their_lower_bounds():
    workflow = (ROOT / ".github/workflows/book.yml").read_text()
    for bound in PROJECT["dependencies"]:
        assert bound.replace(">=", "==") in workflow


@pytest.mark.slow
def test_a_command_without_its_packages_says_what_to_install(environment):
    done = run(
        environment(), "-m", "hnlib", "train", "images", "--dataset", "digits", "--epochs", "1"
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.match(r"hnlib: \w+ is missing; pip install 'hnlib\[", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["training.train", "images.config", "experiments.comparisons"])
def test_an_import_without_its_packages_says_what_to_install(environment, module):
    done = run(environment(), "-c", f"import hnlib.{module}")
    assert re.search(r"Error: \w+ is missing; pip install 'hnlib\[training\]'", done.stderr)


# Notebooks away from the checkout

CELLS = """
import json, os, sys
from pathlib import Path
os.environ["MPLBACKEND"] = "agg"
from IPython.core.interactiveshell import InteractiveShell
failed, shell = [], InteractiveShell()
for name, sources in json.loads(Path(sys.argv[1]).read_text()).items():
    shell.user_ns.clear()  # `reset` would also look for garbage, for a third of a second
    shell.init_user_ns()
    for source in sources:
        done = shell.run_cell(source, silent=True)
        if not done.success:
            failed.append(f"{name}: {done.error_before_exec or done.error_in_exec!r}")
            break
print("FAILED", json.dumps(failed))
"""


@pytest.fixture(scope="module")
def away(environment, tmp_path_factory):
    """away({name: cells}): the notebooks that fail beside the recorded runs and the wheel alone."""
    python = environment("notebooks")

    def execute(cells):
        empty = tmp_path_factory.mktemp("empty")
        records.write_parquet(empty / records.PARQUET)
        told = tmp_path_factory.mktemp("told") / "cells.json"
        told.write_text(json.dumps(cells))
        kept = {"HOME": str(empty), "PATH": os.environ["PATH"], "MPLCONFIGDIR": str(told.parent)}
        command = [python, "-I", "-c", CELLS, str(told)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=empty, env=kept)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.rpartition("FAILED ")[2])

    return execute


def beginning(page):
    """The first two code cells of a chapter as it is downloaded."""
    chapter = execute.read(ROOT / f"{page}.md")
    node = portable_notebooks.portable(chapter, "https://github.com/a/b", page)
    return [cell.source for cell in node.cells if cell.cell_type == "code"][:2]


@pytest.mark.slow
def test_what_a_page_imports_in_any_cell_is_declared_for_notebooks():
    missing, available = set(), {*closure(declared("notebooks")), "hnlib"}
    for path in (ROOT / "notebooks").rglob("*.md"):
        cells = [c.source for c in execute.read(path).cells if c.cell_type == "code"]
        for node in ast.walk(ast.parse("\n".join(cells))):
            unknown = {n for n in imported(node) if not distributions(n) & available}
            missing |= {(path.stem, name) for name in unknown}
    assert missing == set()


@pytest.mark.slow
def test_every_downloaded_notebook_starts_in_an_empty_folder(away):
    """Its first cell, and the one that imports what it needs and may read the records."""
    cells = {page: beginning(page) for page in build.toc() if page.startswith("notebooks/")}
    assert len(cells) > 30 and all(len(sources) == 2 for sources in cells.values())
    cells["control"] = ["import hnlib", "from hnlib import no_such_room"]
    *failed, control = away(cells)
    assert failed == [] and control.startswith("control: ImportError")


def test_without_the_library_the_first_cell_installs_it_or_says_how(monkeypatch, tmp_path):
    """An address: pip, from there. The placeholder: one sentence."""
    from IPython.core.inputtransformer2 import TransformerManager

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    chapter, ran = nbformat.v4.new_notebook(), []
    first = portable_notebooks.portable(chapter, "https://github.com/a/b", "page").cells[0].source
    shell = SimpleNamespace(run_line_magic=lambda *words: ran.append(words))
    exec(TransformerManager().transform_cell(first), {"get_ipython": lambda: shell})
    assert ran == [
        (
            "pip",
            f'install --quiet "hnlib[notebooks] @ https://a.github.io/b/{portable_notebooks.WHEEL}"',
        )
    ]
    chapter = portable_notebooks.portable(nbformat.v4.new_notebook(), "https://a.invalid/b", "page")
    placed = f"put {portable_notebooks.WHEEL} beside this notebook"
    first = TransformerManager().transform_cell(chapter.cells[0].source)
    with pytest.raises(ImportError, match=placed):
        exec(first, {"get_ipython": lambda: shell})
    monkeypatch.chdir(tmp_path)
    (tmp_path / portable_notebooks.WHEEL).touch()
    exec(first, {"get_ipython": lambda: shell})
    assert ran[1:] == [("pip", f'install --quiet "./{portable_notebooks.WHEEL}[notebooks]"')]


def test_a_page_that_reads_records_says_where_to_put_them(monkeypatch, tmp_path):
    """Or fetches them, where there is an address; a page of theory does neither."""
    read = {"hnlib": {"read": {"book/results/records": "digest"}}}
    pages = {
        url: portable_notebooks.portable(nbformat.v4.new_notebook(metadata=read), url, "page")
        for url in ("https://github.com/a/b", "https://a.invalid/b")
    }
    fetched, told = (page.cells[0].source for page in pages.values())
    assert f'urlretrieve("https://a.github.io/b/{records.PARQUET}"' in fetched
    monkeypatch.setattr(records, "project_root", lambda: tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HNLIB_RECORDS", raising=False)
    told = told.replace("    %pip", "    pass  # ")
    with pytest.raises(ValueError, match=f"{records.PARQUET} in it; put that file"):
        exec(told, {})
    (tmp_path / records.PARQUET).touch()
    exec(told, {})
    theory = portable_notebooks.portable(nbformat.v4.new_notebook(), "https://a.invalid/b", "page")
    assert records.PARQUET not in theory.cells[0].source
