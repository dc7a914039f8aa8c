"""All checks of a statement in one strip that folds open, and claim codes that link.

What stands in a chapter between ``<!-- checks -->`` and ``<!-- end of checks -->``, words, code and
the lines of `hnbook.claims.check`, becomes a closed strip that says how many checks there are,
the largest discrepancy and the smallest of a false variant. After theorems of the same section it is a
✓ beside their numbers, which opens it. Code that only a strip or a figure needs
folds under a title of its own, ``<!-- fold: title -->`` to ``<!-- end of fold -->``, and so does what
a reader may leave out, words, strips and figures, ``<!-- more: title -->`` to ``<!-- end of more -->``.
A claim's code in the text of a chapter, R2 say, is a link to its row on *Claims and errata*. The errata there
are lines that open; the row of a claim links to the one that has its code.
"""

import csv
import html
import re
from functools import partial
from pathlib import Path

from docutils import nodes

LEDGER = "notebooks/errata"
STRIP = re.compile(r"<!-- (checks|fold: [^>]*) -->(.*?)<!-- end of (?:checks|fold) -->", re.S)
MORE = re.compile(r"<!-- (more: [^>]*) -->(.*?)<!-- end of more -->", re.S)
MARK = re.compile(r"<!-- (?:end of )?(?:checks|fold|more)\b.*?-->")
# what a page's strips follow: sections, statements with a number, and the strips themselves
PLACE = re.compile(
    r"<h2>|(?P<number><span class=\"caption-number\">(?:Theorem|Proposition|Corollary|Lemma|Definition) "
    r"[^<]*</span>)|<details class=\"hn-checks\"><summary>(?P<says>.*?)</summary>",
    re.S,
)
ENTRY = re.compile(
    r"<dt>(.*?)</dt>((?:<dd>.*?</dd>\s*)+(?:<!-- fold: (?:(?!<!--).)*<!-- end of fold -->)?)", re.S
)
LINE = re.compile(r'<div class="hn-claim"[^>]*>.*?</div>', re.S)
CODE = r'(<span class="hn-claim-id">)(\w+)(</span>)'
NO_LINK = nodes.reference, nodes.title, nodes.literal, nodes.literal_block, nodes.math, nodes.raw


def summary(lines: list[str]) -> str:
    """Say what a closed strip holds: its claims, and the numbers of all checks together."""
    every = "".join(lines)

    def numbers(name: str) -> list[float]:
        return [float(x) for x in re.findall(rf' data-{name}="(.*?)"', every)]

    def short(value: float) -> str:
        return re.sub(r"e([-+])0*(?=\d)", r"e\1", f"{value:.1g}").replace("-", "−")

    codes = ", ".join(dict.fromkeys(code for _, code, _ in re.findall(CODE, every)))
    title = re.search(r'<span class="hn-claim-title">(.*?)</span>', every, re.S)[1]
    instances, worst, controls = (numbers(x) for x in ("instances", "value", "control"))
    said = f"{title}: verified" if len(lines) == 1 else f"verified {len(lines)} ways"
    said += f" on {sum(instances):,.0f} instance{'s' * (sum(instances) != 1)}, "
    said += f"worst {short(max(worst))}" if max(worst) > 0 else "no violation"
    if controls:
        said += f", the false variant{'s' * (len(controls) > 1)}: {short(min(controls))}"
    return f'<span class="hn-claim-id">{codes}</span> {said}'


def fold(page: str, found: re.Match) -> str:
    """Return one strip. Raises ValueError if it begins in one section and ends in another."""
    kind, inside = found[1], found[2]
    crossing = inside.count("<section") != inside.count("</section")
    if crossing or re.search("<!-- (checks|fold: |more: )", inside):
        raise ValueError(f"{page}: a strip of {kind} is not closed within its section")
    what, _, title = kind.partition(": ")
    if what == "checks":
        lines = LINE.findall(inside)
        title = summary(lines) if lines else "Checks"
    name = {"checks": "", "fold": " hn-code-only", "more": " hn-more"}[what]
    return f'<details class="hn-checks{name}"><summary>{title}</summary>{inside}</details>'


def folded(page: str, body: str) -> str:
    """Return the page with its strips. Raises ValueError for one without a beginning or an end."""
    for part in (STRIP, MORE):  # a strip may stand in what may be left out
        body = part.sub(partial(fold, page), body)
    if left := MARK.search(body):
        raise ValueError(f"{page}: {left[0]} stands alone; a strip needs a beginning and an end")
    return ticked(body)


def ticked(body: str) -> str:
    """Put a ✓ beside the numbers of the statements that a strip of checks follows in its section.

    They are those since the last strip, or if there are none, those of the last strip.
    """
    inserted, ends, checked = [], [], False  # (from, to, what); of the numbers
    for i, place in enumerate(PLACE.finditer(body)):
        if place["says"] is None:
            ends = ends if place["number"] and not checked else []
            ends, checked = ends + [place.end()] * bool(place["number"]), False
        elif ends:
            says, checked = html.escape(re.sub("<.*?>", "", html.unescape(place["says"]))), True
            tick = f'<a class="hn-tick" href="#strip-{i}" title="{says}" aria-label="{says}">✓</a>'
            strip = f'<details class="hn-checks hn-beside"><summary id="strip-{i}">{place["says"]}</summary>'
            inserted += [*((end, end, tick) for end in ends), (*place.span(), strip)]
    for start, end, text in reversed(sorted(inserted, key=lambda part: part[0])):
        body = body[:start] + text + body[end:]
    return body


def erratum(found: re.Match) -> str:
    """An entry of a list of definitions as a line that opens, with the code in it that runs.

    A link inside the line would be a control in a control, so that of its claim follows the text.
    """
    link = re.search(r"<a[^>]*#claim-(\w+).*?</a>", found[1])
    name = f' id="erratum-{link[1]}"' if link else ""
    line, text = (
        re.sub(tag, "", part) for tag, part in zip((r"</?a\b[^>]*>", "</?dd>"), found.groups())
    )
    text += f"<p>Claim {link[0]}</p>" if link else ""
    return f'<details class="hn-erratum"><summary{name}>{line}</summary>{text}</details>'


def strips(app, pagename, templatename, context, doctree):
    body = context.get("body", "")
    if pagename == LEDGER:
        body = ENTRY.sub(erratum, re.sub("</?dl.*?>", "", body))
    body = folded(pagename, body)
    if pagename.startswith("notebooks/"):
        ledger = html.escape(app.builder.get_relative_uri(pagename, LEDGER))
        linked = rf'<a class="hn-claim-id" href="{ledger}#claim-\2">\2</a>'
        body = LINE.sub(lambda line: re.sub(CODE, linked, line[0]), body)
    context["body"] = body


def _may_link(node) -> bool:
    while node is not None and not isinstance(node, NO_LINK):
        node = node.parent
    return node is None


def link_codes(app, doctree, docname):
    if not docname.startswith("notebooks/"):
        return
    with open(Path(app.srcdir) / "book/results/claims.csv", newline="", encoding="utf-8") as file:
        codes = "|".join(re.escape(row["id"]) for row in csv.DictReader(file))
    code = re.compile(rf"(?<![\w.-])({codes})(?![\w-]|\.\d)")
    ledger = app.builder.get_relative_uri(docname, LEDGER)
    for text in [text for text in doctree.findall(nodes.Text) if _may_link(text)]:
        parts = [nodes.Text(part) for part in code.split(text.astext())]
        for i in range(1, len(parts), 2):
            link = dict(refuri=f"{ledger}#claim-{parts[i]}", internal=True, classes=["hn-code"])
            parts[i] = nodes.reference("", parts[i], **link)
        text.parent.replace(text, parts)
