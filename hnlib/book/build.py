"""``hnlib book``: execute every chapter whose fingerprint changed, lay out what Sphinx reads,
render it, and publish the pages at ``_build/html``, or leave those there untouched."""

import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from importlib import metadata
from pathlib import Path

from filelock import FileLock, Timeout

from hnlib import _files
from hnlib.book import elsewhere, pages, printed
from hnlib.book.execute import (
    NotebookError,
    about,
    execute,
    executed_path,
    fingerprint,
    load,
    name,
    read,
    root,
    stop_kernels,
)

TIMEOUT = 900  # seconds for one cell of a chapter in the default build
NOT_EXECUTED = """```{admonition} Not executed
:class: warning
This chapter has not been executed since its last change; in this draft it is shown without results.
```
"""


@cache
def toc() -> tuple[str, ...]:
    """Every page named in ``_toc.yml``, without its ending."""
    from sphinx_external_toc.parsing import parse_toc_yaml

    return tuple(parse_toc_yaml(root() / "_toc.yml"))


def chapters() -> list[Path]:
    """The notebooks of the book, in the order of ``_toc.yml``."""
    return [root() / f"{page}.md" for page in toc() if page.startswith("notebooks/")]


def execute_chapters(wanted: list[Path], jobs: int) -> None:
    """Execute ``wanted`` chapters, ``jobs`` at a time, the longest first; NotebookError when one of
    them fails."""

    def expected(chapter: Path) -> float:
        unknown = 1e6 if "experiments" in chapter.parts else 1e3
        return about(executed_path(chapter)).get("seconds", unknown)

    # by the jobs asked for: threads change last digits, and an edit must not change its chapter's
    options = {"timeout": TIMEOUT, "threads": max(1, (os.cpu_count() or 1) // jobs)}
    # Threads are enough: what computes is the kernels, and those end with this process.
    pool, tasks = ThreadPoolExecutor(min(jobs, len(wanted))), {}
    for chapter in sorted(wanted, key=expected, reverse=True):
        failed = root() / "_build/failed" / f"{name(chapter)}.ipynb"
        task = pool.submit(execute, chapter, executed_path(chapter), failed=failed, **options)
        tasks[task] = name(chapter)
    try:
        failures = _collect(tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(task.done() for task in tasks):
            stop_kernels()
            time.sleep(0.1)
    if failures:
        raise NotebookError("\n\n".join(failures) + "\nThe book was not built.")


def _collect(tasks: dict) -> list[str]:
    """Wait for the ``tasks`` (values: names of their chapters), a line for each; after a failure
    none is begun any more. Returns what failed."""
    failures = []
    for done, task in enumerate(as_completed(tasks), 1):
        if task.cancelled():
            continue
        try:
            outcome = f"{task.result():.1f} s"
        except NotebookError as error:
            outcome = "failed; what is running is finished"
            failures.append(str(error))
            for other in tasks:
                other.cancel()
        print(f"  [{done}/{len(tasks)}] {tasks[task]}: {outcome}", flush=True)
    return failures


def stage(current: list[Path], draft: bool) -> Path:
    """Lay out what Sphinx reads: configuration, prose, executed notebooks, generated ledgers.
    Returns the folder."""
    folder = root() / "_build/stage"
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "runs")
    shutil.copytree(root() / "book", folder / "book", ignore=ignored)
    shutil.copyfile(root() / "_toc.yml", folder / "_toc.yml")
    url, config = elsewhere.repository(root()), (root() / "_config.yml").read_text("utf-8")
    (folder / "_config.yml").write_text(elsewhere.configured(config, url), encoding="utf-8")
    executed = {}
    for chapter in chapters():
        target = (folder / chapter.relative_to(root())).with_suffix(".ipynb")
        target.parent.mkdir(parents=True, exist_ok=True)
        if chapter in current:
            shutil.copyfile(executed_path(chapter), target)
            executed[name(chapter)] = load(target)
        elif chapter.is_file():
            target.write_text(_without_results(chapter), encoding="utf-8")
    pages.write(folder / "book", executed, root(), draft)
    printed.write(folder / "book", root())
    pages.fill(folder / "book/reproduce.md", elsewhere.parts(url))
    for page in toc():
        if any((folder / f"{page}{ending}").is_file() for ending in (".md", ".ipynb")):
            continue
        if not draft:
            raise ValueError(
                f"_toc.yml names {page}, but there is no {page}.md; write it or take it out."
            )
        path = folder / f"{page}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {path.stem}\n\nThis page is not written yet.\n", encoding="utf-8")
    return folder


def _without_results(chapter: Path) -> str:
    """The chapter as an ipynb that was not executed, with a warning below its title."""
    import nbformat

    node = read(chapter)
    head = next(cell for cell in node.cells if cell.cell_type == "markdown")
    titled = rf"\g<0>\n\n{NOT_EXECUTED}"
    head.source = re.sub(r"^# .*$", titled, head.source, count=1, flags=re.M)
    return nbformat.writes(node)


def render(folder: Path, draft: bool) -> None:
    """Render the staging tree with Sphinx and put the pages at ``_build/html``, or leave those
    there untouched.

    Sphinx always starts afresh: its incremental builds do not see that an unchanged page refers to
    something that was renamed elsewhere, and forget the warnings of the build before.
    """
    build = root() / "_build/sphinx"
    shutil.rmtree(build, ignore_errors=True)
    start = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", start, "build", str(folder), "--path-output", str(build)]
    command += ["-n", "-q", "--keep-going", *([] if draft else ["-W"])]
    environment = os.environ | {"PYTHONPATH": str(root()), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        command, env=environment, text=True, capture_output=True, cwd=root(), check=False
    )
    warnings = re.sub(r"\x1b\[[0-9;]*m", "", result.stderr).replace(f"{folder}/", "").strip()
    page = build / "_build/html"
    if result.returncode or not (page / "index.html").is_file():
        raise ValueError(f"Sphinx could not build the book; _build/html is as it was.\n{warnings}")
    if warnings:
        print(warnings, file=sys.stderr)
    shutil.rmtree(page / ".doctrees", ignore_errors=True)
    elsewhere.downloads(page / "_sources", elsewhere.repository(root()))
    html, old = root() / "_build/html", root() / "_build/html.old"
    shutil.rmtree(old, ignore_errors=True)
    if html.exists():
        html.rename(old)
    page.rename(html)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(build, ignore_errors=True)


def _publish(current: list[Path], draft: bool) -> bool:
    """Render the pages, unless those at ``_build/html`` were made of the same; whether it did."""
    folder = stage(current, draft)
    made_of = f"{draft} {_digest(folder)} {_digest(root() / 'hnlib')} {metadata.version('sphinx')}"
    state = hashlib.sha256(made_of.encode()).hexdigest()
    mark, index = root() / "_build/book.json", root() / "_build/html/index.html"
    if load(mark).get("state") == state and index.is_file():
        return False
    print("rendering the pages", flush=True)
    mark.unlink(missing_ok=True)
    render(folder, draft)
    _files.write_atomically(mark, json.dumps({"state": state}).encode())
    return True


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _only_build():
    """The lock of the build folder, held: two builds at once would execute each other's chapters
    and write into each other's pages."""
    lock = FileLock(root() / "_build/.lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        print("waiting for another build of the book to finish", flush=True)
        return lock.acquire()


def _matching(present: list[Path], only: str) -> list[Path]:
    """The chapters that the pattern ``only`` means; ValueError when it means none."""
    wanted = only.strip("*")
    found = [c for c in present if fnmatch.fnmatch(name(c), only) or wanted in name(c)]
    if not found:
        known = ", ".join(map(name, present))
        raise ValueError(f"no chapter matches {only!r}; known: {known or 'none'}.")
    return found


def book(only: str | None = None, jobs: int | None = None) -> int:
    """``hnlib book``: execute what changed, render the pages, publish them at ``_build/html``; 0
    when all went well.

    With ``only``, a draft: other chapters that changed are shown without results, and warnings are
    not fatal. While another process builds the book, this one waits.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs must be at least 1, not {jobs}.")
    with _only_build():
        return _book(only, jobs or os.cpu_count() or 1)


def _book(only: str | None, jobs: int) -> int:
    """`book`, alone in the build folder."""
    clock, draft = time.monotonic(), only is not None
    present = [chapter for chapter in chapters() if chapter.is_file()]
    missing = [name(chapter) for chapter in chapters() if chapter not in present]
    if missing and not draft:
        raise ValueError(f"_toc.yml names chapters that do not exist: {', '.join(missing)}.")
    stored = {chapter: about(executed_path(chapter)).get("fingerprint") for chapter in present}
    current = [chapter for chapter in present if stored[chapter] == fingerprint(chapter)]
    wanted = _matching(present, only) if draft else present
    if wanted := [chapter for chapter in wanted if chapter not in current]:
        text = f"executing {len(wanted)} of {len(present)} chapters"
        print(f"{text}, {min(jobs, len(wanted))} at a time", flush=True)
        execute_chapters(wanted, jobs)
    rendered = _publish(current + wanted, draft)
    kind = "a draft of the book" if draft else "the book"
    text = f"{kind} is built" if rendered else "the book is up to date"
    print(f"{text}: _build/html/index.html ({time.monotonic() - clock:.1f} s)")
    return 0
