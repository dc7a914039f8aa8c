"""`python -m builder`, with the folder `book` on the path, as the Makefile starts it."""

import os
import sys

from cyclopts import App
from cyclopts.types import PositiveInt

from builder import build, changed_pages
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
        print(*map(name, changed_pages.pages()))
        return 0
    return changed_pages.check_small(jobs or os.cpu_count() or 1)


@app.command
def beside(*page: str, jobs: PositiveInt | None = None) -> int:
    """Execute the experiment pages at unusual settings and look for what cannot follow from them.

    Parameters
    ----------
    page
        these pages, such as 'experiments/pairs' (default: all)
    jobs
        pages at once (default: CPU count)
    """
    return changed_pages.check_beside(jobs or os.cpu_count() or 1, page)


@app.command
def pdf() -> None:
    """Print the built book with Chromium: a PDF of the core, and one of the appendices."""
    paper.write()


if __name__ == "__main__":
    sys.exit(main(app=app))
