"""The index of the search, read from the finished pages: sections, statements and claims with their text.

It takes the place of Sphinx's, in the same file, which the search page loads as a script; so a book
that is read from files is searched too. `book/theme/search.js` ranks what it finds.
"""

import json
import re
from pathlib import Path

from bs4 import BeautifulSoup
from page_metadata import fractions, letter

CODE = re.compile(r"<(pre|script|style)\b.*?</\1>", re.S)
LEFT_OUT = {"headerlink", "hn-tick", "hn-cite", "cell_input", "hn-hint"}
SHAPES = (
    r"\\(?:begin|end)\{\w+\*?\}|"
    r"\\(?:sqrt|overline|big\w*|left|right|q?quad|math\w+|text|operatorname)(?![a-z])"
)
TITLES = {"proof": "admonition-title", "exercise": "admonition-title"}
TITLES |= {"hn-claim": "hn-claim-title", "sig": "sig-name"}
CLAIM = re.compile("^claim-")


def _text(element) -> str:
    text = re.sub(SHAPES, "", fractions(element.get_text(" ")))
    text = re.sub(r"\\([a-zA-Z]+)\s*", letter, text)
    text = " ".join(re.sub(r"\\\W|[{}$]", "", text).split())
    return re.sub(r"\s+([,.;:)\]])|([(\[])\s+", r"\1\2", text)


def _left_out(element) -> bool:
    if "caption-number" in element.get("class", ()):
        return element.find_parent("figcaption") is not None
    strip = element.name == "summary" and "hn-erratum" not in element.parent.get("class", ())
    return strip or not LEFT_OUT.isdisjoint(element.get("class", ()))


def _title(element):
    """Return the title of a section, a statement, a claim or a name; None for other elements."""
    if element.name == "section":
        return element.find(["h1", "h2", "h3", "h4"], recursive=False)
    if element.name == "tr":
        return element.find(id=CLAIM)
    for name in element.get("class", ()) if element.get("id") else ():
        if name in TITLES:
            return element.find(class_=TITLES[name])
    return None


def entries(body: str) -> list[list[str]]:
    """Return [anchor, title, text] for each part of a page's body in HTML."""
    article = BeautifulSoup(CODE.sub(" ", body), "html.parser")
    for element in article.find_all(_left_out):
        element.decompose()
    found = []
    # inner ones first: the text of an entry inside another is the inner one's
    for element in reversed(article.find_all(["section", "div", "tr", "dt"])):
        if (title := _title(element)) is None:
            continue
        code = element.find_all(class_="hn-claim-id", recursive=False)
        words = " ".join(_text(part) for part in (*code[:1], title))
        anchor = element.get("id") or title["id"]
        title.extract()
        whole = element.find_next_sibling("dd") if element.name == "dt" else element.extract()
        found.append([anchor, words, _text(whole) if whole else ""])
    return found[::-1]


def _part(app, page: str) -> Path:
    return Path(app.doctreedir, f"{page}.search.json")


def _read(app, pagename, templatename, context, doctree):
    if doctree is not None:
        _part(app, pagename).write_text(json.dumps(entries(context["body"])), encoding="utf-8")


def _index(app, error):
    if error or app.builder.name != "html":
        return
    index = [
        [f"{page}.html", title.astext(), json.loads(_part(app, page).read_text(encoding="utf-8"))]
        for page, title in app.env.titles.items()
    ]
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    Path(app.outdir, "searchindex.js").write_text(f"Search.setIndex({text})", encoding="utf-8")


def _replace(app):
    # Sphinx's own index, which nothing reads
    app.builder.index_page = app.builder.dump_search_index = lambda *page: None


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", _replace)
    app.connect("html-page-context", _read, priority=990)  # in the processes that write the pages
    app.connect("build-finished", _index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
