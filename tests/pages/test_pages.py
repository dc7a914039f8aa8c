"""What a reader meets: every page of the built book, from its file, in a real browser, without a
network."""

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from colours import contrast, luminance
from playwright.sync_api import TimeoutError

from builder import build, pdf
from hnlib import _files
from hnlib.notebooks import execute

pytestmark = pytest.mark.slow
HTML = _files.project_root() / "_build/html"
#: One page of a module stands for all.
PAGES = [
    page.relative_to(HTML).as_posix()
    for page in sorted(HTML.rglob("*.html"))
    if not {"_static", "_modules"} & {*page.parts}
    and "<title>This page has moved" not in page.read_text("utf-8")
]
MODULES = [page for page in PAGES if page.startswith("book/api/")]
PAGES = [page for page in PAGES if page not in (*MODULES[1:], "index.html", "404.html")]


# What a formula draws is hidden from a screen reader, which reads its MathML; the colours of code are
# the same on all pages, and looked at on one. Both are thousands of elements.
LIGHTEN = """(code) => {
    document.querySelectorAll('mjx-container > [aria-hidden="true"]').forEach(e => { e.textContent = 'x'; });
    if (code) document.querySelectorAll('.highlight pre').forEach(e => { e.textContent = e.textContent; });
}"""


def findings(page, page_name, **options) -> list[str]:
    """The findings of axe-core, one line each. Formulas stay in place."""
    page.evaluate(LIGHTEN, page_name != "notebooks/start-here.html")
    return [
        f"{finding['id']}: {finding['help']}: {node['html'][:160]}"
        for finding in Axe()
        .run(page, options={"preload": False, "resultTypes": ["violations"]} | options)
        .response["violations"]
        for node in finding["nodes"]
    ]


def turn(page, scheme: str):
    """Wait until the page has followed the system to "light" or "dark"."""
    page.emulate_media(color_scheme=scheme)
    page.reload()  # without a screen the news may come with no frame
    page.evaluate("() => window.MathJax?.startup?.promise")
    page.wait_for_function(
        "scheme => document.documentElement.dataset.theme === scheme", arg=scheme
    )


def unread(page) -> list:
    """Formulas that are not set, silent pictures, warnings, and what went wrong while loading."""
    unset = page.evaluate(
        """() => [...document.querySelectorAll('.math:not(:has(mjx-container)), .math:has(mjx-merror)')]
        .map(e => e.outerHTML.slice(0, 200))"""
    )
    alts = page.evaluate(
        "() => [...document.querySelectorAll('article img')].map(e => [e.getAttribute('src'), e.alt])"
    )
    silent = [src for src, alt in alts if len(alt) < 15 or "_images/" in alt]
    warnings = page.locator("article .output.stderr").all_text_contents()
    return [*unset, *silent, *warnings, *page.complaints]


# At 390 pixels nothing but a table, a formula, code or a figure scrolls, in its own box; a formula in a fold once this opens.
OUTSIDE = """() => {
    const scrolls = e => { for (; e; e = e.parentElement)
        if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)) return true; return false; };
    const wide = document.documentElement.scrollWidth > 390 ? ['the page'] : [];
    return [...document.querySelectorAll('article :is(p, img, pre, table, mjx-container)')]
        .filter(e => e.getBoundingClientRect().right > 391 && !scrolls(e))
        .filter(e => e.tagName !== 'MJX-CONTAINER' || !e.closest('details:not([open])'))
        .map(e => e.outerHTML.slice(0, 120)).concat(wide); }"""


PHONE = {"width": 390, "height": 900}


@cache
def anchors(page: Path) -> set[str]:
    """The names that a link into a page may have."""
    return {*re.findall(r'\b(?:id|name)="([^"]+)"', page.read_text("utf-8"))}


def broken(page) -> list[str]:
    """Links into the book, a script's too, whose file is missing, or the anchor in it."""
    links = page.evaluate("() => [...document.querySelectorAll('a[href]')].map(a => a.href)")
    found = []
    for link in sorted({*links}):
        parts = urlsplit(link)
        target, name = Path(unquote(parts.path)), unquote(parts.fragment)
        if parts.scheme == "file" and not (
            target.is_file() and (not name or target.suffix != ".html" or name in anchors(target))
        ):
            found.append(link)
    return found


def size(page: Path) -> int:
    """The bytes of a page and its pictures."""
    pictures = {*re.findall(r'src="([^"]*_images/[^"]+)"', page.read_text("utf-8"))}
    return sum(file.stat().st_size for file in (page, *(page.parent / one for one in pictures)))


def still_cut(page) -> list[str]:
    """Figures that stay cut: narrow pictures take a moment to take the place of wide ones."""
    with suppress(TimeoutError):
        page.wait_for_function(f"() => ({CUT})().length === 0", timeout=5000)
    return page.evaluate(CUT)


@pytest.mark.parametrize("name", PAGES, ids=lambda name: name.removesuffix(".html"))
def test_page(html, visit, name):
    """On a desk, on a phone and on paper a page is read whole, and axe-core has no findings."""
    page = visit(name)
    wrong = {"unread": unread(page), "broken links": broken(page)}
    wrong["cut on a desk"] = page.evaluate(CUT)
    wrong["axe-core"] = findings(page, name)
    turn(page, "dark")
    ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    wrong["not dark"] = [ground] * (luminance(ground) > 0.05)
    wrong["faint in the dark"] = findings(page, name, runOnly=["color-contrast"])
    page.set_viewport_size(PHONE)
    wrong["outside"] = page.evaluate(OUTSIDE)
    wrong["cut on a phone"] = still_cut(page)
    assert {name: found for name, found in wrong.items() if found} == {}
    assert size(html / name) < 1_500_000


@pytest.mark.parametrize(
    "name",
    [
        "notebooks/experiments/which-method",
        "notebooks/four-theorems",
        "notebooks/theory/kl-robustness",  # which prints the code of a function
        "book/gpu",
    ],
)
def test_a_phone_cuts_no_line_of_code(visit, name):
    """Nor a command; a desk, where lines stay whole, shows all 88 columns."""
    page = visit(f"{name}.html")
    cut = """() => [...document.querySelectorAll('article div.highlight pre')]
      .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 2).map(e => e.textContent)"""
    assert page.evaluate(cut) == []
    page.set_viewport_size(PHONE)
    assert page.evaluate(cut) == []


def test_the_first_page_links_the_pdf(html):
    if not (paper := html / "hard-negatives.pdf").is_file():
        pytest.skip("the book is not printed (make pdf)")
    start = (html / f"{pdf.toc()[0]}.html").read_text(encoding="utf-8")
    assert '<a href="../hard-negatives.pdf">' in start and b"/Outlines" in paper.read_bytes()
    leaflet = (html / pdf.LEAFLET).read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", leaflet)) == 2


#: What a reader of a notebook should not find in its text, and all of it is in the sources.
MARKUP = re.compile(r"^ *:{3,}|^ *`{3,}\{|\{[a-z:+-]+\}`|^\([\w-]+\)=$|<!--", re.M)


def marked_up(notebook) -> list[str]:
    return MARKUP.findall(
        "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    )


def test_a_download_reads_like_the_page(html):
    for path in build.chapters():
        page = path.relative_to(execute.root()).with_suffix(".ipynb")
        download = nbformat.read(html / "_sources" / page, as_version=4)
        assert str(page) in (html / page.with_suffix(".html")).read_text("utf-8")
        _, *code = [cell for cell in download.cells if cell.cell_type == "code"]
        # sentences that are computed anew, and the table of the reader's comparisons
        added = [x for x in code if x.id == "beside" or "inline_values import say" in x.source]
        assert all(cell.execution_count for cell in code if cell not in added), path
        assert len(added) < len(code) / 2
        assert marked_up(download) == [] != marked_up(execute.read(path))


def test_the_search_works_from_files(visit):
    found = visit("search.html?q=collapse")
    link = found.locator("#search-results li a[href*='theory/degeneracy']").first
    link.wait_for()
    assert found.complaints == []


PICTURES = {
    "dial": "start-here",
    "masks": "theory/degeneracy",
    "path": "theory/transport",
    "class-mass": "theory/debiasing",
    "balls": "theory/kl-robustness",
    "motion": "theory/sharpness",
}


#: What changes a control that has the focus.
# A figure that is wider than its column is cut, whether its edge fades or not.
CUT = """() => [...document.querySelectorAll('article figure.hn-beyond')]
  .filter(e => e.offsetParent !== null).map(e => e.id)"""
KEY = """e => ['checkbox', 'button'].includes(e.type) ? 'Space' : e.value === e.max ? 'ArrowLeft' : 'ArrowRight'"""


def drawn(box) -> str:
    """What there is to see of a picture: drawings, bars and sentences."""
    return box.evaluate(
        "e => [...e.querySelectorAll('svg, output, .hn-bar')].map(x => x.outerHTML).join('')"
    )


@pytest.mark.parametrize("kind", PICTURES)
def test_picture(browser, html, visit, kind):
    """A picture that moves: by the keyboard, on a phone, in the dark; not on paper or without a script."""
    page = visit(f"notebooks/{PICTURES[kind]}.html")
    picture = page.locator(f".hn-picture[data-kind={kind}]")
    assert picture.is_visible()
    for control in picture.locator("input, button").all():
        before = drawn(picture)
        control.focus()
        page.keyboard.press(control.evaluate(KEY))
        assert drawn(picture) != before
        assert control.evaluate("e => e.type !== 'range' || e.getAttribute('aria-valuetext')")
    assert page.complaints == []
    page.set_viewport_size(PHONE)
    for scheme in ("light", "dark"):
        turn(page, scheme)
        assert unreadable(picture) == []
    page.emulate_media(media="print")
    assert not picture.is_visible()
    bare = browser.new_page(java_script_enabled=False)
    bare.goto((html / f"notebooks/{PICTURES[kind]}.html").as_uri())
    assert bare.locator("article img").first.is_visible()
    assert not bare.locator(f".hn-picture[data-kind={kind}]").is_visible()
    bare.close()


def unreadable(picture) -> list:
    """Letters that are too small or too faint."""
    ground = picture.evaluate("e => getComputedStyle(e).backgroundColor")
    letters = picture.evaluate("""e => [...e.querySelectorAll('text')].map(t => {
        const scale = t.ownerSVGElement.getBoundingClientRect().width / t.ownerSVGElement.viewBox.baseVal.width;
        return [getComputedStyle(t).fill, scale * parseFloat(getComputedStyle(t).fontSize)]; })""")
    return [(fill, size) for fill, size in letters if contrast(fill, ground) <= 4.5 or size <= 10]


def test_a_link_from_claims_opens_the_strip_of_its_check(visit):
    """The line of the check is on the screen, in a strip that was closed; its code leads back."""
    page = visit("notebooks/errata.html")
    page.locator("a[href*='theory/kl-robustness.html#check-r2-']").first.click()
    line = page.locator(".hn-claim:target")
    line.wait_for(state="visible")
    line.locator("a.hn-claim-id").click()
    page.wait_for_url("**/notebooks/errata.html#claim-R2")
    page = visit("notebooks/appendix/ground-cost.html")  # a code in a text is a link, too
    assert "errata.html#claim-" in page.locator("a.hn-code").first.get_attribute("href")
    page = visit("notebooks/theory/transport.html")  # a ✓ beside a theorem opens its strip
    page.locator(".hn-tick").first.click()
    page.locator("details.hn-beside").first.locator(".hn-claim").first.wait_for(state="visible")


LEDGER = """<section><div class="hn-filter" data-headings="Part" data-columns="Data"></div>
<section><h2><span>One</span></h2><details><summary>folded</summary><table><thead><tr><th>Data</th></tr></thead>
<tbody><tr><td>digits</td></tr><tr><td></td><td>its check</td></tr></tbody></table></details></section>
<section><h2><span>Two</span></h2><table><thead><tr><th>Data</th></tr></thead>
<tbody><tr><td>cifar10</td></tr><tr><td>digits</td></tr></tbody></table></section></section>"""


def test_a_filter_leaves_the_rows_asked_for(browser):
    """A row with an empty first cell goes with the one above; folds open."""
    page = browser.new_page()
    page.set_content(LEDGER)
    page.add_script_tag(path=_files.project_root() / "book/theme/ledgers.js")
    page.evaluate("() => ledger(document.querySelector('.hn-filter'))")

    def shown():
        rows = [cell.inner_text() for cell in page.locator("td").all() if cell.is_visible()]
        return page.locator("output").inner_text(), rows

    page.get_by_label("Part").select_option("Two")
    assert shown() == ("2 of 3", ["cifar10", "digits"])
    page.get_by_label("Part").select_option("")
    page.get_by_label("Data").select_option("digits")
    page.get_by_label("Filter").fill("CHECK")
    assert shown() == ("1 of 3", ["digits", "", "its check"])
    page.close()


def test_a_phone_is_shown_the_narrow_drawing_of_a_figure(visit):
    page = visit("notebooks/four-theorems.html")
    page.set_viewport_size(PHONE)
    page.wait_for_function(
        "() => document.querySelector('article picture img').currentSrc.endsWith('-narrow.svg')",
        timeout=5000,
    )
    assert page.complaints == []
