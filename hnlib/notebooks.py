"""The executor: from MyST notebooks to executed notebooks to the pages of the book.

A chapter is a MyST notebook below ``notebooks/``. `execute` runs one of them with papermill; `run` is the command
``hnlib run`` around it; `book` executes every chapter whose fingerprint changed, lays out a staging tree and renders it
with Sphinx. What a chapter reads decides its fingerprint: its own text, the rooms of hnlib it imports (and what those
import), its parameters, the pinned versions and, where it reads them, the ledgers. An unchanged chapter costs nothing,
and nothing shown is ever stale.
"""

import ast
import fnmatch
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

from hnlib import records

BOOK_TIMEOUT = 900  # seconds for one cell of a chapter in the default build
KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text", list: "a list"}


class NotebookError(ValueError):
    """A cell of a notebook failed: the message names the notebook and the cell and carries the traceback."""


# --------------------------------------------------------------------------------------------------------- locations


@cache
def root() -> Path:
    """The checkout, `records.project_root`; without one there is no book, and that is a ValueError."""
    folder = records.project_root()
    if not (folder / "_toc.yml").is_file():
        raise ValueError(f"{folder} is not inside a checkout of the book (no _toc.yml); change into one and try again.")
    return folder


def find(name: str | Path) -> Path:
    """The notebook called ``name``: a path, or the end of a path below ``notebooks/`` with or without ``.md``."""
    folder = root() / "notebooks"
    for candidate in (Path(name), folder / name, folder / f"{name}.md"):
        if candidate.is_file():
            return candidate.resolve()
    known = ", ".join(sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md")))
    raise ValueError(f"no notebook {str(name)!r}; known: {known or 'none'}.")


# -------------------------------------------------------------------------------------------------------- parameters


def parameters_of(notebook) -> dict:
    """The parameters of a notebook: names and default values assigned in its cell tagged ``parameters``.

    Every assignment must be a literal, ``name = value``; anything else is a ValueError.
    """
    values = {}
    for cell in notebook.cells:
        if cell.cell_type != "code" or "parameters" not in cell.metadata.get("tags", []):
            continue
        for statement in ast.parse(cell.source).body:
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            try:
                (target,) = targets
                values[target.id] = ast.literal_eval(statement.value)
            except (ValueError, AttributeError):
                raise ValueError(f"line {statement.lineno} of the parameters cell is not `name = literal`.") from None
    return values


def _parse(text: str, default):
    """``text`` as a value of the type of ``default``; ValueError when it is none."""
    import yaml

    if isinstance(default, str):
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError from None
    if default is None:
        return value
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
    elif isinstance(default, int):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif isinstance(default, float):
        if not isinstance(value, bool) and isinstance(value, int | float | str):
            return float(value)  # YAML reads 1e-3 as a string, Python does not
    elif isinstance(default, list | tuple):
        items = value if isinstance(value, list) else [item for item in text.split(",") if item.strip()]
        kinds = {type(item) for item in default}
        if len(kinds) != 1:
            return [_parse(str(item).strip(), None) for item in items]
        return [_parse(str(item).strip(), default[0]) for item in items]
    raise ValueError


def guard_parameters(known: dict, given: dict[str, str]) -> dict:
    """The ``given`` texts as values of the types of the ``known`` defaults.

    Texts are YAML (``3``, ``1e-3``, ``true``, ``null``); a list is written ``[a, b]`` or ``a,b``. A name that is not
    known, or a text that does not parse, is a ValueError that lists what is known.
    """
    listing = ", ".join(f"{name}={value!r}" for name, value in known.items()) or "none"
    values = {}
    for name, text in given.items():
        if name not in known:
            raise ValueError(f"unknown parameter {name!r}; the notebook has: {listing}.")
        default = known[name]
        try:
            values[name] = _parse(text, default) if isinstance(text, str) else text
        except ValueError:
            kind = next((words for kind, words in KINDS.items() if isinstance(default, kind)), "a value")
            if isinstance(default, list | tuple):
                kind = f"a list like {list(default)!r}"
            raise ValueError(
                f"parameter {name} must be {kind}, not {text!r}; the notebook has: {listing}."
            ) from None
    return values


# ------------------------------------------------------------------------------------------------------- fingerprints


@cache
def _imports(path: Path) -> frozenset[str]:
    """Rooms of hnlib that the source file ``path`` imports, directly."""
    return frozenset(_rooms(path.read_text(encoding="utf-8")))


def _rooms(source: str) -> set[str]:
    """Rooms of hnlib named in imports anywhere in ``source`` (Python)."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "hnlib":
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            names |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {(alias.name + ".*").split(".")[1] for alias in node.names if alias.name.split(".")[0] == "hnlib"}
    return names


def sources(code: str) -> list[Path]:
    """Source files of hnlib on which ``code`` depends through its imports; all of them where that cannot be told."""
    folder = root() / "hnlib"
    every = sorted(folder.rglob("*.py"))
    plain = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith(("%", "!")))
    found = {"__init__"}
    try:
        frontier = _rooms(plain)
    except SyntaxError:
        return every
    if "*" in frontier or re.search(r"-m\s+hnlib|\bhnlib (run|sweep|train|data|results)\b|importlib", code):
        return every
    while frontier:
        room = frontier.pop()
        path = folder / f"{room}.py"
        if room in found or not path.is_file():
            continue
        found.add(room)
        frontier |= _imports(path)
    return [folder / f"{room}.py" for room in sorted(found)]


def fingerprint(notebook: Path, parameters: dict | None = None, ledgers: bool = True) -> str:
    """A hash of everything that the executed form of ``notebook`` depends on; of the ledgers only if asked for."""
    text = notebook.read_text(encoding="utf-8")
    code = "\n".join(cell.source for cell in read(notebook).cells if cell.cell_type == "code")
    files = [root() / "requirements.txt", *sources(code)]
    if ledgers and re.search(r"\brecords\b|papers\.csv|results", text):
        files += sorted(path for path in (root() / "book/results").rglob("*") if path.is_file())
    if ledgers and "claims.csv" in text:
        files.append(root() / "book/claims.csv")
    digest = hashlib.sha256(repr((text, sorted((parameters or {}).items()), platform.python_version())).encode())
    for path in files:
        digest.update(path.relative_to(root()).as_posix().encode())
        digest.update(path.read_bytes() if path.is_file() else b"missing")
    return digest.hexdigest()[:20]


# ---------------------------------------------------------------------------------------------------------- execution


def read(path: Path):
    """The notebook at ``path`` (MyST or ipynb) as a notebook node."""
    import jupytext

    return jupytext.read(path)


def execute(
    notebook: Path, out: Path, parameters: dict | None = None, *, timeout: int | None = None,
    threads: int | None = None, failed: Path | None = None, progress: bool = False,
) -> float:
    """Execute ``notebook`` with ``parameters`` (already guarded) and store it at ``out``; returns the seconds it took.

    The kernel works in the root of the checkout. ``out`` is written only when every cell passed; otherwise what was
    executed is kept at ``failed`` (default: beside ``out``, ``NAME.failed.ipynb``) and NotebookError is raised.
    """
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else the kernel warns inside the first cell
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads starve whoever shares the machine
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    import nbformat
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    name = _name(notebook)
    failed = failed or out.with_name(f"{out.stem}.failed.ipynb")
    mark = fingerprint(notebook, parameters)  # before it runs: an edit made meanwhile must not count as executed
    node = read(notebook)
    node.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    part = out.with_name(f".{out.stem}.{os.getpid()}.part.ipynb")
    part.parent.mkdir(parents=True, exist_ok=True)
    started, clock = datetime.now(UTC), time.monotonic()
    try:
        papermill.execute_notebook(
            node, str(part), parameters=parameters or None, kernel_name="python3", language="python", cwd=str(root()),
            progress_bar=progress, execution_timeout=timeout, extra_arguments=["--log-level=50"],
        )
        executed = nbformat.read(part, as_version=4)
    except (papermill.PapermillExecutionError, CellTimeoutError, DeadKernelError, RuntimeError) as error:
        failed.parent.mkdir(parents=True, exist_ok=True)
        where = ""
        if part.is_file():
            os.replace(part, failed)
            where = f"\nThe executed notebook is kept at {_shown(failed)}."
        if isinstance(error, papermill.PapermillExecutionError):
            trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
            raise NotebookError(f"{name}: cell {error.exec_count} failed.\n{trace}{where}") from None
        what = "a cell ran out of time" if isinstance(error, CellTimeoutError) else "the kernel stopped"
        raise NotebookError(f"{name}: {what}.\n{error}{where}") from None
    finally:
        part.unlink(missing_ok=True)
    seconds = time.monotonic() - clock
    # papermill stores paths and a time stamp for every cell; what a reader may want to know fits in five lines.
    executed.metadata["papermill"] = {"parameters": parameters or {}}
    for cell in executed.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
    executed.metadata["hnlib"] = {
        "fingerprint": mark, "seconds": round(seconds, 1),
        "executed": started.isoformat(timespec="minutes"), "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }
    records.write_atomically(out, f"{nbformat.writes(executed)}\n".encode())
    return seconds


def run(notebook: str, given: dict[str, str], out: str | None = None, *, timeout: int | None = None) -> Path:
    """``hnlib run``: check the parameters, execute the notebook, store it at ``out``; returns where it is."""
    path = find(notebook)
    try:
        parameters = guard_parameters(parameters_of(read(path)), given)
    except ValueError as error:
        raise ValueError(f"{_name(path)}: {error}") from None
    if out is None:
        suffix = f"-{hashlib.sha256(repr(sorted(parameters.items())).encode()).hexdigest()[:8]}" if parameters else ""
        target = root() / "_build/runs" / f"{path.stem}{suffix}.ipynb"
    else:
        target = Path(out).resolve()
        if target.suffix != ".ipynb":
            raise ValueError(f"the executed notebook is written as .ipynb; {out!r} has another ending.")
    seconds = execute(path, target, parameters, timeout=timeout, progress=True)
    print(f"{_name(path)}: {seconds:.1f} s, {_shown(target)}")
    return target


# --------------------------------------------------------------------------------------------------------------- book


def chapters() -> list[Path]:
    """The notebooks of the book, in the order of ``_toc.yml``."""
    return [root() / f"{page}.md" for page in pages() if page.startswith("notebooks/")]


@cache
def pages() -> tuple[str, ...]:
    """Every page named in ``_toc.yml``, without its ending."""
    import yaml

    def walk(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key in ("root", "file"):
                    yield str(value)
                else:
                    yield from walk(value)
        elif isinstance(node, list):
            for item in node:
                yield from walk(item)

    return tuple(walk(yaml.safe_load((root() / "_toc.yml").read_text(encoding="utf-8"))))


def executed_path(chapter: Path) -> Path:
    """Where the executed form of ``chapter`` is kept."""
    return (root() / "_build/executed" / chapter.relative_to(root() / "notebooks")).with_suffix(".ipynb")


def _name(path: Path) -> str:
    folder = root() / "notebooks"
    return path.relative_to(folder).with_suffix("").as_posix() if path.is_relative_to(folder) else path.name


def _shown(path: Path) -> str:
    return path.relative_to(root()).as_posix() if path.is_relative_to(root()) else str(path)


def _load(path: Path) -> dict | None:
    """A stored notebook as plain JSON, or None when there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _stored(chapter: Path) -> dict:
    return (_load(executed_path(chapter)) or {}).get("metadata", {}).get("hnlib", {})


def execute_chapters(wanted: list[Path], jobs: int) -> None:
    """Execute ``wanted`` chapters, ``jobs`` at a time, the longest first; NotebookError when one of them fails."""

    def expected(chapter: Path) -> float:
        return _stored(chapter).get("seconds", 1e6 if "experiments" in chapter.parts else 1e3)

    wanted = sorted(wanted, key=expected, reverse=True)
    jobs = min(jobs, len(wanted))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    failures = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {
            pool.submit(
                execute, chapter, executed_path(chapter), timeout=BOOK_TIMEOUT, threads=threads,
                failed=root() / "_build/failed" / f"{_name(chapter)}.ipynb",
            ): chapter
            for chapter in wanted
        }
        waiting, done = set(futures), 0
        try:
            while waiting:
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    done, name = done + 1, _name(futures[future])
                    if (error := future.exception()) is None:
                        print(f"  [{done}/{len(wanted)}] {name}: {future.result():.1f} s", flush=True)
                    elif isinstance(error, NotebookError):
                        print(f"  [{done}/{len(wanted)}] {name}: failed; what is running is finished", flush=True)
                        failures.append(str(error))
                    elif isinstance(error, BrokenProcessPool):
                        raise NotebookError(f"{name}: its process was killed; is there enough memory? Try --jobs 1.")
                    else:
                        raise error
                if failures:
                    waiting = {future for future in waiting if not future.cancel()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failures:
        raise NotebookError("\n\n".join(failures) + "\nThe book was not built.")


@contextmanager
def _alone():
    """Hold the lock of the build folder: two builds at once would write into each other's pages."""
    import fcntl  # not on Windows, where single notebooks can be run all the same

    folder = root() / "_build"
    folder.mkdir(exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("waiting for another build of the book to finish", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


NOT_EXECUTED = """```{admonition} Not executed
:class: warning
This chapter has not been executed since its last change; in this draft it is shown without results.
```
"""


def stage(current: list[Path], draft: bool) -> Path:
    """Lay out what Sphinx reads: configuration, prose, executed notebooks, generated ledgers. Returns the folder."""
    from hnlib import ledgers

    folder = root() / "_build/stage"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root() / "book", folder / "book", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    for name in ("_config.yml", "_toc.yml"):
        shutil.copyfile(root() / name, folder / name)
    executed = {}
    for chapter in chapters():
        target = (folder / chapter.relative_to(root())).with_suffix(".ipynb")
        target.parent.mkdir(parents=True, exist_ok=True)
        if chapter in current:
            shutil.copyfile(executed_path(chapter), target)
            executed[_name(chapter)] = _load(target)
        elif chapter.is_file():
            import nbformat

            node = read(chapter)
            head = next(cell for cell in node.cells if cell.cell_type == "markdown")
            head.source = re.sub(r"^# .*$", rf"\g<0>\n\n{NOT_EXECUTED}", head.source, count=1, flags=re.M)
            target.write_text(nbformat.writes(node), encoding="utf-8")
    ledgers.write(folder / "book", executed, root(), draft)
    for page in pages():
        if not any((folder / f"{page}{ending}").is_file() for ending in (".md", ".ipynb")):
            if not draft:
                raise ValueError(f"_toc.yml names {page}, but there is no {page}.md; write it or take it out.")
            path = folder / f"{page}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {path.stem}\n\nThis page is not written yet.\n", encoding="utf-8")
    return folder


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def render(folder: Path, draft: bool) -> None:
    """Render the staging tree with Sphinx and put the pages at ``_build/html``, or leave those there untouched.

    Sphinx always starts afresh: its incremental builds do not see that an unchanged page refers to something that was
    renamed elsewhere, and forget the warnings of the build before.
    """
    build = root() / "_build/sphinx"
    shutil.rmtree(build, ignore_errors=True)
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(folder)]
    command += ["--path-output", str(build), "-n", "-q", "--keep-going", *([] if draft else ["-W"])]
    environment = os.environ | {"PYTHONPATH": str(root()), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, env=environment, text=True, capture_output=True, cwd=root(), check=False)
    warnings = re.sub(r"\x1b\[[0-9;]*m", "", result.stderr).replace(f"{folder}/", "")
    page = build / "_build/html"
    if result.returncode or not (page / "index.html").is_file():
        raise ValueError(f"Sphinx could not build the book; _build/html is as it was.\n{warnings.strip()}")
    if warnings.strip():
        print(warnings.strip(), file=sys.stderr)
    shutil.rmtree(page / ".doctrees", ignore_errors=True)
    html, old = root() / "_build/html", root() / "_build/html.old"
    shutil.rmtree(old, ignore_errors=True)
    if html.exists():
        html.rename(old)
    page.rename(html)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(build, ignore_errors=True)


def book(only: str | None = None, jobs: int | None = None) -> int:
    """``hnlib book``: execute what changed, render the pages, publish them at ``_build/html``; 0 when all went well.

    With ``only``, a draft: other chapters that changed are shown without results, and warnings are not fatal.
    """
    clock = time.monotonic()
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs must be at least 1, not {jobs}.")
    jobs = jobs or os.cpu_count() or 1
    listed = chapters()
    present = [chapter for chapter in listed if chapter.is_file()]
    if only is None and (missing := [_name(chapter) for chapter in listed if chapter not in present]):
        raise ValueError(f"_toc.yml names chapters that do not exist: {', '.join(missing)}.")
    marks = {chapter: fingerprint(chapter) for chapter in present}
    current = [chapter for chapter in present if _stored(chapter).get("fingerprint") == marks[chapter]]
    wanted = [chapter for chapter in present if chapter not in current]
    if only is not None:
        matching = [c for c in present if fnmatch.fnmatch(_name(c), only) or only.strip("*") in _name(c)]
        if not matching:
            known = ", ".join(_name(chapter) for chapter in present)
            raise ValueError(f"no chapter matches {only!r}; known: {known or 'none'}.")
        wanted = [chapter for chapter in wanted if chapter in matching]
    if wanted:
        print(f"executing {len(wanted)} of {len(present)} chapters, {min(jobs, len(wanted))} at a time", flush=True)
        execute_chapters(wanted, jobs)
    current += wanted
    draft = only is not None
    with _alone():
        folder = stage(current, draft)
        state = hashlib.sha256(
            f"{draft} {_digest(folder)} {_digest(root() / 'hnlib')} {metadata.version('sphinx')}".encode()
        ).hexdigest()
        mark = root() / "_build/book.json"
        if (_load(mark) or {}).get("state") == state and (root() / "_build/html/index.html").is_file():
            print(f"the book is up to date: _build/html/index.html ({time.monotonic() - clock:.1f} s)")
            return 0
        print("rendering the pages", flush=True)
        mark.unlink(missing_ok=True)
        render(folder, draft)
        records.write_atomically(mark, json.dumps({"state": state}).encode())
    kind = "a draft of the book" if draft else "the book"
    print(f"{kind} is built: _build/html/index.html ({time.monotonic() - clock:.1f} s)")
    return 0
