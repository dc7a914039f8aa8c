"""Designs of experiments: a file says which runs are compared and how.

An arm × block × seed is a run. `load(name, **parameters)` is the design at other parameters. No
record is read here: `hnlib.experiments.found_records` has what was recorded for a design.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from hnlib._files import own_name
from hnlib.experiments import arms as making
from hnlib.experiments import evidence
from hnlib.experiments.arms import SCHEMA, flat, merged
from hnlib.experiments.checks import check, lowest
from hnlib.experiments.evidence import one_of
from hnlib.experiments.seeds import numbered, seeds_of
from hnlib.training import config, kinds

UNTRAINED = "untrained"
ADDED = ("add", "loss")  # arms of your own
SELECTED = ("seeds", "arms", "blocks", "primary", "beside", *ADDED)  # of one design alone
NO_FIELDS = (*SELECTED, "grid", "options")  # parameters that are no fields of runs


@dataclass(frozen=True, eq=False, kw_only=True, config=ConfigDict(extra="forbid"))
class Design:
    """One file: blocks are strata that are never crossed, arms are fields of runs by name.

    Templates are arms that others extend and that are not run. A `chosen` arm copies, block by
    block, the arm with the best mean validation score of `among`, here or in another experiment.
    """

    name: str
    digest: str
    question: str
    primary: str
    beside: tuple[str, ...] | dict[str, str] = ()  # or beside which metric
    seeds: Annotated[tuple[int, ...], BeforeValidator(seeds_of)]
    minutes: float = 0.0
    after: tuple[str, ...] = ()  # whose seeds this one, which repeats or confirms it, leaves out
    closed: str = ""  # why no further run is planned
    mixed: bool = False  # whether processors may differ within a seed
    watches: str = ""  # what only a record counts whose history has it
    fields: dict[str, Any] = field(repr=False)
    blocks: dict[str, dict] = field(repr=False)
    templates: dict[str, dict] = field(default_factory=dict, repr=False)
    arms: dict[str, dict[str, dict]] = field(repr=False)  # by block
    grids: list[dict] = field(default_factory=list, repr=False)  # of which some arms are points
    chosen: dict[str, dict] = field(default_factory=dict, repr=False)
    predictions: list[dict] = field(default_factory=list, repr=False)
    small: dict[str, Any] = field(default_factory=dict, repr=False)  # see `load`
    fits: dict[str, dict] = field(default_factory=dict, repr=False)  # by data set, see `load`
    changed: dict[str, tuple] = field(default_factory=dict)  # by parameter: published, and here
    given: dict[str, Any] = field(default_factory=dict, repr=False)  # what `load` was called with
    places: dict[str, tuple] = field(default_factory=dict, repr=False)  # as `arms.regridded` says

    @property
    def is_part(self) -> bool:
        """Whether all runs are published ones: nothing was changed but which seeds and blocks."""
        return self.changed.keys() <= {"seeds", "blocks"} and {*self.seeds} <= {
            *self.changed.get("seeds", (self.seeds,))[0]
        }

    @property
    def added(self) -> dict[str, dict]:
        """The arms of your own; no pattern means them, so nothing is chosen among them."""
        return self.changed.get("add", ({}, {}))[1]

    def first(self, count: int) -> Design:
        """Return this design with its first so many seeds."""
        if count >= len(self.seeds):
            return self
        few, (usual, _) = self.seeds[:count], self.changed.get("seeds", (self.seeds, ()))
        changed, given = self.changed | {"seeds": (usual, few)}, self.given | {"seeds": few}
        return replace(self, seeds=few, changed=changed, given=given)

    def without(self, *unseen: str) -> Design:
        """Return this design without arms that no page shows, unless published or asked for."""
        if self.is_part or self.given.get("arms") not in (None, self.small.get("arms")):
            return self
        arms = {}
        for block, every in self.arms.items():
            gone = {x for pattern in unseen for x in self.like(pattern, block)}
            arms[block] = making.standing({x: every[x] for x in every if x not in gone}, every)
        return replace(self, arms=arms)

    def metric(self, block: str = "") -> str:
        """Return the metric that decides in a block."""
        return self.blocks[block].get("primary", self.primary)

    def title(self, block: str) -> str:
        """Return what a block is called where it is shown: by its data or encoder, if changed."""
        here = {key: new for key, (_, new) in self.changed.items() if key in self.blocks[block]}
        if "dataset" in here:
            kind = (self.fields | self.blocks[block])["kind"]
            return kinds.run_class(kind).dataset_title(here["dataset"])
        return here.get("encoder", block)

    def secondary_metric(self, metric: str) -> str:
        """Return the metric that is shown beside the one that decides."""
        if isinstance(self.beside, dict):
            return self.beside[metric]
        return self.beside[0] if metric == self.primary else self.primary

    def names(self, block: str = "") -> list[str]:
        """Return the arms of a block."""
        return [*self.arms[block], *self.chosen_in(block)]

    def chosen_in(self, block: str) -> dict[str, dict]:
        """Return the chosen arms of a block by name: among what, and by which metric."""
        rules = self.chosen.items()
        return {name: rule for name, rule in rules if block in rule.get("blocks", self.blocks)}

    def matching(self, patterns, block: str = "") -> list[str]:
        """Return the arms of a block that match a pattern; ValueError if a pattern matches none."""
        each = making.several(patterns)
        found = [self.like(one, block) or [self.known(one, block)] for one in each]
        return [*itertools.chain.from_iterable(found)]

    def like(self, pattern: str, block: str) -> list[str]:
        """Return the arms of a block that match a pattern, or that chosen arm; perhaps none."""
        of_file = [x for x in self.arms[block] if x not in self.added]
        names = [x for x in of_file if making.stands_for(x, pattern, self.places)]
        names = names or [pattern] * (pattern in self.added)
        return names or [pattern] * (pattern in self.chosen_in(block))

    def known(self, name: str, block: str) -> str:
        """Return a name; ValueError names the nearest if it is unknown."""
        return one_of([*self.names(block), *self.templates], name, f"{self.name}.toml has no arm")

    def own(self, name: str, block: str) -> dict[str, Any]:
        """Return what the file says of an arm or a template, without what it extends."""
        every = self.templates | self.arms[block]
        return every[name if name in every else self.known(name, block)]

    def blocks_with(self, arms) -> list[str]:
        """Return the blocks that have all arms; ValueError names the nearest if none has one."""
        wanted = {*flat(arms)}
        for arm in wanted:
            if not any(self.like(arm, block) for block in self.blocks):
                self.known(arm, next(iter(self.blocks)))
        return [x for x in self.blocks if all(self.like(arm, x) for arm in wanted)]

    def run(self, arm: dict[str, Any], seed: int, block: str = "") -> config.Configuration:
        """Return the run of an arm's fields."""
        chosen = merged(merged(self.fields, self.blocks[block]), arm)
        chosen |= {k: new for k, (_, new) in self.changed.items() if k not in NO_FIELDS}
        kind = kinds.run_class(chosen.pop("kind"))
        if not self.is_part:  # its predictions are not about such runs
            chosen["experiment"] = f"{self.name}-changed"
        chosen.setdefault("experiment", self.name)
        if chosen.get("method") == UNTRAINED:  # TOML has no word for None
            chosen |= {"method": None, "epochs": 0}
        fields = config.current({k: v for k, v in chosen.items() if k not in SCHEMA})
        run = kind(**fields, seed=seed)
        _, options = self.changed.get("options", ({}, {}))
        options = {k: v for k, v in options.items() if k in run.resolved().options}
        return replace(run, options=run.options | options) if options else run

    def choosing(self, rule: dict) -> Design:
        """Return the design whose runs choose an arm, at the parameters of this one.

        It has the blocks of this one, and keeps its own seeds, but has no more of them than this
        one if it was changed in more than them.
        """
        own = [block for block in self.blocks if block in rule.get("blocks", self.blocks)]
        if "experiment" not in rule or not own:
            return self
        given = {key: value for key, value in self.given.items() if key not in SELECTED}
        given |= {"blocks": own} if self.changed else {}
        small, published = given.pop("small", False), _read(rule["experiment"])
        other = _at(published, small, given)
        few = "seeds" in self.given and not self.is_part
        return (
            _at(published, small, given | {"seeds": other.seeds[: len(self.seeds)]})
            if few
            else other
        )

    def fixed(self, name: str, block: str) -> dict[str, Any] | None:
        """Return the fields of an arm with what it extends, None if that is a chosen arm."""
        if name in self.chosen:
            return None
        own = self.own(name, block)
        base = self.fixed(own["extends"], block) if "extends" in own else {}
        return None if base is None else merged(base, own)

    def runs(self) -> Iterator[tuple[str, str, config.Configuration]]:
        """Yield block, arm and first run of each arm that rests on no choice."""
        for block, name in ((x, name) for x in self.blocks for name in self.arms[x]):
            if (arm := self.fixed(name, block)) is not None:
                yield block, name, self.run(arm, self.seeds[0], block)

    def followed(self, parameters: dict) -> list[Design]:
        """Return the designs on the same data whose seeds this one leaves out.

        Those are what it is `after`, at the parameters of this one, but for seeds that are named,
        and what chooses its arms.
        """
        given = {k: v for k, v in parameters.items() if k not in SELECTED}
        if isinstance(number := parameters.get("seeds"), int):
            given["seeds"] = number
        small = self.given.get("small", False)
        others = [*(_at(_read(name), small, given) for name in self.after), *self.choosers()]
        return [other for other in others if _data(other) & _data(self)]

    def choosers(self) -> list[Design]:
        """Return the other designs whose runs choose arms of this one."""
        every = dict.fromkeys(self.choosing(rule) for rule in self.chosen.values())
        return [other for other in every if other is not self]


def _data(design: Design) -> set:
    changed = {key: new for key, (_, new) in design.changed.items()}
    fields = (design.fields | block | changed for block in design.blocks.values())
    return {one.get("dataset") for one in fields}


def load(name: str, *, small: bool = False, **parameters) -> Design:
    """Read a design by its name; with parameters, as it is at these.

    Parameters
    ----------
    name
        Of a file in `experiments` of the evidence.
    small
        Take what the file's table `small` says of what no parameter names: embedded data, few seeds
        and arms.
    **parameters
        ``seeds``, how many, from the experiment's first and past those of what it follows, or
        which ("0-2" or a list); ``arms``, patterns of those to keep; ``blocks``; the
        read-outs ``primary`` and ``beside``; and any fields of runs, which then hold in every block
        and arm. None changes nothing, and the published value only what ``small`` or the data set
        would. A value that some blocks have keeps these; one that none has keeps the first of the
        blocks that differ in it alone. What must follow a data set stands in the file's table
        ``fits``.

        ``grid``, such as ``{"temperature": [0.05, 0.1]}``, replaces the values of the file's grids,
        and the names of their points follow; so does a field that they vary. ``options`` reach the
        arms whose method has them. ``add``, such as ``{"mine": {"method": "dcl"}}``, adds arms, and
        ``loss``, a Python file with ``loss(a, b, **options)``, adds one for each of its
        ``CONFIGURATIONS``; the file is executed. They extend a template ``usual`` and have what a
        grid has one value of. Nothing is chosen among them.

    Raises
    ------
    ValueError
        If a parameter is no field of these runs, or fits no arm or block; if seeds are those of
        what this experiment repeats or confirms; or if an arm would become another one, or other
        than its name says.

    Examples
    --------
    >>> from hnlib import experiments
    >>> design = experiments.load("map", grid={"temperature": [0.07], "beta": [0, 3]})
    >>> [name for name in design.names("CIFAR-10") if name.startswith("t0.")]
    ['t0.07 b0', 't0.07 b3']
    """
    (design,) = load_all([name], small=small, **parameters)
    return design


def load_all(names: Iterable[str], /, *, small: bool = False, **parameters) -> list[Design]:
    """Read several designs at the same parameters, as `load` does one.

    A grid and options change those designs that have them, one at least. The arms of ``add`` and
    ``loss`` are added to the first.
    """
    given = {key: value for key, value in parameters.items() if value is not None}
    every = [_read(name) for name in names]
    if "grid" in given:
        making.check_grid(making.varied(itertools.chain(*map(_grids, every))), given["grid"])
    if "options" in given:
        known = set().union(*map(_options, every))
        making.check_options(known, given["options"])
    if "loss" in given:
        given["loss"], own = making.of_file(given["loss"], every[0].fields["kind"])
        given["add"] = making.own(given.get("add", {}), own) | own
    first, others = given, {key: value for key, value in given.items() if key not in ADDED}
    made, refused = [], []
    for i, one in enumerate(every):
        try:
            made.append(_at(one, small, others if i else first))
        except ValueError as error:
            refused.append(error)
    if refused:
        raise lowest(refused) from None
    return made


def _grids(published: Design) -> list[dict]:
    """Return the grids of a design, and those of what chooses its arms."""
    return [grid for one in (published, *published.choosers()) for grid in one.grids]


def _options(published: Design) -> set[str]:
    """Return the options of the methods of a design, and of what chooses its arms."""
    every = [published, *published.choosers()]
    return {key for one in every for *_, run in one.runs() for key in run.resolved().options}


def _at(published: Design, small: bool, given: dict) -> Design:
    """Return a published design at those parameters that concern it.

    It is the same object while your data stand.
    """
    given = dict(given)
    if "grid" in given:
        given["grid"] = making.values(_grids(published), given["grid"])
    if "options" in given:
        known = _options(published)
        given["options"] = {k: v for k, v in given["options"].items() if k in known}
    dataset = given.get("dataset") or ""
    return _changed(published, small, config.canonical(given), own_name(dataset))


@functools.lru_cache(maxsize=512)
def _changed(published: Design, small: bool, parameters: str, _: str) -> Design:
    name = published.name
    if small and not published.small:
        raise ValueError(f"{name}.toml has no table [small]")
    known = config.defaults(kinds.run_class(published.fields["kind"]))
    usual = known | published.fields
    usual |= {key: None for block in published.blocks.values() for key in block}
    usual |= {key: getattr(published, key) for key in ("seeds", "primary", "beside")}
    usual |= {"arms": ["*"], "blocks": [*published.blocks]}
    usual |= {"grid": {}, "options": {}, "add": {}, "loss": None}

    def unusual(given: dict) -> dict:
        for key in given:
            one_of(usual, key, f"runs of {name}.toml have no parameter")
        if "seeds" in given:
            given = given | {"seeds": numbered(given["seeds"], published.seeds[0])}
        arms = given.get("arms", [])
        if not isinstance(arms, list) or not all(isinstance(one, str) for one in arms):
            raise ValueError(f'arms must be a list, such as ["t0.1*"], got {given["arms"]}')
        return {k: v for k, v in given.items() if config.canonical(usual[k]) != config.canonical(v)}

    given = json.loads(parameters)
    unusual(given)  # refuses what is wrong before anything is looked up
    own_grid = given.get("grid", {})
    of_small = {k: v for k, v in published.small.items() if small and k not in own_grid}
    asked = of_small | given
    dataset = asked.get("dataset") or ""
    own = dataset.partition(":")[0] + ":"  # of your own data, such as folder:PATH
    fits = published.fits.get(dataset, published.fits.get(own, {}))
    first = next(iter(asked.get("blocks", published.blocks)))
    usual_here = published.fields | published.blocks.get(first, {})
    fitted = {}
    if dataset or given.get("train_size"):
        kind, here = kinds.run_class(usual_here["kind"]), dataset or usual_here["dataset"]
        fitted = kind.fitting(here, usual_here | fits | asked, given)  # blocks may be of several
    changed = unusual(_in_blocks(published.blocks, fits | of_small | fitted | given))
    if not changed:
        return _apart(published, given, asked)
    here, no_block = usual | changed, f"{name}.toml has no block"
    blocks = {one_of(published.blocks, x, no_block): published.blocks[x] for x in here["blocks"]}

    arms, places, asked_for = published.arms, {}, []
    if over := making.changed_values(published.grids, changed):
        arms, places, asked_for = making.regridded(known, published.grids, arms, over)
    if own_grid and "arms" in given:
        making.check_kept(asked_for, given["arms"])
    # a new point is in the place of those that were kept
    few = {} if "arms" in given else making.in_places(asked_for)

    asked_of_all = {key for key, value in fitted.items() if value is True and key in changed}

    def kept(arms: dict) -> dict:
        # an arm that is told from others by what these data ask of all would be another once more
        arms = {x: arm for x, arm in arms.items() if not asked_of_all & arm.keys()}
        arms = {x: arm for x, arm in arms.items() if not dataset or kind.serves(dataset, arm)}
        stays = lambda x: any(making.stands_for(x, one, few, any) for one in here["arms"])  # noqa: E731
        return {x: arms[x] for x in arms if stays(x)}

    taken = {*published.chosen, *itertools.chain.from_iterable(arms.values())}
    added = making.own(here["add"], taken, usual)
    added = making.like_others(added, published.templates, here["grid"], known)
    made = replace(
        published,
        seeds=here["seeds"],
        primary=here["primary"],
        beside=here["beside"],
        blocks=blocks,
        arms={x: making.standing(kept(arms[x]) | added, arms[x]) for x in blocks},
        chosen=kept(published.chosen),
        changed={key: (usual[key], value) for key, value in changed.items()},
        given=asked | {"small": small},
        places=places,
        closed="",
    )
    check(made, published)
    return _apart(made, given, asked)


def _apart(made: Design, given: dict, asked: dict) -> Design:
    """Return a design with seeds past those of what it follows, where it would share some.

    `given` are the parameters, and `asked` those that count here. Raises ValueError if seeds are
    named there that are shared.
    """
    others = made.followed(given) if given or made.changed else []
    taken = {seed: one.name for one in others for seed in one.seeds}
    if not (shared := sorted({*made.seeds} & taken.keys())):
        return made
    count = asked.get("seeds", len(made.seeds))
    if not isinstance(count, int):
        raise ValueError(
            f"{made.name} repeats or confirms {taken[shared[0]]}, which has seed {shared[0]}, too; "
            f"give how many seeds, such as {len(made.seeds)}, not which"
        )
    past, (usual, _) = numbered(count, max(taken) + 1), made.changed.get("seeds", (made.seeds, ()))
    return replace(made, seeds=past, changed=made.changed | {"seeds": (usual, past)})


def _in_blocks(blocks: dict[str, dict], given: dict) -> dict:
    """Return the parameters with the blocks that they leave.

    Blocks differ in a few fields. Where one of these is given, the blocks with its value stay as
    they are. Of blocks that without it are the same runs the first stands for all; and of all
    blocks if it is a data set, an encoder or another word, for of these blocks have their names.
    """
    left = given.get("blocks", [*blocks])
    rest = dict(given)
    for key, value in given.items():
        alike: dict[str, list[str]] = {}
        for name in left:
            if key in blocks.get(name, {}):
                others = {k: v for k, v in blocks[name].items() if k not in (*given, *SCHEMA)}
                same = "" if isinstance(value, str) else config.canonical(others)
                alike.setdefault(same, []).append(name)
        stay = [[x for x in some if blocks[x][key] == value] for some in alike.values()]
        if stay and all(stay):
            del rest[key]
        one_each = [some or several[:1] for some, several in zip(stay, alike.values())]
        gone = {*itertools.chain(*alike.values())} - {*itertools.chain(*one_each)}
        left = [name for name in left if name not in gone]
    return rest | ({"blocks": left} if left != [*blocks] else {})


def _read(name: str) -> Design:
    """Return a design as it was published, the same object while its files stand."""
    text = _text(name)
    base = tomllib.loads(text).get("base", "")
    return _published(name, text, _text(base) if base else "")


def _text(name: str) -> str:
    return evidence.path(f"experiments/{name}.toml").read_text("utf-8")


@functools.lru_cache(maxsize=256)
def _published(name: str, text: str, of_base: str) -> Design:
    # what stands in the file itself replaces what is in its base, key by key
    content: dict[str, Any] = {**tomllib.loads(of_base), "after": [], **tomllib.loads(text)}
    content.pop("base", None)
    known = config.defaults(kinds.run_class(content["fields"]["kind"]))
    gridded = (making.points(known, **grid) for grid in content.get("grids", []))
    listed = [*content.pop("arms", {}).items(), *itertools.chain.from_iterable(gridded)]
    blocks, arms = content.setdefault("blocks", {"": {}}), {}
    for block in blocks:
        here = [(arm, own) for arm, own in listed if block in own.get("blocks", blocks)]
        arms[block] = dict(here)
        if len(arms[block]) < len(here):
            raise ValueError(f"{name}.toml has two arms of one name in a block; give each its own")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Design(**content, name=name, arms=arms, digest=digest)


def names() -> list[str]:
    """Return the names of all experiments."""
    return sorted(path.stem for path in Path(evidence.path("experiments")).glob("*.toml"))


def digest(name: str) -> str | None:
    """Return the digest of the file with an experiment's predictions, None if it has none."""
    return load(name).digest if name in names() else None
