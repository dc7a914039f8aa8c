"""What a search engine, a shared link and a reader of pages look for.

Each page gets a description, the book's card and an entry for citing it; beside the pages stand
`index.html`, which is the first of them, `404.html` and, where the pages have an address, `sitemap.txt`
and `robots.txt`. *Next* leads from chapter to chapter; fine print is read from its chapter.
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
FINE_PRINT = re.compile(r"theory/.*-(more|cost|finite|simulated)$")
VIEWCODE = re.compile(
    r'(<div class="viewcode-block"[^>]*>)\n(<a class="viewcode-back"[^>]*>\[docs\]</a>)\n'
)
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
    """The first sentences of the first paragraph but the reading time, as many as have room."""
    for paragraph in doctree.findall(nodes.paragraph):
        text, parent = " ".join(_words(paragraph).split()), paragraph.parent
        while parent is not None and not isinstance(parent, ASIDE):
            parent = parent.parent
        if parent is None and text and {*map(type, paragraph.children)} != {nodes.emphasis}:
            break
    else:
        return ""
    if len(text) <= LENGTH:
        return re.sub(":$", ".", text)
    sentences = list(re.finditer(r"(?<! al)[.?!:](?= )", text[:LENGTH]))
    if sentences and sentences[-1].end() >= 60:
        return re.sub(":$", ".", text[: sentences[-1].end()])
    return text[:LENGTH].rpartition(" ")[0] + " …"


def _title(context) -> str:
    """A page's title in words, with its number."""
    return html.unescape(re.sub("<[^>]+>", "", context["title"]))


def _meta(app, title: str, about: str, image: str) -> str:
    tags = {"og:type": "article", "og:site_name": app.config.html_title, "og:title": title}
    tags |= {"og:description": about, "og:image": image}
    escaped = {name: html.escape(text) for name, text in tags.items()}
    lines = [f'<meta property="{name}" content="{text}">' for name, text in escaped.items()]
    lines.append(f'<meta name="description" content="{html.escape(about)}">')
    lines.append('<meta name="twitter:card" content="summary_large_image">')
    return "\n".join(lines)


def entry(app, page: str, title: str, date: str) -> str:
    """The BibTeX entry of a page, from its title with its number."""
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
    return "\n".join([f"@misc{{hnlib-{key},", *lines, "}"])


def _neighbours(app, pagename, context):
    """Let *Next* and *Previous* pass over fine print."""
    line = [page for page in toc() if page == pagename or not FINE_PRINT.search(page)]
    if pagename not in line:
        return
    place = line.index(pagename)
    for name, page in ("prev", line[place - 1 : place]), ("next", line[place + 1 : place + 2]):
        for target in page:
            title = app.builder.render_partial(app.env.titles[target])["title"]
            context[name] = {"link": app.builder.get_relative_uri(pagename, target), "title": title}


def _sidebar(pagename, context):
    """Leave out the numbers of fine print in the list of pages; its statements keep theirs."""
    listed = context["generate_toctree_html"]
    fine = [page.rpartition("/")[2] for page in toc() if FINE_PRINT.search(page)]
    names = rf'(?:[^"]*/)?(?:{"|".join(map(re.escape, fine))})\.html'
    target = f"(?:{names}|#)" if FINE_PRINT.search(pagename) else names

    def without(kind, *arguments, **options):
        shown = listed(kind, *arguments, **options)
        if kind == "raw":
            return shown
        return re.sub(rf'(<a class="[^"]*" href="{target}">)\s*\d+\. ', r"\1", str(shown))

    context["generate_toctree_html"] = without


def _appended(app, page, context):
    """Name the chapter of fine print above its title."""
    pages = toc()[: toc().index(page)]
    chapter = next(other for other in reversed(pages) if not FINE_PRINT.search(other))
    title = app.builder.render_partial(app.env.titles[chapter])["title"]
    link = f'<a href="{app.builder.get_relative_uri(page, chapter)}">{title}</a>'
    head = f'<p class="hn-appendix">Fine print of <em>{link}</em></p>\n<h1>'
    context["body"] = context["body"].replace("<h1>", head, 1)


def _page(app, pagename, templatename, context, doctree):
    if "generate_toctree_html" in context:  # 404, search and the sources have the list, too
        _sidebar(pagename, context)
    source = pagename.startswith("_modules/")  # by sphinx.ext.viewcode
    if doctree is None and not source:
        return
    base = app.config.html_baseurl or context["pathto"]("", resource=True)
    numbered, image = _title(context), f"{base}_static/card.png"
    if source:
        about = f"The source of {numbered}, a module of the library of {app.config.html_title}."
        context["metatags"] = _meta(app, numbered, about, image)
        # viewcode puts a block's marks on lines of their own, which the listing would show as empty ones
        context["body"] = VIEWCODE.sub(r"\1\2", context["body"])
        return
    _neighbours(app, pagename, context)
    title = re.sub(r"^\d+\.\s*", "", numbered)
    if FINE_PRINT.search(pagename):
        _appended(app, pagename, context)
    about = description(doctree) or f"{title}: a page of {app.config.html_title}."
    context["metatags"] += _meta(app, title, about, image)
    if pagename.startswith("notebooks/"):
        bibtex = html.escape(entry(app, pagename, numbered, context["last_updated"]))
        cite = (
            '<details class="hn-checks hn-code-only hn-cite"><summary>Cite this chapter</summary>'
            f'<div class="highlight-none notranslate"><div class="highlight"><pre>{bibtex}\n</pre></div></div></details>'
        )
        before, end, after = context["body"].rpartition("</section>")
        context["body"] = f"{before}{cite}{end}{after}"


def _lost(app):
    """The page for lost links, in the book's frame."""
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
