"""Arms as a file and its reader make them: points of grids, options, and arms of your own.

An arm is a dictionary of fields of runs. Its name says what it is, at any parameters: a grid names
its points anew, and what would make a name false is refused.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from hnlib.experiments.evidence import one_of
from hnlib.training import config

SCHEMA = ("extends", "blocks", "mixed", "primary", "matters", "fresh")  # no fields of runs


class Point(NamedTuple):
    """A point of a changed grid: its values of what was changed, and the published points."""

    name: str
    values: dict[str, Any]
    published: tuple[str, ...]


def merged(base: dict, more: dict) -> dict:
    """Return fields updated with others; options of a method are merged one by one."""
    options = base.get("options", {}) | more.get("options", {})
    return base | more | ({"options": options} if options else {})


def points(known, name: str, over: dict[str, list], **fields) -> list[tuple[str, dict]]:
    """Return names and arms of a grid; a key that is no field of a run or an arm is an option.

    A name may also have the sharpness, ``{gamma:g}``, of its temperature and tilt.
    """
    made = []
    for values in itertools.product(*over.values()):
        point = dict(zip(over, values))
        sharpness = {}
        if "{gamma" in name:
            sharpness["gamma"] = (1 + point["beta"]) / point["temperature"]
        rest = {k: v for k, v in point.items() if k in known or k in SCHEMA}
        options = {k: v for k, v in point.items() if k not in rest}
        arm = merged(fields, rest | ({"options": options} if options else {}))
        made.append((name.format(**point, **sharpness), arm))
    return made


def named(grid: dict) -> list[str]:
    """Return what a grid varies and its names say; only this can have other values."""
    said = grid["name"].replace("{gamma", "{temperature}{beta}{gamma")  # it says both
    return [key for key in grid["over"] if re.search(rf"{{{key}[:}}]", said)]


def varied(grids: Iterable[dict]) -> dict[str, list]:
    """Return what grids vary and name, with all values of each."""
    values: dict[str, list] = {}
    for grid in grids:
        for key in named(grid):
            listed = values.setdefault(key, [])
            listed += [value for value in grid["over"][key] if value not in listed]
    return values


def check_grid(known: Iterable[str], grid: Any) -> None:
    """Raise ValueError unless a grid has one or more values for keys that are known."""
    if not isinstance(grid, dict) or not grid:
        raise ValueError(f'grid must be like {{"temperature": [0.05, 0.1]}}, got {grid!r}')
    for key, given in grid.items():
        one_of([x for x in known if x not in SCHEMA], key, "no grid here varies")
        if not isinstance(given, list) or not given:
            raise ValueError(f"grid must have a list of values of {key}, got {given!r}")
        if twice := [x for i, x in enumerate(given) if x in given[:i]]:
            raise ValueError(f"grid has {key} = {twice[0]!r} twice; give each value once")
        numbers = [x for x in given if type(x) in (int, float)]
        if key == "beta" and "temperature" in known and min(numbers, default=0) <= -1:
            raise ValueError(
                f"grid must have beta above -1, got {min(numbers)}: the sharpness "
                "(1 + beta)/temperature, over which it is drawn, is positive"
            )


def check_options(known: Iterable[str], options: Any) -> None:
    """Raise ValueError unless options are a dictionary of options that are known."""
    if not isinstance(options, dict) or not options:
        raise ValueError(f'options must be like {{"temperature": 0.1}}, got {options!r}')
    for key in options:
        one_of(sorted(known), key, "no method here has an option")


def values(grids: list[dict], given: dict[str, list]) -> dict[str, list]:
    """Return what a grid that is given changes in those of a file, in the types of their values."""
    of_file = varied(grids)
    typed = {
        key: [_alike(key, value, of_file[key]) for value in some]
        for key, some in given.items()
        if key in of_file
    }
    lists = {key: [grid["over"][key] for grid in grids if key in named(grid)] for key in typed}
    return {key: some for key, some in typed.items() if any(old != some for old in lists[key])}


def changed_values(grids: list[dict], changed: dict) -> dict[str, list]:
    """Return the values of grids: those of a changed grid, and a changed field or option alone.

    Raises ValueError if one is given both ways.
    """
    of_grid, known = changed.get("grid", {}), varied(grids)
    alone = {k: [v] for k, v in (changed | changed.get("options", {})).items() if k in known}
    if twice := of_grid.keys() & alone.keys():
        key = min(twice)
        raise ValueError(f"{key} is given twice, as {alone[key][0]!r} and in grid; give one")
    return of_grid | alone


def _alike(key: str, value: Any, others: list) -> Any:
    """Return a value in the type of the others, of which names are made."""
    kinds = {type(one) for one in others}
    if type(value) in kinds:
        return value
    if type(value) in (int, float) and (kinds & {int, float}):
        (kind,) = kinds & {int, float}
        if kind(value) == value:
            return kind(value)
    shown = ", ".join(repr(one) for one in others[:3])
    raise ValueError(f"grid must have values of {key} like {shown}, got {value!r}")


def regridded(
    known, grids: list[dict], arms: dict[str, dict[str, dict]], over: dict[str, list]
) -> tuple[dict[str, dict[str, dict]], dict[str, tuple[str, ...]], list[Point]]:
    """Return the arms by block where grids have other values, and whose places new points take.

    A published point stays as it was. A new one that two grids name alike is that of the first: a
    tilt of 0 is the untilted arm. Arms of no grid stay, with what they extend. The second
    dictionary names all published points of the grid of each arm whose grid was changed. Then come
    the points of each changed grid; a tilt of 0 may be a point of two.
    """
    changed, asked = [], []
    for grid in grids:
        new = {key: over[key] for key in named(grid) if key in over}
        before = points(known, **grid)
        after = points(known, **grid | {"over": grid["over"] | new}) if new else before
        names = [name for name, _ in after]
        if twice := [name for name in {*names} if names.count(name) > 1 and new]:
            same = "(1 + beta)/temperature is the same for both; leave one of them out"
            remedy = same if "{gamma" in grid["name"] else "give fewer digits"
            raise ValueError(f"grid has two points of the name {twice[0]!r}; {remedy}")
        changed.append((before, after, bool(new)))
        of_grid = tuple(name for name, _ in before)
        for name, point in zip(names, itertools.product(*(grid["over"] | new).values())):
            values = {key: x for key, x in zip(grid["over"], point) if key in new}
            asked += [Point(name, values, of_grid)] if new else []
    found, places = {}, {}
    for block, before in arms.items():
        here = lambda some: {x: arm for x, arm in some if block in arm.get("blocks", arms)}  # noqa: B023, E731
        old = set().union(*(here(published) for published, *_ in changed))
        found[block] = {name: arm for name, arm in before.items() if name not in old}
        for published, after, new in changed:
            for name, arm in here(after).items():
                if name not in found[block]:
                    found[block][name] = before.get(name, arm)
                    places |= {name: tuple(name for name, _ in published)} if new else {}
        found[block] = standing(found[block], before)
    return found, places, asked


def in_places(asked: list[Point]) -> dict[str, tuple[str, ...]]:
    """Return the published points of all changed grids of a point, by its name."""
    found: dict[str, tuple[str, ...]] = {}
    for one in asked:
        found[one.name] = found.get(one.name, ()) + one.published
    return found


def check_kept(asked: list[Point], patterns: list[str]) -> None:
    """Raise ValueError if arms leave out all points at a value that a grid was given for."""
    at: dict[tuple, dict[str, None]] = {}  # names once, in their order
    for one in asked:
        for pair in one.values.items():
            at.setdefault(pair, {})[one.name] = None
    kept = lambda names: any(fnmatchcase(name, one) for name in names for one in patterns)  # noqa: E731
    missing = {pair: names for pair, names in at.items() if not kept(names)}
    if missing:
        (key, value), left, more = next(iter(missing)), [*missing.values()], []
        while left:
            counts = Counter(itertools.chain(*left))
            more.append(max(left[0], key=lambda name: counts[name]))
            left = [names for names in left if more[-1] not in names]
        raise ValueError(
            f"arms must keep points at {key} = {value}, which grid has; add "
            f"{', '.join(map(repr, more))} to arms, or leave arms out"
        )


def standing(left: dict[str, dict], before: dict[str, dict]) -> dict[str, dict]:
    """Return the arms that are left, with the fields of arms that they extend and that are not."""

    def whole(arm: dict) -> dict:
        base = arm.get("extends")
        if base in left or base not in before:  # a template, or a chosen arm
            return arm
        return merged(whole(before[base]), {k: v for k, v in arm.items() if k != "extends"})

    return {name: whole(arm) for name, arm in left.items()}


def flat(arms) -> Iterator[str]:
    """Yield the names of nested pairs of arms, or of named lists of them."""
    if isinstance(arms, str):
        yield arms
    else:
        for one in arms.values() if isinstance(arms, dict) else arms:
            yield from flat(one)


def several(patterns) -> list[str]:
    """Return patterns that are given as a list, or one alone."""
    return [patterns] if isinstance(patterns, str) else [*patterns]


def stands_for(name: str, pattern: str, places: dict[str, tuple[str, ...]], any_of=all) -> bool:
    """Return whether a pattern means an arm: its name, or all points in whose places it came."""
    here = (fnmatchcase(one, pattern) for one in places.get(name, ()))
    return fnmatchcase(name, pattern) or (name in places and any_of(here))


def own(parameters: dict, taken: Iterable[str], fields: Iterable[str] = ()) -> dict[str, dict]:
    """Return the arms of a parameter `add`; ValueError if a name is taken, or a field is unknown.

    Without `fields` any is taken.
    """
    taken, fields = [*taken], [*fields]
    if not isinstance(parameters, dict):
        example = '{"mine": {"method": "hcl", "options": {"beta": 2.0}}}'
        raise ValueError(f"add must be like {example}, got {parameters!r}")
    for name, arm in parameters.items():
        if not isinstance(arm, dict) or not arm:
            raise ValueError(f"add must have the fields of {name!r} as a dictionary, got {arm!r}")
        if name in taken:
            raise ValueError(f"add has {name!r}, which is an arm already; give it another name")
        for key in arm if fields else ():
            one_of([*fields, "extends"], key, f"arm {name!r} has no field")
    return parameters


def like_others(added: dict[str, dict], templates, grid: dict[str, list], known) -> dict:
    """Return arms of your own that extend the template `usual`, with fields that a grid fixes."""
    beside: dict[str, Any] = {k: v[0] for k, v in grid.items() if len(v) == 1 and k in known}
    beside |= {"extends": "usual"} if "usual" in templates else {}
    return {name: beside | arm for name, arm in added.items()}


def of_file(path: str | Path, kind: str) -> tuple[list[str], dict[str, dict]]:
    """Run the file of a loss; return path and name in records, and an arm for each configuration.

    The name has a digest of the file's code, so an edited file is another loss. It knows no masks:
    in retrieval it sees pairs alone, and other answers in the batch are negatives.
    """
    from hnlib.experiments import null_files

    if not isinstance(path, str | Path):
        raise ValueError(f"loss must be a Python file, such as my_loss.py, got {path!r}")
    loss = null_files.read(path)
    arms = {}
    for options in loss.configurations:
        words = f"{loss.path.stem} {config.to_text(options)}".strip()
        arms[words] = {"method": loss.name, "options": options}
        if kind == "retrieval":
            arms[words]["pairs_only"] = True
    return [str(path), loss.name], arms


def false_name(words: str, before: Any, after: Any) -> bool:
    """Return whether a name says a number that was true before, and is not after a change."""
    if before == after or not all(type(x) in (int, float) for x in (before, after)):
        return False
    said = [
        float(number) / float(under or 1)
        for number, under in re.findall(r"(\d+(?:\.\d+)?)(?:/(\d+))?", words)
    ]
    near = lambda value: any(abs(one - value) <= 1e-9 * abs(value) for one in said)  # noqa: E731
    return near(before) and not near(after)
