"""Tables on a page: text from data is escaped, text meant as markup is `Markup`."""

from __future__ import annotations

import html
import re
from functools import partial

import pandas as pd
import torch

from hnlib import experiments, methods
from hnlib.experiments import evidence, null_files
from hnlib.experiments.words import DASH, TITLES, difference, format_value, interval, percent
from hnlib.profile import profile_loss, summary

__all__ = ["DASH", "TITLES", "Markup", "Table", "difference", "format_value", "interval", "myst"]
__all__ += ["added", "percent", "table", "term"]
EMPTY = "Not measured."  # a table without rows


class Markup(str):
    """Text that is markup, HTML in a notebook and MyST on a generated page; never from data."""


def term(word: str) -> Markup:
    """Return a word of the glossary; on a page it carries its definition (book/ext/words.py)."""
    return Markup(f'<a class="hn-term">{html.escape(word)}</a>')


def myst(value) -> str:
    """Return a value as part of a line of MyST, escaped unless it is `Markup`."""
    line = " ".join(str(value).splitlines())  # docutils, too, ends a line at a vertical tab
    text = re.sub(r"[ \t]+", " ", line).strip(" ")  # a hard space stays
    if isinstance(value, Markup):
        return text
    text = re.sub(r"[\\`*_<>\[\]$|{}&~#]", r"\\\g<0>", text)
    return re.sub(r"^(\d*)([-+=.:)])(?=\s|$|\2)", r"\1\\\2", text)  # a list, a rule, a fence


class Table:
    """A table that a notebook shows."""

    def __init__(self, frame: pd.DataFrame, words: bool, caption: str):
        self.frame, self.words, self.caption = frame, words, caption

    def __repr__(self) -> str:
        return EMPTY if self.frame.empty else self.frame.to_string(index=False)

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return f"<p>{EMPTY}</p>"
        frame, caption = self.frame, _html(self.caption)
        frame = frame.astype(object).map(_html).rename(columns=_html)
        style = "table mathjax_ignore" + " words" * self.words
        text = frame.to_html(index=False, border=0, classes=style, escape=False)
        text = text.replace("\u00a0[", " [")  # on a phone an interval may have a line of its own
        caption = f"<caption>{caption}</caption>" if caption else ""
        return text.replace(">", f">\n  {caption}", 1) if caption else text


def _html(value) -> str:
    if isinstance(value, Markup):
        return value
    if value is None or value is pd.NA or value != value:
        return DASH
    text = f"{value:g}".replace("-", "−") if isinstance(value, float) else str(value)
    return html.escape(text, quote=False)


def table(rows, *, words: bool = False, caption: str = "") -> Table:
    """Return rows (a data frame, or dictionaries) as a table that a notebook shows.

    A column named as a metric has its title. None and NaN are shown as –; text is escaped unless it
    is `Markup`, such as a `term`. With `words`, cells are flush left.
    """
    if not isinstance(rows, pd.DataFrame):
        rows = list(rows)
        # as objects: columns of pandas' own strings would take a term for a text
        heads = pd.Index(list(dict.fromkeys(head for row in rows for head in row)), dtype=object)
        rows = pd.DataFrame(rows, columns=heads, dtype=object)
    titles = pd.Index([TITLES.get(head, head) for head in rows.columns], dtype=object)
    return Table(rows.set_axis(titles, axis=1), words, caption)


def added(found, temperatures: str) -> Table | None:
    """Return a table of the arms that `add` and `loss` brought beside the best temperature.

    It has the sharpness of each, as `hnlib profile` measures it, and its rate. Validation chooses
    the temperature of each block among the arms that match `temperatures`. None if no arms were
    added.
    """
    design, rows = found.design, []
    for block in design.blocks if design.added else ():
        names, base = design.added, found.best(temperatures, "validation", block)
        metric = design.metric(block)
        gains = experiments.effects(found, {x: (x, base) for x in names}, metric, blocks=[block])
        for name, gain in zip([base, *names], [None, *gains.values()]):
            rate = found.run(name, design.seeds[0], block).resolved().lr
            row = {"": name, "γ": _sharpness(found, name, block), "learning rate": f"{rate:g}"}
            row[metric] = percent(found.group(name, block)[metric])
            row |= {"over the best temperature": interval(gain) if gain else ""}
            rows.append(({"block": design.title(block)} if len(design.blocks) > 1 else {}) | row)
    caption = "Your arms; γ by hnlib profile; 95 % intervals of a block hold together."
    return table(rows, caption=caption) if rows else None


def _sharpness(found, name: str, block: str) -> str:
    """Return the γ of an arm's loss on the recorded batches, nothing where the profile has none."""
    run = found.run(name, found.design.seeds[0], block)
    path, own_name = found.design.given.get("loss", (None, ""))
    own = null_files.method_of(path, own_name, run)
    if own:
        loss = partial(own.function, **own.passed)
    else:
        loss = methods.build(run.method, **run.options).pairs
    try:
        batches = [torch.from_numpy(z) for z in evidence.stages().values()]
        said = summary([profile_loss(loss, *z, pairs=z.shape[1]) for z in batches])
    except (ValueError, TypeError):  # it wants labels, classes, or more than pairs
        return ""
    return said.partition(":")[0].removeprefix("γ = ") if said.startswith("γ") else ""
