"""What a reader meets: every page of the built book, from its file, in a real browser, without a
network."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from colours import contrast, luminance

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
    formulas = page.evaluate("""() => ({
        written: document.querySelectorAll('.math').length,
        set: document.querySelectorAll('.math mjx-container').length,
        wrong: [...document.querySelectorAll('mjx-merror')].map(e => e.parentElement.outerHTML.slice(0, 200)),
    })""")
    alts = page.evaluate(
        "() => [...document.querySelectorAll('article img')].map(e => [e.getAttribute('src'), e.alt])"
    )
    silent = [src for src, alt in alts if len(alt) < 15 or "_images/" in alt]
    unset = [formulas] * (formulas["set"] < formulas["written"])
    warnings = page.locator("article .output.stderr").all_text_contents()
    return [*formulas["wrong"], *unset, *silent, *warnings, *page.complaints]


# At 390 pixels nothing but a table, a formula, code or a figure scrolls, in its own box; a formula in a fold once this opens.
OUTSIDE = """() => {
    const scrolls = e => { for (; e; e = e.parentElement)
        if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)) return true; return false; };
    const wide = document.documentElement.scrollWidth > 390 ? ['the page'] : [];
    return [...document.querySelectorAll('article :is(p, img, pre, table, mjx-container)')]
        .filter(e => e.getBoundingClientRect().right > 391 && !scrolls(e))
        .filter(e => e.tagName !== 'MJX-CONTAINER' || !e.closest('details:not([open])'))
        .map(e => e.outerHTML.slice(0, 120)).concat(wide); }"""


DESK = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 900}


def letters(svg: str) -> list[float]:
    """The size in pt of each text of a figure; of a formula its largest letters."""
    texts = re.findall(r'<g id="text_\d+">(.*?)</g>\s*(?=<g id|</g>)', svg, re.S)
    found = [re.findall(r"scale\(([\d.]+) -[\d.]+\)", text) for text in texts]
    return [100 * max(map(float, sizes)) for sizes in found if sizes]


def small(page) -> list:
    """Letters of figures below 10 px as they are shown."""
    shown = page.evaluate("""() => [...document.querySelectorAll('article figure img')].filter(e => e.offsetParent)
        .map(e => [e.src, e.getBoundingClientRect().width / e.naturalWidth])""")
    found = []
    for source, scale in shown:
        svg = Path(unquote(urlsplit(source).path)).read_text(encoding="utf-8")
        found += [(source[-24:], pt) for pt in letters(svg) if pt * 4 / 3 * scale < 9.95]
    return found


@pytest.mark.parametrize("name", PAGES, ids=lambda name: name.removesuffix(".html"))
def test_page(visit, name):
    """On a desk, on a phone and on paper a page is read whole, and axe-core has no findings."""
    page = visit(name)
    wrong = {"unread": unread(page), "small": small(page)}
    page.set_viewport_size(PHONE)
    wrong |= {"outside": page.evaluate(OUTSIDE), "small on a phone": small(page)}
    page.set_viewport_size(DESK)
    wrong["axe-core"] = findings(page, name)
    turn(page, "dark")
    ground, letters = (
        page.evaluate("""() => { const { backgroundColor, color } = getComputedStyle(document.body);
        return [backgroundColor, color]; }""")
    )
    wrong["not dark"] = [ground, letters] * (not luminance(ground) < 0.05 < luminance(letters))
    wrong["faint in the dark"] = findings(page, name, runOnly=["color-contrast"])
    assert {name: found for name, found in wrong.items() if found} == {}


def too_large(page: Path, text: str) -> list:
    """A page and the pictures only it shows stay below 1.5 MB."""
    pictures = {page.parent / name for name in re.findall(r'src="([^"]*_images/[^"]+)"', text)}
    size = len(text.encode()) + sum(picture.stat().st_size for picture in pictures)
    return [size] * (size > 1_500_000)


def broken_links(page: Path, text: str) -> list:
    """Links into the book whose file is missing, or the anchor in it."""
    broken = set()
    for link in re.findall(r'<a [^>]*href="([^"]+)"', text):
        parts = urlsplit(link)
        if parts.scheme or link.startswith("javascript:"):
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.is_file():
            broken.add(link)
        elif parts.fragment and target.suffix == ".html":
            anchor = re.escape(unquote(parts.fragment))
            if not re.search(rf'(id|name)="{anchor}"', target.read_text("utf-8")):
                broken.add(link)
    return sorted(broken)


def test_the_root_opens_the_first_page(html, browser):
    page = browser.new_page()
    page.goto((html / "index.html").as_uri())
    page.wait_for_url(f"**/{pdf.toc()[0]}.html", timeout=5000)
    page.close()


def test_the_first_page_links_the_pdf(html):
    if not (paper := html / "hard-negatives.pdf").is_file():
        pytest.skip("the book is not printed (make pdf)")
    (page,) = re.findall('url=([^"]+)"', (html / "index.html").read_text(encoding="utf-8"))
    start = (html / page).read_text(encoding="utf-8")
    assert page == f"{pdf.toc()[0]}.html" and '<a href="../hard-negatives.pdf">' in start
    assert b"/Outlines" in paper.read_bytes()
    leaflet = (html / pdf.LEAFLET).read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", leaflet)) == 2


def test_files(html):
    """What can be seen without a browser, of every page."""
    wrong = []
    for page in sorted(html.rglob("*.html")):
        if not {"_static", "_modules"} & {*page.parts} and page.name != "index.html":
            text = page.read_text(encoding="utf-8")
            for check in (too_large, broken_links):
                wrong += [(page.name, check.__name__, found) for found in check(page, text)]
    assert wrong == []


#: What a reader of a notebook should not find in its text, and all of it is in the sources.
MARKUP = re.compile(r"^ *:{3,}|^ *`{3,}\{|\{[a-z:+-]+\}`|^\([\w-]+\)=$|<!--", re.M)


def texts(node) -> str:
    return "\n\n".join(cell.source for cell in node.cells if cell.cell_type == "markdown")


def test_a_download_reads_like_the_page(html):
    for path in build.chapters():
        page = path.relative_to(execute.root()).with_suffix(".ipynb")
        node = nbformat.read(html / "_sources" / page, as_version=4)
        assert str(page) in (html / page.with_suffix(".html")).read_text("utf-8")
        first, *code = [cell for cell in node.cells if cell.cell_type == "code"]
        assert first.id == "elsewhere" and all(cell.execution_count for cell in code), path
        assert MARKUP.findall(texts(node)) == [] != MARKUP.findall(texts(execute.read(path)))


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
    assert picture.count() == 1
    assert picture.is_visible()
    assert moved_by_keyboard(page, picture) == picture.locator("input, button").count()
    assert page.complaints == []
    page.set_viewport_size(PHONE)
    for scheme in ("light", "dark"):
        turn(page, scheme)
        assert unreadable(picture) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    page.emulate_media(media="print")
    assert not picture.is_visible()
    bare = browser.new_page(java_script_enabled=False)
    bare.goto((html / f"notebooks/{PICTURES[kind]}.html").as_uri())
    assert bare.locator("article img").first.is_visible()
    assert not bare.locator(f".hn-picture[data-kind={kind}]").is_visible()
    bare.close()


def moved_by_keyboard(page, picture) -> int:
    """Move each control that the tab key reaches, and count those that change the drawing."""
    reached, controls = 0, picture.locator("input, button").count()
    picture.locator("input, button").first.focus()
    for _ in range(controls):
        kind, full = page.evaluate(
            "() => { const e = document.activeElement; return [e.type, e.value === e.max]; }"
        )
        before, arrow = drawn(picture), "ArrowLeft" if full else "ArrowRight"
        page.keyboard.press("Space" if kind in ("checkbox", "button") else arrow)
        assert drawn(picture) != before
        if kind == "range":
            assert page.evaluate("() => document.activeElement.getAttribute('aria-valuetext')")
        # the arrows go round a group of radio buttons, tab leaves it
        reached += 2 if kind == "radio" else 1
        if reached >= controls:
            break
        page.keyboard.press("Tab")
    return reached


def unreadable(picture) -> list:
    """Letters that are too small, too faint, or beyond the edge."""
    ground = picture.evaluate("e => getComputedStyle(e).backgroundColor")
    letters = picture.evaluate("""e => [...e.querySelectorAll('text')].map(t => {
        const svg = t.ownerSVGElement, scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        return [getComputedStyle(t).fill, scale * parseFloat(getComputedStyle(t).fontSize),
                t.getBoundingClientRect().right - svg.getBoundingClientRect().right]; })""")
    return [
        (fill, size, beyond)
        for fill, size, beyond in letters
        if contrast(fill, ground) <= 4.5 or size <= 10 or beyond >= 4
    ]


def test_a_link_from_claims_opens_the_strip_of_its_check(visit):
    """The line of the check is on the screen, in a strip that was closed; its code leads back."""
    page = visit("notebooks/errata.html")
    page.locator("a[href*='theory/kl-robustness.html#check-r2-']").first.click()
    line = page.locator(".hn-claim:target")
    line.wait_for(state="visible")
    assert page.locator("details.hn-checks[open]").count() == 1
    line.locator("a.hn-claim-id").click()
    page.wait_for_url("**/notebooks/errata.html#claim-R2")
    page = visit("notebooks/theory/transport.html")  # a ✓ beside a theorem opens its strip, too
    strip = page.locator("details.hn-beside").first
    assert not strip.is_visible()
    page.locator(".hn-tick").first.click()
    strip.wait_for(state="visible")


LEDGER = """<section><div class="hn-filter" data-headings="Part" data-columns="Data"></div>
<section><h2><span>One</span></h2><details><summary>folded</summary><table>
<thead><tr><th>Data</th><th>Note</th></tr></thead>
<tbody><tr><td>digits</td><td>plain</td></tr><tr><td></td><td>its check</td></tr></tbody></table></details></section>
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
    assert shown() == ("2 of 3", ["digits", "plain", "", "its check", "digits"])
    page.get_by_label("Filter").fill("CHECK")
    assert shown() == ("1 of 3", ["digits", "plain", "", "its check"])
    page.close()
