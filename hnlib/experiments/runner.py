"""Carry out many trainings, or other jobs: one after the other, in processes, or on Ray's machines.

Pages, `hnlib queue`, the null model and `hnlib run --grid` all use it.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hnlib import _files
from hnlib.training import records
from hnlib.training.config import Engine

POSIX = os.name == "posix"
#: Of a worker that ended without a word, which others share
LOST = (
    "a worker was killed, as happens where memory runs out; give a smaller batch_size or fewer "
    "workers at once; the same call goes on with what is not recorded"
)


def spread(function: Callable, jobs: Iterable, engine: Engine) -> Iterator[tuple[Any, Any]]:
    """Yield each job with what `function(job)` returned, or with the exception that it raised."""
    yield from {"here": _here, "processes": _processes, "ray": _ray}[engine.engine](
        function, jobs, engine
    )


def _here(function: Callable, jobs: Iterable, engine: Engine) -> Iterator[tuple[Any, Any]]:
    for job in jobs:
        try:
            done = function(job)
        except Exception as error:
            done = error
        yield job, done


def _processes(function: Callable, jobs: Iterable, engine: Engine) -> Iterator[tuple[Any, Any]]:
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads
    devices, seen = context.SimpleQueue(), visible_devices()
    for i in range(engine.workers):
        devices.put(seen[i % len(seen)] if seen else None)
    with ProcessPoolExecutor(engine.workers, context, _start_worker, (devices,)) as pool:
        others = multiprocessing.active_children()
        with _ctrl_c_waits():  # a worker inherits that, until it can be interrupted
            running = {pool.submit(_work, function, job): job for job in jobs}
        workers = [one.pid for one in multiprocessing.active_children() if one not in others]
        try:
            for ended in as_completed(running):
                error = ended.exception()
                if isinstance(error, BrokenProcessPool):
                    error = ChildProcessError(LOST)
                yield running[ended], error or ended.result()
        except BaseException:
            for pid in filter(None, workers if POSIX else ()):  # elsewhere that would kill it
                with suppress(OSError):
                    os.kill(pid, signal.SIGINT)
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Deliver Ctrl-C after the block."""
    if not POSIX:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def visible_devices() -> list[str]:
    """Return the GPUs of this process as $CUDA_VISIBLE_DEVICES names them."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [*map(str, range(count))])[:count]


class _Stop:
    """Ctrl-C in a worker: it ends the job at hand, once, and refuses those that follow."""

    asked = working = False

    def __call__(self, *_) -> None:
        again, self.asked = self.asked, True
        if self.working and not again:  # the state of a training is written meanwhile
            raise KeyboardInterrupt


_stop = _Stop()


def _start_worker(devices) -> None:
    """Take a GPU from the queue, if there are any, and one thread."""
    signal.signal(signal.SIGINT, _stop)
    if POSIX:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if (device := devices.get()) is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device  # before torch looks for them
    import torch

    torch.set_num_threads(1)


def _work(function: Callable, job):
    """Return what a job returns, in a worker; KeyboardInterrupt after Ctrl-C."""
    if _stop.asked:
        raise KeyboardInterrupt
    _stop.working = True
    try:
        return function(job)
    except KeyboardInterrupt:
        _stop.asked = True
        raise
    finally:
        _stop.working = False


def _ray(function: Callable, jobs: Iterable, engine: Engine) -> Iterator[tuple[Any, Any]]:
    """Ray copies the checkout to the machines of its cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when it is imported
    import logging

    import ray
    from ray.exceptions import RayError

    copied = {"working_dir": str(_files.project_root()), "excludes": ["/.git", "/.venv", "/_build"]}
    quiet = dict(log_to_driver=False, logging_level=logging.ERROR)
    ray.init(address=engine.address, runtime_env=copied, **quiet)
    try:
        has = ray.cluster_resources()
        gpus = min(1, has.get("GPU", 0)) if engine.gpus is None else engine.gpus

        def call(job):
            if not gpus:
                os.environ["CUDA_VISIBLE_DEVICES"] = ""
            return function(job)

        if engine.cpus > has.get("CPU", 0) or gpus > has.get("GPU", 0):  # it would wait
            raise ValueError(
                f"a job needs {engine.cpus:g} cores and {gpus:g} GPUs; the cluster has "
                f"{has.get('CPU', 0):g} and {has.get('GPU', 0):g}"
            )
        # one worker a job, as if each had been started by hand
        task = ray.remote(max_calls=1, num_cpus=engine.cpus, num_gpus=gpus)(call)
        running = {task.remote(job): job for job in jobs}
        while running:
            (ended,), _ = ray.wait([*running])
            try:
                done = ray.get(ended)
            except RayError as error:
                done = getattr(error, "cause", None) or ChildProcessError(LOST)
            yield running.pop(ended), done
    finally:
        ray.shutdown()


def train(
    runs: Iterable,
    *,
    device: str = "auto",
    minutes: float | None = None,
    engine: str | dict | Engine | None = None,
    data_root: Path | None = None,
    record_to: Path | None = None,
    method: Callable | None = None,
    finished: Callable | None = None,
    keep: bool = False,
    step: str = "eager",
    leave_out: tuple[type[Exception], ...] = (),
) -> int:
    """Train runs and append their records to one folder; return how many were recorded.

    Parameters
    ----------
    runs
        What to train, in this order.
    device
        "auto", "cpu" or "cuda".
    minutes
        Stop after these, inside a run at the end of an epoch; the same call goes on from there, on
        any machine.
    engine
        "here" (default), "processes" or "ray", or an `Engine`, or its fields. Processes take turns
        on the GPUs.
    data_root
        Of the data sets (default: $HNLIB_DATA or the cache).
    record_to
        Folder of the records (default: `_build/results`).
    method
        Called with a run, returns its loss, or None for the method that the run names.
    finished
        Called with a run and its record, or the exception for which it was left out.
    keep
        Save each trained model beside the records (`kept`).
    step
        "eager", "compiled" or "graph", as for `train`. No seed is compared across them.
    leave_out
        Exceptions for which a run is left out instead of ending everything.
    """
    runs, done = [*runs], 0
    engine = Engine.of(engine)
    if device == "cpu" and engine.gpus is None:
        engine = replace(engine, gpus=0)
    folder, remote = record_to or records.default_folder(), engine.engine == "ray"
    end = time.time() + 60 * minutes if minutes else None  # the clock that machines share
    one = functools.partial(
        _train_one,
        device=device,
        data_root=data_root,
        end=end,
        folder=None if remote else folder,
        method=method,
        keep=keep,
        step=step,
        progress=engine.engine == "here" and sys.stderr.isatty(),
    )
    begun = (unfinished(run, folder) for run in runs)
    states = [path.read_bytes() if remote and path.exists() else None for path in begun]
    with _bar(len(runs)) as bar:
        for (run, _), outcome in spread(one, zip(runs, states), engine):
            if isinstance(outcome, dict):
                records.append(outcome, folder)
                unfinished(run, folder).unlink(missing_ok=True)
                done += 1
            elif isinstance(outcome, OutOfTime):  # others may have ended in time
                if outcome.state:
                    _files.write_atomically(unfinished(run, folder), outcome.state)
                continue
            elif not isinstance(outcome, leave_out):
                raise outcome
            if finished:
                finished(run, outcome)
            bar.update()
    return done


class OutOfTime(Exception):
    """The minutes have passed; `state` is the checkpoint of a run on another machine, if any."""

    def __init__(self, state: bytes | None = None):
        super().__init__(state)
        self.state = state


def unfinished(run, folder: Path) -> Path:
    """Return the checkpoint of a run whose record goes to a folder."""
    return folder.parent / "unfinished" / f"{run.name}.pt"


def kept(run, folder: Path | None = None) -> Path:
    """Return where the model of a run is saved whose record goes to a folder."""
    return (folder or records.default_folder()).parent / "models" / f"{run.name}.safetensors"


def _train_one(job, *, end, folder, **execution) -> dict:
    """Return the record of a run that is trained in this process.

    The job is the run and the state from which it goes on; without a folder, that is, on another
    machine than the caller's, the checkpoint is kept for the time of this call.
    """
    (run, state), how = job, execution | {"end": end, "folder": folder}
    if folder:
        return _train_until(run, checkpoint=unfinished(run, folder), **how)
    with tempfile.TemporaryDirectory() as place:
        checkpoint = Path(place) / "unfinished.pt"
        if state:
            checkpoint.write_bytes(state)
        try:
            return _train_until(run, checkpoint=checkpoint, **how)
        except OutOfTime:
            raise OutOfTime(checkpoint.read_bytes() if checkpoint.exists() else None) from None


def _train_until(run, *, end, folder, checkpoint, method, keep, **execution) -> dict:
    """Return the record of a run; OutOfTime if the clock passes `end` before it ends."""
    from hnlib import experiments
    from hnlib.training.train import Interrupted, train

    left = None if end is None else (end - time.time()) / 60
    if left is not None and left <= 0:
        raise OutOfTime
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    try:
        trained = train(
            run,
            method=method and method(run),
            checkpoint=checkpoint,
            predictions=experiments.digest(run.experiment),
            minutes=left,
            save=kept(run, folder) if keep else None,
            **execution,
        )
    except Interrupted:
        if left is not None and time.time() >= end:
            raise OutOfTime from None
        raise
    return trained.record


def _bar(runs: int):
    """Return a bar with the time that is left; it is shown only where a person looks.

    What executes a notebook for a terminal names the terminal in $HNLIB_PROGRESS.
    """
    from tqdm.auto import tqdm

    if terminal := os.environ.get("HNLIB_PROGRESS"):
        return tqdm(total=runs, unit="run", file=Path(terminal).open("w"), disable=False)
    looking = sys.stderr.isatty() or "JPY_PARENT_PID" in os.environ
    return tqdm(total=runs, unit="run", disable=not looking or "TQDM_DISABLE" in os.environ)
