"""How long it takes to read what is open on a page."""

import re

STRIP = re.compile(r"(<!-- (?:end of )?(?:checks|fold|more)\b[^>]*-->)")  # book/ext/folds.py
HIDDEN = {"hide-input", "remove-input", "remove-cell"}
DROPDOWN = re.compile(
    r"^(`{3,}|:{3,})\{(?:dropdown\}.*\n|.*\n(?::.*\n)*?:class:.*dropdown.*\n)[\s\S]*?^\1$", re.M
)


def hidden(cell) -> bool:
    """Return whether the code of a cell is not shown."""
    return bool(HIDDEN & {*cell["metadata"].get("tags", [])})


def opened(notebook):
    """Yield the code cells of a page, and the words between them, that no strip closes."""
    depth = 0  # a strip may stand in what may be left out
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            if not depth:
                yield cell
            continue
        for part in STRIP.split("".join(cell["source"])):
            if STRIP.fullmatch(part):
                depth += -1 if "end of" in part else 1
            elif not depth:
                yield part


def minutes(notebook) -> int:
    """Return the reading time at 200 words a minute; a line of code counts as eight words."""
    words = 0
    for part in opened(notebook):
        if isinstance(part, str):
            words += len(DROPDOWN.sub("", part).split())
        elif not hidden(part):
            words += 8 * len("".join(part["source"]).splitlines())
    return max(1, round(words / 200))


def below_title(notebook: dict, words: str) -> dict:
    """Return a notebook with words below its title."""
    first, *rest = notebook["cells"]
    title, end, text = "".join(first["source"]).partition("\n")
    first = first | {"source": f"{title}\n\n{words}{end}{text}"}
    return notebook | {"cells": [first, *rest]}
