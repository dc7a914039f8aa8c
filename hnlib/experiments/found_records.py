"""What was recorded for a design: its replicates, scores and chosen arms.

Records are found by equality of what was chosen, so that an option that is added later cannot widen
a selection.
"""

from __future__ import annotations

import functools
import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd

from hnlib._files import own_name
from hnlib.experiments import comparisons
from hnlib.experiments.design import Design, load, merged
from hnlib.training import config, records, store


def recorded(name: str, **parameters) -> Found:
    """Return what was recorded for a design, by its name and parameters as for `load`."""
    return found(load(name, **parameters))


def found(design: Design) -> Found:
    """Return what was recorded for a design.

    It is the same object until records are added or superseded, or data of yours change. With
    ``$HNLIB_RECALL`` only tracked records count for a published run.
    """
    recalled = "HNLIB_RECALL" in os.environ and not design.changed
    indices = records.indices(own=not recalled)
    _depend(indices[0])
    _, dataset = design.changed.get("dataset", ("", ""))
    return _found(design, indices, own_name(dataset))


@functools.lru_cache(maxsize=128)
def _found(design: Design, indices: tuple, _: str) -> Found:
    return Found(design, indices)


@functools.lru_cache(maxsize=1)
def _depend(_) -> None:
    """Note that a chapter depends on all tracked files: any of them may get a record."""
    records.depend(records.tracked())


def kept(method: Callable) -> Callable:
    """Keep what a method returns, for each of its arguments, as long as its object lives."""

    @functools.wraps(method)
    def keeping(self, *args, **named):
        known = self.__dict__.setdefault("_kept", {})
        call = method.__name__, args, *sorted(named.items())
        if call not in known:
            known[call] = method(self, *args, **named)
        return known[call]

    return keeping


class Found:
    """The records of a design's runs, as they were when it was made.

    Parameters
    ----------
    design
        What was planned.
    indices
        Which runs the folders have whose records count, by falling rank.
    """

    def __init__(self, design: Design, indices: tuple):
        self.design, self.indices = design, indices

    @kept
    def arm(self, name: str, block: str = "") -> dict[str, Any] | None:
        """Return the fields of an arm in a block, or None until what chooses it is recorded."""
        if name in self.design.chosen:
            rule, (source, _) = self.design.chosen[name], self.candidates(name, block)
            best = source.best(rule["among"], rule["by"], block)
            return None if best is None else source.arm(best, block)
        own = self.design.own(name, block)
        base = {} if "extends" not in own else self.arm(own["extends"], block)
        return None if base is None else merged(base, own)

    def candidates(self, name, block: str = "") -> tuple[Found, list[str]]:
        """Return the arms among which a chosen arm is chosen, and where these were recorded.

        Of any other name or pattern these are the matching arms of this design.
        """
        rule = self.design.chosen.get(name, {}) if isinstance(name, str) else {}
        source = found(self.design.choosing(rule)) if "experiment" in rule else self
        return source, source.design.matching(rule.get("among", name), block)

    @kept
    def best(self, pattern: str, metric: str, block: str = "") -> str | None:
        """Return the arm with the best mean that matches a pattern, or None while runs are missing.

        The metric "validation" is that of the block's primary metric.
        """
        if metric == "validation":
            metric = self.design.metric(block).removesuffix("_validation") + "_validation"
        matching = self.design.matching(pattern, block)
        means = {name: self.mean(name, metric, block) for name in matching}
        known = {name: mean for name, mean in means.items() if mean is not None}
        return max(known, key=lambda name: known[name]) if len(known) == len(means) else None

    @kept
    def run(self, name: str, seed: int, block: str = ""):
        """Return a run of an arm, None while the arm is not chosen."""
        arm = self.arm(name, block)
        return None if arm is None else self.design.run(arm, seed, block)

    @kept
    def key(self, name: str, seed: int, block: str = "") -> str | None:
        """Return the key that identifies a run of an arm, or None while the arm is not chosen."""
        run = self.run(name, seed, block)
        return run and records.key(run.configuration)

    def planned(self) -> dict[str, tuple[str, int, str]]:
        """Return arm, seed and block of every run once, all arms of a block before the next seed.

        The keys are those of the runs.
        """
        named: dict[str | None, tuple[str, int, str]] = {}
        for seed, block in itertools.product(self.design.seeds, self.design.blocks):
            for name in self.design.names(block):
                named.setdefault(self.key(name, seed, block), (name, seed, block))
        return {key: one for key, one in named.items() if key}

    def missing(self) -> Iterator:
        """Yield the runs without a record."""
        planned = self.planned()
        recorded = self.have(planned)
        return (self.run(*one) for key, one in planned.items() if key not in recorded)

    def have(self, keys: Iterable[str]) -> set[str]:
        """Return the keys of runs that are recorded."""
        keys = [*keys]
        if self.design.watches:
            for index in self.indices:
                index.find(keys)  # all at once
            return {key for key in keys if self._of_key(key)}
        return set().union(*(index.has(keys) for index in self.indices))

    def replicates(self, name: str, seed: int, block: str = "") -> list[dict]:
        """Return all records of a run, in their order."""
        return self._of_key(self.key(name, seed, block))

    def every(self, block: str) -> list[dict]:
        """Return the records of all arms of a block."""
        arms = (self._by_seed(name, block).values() for name in self.design.names(block))
        return [*{id(one): one for several in arms for one in several}.values()]

    @kept
    def group(self, name: str, block: str = "") -> pd.DataFrame:
        """Return the rows of an arm's records, seed by seed.

        Where other collections are searched too, `transfer_ndcg` is the mean over them.
        """
        several = self._by_seed(name, block).values()
        return self._table(block).loc[[config.name(one["configuration"]) for one in several]]

    def rows(self, block: str = "", names: Iterable[str] | None = None) -> pd.DataFrame:
        """Return the rows of some arms of a block, by default of all that were not chosen."""
        names = self.design.arms[block] if names is None else names
        rows = [self.group(name, block).assign(arm=name) for name in names]
        none = self._table(block).head(0).assign(arm="")
        return pd.concat([some for some in rows if len(some)] or [none], ignore_index=True)

    def values(self, name: str, metric: str, block: str = "") -> dict[int, float]:
        """Return a metric of an arm by seed; "last_x" is x of the last epoch, "x@1" of epoch 1."""
        read_out, at, epoch = metric.partition("@")
        several = self._by_seed(name, block)
        if metric == "transfer_ndcg":
            return dict(zip(several, self.group(name, block).get(metric, ())))
        if at or metric.startswith("last_"):
            curves = dict(zip(several, self.group(name, block).get("history", ())))
            if at:
                rows = {seed: {x["epoch"]: x for x in curve} for seed, curve in curves.items()}
                return {seed: by_epoch[int(epoch)][read_out] for seed, by_epoch in rows.items()}
            last = metric.removeprefix("last_")
            return {seed: curve[-1][last] for seed, curve in curves.items()}
        for record in several.values():
            if metric not in (measured := record["metrics"]):
                have = ", ".join(sorted(measured))
                raise ValueError(f"{self.design.name} has no {metric} of {name!r}; it has {have}")
        return {seed: record["metrics"][metric] for seed, record in several.items()}

    def mean(self, name: str, metric: str, block: str = "") -> float | None:
        """Return the mean over all seeds, None if one is missing."""
        values = self.values(name, metric, block)
        return statistics.fmean(values.values()) if len(values) == len(self.design.seeds) else None

    def value_of(self, name: str, field: str, block: str = ""):
        """Return a field or an option of an arm's runs, or "gamma", their sharpness."""
        run = self.run(name, self.design.seeds[0], block).resolved()
        options = run.options
        if field == "gamma":
            transport = 1 / options["epsilon"] if "epsilon" in options else 0.0
            return (1 + options.get("beta", 0.0)) / options["temperature"] + transport
        return options[field] if field in options else getattr(run, field)

    def _by_seed(self, name: str, block: str) -> dict[int, dict]:
        """Return the records of an arm by seed."""
        keys = {seed: self.key(name, seed, block) for seed in self.design.seeds}
        several = {seed: self._of_seed(seed, block).get(key) for seed, key in keys.items() if key}
        several = {seed: record for seed, record in several.items() if record}
        records.USED.update(record["run"] for record in several.values())
        return several

    @kept
    def _of_seed(self, seed: int, block: str) -> dict[str, dict]:
        """Return the records of a seed by key, all from one processor if one has made them all.

        A block that was begun on one processor and ended on another is begun again; what the first
        processor recorded stays in the ledger. Without such a processor the first record of each
        run counts.
        """
        rules = self.design.chosen_in(block).items()
        elsewhere = [name for name, rule in rules if "experiment" in rule]
        names = [*self.design.arms[block], *elsewhere]
        keys = [*filter(None, (self.key(name, seed, block) for name in names))]
        for index in self.indices:
            index.find(keys)  # all at once
        recorded = {key: self._of_key(key) for key in keys}
        made = {key: by_processor(several) for key, several in recorded.items()}
        for processor in next(iter(made.values()), {}):
            if all(processor in one for one in made.values()):
                return {key: one[processor] for key, one in made.items()}
        return {key: several[0] for key, several in recorded.items() if several}

    def _of_key(self, key: str | None) -> list[dict]:
        """Return the records of a run by its key: the tracked ones, else those of this machine."""
        for index in self.indices if key else ():
            several = index.find([key]).get(key, [])
            if self.design.watches:
                whole = zip(several, store.complete(several), strict=True)
                several = [x for x, more in whole if self.design.watches in more["history"][-1]]
            if several:
                return several
        return []

    @kept
    def _table(self, block: str) -> pd.DataFrame:
        """Return the rows of all arms of a block by the name of their record."""
        rows = records.frame(self.every(block), scores=True)
        if rows.empty:  # then nor are there columns
            return rows
        if others := self.design.fields.get("transfer"):
            scores = rows.reindex(columns=[f"{other}_ndcg" for other in others])
            rows = rows.assign(transfer_ndcg=scores.astype(float).mean(axis=1))
        return rows.set_index("record", drop=False).rename_axis(None)


def by_processor(replicates: list[dict]) -> dict[str, dict]:
    """Return the first record of each processor, in the order of the records."""
    first: dict[str, dict] = {}
    for record in replicates:
        first.setdefault(comparisons.processor(record["environment"]["hardware"]), record)
    return first
