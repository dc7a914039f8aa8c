"""Old addresses: `book/redirects.csv` says where a page, or a part of one, stands now."""

import csv
import html
import json
from collections import defaultdict
from pathlib import Path
from posixpath import dirname, relpath
from string import Template


def filled(template: str, **parts: str) -> str:
    """Return a file of ``book/templates`` with its parts filled in."""
    path = Path(__file__).parents[1] / f"templates/{template}"
    return Template(path.read_text(encoding="utf-8")).substitute(parts)


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
            text = filled("moved.html", link=html.escape(links[""]), up="../" * old.count("/"))
        else:
            raise ValueError(f"{old} is no page: give redirects.csv a row for all of it")
        target.parent.mkdir(parents=True, exist_ok=True)
        script = filled("follow.html", moved=json.dumps(links))
        target.write_text(text.replace("</head>", f"{script}</head>", 1), encoding="utf-8")


def ends(pages: Path, start: str, address: str) -> None:
    """Write index.html, which leads to the page `start`, and 404.html, for an address of no page.

    `address` is where the book is published, "" if that is not known.
    """
    (pages / "index.html").unlink(missing_ok=True)  # that of jupyter-book has no title
    write({"index": {"": start}}, pages)
    lost = filled("lost.html", start=f"{address}{start}.html")
    (pages / "404.html").write_text(lost, encoding="utf-8")


def _link(old: str, new: str, pages: Path) -> str:
    page, mark, part = new.partition("#")
    if not (pages / f"{page}.html").is_file():
        raise ValueError(f"redirects.csv sends {old} to {page}, which is no page of the book")
    return relpath(f"{page}.html", dirname(old)) + mark + part
