"""Build the book: execute the chapters that changed, render the pages and publish them."""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from fnmatch import fnmatch
from functools import cache
from importlib import metadata
from pathlib import Path

from filelock import FileLock
from nbformat.v4 import new_markdown_cell

from builder import (
    forked_kernels,
    ledger_pages,
    paper_numbers,
    portable_notebooks,
    redirects,
    run_sphinx,
)
from hnbook import headlines
from hnlib import _files
from hnlib.notebooks import execute, inline_values, plain_markdown
from hnlib.notebooks.execute import load_json, name, root
from hnlib.training import records

TIMEOUT = 900  # seconds for one cell of a chapter in the default build
# slow to import, and used by several chapters; they import matplotlib, pandas and scipy
LIBRARIES = ["cvxpy", "ipykernel.kernelapp", "lightning_fabric", "ot", "seaborn"]
LIBRARIES += ["cyclopts", "pydantic", "sklearn.linear_model", "torch", "torch_geometric"]


@cache
def toc() -> tuple[str, ...]:
    """Return every page named in ``_toc.yml``, without its ending."""
    from sphinx_external_toc.parsing import parse_toc_yaml

    return tuple(parse_toc_yaml(root() / "_toc.yml"))


def appendices() -> set[str]:
    """Return the pages of the parts that begin with *Appendix*, which are not the core."""
    from sphinx_external_toc.parsing import parse_toc_yaml

    parts = parse_toc_yaml(root() / "_toc.yml").root.subtrees
    return {str(page) for one in parts if one.caption.startswith("Appendix") for page in one.items}


def chapters() -> list[Path]:
    """Return the notebooks of the book in the order of ``_toc.yml``."""
    return [root() / f"{page}.md" for page in toc() if page.startswith("notebooks/")]


def blank(node):
    """Return a notebook that was not executed with a dash for every expression."""
    for cell in node.cells:
        if cell.cell_type == "markdown":
            cell.source = inline_values.EVAL.sub("\u2013", cell.source)
    return node


def execute_chapters(
    wanted: dict[Path, Path], jobs: int, parameters: dict[Path, dict] | None = None, **options
) -> None:
    """Execute chapters into their files, ``jobs`` at a time, the longest first.

    Parameters are by chapter; without, they are as published.

    Raises NotebookError on failure.
    """

    def seconds(chapter: Path) -> float:
        unknown = 1e6 if "experiments" in chapter.parts else 1e3
        return execute.execution_metadata(wanted[chapter]).get("seconds", unknown)

    forked_kernels.preload(LIBRARIES)
    options |= {"kernel_manager_class": forked_kernels.KernelManager}
    pool, tasks = ThreadPoolExecutor(jobs), {}
    # from nothing the last pages first, because one of them judges all predictions
    for chapter in sorted(reversed(wanted), key=seconds, reverse=True):
        given = parameters and parameters[chapter]
        task = pool.submit(execute.execute, chapter, wanted[chapter], given, **options)
        tasks[task] = name(chapter)
    try:
        for done, task in enumerate(as_completed(tasks), 1):
            print(f"  [{done}/{len(tasks)}] {tasks[task]}: {task.result():.1f} s", flush=True)
    except execute.NotebookError as error:
        raise execute.NotebookError(f"{error}\nNothing was built.") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(task.done() for task in tasks):
            forked_kernels.stop_all()
            time.sleep(0.1)


def stage(current: list[Path], runs, draft: bool) -> Path:
    """Write what Sphinx reads: configuration, prose, executed notebooks, generated tables."""
    folder = root() / "_build/stage"
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "records")
    shutil.copytree(root() / "book", folder / "book", ignore=ignored)
    shutil.copytree(root() / "examples", folder / "examples", ignore=ignored)  # a page includes it
    for file in ("_toc.yml", "CHANGELOG.md"):  # which a page offers
        shutil.copyfile(root() / file, folder / file)
    url, config = portable_notebooks.repository(root()), (root() / "_config.yml").read_text("utf-8")
    config = portable_notebooks.configured(config, url)
    (folder / "_config.yml").write_text(config, encoding="utf-8")
    executed = {}
    for chapter in chapters():
        if chapter in current:
            notebook = executed[name(chapter)] = load_json(execute.executed_path(chapter))
        else:
            notebook = blank(execute.read(chapter))
            notebook["cells"].insert(1, new_markdown_cell(redirects.filled("not-executed.md")))
        target = (folder / chapter.relative_to(root())).with_suffix(".ipynb")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(notebook), encoding="utf-8")
    ledger_pages.write(folder, executed, runs, root(), draft)
    ledger_pages.fill_placeholders(folder / "book/papers.md", paper_numbers.parts(runs))
    ledger_pages.fill_placeholders(folder / "book/gpu.md", portable_notebooks.parts(url))
    ledger_pages.fill_values(folder / "book/questions.md", vars(headlines))
    ledger_pages.fill_values(folder / "book/gpu.md", ledger_pages.gpu_costs())
    return folder


def render(folder: Path, draft: bool) -> None:
    """Render the staged files with Sphinx and replace the pages at ``_build/html``.

    Sphinx always starts afresh: its incremental builds do not see that an unchanged page refers to
    something that was renamed elsewhere, and forget the warnings of the build before.
    """
    build = root() / "_build/sphinx"
    shutil.rmtree(build, ignore_errors=True)
    page = build / "html"
    page.mkdir(parents=True)
    with (
        ThreadPoolExecutor() as beside,
        ProcessPoolExecutor(1, mp_context=forked_kernels.context) as apart,
    ):
        wheel = beside.submit(portable_notebooks.wheel, page)
        packed = beside.submit(records.write_parquet, page / records.PARQUET)
        try:
            failed, said = apart.submit(run_sphinx.main, str(folder), str(page), not draft).result()
        except BrokenProcessPool:
            failed, said = True, "Its process was killed; does it need more memory?"
    warnings = re.sub(r"\x1b\[[0-9;]*m", "", said).replace(f"{folder}/", "").strip()
    if failed:
        raise ValueError(f"Sphinx could not build the book; _build/html is unchanged.\n{warnings}")
    if warnings:
        print(warnings, file=sys.stderr)
    wheel.result()
    packed.result()
    plain_markdown.read_labels(page, toc())
    redirects.write(redirects.read(folder / "book/redirects.csv"), page)
    repository = portable_notebooks.repository(root())
    redirects.ends(page, toc()[0], portable_notebooks.address(repository))
    core = [x for x in toc() if x not in appendices()]
    text = portable_notebooks.reader_text(page / "_sources", core)
    (page / "llms.txt").write_text(text, encoding="utf-8")
    portable_notebooks.downloads(page / "_sources", repository)
    html = root() / "_build/html"
    if html.exists():
        html.rename(build / "old")
    page.rename(html)
    shutil.rmtree(build, ignore_errors=True)


def is_unchanged(read: dict[str, str], digest=records.content_digest) -> bool:
    """Return whether all files that a chapter read (`records.DEPENDENCIES`) are as they were."""
    return all(digest(root() / path) == before for path, before in read.items())


def _made_of(only: str | None) -> str:
    """Return a digest of all files and versions of which the pages are made."""
    folders = [root() / name for name in ("book", "examples", "hnlib", "notebooks")]
    paths = {path for folder in [*folders, records.tracked()] for path in folder.rglob("*")}
    paths |= {*root().glob("[!.]*.*")}
    digest = hashlib.sha256(f"{only} {sys.version} {metadata.version('sphinx')}".encode())
    for path in sorted(paths):
        if path.suffix != ".pyc" and path.is_file():
            digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def book(only: str | None = None, jobs: int | None = None) -> int:
    """Execute the chapters that changed, render the pages and publish them at ``_build/html``.

    With ``only``, a draft: other chapters that changed are shown without results, and warnings are
    not fatal. While another process builds the book, this one waits.
    """
    wanted = [chapter for chapter in chapters() if fnmatch(name(chapter), f"*{only or ''}*")]
    if not wanted:
        choices = ", ".join(map(name, chapters()))
        raise ValueError(f"no chapter matches {only!r}; choose from {choices}")
    with FileLock(root() / "_build/.lock"):
        start, made_of = time.monotonic(), _made_of(only)
        mark, index = root() / "_build/book.json", root() / "_build/html/index.html"
        text = "the book is up to date"
        if load_json(mark).get("made_of") != made_of or not index.is_file():
            mark.unlink(missing_ok=True)
            _book(wanted, only is not None, jobs or os.cpu_count() or 1)
            _files.write_atomically(mark, json.dumps({"made_of": made_of}).encode())
            text = "the book is built" if only is None else "a draft of the book is built"
    print(f"{text}: _build/html/index.html ({time.monotonic() - start:.1f} s)")
    return 0


def _book(wanted: list[Path], draft: bool, jobs: int) -> None:
    runs, digest = records.frame(), cache(records.content_digest)  # many read the same files

    def unchanged(chapter: Path) -> bool:
        stored = execute.executed_path(chapter)
        read = execute.execution_metadata(stored).get("read", {})
        return execute.is_current(stored, chapter) and is_unchanged(read, digest)

    current = [chapter for chapter in chapters() if unchanged(chapter)]
    if todo := [chapter for chapter in wanted if chapter not in current]:
        print(f"executing {len(todo)} of {len(chapters())} chapters", flush=True)
        os.environ["HNLIB_RECALL"] = "1"  # it rests on records: it needs neither data nor a GPU
        # from `jobs`, not from what is to do: threads change last digits, and results must not vary
        threads = max(1, (os.cpu_count() or 1) // jobs)
        targets = {chapter: execute.executed_path(chapter) for chapter in todo}
        execute_chapters(targets, jobs, timeout=TIMEOUT, threads=threads)
    folder = stage(current + todo, runs, draft)
    print("rendering the pages", flush=True)
    render(folder, draft)
