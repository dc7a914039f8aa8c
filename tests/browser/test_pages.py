"""What a reader meets: every page of the built book, from its file, in a real browser, without a
network."""

import json
import re
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe

from hnlib import _files

MEGABYTE = 1_000_000


# Formulas and code are thousands of elements that axe-core takes a minute for; the colours of code
# are the same on all pages, and looked at on one.
LIGHTEN = """(code) => {
    document.querySelectorAll('mjx-container').forEach(e => e.replaceWith('x'));
    if (code) document.querySelectorAll('.highlight pre').forEach(e => { e.textContent = e.textContent; });
}"""


def serious(page, page_name) -> list[str]:
    """The serious and critical findings of axe-core, one line each. Takes the formulas out of the
    page."""
    page.evaluate(LIGHTEN, page_name != "notebooks/start-here.html")
    return [
        f"{finding['id']}: {finding['help']}: {node['html'][:160]}"
        for finding in Axe()
        .run(page, options={"preload": False, "resultTypes": ["violations"]})
        .response["violations"]
        if finding["impact"] in ("serious", "critical")
        for node in finding["nodes"]
    ]


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` or ``rgb(r, g, b)`` (WCAG)."""
    if colour.startswith("#"):
        parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    else:
        parts = [float(part) for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [p / 255 / 12.92 if p <= 10 else ((p / 255 + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours (WCAG)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_page_reads_offline(page, page_name):
    """No complaint, every formula set, an alternative text for every picture."""
    formulas = page.evaluate("""() => ({
        written: document.querySelectorAll('.math').length,
        set: document.querySelectorAll('.math mjx-container').length,
        wrong: [...document.querySelectorAll('mjx-merror')].map(e => e.parentElement.outerHTML.slice(0, 200)),
    })""")
    assert formulas["wrong"] == []
    assert formulas["set"] >= formulas["written"]
    alts = page.evaluate(
        "() => [...document.querySelectorAll('article img')].map(e => [e.getAttribute('src'), e.alt])"
    )
    assert [src for src, alt in alts if len(alt) < 15 or "_images/" in alt] == []
    assert page.complaints == []


def test_page_on_a_phone(page):
    """At 390 pixels nothing but a table, a formula, code or a figure of several panels scrolls, in
    its own box."""
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    outside = page.evaluate("""() => {
        const scrolls = e => { for (; e; e = e.parentElement)
            if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)) return true; return false; };
        return [...document.querySelectorAll('article :is(p, img, pre, table, mjx-container)')]
            .filter(e => e.getBoundingClientRect().right > 391 && (!scrolls(e) || e.matches('img:not(.hn-wide)')))
            .map(e => e.outerHTML.slice(0, 120)); }""")
    assert outside == []


def test_page_is_accessible(page, page_name):
    """Nothing serious from axe-core."""
    assert serious(page, page_name) == []


def test_page_in_dark(page, page_name):
    """The page follows the system: light letters on a dark ground, and still nothing serious from
    axe-core."""
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    letters = page.evaluate("() => getComputedStyle(document.body).color")
    assert luminance(ground) < 0.05 < luminance(letters)
    assert serious(page, page_name) == []


def test_page_size(html, page_name):
    """A page and the pictures only it shows stay below 1.5 MB."""
    text = (html / page_name).read_text(encoding="utf-8")
    pictures = {
        (html / page_name).parent / name for name in re.findall(r'src="([^"]*_images/[^"]+)"', text)
    }
    assert len(text.encode()) + sum(picture.stat().st_size for picture in pictures) < 1.5 * MEGABYTE


def test_page_says_what_may_run(html, page_name):
    """Before any script stands a policy that allows scripts by their hash alone."""
    page = (html / page_name).read_text(encoding="utf-8")
    start, policy = re.search(
        r'(?s)^(.*?)<meta http-equiv="Content-Sec[^"]*" content="(.*?)"', page
    ).groups()
    (scripts,) = re.findall(r"script-src ([^;]*);", policy)
    assert "<script" not in start and "sha256-" in scripts
    assert "unsafe-inline" not in scripts and "http" not in scripts


def test_links_lead_somewhere(html, page_name):
    """Every link into the book names a file that is there, and an anchor that is in it."""
    page = html / page_name
    broken = []
    for link in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text(encoding="utf-8")):
        parts = urlsplit(link)
        if parts.scheme or link.startswith("javascript:"):
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.is_file():
            broken.append(link)
        elif parts.fragment and target.suffix == ".html":
            anchor = unquote(parts.fragment)
            if not re.search(
                rf'(id|name)="{re.escape(anchor)}"', target.read_text(encoding="utf-8")
            ):
                broken.append(link)
    assert sorted(set(broken)) == []


def test_figures_suit_both_grounds(html, page_name):
    """Labels of the ticks in a vector figure are legible on a light and on a dark page."""
    text = (html / page_name).read_text(encoding="utf-8")
    faint = []
    for name in set(re.findall(r'src="([^"]*_images/[^"]+\.svg)"', text)):
        svg = ((html / page_name).parent / name).read_text(encoding="utf-8")
        # matplotlib writes a label as <g id="text_3"><g style="fill: #808080" …>; without a fill it
        # is black
        for label in re.findall(r'<g id="[xy]tick_\d+">.*?<g id="text_\d+">(.*?)</g>', svg, re.S):
            fill = re.search(r"fill: (#[0-9a-f]{6})", label)
            colour = fill[1] if fill else "#000000"
            if min(contrast(colour, "#ffffff"), contrast(colour, "#15171b")) < 3:
                faint.append((name, colour))
    assert sorted(set(faint)) == []


def notebooks(html):
    """Pages made from notebooks, with the notebook each offers for download."""
    return [
        (page, re.search(r'href="([^"]*_sources/[^"]+\.ipynb)"', page.read_text(encoding="utf-8")))
        for page in sorted((html / "notebooks").rglob("*.html"))
    ]


def test_executed_notebooks_can_be_downloaded(html):
    """Each chapter offers its executed notebook, outputs included."""
    pages = notebooks(html)
    assert pages
    for page, link in pages:
        assert link, f"{page.name} offers no notebook"
        notebook = json.loads((page.parent / link[1]).read_text(encoding="utf-8"))
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert all(cell["execution_count"] for cell in code), page.name


def test_measure(visit):
    """A line of text has room for 65 to 75 characters: neither the eye nor the thread gets lost."""
    page = visit("book/reproduce.html")
    characters = page.evaluate("""() => {
        const paragraphs = [...document.querySelectorAll('article section > p')];
        const text = paragraphs.map(p => p.textContent).join(' ').replace(/\\s+/g, ' ');
        const pen = document.createElement('canvas').getContext('2d');
        pen.font = getComputedStyle(paragraphs[0]).font;
        return Math.max(...paragraphs.map(p => p.clientWidth)) / (pen.measureText(text).width / text.length); }""")
    assert 65 <= characters <= 75


def test_search_finds(visit):
    """A search from the files finds pages, without a server."""
    page = visit("search.html?q=transport")
    page.wait_for_selector("#search-results li a", timeout=10_000)
    assert page.locator("#search-results li a").count() >= 1
    assert not [line for line in page.complaints if line.startswith(("script error", "request to"))]


def test_search_opens_from_the_keyboard(visit):
    """Control-K opens the search field, Escape closes it."""
    page = visit("notebooks/start-here.html")
    page.keyboard.press("Control+k")
    page.wait_for_selector("#pst-search-dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#pst-search-dialog[open]", state="detached")


def test_keyboard_focus_is_visible(visit):
    """Whoever goes through the page with the tab key sees where they are."""
    page = visit("notebooks/start-here.html")
    unseen = []
    for _ in range(30):
        page.keyboard.press("Tab")
        where, style, width = (
            page.evaluate("""() => { const e = document.activeElement, s = getComputedStyle(e);
            return [e.outerHTML.slice(0, 120), s.outlineStyle, parseFloat(s.outlineWidth)]; }""")
        )
        if where.startswith("<body"):
            break
        if style == "none" or width < 2:
            unseen.append(where)
    assert unseen == []


def test_theme_can_be_switched(visit):
    """The button of the theme turns the page dark for a reader whose system is light."""
    page = visit("notebooks/start-here.html")
    for _ in range(3):
        page.locator("button.theme-switch-button").first.click()
        if page.evaluate("() => document.documentElement.dataset.theme") == "dark":
            break
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


PICTURES = {
    "masks": "degeneracy",
    "path": "transport",
    "class-mass": "debiasing",
    "packing": "packing",
    "balls": "kl-robustness",
}


@pytest.fixture(params=PICTURES, ids=str)
def picture(request, visit):
    """A picture the reader can move, in its chapter."""
    page = visit(f"notebooks/theory/{PICTURES[request.param]}.html")
    box = page.locator(f".hn-picture[data-kind={request.param}]")
    assert box.count() == 1 and box.is_visible()
    return box


def drawn(box) -> str:
    """What there is to see of a picture: drawings, bars and sentences."""
    return box.evaluate(
        "e => [...e.querySelectorAll('svg, output, .hn-bar')].map(x => x.outerHTML).join('')"
    )


def test_picture_answers_the_keyboard(picture):
    """Each of its controls is reached with the tab key, moved with arrows or space, and changes the
    drawing."""
    page, reached = picture.page, 0
    controls = picture.locator("input").count()
    picture.locator("input").first.focus()
    for _ in range(controls):
        kind, before = page.evaluate("() => document.activeElement.type"), drawn(picture)
        page.keyboard.press("Space" if kind == "checkbox" else "ArrowRight")
        assert drawn(picture) != before
        if kind == "range":
            assert page.evaluate("() => document.activeElement.getAttribute('aria-valuetext')")
        reached += (
            2 if kind == "radio" else 1
        )  # the arrows go round a group of radio buttons, tab leaves it
        if reached >= controls:
            break
        page.keyboard.press("Tab")
    assert reached == controls
    assert page.complaints == []


def test_picture_on_a_phone_and_in_the_dark(picture):
    """It keeps to its page, its letters are large enough and stand out from the ground, on both
    themes."""
    page = picture.page
    page.set_viewport_size({"width": 390, "height": 900})
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(
            "scheme => document.documentElement.dataset.theme === scheme", arg=scheme
        )
        ground = picture.evaluate("e => getComputedStyle(e).backgroundColor")
        letters = picture.evaluate("""e => [...e.querySelectorAll('text')].map(t => {
            const svg = t.ownerSVGElement, scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
            return [getComputedStyle(t).fill, scale * parseFloat(getComputedStyle(t).fontSize),
                    t.getBoundingClientRect().right - svg.getBoundingClientRect().right]; })""")
        assert all(
            contrast(fill, ground) > 4.5 and size > 10 and beyond < 4
            for fill, size, beyond in letters
        )
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_picture_stays_off_paper(picture):
    """On paper the static figure stands alone."""
    picture.page.emulate_media(media="print")
    assert not picture.is_visible()


@pytest.mark.parametrize("chapter", PICTURES.values())
def test_pictures_without_a_script(browser, html, chapter):
    """Without JavaScript the page is as it was: the figure, and nothing that does not work."""
    page = browser.new_page(java_script_enabled=False)
    page.goto((html / f"notebooks/theory/{chapter}.html").as_uri())
    assert (
        page.locator("article img").first.is_visible()
        and not page.locator(".hn-picture").is_visible()
    )
    page.close()


def test_pictures_share_a_page(browser, visit):
    """Two of a kind do not disturb each other; one whose numbers are missing stays hidden, alone,
    and complains."""
    boxes = {}
    for kind in ("masks", "balls"):
        numbers = (
            visit(f"notebooks/theory/{PICTURES[kind]}.html")
            .locator(".hn-picture script")
            .text_content()
        )
        boxes[kind] = (
            f'<div class="hn-picture" data-kind="{kind}" hidden><script type="application/json">{numbers}'
            "</script></div>"
        )
    broken = '<div class="hn-picture" data-kind="path" hidden><script type="application/json">{}</script></div>'
    page = browser.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.set_content(broken + 2 * boxes["masks"] + 2 * boxes["balls"])
    page.add_script_tag(path=_files.project_root() / "book/theme/pictures.js")
    assert [box.is_visible() for box in page.locator(".hn-picture").all()] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert len(complaints) == 1 and "picture path cannot be drawn" in complaints[0]
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids)) == 2
    first, second = page.locator("[data-kind=balls]").all()
    first.get_by_label("one budget").check()
    second.get_by_label("one ball").check()
    assert first.get_by_label("one budget").is_checked()
    page.close()


def test_picture_of_masks_says_what_is_proved(visit):
    """Only with both masks is the triangle better than collapse."""
    box = visit("notebooks/theory/degeneracy.html").locator(".hn-picture")
    better = []
    for wanted in ((False, False), (True, False), (False, True), (True, True)):
        for control, on in zip(box.locator("input").all(), wanted, strict=True):
            control.set_checked(on)
        better.append("triangle is better" in box.locator("output").inner_text())
    assert better == [False, False, False, True]


def test_picture_of_the_path_ends_level(visit):
    """At λ = ∞ all column sums are one."""
    box = visit("notebooks/theory/transport.html").locator(".hn-picture")
    assert "receives 1.00" not in box.locator("output").inner_text()
    box.locator("input").press("End")
    assert "receives 1.00 fair shares, the loneliest 1.00" in box.locator("output").inner_text()


def test_picture_of_the_balls_trades_radii_for_temperatures(visit):
    """One ball each: equal radii. One budget: equal temperatures."""
    box = visit("notebooks/theory/kl-robustness.html").locator(".hn-picture")

    def values():
        return [
            len(
                set(box.locator(f".hn-amount:has-text('{name}') span:last-child").all_inner_texts())
            )
            for name in ("radius", "temperature")
        ]

    assert values() == [1, 3]
    box.get_by_label("one budget").check()
    assert values() == [3, 1]


def test_picture_of_the_mass_leaves_the_prior_behind(visit):
    """At β = 0 the tilt gives the class its prior, and then more and more."""
    box = visit("notebooks/theory/debiasing.html").locator(".hn-picture")
    shares = []
    for key in ("Home", "PageUp", "End"):
        box.locator("input").press(key)
        shares.append([int(n) for n in re.findall(r"(\d+) %", box.locator("output").inner_text())])
    assert shares[0][0] == shares[0][1] and shares[0][2] == 0
    assert (
        shares[0][0] < shares[1][0] < shares[2][0] and len({prior for _, prior, _ in shares}) == 1
    )


def test_picture_of_packing_merges_the_rare(visit):
    """Rare classes share a point when the frequent two hold more than two thirds; a drag turns the
    solids."""
    box = visit("notebooks/theory/packing.html").locator(".hn-picture")
    turn, share = box.locator("input").all()
    merged = []
    for w in (0.66, 0.67):
        share.press("Home")
        while float(share.get_attribute("aria-valuetext")) < w - 1e-6:
            share.press("ArrowRight")
        merged.append("share one point" in box.locator("output").last.inner_text())
    assert merged == [False, True]
    before, solid = turn.input_value(), box.locator("svg").first.bounding_box()
    box.page.mouse.move(solid["x"] + 100, solid["y"] + 100)
    box.page.mouse.down()
    box.page.mouse.move(solid["x"] + 160, solid["y"] + 100)
    box.page.mouse.up()
    assert turn.input_value() != before
