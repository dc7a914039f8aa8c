"""Execute MyST notebooks with papermill: for the book, and for ``hnlib run``.

An executed notebook stores its dependencies: the Python files of the checkout that it imported and
the records that it read. Its fingerprint tells whether any of them has changed since. It also
stores the values in its text, which experiments it recalled or trained, where their runs were made,
and whose records its outputs rest on.
"""

import ast
import hashlib
import io
import json
import os
import platform
import re
import sys
import threading
from contextlib import chdir, redirect_stdout
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from pydantic import TypeAdapter

from hnlib import _files
from hnlib.notebooks import inline_values, two_texts
from hnlib.training import config

_PUBLISHED = threading.Lock()
ABOUT = "application/vnd.hnlib.execution+json"
PROBE = f"""
import sys
from IPython.display import display
modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
known = vars(sys.modules.get("hnlib.training.records", sys))
about = {{"modules": modules, "read": known.get("DEPENDENCIES", {{}})}}
about |= {{"used": sorted(known.get("USED", ())), "planned": known.get("PLANNED", {{}})}}
if compared := sys.modules.get("hnlib.experiments.compared"):
    about["first"] = compared.first()
display({{"{ABOUT}": about}}, raw=True)
"""


class NotebookError(ValueError):
    """A cell of a notebook failed. The message names the notebook and carries the traceback."""


@cache
def root() -> Path:
    """Return the checkout around the working directory. Raises ValueError if there is none."""
    folder = _files.project_root()
    if not (folder / "_toc.yml").is_file():
        raise ValueError(f"{folder} is not inside a checkout of the book (no _toc.yml)")
    return folder


def find(notebook: str | Path) -> Path:
    """Return the path of ``notebook``: a path, or the end of one below ``notebooks/``."""
    folder = root() / "notebooks"
    for candidate in (Path(notebook), folder / notebook, folder / f"{notebook}.md"):
        if candidate.is_file():
            return candidate.resolve()
    choices = ", ".join(sorted(name(path) for path in folder.rglob("*.md")))
    raise ValueError(f"no notebook {str(notebook)!r}; choose one of {choices}")


def name(notebook: Path) -> str:
    """Return a notebook's short name, as ``theory/transport``."""
    folder = root() / "notebooks"
    if not notebook.is_relative_to(folder):
        return notebook.name
    return notebook.relative_to(folder).with_suffix("").as_posix()


def relative_path(path: Path) -> str:
    """Return a path relative to the checkout if it is inside."""
    return path.relative_to(root()).as_posix() if path.is_relative_to(root()) else str(path)


def read(path: Path):
    """Return the notebook at ``path`` (MyST or ipynb). Raises ValueError if it is not one."""
    import jupytext

    try:
        return jupytext.read(path)
    except Exception as error:  # YAML, JSON, nbformat and jupytext each raise their own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{relative_path(path)} cannot be read as a notebook ({reason})") from None


def load_json(path: Path) -> dict:
    """Return a stored notebook as plain JSON, empty if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def executed_path(chapter: Path) -> Path:
    """Return where the executed form of ``chapter`` is stored."""
    inside = chapter.relative_to(root() / "notebooks")
    return (root() / "_build/executed" / inside).with_suffix(".ipynb")


def execution_metadata(path: Path) -> dict:
    """Return a stored notebook's metadata of its execution, such as fingerprint and seconds."""
    stored = load_json(path).get("metadata", {})
    return stored.get("hnlib", {}) | stored.get("papermill", {})


def parameters_of(notebook) -> dict:
    """Return the names and default values assigned in the cell tagged ``parameters``.

    Raises ValueError if a line is not ``name = literal``.
    """
    values = {}
    for cell in notebook.cells:
        if "parameters" not in cell.metadata.get("tags", []):
            continue
        try:
            for statement in ast.parse(cell.source).body:
                (target,) = statement.targets
                values[target.id] = ast.literal_eval(statement.value)
        except (ValueError, AttributeError, SyntaxError) as error:
            text = f"a line of the parameters cell is not `name = literal` ({error})"
            raise ValueError(text) from None
    return values


def split(text: str) -> list[str]:
    """Split a list at its commas, but not inside brackets.

    >>> split("[hcl],[ot,simclr]")
    ['[hcl]', '[ot,simclr]']
    """
    return [item.strip() for item in re.findall(r"\[[^\]]*\]|[^,]+", text)]


def _parse(text: str, default):
    """Return ``text`` as a value of the type of ``default``, or None; a list may be ``a,b``."""
    if text == "None" and not isinstance(default, bool | list):
        return None
    if isinstance(default, str):
        return text.strip("'\"")
    if isinstance(default, list):
        return [_parse(x, default[0] if default else None) for x in split(text.strip("[] "))]
    if default is None:
        return config.literal(text)
    if type(default) is int and not re.fullmatch(r"[+-]?[\d_]+", text):
        raise ValueError  # pydantic takes "0-2" for -2
    return TypeAdapter(type(default)).validate_strings(text)


def guard_parameters(defaults: dict, given: dict) -> dict:
    """Return the ``given`` texts as values of the types of the ``defaults``.

    Raises ValueError, which lists the notebook's parameters, for an unknown name or a bad value.
    """
    listing = ", ".join(f"{name}={value!r}" for name, value in defaults.items()) or "none"
    values = {}
    for name, text in given.items():
        if name not in defaults:
            raise ValueError(f"unknown parameter {name!r}; the notebook has {listing}")
        try:
            default = defaults[name]
            if name == "seeds" and not isinstance(default, list):
                default = None  # how many, or which
            values[name] = _parse(text, default) if isinstance(text, str) else text
        except ValueError:
            raise ValueError(
                f"parameter {name} must be like {defaults[name]!r}, got {text!r}; "
                f"the notebook has {listing}"
            ) from None
    return values


def parameter_hash(parameters: dict) -> str:
    """Return eight characters that identify the parameters of an execution."""
    return hashlib.sha256(repr(sorted(parameters.items())).encode()).hexdigest()[:8]


@cache
def sources() -> dict[str, str]:
    """Return the digest of each Python file that a chapter may import, as of the first call."""
    folders = [path for path in root().iterdir() if path.is_dir() and path.name[0] not in "._"]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    return {
        relative_path(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)
    }


def fingerprint(notebook: Path, parameters: dict | None, files: list[str]) -> str:
    """Return a hash of a notebook's text, parameters, environment and the source ``files``."""
    pins = [path.read_text("utf-8") for path in sorted(root().glob("requirements*.txt"))]
    text = notebook.read_text(encoding="utf-8")
    code = [(name, sources().get(name)) for name in files]
    everything = [text, sorted((parameters or {}).items()), platform.python_version(), pins, code]
    return hashlib.sha256(repr(everything).encode()).hexdigest()[:20]


def is_current(stored: Path, notebook: Path, parameters: dict | None = None) -> bool:
    """Return whether ``stored`` was executed from the same text, parameters and code."""
    made = execution_metadata(stored)
    if "inline" not in made:
        return False
    return made["fingerprint"] == fingerprint(notebook, parameters, made["files"])


def execute(
    notebook: Path,
    out: Path,
    parameters: dict | None = None,
    *,
    timeout: int | None = None,
    threads: int | None = None,
    progress: bool = False,
    **options,
) -> float:
    """Execute ``notebook`` in the root of the checkout, store it at ``out``, return its seconds.

    The ``options`` go to papermill.

    Raises NotebookError if a cell failed, took more than ``timeout`` seconds, or killed the kernel.
    What was executed until then is stored beside ``out``, as ``NAME.failed.ipynb``. On Ctrl-C a
    training saves its state, and KeyboardInterrupt is raised.
    """
    import nbformat
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    from hnlib.notebooks.interrupting import kernel_interrupted

    _prepare_environment(threads)
    sources()  # an edit from here on does not count as executed
    node = read(notebook)
    if parameters:
        if wanted := inline_values.of_findings(node):
            published = published_values(notebook)
            inline_values.fix_findings(node, {one: published[one] for one in wanted})
        two_texts.add_beside(node)
    inline_values.add_cells(node)
    node.cells.append(nbformat.v4.new_code_cell(PROBE))
    failed = out.with_name(f"{out.stem}.failed.ipynb")
    failed.parent.mkdir(parents=True, exist_ok=True)
    try:
        with kernel_interrupted() as passed_on:
            node = papermill.execute_notebook(
                node,
                failed,
                parameters,
                kernel_name="python3",
                language="python",
                progress_bar=progress,
                execution_timeout=timeout,
                record_timing=False,
                shutdown_kernel="immediate",
                extra_arguments=["--log-level=50"],
                resources={"metadata": {"path": str(root())}},
                **passed_on | options,
            )
    except KeyboardInterrupt:
        failed.unlink(missing_ok=True)
        raise
    except (papermill.PapermillExecutionError, CellTimeoutError, RuntimeError) as error:
        text = f"{name(notebook)} failed. {error}\nWhat was executed is at {relative_path(failed)}."
        if isinstance(error, DeadKernelError):
            text += " A kernel is killed where memory runs out; then give a smaller batch_size."
        raise NotebookError(text) from None
    failed.unlink()
    # a late message of another cell may stand beside it
    probe = next(o.data[ABOUT] for o in node.cells.pop().outputs if ABOUT in o.get("data", {}))
    inline = inline_values.substitute(node)
    if parameters:
        two_texts.as_notebook(node)
    times = [cell.metadata.pop("papermill")["duration"] or 0 for cell in node.cells]
    node.metadata["papermill"] = {"parameters": parameters or {}}  # without paths and times
    imported = {relative_path(Path(path)) for path in probe.pop("modules") if path}
    files = sorted(imported & sources().keys())
    node.metadata["hnlib"] = probe | {
        "fingerprint": fingerprint(notebook, parameters, files),
        "files": files,
        "inline": inline,
        "seconds": round(sum(times), 1),
    }
    _files.write_atomically(out, f"{nbformat.writes(node)}\n".encode())
    return node.metadata["hnlib"]["seconds"]


def plan(notebook: str, given: dict[str, str]) -> str:
    """Return what a notebook would train with the parameters ``given``; nothing is trained.

    Its code runs here up to the training.
    """
    from hnlib.experiments.execution import Planned

    cells = _code(find(notebook))
    parameters = guard_parameters(parameters_of(SimpleNamespace(cells=cells)), given)
    if not _trains(cells):
        return f"{notebook} trains nothing."
    try:
        _run_to_training(cells, notebook, parameters)
    except Planned as planned:
        return str(planned)
    raise ValueError(f"{notebook} trains nothing at these parameters")


def refuse(notebook: Path, points: list[dict]) -> None:
    """Raise ValueError if the experiments of a page refuse the parameters of a point.

    As `plan` does, before anything is executed. What else fails on the way, the execution shows.
    """
    cells = _code(notebook)
    for parameters in filter(None, points if _trains(cells) else ()):
        try:
            with redirect_stdout(io.StringIO()):
                _run_to_training(cells, name(notebook), parameters)
        except ValueError:
            raise
        except Exception:  # planned, or a fault of the code
            continue


def _code(notebook: Path) -> list:
    """Return the cells with code."""
    return [one for one in read(notebook).cells if one.cell_type == "code"]


def _trains(cells: list) -> bool:
    """Return whether an experiment is trained."""
    return any("experiments.train" in cell.source for cell in cells)


def _run_to_training(cells: list, notebook: str, parameters: dict) -> None:
    """Run code here, in the folder where it is executed; raises Planned where it would train."""
    os.environ["HNLIB_PLAN"] = "1"
    names: dict = {"__name__": "__main__"}
    try:
        with chdir(root()):
            for cell in cells:
                exec(compile(cell.source, notebook, "exec"), names)
                if "parameters" in cell.metadata.get("tags", []):
                    names |= parameters
    finally:
        del os.environ["HNLIB_PLAN"]


def published_values(notebook: Path) -> dict[str, str]:
    """Return the values of the expressions of a page as it was published.

    It is executed with the published parameters unless that was done; nothing is trained.
    """
    stored = executed_path(notebook)
    with _PUBLISHED:  # one environment serves all threads, and a page is executed once
        if not is_current(stored, notebook):
            recalling = os.environ.get("HNLIB_RECALL")
            os.environ["HNLIB_RECALL"] = "1"
            try:
                execute(notebook, stored)
            finally:
                del os.environ["HNLIB_RECALL"]
                os.environ |= {} if recalling is None else {"HNLIB_RECALL": recalling}
    return execution_metadata(stored)["inline"]


def _prepare_environment(threads: int | None) -> None:
    """Set what the kernel inherits."""
    settings = {
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else the kernel warns inside the first cell
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONWARNINGS": "ignore:IProgress not found",  # a widget of tqdm's
        "TQDM_DISABLE": "1",  # a bar would stay on the page
        "OMP_WAIT_POLICY": "passive",  # spinning threads starve whoever shares the machine
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def run(notebook: str, given: dict[str, str], out: Path | None = None) -> Path:
    """Execute a notebook with the parameters ``given``; print and return where it is stored."""
    path = find(notebook)
    parameters = guard_parameters(parameters_of(read(path)), given)
    if isinstance(n := parameters.get("seeds"), int):  # here, not on the page; until 0.3
        rule = f'is a number of seeds; before 0.2 it was seed {n}, which is seeds="{n}" now'
        print(f"hnlib: seeds={n} {rule}", file=sys.stderr)
    suffix = f"-{parameter_hash(parameters)}" if parameters else ""
    default = root() / "_build/runs" / f"{path.stem}{suffix}.ipynb"
    target = default if out is None else out.resolve()
    if target.suffix != ".ipynb":
        raise ValueError(f"the output must be an .ipynb file, got {str(out)!r}")
    if sys.stderr.isatty() and hasattr(os, "ttyname"):
        # by name: the kernel has no terminal of its own, so /dev/tty would not open there
        os.environ["HNLIB_PROGRESS"] = os.ttyname(sys.stderr.fileno())
    refuse(path, [parameters])
    seconds = execute(path, target, parameters, progress=True)
    print(f"{name(path)}: {seconds:.1f} s, {relative_path(target)}")
    return target
