"""The trainings of a run: in this process or in one for each device, from what a checkpoint has of
them to the record."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.multiprocessing.spawn import ProcessException

from hnlib import _files
from hnlib._archives import said
from hnlib.training import config, records
from hnlib.training.checkpoint import Checkpoint, Run, check_like, load, room
from hnlib.training.loop import (
    COUNTS,
    Course,
    Diverged,
    Interrupted,
    Loop,
    enough_memory,
    epoch_generator,
    fastest_convolutions,
    stoppable,
)


def fit_in_processes(fabric, run, execution, own: SimpleNamespace, method) -> Run:
    """Start a process for each device and wait for their run. The launcher's own way back holds
    64 KB and knows no errors: what they leave lies in a folder."""
    others, ended = {*multiprocessing.active_children()}, None
    with tempfile.TemporaryDirectory() as name, stoppable():
        folder = Path(name)
        try:
            # as one function: Fabric takes arguments apart, and cannot take apart what is frozen
            given = dict(run=run, execution=execution, own=own, method=method, folder=folder)
            fabric.launch(partial(_fit_here, **given))
        except (KeyboardInterrupt, ProcessException) as error:
            ended = error
        left = {*multiprocessing.active_children()} - others
        for end in ("terminate", "kill"):  # the first as Ctrl-C does
            for process in left:
                getattr(process, end)()
            for process in left:
                process.join(30)
        for error in sorted(folder.glob("error-*")):
            kind, text = json.loads(error.read_text())
            # where another has ended, this one was stopped for it
            if kind != "KeyboardInterrupt" or not isinstance(ended, ProcessException):
                known = dict(Diverged=Diverged, OSError=OSError, KeyboardInterrupt=Interrupted)
                raise known.get(kind, ValueError)(text) from ended
        if ended is None:
            return load(folder / "run", own.encoder, own.projector)
    checkpoint = Checkpoint(execution.checkpoint, {})
    if checkpoint.path is not None and checkpoint.path.exists():
        checkpoint.kept = 0
    if isinstance(ended, KeyboardInterrupt):
        raise Interrupted(f"stopped; {checkpoint.way_on()}") from ended
    reason = str(ended).strip().splitlines()[-1]
    raise ChildProcessError(
        f"a process of devices={execution.devices} ended ({reason}); {checkpoint.way_on()}"
    ) from ended


def _fit_here(fabric, run, execution, own, method, folder: Path) -> None:
    """`fit` in a process of its own; the first one leaves the run, any one its error."""
    try:
        done = fit(fabric, run, execution, own, method)
        if fabric.global_rank == 0:
            done.save(folder / "run")
    except (ValueError, OSError, KeyboardInterrupt) as error:
        kinds = (Diverged, ValueError, OSError, KeyboardInterrupt)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        left = json.dumps([kind.__name__, str(error) or "stopped"])
        _files.write_atomically(folder / f"error-{fabric.global_rank}", left.encode())


def fit(fabric, run, execution, own: SimpleNamespace, method) -> Run:
    """The run, trained and measured, with all that is to be written of it on disk."""
    task = room(type(run)).Task(run, execution, own, method, fabric.device)
    run = task.run
    if fabric.world_size > 1 and fabric.device.type == "cpu" and looks_at_batch(own):
        run = task.run = replace(run, devices=fabric.world_size)
    if execution.checkpoint or execution.record_to:
        run.refuse_unnamed()
        records.check_run(run)
    record = execution.record_to and execution.record_to / f"{run.name}.json"
    places = [place for place in (execution.checkpoint, record, execution.save) if place]
    # Nothing here touches the caller's random state, and nothing in it touches us.
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        stack.enter_context(fastest_convolutions())
        stack.enter_context(stoppable())
        _hold(stack, fabric, places, record)
        trainings = Trainings(fabric, task, method, execution)
        with enough_memory(fabric.device, run.batch_size):
            trainings.train()
        done = trainings.finish()
    return done


def _hold(stack: ExitStack, fabric, files: list[Path], record: Path | None) -> None:
    """Keep other processes from making the same files, and see that they can be written.
    ValueError, on all devices: they cannot."""
    refused = None
    try:
        if len({os.path.realpath(file) for file in files}) < len(files):
            raise ValueError(f"{files[0]} is named for two things; give each its own file")
        for file in files if fabric.global_rank == 0 else ():
            stack.enter_context(_files.only_process(file))
            _files.check_writable(file)
            if file == record and file.exists():
                records.read(file)  # which is replaced at the end, if it is one
    except (ValueError, OSError) as error:
        refused = str(error)
    if refused := fabric.broadcast(refused) if fabric.world_size > 1 else refused:
        raise ValueError(refused)


COURSE = {
    "history": [{"epoch": records.COUNT, ...: records.NUMBERS}],
    "losses": [records.EXACT],
    "seconds": [records.SECONDS],
    "epoch": records.COUNT,
    "step": records.COUNT,
}
#: The numbers and words of a state (`records.fits`).
STATE = COURSE | {
    "finished": [COURSE],
    "sessions": [records.ENVIRONMENT | {"seconds": records.SECONDS}],
    "record": (lambda v: v is None or isinstance(v, str), "a word or null"),
    **dict.fromkeys(COUNTS, records.COUNT),
}


class Trainings:
    """All trainings of a run, one after the other, from what a checkpoint has of them to the
    record. `model`: the first one's."""

    def __init__(self, fabric, task, method, execution: config.Execution):
        self.fabric, self.task, self.method, self.execution = fabric, task, method, execution
        self.writes = fabric.global_rank == 0  # all do the same work, one keeps it
        self.checkpoint = Checkpoint(execution.checkpoint, task.run.configuration, self.writes)
        # now: the sources may be edited while this runs
        self.environment, self.begun = records.environment(fabric.device), time.perf_counter()
        if fabric.world_size > 1:
            self.environment["hardware"]["devices"] = fabric.world_size
        self.courses, self.before, self.model, self.record = [], [], None, None

    def train(self) -> None:
        """Train what is not trained yet."""
        resumed, found, parts = None, None, self.task.parts
        if self.execution.resume:
            found = self.checkpoint.read(self.fabric.device, len(parts))
        if found:
            resumed = self._resumed(*found)
        for part in parts[len(self.courses) :]:
            self.loop = resumed or self._loop(part)
            resumed = None
            shown = self.execution.progress and self.writes
            self.loop.train(self.task.look, self.checkpoint, self.keep, shown)
            self.courses.append(self.loop.course)
            self.model = self.loop.model if self.model is None else self.model

    def _loop(self, part) -> Loop:
        run, execution = self.task.run, self.execution
        every = run.evaluate_every if execution.evaluate_every is None else execution.evaluate_every

        def due(epoch: int) -> bool:
            return epoch in execution.evaluate_at or bool(every and epoch % every == 0)

        return Loop(self.fabric, part, self.method, run, due)

    def _resumed(self, state: dict, theirs: dict) -> Loop:
        """The training that was under way. ValueError: the state is not one of such a run."""
        try:
            records.fits(json.loads(config.canonical({k: state[k] for k in STATE})), STATE)
            self.courses = [Course(**course) for course in state["finished"]]
            self.before = list(state["sessions"])
            if any("seconds" not in session for session in self.before):
                raise ValueError("a session lacks its seconds")
            if theirs["epochs"] == self.task.run.epochs and state["record"] is not None:
                self.record = json.loads(state["record"])
                records.check(json.loads(config.canonical(self.record)))
                if self.record["configuration"] != theirs:
                    raise ValueError("its record is of another run")
            if self.courses:
                self.model = self.task.parts[0].model().to(self.fabric.device)
            check_like("first", state["first"], self.model and self.model.state_dict())
            if self.model is not None:
                self.model.load_state_dict(state["first"])
            loop = self._loop(self.task.parts[len(self.courses)])
            loop.load_state_dict(state, theirs["epochs"])
            for course, part in zip([*self.courses, loop.course], self.task.parts):
                self._check_course(course, part, course is loop.course)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"the checkpoint {self.checkpoint.path} does not fit the run that it names "
                f"({said(error)}); delete it or pass another path"
            ) from error
        return loop

    def _check_course(self, course: Course, part, under_way: bool) -> None:
        """ValueError: so many epochs of this training leave another course."""
        run, done = self.task.run, course.epoch
        steps = done * len(part.batches(epoch_generator(part, run.seed, 0)))
        epochs = [row.get("epoch") for row in course.history]
        ended = done == run.epochs or course.step == run.max_steps
        if not (
            done == len(course.losses) == len(course.seconds) <= run.epochs
            and course.step == min(steps, run.max_steps or steps)
            and epochs == sorted({*epochs} & {*range(done + 1)})
            and (epochs[-1:] == [done] if ended else under_way)
            and all(row.keys() >= self.task.ROW for row in course.history)
        ):
            raise ValueError(f"its losses or its history are not those of {done} epochs")

    def sessions(self) -> list[dict]:
        """The processes that worked on the run, this one last."""
        seconds = round(time.perf_counter() - self.begun, 3)
        return [*self.before, self.environment | {"seconds": seconds}]

    def keep(self, loop: Loop) -> None:
        """Write the state that is reached to the checkpoint."""
        try:
            self.checkpoint.save(self.state())
        except OSError as error:
            raise OSError(f"{error}; {self.rescued()}") from error

    def state(self) -> dict:
        finished = [asdict(course) for course in self.courses if course is not self.loop.course]
        first = self.model.state_dict() if finished else None
        # words, because a state of torch's holds no number of NumPy's
        record = self.record and json.dumps(self.record, default=repr)
        about = dict(finished=finished, first=first, record=record, sessions=self.sessions())
        return self.loop.state_dict() | about

    def finish(self) -> Run:
        """Measure what is trained, unless that was done before, and write it where it is wanted."""
        to, save = self.execution.record_to, self.execution.save
        try:
            if self.record is None:
                with enough_memory(self.fabric.device, self.task.run.batch_size):
                    self.record = self._measured()
                self.checkpoint.save(self.state())
            run = Run(self.record, self.model.eval(), self.method)
            if to is not None and self.writes:
                records.write(run.record, to, overwrite=True)
            if save is not None and self.writes:
                run.save(save)
        except BaseException as error:  # what was trained does not go with it
            told = f"{' '.join(str(error).split()) or 'stopped'}; {self.rescued()}"
            told_as = {KeyboardInterrupt: Interrupted, ValueError: ValueError, OSError: OSError}
            for kind in told_as:
                if isinstance(error, kind):
                    raise told_as[kind](told) from error
            error.add_note(told)
            raise
        return run

    def _measured(self) -> dict:
        found = self.task.measure(self.model, self.courses, self.fabric.device)
        counts = {name: int(getattr(self.method, name, 0)) for name in COUNTS}
        found["metrics"] |= counts | {"peak_memory_mb": peak_memory(self.fabric.device)}
        sessions = self.sessions()
        seconds = round(sum(session["seconds"] for session in sessions), 3)
        return (
            {"configuration": self.task.run.configuration}
            | found
            | {"environment": self.environment, "seconds": seconds, "sessions": sessions}
        )

    def rescued(self) -> str:
        """Where the state that is reached is now: in the checkpoint, else in a file made for it."""
        if not self.writes or not self.loop.course.step:
            return "nothing is lost with it"
        if self.checkpoint.kept == self.loop.course.epoch:
            return self.checkpoint.way_on()
        for folder in (tempfile.gettempdir, Path.cwd, Path.home):
            try:
                place = tempfile.mkdtemp(prefix="hnlib-", dir=folder())  # of a name nobody foresees
                path = Path(place) / f"{self.task.run.name}.pt"
                Checkpoint(path, self.checkpoint.configuration).save(self.state())
            except (OSError, RuntimeError):  # it is full, or there is none
                continue
            return f"the trained state is in {path}: go on from there with --checkpoint {path}"
        return "no place was found for the trained state, which is lost"


def looks_at_batch(own: SimpleNamespace) -> bool:
    """Whether a part of the model has batch statistics: those that are built by name do."""
    norm = nn.modules.batchnorm._BatchNorm  # pyright: ignore[reportPrivateUsage]
    parts = (own.encoder, own.projector)
    return any(p is None or any(isinstance(m, norm) for m in p.modules()) for p in parts)


def peak_memory(device: torch.device) -> float | None:
    """MB: of the GPU, or of the whole process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
