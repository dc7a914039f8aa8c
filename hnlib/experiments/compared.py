"""Yours beside the published: each comparison of a page, at its parameters and at the published."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hnlib.experiments import comparisons
from hnlib.experiments.arms import flat
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.design import Design, names
from hnlib.experiments.found_records import Found, recorded
from hnlib.experiments.words import DASH, TITLES, interval
from hnlib.training import kinds, records
from hnlib.training.config import canonical

COLUMNS = ("comparison", "by")
PARTS = ("effect", "seeds", "verdict")
REPEATED = "choice repeated"  # among an effect's arguments, in the place of its target

Made = dict[tuple, Effect]  # by its arguments: ours, base, metric, block and target


class Compared(NamedTuple):
    """An effect of two arms, and how it is made of what was found for another design.

    `again` returns the effects of all that it is corrected with, as far as they can be made.
    """

    design: Design
    arguments: tuple
    effect: Effect
    family: int
    again: Callable[[Found], Made]


#: What was compared in this process, by the first time
MADE: dict[str, Compared] = {}


def note(design: Design, made: Made, again: Callable[[Found], Made] | None = None) -> None:
    """Note effects that are corrected together, and how to make them again; by default as `family`.

    An effect that was noted in a larger family stays as it was there.
    """
    again = again or functools.partial(family, several=[*made])
    for arguments, effect in made.items():
        key = canonical([design.name, *arguments])
        if key not in MADE or MADE[key].family <= len(made):
            MADE[key] = Compared(design, arguments, effect, len(made), again)


def family(found: Found, several: Iterable[tuple]) -> Made:
    """Return the effects of those arguments whose arms were found, corrected together."""
    whole = [arguments for arguments in several if is_recorded(found, *arguments[:4])]
    effects = comparisons.family(between_arms(found, *arguments) for arguments in whole)
    return dict(zip(whole, effects))


def is_recorded(found: Found, ours, base, metric: str, block: str) -> bool:
    """Return whether both sides have scores by a metric in a block; a side is an arm or two."""
    arms = {*flat((ours, base))}
    if block not in found.design.blocks or not arms <= {*found.design.names(block)}:
        return False
    groups = [found.group(arm, block) for arm in arms]
    return all(metric in one and one[metric].notna().all() for one in groups)


def beside():
    """Return a table of all comparisons made so far: here, and in the published runs.

    What was not published has dashes, such as an arm of your own. Where your data take the place of
    others, both are named. Where nothing was compared, one sentence says so.

    Returns
    -------
    DataFrame or Markdown
        One row a comparison.
    """
    import pandas as pd
    from IPython.display import Markdown

    if not MADE:
        return Markdown("At these parameters this page compares no two arms.")
    rows = []
    for one in [*MADE.values()]:
        row = {"comparison": _title(one), "by": _by(one)}
        row |= {f"{part}, here": value for part, value in zip(PARTS, _said(one.effect))}
        published = _said(_published(one))
        row |= {f"{part}, published": value for part, value in zip(PARTS, published)}
        rows.append(row)
    heads = [*COLUMNS, *(f"{part}, {place}" for place in ("here", "published") for part in PARTS)]
    return pd.DataFrame(rows, columns=heads).set_index(COLUMNS[0])


def first() -> str | None:
    """Return the first comparison of the page in a line, None if it compared nothing."""
    if not MADE:
        return None
    one = next(iter(MADE.values()))
    said, seeds, verdict = _said(one.effect)
    seeds += " seed" if seeds == "1" else " seeds"
    line = f"{_title(one)} by {_by(one)}: {verdict}, {said} on {seeds}"
    return f"{line}; published {_said(_published(one))[0]}" if one.design.changed else line


def _title(one: Compared) -> str:
    ours, base, _, block, target = one.arguments
    title, published = _data(one.design, block)
    renamed = f" (published: {published})" if title != published else ""
    where = f"{one.design.name} {title}{renamed}".strip()
    again = f", {REPEATED}" if target == REPEATED else ""
    return f"{where}: {_worded(ours)} − {_worded(base)}{again}"


def _data(design: Design, block: str) -> tuple[str, str]:
    """Return what a block is called here and in the published runs; by its data if it has no name.

    Both are empty if it has none and its data are the published ones.
    """
    if block or "dataset" not in design.changed:
        return design.title(block), block
    run = kinds.run_class(design.fields["kind"])
    published, here = map(run.dataset_title, design.changed["dataset"])
    return here, published


def _by(one: Compared) -> str:
    metric: str = one.arguments[2]
    return TITLES.get(metric, metric)


def _worded(arm: Any) -> str:
    return arm if isinstance(arm, str) else f"({_worded(arm[0])} − {_worded(arm[1])})"


def _said(effect: Effect | None) -> tuple[str, ...]:
    if effect is None:
        return (DASH,) * len(PARTS)
    return interval(effect), str(len(effect.seeds)), comparisons.verdict(effect)


def _published(one: Compared) -> Effect | None:
    """Return the effect of the same arms in the published runs, None if there is none.

    Their records are quoted; what a page shows beside does not rest on them.
    """
    used = {*records.USED}
    try:
        found = recorded(one.design.name) if one.design.name in names() else None
        *_, block, _ = one.arguments
        if found is None or block not in found.design.blocks:
            return None
        return one.again(found).get(one.arguments)
    finally:
        records.USED.intersection_update(used)


def between_arms(found: Found, ours, base, metric: str, block: str, target: str) -> Effect:
    """Return an effect as `effect` does, which is not noted as one of the page's."""
    first, second = (_gain(found, arm, metric, block) for arm in (ours, base))
    mixed = mixes(found, (ours, base), block)
    return comparisons.between(first, second, metric, target, mixed)


def mixes(found: Found, arms, block: str) -> bool:
    """Return whether the two runs of a seed may come from different processors.

    So they may where yours stand beside tracked ones, which were made elsewhere.
    """
    if found.design.blocks[block].get("mixed", found.design.mixed):
        return True
    several = itertools.product(flat(arms), found.design.seeds)
    keys = {key for arm, seed in several if (key := found.key(arm, seed, block))}
    tracked, *own = found.indices
    return any(index.has(keys - tracked.has(keys)) for index in own)


def _gain(found: Found, arm, metric: str, block: str):
    """Return the rows of an arm, or of the gain of one arm over another, seed by seed."""
    if isinstance(arm, str):
        return found.group(arm, block)
    ours, base = (found.group(one, block).set_index("seed", drop=False) for one in arm)
    return ours.assign(**{metric: ours[metric] - base[metric], "correct": None})
