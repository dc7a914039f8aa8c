"""What paper asks of a page; beside each rule stands a style that breaks it."""

import re

import pytest

from hnlib import _files
from hnlib.book import pdf

pytestmark = pytest.mark.slow
CODE = f"<pre>{40 * 'a line of code<br>'}</pre>"  # more than half a sheet
WIDE = """() => [...document.querySelectorAll("article > *")]
    .filter(e => e.scrollWidth > e.parentElement.clientWidth + 1).map(e => e.tagName)"""


def printed(browser, body, style):
    """Return how many sheets a page takes, and what is wider than the paper."""
    page = browser.new_page(viewport=pdf.WIDTH)
    page.emulate_media(media="print")
    page.set_content(
        '<div class="bd-main"><div class="bd-content"><div class="bd-article-container">'
        f'<article class="bd-article">{body}</article></div></div></div>'
    )
    for sheet in ("book", "paper"):
        page.add_style_tag(path=_files.project_root() / f"book/theme/{sheet}.css")
    page.add_style_tag(content=style)
    page.evaluate(pdf.TIGHT)
    wide, file = page.evaluate(WIDE), page.pdf(prefer_css_page_size=True)
    page.close()
    return len(re.findall(rb"/Type /Page\b", file)), wide


@pytest.mark.parametrize(
    ("body", "kept", "broken", "style"),
    [
        (3 * CODE, (2, []), (3, []), "pre { break-inside: avoid !important; }"),
        (f"<pre>{300 * 'x'}</pre>", (1, []), (1, ["PRE"]), "pre { white-space: pre !important; }"),
        (
            f"<table><tr><td>{300 * 'x'}</td></tr></table>",
            (1, []),
            (1, ["TABLE"]),
            ".hn-tight { overflow-wrap: normal !important; }",
        ),
    ],
    ids=["no half-empty sheet", "code is not cut", "a table fits"],
)
def test_a_rule_of_paper(browser, body, kept, broken, style):
    assert printed(browser, body, "") == kept
    assert printed(browser, body, style) == broken
