"""The executor: from MyST notebooks to executed notebooks.

A chapter is a MyST notebook below ``notebooks/``. `execute` runs one of them with papermill; `run`
is the command ``hnlib run`` around it. What a chapter reads decides its fingerprint: its own text,
the rooms of hnlib it imports (and what those import), its parameters, the pinned versions and,
where it reads them, the ledgers. An unchanged chapter costs nothing, and nothing shown is ever
stale.
"""

import ast
import hashlib
import json
import os
import platform
import re
import time
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from hnlib import _files

KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
# Where a chapter calls the command, or imports what cannot be told from outside, all rooms count.
ANY_ROOM = re.compile(r"-m\s+hnlib|\bhnlib (run|sweep|train|data|results)\b|importlib")


class NotebookError(ValueError):
    """A cell of a notebook failed: the message names the notebook and the cell and carries the
    traceback."""


@cache
def root() -> Path:
    """The checkout, `_files.project_root`; without one there is no book, and that is a
    ValueError."""
    folder = _files.project_root()
    if not (folder / "_toc.yml").is_file():
        raise ValueError(
            f"{folder} is not inside a checkout of the book (no _toc.yml); "
            "change into one and try again."
        )
    return folder


def find(notebook: str | Path) -> Path:
    """The notebook called ``notebook``: a path, or the end of a path below ``notebooks/`` with or
    without ``.md``."""
    folder = root() / "notebooks"
    for candidate in (Path(notebook), folder / notebook, folder / f"{notebook}.md"):
        if candidate.is_file():
            return candidate.resolve()
    known = ", ".join(sorted(name(path) for path in folder.rglob("*.md")))
    raise ValueError(f"no notebook {str(notebook)!r}; known: {known or 'none'}.")


def name(notebook: Path) -> str:
    """What messages call a notebook: ``theory/transport``; outside ``notebooks/`` its file name."""
    folder = root() / "notebooks"
    inside = notebook.is_relative_to(folder)
    return notebook.relative_to(folder).with_suffix("").as_posix() if inside else notebook.name


def shown(path: Path) -> str:
    """A path as messages name it: from the root of the checkout where it is inside."""
    return path.relative_to(root()).as_posix() if path.is_relative_to(root()) else str(path)


def read(path: Path):
    """The notebook at ``path`` (MyST or ipynb) as a notebook node."""
    import jupytext

    return jupytext.read(path)


def load(path: Path) -> dict:
    """A stored notebook as plain JSON; empty when there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def executed_path(chapter: Path) -> Path:
    """Where the executed form of ``chapter`` is kept."""
    inside = chapter.relative_to(root() / "notebooks")
    return (root() / "_build/executed" / inside).with_suffix(".ipynb")


def about(path: Path) -> dict:
    """What a stored notebook says of itself: fingerprint, seconds, parameters, versions; empty when
    there is none."""
    stored = load(path).get("metadata", {})
    return stored.get("hnlib", {}) | stored.get("papermill", {})


def parameters_of(notebook) -> dict:
    """The parameters of a notebook: names and default values assigned in its cell tagged
    ``parameters``.

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
                raise ValueError(
                    f"line {statement.lineno} of the parameters cell is not `name = literal`."
                ) from None
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
    if isinstance(default, list | tuple):
        items = value if isinstance(value, list) else filter(str.strip, text.split(","))
        alike = len({type(item) for item in default}) == 1
        return [_parse(str(item).strip(), default[0] if alike else None) for item in items]
    if isinstance(default, float) and type(value) in (int, float, str):
        return float(value)  # YAML reads 1e-3 as a string, Python does not
    if default is None or type(value) is type(default):  # so that true is no integer
        return value
    raise ValueError


def guard_parameters(known: dict, given: dict[str, str]) -> dict:
    """The ``given`` texts as values of the types of the ``known`` defaults.

    Texts are YAML (``3``, ``1e-3``, ``true``, ``null``); a list is written ``[a, b]`` or ``a,b``. A
    name that is not known, or a text that does not parse, is a ValueError that lists what is known.
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
            kind = KINDS.get(type(default), "a value")
            if isinstance(default, list | tuple):
                kind = f"a list like {list(default)!r}"
            raise ValueError(
                f"parameter {name} must be {kind}, not {text!r}; the notebook has: {listing}."
            ) from None
    return values


def given_once(pairs: list) -> dict[str, str]:
    """The pairs of ``-p NAME VALUE`` as a dictionary; ValueError for a name given twice."""
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the parameter {twice!r} is given twice; give it once.")
    return dict(pairs)


def mark(parameters: dict) -> str:
    """The eight letters that tell apart executions of one notebook with other parameters."""
    return hashlib.sha256(repr(sorted(parameters.items())).encode()).hexdigest()[:8]


@cache
def _imports(path: Path) -> frozenset[str]:
    """Rooms of hnlib that the source file ``path`` imports, directly."""
    return frozenset(_rooms(path.read_text(encoding="utf-8")))


def _rooms(source: str) -> set[str]:
    """What imports anywhere in ``source`` (Python) may mean as rooms: ``images.data`` and its
    names, and ``images``; ``*`` for hnlib itself."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
            names |= {f"{module}.*" if module == "hnlib" else module for module in modules}
    inside = [name.split(".")[1:] for name in names if name.split(".")[0] == "hnlib"]
    return {".".join(parts[:k]) for parts in inside for k in range(1, len(parts) + 1)}


def sources(code: str) -> list[Path]:
    """Source files of hnlib on which ``code`` depends through its imports; all of them where that
    cannot be told."""
    folder = root() / "hnlib"
    magic = ("%", "!")
    python = [line for line in code.splitlines() if not line.lstrip().startswith(magic)]
    try:
        frontier = _rooms("\n".join(python))
    except SyntaxError:
        frontier = {"*"}
    if "*" in frontier or ANY_ROOM.search(code):
        return sorted(folder.rglob("*.py"))
    found = {folder / "__init__.py"}
    while frontier:
        room = frontier.pop().replace(".", "/")
        for path in (folder / f"{room}.py", folder / room / "__init__.py"):
            if path not in found and path.is_file():
                found.add(path)
                frontier |= _imports(path)
    return sorted(found)


def fingerprint(notebook: Path, parameters: dict | None = None, ledgers: bool = True) -> str:
    """A hash of everything that the executed form of ``notebook`` depends on; of the ledgers only
    if asked for."""
    text = notebook.read_text(encoding="utf-8")
    code = "\n".join(cell.source for cell in read(notebook).cells if cell.cell_type == "code")
    files = [*sorted(root().glob("requirements*.txt")), *sources(code)]
    if ledgers and re.search(r"\brecords\b|papers\.csv|results", text):
        files += sorted(path for path in (root() / "book/results").rglob("*") if path.is_file())
    if ledgers and "claims.csv" in text:
        files.append(root() / "book/claims.csv")
    chosen = sorted((parameters or {}).items())
    digest = hashlib.sha256(repr((text, chosen, platform.python_version())).encode())
    for path in files:
        digest.update(path.relative_to(root()).as_posix().encode())
        digest.update(path.read_bytes() if path.is_file() else b"missing")
    return digest.hexdigest()[:20]


def execute(
    notebook: Path,
    out: Path,
    parameters: dict | None = None,
    *,
    timeout: int | None = None,
    threads: int | None = None,
    failed: Path | None = None,
    progress: bool = False,
) -> float:
    """Execute ``notebook`` with ``parameters`` (already guarded) and store it at ``out``; returns
    the seconds it took.

    The kernel works in the root of the checkout. ``out`` is written only when every cell passed;
    otherwise what was executed is kept at ``failed`` (default: beside ``out``,
    ``NAME.failed.ipynb``) and NotebookError is raised.
    """
    import nbformat
    import papermill
    from nbclient.exceptions import CellTimeoutError

    _prepare_kernel(threads)
    # Before it runs: an edit made meanwhile must not count as executed.
    about = {"fingerprint": fingerprint(notebook, parameters)}
    node = read(notebook)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    node.metadata["kernelspec"] = kernel
    part = out.with_name(f".{out.stem}.{os.getpid()}.part.ipynb")
    part.parent.mkdir(parents=True, exist_ok=True)
    started, clock = datetime.now(UTC), time.monotonic()
    try:
        papermill.execute_notebook(
            node,
            str(part),
            parameters=parameters or None,
            kernel_name=kernel["name"],
            language=kernel["language"],
            cwd=str(root()),
            progress_bar=progress,
            execution_timeout=timeout,
            extra_arguments=["--log-level=50"],
        )
        executed = nbformat.read(part, as_version=4)
    except (papermill.PapermillExecutionError, CellTimeoutError, RuntimeError) as error:
        late = isinstance(error, CellTimeoutError)  # a RuntimeError: the kernel died
        reason = _reason(error, "a cell ran out of time" if late else "the kernel stopped")
        kept = _keep(part, failed or out.with_name(f"{out.stem}.failed.ipynb"))
        raise NotebookError(f"{name(notebook)}: {reason}{kept}") from None
    finally:
        part.unlink(missing_ok=True)
    seconds = time.monotonic() - clock
    about |= {
        "seconds": round(seconds, 1),
        "executed": started.isoformat(timespec="minutes"),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }
    _strip(executed, parameters or {}, about)
    _files.write_atomically(out, f"{nbformat.writes(executed)}\n".encode())
    return seconds


def _prepare_kernel(threads: int | None) -> None:
    """Settings that the kernel inherits."""
    # else the kernel warns inside the first cell
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")  # a widget of tqdm's
    # spinning threads starve whoever shares the machine
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def _reason(error, otherwise: str) -> str:
    """Which cell failed, and its traceback; of an error without a cell what ``otherwise`` says."""
    if not hasattr(error, "exec_count"):
        return f"{otherwise}.\n{error}"
    trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    return f"cell {error.exec_count} failed.\n{trace}"


def _keep(part: Path, failed: Path) -> str:
    """Move what was executed to ``failed``; the sentence that says so, empty if nothing was."""
    failed.parent.mkdir(parents=True, exist_ok=True)
    if not part.is_file():
        return ""
    os.replace(part, failed)
    return f"\nThe executed notebook is kept at {shown(failed)}."


def _strip(executed, parameters: dict, about: dict) -> None:
    """Papermill stores paths and a time stamp for every cell; what a reader may want to know fits
    in five lines."""
    for cell in executed.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
    executed.metadata["papermill"] = {"parameters": parameters}
    executed.metadata["hnlib"] = about


def run(
    notebook: str, given: dict[str, str], out: str | None = None, *, timeout: int | None = None
) -> Path:
    """``hnlib run``: check the parameters, execute the notebook, store it at ``out``; returns where
    it is."""
    path = find(notebook)
    try:
        parameters = guard_parameters(parameters_of(read(path)), given)
    except ValueError as error:
        raise ValueError(f"{name(path)}: {error}") from None
    suffix = f"-{mark(parameters)}" if parameters else ""
    default = root() / "_build/runs" / f"{path.stem}{suffix}.ipynb"
    target = default if out is None else Path(out).resolve()
    if target.suffix != ".ipynb":
        raise ValueError(f"the executed notebook is written as .ipynb; {out!r} has another ending.")
    seconds = execute(path, target, parameters, timeout=timeout, progress=True)
    print(f"{name(path)}: {seconds:.1f} s, {shown(target)}")
    return target
