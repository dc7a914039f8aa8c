"""One toggle for each figure or table: the hidden code that it comes from, closed, below it.

A chapter's cells are short, so a figure may need several hidden ones (``hide-input``). On the page
those without an output of their own wait for the next output of hidden code, or, at the end of a
section, join the one before, so that nothing is shut that explains nothing; outputs in a row share
one toggle. The first hidden cell is the chapter's set-up and stays where it is, unless there is one
under that title. What stands in a strip or under a title of its own (`checks`) is closed already and
is not closed twice. Notebooks keep all their cells.
"""

import re

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.transforms.post_transforms import SphinxPostTransform

SET_UP, COMPUTED = "Set-up", "How this was computed"
OPENS = re.compile(r"^(<!-- )?(checks|fold: .*?)( -->)?$")
CLOSES = re.compile(r"^(<!-- )?end of (checks|fold)( -->)?$")


def _part(cell, name):
    found = (part for part in cell.children if part.get("nb_element") == f"cell_code_{name}")
    return next(found, None)


def _toggle(title: str, code: nodes.Element) -> HideCodeCellNode:
    """A closed toggle around the ``code`` of one cell."""
    toggle = HideCodeCellNode("", code, prompt_show=title, prompt_hide=title)
    toggle["classes"].append("below-input" if title == COMPUTED else "above-input")
    return toggle


def _add(code: nodes.Element, more: list[nodes.Element], before: bool) -> None:
    """The code of other cells before or behind that of one, in one block."""
    block = next(code.findall(nodes.literal_block))
    others = [next(other.findall(nodes.literal_block)).astext() for other in more]
    text = "\n\n".join([*others, block.astext()] if before else [block.astext(), *others])
    block.rawsource, block.children = text, []
    block.append(nodes.Text(text))


class Walk:
    """The cells of a page, in order: what waits for an output, and the code of the last toggle."""

    def __init__(self, document):
        self.set_up, self.inside, self.waiting = False, False, []
        self.here = self.last = self.explained = None  # of this section; of the page; its cell
        for node in list(document.findall()):
            if isinstance(node, nodes.section):
                self.join(self.here)
                self.here = None
            elif isinstance(node, nodes.comment | nodes.raw):
                text = node.astext().strip()
                self.inside = bool(OPENS.match(text)) or (self.inside and not CLOSES.match(text))
                self.set_up = self.set_up or "fold: Set-up" in text
            elif isinstance(node, nodes.container) and node.get("nb_element") == "cell_code":
                self.cell(node)
        self.join(self.here or self.last)

    def join(self, code):
        """What waits joins ``code``, if there is any in the section."""
        if self.waiting and code is not None:
            _add(code, self.waiting, before=False)
            self.waiting = []

    def cell(self, cell):
        code, output = _part(cell, "source"), _part(cell, "output")
        hidden = cell.get("hide_mode") == "input"
        if hidden:
            del cell["hide_mode"]
        shown = code is not None and not hidden
        if self.inside or shown or cell.children == []:
            return
        if output is None and not self.set_up:
            self.set_up, self.here, self.last = True, code, code
            cell.replace(code, _toggle(SET_UP, code))
        elif output is None:
            self.waiting.append(code)
            cell.parent.remove(cell)
        elif code is not None or self.waiting:
            self.explain(cell, code)

    def explain(self, cell, code):
        """A toggle behind the output of ``cell``; one for outputs that stand next to each other."""
        place = cell.parent.index(cell)
        before = cell.parent[place - 1] if place else None
        if before is not None and before is self.explained:
            before.remove(before[-1])
            self.waiting.insert(0, self.last)
        if code is None:
            code = self.waiting.pop()
        else:
            cell.remove(code)
        _add(code, self.waiting, before=True)
        cell.append(_toggle(COMPUTED, code))
        self.set_up, self.explained, self.waiting = True, cell, []
        self.here = self.last = code


class Join(SphinxPostTransform):
    """Before MyST-NB makes a toggle of each cell (priority 199)."""

    default_priority = 190
    formats = ("html",)

    def run(self, **kwargs):
        Walk(self.document)


def setup(app):
    """Called by Sphinx."""
    app.add_post_transform(Join)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
