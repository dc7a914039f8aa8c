"""Old addresses: `book/redirects.csv` says where a page, or a part of one, stands now."""

import csv
import html
import json
from collections import defaultdict
from pathlib import Path
from posixpath import dirname, relpath

MOVED = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<title>This page has moved</title><link rel="icon" href="{up}_static/favicon.svg">
<meta name="description" content="This page of the book has moved to another address.">
<meta property="og:title" content="This page has moved">
<meta property="og:image" content="{up}_static/card.png">
<noscript><meta http-equiv="refresh" content="0; url={link}"></noscript>
</head><body><p>This page has moved: <a href="{link}">its new address</a>.</p></body></html>"""
LOST = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<title>No such page</title></head><body><p>No page has this address. The book begins
<a href="{start}">here</a>.</p></body></html>"""
FOLLOW = """<script>{{
const moved = {moved}, part = decodeURIComponent(location.hash.slice(1));
if (moved[part]) location.replace(moved[part]);
else if (moved[""]) location.replace(moved[""] + location.hash);
}}</script>"""


def read(path: Path) -> dict[str, dict[str, str]]:
    """Return the new address of every part of each old page; the part "" is the whole page."""
    moved: dict[str, dict[str, str]] = defaultdict(dict)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            page, _, part = row["old"].partition("#")
            moved[page][part] = row["new"]
    return moved


def write(moved: dict[str, dict[str, str]], pages: Path) -> None:
    """Send the reader of an old address to the new one; links are relative, so it works offline.

    An old page that is gone gets a file of its own; one that stays and has lost a part, a script.

    Raises
    ------
    ValueError
        If a new address is on no page, or a page that is gone has no new address.
    """
    for old, parts in moved.items():
        links = {part: _link(old, new, pages) for part, new in parts.items()}
        target = pages / f"{old}.html"
        if target.is_file():
            text = target.read_text(encoding="utf-8")
        elif "" in links:
            text = MOVED.format(link=html.escape(links[""]), up="../" * old.count("/"))
        else:
            raise ValueError(f"{old} is no page: give redirects.csv a row for all of it")
        target.parent.mkdir(parents=True, exist_ok=True)
        script = FOLLOW.format(moved=json.dumps(links))
        target.write_text(text.replace("</head>", f"{script}</head>", 1), encoding="utf-8")


def ends(pages: Path, start: str, address: str) -> None:
    """Write index.html, which leads to the page `start`, and 404.html, for an address of no page.

    `address` is where the book is published, "" if that is not known.
    """
    texts = {"index": MOVED.format(link=f"{start}.html", up="")}
    texts["404"] = LOST.format(start=f"{address}{start}.html")
    for name, text in texts.items():
        (pages / f"{name}.html").write_text(text, encoding="utf-8")


def _link(old: str, new: str, pages: Path) -> str:
    page, mark, part = new.partition("#")
    if not (pages / f"{page}.html").is_file():
        raise ValueError(f"redirects.csv sends {old} to {page}, which is no page of the book")
    return relpath(f"{page}.html", dirname(old)) + mark + part
