"""Yours beside the published: each comparison of a page, at its parameters and at the published."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.design import Design
from hnlib.experiments.found_records import Found, recorded
from hnlib.experiments.words import DASH, TITLES, interval
from hnlib.training import records
from hnlib.training.config import canonical

COLUMNS = ("comparison", "by")
PARTS = ("effect", "seeds", "verdict")


class Compared(NamedTuple):
    """An effect of two arms, and what it is corrected with: arguments of each, its own among them.

    Arguments are ours, base, metric, block and target.
    """

    design: Design
    arguments: tuple
    effect: Effect
    family: tuple[tuple, ...]


#: What was compared in this process, by the first time
MADE: dict[str, Compared] = {}


def note(design: Design, effects: dict[str, tuple[tuple, Effect]]) -> None:
    """Note effects that are corrected together, by any name: arguments and effect of each.

    An effect that was noted in a larger family stays as it was there.
    """
    family = tuple(arguments for arguments, _ in effects.values())
    for arguments, effect in effects.values():
        key = canonical([design.name, *arguments])
        if key not in MADE or len(MADE[key].family) <= len(family):
            MADE[key] = Compared(design, arguments, effect, family)


def beside():
    """Return a table of all comparisons made so far: here, and in the published runs.

    What was not published has dashes, such as an arm of your own.

    Returns
    -------
    DataFrame
        One row a comparison.
    """
    import pandas as pd

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
    ours, base, _, block, _ = one.arguments
    title = one.design.title(block)
    return f"{f'{one.design.name} {title}'.strip()}: {_worded(ours)} − {_worded(base)}"


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

    It is corrected with those of its family that were published. Their records are quoted; what a
    page shows beside does not rest on them.
    """
    used, found = {*records.USED}, {}
    try:
        for arguments in one.family:
            with suppress(ValueError, LookupError, OSError):  # no file, arm, block or run
                found[arguments] = between_arms(recorded(one.design.name), *arguments)
    finally:
        records.USED.intersection_update(used)
    if len(found) > 1:
        found = dict(zip(found, comparisons.family(found.values())))
    return found.get(one.arguments)


def between_arms(found: Found, ours, base, metric: str, block: str, target: str) -> Effect:
    """Return an effect as `effect` does, which is not noted as one of the page's."""
    first, second = (_gain(found, arm, metric, block) for arm in (ours, base))
    mixed = found.design.blocks[block].get("mixed", found.design.mixed)
    return comparisons.between(first, second, metric, target, mixed)


def _gain(found: Found, arm, metric: str, block: str):
    """Return the rows of an arm, or of the gain of one arm over another, seed by seed."""
    if isinstance(arm, str):
        return found.group(arm, block)
    ours, base = (found.group(one, block).set_index("seed", drop=False) for one in arm)
    return ours.assign(**{metric: ours[metric] - base[metric], "correct": None})
