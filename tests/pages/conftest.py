"""A headless Chromium reading the built book from its files."""

import os
from pathlib import Path

import pytest

from builder import pdf

HTML = Path(__file__).resolve().parents[2] / "_build/html"
# Without these the browser itself calls home.
FLAGS = [*pdf.FLAGS, "--disable-component-update", "--disable-sync"]
DESK = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built pages. Without it tests are skipped, or fail where CI requires them."""
    if not (HTML / "index.html").is_file():
        miss = pytest.fail if os.environ.get("HNLIB_BROWSER") == "required" else pytest.skip
        miss("the pages were not checked: the book is not built (make book)")
    return HTML


@pytest.fixture(scope="session")
def browser(html):
    """The browser, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=pdf.chromium(), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(html, browser):
    """``visit(name)`` opens a page of its own, with its formulas set, for tests that use it.

    What went wrong on the way is in ``page.complaints``: script errors, requests that leave the
    machine, missing files.
    """
    pages = []

    def visit(name: str):
        # reduced motion: colours do not fade in while they are being measured
        page = browser.new_page(viewport=DESK, color_scheme="light", reduced_motion="reduce")
        pages.append(page)
        page.complaints = complaints = []

        page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
        page.on("requestfailed", lambda request: complaints.append(f"not found: {request.url}"))
        page.on("pageerror", lambda error: complaints.append(f"script error: {error}"))

        def asked(request):
            if not request.url.startswith(("file:", "data:", "blob:")):
                complaints.append(f"request to {request.url}")

        page.on("request", asked)
        target, mark, rest = name.partition("?")
        page.goto((html / target).as_uri() + mark + rest)
        page.evaluate("() => window.MathJax?.startup?.promise")
        return page

    yield visit
    for page in pages:
        page.close()
