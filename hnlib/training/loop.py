"""The training loop for every kind of data.

The loop trains any `Task`: the task provides data, model, views, loss and evaluation; the loop
provides steps, schedules, the key queue, checkpoints and progress. `fit` trains and measures a run.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.backends import cudnn
from tqdm import tqdm

from hnlib import _checks, _files, distributed, methods
from hnlib.contrast import Contrast
from hnlib.training import config, records, step, store
from hnlib.training.checkpoint import Checkpoint, TrainedRun
from hnlib.training.task import Task

WARM_UP = 10  # steps
COUNTS = ("skipped", "unconverged")  # what a method counts while it trains


class Diverged(ValueError):
    """Loss or weights are not finite; the message names the step and the last good checkpoint."""


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C, SIGTERM or `Execution.minutes`; the message says how to resume."""


@dataclass
class Progress:
    """Progress of one training: rows of the history, loss and seconds of every epoch."""

    history: list[dict] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    epoch: int = 0
    step: int = 0


class Loop:
    """One training of one model: the state that a checkpoint keeps, and the steps that change it.

    The run of the `task` is a resolved configuration.
    """

    def __init__(self, fabric, task: Task, method: nn.Module | None, execution: config.Execution):
        run = task.run
        torch.manual_seed(run.seed)
        self.fabric, self.task, self.run, self.execution = fabric, task, run, execution
        model = task.model().to(fabric.device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        if fabric.world_size > 1 and fabric.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.model = model
        self.method: Any = nn.Identity() if method is None else method.to(fabric.device)
        parameters = [{"params": model.parameters(), "weight_decay": run.weight_decay}]
        if learned := list(self.method.parameters()):
            # no decay, of which AdamW has a default: it would pull a mixture towards equal shares
            parameters.append({"params": learned, "weight_decay": 0.0})
        adam = dict(lr=run.lr, betas=(0.9, run.beta2), fused=task.fused or None)
        kind = torch.optim.AdamW if task.decoupled else torch.optim.Adam
        optimiser = kind(parameters, **adam)
        self.trained, self.optimiser = fabric.setup(model, optimiser)
        self.criterion: Any = self.method  # as it is called: perhaps compiled
        self.queue = KeyQueue(model, run) if run.queue else None
        self.progress, self.scheduled, self._embedded = Progress(), {}, ()
        self.supervised = needs(self.method, "supervised")
        self.conditions = _checks.Deferred()
        self.step = step.make(execution.step, self)

    @property
    def finished(self) -> bool:
        """Return whether the training is over."""
        run, progress = self.run, self.progress
        return progress.epoch >= run.epochs or progress.step >= (run.max_steps or math.inf)

    def should_evaluate(self, epoch: int) -> bool:
        """Return whether to evaluate after an epoch, though it may not be the last."""
        given = self.execution.evaluate_every
        every = self.run.evaluate_every if given is None else given
        return bool(every) and epoch % every == 0

    def train(self, checkpoint, after_epoch: Callable, show_progress: bool) -> None:
        """Train to the end; after each epoch call `after_epoch()`."""
        progress = self.progress
        if not progress.epoch and not progress.history:
            self._evaluate(None, None)
        name = f"{self.run.method} {self.run.encoder} {self.run.dataset} {self.task.title}".strip()
        about: dict[str, Any] = dict(desc=name, total=self.run.epochs, initial=progress.epoch)
        with tqdm(**about, unit="epoch", disable=not show_progress) as bar:
            try:
                while not self.finished:
                    self.scheduled = scheduled_options(self.run, progress.epoch)
                    if self.scheduled:
                        self.method.change(**self.scheduled)
                    begun = time.perf_counter()
                    loss, examples = self._train_epoch(checkpoint)
                    progress.seconds.append(time.perf_counter() - begun)
                    progress.epoch += 1
                    progress.losses.append(loss)
                    self._evaluate(loss, examples / progress.seconds[-1])
                    bar.set_postfix(loss=loss, refresh=False)
                    bar.update()
                    after_epoch()
            except KeyboardInterrupt as stop:
                where = f"{progress.epoch} of {self.run.epochs} epochs {self.task.title}".strip()
                raise Interrupted(f"stopped after {where}; {checkpoint.resume_hint()}") from stop

    def _evaluate(self, loss: float | None, rate: float | None) -> None:
        row = self.task.evaluate(self, loss, rate)
        if row:
            self.progress.history.append(row)

    def _train_epoch(self, checkpoint) -> tuple[float, int]:
        """Return the epoch's loss and the number of examples."""
        run, device, progress = self.run, self.fabric.device, self.progress
        generator = epoch_generator(self.task, run.seed, progress.epoch)
        # for a method or an encoder that draws random numbers itself
        torch.manual_seed(generator.initial_seed())
        every = self.task.batches(generator)
        batches = every if run.max_steps is None else every[: run.max_steps - progress.step]
        self.trained.train()
        losses = torch.empty(len(batches), device=device)
        finite = torch.ones(len(batches), dtype=torch.bool, device=device)
        with _checks.deferred(self.conditions):
            for i, batch in enumerate(batches):
                self._schedule_rate(progress.step + i, len(every))
                try:
                    losses[i], finite[i] = self.step(batch, generator)
                except Exception as error:
                    if self._finite(*self._parameters()):
                        raise
                    raise self._diverged(losses[:i], checkpoint) from error
            bad = (~losses.isfinite()).nonzero()
            if not len(bad) or finite[bad[0]]:  # embeddings were sound: was something else not?
                self.conditions.raise_if_any()
        if len(bad) or not self._finite(*self._parameters()):
            # where all losses are sound, the last gradient was not
            raise self._diverged(losses[:-1], checkpoint)
        progress.step += len(batches)
        return self.task.mean_loss(losses, batches), sum(map(len, batches))

    def advance(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Train on a batch; return its loss, and whether the embeddings were finite."""
        loss = self._loss(batch, generator)
        self.optimiser.zero_grad()
        self.fabric.backward(loss)
        self.optimiser.step()
        return loss.detach(), self._finite()

    def _loss(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of the whole batch; this process makes its share of the views."""
        size, rank = len(batch) // self.fabric.world_size, self.fabric.global_rank
        share = slice(rank * size, (rank + 1) * size)
        views = self.task.views(batch, generator, share)
        labels = self.task.labels[batch].to(self.fabric.device) if self.supervised else None
        self._embedded = ()
        if self.queue is None:
            return self.task.loss(self.trained, self.criterion, views, labels, self.gather)
        with self.fabric.autocast():
            keys = self.queue.keys(views.second)
        z1, z2 = self.gather(self.trained(views.first)), self.gather(keys)
        contrast = self.queue.contrast(z1, z2, labels, self.method.options.get("positives"))
        return self.method.loss(contrast)

    def gather(self, z: Tensor) -> Tensor:
        """Return the rows of all devices in the batch's order, and remember them."""
        z = distributed.gather(z)
        self._embedded = (*self._embedded, z.detach())  # not the graph: the next step would keep it
        return z

    def _parameters(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.method.parameters()]

    def _finite(self, *more: Tensor) -> Tensor:
        """Return whether the embeddings of the last step, and `more`, are finite."""
        finite = [z.isfinite().all() for z in (*self._embedded, *more)]
        return torch.stack(finite).all() if finite else torch.tensor(True)

    def _schedule_rate(self, step: int, steps_an_epoch: int) -> None:
        run = self.run
        if run.lr_schedule == "constant":
            return
        steps = run.epochs * steps_an_epoch
        factor = min(1.0, (step + 1) / WARM_UP)
        if run.lr_schedule == "cosine":
            factor = cosine(step, min(steps, run.max_steps or steps))
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):  # a graph reads it where it is
                group["lr"].fill_(run.lr * factor)
            else:
                group["lr"] = run.lr * factor

    def _diverged(self, before: Tensor, checkpoint) -> Diverged:
        """Return the error for the first loss of `before` that is not finite, or the step after."""
        bad = (~before.isfinite()).nonzero()
        step = self.progress.step + (int(bad[0]) if len(bad) else len(before)) + 1
        saved = f"last good checkpoint {checkpoint.path}"
        if checkpoint.epoch is None:
            saved = "no checkpoint was written"
        lr = self.optimiser.param_groups[0]["lr"]
        return Diverged(
            f"loss or weights are not finite at step {step} (epoch {self.progress.epoch + 1}, "
            f"lr={lr:.4g}); {saved}; lower lr or raise the temperature"
        )

    def _parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "method": self.method, "optimiser": self.optimiser}
        return parts | {"queue": self.queue} if self.queue else parts

    def state_dict(self) -> dict:
        """Return tensors, numbers and strings for a checkpoint."""
        states = {name: part.state_dict() for name, part in self._parts().items()}
        return asdict(self.progress) | counts_of(self.method) | states

    def load_state_dict(self, state: dict) -> None:
        """Restore the state."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        for name in COUNTS:
            if state[name]:  # tensors; a user's method may count in numbers
                setattr(self.method, name, getattr(self.method, name) + state[name])
        self.progress = Progress(**{name: state[name] for name in Progress.__dataclass_fields__})


class KeyQueue:
    r"""Keys of the last batches, newest first, and the copy of the model that makes them.

    Before each batch the copy follows the model: $\theta'\leftarrow m\theta'+(1-m)\theta$ with
    $m$ the `momentum` of the `run` (He et al., 2020). The queue starts empty.
    """

    def __init__(self, model: nn.Module, run):
        self.model, self.source = copy.deepcopy(model).requires_grad_(False), model
        self.run, self.z, self.y = run, None, None

    @torch.no_grad()
    def keys(self, views) -> Tensor:
        """Update the copy and return its embeddings."""
        self.model.train()
        weights = [p.detach() for p in self.source.parameters()]
        copies = list(self.model.parameters())
        torch._foreach_lerp_(copies, weights, 1 - self.run.momentum)  # pyright: ignore
        return self.model(views).float()

    def contrast(self, queries: Tensor, keys: Tensor, labels, positives) -> Contrast:
        """Contrast queries with their keys and the queue, then add the keys."""
        z = keys if self.z is None else torch.cat([keys, self.z])
        self.z = z[: self.run.queue]
        if labels is None:
            return Contrast.from_pairs(queries, z)
        y = labels if self.y is None else torch.cat([labels, self.y])
        self.y = y[: self.run.queue]
        found = Contrast.from_pairs(queries, z, labels=y, label_positives=positives == "class")
        return replace(found, scale=len(z) - 1)  # as of two views with labels

    def state_dict(self) -> dict:
        """Return the state of the copy and the keys."""
        return {"model": self.model.state_dict(), "z": self.z, "y": self.y}

    def load_state_dict(self, state: dict) -> None:
        """Restore the state."""
        self.model.load_state_dict(state["model"])
        self.z, self.y = state["z"], state["y"]


def counts_of(method) -> dict[str, int]:
    """Return what a method has counted while it trained."""
    return {name: int(getattr(method, name, 0)) for name in COUNTS}


def cosine(step: int, total: int) -> float:
    """Return the factor of the learning rate at a step: linear warm-up, then half a cosine."""
    rise = max(1, total // 20)
    angle = math.pi * max(0, step - rise) / max(1, total - rise)
    return min((step + 1) / rise, 0.5 + 0.5 * math.cos(angle))


def epoch_generator(task: Task, seed: int, epoch: int) -> torch.Generator:
    """Return the generator of one epoch, a function of seed and epoch: resuming needs no state."""
    drawn = np.random.SeedSequence([seed, epoch + task.first_epoch]).generate_state(1)
    return torch.Generator(task.draws_on).manual_seed(int(drawn[0]))


def needs(method, what: str) -> bool:
    """Return whether the method or its catalogue row is "supervised" or needs "features"."""
    return bool(getattr(getattr(method, "entry", method), what, False))


def check_method(method, run) -> None:
    """Check that only a catalogue method has a queue or schedules, and accepts their values."""
    for name in ("queue", "schedule"):
        if getattr(run, name) and not isinstance(method, methods.Method):
            raise ValueError(f"{name} requires a method of the catalogue")
    if run.schedule:
        twin = method.copy()
        for epoch in range(_span(run) + 1):
            twin.change(**scheduled_options(run, epoch))


def _span(run) -> int:
    """Return the epoch in which schedules reach their end."""
    return max(1, run.epochs - run.reach_end)


def scheduled_options(run, epoch: int) -> dict[str, float]:
    """Return the values of the method's scheduled options in an epoch."""
    span, values = _span(run), {}
    for option, (start, end, *how) in run.schedule.items():
        if how[:1] == ["cosine"]:
            moved = 0.5 - 0.5 * math.cos(2 * math.pi * how[1] * epoch / span)
        else:
            changes = how[0] if how else span
            moved = epoch * changes // span / changes
        values[option] = start + moved * (end - start)
    return values


def under_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch(device: str, precision: str):
    """Return Fabric on a device, or on the processes that torchrun started.

    Raises ValueError if Fabric refuses it.
    """
    import lightning_fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    several: dict[str, Any] = dict(devices=1)
    if under_torchrun():
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // local
        several = dict(devices=local, num_nodes=nodes, strategy="ddp")
    try:
        fabric = lightning_fabric.Fabric(accelerator=device, precision=precision, **several)
    except Exception as error:  # Fabric's own type
        raise ValueError(
            f"device={device!r} with precision={precision!r} is not possible here: {error}"
        ) from error
    if under_torchrun():
        fabric.launch()
    return fabric


def fit(fabric, task: Task, method, execution: config.Execution) -> TrainedRun:
    """Train and measure a run, and write what `execution` asks for."""
    # Nothing here touches the caller's random state, and nothing in it touches us.
    with ExitStack() as stack:
        devices = [fabric.device] if fabric.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=devices))
        # all batches have one shape: let cuDNN try its algorithms
        stack.callback(setattr, cudnn, "benchmark", cudnn.benchmark)
        cudnn.benchmark = not cudnn.deterministic
        if fabric.global_rank == 0:
            folder = execution.record_to
            record = folder and store.file_of(folder, task.run.configuration)
            for path in (record, execution.checkpoint, execution.save):
                if path is not None:
                    _files.require_writable(path)
            if execution.checkpoint:
                stack.enter_context(_files.lock(execution.checkpoint))
        trainer = RunTrainer(fabric, task, method, execution)
        # what stops the run does not lose the epochs since the last writing
        stack.callback(trainer.checkpoint.flush)
        trainer.train()
        return trainer.finish()


class RunTrainer:
    """All trainings of a run, one after the other, from its checkpoint to its record."""

    def __init__(self, fabric, task, method, execution: config.Execution):
        self.fabric, self.task, self.method, self.execution = fabric, task, method, execution
        self.writes = fabric.global_rank == 0  # all processes do the same work
        self.asked = execution.step
        self.checkpoint = Checkpoint(
            execution.checkpoint, task.run.configuration, execution.checkpoint_seconds, self.writes
        )
        if fabric.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(fabric.device)
        # now: the sources may be edited while this runs
        self.environment, self.begun = records.environment(fabric.device), time.perf_counter()
        if execution.predictions:
            self.environment["predictions"] = execution.predictions
        if fabric.world_size > 1:
            self.environment["hardware"]["devices"] = fabric.world_size
        self.trainings, self.before, self.record = [], [], None

    def train(self) -> None:
        """Run the trainings that are not finished yet."""
        saved = self.checkpoint.read(self.fabric.device) if self.execution.resume else None
        if saved:
            self.trainings = [Progress(**one) for one in saved["finished"]]
            self.before = saved["sessions"]
            self.record = saved["record"] and json.loads(saved["record"])
            self._keep_step(saved)
        for part in self.task.parts[len(self.trainings) :]:
            self.loop = Loop(self.fabric, part, self.method, self.execution)
            if saved:
                self.loop.load_state_dict(saved)
                saved = None
            show_progress = self.execution.progress and self.writes
            self.loop.train(self.checkpoint, self.after_epoch, show_progress)
            self.trainings.append(self.loop.progress)

    def _keep_step(self, saved: dict) -> None:
        """Go on with the kind of step that a checkpoint began with; ValueError for another."""
        asked, began = self.execution.step, saved.get("kind_of_step", "eager")
        if asked != began:
            raise ValueError(
                f"the checkpoint {self.checkpoint.path} was begun with step={began}, not {asked}; "
                "use its step, another path, or resume=False (--restart) to start over"
            )
        used = self.before[-1]["hardware"].get("step", "eager")  # if it could not be compiled
        self.execution = replace(self.execution, step=used)

    def sessions(self) -> list[dict]:
        """Return the processes that worked on the run, this one last."""
        if self.loop.step.kind != "eager":  # as records before there were others
            self.environment["hardware"]["step"] = self.loop.step.kind
        used: dict[str, Any] = {"seconds": round(time.perf_counter() - self.begun, 3)}
        if self.fabric.device.type == "cuda":
            used["peak_memory"] = torch.cuda.max_memory_allocated(self.fabric.device)  # bytes
        return [*self.before, self.environment | used]

    def after_epoch(self) -> None:
        """Save the state; raise KeyboardInterrupt if time is up before all is trained."""
        self.save()
        minutes = self.execution.minutes
        is_last = len(self.trainings) + 1 == len(self.task.parts)
        if minutes is None or (is_last and self.loop.finished):
            return
        # the first process decides: clocks differ, and one that stopped alone would be waited for
        if self.fabric.broadcast(time.perf_counter() - self.begun >= 60 * minutes):
            raise KeyboardInterrupt

    def save(self) -> None:
        """Save the state to the checkpoint."""
        run_state = {
            "finished": [asdict(one) for one in self.trainings if one is not self.loop.progress],
            # JSON, because torch.load(weights_only=True) refuses NumPy's numbers
            "record": self.record and json.dumps(self.record, default=float),
            "sessions": self.sessions(),
            "kind_of_step": self.asked,  # `step` is how many there were
        }
        self.checkpoint.save(self.loop.state_dict() | run_state)

    def finish(self) -> TrainedRun:
        """Measure the model unless that was done before, and write record and model."""
        if self.record is None:
            measured = self.task.measure(self.loop.model, self.trainings, self.fabric.device)
            measured["metrics"] |= counts_of(self.method)
            sessions = self.sessions()
            self.record = {
                "kind": self.task.run.kind,
                "configuration": self.task.run.configuration,
                **measured,
                "environment": self.environment,
                "seconds": round(sum(session["seconds"] for session in sessions), 3),
                "sessions": sessions,
            }
            self.save()
            self.checkpoint.flush()  # before the record: what is recorded is not measured again
        model = self.loop.model.eval().cpu()  # where the caller's data are
        method = self.method if self.method is None else self.method.cpu()
        run = TrainedRun(self.record, model, method)
        if self.writes and self.execution.record_to is not None:
            records.append(run.record, self.execution.record_to)
        if self.writes and self.execution.save is not None:
            run.save(self.execution.save)
        return run
