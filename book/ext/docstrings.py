r"""Formulas and links in docstrings, which are otherwise numpydoc's.

``$...$`` is a formula, as in the rest of the book, and a name such as `hnlib.negatives.tilted` between
backquotes is a link.
"""

import inspect
import re

CODE = r"``.+?``|:[\w:]+:`[^`]+`"  # stays as it is
DISPLAY = re.compile(r"^( *)\$\$(.+?)\$\$ *$", re.S | re.M)
INLINE = re.compile(
    rf"({CODE})|(?<![\\\w])\$([^$\n]+(?:\n[^$\n]+)*?)\$(?!\w)|`(hnlib(?:\.(?!_)\w+)+)`", re.S
)


def _inline(match: re.Match) -> str:
    if match[1]:
        return match[1]
    if match[2]:
        return f"\\ :math:`{' '.join(match[2].split())}`\\ "
    return f":py:obj:`{match[3]}`"


def _display(match: re.Match) -> str:
    lines = [line.strip() for line in match[2].strip().splitlines()]
    return "\n".join([f"{match[1]}.. math::", "", *(f"{match[1]}   {line}" for line in lines), ""])


def process(app, what, name, obj, options, lines):
    if what == "data" and inspect.getdoc(obj) == inspect.getdoc(type(obj)):
        lines.clear()  # what Python says of a constant's type
    text = DISPLAY.sub(_display, "\n".join(lines))
    # as a list, not as citations: those of several docstrings on one page would have the same target
    text = re.sub(r"(\[[\w-]+\])_(?!\w)", r"\1", text)
    text = re.sub(r"^( *)\.\. (\[[\w-]+\] )", r"\1*  \2", text, flags=re.M)
    lines[:] = INLINE.sub(_inline, text).split("\n")
