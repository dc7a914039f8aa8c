"""The executor: from MyST notebooks to executed notebooks.

A chapter is a MyST notebook below ``notebooks/``. `executed` runs one with papermill, for the book,
for ``hnlib run`` and for a sweep alike; `execute` stores what came of it. What a chapter reads
decides its fingerprint: its own text, the rooms of hnlib it imports (and what those import), its
parameters, the pinned versions and, where it reads them, the ledgers. An unchanged chapter costs
nothing, and nothing shown is ever stale.
"""

import ast
import asyncio
import hashlib
import json
import math
import os
import platform
import re
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from hnlib import _files

KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
# Where a chapter calls the command, or imports what cannot be told from outside, all rooms count.
ANY_ROOM = re.compile(r"-m\s+hnlib|\bhnlib (run|sweep|train|data|results|queue)\b|importlib")


_clients = set()  # of the kernels that this process runs


class NotebookError(ValueError):
    """A cell of a notebook failed: the message names the notebook and the cell and carries the
    traceback; ``notebook`` is what was executed, as text."""

    def __init__(self, message: str, notebook: str = ""):
        super().__init__(message)
        self.notebook = notebook


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
    """The notebook at ``path`` (MyST or ipynb) as a notebook node; ValueError: it is none."""
    import jupytext

    try:
        return jupytext.read(path)
    except Exception as error:  # of YAML, JSON, nbformat, jupytext: each has its own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{shown(path)} cannot be read as a notebook ({reason}).") from None


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
    values, line = {}, None
    for cell in notebook.cells:
        if cell.cell_type != "code" or "parameters" not in cell.metadata.get("tags", []):
            continue
        try:
            for statement in ast.parse(cell.source).body:
                line = statement.lineno
                targets = getattr(statement, "targets", [getattr(statement, "target", None)])
                (target,) = targets
                values[target.id] = ast.literal_eval(statement.value)
        except (ValueError, AttributeError, SyntaxError) as error:
            line = getattr(error, "lineno", line)
            text = f"line {line} of the parameters cell is not `name = literal`."
            raise ValueError(text) from None
    return values


def split(text: str) -> list[str]:
    """The items of ``text``: what its commas outside brackets separate. ValueError: an empty item,
    unclosed brackets.

    >>> split("[hcl],[ot,simclr]")
    ['[hcl]', '[ot,simclr]']
    """
    items, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if depth < 0:
            break
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    if depth:
        raise ValueError(f"the brackets of {text!r} do not match.")
    items = [item.strip() for item in items]
    if "" in items:
        wrong = "is an empty list" if len(items) == 1 else "has an empty value"
        raise ValueError(f"{text!r} {wrong}.")
    return items


def _literal(text: str):
    """The number, ``true``, ``false`` or ``null`` that ``text`` is; ValueError when it is none.

    Numbers are JSON's: neither octal (``010``) nor sexagesimal (``1:30``).
    """
    value = json.loads(text.lower()) if text.strip()[:1] not in ("[", "{") else text
    if isinstance(value, str) or value in (math.inf, -math.inf):  # 1e400
        raise ValueError
    return value


def _items(text: str) -> list[str]:
    """The items of a list, written ``[a, b]`` or ``a,b``."""
    text = text.strip()
    whole = text[:1] == "[" and split(text) == [text]
    inner = text[1:-1] if whole else text
    return [_unquoted(item) for item in split(inner)] if inner.strip() else []


def _unquoted(text: str) -> str:
    """``text`` without the quotes around it; ValueError: a quote on one side alone."""
    ends = {text[:1], text[-1:]} & {"'", '"'}
    if ends and (len(text) < 2 or text[0] != text[-1]):
        raise ValueError
    return text[1:-1] if ends else text


def _parse(text: str, default):
    """``text`` as a value of the type of ``default``; ValueError when it is none."""
    if isinstance(default, str):
        return text
    if isinstance(default, list | tuple):
        one = default[0] if len({type(item) for item in default}) == 1 else None
        return [_parse(item, one) for item in _items(text)]
    if default is None and text.strip()[:1] == "[":
        return _parse(text, [])
    if isinstance(default, float) and text.strip().lower() in ("inf", "-inf", "nan"):
        return float(text)
    try:
        value = _literal(text)
    except ValueError:
        if default is None:  # of which nothing says that it is not a text
            return text
        raise
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if default is None or type(value) is type(default):  # so that true is no integer
        return value
    raise ValueError


def guard_parameters(known: dict, given: dict[str, str]) -> dict:
    """The ``given`` texts as values of the types of the ``known`` defaults.

    A text is a number (``3``, ``1e-3``), ``true``, ``false`` or ``null``; a list is written ``[a,
    b]`` or ``a,b``. Where the default is None, what is none of those is a text. ValueError, which
    lists what is known: a name that is not, a text that does not parse.
    """
    listing = ", ".join(f"{name}={value!r}" for name, value in known.items()) or "none"
    values = {}
    for name, text in given.items():
        if name not in known:
            raise ValueError(f"unknown parameter {name!r}; the notebook has: {listing}.")
        default = known[name]
        try:
            values[name] = _parse(text, default) if isinstance(text, str) else text
        except (ValueError, OverflowError, RecursionError):
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


def fingerprint(notebook: Path, parameters: dict | None = None) -> str:
    """A hash of everything that the executed form of ``notebook`` depends on."""
    return with_parameters(content(notebook), parameters)


def is_current(stored: Path, notebook: Path, parameters: dict | None = None) -> bool:
    """Return whether ``stored`` was executed from the same text, parameters and code."""
    return about(stored).get("fingerprint") == fingerprint(notebook, parameters)


def with_parameters(digest: str, parameters: dict | None) -> str:
    """The fingerprint of a notebook whose `content` is ``digest``, with ``parameters``."""
    chosen = sorted((parameters or {}).items())
    return hashlib.sha256(repr((digest, chosen)).encode()).hexdigest()[:20]


def content(notebook: Path, ledgers: bool = True) -> str:
    """A hash of all that ``notebook`` reads, whatever its parameters; of the ledgers only if asked
    for."""
    text = notebook.read_text(encoding="utf-8")
    code = "\n".join(cell.source for cell in read(notebook).cells if cell.cell_type == "code")
    files = [*sorted(root().glob("requirements*.txt")), *sources(code)]
    if ledgers and re.search(r"\brecords\b|papers\.csv|results", text):
        files += sorted((root() / "book/results").rglob("[!.]*.json"))
        files.append(root() / "book/results/papers.csv")
    if ledgers and "claims.csv" in text:
        files.append(root() / "book/claims.csv")
    digest = hashlib.sha256(f"{text}\0{platform.python_version()}".encode())
    for path in files:
        digest.update(path.relative_to(root()).as_posix().encode())
        digest.update(path.read_bytes() if path.is_file() else b"missing")
    return digest.hexdigest()


def executed(
    notebook: Path,
    parameters: dict | None = None,
    *,
    timeout: int | None = None,
    threads: int | None = None,
    progress: bool = False,
):
    """``notebook`` with ``parameters`` (already guarded) as a notebook node with outputs, made by a
    kernel in the root of the checkout.

    NotebookError, which carries what was executed: a cell failed, ran longer than ``timeout``
    seconds, or took the kernel along.
    """
    import nbformat
    from nbclient.exceptions import CellTimeoutError
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NotebookExecutionManager

    class Client(PapermillNotebookClient):
        def papermill_execute_cells(self):
            try:
                super().papermill_execute_cells()
            except KeyboardInterrupt:
                stop_kernels()  # which are asked politely otherwise, and take their time
                raise

    _prepare_kernel(threads)
    # Before it runs: an edit made meanwhile must not count as executed.
    about = {"fingerprint": fingerprint(notebook, parameters)}
    about["executed"] = datetime.now(UTC).isoformat(timespec="minutes")
    node, clock = _with_parameters(read(notebook), parameters or {}), time.monotonic()
    kept = dict(node.metadata["papermill"])
    manager = NotebookExecutionManager(node, progress_bar=progress)
    manager.notebook_start()
    client = Client(
        manager,
        timeout=timeout,
        record_timing=False,
        extra_arguments=["--log-level=50"],
        resources={"metadata": {"path": str(root())}},
    )
    _clients.add(client)
    reason = ""
    try:
        client.execute()
        reason = _failure(node)
    except (CellTimeoutError, RuntimeError) as error:  # a RuntimeError: the kernel died
        late = isinstance(error, CellTimeoutError)
        otherwise = "a cell ran out of time" if late else "the kernel stopped; enough memory?"
        reason = _failure(node) or f"{otherwise}\n{error}"
    finally:
        _clients.discard(client)
        manager.notebook_complete()
        node.metadata["papermill"] = kept  # its times would differ with every execution
        for cell in node.cells:
            cell.metadata.pop("papermill", None)
    if reason:
        raise NotebookError(f"{name(notebook)}: {reason}", nbformat.writes(node))
    versions = {"python": platform.python_version(), "torch": metadata.version("torch")}
    seconds = round(time.monotonic() - clock, 1)
    node.metadata["hnlib"] = about | {"seconds": seconds} | versions
    return node


def stop_kernels() -> None:
    """End the kernels of this process, whichever thread runs them, and what those started."""
    for client in list(_clients):
        with suppress(AttributeError, OSError, RuntimeError):  # not started yet, or gone
            asyncio.run(client.km.signal_kernel(signal.SIGKILL))


def _with_parameters(node, parameters: dict):
    """The notebook with the Python kernel, and with a cell that sets ``parameters``."""
    from papermill.parameterize import parameterize_notebook

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    node.metadata |= {"kernelspec": kernel, "papermill": {"parameters": parameters}}
    for cell in node.cells:
        cell.metadata.setdefault("tags", [])
    return parameterize_notebook(node, parameters) if parameters else node


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


def _failure(node) -> str:
    """Which cell of ``node`` failed, and its traceback; empty if none did."""
    for cell in node.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
                return f"cell {cell.execution_count} failed.\n{trace}"
    return ""


def execute(notebook: Path, out: Path, *arguments, failed: Path | None = None, **options) -> float:
    """Store what `executed` makes of ``notebook`` at ``out``; returns the seconds it took.

    ``out`` is written only when every cell passed; otherwise what was executed is kept at
    ``failed`` (default: beside ``out``, ``NAME.failed.ipynb``) and NotebookError is raised.
    """
    import nbformat

    try:
        node = executed(notebook, *arguments, **options)
    except NotebookError as error:
        kept = failed or out.with_name(f"{out.stem}.failed.ipynb")
        _files.write_atomically(kept, error.notebook.encode())
        where = f"The executed notebook is kept at {shown(kept)}."
        raise NotebookError(f"{error}\n{where}", error.notebook) from None
    _files.write_atomically(out, f"{nbformat.writes(node)}\n".encode())
    return node.metadata["hnlib"]["seconds"]


def run(
    notebook: str, given: dict[str, str], out: str | None = None, *, timeout: int | None = None
) -> Path:
    """``hnlib run``: check the parameters, execute the notebook, store it at ``out``; returns where
    it is."""
    if timeout is not None and timeout < 1:
        raise ValueError(f"--timeout must be at least 1 second, not {timeout}.")
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
