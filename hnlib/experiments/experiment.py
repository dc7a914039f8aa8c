"""Experiments as data: a file says which runs are compared and how.

An arm × block × seed is a run. Its records are found by equality of what was chosen, so that an
option that is added later cannot widen a selection. `load(name, **parameters)` is the experiment at
other parameters: `Experiment.train` recalls the runs that are recorded and trains the others.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
import re
import statistics
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from hnlib.experiments import comparisons, evidence, predictions, runner
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.evidence import one_of
from hnlib.experiments.predictions import together
from hnlib.experiments.sharpness_map import Map
from hnlib.experiments.words import interval, percent, where
from hnlib.training import config, kinds, records, store

if TYPE_CHECKING:
    from hnlib.training.checkpoint import TrainedRun


def _seeds(text: Any) -> Any:
    """Return the seeds of a text like "0-11" or "3", of a number or a list."""
    if isinstance(text, int):
        return (text,)
    if not isinstance(text, str):
        return text
    first, _, last = text.partition("-")
    if not re.fullmatch(r"\d+(-\d+)?", text) or int(last or first) < int(first):
        raise ValueError(f'seeds must be like "0-11" or "3", got {text!r}')
    return tuple(range(int(first), int(last or first) + 1))


@dataclass(frozen=True, eq=False, kw_only=True, config=ConfigDict(extra="forbid"))
class Experiment:
    """One file: blocks are strata that are never crossed, arms are fields of runs by name.

    Templates are arms that others extend and that are not run. A `chosen` arm copies, block by
    block, the arm with the best mean validation score of `among`, here or in another experiment;
    until all runs of those are recorded, it is unknown.
    """

    name: str
    digest: str
    question: str
    primary: str
    beside: tuple[str, ...] | dict[str, str] = ()  # or beside which metric
    seeds: Annotated[tuple[int, ...], BeforeValidator(_seeds)]
    minutes: float = 0.0
    closed: str = ""  # why no further run is planned
    mixed: bool = False  # whether processors may differ within a seed
    watches: str = ""  # what only a record counts whose history has it
    fields: dict[str, Any] = field(repr=False)
    blocks: dict[str, dict] = field(repr=False)
    templates: dict[str, dict] = field(default_factory=dict, repr=False)
    arms: dict[str, dict[str, dict]] = field(repr=False)  # by block
    chosen: dict[str, dict] = field(default_factory=dict, repr=False)
    predictions: list[dict] = field(default_factory=list, repr=False)
    small: dict[str, Any] = field(default_factory=dict, repr=False)  # see `load`
    fits: dict[str, dict] = field(default_factory=dict, repr=False)  # by data set, see `load`
    changed: dict[str, tuple] = field(default_factory=dict)  # by parameter: published, and here
    given: dict[str, Any] = field(default_factory=dict, repr=False)  # what `load` was called with

    def metric(self, block: str) -> str:
        """Return the metric that decides in a block."""
        return self.blocks[block].get("primary", self.primary)

    def arm(self, name: str, block: str = "") -> dict[str, Any] | None:
        """Return the fields of an arm in a block, or None until what chooses it is recorded."""
        if name in self.chosen:
            other, _ = self.candidates(name, block)
            best = other.best(self.chosen[name]["among"], self.chosen[name]["by"], block)
            return None if best is None else other.arm(best, block)
        own = (self.templates | self.arms[block])[self._known(name, block)]
        base = {} if "extends" not in own else self.arm(own["extends"], block)
        return None if base is None else _merged(base, own)

    def _choosing(self, rule: dict) -> Experiment:
        """Return the experiment whose runs choose an arm, at the parameters of this one.

        It has the blocks of this one, and keeps its own seeds, but has no more of them than this
        one if the seeds were changed.
        """
        if "experiment" not in rule:
            return self
        given = {key: value for key, value in self.given.items() if key not in SELECTED}
        given |= {"blocks": [*self.blocks]} if self.changed else {}
        other = load(rule["experiment"], **given)
        few = other.seeds[: len(self.seeds)] if "seeds" in self.given else None
        return load(rule["experiment"], **given, seeds=few)

    def _choosers(self) -> list[Experiment]:
        """Return the other experiments whose runs choose arms of this one."""
        every = dict.fromkeys(self._choosing(rule) for rule in self.chosen.values())
        return [other for other in every if other is not self]

    def candidates(self, name, block: str = "") -> tuple[Experiment, list[str]]:
        """Return the arms among which a chosen arm is chosen, and the experiment they are in.

        Of any other name or pattern these are the matching arms of this experiment.
        """
        rule = self.chosen.get(name, {}) if isinstance(name, str) else {}
        source = self._choosing(rule)
        return source, source.matching(rule.get("among", name), block)

    @functools.cache  # noqa: B019 — an experiment lives as long as the process
    def best(self, pattern: str, metric: str, block: str = "") -> str | None:
        """Return the arm with the best mean that matches a pattern, or None while runs are missing.

        The metric "validation" is that of the block's primary metric.
        """
        if metric == "validation":
            metric = self.metric(block).removesuffix("_validation") + "_validation"
        means = {name: self.mean(name, metric, block) for name in self.matching(pattern, block)}
        known = {name: mean for name, mean in means.items() if mean is not None}
        return max(known, key=lambda name: known[name]) if len(known) == len(means) else None

    def matching(self, patterns, block: str = "") -> list[str]:
        """Return the arms of a block that match a pattern; ValueError if a pattern matches none."""
        patterns = [patterns] if isinstance(patterns, str) else patterns
        found = [self._like(one, block) or [self._known(one, block)] for one in patterns]
        return [*itertools.chain.from_iterable(found)]

    def _like(self, pattern: str, block: str) -> list[str]:
        names = [name for name in self.arms[block] if fnmatchcase(name, pattern)]
        return names or [pattern] * (pattern in self._chosen(block))

    def names(self, block: str = "") -> list[str]:
        """Return the arms of a block."""
        return [*self.arms[block], *self._chosen(block)]

    def _chosen(self, block: str) -> dict[str, dict]:
        rules = self.chosen.items()
        return {name: rule for name, rule in rules if block in rule.get("blocks", self.blocks)}

    def run(self, name: str, seed: int, block: str = ""):
        """Return a run of an arm, None while the arm is not chosen."""
        arm = self.arm(name, block)
        if arm is None:
            return None
        chosen = _merged(_merged(self.fields, self.blocks[block]), arm)
        chosen |= {k: new for k, (_, new) in self.changed.items() if k not in SELECTED}
        kind = kinds.run_class(chosen.pop("kind"))
        if self.changed:  # its predictions are not about such runs
            chosen["experiment"] = f"{self.name}-changed"
        chosen.setdefault("experiment", self.name)
        if chosen.get("method") == UNTRAINED:  # TOML has no word for None
            chosen |= {"method": None, "epochs": 0}
        return kind(**{k: v for k, v in chosen.items() if k not in SCHEMA}, seed=seed)

    def _named(self) -> dict[str, tuple[str, int, str]]:
        """Return arm, seed and block of every run once, all arms of a block before the next seed.

        The keys are those of the runs.
        """
        named: dict[str | None, tuple[str, int, str]] = {}
        for seed, block in itertools.product(self.seeds, self.blocks):
            for name in self.names(block):
                named.setdefault(self._key(name, seed, block), (name, seed, block))
        return {key: one for key, one in named.items() if key}

    def missing(self) -> Iterator:
        """Yield the runs without a record."""
        named = self._named()
        recorded = self._have(named)
        return (self.run(*one) for key, one in named.items() if key not in recorded)

    def plan(self) -> str:
        """Return a sentence on how many runs there are, how many to train, and for how long."""
        runs, missing = len(self._named()), [*self.missing()]  # without arms not chosen yet
        left = len(missing)
        if left and self.closed:
            return f"{self.name}: {runs - left} of {runs} runs recorded; {self.closed}."
        text = f"{self.name}: {runs} runs, {runs - left} recorded, {left} to train"
        costs = [cost for run in missing if (cost := runner.seconds(run)) is not None]
        if left and len(costs) == left:
            text += f", about {sum(costs) / 60:,.1f} min on one thread"
        waits = any(self.arm(name, block) is None for block in self.blocks for name in self.chosen)
        return f"{text}; more once validation has chosen." if waits else f"{text}."

    def train(self, **how) -> Experiment:
        """Train the runs without a record; say what differs from the published, and what ran where.

        Parameters
        ----------
        **how
            As for `runner.train`: ``device``, ``minutes``, ``engine``, ``keep``, ``data_root``.

        Raises
        ------
        ValueError
            If ``minutes`` have passed before the last run; the same call goes on.

        Notes
        -----
        With ``$HNLIB_RECALL``, as `make book` sets it, no published run is trained, and records
        that are not tracked are not read for one. No run of a closed experiment is ever trained.
        """
        train(self, **how)
        return self

    def train_until(self, until: float, **how) -> None:
        """Train as `train`, until `time.monotonic()` has that value."""
        if self.changed:
            here = ", ".join(f"{k} = {config.to_text(new)}" for k, (_, new) in self.changed.items())
            print(f"Not as published: {here}. The sentences were written for the published runs.")
        self._train_missing(until, **how)
        for other in self._choosers():
            other._made()
        print(self._made())

    def _made(self) -> str:
        """Note the runs as planned for the notebook; return where they were made."""
        every = [found for block in self.blocks for found in self._every(block)]
        made, names = where(every), sorted(one["run"] for one in every)
        here = " ".join([self.name, *self.blocks]).strip()  # it may choose for several, by block
        records.PLANNED[here] = {"changed": [*self.changed], "where": made, "runs": names}
        return made

    def model(self, name: str, seed: int, block: str = "", device: str = "auto") -> TrainedRun:
        """Return the trained model of a run: as `train(keep=True)` saved it, else trained anew."""
        from hnlib.training.train import load as load_model
        from hnlib.training.train import train

        run = self.run(name, seed, block)
        saved = runner.kept(run)
        if saved.is_file():
            return load_model(saved)
        return train(run, device=device, save=saved, evaluate_every=0, progress=False)

    @functools.cache  # noqa: B019 — an experiment lives as long as the process
    def _key(self, name: str, seed: int, block: str) -> str | None:
        """Return the key that identifies a run of an arm, or None while the arm is not chosen."""
        run = self.run(name, seed, block)
        return run and records.key(run.configuration)

    def replicates(self, name: str, seed: int, block: str = "") -> list[dict]:
        """Return all records of a run, in their order."""
        return self._recorded(self._key(name, seed, block))

    @functools.cache  # noqa: B019 — an experiment lives as long as the process
    def group(self, name: str, block: str = ""):
        """Return the rows of an arm's records, seed by seed.

        Where other collections are searched too, `transfer_ndcg` is the mean over them.
        """
        found = self._found(name, block).values()
        return self._rows(block).loc[[config.name(one["configuration"]) for one in found]]

    def _every(self, block: str) -> list[dict]:
        """Return the records of all arms of a block."""
        arms = (self._found(name, block).values() for name in self.names(block))
        return [*{id(one): one for several in arms for one in several}.values()]

    @functools.cache  # noqa: B019 — an experiment lives as long as the process
    def _rows(self, block: str):
        """Return the rows of all arms of a block by the name of their record."""
        rows = records.frame(self._every(block), scores=True)
        if rows.empty:  # then nor are there columns
            return rows
        if others := self.fields.get("transfer"):
            scores = rows.reindex(columns=[f"{other}_ndcg" for other in others])
            rows = rows.assign(transfer_ndcg=scores.astype(float).mean(axis=1))
        return rows.set_index("record", drop=False).rename_axis(None)

    def _train_missing(self, until: float, **how) -> None:
        print(self.plan())
        if not self.changed and (self.closed or "HNLIB_RECALL" in os.environ):
            return
        for other in self._choosers():
            if any(other.missing()):
                other._train_missing(until, **how)
        while runs := [*self.missing()]:  # what is chosen among own arms is known after these
            left = max(1e-9, until - time.monotonic()) / 60
            done = runner.train(runs, minutes=left if left < math.inf else None, **how)
            forget()
            if done < len(runs):
                raise ValueError(
                    f"the minutes have passed, and {len(runs) - done} runs of {self.name} are "
                    "left; the same call goes on from there"
                )
            if runs[0] in self.missing():
                raise ValueError(
                    f"the learning curves of {self.name} show no {self.watches!r}; pass train() "
                    "the method whose observe() returns it"
                )

    def rows(self, block: str = "", names: Iterable[str] | None = None):
        """Return the rows of some arms of a block, by default of all its arms."""
        names = self.arms[block] if names is None else names
        rows = [self.group(name, block).assign(arm=name) for name in names]
        return pd.concat([some for some in rows if len(some)] or rows, ignore_index=True)

    @functools.cache  # noqa: B019 — an experiment lives as long as the process
    def map(self, block: str = "", arms: str = "t*"):
        """Return the map of the matching arms, which vary temperature and tilt."""
        rows = self.rows(block, self.matching(arms, block))
        return Map(rows, self.primary)

    def table(self, base: str | None = None, names=None, metrics=None) -> list[dict]:
        """Return a line for each block and arm that has runs, for a table or a data frame.

        Its scores are mean ± standard deviation; with a `base`, its gain over that arm by the
        metric that decides, corrected together with the others of the block.
        """
        lines = []
        for block in self.blocks:
            wanted = [name for name in names or self.names(block) if name in self.names(block)]
            groups = {name: rows for name in wanted if len(rows := self.group(name, block))}
            others = [name for name in groups if base and name != base]
            gains = self.effects({name: (name, base) for name in others}, blocks=[block])
            for name, rows in groups.items():
                line = {"block": block} if len(self.blocks) > 1 else {}
                line[""] = name
                if base:
                    gain = gains.get(f"{block} {name}".strip())
                    line[f"over {base}"] = interval(gain) if gain else ""
                line["seeds"] = len(rows)
                for metric in metrics or (*self.beside, self.metric(block)):
                    line[metric] = percent(rows[metric])
                lines.append(line)
        return lines

    def values(self, name: str, metric: str, block: str = "") -> dict[int, float]:
        """Return a metric of an arm by seed; "last_x" is x of the last epoch, "x@1" of epoch 1."""
        read_out, at, epoch = metric.partition("@")

        def read(record: dict) -> float:
            if at:
                return {row["epoch"]: row for row in record["history"]}[int(epoch)][read_out]
            if metric.startswith("last_"):
                return record["history"][-1][metric.removeprefix("last_")]
            if metric not in (measured := record["metrics"]):
                have = ", ".join(sorted(measured))
                raise ValueError(f"{self.name} has no {metric} of {name!r}; it has {have}")
            return measured[metric]

        found = self._found(name, block)
        if metric == "transfer_ndcg":
            return dict(zip(found, self.group(name, block).get(metric, ())))
        if at or metric.startswith("last_"):
            found = dict(zip(found, store.complete(found.values())))
        return {seed: read(record) for seed, record in found.items()}

    def value_of(self, name: str, field: str, block: str = ""):
        """Return a field or an option of an arm's runs, or "gamma", their sharpness."""
        run = self.run(name, self.seeds[0], block).resolved()
        options = run.options
        if field == "gamma":
            transport = 1 / options["epsilon"] if "epsilon" in options else 0.0
            return (1 + options.get("beta", 0.0)) / options["temperature"] + transport
        return options[field] if field in options else getattr(run, field)

    def mean(self, name: str, metric: str, block: str = "") -> float | None:
        """Return the mean over all seeds, None if one is missing."""
        values = self.values(name, metric, block)
        return statistics.fmean(values.values()) if len(values) == len(self.seeds) else None

    def effect(
        self, ours, base, metric: str | None = None, block: str = "", target: str = "these images"
    ) -> Effect:
        """Return the difference of two arms in points, paired by seed; `target` as in `between`.

        A pair of arms stands for the gain of its first arm over its second; the effect is then an
        interaction.
        """
        metric = metric or self.metric(block)
        first, second = (self._gain(arm, metric, block) for arm in (ours, base))
        mixed = self.blocks[block].get("mixed", self.mixed)
        return comparisons.between(first, second, metric, target, mixed)

    def effects(
        self,
        pairs,
        metric: str | None = None,
        target: str = "these images",
        blocks=None,
        corrected: bool = True,
    ) -> dict[str, Effect]:
        """Return the effects of pairs by block and name, if `corrected` as one family.

        `pairs` may be named; each pair is compared in those `blocks` that have both arms.
        """
        if not isinstance(pairs, dict):  # the third of a pair is its name
            name = "{} − {}" if len(pairs) > 1 else ""
            pairs = {(*pair, name.format(*pair))[2]: pair[:2] for pair in pairs}
        found = {
            f"{block} {words}".strip(): self.effect(pair[0], pair[1], metric, block, target)
            for block in blocks or self.blocks
            for words, pair in pairs.items()
            if block in self.blocks_with(pair)
        }
        return together(found) if corrected else found

    def blocks_with(self, arms) -> list[str]:
        """Return the blocks that have all arms; ValueError names the nearest if none has one."""
        wanted = {*_flat(arms)}
        for arm in wanted:
            if not any(self._like(arm, block) for block in self.blocks):
                self._known(arm, next(iter(self.blocks)))
        return [x for x in self.blocks if all(self._like(arm, x) for arm in wanted)]

    def waiting(self, several, blocks=None) -> int:
        """Return how many runs of groups of arms have no record, in blocks that have all the arms.

        An arm may be a pattern; an arm that is not chosen yet counts with all its runs.
        """
        named = {
            (name, seed, block)
            for arms in several
            for block in self.blocks_with(arms)
            if block in (blocks or self.blocks)
            for arm in _flat(arms)
            for name, seed in itertools.product(self._like(arm, block), self.seeds)
        }
        keys = [self._key(*one) for one in named]
        recorded = self._have(filter(None, keys))
        return sum(key not in recorded for key in keys)

    def edges(self) -> str:
        """Return a sentence on chosen numbers that are the smallest or largest tried."""
        found = []
        for block, name in itertools.product(self.blocks, self.chosen):
            arm = self.arm(name, block) if name in self._chosen(block) else None
            if arm is None:
                continue
            other, among = self.candidates(name, block)
            tried = [_numbers(other.arm(x, block)) for x in among]
            for number, value in _numbers(arm).items():
                values = {one[number] for one in tried if number in one}
                if len(values) > 1 and value in (min(values), max(values)):
                    where = f"{block}, " if block else ""
                    found.append(f"{where}{name}, {number} = {value:g}")
        return f"Chosen at the edge of what was tried: {'; '.join(found) or 'nothing'}."

    def verdicts(self) -> list[dict]:
        """Return a line for each prediction: measured, the other read-out, and the verdict."""
        return predictions.verdicts(self)

    def outcome(self, name: str, metric: str | None = None) -> Any:
        """Return a prediction's outcome, corrected with its family; several numbers by label."""
        lines = {line["id"]: line for line in self.predictions}
        line = lines[one_of(lines, name, f"{self.name}.toml has no prediction")]
        found = predictions.of_family(self, line, metric or line["metric"])
        return next(iter(found.values())) if len(found) == 1 else found

    def secondary_metric(self, metric: str) -> str:
        """Return the metric that is shown beside the one that decides."""
        if isinstance(self.beside, dict):
            return self.beside[metric]
        return self.beside[0] if metric == self.primary else self.primary

    def _recorded(self, key: str | None) -> list[dict]:
        """Return the records of a run by its key: the tracked ones, else those of this machine."""
        for folder in self._folders() if key else ():
            if found := self._watched(_find([key], folder)[key]):
                return found
        return []

    def _have(self, keys: Iterable[str]) -> set[str]:
        """Return the keys of runs that are recorded."""
        keys = [*keys]
        if self.watches:
            for folder in self._folders():
                _find(keys, folder)
            return {key for key in keys if self._recorded(key)}
        return set().union(*(records.index_of(folder).has(keys) for folder in self._folders()))

    def _folders(self) -> list[Path]:
        """Return where a record counts: among the tracked ones, else those of this machine."""
        recalled = "HNLIB_RECALL" in os.environ and not self.changed
        own = records.default_folder()
        return [_tracked(), *([own] if own.is_dir() and not recalled else [])]

    def _watched(self, found: list[dict]) -> list[dict]:
        """Return the records that show what this experiment watches."""
        if not self.watches:
            return found
        whole = zip(found, store.complete(found), strict=True)
        return [one for one, more in whole if self.watches in more["history"][-1]]

    @classmethod
    def forget(cls) -> None:
        """Forget what any experiment has found among the records."""
        for cached in (cls.best, cls.map, cls.group, cls._key, cls._rows, cls._of_seed):
            cached.cache_clear()

    def _found(self, name: str, block: str) -> dict[int, dict]:
        """Return the records of an arm by seed."""
        keys = {seed: self._key(name, seed, block) for seed in self.seeds}
        found = {seed: self._of_seed(seed, block).get(key) for seed, key in keys.items() if key}
        found = {seed: record for seed, record in found.items() if record}
        records.USED.update(record["run"] for record in found.values())
        return found

    @functools.cache  # noqa: B019 — an experiment lives as long as the process
    def _of_seed(self, seed: int, block: str) -> dict[str, dict]:
        """Return the records of a seed by key, all from one processor if one has made them all.

        A block that was begun on one processor and ended on another is begun again; what the first
        processor recorded stays in the ledger. Without such a processor the first record of each
        run counts.
        """
        elsewhere = [name for name, rule in self._chosen(block).items() if "experiment" in rule]
        names = [*self.arms[block], *elsewhere]
        keys = filter(None, (self._key(name, seed, block) for name in names))
        keys = [*keys]
        for folder in self._folders():
            _find(keys, folder)
        recorded = {key: self._recorded(key) for key in keys}
        made = {key: by_processor(several) for key, several in recorded.items()}
        for processor in next(iter(made.values()), {}):
            if all(processor in one for one in made.values()):
                return {key: one[processor] for key, one in made.items()}
        return {key: several[0] for key, several in recorded.items() if several}

    def _gain(self, arm, metric: str, block: str):
        """Return the rows of an arm, or of the gain of one arm over another, seed by seed."""
        if isinstance(arm, str):
            return self.group(arm, block)
        ours, base = (self.group(one, block).set_index("seed", drop=False) for one in arm)
        return ours.assign(**{metric: ours[metric] - base[metric], "correct": None})

    def _known(self, name: str, block: str) -> str:
        """Return a name; ValueError names the nearest if it is unknown."""
        return one_of([*self.names(block), *self.templates], name, f"{self.name}.toml has no arm")


def by_processor(replicates: list[dict]) -> dict[str, dict]:
    """Return the first record of each processor, in the order of the records."""
    first: dict[str, dict] = {}
    for record in replicates:
        first.setdefault(comparisons.processor(record["environment"]["hardware"]), record)
    return first


def _numbers(arm: dict) -> dict[str, float]:
    """Return the fields and options of an arm that are numbers."""
    every = arm | arm.get("options", {})
    return {
        k: v for k, v in every.items() if isinstance(v, int | float) and not isinstance(v, bool)
    }


def _flat(arms) -> Iterator[str]:
    """Yield the names of nested pairs of arms, or of named lists of them."""
    if isinstance(arms, str):
        yield arms
    else:
        for one in arms.values() if isinstance(arms, dict) else arms:
            yield from _flat(one)


UNTRAINED = "untrained"
SCHEMA = ("extends", "blocks", "mixed", "primary", "matters", "fresh")  # no fields of runs
SELECTED = ("seeds", "arms", "blocks", "primary", "beside")  # parameters, no fields of runs either


def load(name: str, *, small: bool = False, **parameters) -> Experiment:
    """Read an experiment by its name; with parameters, as it is at these.

    Parameters
    ----------
    name
        Of a file in `book/results/experiments`.
    small
        Take what the file's table `small` says, where no parameter says otherwise: embedded data,
        few seeds and arms.
    **parameters
        ``seeds`` ("0-2", a number or a list); ``arms``, patterns of those to keep; ``blocks``; the
        read-outs ``primary`` and ``beside``; and any fields of runs, which then hold in every block
        and arm. None and the published value change nothing. A value that some blocks have keeps
        these; one that none has keeps the first of the blocks that differ in it. What must follow a
        data set stands in the file's table ``fits``.

    Raises
    ------
    ValueError
        If a parameter is no field of these runs, or fits no arm or block.
    """
    given = {key: value for key, value in parameters.items() if value is not None}
    return _at(name, small, config.canonical(given))


def train(*several: Experiment, minutes: float | None = None, **how) -> None:
    """Train experiments one after the other, all within the same minutes (`Experiment.train`)."""
    end = time.monotonic() + 60 * (minutes or math.inf)
    for one in several:
        one.train_until(end, **how)


@functools.cache
def _at(name: str, small: bool, parameters: str) -> Experiment:
    published = _read(name)
    if small and not published.small:
        raise ValueError(f"{name}.toml has no table [small]")
    usual = config.defaults(kinds.run_class(published.fields["kind"])) | published.fields
    usual |= {key: None for block in published.blocks.values() for key in block}
    usual |= {key: getattr(published, key) for key in ("seeds", "primary", "beside")}
    usual |= {"arms": ["*"], "blocks": [*published.blocks]}

    def unusual(given: dict) -> dict:
        for key in given:
            one_of(usual, key, f"runs of {name}.toml have no parameter")
        if "seeds" in given:
            given = given | {"seeds": _seeds(given["seeds"])}
        if isinstance(given.get("arms"), str):
            raise ValueError(f'arms must be a list, such as ["t0.1*"], got {given["arms"]}')
        return {k: v for k, v in given.items() if config.canonical(usual[k]) != config.canonical(v)}

    asked = (published.small if small else {}) | unusual(json.loads(parameters))
    fits = published.fits.get(asked.get("dataset", ""), {})
    changed = unusual(_in_blocks(published.blocks, fits | asked))
    if not changed:
        return published
    here, no_block = usual | changed, f"{name}.toml has no block"
    blocks = {one_of(published.blocks, x, no_block): published.blocks[x] for x in here["blocks"]}

    def kept(arms: dict) -> dict:
        return {x: arms[x] for x in arms if any(fnmatchcase(x, one) for one in here["arms"])}

    return replace(
        published,
        seeds=here["seeds"],
        primary=here["primary"],
        beside=here["beside"],
        blocks=blocks,
        arms={block: kept(published.arms[block]) for block in blocks},
        chosen=kept(published.chosen),
        changed={key: (usual[key], value) for key, value in changed.items()},
        given=asked | {"small": small},
        closed="",
    )


def _in_blocks(blocks: dict[str, dict], given: dict) -> dict:
    """Return the parameters with the blocks that they leave.

    Blocks differ in a few fields. Where one of these is given, the blocks with its value stay as
    they are; if none has it, all of them would be the same runs, so the first stands for all.
    """
    left = given.get("blocks", [*blocks])
    rest = dict(given)
    for key, value in given.items():
        own = [name for name in left if key in blocks.get(name, {})]
        equal = [name for name in own if blocks[name][key] == value]
        if equal:
            del rest[key]
        if own:
            left = [name for name in left if name not in own or name in (equal or own[:1])]
    return rest | ({"blocks": left} if left != [*blocks] else {})


@functools.cache
def _read(name: str) -> Experiment:
    """Read an experiment as it was published."""
    path = evidence.path(f"experiments/{name}.toml")
    text = path.read_text("utf-8")
    content: dict[str, Any] = tomllib.loads(text)
    if base := content.pop("base", ""):  # what stands in this file replaces it key by key
        path_of_base = evidence.path(f"experiments/{base}.toml")
        content = tomllib.loads(path_of_base.read_text("utf-8")) | content
    known = config.defaults(kinds.run_class(content["fields"]["kind"]))
    grids = (_grid(known, **grid) for grid in content.pop("grids", []))
    listed = [*content.pop("arms", {}).items(), *itertools.chain.from_iterable(grids)]
    blocks, arms = content.setdefault("blocks", {"": {}}), {}
    for block in blocks:
        here = [(arm, own) for arm, own in listed if block in own.get("blocks", blocks)]
        arms[block] = dict(here)
        if len(arms[block]) < len(here):
            raise ValueError(f"{path} has two arms of one name in a block; give each its own")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Experiment(**content, name=name, arms=arms, digest=digest)


def names() -> list[str]:
    """Return the names of all experiments."""
    return sorted(path.stem for path in Path(evidence.path("experiments")).glob("*.toml"))


def digest(name: str) -> str | None:
    """Return the digest of the file with an experiment's predictions, None if it has none."""
    return load(name).digest if name in names() else None


def _grid(known, name: str, over: dict[str, list], **fields) -> Iterator[tuple[str, dict]]:
    """Yield arms by template; a key that is no field of a run or an arm is a method's option."""
    for values in itertools.product(*over.values()):
        point = dict(zip(over, values))
        rest = {k: v for k, v in point.items() if k in known or k in SCHEMA}
        options = {k: v for k, v in point.items() if k not in rest}
        arm = _merged(fields, rest | ({"options": options} if options else {}))
        yield name.format(**point), arm


def _merged(base: dict, more: dict) -> dict:
    """Return fields updated with others; options of a method are merged one by one."""
    options = base.get("options", {}) | more.get("options", {})
    return base | more | ({"options": options} if options else {})


def forget() -> None:
    """Forget what was read: files or records were added."""
    Experiment.forget()
    for cached in (_at, _read, _tracked, _known):
        cached.cache_clear()


@functools.cache
def _tracked() -> Path:
    """Return where the tracked records are.

    A chapter that asks depends on all files: a record may be added to any of them.
    """
    records.depend(tracked := records.tracked())
    return tracked


@functools.cache
def _known(folder: Path) -> dict[str, list[dict]]:
    """Return what `_find` has found in a folder so far."""
    return {}


def _find(keys: Iterable[str], folder: Path) -> dict[str, list[dict]]:
    """Return the records of runs by their key, replicates by date; what is found once is kept."""
    known = _known(folder)
    if new := [key for key in keys if key not in known]:
        found = records.index_of(folder).find(new)
        known |= {key: found.get(key, []) for key in new}
    return known
