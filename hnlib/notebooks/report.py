"""An executed notebook as one file of HTML that opens alone, offline too."""

from __future__ import annotations

import base64
import html
import re
from importlib import metadata
from pathlib import Path

from hnlib import _files
from hnlib.notebooks import plain_markdown, two_texts
from hnlib.notebooks.execute import execution_metadata, name, relative_path, root

STYLE = """
body { max-width: 54rem; margin: 2rem auto; padding: 0 1rem; font: 17px/1.55 system-ui, sans-serif;
  color: #1d1d1f; background: #fff }
figure { margin: 1.5rem 0 } figcaption { font-size: .92em; color: #444 }
svg, img { max-width: 100%; height: auto }
pre { overflow-x: auto; font-size: .85em; background: #f4f4f6; padding: .6rem }
table { border-collapse: collapse; font-size: .92em; display: block; overflow-x: auto }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
blockquote { margin: 1rem 0; padding: .1rem 1rem; border-left: 3px solid #b8b8c0; color: #444 }
summary { cursor: pointer; color: #555 }
"""
MATH = "window.MathJax = {svg: {fontCache: 'global'}}"
STRIP = re.compile(r"<!-- (end of )?(checks|fold|more)(?:: (.*?))? -->")
HIDDEN = {"hide-input", "remove-input"}
LISTED = re.compile(r"^[\s-]*(?:root|file): (\S+)", re.M)
#: What is shown of an output: the first of these that it has
SHOWN = ("image/svg+xml", "image/png", "text/html", "text/markdown", "text/plain")


def of_run(made: Path, page: Path) -> str:
    """Write the report of an executed page; return where it is, and the first comparison."""
    inside = page.relative_to(root()) if page.is_relative_to(root()) else page
    written = relative_path(write(made, inside.with_suffix("").as_posix(), name(page)))
    first = execution_metadata(made).get("first")
    return f"{written}\n{first}" if first else written


def write(notebook: Path, page: str, title: str) -> Path:
    """Write the report of an executed notebook beside it; return its path.

    Figures stand in the file, with their captions; code that the page hides folds open. References
    have the numbers of the built book, if there is one, else titles.
    """
    import nbformat

    toc = (root() / "_toc.yml").read_text(encoding="utf-8")
    listed = (root() / f"{page}.md" for page in LISTED.findall(toc))  # those of prose, too
    every = {*root().glob("notebooks/**/*.md"), *(path for path in listed if path.is_file())}
    pages = sorted(path.relative_to(root()).with_suffix("").as_posix() for path in every)
    plain_markdown.read_labels(root() / "_build/html", pages)
    body = content(nbformat.read(notebook, as_version=4), page)
    scripts = f"<script>{MATH}</script>\n<script>{_mathjax()}</script>" if r"\(" in body else ""
    head = '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">'
    head += f"\n<title>{html.escape(title)}</title>\n<style>{STYLE}</style>"
    text = f'<!doctype html>\n<html lang="en">\n{head}\n<main>\n{body}\n</main>\n{scripts}\n'
    target = notebook.with_suffix(".html")
    _files.write_atomically(target, text.encode())
    return target


def content(node, page: str) -> str:
    """Return the HTML of the cells of a notebook."""
    parts = []
    for cell in node.cells:
        if cell.cell_type == "markdown":
            parts.append(_markdown(cell.source, page))
        elif "remove-cell" not in (tags := cell.metadata.get("tags", [])):
            code = f"<pre>{html.escape(cell.source)}</pre>"
            hidden = HIDDEN & {*tags} or cell.source == two_texts.BESIDE_CODE
            parts.append(f"<details><summary>Code</summary>{code}</details>" if hidden else code)
            parts.append(_outputs(cell, page))
    return "\n".join(parts)


def _markdown(text: str, page: str) -> str:
    """Return HTML of MyST; what the page folds is a closed strip."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    def strip(mark: re.Match) -> str:
        title = mark[3] or "Checks"
        return "\n\n</details>\n\n" if mark[1] else f"\n\n<details><summary>{title}</summary>\n\n"

    def math(tex: str, options: dict) -> str:
        tex = html.escape(tex.strip())
        return rf"\[{tex}\]" if options["display_mode"] else rf"\({tex}\)"

    made = MarkdownIt("commonmark", {"html": True}).enable("table")
    made.use(dollarmath_plugin, renderer=math, double_inline=True)
    return made.render(plain_markdown.plain(STRIP.sub(strip, text), page))


def _outputs(cell, page: str) -> str:
    """Return the outputs of a cell, in a figure if it has a caption."""
    figure = cell.metadata.get("mystnb", {})
    alt = figure.get("image", {}).get("alt", "")
    shown = "\n".join(_output(one, page, " ".join(alt.split())) for one in cell.outputs)
    if caption := figure.get("figure", {}).get("caption"):
        said = _markdown(caption, page)
        return f"<figure>{shown}\n<figcaption>{said}</figcaption></figure>"
    return shown


def _output(output, page: str, alt: str) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    kind = next((one for one in SHOWN if one in data), "")
    text = data.get(kind, "")
    if kind.startswith("image"):  # as a picture: two drawings may name their parts alike
        content = text if kind == "image/png" else base64.b64encode(text.encode()).decode()
        content = re.sub(r"\s", "", content)
        return f'<img alt="{html.escape(alt)}" src="data:{kind};base64,{content}">'
    if kind == "text/html":
        return text
    if kind == "text/markdown":
        return _markdown(text, page)
    return f"<pre>{html.escape(text)}</pre>" if text.strip() else ""


def _mathjax() -> str:
    """Return the script that sets formulas; without its package they stay TeX."""
    try:
        every = metadata.files("sphinx-mathjax-offline") or ()
    except metadata.PackageNotFoundError:
        return ""
    found = [one for one in every if one.name == "tex-svg.js"]
    text = found[0].locate().read_text("utf-8") if found else ""  # pyright: ignore[reportAttributeAccessIssue]
    return text.replace("</script", r"<\/script")
