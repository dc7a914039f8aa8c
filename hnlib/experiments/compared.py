"""Yours beside the published: each comparison of a page, at its parameters and at the published."""

from __future__ import annotations

from typing import Any

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.design import Design
from hnlib.experiments.found_records import Found, recorded
from hnlib.experiments.words import DASH, TITLES, interval
from hnlib.training import records
from hnlib.training.config import canonical

#: What was compared in this process, in this order: the arguments of each effect, and the effect
MADE: dict[str, tuple[Design, tuple, Effect]] = {}
COLUMNS = ("comparison", "by")
PARTS = ("effect", "seeds", "verdict")


def note(design: Design, arguments: tuple, effect: Effect) -> None:
    """Note an effect of two arms: `arguments` are ours, base, metric, block and target."""
    MADE[canonical([design.name, *arguments])] = design, arguments, effect


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
    for design, arguments, effect in [*MADE.values()]:
        row = {"comparison": _title(design, arguments), "by": _by(arguments)}
        row |= {f"{part}, here": value for part, value in zip(PARTS, _said(effect))}
        published = _said(_published(design, arguments))
        row |= {f"{part}, published": value for part, value in zip(PARTS, published)}
        rows.append(row)
    heads = [*COLUMNS, *(f"{part}, {place}" for place in ("here", "published") for part in PARTS)]
    return pd.DataFrame(rows, columns=heads).set_index(COLUMNS[0])


def first() -> str | None:
    """Return the first comparison of the page in a line, None if it compared nothing."""
    if not MADE:
        return None
    design, arguments, effect = next(iter(MADE.values()))
    said, seeds, verdict = _said(effect)
    seeds += " seed" if seeds == "1" else " seeds"
    line = f"{_title(design, arguments)} by {_by(arguments)}: {verdict}, {said} on {seeds}"
    published = f"; published {_said(_published(design, arguments))[0]}" if design.changed else ""
    return line + published


def _title(design: Design, arguments: tuple) -> str:
    ours, base, _, block, _ = arguments
    return f"{f'{design.name} {block}'.strip()}: {_worded(ours)} − {_worded(base)}"


def _by(arguments: tuple) -> str:
    return TITLES.get(arguments[2], arguments[2])  # pyright: ignore[reportReturnType]


def _worded(arm: Any) -> str:
    return arm if isinstance(arm, str) else f"({_worded(arm[0])} − {_worded(arm[1])})"


def _said(effect: Effect | None) -> tuple[str, ...]:
    if effect is None:
        return (DASH,) * len(PARTS)
    return interval(effect), str(len(effect.seeds)), comparisons.verdict(effect)


def _published(design: Design, arguments: tuple) -> Effect | None:
    """Return the effect of the same arms in the published runs, None if there is none.

    Their records are quoted; what a page shows beside does not rest on them.
    """
    used = {*records.USED}
    try:
        return between_arms(recorded(design.name), *arguments)
    except (ValueError, LookupError, OSError):  # no such file, arm or block, or its runs wait
        return None
    finally:
        records.USED.intersection_update(used)


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
