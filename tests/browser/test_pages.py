"""What a reader meets: every page of the built book, from its file, in a real browser, without a
network."""

import re
from collections import Counter
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from colours import contrast, luminance
from paper import ends, half_empty, openings, pictures
from playwright.sync_api import TimeoutError

from builder import build, pdf, portable_notebooks
from hnlib import _files
from hnlib.notebooks import execute

pytestmark = pytest.mark.slow


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
    """Waits until the page has followed the system to "light" or "dark"."""
    follows = partial(
        page.wait_for_function,
        "scheme => document.documentElement.dataset.theme === scheme",
        arg=scheme,
        polling=100,
    )
    page.emulate_media(color_scheme=scheme)
    try:
        follows(timeout=10_000)
    except TimeoutError:
        # the news comes with a frame, and a browser without a screen may draw none
        page.reload()
        page.evaluate("() => window.MathJax?.startup?.promise")
        follows()


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


def test_page(page, page_name):
    """On a desk, on a phone and on paper a page is read whole, and axe-core has no findings."""
    wrong = {"unread": unread(page), "small": small(page)}
    page.set_viewport_size(PHONE)
    wrong |= {"outside": page.evaluate(OUTSIDE), "small on a phone": small(page)}
    page.set_viewport_size(DESK)
    wrong["axe-core"] = findings(page, page_name)
    turn(page, "dark")
    ground, letters = (
        page.evaluate("""() => { const { backgroundColor, color } = getComputedStyle(document.body);
        return [backgroundColor, color]; }""")
    )
    wrong["not dark"] = [ground, letters] * (not luminance(ground) < 0.05 < luminance(letters))
    wrong["faint in the dark"] = findings(page, page_name, runOnly=["color-contrast"])
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


def test_the_pdf_has_full_pages_and_a_link(html, paper, tmp_path):
    """Half of a page at least is used, but of the last of a chapter; control: an empty page."""
    start = (html / f"{pdf.toc()[0]}.html").read_text(encoding="utf-8")
    assert '<a href="../hard-negatives.pdf">' in start and b"/Outlines" in paper.read_bytes()
    titles = [pdf.title((html / f"{name}.html").read_text("utf-8")) for name in pdf.toc()]
    first, pages = openings(paper), pictures(paper, tmp_path)
    last = ends(first, ["Contents", *titles])
    assert half_empty(pages, last) == []
    assert half_empty([*pages[:2], 0 * pages[0], *pages[2:]], {1, 2}) != []


def test_the_root_leads_into_the_book(visit):
    page = visit("index.html")
    page.wait_for_url("**/notebooks/start-here.html")
    link = page.locator("a.right-next").evaluate("link => link.href")
    assert Path(unquote(urlsplit(link).path)).is_file() and page.complaints == []


def test_files(html):
    """What can be seen without a browser, of every page."""
    wrong = []
    for page in sorted(html.rglob("*.html")):
        if not {"_static", "_modules"} & {*page.parts} and page.name != "index.html":
            text = page.read_text(encoding="utf-8")
            for check in (too_large, broken_links):
                wrong += [(page.name, check.__name__, found) for found in check(page, text)]
    assert wrong == []


def left_over(node) -> dict[str, list[str]]:
    """What a reader of a notebook should not find in it, by what it is; code is not looked at."""
    labels, keys = portable_notebooks.LABELS, "|".join(portable_notebooks.cited())
    names = "|".join(label for label in labels if "-" in label and label[0] != "/")
    found = {"markup": [], "label": [], "key": [], "page": [], "solution": []}
    for cell, after in zip(node.cells, [*node.cells[1:], None]):
        if cell.cell_type == "code":
            continue
        text = re.sub(r"^ *```\w+\n.*?^ *```$", "", cell.source, flags=re.M | re.S)
        text = re.sub(r"(?<=\])\(https://[^)\s]*\)|(?<![}`])`[^`\n]+`(?!`)", "", text)
        folded = re.sub("<details>.*?</details>", "", text, flags=re.S)
        solution = r"^\*\*Solution.*\n+\S.*|\{solution\}|<!-- fold: Solution"
        if re.search(r"\*\*Solution.*$", folded) and not after.metadata.jupyter.source_hidden:
            found["solution"].append(after.source)
        for what, pattern in {
            "markup": r"^ *[`:]{3,}.*|\{[a-z:+-]+\}`|^\([\w-]+\)=$|<!--.*",
            "label": rf"(?<![\w-])(?:{names})(?![\w-])",
            "key": rf"[`\[,](?:{keys})(?=[`\],])",
            "page": r"(?:notebooks|theory|experiments|book)/[\w-]+",
        }.items():
            found[what] += re.findall(pattern, text, re.M)
        found["solution"] += re.findall(solution, folded, re.M)
    return found


def test_a_download_reads_like_the_page(html):
    """In no chapter is markup, a label, a key, the path of a page or an open solution left; all are
    in the sources, the control."""
    portable_notebooks.read_labels(html, build.toc())
    before = Counter()
    for path in build.chapters():
        before.update({what: len(found) for what, found in left_over(execute.read(path)).items()})
        page = path.relative_to(execute.root()).with_suffix(".ipynb")
        node = nbformat.read(html / "_sources" / page, as_version=4)
        assert str(page) in (html / page.with_suffix(".html")).read_text("utf-8")
        first, *code = [cell for cell in node.cells if cell.cell_type == "code"]
        assert first.id == "elsewhere" and all(cell.execution_count for cell in code), path
        after = left_over(node)
        assert {what: found for what, found in after.items() if found} == {}, path
    assert min(before.values()) > 50, before


def test_the_search_works_from_files(visit):
    found = visit("search.html?q=collapse")
    link = found.locator("#search-results li a[href*='theory/degeneracy']").first
    link.wait_for()
    assert found.complaints == []


PICTURES = {
    "dial": "start-here",
    "masks": "theory/degeneracy",
    "path": "theory/transport",
    "sinkhorn": "theory/transport",
    "class-mass": "theory/debiasing",
    "packing": "theory/packing",
    "balls": "theory/kl-robustness",
    "radius": "theory/temperature",
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


def test_the_tab_key_shows_where_it_is_and_passes_over_formulas(visit):
    """From the link on that goes past the sidebar."""
    page = visit("notebooks/theory/transport.html")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        where, width, formula = page.evaluate("""() => {
            const e = document.activeElement, s = getComputedStyle(e);
            const seen = s.outlineStyle !== 'none' && s.opacity !== '0';
            return [e.outerHTML.slice(0, 120), seen * parseFloat(s.outlineWidth), e.closest('.math') !== null]; }""")
        assert where.startswith("<body") or (width >= 2 and not formula), where


def test_a_link_from_claims_opens_the_strip_of_its_check(visit):
    """The line of the check is on the screen, in a strip that was closed; its code leads back."""
    page = visit("book/claims.html")
    link = page.locator("a[href*='theory/kl-robustness.html#check-r2-']").first
    link.click()
    page.wait_for_url("**/kl-robustness.html#check-r2-*")
    line = page.locator(".hn-claim:target")
    line.wait_for(state="visible")
    strip = page.locator("details.hn-checks", has=line)
    assert strip.get_attribute("open") is not None
    assert page.locator("details.hn-checks[open]").count() == 1
    line.locator("a.hn-claim-id").click()
    page.wait_for_url("**/book/claims.html#claim-R2")
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
    """A row with an empty first cell goes with the one above; folds open; empty parts are hidden."""
    page = browser.new_page()
    page.set_content(LEDGER)
    page.add_script_tag(path=_files.project_root() / "book/theme/ledgers.js")
    page.evaluate("() => ledger(document.querySelector('.hn-filter'))")
    count, words = page.locator("output"), page.get_by_label("Filter")
    part, data = page.get_by_label("Part"), page.get_by_label("Data")

    def seen():
        return [cell.inner_text() for cell in page.locator("td").all() if cell.is_visible()]

    assert count.inner_text() == "3 of 3" and seen() == ["cifar10", "digits"]
    data.select_option("digits")
    first = ["digits", "plain", "", "its check"]
    assert count.inner_text() == "2 of 3" and seen() == [*first, "digits"]
    words.fill("CHECK digits")
    assert count.inner_text() == "1 of 3" and seen() == first
    assert not page.get_by_text("Two").last.is_visible()
    words.fill("")
    data.select_option("")
    words.fill("CIFAR-10")
    assert seen() == ["cifar10"]
    words.fill("")
    part.select_option("Two")
    assert seen() == ["cifar10", "digits"]
    page.close()
