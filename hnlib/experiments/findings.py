"""What an experiment shows: tables, effects, the map of its sharpness, and what was chosen.

Each function takes what was recorded for a design, of which `found` has the reading.
"""

from __future__ import annotations

import itertools

from hnlib.experiments import compared, comparisons
from hnlib.experiments.arms import flat
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.found_records import Found
from hnlib.experiments.sharpness_map import Map
from hnlib.experiments.words import interval, percent


def effect(
    found: Found, ours, base, metric: str | None = None, block="", target="these images"
) -> Effect:
    """Return the difference of two arms in points, paired by seed; `target` as in `between`.

    A pair of arms stands for the gain of its first arm over its second; the effect is then an
    interaction.
    """
    arguments = _arguments(found, ours, base, metric, block, target)
    effect = compared.between_arms(found, *arguments)
    compared.note(found.design, {arguments: effect})
    return effect


def _arguments(found: Found, ours, base, metric: str | None, block: str, target: str) -> tuple:
    """Return what identifies a comparison of arms in an experiment."""
    arms = (one if isinstance(one, str) else tuple(one) for one in (ours, base))
    return *arms, metric or found.design.metric(block), block, target


def effects(
    found: Found,
    pairs,
    metric: str | None = None,
    target: str = "these images",
    blocks=None,
    corrected: bool = True,
) -> dict[str, Effect]:
    """Return the effects of pairs by title of block and name, if `corrected` as one family.

    `pairs` may be named; each pair is compared in those `blocks` that have both arms.
    """
    if not isinstance(pairs, dict):  # the third of a pair is its name
        name = "{} − {}" if len(pairs) > 1 else ""
        pairs = {(*pair, name.format(*pair))[2]: pair[:2] for pair in pairs}
    asked = {
        f"{found.design.title(block)} {words}".strip(): _arguments(
            found, pair[0], pair[1], metric, block, target
        )
        for block in blocks or found.design.blocks
        for words, pair in pairs.items()
        if block in found.design.blocks_with(pair)
    }
    alone = {name: effect(found, *arguments) for name, arguments in asked.items()}
    if not corrected:
        return alone
    made = together(alone)
    compared.note(found.design, {asked[name]: one for name, one in made.items()})
    return made


def together(results: dict) -> dict:
    """Correct the effects among results together; levels are returned unchanged."""
    alone = {name: one for name, one in results.items() if isinstance(one, Effect)}
    if all(one.family == 1 for one in alone.values()):
        alone = dict(zip(alone, comparisons.family(alone.values())))
    return results | alone


def lines(found: Found, base: str | None = None, names=None, metrics=None) -> list[dict]:
    """Return a line for each block and arm that has runs, for a table or a data frame.

    Its scores are mean ± standard deviation; with a `base`, its gain over that arm by the metric
    that decides, corrected together with the others of the block.
    """
    design, written = found.design, []
    for block in design.blocks:
        title = design.title(block)
        wanted = [name for name in names or design.names(block) if name in design.names(block)]
        groups = {name: rows for name in wanted if len(rows := found.group(name, block))}
        gains = {}
        if others := [name for name in groups if base and name != base]:
            gains = effects(found, {name: (name, base) for name in others}, blocks=[block])
        for name, rows in groups.items():
            line = {"block": title} if len(design.blocks) > 1 else {}
            line[""] = name
            if base:
                gain = gains.get(f"{title} {name}".strip())
                line[f"over {base}"] = interval(gain) if gain else ""
            line["seeds"] = len(rows)
            for metric in metrics or (*design.beside, design.metric(block)):
                line[metric] = percent(rows[metric])
            written.append(line)
    return written


def map_of(found: Found, block: str = "", arms: str = "t*") -> Map:
    """Return the map of the matching arms, which vary temperature and tilt."""
    rows = found.rows(block, found.design.matching(arms, block))
    return Map(rows, found.design.primary)


def waiting(found: Found, several, blocks=None) -> int:
    """Return how many runs of groups of arms have no record, in blocks that have all the arms.

    An arm may be a pattern; an arm that is not chosen yet counts with all its runs.
    """
    design = found.design
    named = {
        (name, seed, block)
        for arms in several
        for block in design.blocks_with(arms)
        if block in (blocks or design.blocks)
        for arm in flat(arms)
        for name, seed in itertools.product(design.like(arm, block), design.seeds)
    }
    keys = [found.key(*one) for one in named]
    recorded = found.have(filter(None, keys))
    return sum(key not in recorded for key in keys)


def edges(found: Found) -> str:
    """Return a sentence on chosen numbers that are the smallest or largest tried."""
    design, said = found.design, []
    for block, name in itertools.product(design.blocks, design.chosen):
        arm = found.arm(name, block) if name in design.chosen_in(block) else None
        if arm is None:
            continue
        source, among = found.candidates(name, block)
        tried = [_numbers(source.arm(x, block)) for x in among]
        for number, value in _numbers(arm).items():
            values = {one[number] for one in tried if number in one}
            if len(values) > 1 and value in (min(values), max(values)):
                where = f"{design.title(block)}, " if block else ""
                said.append(f"{where}{name}, {number} = {value:g}")
    return f"Chosen at the edge of what was tried: {'; '.join(said) or 'nothing'}."


def _numbers(arm: dict) -> dict[str, float]:
    """Return the fields and options of an arm that are numbers."""
    every = arm | arm.get("options", {})
    return {
        k: v for k, v in every.items() if isinstance(v, int | float) and not isinstance(v, bool)
    }
