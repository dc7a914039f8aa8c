"""What a search engine, a shared link and a reader of pages look for.

Each page gets a description, the book's card and an entry for citing it; beside the pages stand
`index.html`, which is the first of them, `404.html` and, where the pages have an address, `sitemap.txt`
and `robots.txt`.
"""

import html
import re
from pathlib import Path

from docutils import nodes
from docutils.utils.math import tex2unichar

import hnlib
from builder import portable_notebooks
from builder.build import toc
from hnlib.notebooks.execute import root

ASIDE = nodes.Admonition, nodes.admonition, nodes.table, nodes.figure, nodes.list_item
LETTERS = tex2unichar.mathalpha | tex2unichar.mathord | tex2unichar.mathopen | tex2unichar.mathclose
SIGNS = tex2unichar.mathrel | tex2unichar.mathbin | tex2unichar.mathop | {"dots": "…", "cdot": "·"}
SIGNS |= {"lVert": "‖", "rVert": "‖"}
OPERAND = r"\s*(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\\[a-zA-Z]+|[^\s\\{}]))"
FRACTION = re.compile(rf"\\[dt]?frac(?![a-z]){OPERAND}{OPERAND}")
LENGTH = 200  # of a description: what a search engine shows of it


def fractions(tex: str) -> str:
    """Write fractions in a line, a sum in brackets: `a/b`, `(1+β)/t`."""

    def line(found: re.Match) -> str:
        parts = (found[1] or found[2], found[3] or found[4])
        sums = (re.search(r"[-+=]", re.sub(r"[_^](\{[^{}]*\}|.)", "", part)) for part in parts)
        return "/".join(f"({part})" if many else part for part, many in zip(parts, sums))

    while (plain := FRACTION.sub(line, tex)) != tex:
        tex = plain
    return tex


def letter(command: re.Match) -> str:
    """Return the sign that a command of TeX stands for, or its name; nothing for an accent."""
    name = command[1]
    if name in tex2unichar.mathaccent:
        return ""
    return LETTERS.get(name) or f" {SIGNS.get(name, name)} "


def _words(node) -> str:
    """The text of a node, its formulas without their markup."""
    if isinstance(node, nodes.math):
        return re.sub(r"\\(\w+)\s*", letter, fractions(node.astext())).translate(
            str.maketrans("", "", "\\{}$")
        )
    return "".join(map(_words, node.children)) if node.children else node.astext()


def description(doctree) -> str:
    """Return the first sentences of the first paragraph but the reading time, as many as fit."""
    for paragraph in doctree.findall(nodes.paragraph):
        text, parent = " ".join(_words(paragraph).split()), paragraph.parent
        while parent is not None and not isinstance(parent, ASIDE):
            parent = parent.parent
        if parent is None and text and {*map(type, paragraph.children)} != {nodes.emphasis}:
            break
    else:
        return ""
    text = re.sub(":$", ".", text)
    ends = [found.end() for found in re.finditer(r"(?<! al)[.?!:](?= |$)", text[: LENGTH + 1])]
    if ends and ends[-1] >= 60:
        return re.sub(":$", ".", text[: ends[-1]])
    return text if len(text) <= LENGTH else text[:LENGTH].rpartition(" ")[0] + " …"


CITE = (
    '<details class="hn-checks hn-code-only hn-cite"><summary>Cite this chapter</summary><div '
    'class="highlight-none notranslate"><div class="highlight"><pre>{}</pre></div></div></details>'
)


def metatags(app, title: str, about: str, image: str) -> str:
    """Return the tags of a page's head, for search engines and cards of shared links."""
    tags = {"og:type": "article", "og:site_name": app.config.html_title, "og:title": title}
    tags |= {"og:description": about, "og:image": image}
    lines = [
        f'<meta property="{name}" content="{html.escape(text)}">' for name, text in tags.items()
    ]
    lines.append(f'<meta name="description" content="{html.escape(about)}">')
    return "\n".join([*lines, '<meta name="twitter:card" content="summary_large_image">'])


def entry(app, page: str, title: str, date: str) -> str:
    """Return the BibTeX entry of a page, from its title with its number."""
    url, book = portable_notebooks.repository(root()), rf"\emph{{{app.config.html_title}}}"
    number, title = re.fullmatch(r"(?:(\d+)\. )?(.*)", title).groups()
    fields = {
        "author": f"{{{app.config.author}}}",
        "title": title,
        "howpublished": f"Chapter {number} of {book}" if number else f"In {book}",
        "year": re.sub(r"\D", "", app.config.copyright),
        "note": f"version {hnlib.__version__}, {date}",
    }
    if address := app.config.html_baseurl:
        fields["url"] = f"{address}{page}.html"
    elif portable_notebooks.is_set(url):
        fields["url"] = url
    key = re.sub(r"\W", "", page.rpartition("/")[2])
    lines = [f"  {name} = {{{text}}}," for name, text in fields.items()]
    return "\n".join([f"@misc{{hnlib-{key},", *lines, "}\n"])


def _page(app, pagename, templatename, context, doctree):
    source = pagename.startswith("_modules/")  # by sphinx.ext.viewcode
    if doctree is None and not source:
        return
    base = app.config.html_baseurl or context["pathto"]("", resource=True)
    numbered = html.unescape(re.sub("<[^>]+>", "", context["title"]))
    title = re.sub(r"^\d+\.\s*", "", numbered)
    about = f"{title}: a page of the book {app.config.html_title}."
    if not source:
        about = description(doctree) or about
    tags = metatags(app, title, about, f"{base}_static/card.png")
    context["metatags"] = context.get("metatags", "") + tags
    if pagename.startswith("notebooks/"):
        bibtex = html.escape(entry(app, pagename, numbered, context["last_updated"]))
        before, end, after = context["body"].rpartition("</section>")
        context["body"] = f"{before}{CITE.format(bibtex)}{end}{after}"


def _lost(app):
    """Yield the page for lost links, in the book's frame."""
    body = "<h1>No such page</h1><p>Perhaps it was renamed.</p>"
    return [("404", {"title": "No such page", "body": body}, "page.html")]


def _site(app, error):
    if error or app.builder.name != "html":
        return
    out, base = Path(app.outdir), app.config.html_baseurl
    first, *_ = pages = [page for page in toc() if page in app.env.titles]
    # a lost link may come from any folder, from where only whole addresses lead on
    for name, page, address in ("index", first, f"{first}.html"), ("404", "404", base or "/"):
        text = (out / f"{page}.html").read_text(encoding="utf-8")
        text = text.replace("<head>", f'<head><base href="{address}">', 1)
        (out / f"{name}.html").write_text(text, encoding="utf-8")
    if base:
        urls = "".join(f"{base}{page}.html\n" for page in pages)
        (out / "sitemap.txt").write_text(urls, encoding="utf-8")
        (out / "robots.txt").write_text(f"Sitemap: {base}sitemap.txt\n", encoding="utf-8")


def _version(app, config):
    config.html_theme_options["extra_footer"] = f"Version {hnlib.__version__}"


def setup(app):
    """Called by Sphinx."""
    app.connect("config-inited", _version)
    app.connect("html-page-context", _page, priority=950)
    app.connect("html-collect-pages", _lost)
    app.connect("build-finished", _site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
