"""What a page may run: the theme's scripts, and nothing that came with data.

What comes from a record, a data set's name or a notebook's output stands in the body of a page.
Tables escape it; Markdown that a cell displays loses the HTML in it here; and a
Content-Security-Policy is the last wall: scripts in the page around the body are allowed by their
hash, and files beside the page by their place; a script in the body, a handler in an attribute, a
``javascript:`` link and a script from elsewhere do not run. It holds from ``file://`` too, where
browsers disagree on what 'self' is.
"""

import base64
import hashlib
import re
import secrets
from html.parser import HTMLParser
from pathlib import Path

from docutils import nodes

CHARSET = '<meta charset="utf-8" />'
POLICY = (
    "default-src 'self' file: data:; script-src 'self' file: {hashes}; "
    "style-src 'self' file: 'unsafe-inline'; object-src 'none'; base-uri 'none'"
)
# In the body of every notebook, for buttons that this book does not have.
THEBE = (
    r"<script( type=\"text/x-thebe-config\")?>\s*(kernelName = '\w+'|{\s*requestKernel.*?)</script>"
)
# Around the body of each page until the policy is written; no data can know it.
MARK = f"<!-- {secrets.token_hex(16)} -->"


class _Scripts(HTMLParser):
    """The scripts and the handlers that stand in a page."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.text, self.inline, self.handlers = None, set(), set()

    def handle_starttag(self, tag, attributes):
        if tag == "script" and "src" not in dict(attributes):
            self.text = ""
        self.handlers |= {text for name, text in attributes if name.startswith("on")}

    def handle_data(self, data):
        if self.text is not None:
            self.text += data

    def handle_endtag(self, tag):
        if tag == "script" and self.text is not None:
            self.inline.add(self.text)
            self.text = None


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def policy(page: str) -> str:
    """The policy of a page of which the body was taken out."""
    found = _Scripts()
    found.feed(page)
    hashes = [_hash(script) for script in sorted(found.inline)]
    if found.handlers:
        hashes += ["'unsafe-hashes'", *(_hash(script) for script in sorted(found.handlers))]
    return POLICY.format(hashes=" ".join(hashes))


def protect(page: str) -> str:
    """A page with its policy; ValueError: there is no place for one."""
    before, *body, after = page.split(MARK) if MARK in page else ("", page)
    if (before + after).count(CHARSET) != 1:
        raise ValueError(f"no {CHARSET} to put a Content-Security-Policy behind")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy(before + after)}" />'
    return "".join([before, *body, after]).replace(CHARSET, f"{CHARSET}{meta}", 1)


def _markdown(app, doctree):
    """HTML in the Markdown that a cell displays becomes the text it was written in."""
    for output in doctree.findall(nodes.container):
        if output.get("mime_type") == "text/markdown":
            for raw in list(output.findall(nodes.raw)):
                text = nodes.Text(raw.astext())
                inside = isinstance(raw.parent, nodes.TextElement)
                raw.replace_self(text if inside else nodes.paragraph("", "", text))


def _mark(app, pagename, templatename, context, doctree):
    if "body" in context:
        body = re.sub(THEBE, "", context["body"], flags=re.S)
        context["body"] = f"{MARK}{body}{MARK}"


def _finish(app, exception):
    if exception is None and app.builder.format == "html":
        static = Path(app.outdir) / "_static"
        for path in sorted(Path(app.outdir).rglob("*.html")):
            page = path.read_text(encoding="utf-8")
            # index.html forwards to the first page, and is not the theme's
            if static not in path.parents and (MARK in page or CHARSET in page):
                path.write_text(protect(page), encoding="utf-8")


def setup(app):
    """Called by Sphinx."""
    app.connect("doctree-read", _markdown)
    app.connect("html-page-context", _mark, priority=990)
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
