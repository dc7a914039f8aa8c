"""What a search engine and a shared link look for: each page's description, and the book's card."""

import html
import re
import textwrap

from docutils import nodes

import hnlib

LENGTH = 200  # of a description: what a search engine shows of it
SHORTEST = 40
OF_THE_BOOK = "a page of a book on hard negatives in contrastive learning"


def description(doctree) -> str:
    """Return the first paragraph below the title without a formula, cut to `LENGTH`."""
    for paragraph in doctree.findall(nodes.paragraph):
        plain = not any(paragraph.findall(nodes.math))
        if plain and isinstance(paragraph.parent, nodes.section | nodes.document):
            return textwrap.shorten(paragraph.astext(), LENGTH, placeholder=" …")
    return ""


def describe(app, pagename, templatename, context, doctree):
    if doctree is None and not pagename.startswith("_modules/"):
        return
    base = app.config.html_baseurl or context["pathto"]("", resource=True)
    title = html.unescape(re.sub("<[^>]+>", "", context["title"]))
    about = description(doctree) if doctree else f"Source code of the module {title}"
    about = html.escape(about if len(about) >= SHORTEST else f"{about or title}: {OF_THE_BOOK}")
    tags = {"og:type": "article", "og:site_name": app.config.html_title}
    tags |= {"og:title": re.sub(r"^\d+\.\s*", "", title), "og:image": f"{base}_static/card.png"}
    lines = [f'<meta property="{key}" content="{html.escape(x)}">' for key, x in tags.items()]
    lines.append(f'<meta name="description" property="og:description" content="{about}">')
    lines.append('<meta name="twitter:card" content="summary_large_image">')
    context["metatags"] = "\n".join([context.get("metatags", ""), *lines])


def show_foot(app, pagename, templatename, context, doctree):
    """Say at a page's foot which version it is, under which licence, and how to cite it."""
    cite = html.escape(context["pathto"]("book/references").rstrip("#"))  # that of itself is "#"
    context["theme_extra_footer"] = (
        f"Version {hnlib.__version__}. Code and text: MIT licence. "
        f'<a href="{cite}#how-to-cite">How to cite</a>'
    )
