"""What a design at other parameters must not be; it is refused before anything is trained."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from hnlib.experiments import arms as making
from hnlib.training import config, kinds

#: Fields that `check_names` looks at
NAMED = [
    "dataset",
    "encoder",
    "train_size",
    "validation",
    "batch_size",
    "pairs",
    "leak",
    "composition",
    "folds",
]
Design = Any  # hnlib.experiments.design.Design, which imports this module


def check(made: Design, published: Design) -> None:
    """Raise ValueError for runs that cannot be, two that became one, and names that are false."""
    every = [published.templates, *published.arms.values()]
    by_page = {arm.get("method") for arms in every for arm in arms.values()}
    by_page |= {*made.given.get("loss", ())}
    gridded = {*made.places}.union(*(dict(making.points((), **grid)) for grid in published.grids))
    here = config.to_text({key: new for key, (_, new) in made.changed.items()})
    if made.changed.get("epochs", (1, 1))[1] == 0:  # all arms would be one
        raise ValueError("epochs must be at least 1, got 0; without them nothing is compared")
    of_keys: dict[tuple, str] = {}
    tried, counted, refused = set(), set(), []
    for block, name, run in made.runs():
        # what a grid varies is named anew, but for what its points extend
        words = made.own(name, block).get("extends", "") if name in gridded else name
        _check_words(words, name, block, made, published)
        same = of_keys.setdefault((block, config.key(run.configuration)), name)
        if same != name and _differ(published, same, name, block):
            raise ValueError(
                f"{same!r} and {name!r} of {made.name}.toml would be one run at {here}; "
                "leave one of them out by arms=[...]"
            )
        named = *(getattr(run, x, None) for x in NAMED), run.epochs == 0
        if named not in counted:  # the pictures of a folder are counted for it
            counted.add(named)
            try:
                run.check_names()
            except ValueError as error:  # of all runs, for which a limit may be lower
                refused.append(error)
        case = run.dataset, run.encoder, run.method, config.canonical(run.options)
        if case not in tried:
            tried.add(case)
            if run.method is not None and (run.entry or run.method not in by_page):
                kinds.task_class(run.kind).build_method(run.resolved())
        by = [rule["by"] for rule in made.chosen_in(block).values()]
        if getattr(run, "validation", None) == 0 and any(x.endswith("_validation") for x in by):
            raise ValueError(
                f"validation must be at least 1, got 0: {made.name}.toml chooses by {by[0]}"
            )
    if refused:
        raise lowest(refused) from None

    for block in made.blocks:
        for name, rule in made.chosen_in(block).items():
            source = made.choosing(rule)
            run = next((run for of, _, run in source.runs() if of == block), None)
            if run and rule["by"].endswith("_validation") and not run.validates():
                able = [x for x in run.datasets if replace(run, dataset=x).validates()]
                raise ValueError(
                    f"dataset must have validation queries, by which {made.name}.toml chooses "
                    f"{name!r}; these have: {', '.join(able)} or a folder with qrels/dev.tsv; got "
                    f"{run.dataset!r}"
                )
            for pattern in making.several(rule["among"]):
                if not source.like(pattern, block):
                    raise ValueError(
                        f"{name!r} of {made.name}.toml is chosen among {pattern!r}, of which "
                        f"{source.name} has no arm here; add some of them to arms, or all by "
                        f"{pattern!r}"
                    )


def lowest(refused: list[ValueError]) -> ValueError:
    """Return the first of several refusals; of those of one limit the lowest, which all allow."""
    limits = {}
    for error in refused:
        if found := re.match(r"(\w+) must be at most (?:the )?([\d,]+)", str(error)):
            limits[error] = found[1], int(found[2].replace(",", ""))
    first = refused[0]
    same = [x for x in limits if first in limits and limits[x][0] == limits[first][0]]
    chosen = min(same, key=limits.__getitem__, default=first)
    return ValueError(config.sentence(chosen)) if isinstance(chosen, ValidationError) else chosen


def _differ(published: Design, one: str, other: str, block: str) -> bool:
    """Return whether two arms were published, and with other runs."""
    if not {one, other} <= published.arms[block].keys():
        return False
    arms = (published.fixed(name, block) for name in (one, other))
    runs = [published.run(arm, published.seeds[0], block) for arm in arms]
    return config.key(runs[0].configuration) != config.key(runs[1].configuration)


def _check_words(words: str, name: str, block: str, made: Design, published: Design) -> None:
    """Raise ValueError if the words that name an arm say a number that is another one by now."""
    arm, seed = made.fixed(name, block), made.seeds[0]
    keys = ({*arm} & {*made.changed}) | {*made.changed.get("options", ({}, {}))[1]}
    if not keys:
        return
    before, now = (one.run(arm, seed, block).resolved() for one in (published, made))
    for key in keys:
        old, new = (one.options.get(key, getattr(one, key, None)) for one in (before, now))
        if making.false_name(words, old, new):
            raise ValueError(
                f"{key} = {new:g} would make the name of {name!r} in {made.name}.toml false; leave "
                f"that arm out by arms=[...], or vary {key} by grid or add"
            )
