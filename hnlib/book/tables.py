"""How a table stands on a page: what comes from data is escaped, what we mean as markup says so."""

from __future__ import annotations

import html
import re

import pandas as pd

from hnlib.results.comparisons import Effect, between, spread

DASH = "–"  # what was not measured
TITLES = {"knn": "kNN", "svm": "SVM"}  # of metrics that are not called what they are in a record


class Markup(str):
    """Text that is meant as markup, HTML in a notebook and MyST on a generated page: ours, never
    read from data. All other text is escaped where it is shown."""


def math(formula: str) -> Markup:
    r"""A formula in a head or a cell of a table, as MathJax finds it: `math(r"\beta")`."""
    return Markup(f'<span class="math notranslate nohighlight">\\({html.escape(formula)}\\)</span>')


def code(text: str) -> Markup:
    """A command in a cell of a table."""
    return Markup(f"<code>{html.escape(text)}</code>")


def myst(value) -> str:
    """A value as a piece of one line of MyST in which nothing is markup but `Markup`."""
    text = re.sub(r"[ \t\r\n]+", " ", str(value)).strip(" ")  # a hard space stays
    if isinstance(value, Markup):
        return text
    text = re.sub(r"[\\`*_<>\[\]$|{}&~#]", r"\\\g<0>", text)
    return re.sub(r"^(\d*)([-+=.:)])(?=\s|$|\2)", r"\1\\\2", text)  # a list, a rule, a fence


def percent(shares) -> str:
    """Mean ± standard deviation (over n − 1) of `shares` in percent; what is NaN does not count."""
    values = 100 * pd.Series(shares, dtype=float).dropna()
    return spread(values) if len(values) else DASH


def gap(ours: pd.DataFrame, base: pd.DataFrame, metric: str = "linear") -> str:
    """`comparisons.between` two groups of runs, on these test images, as text; – where they have no
    seed in common; nothing in the line of `base` itself."""
    if not {*ours["seed"]} & {*base["seed"]}:
        return DASH
    if set(ours["record"]) == set(base["record"]):
        return ""
    return interval(between(ours, base, metric))


def interval(effect: Effect) -> str:
    """An effect in points and its 95 % interval, +1.7 [+0.6, +2.8]; one seed has no interval. An
    end that one digit would round to zero has two: whether zero is inside is to be seen."""
    low, high = (f"{x:+z.{1 + (abs(x) < 0.05)}f}" for x in (effect.low, effect.high))
    ends = f"\u00a0[{low},\u00a0{high}]" if effect.df else ""
    return f"{effect.difference:+z.1f}{ends}".replace("-", "\u2212")


def scores(runs: pd.DataFrame, metrics=("knn", "linear")) -> dict:
    """How many seeds a group of runs has, and its accuracies: the middle of a row of a table."""
    return {"seeds": len(runs)} | {TITLES.get(m, m): percent(runs[m]) for m in metrics}


def summary(frame: pd.DataFrame, by: list[str], metrics=("knn", "linear")) -> pd.DataFrame:
    """Runs that differ in their seed alone as one row: the columns `by`, how many `seeds`, and each
    metric as mean ± standard deviation in percent. Rows stand in the order of `frame`."""
    rows = []
    for _, runs in frame.groupby(list(by), sort=False, dropna=False):
        rows.append(runs[list(by)].iloc[0].to_dict() | scores(runs, metrics))
    return pd.DataFrame(rows)


def with_last(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with what their learning curves show after training, as columns `last_collision`
    and so on."""
    ends = [history[-1] if history else {} for history in runs["history"]]
    return runs.join(pd.DataFrame(ends, index=runs.index).add_prefix("last_"))


class Table:
    """A table that a notebook shows."""

    def __init__(self, frame: pd.DataFrame, words: bool, caption: str, empty: str):
        self.frame, self.words, self.caption, self.empty = frame, words, caption, empty

    def __repr__(self) -> str:
        return self.empty if self.frame.empty else self.frame.to_string(index=False)

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return f"<p>{_html(self.empty)}</p>"
        frame = self.frame.astype(object).map(_html).rename(columns=_html)
        style = "table mathjax_ignore" + " words" * self.words  # `math` is found all the same
        text = frame.to_html(index=False, border=0, classes=style, escape=False)
        caption = f"<caption>{_html(self.caption)}</caption>" if self.caption else ""
        return text.replace(">", f">\n  {caption}", 1) if caption else text


def _html(value) -> str:
    if isinstance(value, Markup):
        return value
    if value is None or value is pd.NA or value != value:
        return DASH
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return html.escape(text, quote=False)


def table(rows, *, words: bool = False, caption: str = "", empty: str = "Not measured.") -> Table:
    """The rows (a data frame, or dictionaries) as a table: what is None or NaN is –, without rows
    stands `empty`. Texts are escaped unless they are `Markup` (`math`, `code`). `words`: cells of
    text, flush left."""
    if isinstance(rows, pd.DataFrame):
        return Table(rows, words, caption, empty)
    rows = list(rows)
    # as objects: columns of pandas' own strings would take a formula for a text
    heads = pd.Index(list(dict.fromkeys(head for row in rows for head in row)), dtype=object)
    return Table(pd.DataFrame(rows, columns=heads, dtype=object), words, caption, empty)
