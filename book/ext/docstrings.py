r"""Docstrings as they are written in hnlib, in the form Sphinx reads.

A docstring is plain text: paragraphs separated by blank lines, bullets that start with ``- ``, code
between backquotes (single or double), formulas between dollars, ``$...$`` inside a line and
``$$...$$`` as a paragraph of its own. It is a raw string where a formula has a backslash. A name
such as ``hnlib.negatives.tilted`` between single backquotes becomes a link, and must exist.
"""

import inspect
import re

# What must not be touched while the rest is escaped: roles, code, formulas.
TOKEN = re.compile(
    r"(:[\w:]+:`[^`]+`|``.+?``|`[^`\n]+(?:\n[^`\n]+)*`|(?<![\\\w])\$[^$\n]+(?:\n[^$\n]+)*\$(?!\w))",
    re.S,
)
BULLET = re.compile(r"\s*- ")


def convert(text: str) -> str:
    """The docstring ``text`` as reStructuredText."""
    return "\n\n".join(_paragraph(paragraph) for paragraph in re.split(r"\n[ \t]*\n", text))


def _paragraph(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith(".. "):
        return text
    if stripped.startswith("$$") and stripped.endswith("$$") and len(stripped) > 4:
        indent = re.match(r"\s*", text.strip("\n"))[0]
        lines = (line.strip() for line in stripped[2:-2].strip().splitlines())
        return "\n".join([f"{indent}.. math::", "", *(f"{indent}   {line}" for line in lines)])
    pieces = TOKEN.split(text)
    pieces[::2] = [re.sub(r"([*|])|(?<=\w)_(?!\w)", r"\\\g<0>", piece) for piece in pieces[::2]]
    pieces[1::2] = [_token(piece) for piece in pieces[1::2]]
    return _bullets("".join(pieces))


def _token(piece: str) -> str:
    if piece.startswith((":", "``")):
        return piece
    inner = " ".join(piece[1:-1].split())
    if piece.startswith("$"):
        return f"\\ :math:`{inner}`\\ "
    if re.fullmatch(r"hnlib(\.(?!_)\w+)+", inner):  # what is private has no place to link to
        return f"\\ :py:obj:`{inner}`\\ "
    return f"\\ ``{inner}``\\ "


def _bullets(text: str) -> str:
    """A blank line between a list and the sentence that introduces it on the line before."""
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if BULLET.match(line)), 0)
    return (
        "\n".join([*lines[:first], "", *lines[first:]])
        if first and lines[first - 1].strip()
        else text
    )


def _process(app, what, name, obj, options, lines):
    if what == "data" and inspect.getdoc(obj) == inspect.getdoc(type(obj)):
        # a constant without a comment of its own: what Python says about its type helps nobody
        lines.clear()
    lines[:] = convert("\n".join(lines)).split("\n")


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
