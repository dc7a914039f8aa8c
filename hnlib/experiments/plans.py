"""What is left to train: how many runs, where, for how long, with how much memory.

Rates and peaks are those of recorded runs: of this machine if it has made any like them, else of
another one with the same kind of device.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hnlib.experiments.design import Design
from hnlib.experiments.found_records import found
from hnlib.experiments.words import DASH, machine
from hnlib.training import kinds, records
from hnlib.training.config import Engine, canonical, defaults
from hnlib.training.index import setting_of

UNKNOWN = "unknown"
ALONE = "One seed, so no bar and no interval, whatever captions say: {}."
HEADS = ("experiment", "runs", "recorded", "to train", "minutes", "as on")


class Cost(NamedTuple):
    """What a run will take: seconds, bytes, and whose rates these are; None: nothing is known."""

    seconds: float | None
    memory: float | None
    machine: str | None


def cost(run, hardware: dict, indices: Iterable | None = None) -> Cost:
    """Return about what a run takes on some hardware, as `records.environment` describes it.

    Rates are those of the records of `indices`, by default the tracked ones and your runs'. If
    only other sizes of the same data are recorded, seconds are taken to grow with the size.
    """
    chosen, here = run.configuration, machine(hardware)
    setting = setting_of(chosen)
    alike = [
        (one, ratio)
        for index in (records.indices() if indices is None else indices)
        for one in index.costs.get(setting, ())
        if ("gpu" in one.hardware) == ("gpu" in hardware)
        and (ratio := _ratio(chosen.get("train_size"), one.train_size))
    ]
    alike = [pair for pair in alike if pair[1] == 1] or alike
    own = [pair for pair in alike if machine(pair[0].hardware) == here]
    if not alike:
        return _by_speed(run, hardware)
    pace = statistics.median(one.pace * ratio for one, ratio in own or alike)
    peaks = [
        one.memory for one, _ in alike if one.memory and one.batch_size == chosen.get("batch_size")
    ]
    made = Counter(machine(one.hardware) for one, _ in own or alike).most_common(1)[0][0]
    seconds = pace * (chosen.get("epochs") or 1)
    return Cost(seconds, max(peaks, default=None), "this machine" if own else made)


def costs(runs: Iterable, hardware: dict, indices: Iterable | None = None) -> list[Cost]:
    """Return the cost of each run; runs that differ by their seeds alone are looked up once."""
    indices = [*(records.indices() if indices is None else indices)]
    known, found = {}, []
    for run in runs:
        setting = canonical(run.configuration | {"seed": None})
        if setting not in known:
            known[setting] = cost(run, hardware, indices)
        found.append(known[setting])
    return found


def _by_speed(run, hardware: dict) -> Cost:
    """Return what a run of images takes by the rates of `hnlib speed`, if they were measured here.

    The method may be another: all but transport take about as long. A read-out takes 15 s.
    """
    if run.kind == "images":
        from hnlib.images import registry, speed

        chosen, rates = run.resolved(), speed.recorded(hardware)
        images = chosen.train_size or registry.training_images(chosen.dataset)
        places = [(chosen.encoder, name, chosen.precision) for name in (chosen.method, "simclr")]
        rate = next((rates[place] for place in places if place in rates), None)
        if images and rate:
            seconds = 2 * images * chosen.epochs / rate + 15
            return Cost(seconds, None, "this machine's hnlib speed")
    return Cost(None, None, None)


def _ratio(asked: int | None, recorded: int | None) -> float | None:
    """Return how much longer an epoch is than a recorded one; None if one of the sizes is unknown.

    A size of None is that of the whole data set.
    """
    if asked == recorded:
        return 1
    return asked / recorded if asked and recorded else None


@dataclass(frozen=True)
class Row:
    """The plan of one experiment: its runs, those that are recorded, and costs of the others."""

    name: str
    runs: int
    left: tuple[Cost, ...]
    waits: tuple[str, ...]  # arms that are not chosen yet
    closed: str
    alone: bool = False  # whether one seed was asked for, of data without folds
    beside: bool = False  # whether changed runs are compared with recorded ones

    @property
    def minutes(self) -> float:
        """How long those of known cost take, one after the other."""
        return sum(one.seconds or 0 for one in self.left) / 60

    @property
    def unknown(self) -> int:
        """How many there are of unknown cost."""
        return sum(one.seconds is None for one in self.left)

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table shows."""
        if self.closed or not self.left:
            time, places = DASH, DASH
        else:
            time = UNKNOWN if self.unknown else f"{self.minutes:,.1f}"
            places = ", ".join(sorted({one.machine for one in self.left if one.machine})) or DASH
        left = len(self.left)
        to_train = "closed" if self.closed and left else f"{left:,}"
        return self.name, f"{self.runs:,}", f"{self.runs - left:,}", to_train, time, places


@dataclass(frozen=True)
class Plan:
    """What is left to train; `str()` is a table with a line for each experiment.

    Parameters
    ----------
    rows
        One for each experiment.
    where
        The device, and how many processes share the work.
    """

    rows: tuple[Row, ...]
    where: str
    workers: int = 1

    @property
    def open(self) -> list[Row]:
        """The experiments that are not closed."""
        return [row for row in self.rows if not row.closed]

    @property
    def left(self) -> int:
        """How many runs are to be trained."""
        return sum(len(row.left) for row in self.open)

    @property
    def minutes(self) -> float:
        """How long those of known cost take, shared by the processes."""
        return sum(row.minutes for row in self.open) / self.workers

    def __str__(self) -> str:
        cells = [row.cells for row in self.rows]
        widths = [max(map(len, column)) for column in zip(HEADS, *cells)]
        lines = []
        for line in (HEADS, *cells):
            first, *middle, last = (
                text.ljust(width) if i in (0, 5) else text.rjust(width)
                for i, (text, width) in enumerate(zip(line, widths))
            )
            lines.append("  ".join([first, *middle, last]).rstrip())
        return "\n".join([*lines, *self._sentences()])

    def _sentences(self) -> Iterable[str]:
        if not self.left:
            yield "Nothing is left to train."
        else:
            how = f"in {self.workers} processes " * (self.workers > 1)
            runs = f"{self.left:,} run{'s' * (self.left != 1)}"
            unknown = sum(row.unknown for row in self.open)
            time = self._known(f"about {self.minutes:,.1f} min", unknown)
            every = [one.memory for row in self.open for one in row.left]
            most = max((one for one in every if one), default=0) / 2**30
            memory = self._known(f"at most {most:.1f} GB each", sum(not one for one in every))
            yield f"In all {runs} to train {how}on {self.where}: time {time}; memory {memory}."
        if alone := [row.name for row in self.open if row.alone]:
            yield ALONE.format(", ".join(alone))
        if beside := [row.name for row in self.open if row.beside and row.left]:
            yield (
                f"{', '.join(beside)}: what is recorded may be of another processor than yours, "
                "which rounds differently."
            )
        for row in self.rows:
            if row.waits and not row.closed:
                yield f"{row.name}: more once validation has chosen {', '.join(row.waits)}."
            if row.closed and row.left:
                yield f"{row.name}: {row.closed}."

    def _known(self, text: str, unknown: int) -> str:
        """Return a text about the runs of known cost, and for how many it is unknown."""
        if unknown == self.left:
            return UNKNOWN
        if not unknown:
            return text
        return f"{text} for {self.left - unknown:,} of them, {UNKNOWN} for the rest"


def is_alone(design: Design) -> bool:
    """Return whether one seed was asked for, of data without folds, which have an interval."""
    folds = "folds" in defaults(kinds.run_class(design.fields["kind"]))
    return "seeds" in design.changed and len(design.seeds) == 1 and not folds


def plan(*designs: Design, device: str = "auto", engine: str | dict | Engine | None = None) -> Plan:
    """Return what is left to train of designs on a device; nothing is trained.

    Parameters
    ----------
    *designs
        One line of the table each, unless a line of the same name has all its runs. A run of two
        of them counts for the first.
    device
        "auto", "cpu" or "cuda".
    engine
        As for `runner.train`: the minutes are shared by its processes.
    """
    hardware = records.environment(_device(device))["hardware"]
    seen, rows = set(), []
    for design in designs:
        have = found(design)
        waits = dict.fromkeys(
            name
            for block in design.blocks
            for name in design.chosen_in(block)
            if have.arm(name, block) is None
        )
        left = {records.key(run.configuration): run for run in have.missing()}
        new = costs((run for key, run in left.items() if key not in seen), hardware, have.indices)
        seen |= left.keys()
        runs = len(have.planned()) - len(left) + len(new)  # without arms not chosen yet
        if left and not runs and any(row.name == design.name for row in rows):
            continue  # all of it is in an earlier line, as of what chooses for two
        alone = is_alone(design)
        beside = bool(design.changed) and runs > len(new)
        rows.append(Row(design.name, runs, tuple(new), tuple(waits), design.closed, alone, beside))
    spread = Engine.of(engine)
    workers = spread.workers if spread.engine == "processes" else 1
    return Plan(tuple(rows), machine(hardware), workers)


def _device(name: str):
    import torch

    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise ValueError("device='cuda' is not possible here: torch sees no GPU; give 'cpu'")
    if name == "auto":
        name = "cuda" if there else "cpu"
    return torch.device(name)
