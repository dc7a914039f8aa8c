"""How long it takes to read a page: what is open on it, in minutes."""

import re

# What is closed on a page: strips, code and words under a title (book/ext/folds.py).
STRIP = re.compile(r"<!-- (end of )?(checks|fold|more)\b[^>]*-->")
HIDDEN = {"hide-input", "remove-input", "remove-cell"}
DISPLAY = re.compile(r"\$\$.+?\$\$", re.S)
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$]+\$", re.S)
DROPDOWN = re.compile(
    r"^(`{3,}|:{3,})\{(?:dropdown\}.*\n|.*\n(?::.*\n)*?:class:.*dropdown.*\n)[\s\S]*?^\1$", re.M
)
DEFINITION = re.compile(r"^: .*\n(?: .*\n)*", re.M)  # of an erratum, whose line opens
EXERCISES = re.compile(r"^## Exercises?\n.*?(?=^## |\Z)", re.M | re.S)
WORD = re.compile(r"\S*\w\S*")


def hidden(cell) -> bool:
    """Return whether the code of a cell is not shown."""
    return bool(HIDDEN & {*cell["metadata"].get("tags", [])})


def figure(cell, part: str, key: str) -> str:
    """Return what the metadata of a cell say of its figure."""
    return cell["metadata"].get("mystnb", {}).get(part, {}).get(key, "")


def opened(notebook, closed=("checks", "fold", "more")):
    """Yield the code cells of a page, and the words between them, that no strip closes."""
    depth = 0  # a strip may stand in what may be left out
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            if not depth:
                yield cell
            continue
        source, end = "".join(cell["source"]), 0
        for strip in STRIP.finditer(source):
            if not depth:
                yield source[end : strip.start()]
            if strip[2] in closed:
                depth += -1 if strip[1] else 1
            end = strip.end()
        if not depth:
            yield source[end:]


def _unfolded(words: str) -> str:
    return re.sub(r"^\s*[`:]{3,}.*$", "", DROPDOWN.sub("", DEFINITION.sub("", words)), flags=re.M)


def _counted(text: str) -> int:
    return len(WORD.findall(FORMULA.sub(" f f f ", text)))


def minutes(notebook) -> float:
    """Return the reading time at 200 words a minute.

    A formula counts as three words, a line of code as eight; text and tables that a cell printed
    count where the notebook is executed.
    """
    words, lines = [], []
    for part in opened(notebook):
        if isinstance(part, str):
            words.append(_unfolded(part))
            continue
        words.append(figure(part, "figure", "caption"))
        for output in part.get("outputs", ()):
            data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
            words.append(data.get("text/markdown", ""))
            if "<table" in (shown := data.get("text/html", "")):
                words.append(re.sub(r"<details.*?</details>|<[^>]*>", " ", shown, flags=re.S))
        if not hidden(part):
            lines += [line for line in "".join(part["source"]).splitlines() if line.strip()]
    return (_counted("\n".join(words)) + 8 * len(lines)) / 200


def minutes_with_pencil(notebook) -> tuple[int, int]:
    """Return the time of a theory chapter: its core, and with all but the checks.

    Mathematics is read at 120 words a minute, a folded proof at 60; a displayed formula counts as
    thirty words, and an exercise takes ten minutes, with its text.
    """
    everything = [*opened(notebook, closed=("checks", "fold"))]
    words = "\n".join(part for part in everything if isinstance(part, str))
    proofs = [found[0] for found in DROPDOWN.finditer(words) if "{prf:proof}" in found[0]]
    core, longer = _studied(opened(notebook)), _studied(everything)
    every = longer / 120 + _mathematics(proofs) / 60 + 10 * words.count("```{exercise}")
    return round(core / 120), round(every)


def with_time(notebook: dict, theory: bool) -> dict:
    """Return a notebook that says under its title how long it takes to read."""
    said = f"Read in {max(1, round(minutes(notebook)))} minutes, without what is folded."
    if theory:
        core, longer = minutes_with_pencil(notebook)
        said = f"{core} minutes for the core, {longer} with proofs, pencil and exercises."
    first, *rest = notebook["cells"]
    title, end, words = "".join(first["source"]).partition("\n")
    first = first | {"source": f"{title}\n\n*{said}*{end}{words}"}
    return notebook | {"cells": [first, *rest]}


def _studied(parts) -> int:
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(_unfolded(part))
        else:
            code = "" if hidden(part) else "".join(part["source"])
            texts += [figure(part, "figure", "caption"), code]
    return _mathematics([EXERCISES.sub("", "\n".join(texts))])


def _mathematics(texts) -> int:
    return _counted(DISPLAY.sub(" f" * 30, "\n".join(texts)))
