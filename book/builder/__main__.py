"""`python -m builder`, with the folder `book` on the path, as the Makefile starts it."""

import os
import sys

from cyclopts import App
from cyclopts.types import PositiveInt

from builder import build, small_pages
from builder import pdf as paper
from hnlib.__main__ import main
from hnlib.notebooks.execute import name

app = App("builder", help=__doc__, version_flags=[], result_action="return_value")


@app.command
def book(*, only: str | None = None, jobs: PositiveInt | None = None) -> int:
    """Execute the chapters that changed and write _build/html.

    Parameters
    ----------
    only
        a draft of chapters, e.g. 'theory/*'
    jobs
        chapters at once (default: CPU count)
    """
    return build.book(only=only, jobs=jobs)


@app.command
def small(*, jobs: PositiveInt | None = None, names: bool = False) -> int:
    """Execute the experiment pages at small parameters and check that all of them follows.

    Parameters
    ----------
    jobs
        pages at once (default: CPU count)
    names
        print the names of these pages instead
    """
    if names:
        print(*map(name, small_pages.pages()))
        return 0
    return small_pages.check(jobs or os.cpu_count() or 1)


@app.command
def pdf() -> None:
    """Print the built book with Chromium: a PDF of the core, and one of the appendices."""
    paper.write()


if __name__ == "__main__":
    sys.exit(main(app=app))
