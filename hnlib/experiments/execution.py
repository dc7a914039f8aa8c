"""Carry out designs: train the runs that have no record, and say where all were made."""

from __future__ import annotations

import functools
import itertools
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hnlib.experiments import runner
from hnlib.experiments.design import Design
from hnlib.experiments.found_records import Found, found
from hnlib.experiments.null_files import method_of
from hnlib.experiments.plans import ALONE, is_alone, plan
from hnlib.experiments.words import where
from hnlib.training import config, records

if TYPE_CHECKING:
    from hnlib.training.checkpoint import TrainedRun


class OutOfMinutes(Exception):
    """The minutes have passed before the last run."""


class Planned(Exception):
    """What was to be trained, instead of a training: $HNLIB_PLAN asks for that."""


def train(design: Design, *, minutes: float | None = None, **how) -> Found:
    """Train the runs without a record; say what differs from the published, and what ran where.

    Parameters
    ----------
    design
        What to train.
    minutes
        Train seed by seed and stop after these, with what is whole; the same call goes on.
    **how
        As for `runner.train`: ``device``, ``engine``, ``keep``, ``data_root``, ``method``,
        ``step``.

    Returns
    -------
    Found
        All that is recorded now, with fewer seeds than the design if the minutes ended before.

    Raises
    ------
    ValueError
        If the minutes have passed before the first seed is whole.

    Notes
    -----
    With ``$HNLIB_RECALL``, as `make book` sets it, no published run is trained, and records that
    are not tracked are not read for one. No run of a closed experiment is ever trained.
    """
    return train_all([design], minutes=minutes, **how)[0]


def train_all(designs: Iterable[Design], *, minutes: float | None = None, **how) -> list[Found]:
    """Train several designs as `train` does, one after the other, all within the same minutes.

    With minutes the first seed of all of them comes before the second of any. Raises ValueError if
    one of them shares a run with another that it repeats or confirms.
    """
    designs = [*designs]
    _check(how.get("device", "auto"), how.get("engine"), minutes)
    for one, other in itertools.permutations(designs, 2):
        if other.name in one.after and found(one).planned().keys() & found(other).planned().keys():
            raise ValueError(
                f"{one.name} repeats or confirms {other.name} and would have its runs; give how "
                "many seeds, not which"
            )
    every = _with_choosers(designs)
    work = plan(*every, device=how.get("device", "auto"), engine=how.get("engine"))
    lost = _lost(designs) if how.get("keep") else 0
    again = f"\nModels trained anew, because those recorded were not kept: {lost}." if lost else ""
    if "HNLIB_PLAN" in os.environ:
        raise Planned(f"{work}{again}")
    if any(one.changed for one in designs) or (work.left and "HNLIB_RECALL" not in os.environ):
        print(f"{work}{again}")
    if config.Engine.of(how.get("engine")).engine != "ray":  # whose machines have their own data
        _check_data(every, how.get("data_root"))
    if minutes and "HNLIB_RECALL" not in os.environ:
        designs = _whole(designs, minutes, **how)
    return [_train(one, **how) for one in designs]


def _check(device, engine, minutes) -> None:
    """Raise ValueError for what cannot be carried out, before anything is planned."""
    try:
        config.Execution(device=device, minutes=minutes, checkpoint=Path("unfinished.pt"))
        config.Engine.of(engine)
    except ValidationError as error:
        raise ValueError(config.sentence(error)) from None


def _lost(designs: Iterable[Design]) -> int:
    """Return how many recorded runs of changed designs have no model; `model` trains these anew."""
    count = 0
    for have in (found(one) for one in designs if one.changed):
        planned = have.planned()
        runs = (have.run(*planned[key]) for key in have.have(planned))
        count += sum(not runner.kept(run).is_file() for run in runs)
    return count


def _whole(designs: list[Design], minutes: float, **how) -> list[Design]:
    """Train designs seed by seed for some minutes; return them with the seeds that are whole.

    Those of which nothing is left to train keep all. Raises ValueError if no seed is whole by then.
    """
    end, most = time.time() + 60 * minutes, max(len(one.seeds) for one in designs)
    whole = []
    for count in range(1, most + 1):
        these = [one.first(count) for one in designs]
        try:
            for one in these:
                _train_missing(one, end, **how)
        except OutOfMinutes:
            said = _left(designs, count - 1, how)
            if not whole:
                raise ValueError(said) from None
            print(said)
            designs = [one if _is_over(one) else part for one, part in zip(designs, whole)]
            if alone := [one.name for one in designs if is_alone(one)]:
                print(ALONE.format(", ".join(alone)))
            return designs
        whole = these
    return whole


def _is_over(design: Design) -> bool:
    """Return whether no run of a design is left to train."""
    return bool(design.closed) or not any(found(design).missing())


def _left(designs: list[Design], whole: int, how: dict) -> str:
    """Say how many seeds are whole, what is left, and what a further hour adds."""
    device, engine = how.get("device", "auto"), how.get("engine")
    counts = range(whole + 1, max(len(one.seeds) for one in designs) + 1)
    works = [plan(*(x.first(n) for x in designs), device=device, engine=engine) for n in counts]
    more, every = sum(one.minutes <= 60 for one in works), works[-1]
    known = all(row.unknown == 0 for row in every.open)
    about = f", about {every.minutes:,.1f} min; a further hour makes it {whole + more}" * known
    left = "1 run is left" if every.left == 1 else f"{every.left} runs are left"
    return (
        f"the minutes have passed: {whole} of {counts[-1]} seeds are whole, and {left}{about}; "
        "the same call goes on from there"
    )


def _with_choosers(designs: Iterable[Design]) -> dict[Design, None]:
    """Return designs, each after those that choose its arms."""
    every: dict[Design, None] = {}
    for one in designs:
        every |= _with_choosers(one.choosers())
        every.setdefault(one)
    return every


def _check_data(designs: Iterable[Design], root: Path | str | None) -> None:
    """Raise ValueError for data that are missing, before hours of training on others."""
    seen = set()
    for one in filter(_is_trained, designs):
        for run in found(one).missing():
            if (what := (run.dataset, getattr(run, "transfer", ()))) not in seen:
                seen.add(what)
                run.check_data(root)


def _is_trained(design: Design) -> bool:
    """Return whether runs of a design may be trained here."""
    return not design.closed and (bool(design.changed) or "HNLIB_RECALL" not in os.environ)


def told(design: Design) -> str:
    """Return what of a changed design differs from the published one, in words."""
    new = {key: value for key, (_, value) in design.changed.items()}
    if new.get("grid") and "arms" in new and new["arms"] == design.small.get("arms"):
        del new["arms"]  # points of the grid are in the place of those that small keeps
    if "blocks" in new:
        new["blocks"] = [design.title(block) for block in new["blocks"]]
    if "seeds" in new:  # how many, and which
        new["seeds"] = f"{len(design.seeds)} ({config.to_text(design.seeds)})"
    return ", ".join(f"{key} = {config.to_text(value)}" for key, value in new.items())


def _train(design: Design, **how) -> Found:
    if design.changed:
        words = "What was found in the published runs is quoted."
        print(f"Not as published: {told(design)}. {words}")
    _train_missing(design, math.inf, **how)
    for other in design.choosers():
        _made(found(other))
    have = found(design)
    print(_made(have))
    return have


def _train_missing(design: Design, until: float, **how) -> None:
    if "loss" in design.given:
        how["method"] = functools.partial(method_of, *design.given["loss"])
    if not _is_trained(design):
        return
    for other in design.choosers():
        if any(found(other).missing()):
            _train_missing(other, until, **how)
    runs = [*found(design).missing()]
    while runs:
        left = max(1e-9, until - time.time()) / 60
        done = runner.train(runs, minutes=left if left < math.inf else None, **how)
        if done < len(runs):
            raise OutOfMinutes
        first, runs = runs[0], [*found(design).missing()]  # chosen among own arms by now, too
        if first in runs:
            raise ValueError(
                f"the learning curves of {design.name} show no {design.watches!r}; pass train() "
                "the method whose observe() returns it"
            )


def _made(have: Found) -> str:
    """Note the runs as planned for the notebook; return where they were made."""
    design = have.design
    every = [one for block in design.blocks for one in have.every(block)]
    made, names = where(every), {one["run"] for one in every}
    here = " ".join([design.name, *design.blocks]).strip()  # it may choose for several, by block
    names |= {*records.PLANNED.get(here, {}).get("runs", ())}  # of other seeds or arms
    records.PLANNED[here] = {"changed": [*design.changed], "where": made, "runs": sorted(names)}
    return made


def model(have: Found, name: str, seed: int, block: str = "", device: str = "auto") -> TrainedRun:
    """Return the trained model of a run: as `train(keep=True)` saved it, else trained anew."""
    from hnlib.training.train import load as load_model
    from hnlib.training.train import train

    run, given = have.run(name, seed, block), have.design.given.get("loss", (None, ""))
    saved = runner.kept(run)
    if saved.is_file():
        return load_model(saved)
    how = dict(device=device, save=saved, evaluate_every=0, progress=False)
    return train(run, method=method_of(*given, run), **how)  # pyright: ignore[reportCallIssue]
