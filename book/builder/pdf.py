"""Print the built book with headless Chromium: core, appendices, and a leaflet of two."""

import html
import re
import shutil
import time
from pathlib import Path

import hnlib
from builder.build import appendices, toc
from builder.redirects import filled
from hnlib.notebooks.execute import root

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
CORE, REST = "hard-negatives.pdf", "hard-negatives-appendices.pdf"
LEAFLET, LEAFLET_PAGE = "null-model.pdf", "notebooks/null-model"
SECTIONS = ["try-a-loss", "protocol-version-3", "controls", "a-checklist-for-a-review"]
LEDGERS = ("book/results", "book/papers")  # whose folded tables stay folded
WIDTH = {"width": 665, "height": 970}  # of A4 between the margins of book/theme/paper.css


def chromium() -> str:
    """Return the path of a Chromium or Chrome. Raises ValueError if none is installed."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise ValueError("the PDF needs Chromium or Chrome: apt-get install chromium")
    return path


def document(folder: Path, pages: list[str]) -> str:
    """Return built pages as one, behind a cover and a table of contents if they are several."""
    start = (folder / f"{toc()[0]}.html").read_text(encoding="utf-8")
    head = re.findall(
        r'<link [^>]*rel="stylesheet"[^>]*>|<script>window\.MathJax.*?</script>'
        r"|<script[^>]*/mathjax/[^>]*></script>",
        start,
    )
    book = html.unescape(re.search('property="og:site_name" content="(.*?)"', start)[1])
    sheets = []
    for page in pages:
        text = (folder / f"{page}.html").read_text(encoding="utf-8")
        (article,) = re.findall(r'<article class="bd-article">.*?</article>', text, re.S)
        about = f'id="{page}" data-page="{page}"{" data-folded" * page.startswith(LEDGERS)}'
        sheets.append(f'<div class="hn-sheet" {about}>{article}</div>')
    front = filled("cover.html", book=book, version=hnlib.__version__) * (len(pages) > 1)
    parts = dict(head="".join(head), front=front, sheets="\n".join(sheets))
    text = filled("paper.html", book=book, **parts)
    return re.sub(r'(src|href|srcset)="(?:\.\./)+_', r'\1="_', text)


def pdf(folder: Path, out: Path, pages: list[str], sections=()) -> None:
    """Print pages of ``folder``, or some sections alone, into ``out``, in one to three minutes."""
    from playwright.sync_api import sync_playwright

    source = folder / "paper.html"
    source.write_text(document(folder, pages), encoding="utf-8")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            page = browser.new_page(viewport=WIDTH)
            page.set_default_timeout(0)
            page.emulate_media(media="print", color_scheme="light")
            page.goto(source.as_uri(), wait_until="domcontentloaded")
            page.evaluate("() => window.MathJax.startup.promise")
            page.wait_for_load_state("load")
            if sections:
                page.evaluate("sections => keep(sections)", sections)
            page.evaluate("() => tighten()")
            page.pdf(
                path=out,
                scale=0.85 if sections else 1,
                prefer_css_page_size=True,
                display_header_footer=True,
                header_template="<span></span>",
                footer_template=filled("foot.html"),
                outline=True,
                tagged=True,
            )
    finally:
        source.unlink()


def write() -> None:
    """Print the built book and link both files. Raises ValueError if no book is built."""
    start, built = time.monotonic(), root() / "_build/html"
    if not (built / f"{toc()[0]}.html").exists():
        raise ValueError(f"there is no book in {built}; run `make book` first")
    apart = appendices()
    for target, after in ((CORE, False), (REST, True)):
        pdf(built, built / target, [page for page in toc() if (page in apart) == after])
    pdf(built, built / LEAFLET, [LEAFLET_PAGE], SECTIONS)
    version = f"Version {hnlib.__version__}"
    linked = f'{version} · <a href="../{CORE}">This book as a PDF</a>'
    linked += f', <a href="../{REST}">its appendices</a>'
    leaflet = f'{version} · <a href="../{LEAFLET}">The protocol on two sheets</a>'
    for name, link in {toc()[0]: linked, LEAFLET_PAGE: leaflet}.items():
        page = built / f"{name}.html"
        text = page.read_text(encoding="utf-8")
        if link not in text:
            page.write_text(text.replace(version, link), encoding="utf-8")
    print(f"_build/html/{CORE}, {REST}, {LEAFLET} ({time.monotonic() - start:.0f} s)")
