"""What is installed with what: declared dependencies, and the wheel beside torch and numpy alone."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from functools import cache
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from wheels import unpacked

import hnlib
from builder import portable_notebooks
from hnlib.training import records

ROOT = Path(__file__).resolve().parents[1]
BOUNDS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
#: The packages that each extra brings; the losses, modules of their own, need none.
LOSSES = {path.stem for path in (ROOT / "hnlib").glob("[!_]*.py")} - {"commands"}
#: Lines of a module that somebody has to read
LONGEST = 500
EXTRAS = {
    "": LOSSES,
    "training": ["training", "own", "experiments", "commands"],
    "images": ["images"],
    "graphs": ["graphs"],
    "sentences": ["texts", "sentences"],
    "retrieval": ["retrieval"],
    "sentence-transformers": ["integrations"],
    "book": ["notebooks"],
}


def test_no_module_is_longer_than_one_can_read():
    files = {path: path.read_bytes().count(b"\n") for path in (ROOT / "hnlib").rglob("*.py")}
    assert len(files) > 100
    assert {path.name: lines for path, lines in files.items() if lines > LONGEST} == {}


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the checkout, offline, by the pinned setuptools."""
    folder = tmp_path_factory.mktemp("wheel")
    portable_notebooks.wheel(folder)
    return folder / portable_notebooks.WHEEL


@pytest.fixture(scope="module")
def beside(wheel, tmp_path_factory):
    """beside(extra, code) runs the code with the wheel and what the extra asks for."""
    return unpacked(wheel, tmp_path_factory.mktemp("unpacked"))


@pytest.mark.slow
def test_the_wheel_is_small_has_every_module_and_asks_for_torch_and_numpy(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        text = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "hnlib").rglob("*.py")}
    modules |= {f"hnbook/{path.name}" for path in (ROOT / "book/hnbook").glob("*.py")}
    assert wheel.stat().st_size < 1.5e6 and modules | {"hnlib/py.typed"} <= names
    asked = [Requirement(value) for value in re.findall(r"^Requires-Dist: (.*)$", text, re.M)]
    assert {r.name for r in asked if "extra" not in str(r.marker)} == {"torch", "numpy"}


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_what_its_modules_import(beside, extra):
    """And torch and numpy alone what the losses need, which are called."""
    done = beside(
        extra,
        f"""
import importlib, pkgutil, torch
from hnlib import methods
for name in ("hcl", "ot", "h-scl"):
    z1, z2 = (torch.randn(8, 5, requires_grad=True) for _ in range(2))
    methods.build(name)(z1, z2, torch.arange(8) % 3).backward()
methods.example("weince").build()(z1, z2).backward()
for name in {EXTRAS[extra]}:
    package = importlib.import_module(f"hnlib.{{name}}")
    for one in pkgutil.walk_packages(getattr(package, "__path__", []), f"{{package.__name__}}."):
        importlib.import_module(one.name)""",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_without_its_packages_a_command_and_an_import_say_what_to_install(beside):
    done = beside(None, "from hnlib.__main__ import main\nsys.exit(main(['train', 'images']))")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.match(r"hnlib: \w+ is missing; pip install 'hnlib\[", done.stderr)
    done = beside(None, "import hnlib.training.train")
    assert re.search(r"Error: \w+ is missing; pip install 'hnlib\[training\]'", done.stderr)


#: What somebody may have: nothing that hnlib brings may ask for another
TORCH = [f"2.{minor}.{patch}" for minor in range(10, 15) for patch in (0, 1)] + ["2.14.0+cu130"]


def refusing(package, extra, requires):
    """Return the requirements on torch, of a package and its dependencies, that refuse a version in TORCH."""
    wanted, seen, found = [(package, extra)], set(), set()
    while wanted:
        if (one := wanted.pop()) in seen:
            continue
        seen.add(one)
        for need in map(Requirement, requires(one[0]) or ()):
            if need.marker and not need.marker.evaluate({"extra": one[1]}):
                continue
            if need.name == "torch" and not all(map(need.specifier.contains, TORCH)):
                found.add((one[0], str(need)))
            wanted += [(need.name, more) for more in ("", *need.extras)]
    return found


@pytest.fixture(scope="module")
def requires(wheel):
    """What the wheel of this checkout needs, and every installed package."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = [one for one in file.namelist() if one.endswith(".dist-info/METADATA")]
        own = message_from_string(file.read(name).decode()).get_all("Requires-Dist")
    return lambda name: own if name == "hnlib" else metadata.requires(name)


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["training", "graphs", "retrieval"])
def test_an_extra_leaves_a_machine_its_torch(extra, requires):
    """Whatever 2.10 to 2.14 it has, but for torchvision, whose releases are of one torch each."""
    assert refusing("hnlib", extra, requires) == set()
    assert {name for name, _ in refusing("hnlib", "images", requires)} == {"torchvision"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ("torch<2.14", True),
        ("torch~=2.10.0", True),
        ("torch==2.13.0", True),
        ("torch>=2.11", True),
        ("torch!=2.12.1", True),
        ("torch>=2.4,<3", False),
        ('torch<2.14; extra == "tests"', False),
        ('torch<2.14; python_version < "3"', False),
    ],
)
@pytest.mark.parametrize("package", ["hnlib", "lightning-fabric", "tqdm"])
def test_a_bound_on_torch_anywhere_below_an_extra_is_seen(package, asked, refused, requires):
    more = lambda name: [*(requires(name) or ()), *[asked] * (name == package)]  # noqa: E731
    found = refusing("hnlib", "training", more)
    assert found == ({(package, str(Requirement(asked)))} if refused else set())


# The lower bounds

#: What the job `lowest` installs, and what of that needs the losses alone.
LOWEST = ROOT / ".github/workflows/book.yml"
HAS = {"torch", "numpy", "scipy", "ot", "hypothesis", "pytest", *sys.stdlib_module_names}


@cache
def imported(path):
    """Return the packages that a file imports, and its files of the library and the tests.

    The library also imports in functions, which these tests call only if they import so, too.
    """
    tree, home = ast.parse(path.read_text()), ROOT / "tests"
    names, packages, files = set(), set(), set()
    for node in ast.walk(tree) if path.parent == home else tree.body:
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{one.name}" for one in node.names}
    for parts in (name.split(".") for name in names):
        starts = [(ROOT if parts[0] == "hnlib" else home).joinpath(*parts[:k]) for k in (1, 2, 3)]
        own = {start.with_suffix(".py") for start in starts}
        own |= {start / "__init__.py" for start in starts}
        own = {one for one in own if one.is_file()}
        files |= own
        packages |= set() if own else {parts[0]}
    return packages, files


def needs(path):
    """Return the packages that a test needs, and the folders of the library's modules."""
    packages, seen, left = set(), set(), {path}
    while left:
        seen.add(one := left.pop())
        more, files = imported(one)
        packages |= more
        left |= files - seen
    return packages, {one.parent for one in seen if one.is_relative_to(ROOT / "hnlib")}


def test_the_workflow_names_no_test_that_is_gone():
    named = {*re.findall(r"\btest_\w+\.py", LOWEST.read_text())}
    assert named and named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


def test_the_tests_of_the_losses_are_those_of_the_lower_bounds():
    """Each that imports torch, numpy and the losses alone, and none that imports more."""
    job = re.search(r"\n  lowest:\n.*?\n  (?=\S)", LOWEST.read_text(), re.S)[0]
    listed = {*re.findall(r"\btest_\w+\.py", job)}
    able = set()
    for path in (ROOT / "tests").glob("test_*.py"):
        packages, folders = needs(path)
        if ROOT / "hnlib" in folders <= {ROOT / "hnlib", ROOT / "hnlib/graphs"} and packages <= HAS:
            able.add(path.name)
    assert listed == able
    pinned = {requirement.name: requirement for requirement in map(Requirement, BOUNDS)}
    assert {"torch", "numpy"} == pinned.keys()
    for name, requirement in pinned.items():
        (bound,) = [one.version for one in requirement.specifier if one.operator == ">="]
        assert f" {name}=={bound}" in job


# Notebooks away from the checkout


@pytest.mark.parametrize(
    ("url", "installed"),
    [
        ("https://github.com/a/b", "hnlib[notebooks] @ https://a.github.io/b/{}"),
        ("https://a.invalid/b", "./{}[notebooks]"),
    ],
)
def test_without_the_library_the_first_cell_installs_it_and_fetches_the_records(
    monkeypatch, url, installed
):
    """From the pages, where they have an address, else from beside the notebook; if it is there, not."""
    read = {"hnlib": {"read": {"book/results/records": "digest"}}}
    node = portable_notebooks.portable(nbformat.v4.new_notebook(metadata=read), url, "page")
    first, asked = node.cells[0].source, []
    first = re.sub(r"%pip (.*)", lambda line: f"asked.append({line[1]!r})", first)
    monkeypatch.setattr("urllib.request.urlretrieve", lambda url, file: asked.append(url))
    exec(first, {"asked": asked})
    assert asked == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exec(first, {"asked": asked})
    install = f'install --quiet "{installed}"'.format(portable_notebooks.WHEEL)
    fetched = ["https://a.github.io/b/records.parquet"] * ("github" in url)
    assert asked == [install, *fetched] and records.PARQUET in first


# Workflows

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_named_by_their_commit(path):
    used = re.findall(r"uses: *(\S+)(.*)", path.read_text())
    named = [re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action, _ in used]
    assert all(named) and all(re.match(r" +# v\d+\.\d+\.\d+", rest) for _, rest in used)


def test_a_release_waits_for_the_tests_of_its_commit_and_is_the_version_of_the_library():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    steps = [step.get("run", "") for step in jobs["tests"]["steps"]]
    assert "bash .ci/run" in steps
    assert all(job["needs"] == "tests" for name, job in jobs.items() if name != "tests")
    (check,) = (step for step in steps if "__version__" in step)
    for tag, status in ((f"v{hnlib.__version__}", 0), ("v9.9.9", 1)):
        environment = os.environ | {"GITHUB_REF_NAME": tag}
        assert subprocess.run(check, shell=True, cwd=ROOT, env=environment).returncode == status
