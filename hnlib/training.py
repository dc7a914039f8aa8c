"""One training loop for every data set, encoder and method, and the run it returns."""

from __future__ import annotations

import argparse
import copy
import hashlib
import inspect
import json
import logging
import math
import os
import signal
import sys
import tempfile
import threading
import time
import zipfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hnlib import augment, data, encoders, evaluation, methods, records
from hnlib.contrast import Contrast

DIAGNOSTIC_BATCH = 256  # images in the fixed batch of the learning curves

#: Settings by name: arguments of `train` that are not given take these. `options` go to the methods that have them;
#: under a data set's name stands what it needs otherwise. "book" is what the default build can afford; the next five
#: are the papers' (hcl App. D.1 and released code; hcl-ot, whose batch is 512; h-scl Sec. V-A, without its noise, whose
#: strength is not printed; dro-adnce's released commands; unremix, "the training setup of HCL"); "fast" is ours.
RECIPES = {
    "book": dict(epochs=30, batch_size=256, lr=1e-3, weight_decay=1e-6),
    "hcl": dict(epochs=400, batch_size=256, lr=1e-3, weight_decay=1e-6, augmentation="hcl",
                options=dict(temperature=0.5, tau_plus=0.1), cifar100=dict(tau_plus=0.05),
                stl10=dict(augmentation="hcl-32")),
    "hcl-ot": dict(epochs=400, batch_size=512, lr=1e-3, weight_decay=1e-6, augmentation="hcl",
                   options=dict(temperature=0.5), stl10=dict(augmentation="hcl-32")),
    "h-scl": dict(epochs=200, batch_size=512, lr=1e-3, weight_decay=1e-6, augmentation="hcl",
                  options=dict(temperature=0.5), stl10=dict(augmentation="hcl-32")),
    "adnce": dict(epochs=400, batch_size=256, lr=1e-3, weight_decay=1e-6, augmentation="hcl",
                  cifar10=dict(temperature=0.4, mu=0.7, sigma=0.5), cifar100=dict(temperature=0.3, mu=0.5, sigma=1.0),
                  stl10=dict(temperature=0.2, mu=0.8, sigma=1.0, augmentation="hcl-32")),
    "unremix": dict(epochs=400, batch_size=256, lr=1e-3, weight_decay=1e-6, augmentation="hcl",
                    options=dict(temperature=0.5), stl10=dict(augmentation="hcl-32")),
    "fast": dict(epochs=100, batch_size=128, lr=3e-3, weight_decay=1e-6, lr_schedule="cosine"),
}
LR_SCHEDULES = ("constant", "cosine")
PRECISIONS = ("32-true", "bf16-mixed")  # others of Fabric's need a scaler in the checkpoint, or inputs of their type


class Diverged(ValueError):
    """Loss or weights are not finite; the message names step, learning rate and last good checkpoint."""


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C or SIGTERM; the message says where the last checkpoint is and how to go on."""


class Model(nn.Module):
    """Encoder and projector as one module: images to the embedding z that the loss sees."""

    def __init__(self, encoder: nn.Module, projector: nn.Module):
        super().__init__()
        self.encoder, self.projector = encoder, projector

    def forward(self, x: torch.Tensor, hidden: bool = False):
        """The embeddings; with `hidden` also the inputs of the projector's last layer."""
        if not hidden:
            return self.projector(self.encoder(x))
        h = self.projector.layers[:-1](self.encoder(x))
        return self.projector.layers[-1](h), h


@dataclass(frozen=True, eq=False)
class Run:
    """A trained encoder with what was measured on the way. `record` is what `records.write` takes.

    `method` is the one trained with, its learned parameters and counts; files and other processes do not bring it back.
    """

    record: dict
    encoder: nn.Module = field(repr=False)
    projector: nn.Module = field(repr=False)
    method: nn.Module | None = field(default=None, repr=False)

    @property
    def history(self) -> list[dict]:
        return self.record["history"]

    @property
    def metrics(self) -> dict:
        return self.record["metrics"]

    def save(self, path: Path | str) -> Path:
        """Write weights and record to one safetensors file, atomically; `training.load` reads it back."""
        from safetensors.torch import save

        state = {k: v.detach().cpu().contiguous() for k, v in Model(self.encoder, self.projector).state_dict().items()}
        records.write_atomically(path, save(state, metadata={"record": json.dumps(self.record)}))
        return Path(path)

    def export(self, path: Path | str) -> Path:
        """Write the encoder alone as a `torch.export` program (.pt2) for any batch size, atomically.

        It maps normalised images (`augment.plain`) to features in eval mode and loads without this library.
        """
        shape, encoder = self.record["image_shape"], copy.deepcopy(self.encoder).cpu().eval()
        batch = torch.export.Dim("batch", min=1)
        program = torch.export.export(encoder, (torch.zeros(2, *shape),), dynamic_shapes=({0: batch},))
        records.write_atomically(path, lambda temporary: torch.export.save(program, temporary))
        return Path(path)


def load(path: Path | str, encoder: nn.Module | None = None, projector: nn.Module | None = None) -> Run:
    """The run that `Run.save` wrote, in eval mode on the CPU; a run of your own modules needs such modules again.

    ValueError: the file is missing or not such a file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            record = json.loads(file.metadata()["record"])
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dictionary)
        model = _model(encoder or record["configuration"]["encoder"], projector, record["image_shape"])
        model.load_state_dict(state)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is not a whole saved run ({error}); save it again with Run.save") from error
    model.eval()
    return Run(record, model.encoder, model.projector)


def train(
    dataset: str | data.Dataset = "digits",
    method: str | nn.Module | None = "simclr",
    encoder: str | nn.Module = "small-cnn",
    recipe: str = "book",
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    lr: float | None = None,
    lr_schedule: str | None = None,
    weight_decay: float | None = None,
    train_size: int | None = None,
    validation: int = 0,
    augmentation: str | augment.Recipe | None = None,
    schedule: dict | None = None,
    oracle_positives: bool = False,
    queue: int = 0,
    momentum: float = 0.999,
    projector: nn.Module | None = None,
    device: str = "auto",
    devices: int = 1,
    precision: str = "32-true",
    compile: bool = False,
    evaluate_every: int = 5,
    evaluate_size: int | None = None,
    protocols: tuple[str, ...] = ("clean",),
    checkpoint: Path | str | None = None,
    resume: bool = True,
    record_to: Path | str | None = None,
    data_root: Path | str | None = None,
    progress: bool = True,
    max_steps: int | None = None,
    experiment: str = "images",
    **method_options,
) -> Run:
    r"""Train an encoder by contrasting two views of each image, evaluate it, and return the `Run`.

    `dataset`: a name or a `data.Dataset`. `method`: a name with its `method_options`, or any module to call as
    `method(z1, z2, labels)` (labels reach it if it has a true attribute `supervised`; with a true attribute `features`
    it is called with `features=(h1, h2)`, the inputs of the projector's last layer, bias left out; where it has
    `log_weights(contrast)` or `observe(contrast)`, learning curves show what these say), or None for `epochs=0`, which
    evaluates the untrained encoder. `encoder`: a name, or a module with an attribute `feature_dim`, to which a
    `projector` may belong (with `.layers`, an `nn.Sequential`, if the method wants features). Modules given are copied;
    `Run` has the trained ones. `recipe` is a key of `RECIPES` and fills in `epochs`, `batch_size`, `lr`, `lr_schedule`
    ("constant", or "cosine" after a twentieth of linear warm-up), `weight_decay`, `augmentation` (where that has none,
    after the number of channels) and options of the method, wherever these are not given.

    Adam with coupled weight decay; it trains parameters of the method too, without decay. Batches by permutation, the
    last partial one dropped; both views pass the encoder together. STL-10's unlabelled images are trained on by methods
    that need no labels. `train_size`: a class-balanced subset, the same for all seeds. `validation`: that many training
    images, class-balanced and the same for all seeds, are set apart first; nothing is trained on them, and the readouts
    judge them too.
    `schedule` {option: (start, end[, changes])} moves an option of the method: in epoch $e$ of $E$ it is
    $\text{start}+\frac i{\text{changes}}(\text{end}-\text{start})$, $i=\lfloor e\,\text{changes}/E\rfloor$; `changes`
    is $E$ unless given (hcl, App. D.1). `oracle_positives`: the second view is one of a random image of the same class.
    `queue`: number of older keys that serve as candidates too; then only the first views are anchors, and keys come
    from a copy of the model that follows it, $\theta'\leftarrow m\theta'+(1-m)\theta$, $m$ = `momentum` (He et al.,
    2020; the queue starts empty).

    `device` and `precision` are Fabric's words ("auto", "cpu", "cuda"; "32-true" or "bf16-mixed"). `devices` > 1 shares
    each batch among processes of one machine (a script needs `if __name__ == "__main__":`); under `torchrun` its
    processes are used. Negatives are gathered from all of them, and the run is the one a single device makes, up to
    rounding and to batch-norm, whose statistics are synchronised on GPUs only. `compile`: torch.compile.

    The `history` has a row each `evaluate_every` epochs (0: only at the end): epoch, loss, knn, images_per_second, and
    `evaluation.diagnostics` on one batch of the training set, the same augmented views for all methods; row 0 is the
    untrained encoder. The record also holds the loss of every epoch. `evaluate_size` limits the readouts to that many
    images of each split. The final `metrics` are `evaluation.readouts`, "clean" and what else `protocols` asks for.

    With a `checkpoint` path the state is written after each epoch; with `resume` an existing one is continued, to the
    same weights as without the interruption (bitwise on the CPU: all randomness of an epoch comes from the seed and
    the epoch's number). A finished run goes on if `epochs` is larger now and nothing is scheduled over them.
    `max_steps` ends training early, a cosine before its end. `record_to`: folder for the record, which replaces an
    older one of the same configuration; the *Results* page groups records by `experiment`.

    Raises ValueError (unknown names, sizes that do not fit, memory that does not suffice, a checkpoint that is corrupt,
    of another configuration or in use by another process), `Diverged`, `Interrupted`.
    """
    chosen = dict(locals())
    del chosen["device"], chosen["devices"]
    fabric = _fabric(device, precision, devices)
    if devices == 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        return _train(fabric, **chosen)
    with tempfile.TemporaryDirectory() as folder:  # the launcher's own way back holds 64 KB
        error = fabric.launch(_apart, chosen, Path(folder) / "run.safetensors")
        if error is not None:
            raise error
        return load(Path(folder) / "run.safetensors", None if isinstance(encoder, str) else encoder, projector)


def _apart(fabric, chosen: dict, path: Path):
    """`_train` in a process of its own; the first one leaves the run at `path`. An error is sent back."""
    try:
        run = _train(fabric, **chosen)
    except (ValueError, Interrupted) as error:
        return error
    if fabric.global_rank == 0:
        run.save(path)
    return None


def _train(
    fabric, dataset, method, encoder, recipe, epochs, batch_size, seed, lr, lr_schedule, weight_decay, train_size,
    validation, augmentation, schedule, oracle_positives, queue, momentum, projector, compile, evaluate_every,
    evaluate_size, protocols, checkpoint, resume, record_to, data_root, progress, max_steps, experiment, precision,
    method_options,
) -> Run:
    started = time.perf_counter()
    if recipe not in RECIPES:
        raise ValueError(f"unknown recipe {recipe!r}; known: {', '.join(RECIPES)}")
    name = dataset if isinstance(dataset, str) else dataset.name
    usual = {"lr_schedule": "constant", "augmentation": None} | RECIPES[recipe]
    usual = usual | usual.get("options", {}) | usual.get(name, {})
    given = dict(epochs=epochs, batch_size=batch_size, lr=lr, lr_schedule=lr_schedule, weight_decay=weight_decay,
                 augmentation=augmentation)
    epochs, batch_size, lr, lr_schedule, weight_decay, augmentation = (
        usual[key] if value is None else value for key, value in given.items())
    for name, value, least in (("epochs", epochs, 0), ("batch_size", batch_size, 2), ("max_steps", max_steps, 1),
                               ("seed", seed, 0), ("weight_decay", weight_decay, 0), ("queue", queue, 0),
                               ("validation", validation, 0),
                               ("evaluate_every", evaluate_every, 0), ("evaluate_size", evaluate_size, 2)):
        if value is not None and value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"lr={lr} must be positive")
    if lr_schedule not in LR_SCHEDULES:
        raise ValueError(f"unknown lr_schedule {lr_schedule!r}; known: {', '.join(LR_SCHEDULES)}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum} must lie in [0, 1): at 1 the keys would never follow")
    if batch_size % fabric.world_size:
        raise ValueError(f"batch_size={batch_size} cannot be shared by {fabric.world_size} devices; "
                         f"choose a multiple of {fabric.world_size}")
    if isinstance(encoder, str) and encoder not in encoders.ENCODERS:
        raise ValueError(f"unknown encoder {encoder!r}; known: {', '.join(encoders.ENCODERS)}")
    if not isinstance(encoder, str) and not isinstance(getattr(encoder, "feature_dim", None), int):
        raise ValueError(f"the encoder {type(encoder).__name__} needs an attribute feature_dim, its output's width")
    protocols, seed = {"clean", *([protocols] if isinstance(protocols, str) else protocols)}, int(seed)
    if unknown := protocols - set(evaluation.PROTOCOLS):
        raise ValueError(f"unknown readout protocol {min(unknown)!r}; known: {', '.join(evaluation.PROTOCOLS)}")
    method = _own(_method(method, usual, method_options, epochs))
    _check_schedule(method, schedule or {})
    _check_queue(method, queue)
    if isinstance(dataset, str):
        dataset = data.load(dataset, data_root)
    if validation:
        dataset = data.hold_out(dataset, validation)
    if train_size is not None:
        dataset = data.subset(dataset, train_size, seed=0)  # for every seed: it varies the training, not the data
    unlabelled = dataset.x_unlabelled
    if train_size or oracle_positives or _asks(method, "supervised"):
        unlabelled = None
    images = len(dataset.x_train) + (0 if unlabelled is None else len(unlabelled))
    if batch_size > images and epochs:
        raise ValueError(f"batch_size={batch_size} exceeds the {images} training images; choose 2 to {images}")
    augmentation = augment.resolve(augmentation or augment.recipe_for(dataset.channels))
    device = fabric.device
    environment = records.environment(device)  # now: the sources on disk may be edited while this runs
    if fabric.world_size > 1:
        environment["hardware"]["devices"] = fabric.world_size

    configuration = {
        "experiment": experiment, "dataset": dataset.name, "dataset_digest": dataset.digest, "train_size": train_size,
        "method": None if method is None else getattr(method, "name", None) or _title(method),
        "options": {k: _plain(v) for k, v in getattr(method, "options", {}).items()},
        "encoder": encoder if isinstance(encoder, str) else _title(encoder),
        "epochs": epochs, "batch_size": batch_size, "seed": seed, "lr": lr,
        "weight_decay": weight_decay, "augmentation": augment.recorded(augmentation), "precision": precision,
        "max_steps": max_steps, "evaluate_size": evaluate_size,
    }
    # What is not used is not in the name of a record: names given before a choice existed stay true.
    extra = {"recipe": (recipe, "book"), "lr_schedule": (lr_schedule, "constant"), "schedule": (schedule or {}, {}),
             "oracle_positives": (oracle_positives, False), "queue": (queue, 0), "compile": (compile, False),
             "momentum": (momentum if queue else None, None), "protocols": (sorted(protocols), ["clean"]),
             "projector": (projector and _title(projector), None), "validation": (validation, 0)}
    if fabric.world_size > 1 and device.type == "cpu" and _has_batch_norm(encoder, projector):
        extra["devices"] = (fabric.world_size, 1)  # each has its own statistics there
    configuration |= {key: value for key, (value, unused) in extra.items() if value != unused}
    configuration = json.loads(json.dumps(configuration))  # as it will be read back: tuples are lists
    if (checkpoint or record_to) and (bad := [v for v in map(str, configuration["options"].values())
                                              if any(mark in v for mark in ("<lambda>", "<locals>", " at 0x"))]):
        raise ValueError(f"the option {bad[0]} has no name by which a record or checkpoint could tell it from another; "
                         "pass a function of a module, or an object whose repr says what it is")
    fixed = _fixed_views(dataset, augmentation)
    size = augmentation.size or dataset.image_size
    shape = [dataset.channels, size, size]
    writes = fabric.global_rank == 0  # every process does the same work, one of them keeps it
    path = None if checkpoint is None else Path(checkpoint)
    record_to = None if record_to is None else Path(record_to)

    # Nothing here touches the caller's random state, and nothing in it touches us.
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        stack.enter_context(_fastest_convolutions())
        refused = None
        try:
            for file in (path, record_to and record_to / f"{records.name(configuration)}.json") if writes else ():
                if file is not None:
                    stack.enter_context(records.alone(file))
        except ValueError as error:
            refused = str(error)
        if refused := fabric.broadcast(refused) if fabric.world_size > 1 else refused:  # all stop, or all go on
            raise ValueError(refused)
        stack.enter_context(_memory(device, batch_size))
        torch.manual_seed(seed)
        model = _model(encoder, projector, shape).to(device, memory_format=torch.channels_last)
        if fabric.world_size > 1 and device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        method = nn.Identity() if method is None else method.to(device)
        parameters = [{"params": list(model.parameters())}]
        if learned := list(method.parameters()):  # no decay: it would pull a learned mixture towards equal shares
            parameters.append({"params": learned, "weight_decay": 0.0})
        optimiser = torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True)
        trained, optimiser = fabric.setup(torch.compile(model) if compile else model, optimiser)
        loop = _Loop(fabric, trained, model, method, optimiser, dataset, augmentation, configuration, evaluate_every,
                     fixed, unlabelled)
        if path is not None and resume and path.exists():
            loop.restore(path)
        loop.run(path, progress and writes, writes)
        limited = loop.limited
        correct = {}
        metrics = evaluation.readouts(model.encoder, limited, device=device, protocols=protocols, recipe=augmentation,
                                      correct=correct)
        metrics |= {"loss": loop.history[-1]["loss"], "steps": loop.step,
                    "images_per_second": loop.step * batch_size / loop.seconds if loop.step else None,
                    "skipped": int(getattr(method, "skipped", 0)),
                    "unconverged": int(getattr(method, "unconverged", 0)), "peak_memory_mb": _peak_memory(device)}
        loop.history[-1]["knn"] = metrics["knn"]
        if path is not None and writes:
            loop.save(path)
        record = {"configuration": configuration, "metrics": metrics, "history": loop.history, "losses": loop.losses,
                  "image_shape": shape, "test_images": len(limited.x_test), "environment": environment,
                  "correct": {name: records.pack(bits) for name, bits in correct.items()},
                  "seconds": round(time.perf_counter() - started, 3)}
        if record_to is not None and writes:
            records.write(record, record_to, overwrite=True)
    model.eval()
    return Run(record, model.encoder, model.projector, None if isinstance(method, nn.Identity) else method)


class _Loop:
    """The state of a training that a checkpoint keeps, and the steps that change it."""

    def __init__(self, fabric, trained, model, method, optimiser, dataset, recipe, configuration, evaluate_every,
                 fixed, unlabelled):
        self.fabric, self.trained, self.model, self.method, self.optimiser = fabric, trained, model, method, optimiser
        self.dataset, self.recipe, self.configuration = dataset, recipe, configuration
        self.evaluate_every = evaluate_every
        self.epoch, self.step, self.seconds, self.history, self.losses = 0, 0, 0.0, [], []
        self.x, self.y = dataset.x_train.to(fabric.device), dataset.y_train.to(fabric.device)
        self.supervised, self.features = _asks(method, "supervised"), _asks(method, "features")
        if unlabelled is not None:
            self.x = torch.cat([self.x, unlabelled.to(fabric.device)])
        self.classmates = _Classmates(self.y) if configuration.get("oracle_positives") else None
        self.queue = None
        if configuration.get("queue"):
            self.queue = _Queue(model, configuration["queue"], configuration["momentum"])
        self.scheduled, self._z, self.kept = {}, (), False  # kept: whether a file holds the state of this run
        self.limited = _limited(dataset, configuration["evaluate_size"])
        self.fixed = [part.to(fabric.device) for part in fixed]

    def run(self, path: Path | None, progress: bool, writes: bool) -> None:
        from tqdm import tqdm

        chosen = self.configuration
        epochs, limit = chosen["epochs"], chosen["max_steps"] or math.inf
        title = f"{chosen['method'] or 'untrained'} {chosen['encoder']} {self.dataset.name}"
        if not self.history:
            self.history.append(self._row(None, None, knn=self.evaluate_every > 0 and epochs > 0))
        images = len(self.x) // chosen["batch_size"] * chosen["batch_size"]
        bar = tqdm(total=int(min(epochs * images, limit * chosen["batch_size"])), initial=self.epoch * images,
                   desc=title, unit="image", unit_scale=True, disable=not progress)
        with bar, _stoppable():
            try:
                while self.epoch < epochs and self.step < limit:
                    self._scheduled()
                    begun = time.perf_counter()
                    loss, images = self._train_epoch(path, limit, bar)
                    seconds = time.perf_counter() - begun
                    self.seconds += seconds
                    self.epoch += 1
                    self.losses.append(loss)
                    last = self.epoch == epochs or self.step >= limit
                    if last or (self.evaluate_every and self.epoch % self.evaluate_every == 0):
                        self.history.append(self._row(loss, images / seconds, knn=not last))
                    if path is not None and writes:
                        self.save(path)
                    knn = next((r["knn"] for r in reversed(self.history) if r["knn"] is not None), math.nan)
                    bar.set_postfix_str(f"epoch {self.epoch}/{epochs}, loss {loss:.4f}, kNN {knn:.3f}")
            except KeyboardInterrupt as stop:
                saved = path if self.kept else None
                raise Interrupted(
                    f"stopped in epoch {self.epoch + 1} of {epochs}; "
                    + (f"the state after the last whole epoch is in {saved}: repeat the same call to go on from there"
                       if saved else "nothing was saved: pass checkpoint=PATH (--checkpoint PATH) to be able to go on")
                ) from stop

    def _train_epoch(self, path: Path | None, limit: float, bar) -> tuple[float, int]:
        batch_size, device = self.configuration["batch_size"], self.fabric.device
        generator = _generator(device, self.configuration["seed"], self.epoch)
        torch.manual_seed(generator.initial_seed())  # for a method or an encoder that draws random numbers itself
        order = torch.randperm(len(self.x), generator=generator, device=device)
        batches = order[: len(order) // batch_size * batch_size].split(batch_size)
        batches = batches[: int(min(len(batches), limit - self.step))]
        self.trained.train()
        losses = torch.empty(len(batches), device=device)
        share, devices = batch_size // self.fabric.world_size, self.fabric.world_size
        mine = slice(self.fabric.global_rank * share, (self.fabric.global_rank + 1) * share)
        part = (mine.start, batch_size) if devices > 1 else None
        for i, batch in enumerate(batches):
            self._warm(self.step + i, len(order) // batch_size)
            others = batch if self.classmates is None else self.classmates.draw(batch, generator)
            v1, v2 = augment.two_views(self.x[batch[mine]], generator, self.recipe, part=part,
                                       other=None if others is batch else self.x[others[mine]])
            try:
                loss = self._loss(v1, v2, self.y[batch] if self.supervised else None)
            except ValueError as error:
                if self.finite:
                    raise
                raise self._diverged(i, path) from error
            self.optimiser.zero_grad()
            self.fabric.backward(loss)
            self.optimiser.step()
            losses[i] = loss.detach()
            bar.update(batch_size)
            if device.type == "cpu" and not losses[i].isfinite():  # elsewhere asking would stall every step
                raise self._diverged(i, path)
        bad = (~losses.isfinite()).nonzero()
        if len(bad):
            raise self._diverged(int(bad[0]), path)
        parameters = [*self.model.parameters(), *self.method.parameters()]
        if not all(p.isfinite().all() for p in parameters):  # the last gradient was bad, its loss was not
            raise self._diverged(len(batches) - 1, path)
        self.step += len(batches)
        return float(losses.mean()), len(batches) * batch_size

    def _loss(self, v1, v2, labels):
        """The loss of the whole batch, of which `v1`, `v2` are this device's share of the views."""
        if self.queue is not None:
            v1, v2 = (v.contiguous(memory_format=torch.channels_last) for v in (v1, v2))
            with self.fabric.autocast():
                keys = self.queue.keys(v2)
            z1, z2 = self._gathered(self.trained(v1)), self._gathered(keys)
            self._z = z1.detach(), z2
            older = self.queue.older(z2)
            known = () if labels is None else (labels, labels[:0] if self.queue.y is None else self.queue.y,
                                               self.method.options["positives"])
            contrast = Contrast.from_queue(z1, z2, older, *known)
            self.queue.push(z2, labels)
            return self.method.loss(contrast)
        x = torch.cat([v1, v2]).contiguous(memory_format=torch.channels_last)
        # one pass for both views: they share the statistics of batch-norm
        z, *h = self.trained(x, hidden=True) if self.features else (self.trained(x),)
        z1, z2 = (self._gathered(part) for part in z.chunk(2))
        self._z = z1.detach(), z2.detach()  # not the graph: the next step would carry it along
        more = {"features": tuple(self._gathered(part) for part in h[0].chunk(2))} if h else {}
        return self.method(z1, z2, labels, **more)

    @property
    def finite(self) -> bool:
        return all(bool(z.isfinite().all()) for z in self._z)

    def _gathered(self, z):
        """Rows of all devices, in the order of the batch. Each device computes the whole loss, and the gradients that
        arrive here from all of them are summed; averaged over devices with the rest, they are those of one device."""
        if self.fabric.world_size == 1:
            return z
        return self.fabric.all_gather(z, sync_grads=z.requires_grad).flatten(0, 1)

    def _scheduled(self) -> None:
        """Options of the method that move, at their values for this epoch."""
        epochs, values = self.configuration["epochs"], {}
        for option, (start, end, *changes) in self.configuration.get("schedule", {}).items():
            changes = changes[0] if changes else epochs
            values[option] = start + self.epoch * changes // epochs / changes * (end - start)
        if values:
            self.method.change(**values)
        self.scheduled = values

    def _warm(self, step: int, steps_an_epoch: int) -> None:
        """The learning rate of a step: linear over the first twentieth, then half a cosine down to zero."""
        if self.configuration.get("lr_schedule") != "cosine":
            return
        total = self.configuration["epochs"] * steps_an_epoch
        warm = max(1, total // 20)
        factor = min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * max(0, step - warm) / max(1, total - warm)))
        for group in self.optimiser.param_groups:
            group["lr"] = self.configuration["lr"] * factor

    def _diverged(self, batch: int, path: Path | None) -> Diverged:
        kept = f"last good checkpoint {path}" if self.kept else "no checkpoint was written"
        lr = self.optimiser.param_groups[0]["lr"]
        return Diverged(f"loss or weights are not finite at step {self.step + batch + 1} (epoch {self.epoch + 1}, "
                        f"lr={lr:.4g}); {kept}; lower lr or raise the temperature")

    @torch.no_grad()
    def _row(self, loss: float | None, rate: float | None, knn: bool) -> dict:
        """One row of the history; the last row's kNN is filled in with the final readout, which computes it anyway."""
        v1, v2, labels = self.fixed
        module = self.model  # not Fabric's wrapper: evaluation is in float32
        module.eval()
        log_weights = getattr(self.method, "log_weights", None)
        row = {"epoch": self.epoch, "step": self.step, "loss": loss, "knn": None, "images_per_second": rate}
        if knn:
            sets = []
            for x, y in ((self.limited.x_train, self.limited.y_train), (self.limited.x_test, self.limited.y_test)):
                features = evaluation.embed(module.encoder, x, device=self.fabric.device)
                sets += [features, y.to(features.device)]
            row["knn"] = evaluation.weighted_knn(*sets, num_classes=self.dataset.num_classes,
                                                   k=evaluation.neighbours(len(sets[0])))
        # the inputs of the last layer only for those who look at them: a projector of one's own need not have any
        needed = self.features or isinstance(getattr(module.projector, "layers", None), nn.Sequential)
        (z1, *h1), (z2, *h2) = ((module(v, hidden=True) if needed else (module(v),)) for v in (v1, v2))
        h = (*h1, *h2) or None
        observe = getattr(self.method, "observe", None)
        seen = observe(Contrast.from_views(z1.float(), z2.float(), features=h)) if observe else {}
        return row | evaluation.diagnostics(z1, z2, labels, log_weights, self.supervised, h) | seen | self.scheduled

    def save(self, path: Path) -> None:
        state = {"configuration": json.dumps(self.configuration), "epoch": self.epoch, "step": self.step,
                 "seconds": self.seconds, "history": json.dumps(self.history), "losses": self.losses,
                 "model": self.model.state_dict(), "method": self.method.state_dict(),
                 "skipped": int(getattr(self.method, "skipped", 0)),
                 "unconverged": int(getattr(self.method, "unconverged", 0)), "optimiser": self.optimiser.state_dict()}
        if self.queue is not None:
            state["queue"] = self.queue.state_dict()
        records.write_atomically(path, lambda temporary: torch.save(state, temporary))
        self.kept = True

    def restore(self, path: Path) -> None:
        try:
            with zipfile.ZipFile(path) as file:
                damaged = file.testzip()  # torch.load does not look at the check sums
            if damaged:
                raise ValueError(f"{damaged} is damaged")
            state = torch.load(path, map_location=self.fabric.device, weights_only=True)
            theirs, losses = json.loads(state["configuration"]), state["losses"]
        except Exception as error:
            raise ValueError(f"the checkpoint {path} is corrupt ({error}); delete it or pass another path") from error
        steady = not {"lr_schedule", "schedule"} & self.configuration.keys()  # an epoch does not ask how many follow
        for key in self.configuration | theirs:
            ours, other = self.configuration.get(key), theirs.get(key)
            if key == "epochs" and steady and ours > other:
                continue
            if ours != other:
                raise ValueError(f"the checkpoint {path} belongs to another run: {key} is {other!r} there and {ours!r} "
                                 "here; use its value, another path, or resume=False (--restart) to start over")
        self.model.load_state_dict(state["model"])
        self.method.load_state_dict(state["method"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.queue is not None:
            self.queue.load_state_dict(state["queue"])
        if hasattr(self.method, "skipped"):
            self.method.skipped.fill_(state["skipped"])
        if state["unconverged"]:
            self.method.unconverged = state["unconverged"]
        self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
        self.history, self.losses, self.kept = json.loads(state["history"]), losses, True
        longer = self.configuration["epochs"] > theirs["epochs"] and self.epoch == theirs["epochs"]
        if longer and (not self.evaluate_every or self.epoch % self.evaluate_every):
            self.history.pop()  # the last row of the shorter run is none of this one's


class _Classmates:
    """Random images of the same class, the image itself among them, drawn on the device without a wait."""

    def __init__(self, labels: torch.Tensor):
        self.labels, self.order = labels, labels.argsort(stable=True)
        self.count = labels.bincount()
        self.start = self.count.cumsum(0) - self.count

    def draw(self, batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        y = self.labels[batch]
        u = torch.rand(len(batch), generator=generator, device=batch.device, dtype=torch.float64)
        return self.order[self.start[y] + (u * self.count[y]).long()]


class _Queue:
    """Keys of the last batches, newest first, and the momentum copy of the model that makes them."""

    def __init__(self, model: Model, size: int, momentum: float):
        self.model, self.source = copy.deepcopy(model).requires_grad_(False), model
        self.size, self.momentum, self.z, self.y = size, momentum, None, None

    @torch.no_grad()
    def keys(self, views: torch.Tensor) -> torch.Tensor:
        self.model.train()
        ours, theirs = list(self.model.parameters()), [p.detach() for p in self.source.parameters()]
        torch._foreach_lerp_(ours, theirs, 1 - self.momentum)
        return self.model(views).float()

    def older(self, keys: torch.Tensor) -> torch.Tensor:
        return keys[:0] if self.z is None else self.z

    def push(self, keys: torch.Tensor, labels: torch.Tensor | None) -> None:
        self.z = torch.cat([keys, self.older(keys)])[: self.size]
        if labels is not None:
            self.y = labels[: self.size] if self.y is None else torch.cat([labels, self.y])[: self.size]

    def state_dict(self) -> dict:
        return {"model": self.model.state_dict(), "z": self.z, "y": self.y}

    def load_state_dict(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.z, self.y = state["z"], state["y"]


def main(argv: list[str] | None = None) -> int:
    """`hnlib train --dataset … --method … -o key=value …`: one run from the command line."""
    parser = argparse.ArgumentParser(prog="hnlib train", description="Train one encoder with one method.")
    parser.add_argument("--dataset", default="digits", help=f"{', '.join(data.KNOWN)} (default: digits)")
    parser.add_argument("--method", default="simclr", help=f"{', '.join(methods.CATALOGUE)} (default: simclr)")
    parser.add_argument("--encoder", default="small-cnn", help=f"{', '.join(encoders.ENCODERS)} (default: small-cnn)")
    parser.add_argument("--recipe", default="book", help="named settings, which the next six options change: "
                        f"{', '.join(RECIPES)} (default: book)")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--lr-schedule", help=", ".join(LR_SCHEDULES))
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--augmentation", help=f"{', '.join(augment.RECIPES)}; by the channels if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-size", type=int, help="a class-balanced subset of the training images")
    parser.add_argument("--schedule", action="append", default=[], metavar="OPTION=START:END[:CHANGES]",
                        help="an option of the method that moves over the epochs, e.g. beta=1:0 (repeatable)")
    parser.add_argument("--oracle-positives", action="store_true", help="second views of another image of the class")
    parser.add_argument("--validation", type=int, default=0, metavar="IMAGES",
                        help="training images set apart, on which choices can be made")
    parser.add_argument("--queue", type=int, default=0, metavar="KEYS", help="older keys that serve as candidates too")
    parser.add_argument("--momentum", type=float, default=0.999, help="of the encoder of the keys (default: 0.999)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--devices", type=int, default=1, help="processes of this machine that share each batch")
    parser.add_argument("--precision", default="32-true", help="or bf16-mixed, … (default: 32-true)")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--evaluate-every", type=int, default=5, metavar="EPOCHS",
                        help="0: only at the end (default: 5)")
    parser.add_argument("--evaluate-size", type=int, metavar="IMAGES", help="limit of the readouts")
    parser.add_argument("--protocols", default="clean", help=f"of the readout: {', '.join(evaluation.PROTOCOLS)}, or "
                        "several with commas (default: clean)")
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--checkpoint", type=Path, help="written after each epoch, continued if present")
    parser.add_argument("--restart", action="store_true", help="ignore an existing checkpoint")
    parser.add_argument("--data-root", type=Path, help="default: $HNLIB_DATA, else the user's cache")
    parser.add_argument("--experiment", default="images", help="the name under which the Results page lists the record")
    parser.add_argument("--save", type=Path, help="write the trained encoder here (safetensors)")
    parser.add_argument("--record", action="store_true", help="write to book/results/runs, which the book shows")
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="KEY=VALUE",
                        help="option of the method")
    args = vars(parser.parse_args(argv))
    save, record, restart = args.pop("save"), args.pop("record"), args.pop("restart")
    folder = records.tracked_folder() if record else records.default_folder()
    options = dict(_option(text) for text in args.pop("options"))
    args["schedule"] = dict(_course(text) for text in args["schedule"])
    args["protocols"] = tuple(args["protocols"].split(","))
    clash = sorted(options.keys() & inspect.signature(train).parameters.keys())
    if clash:
        raise ValueError(f"-o {clash[0]}: this is not an option of a method; use --{clash[0].replace('_', '-')}")
    try:
        run = train(**args, resume=not restart, record_to=folder, progress=sys.stderr.isatty(), **options)
    except Interrupted as stop:
        print(f"hnlib train: {stop}", file=sys.stderr)
        return 130
    if os.environ.get("RANK", "0") != "0":  # one of several processes of torchrun
        return 0
    if save:
        run.save(save)
    metrics = run.metrics
    chosen = run.record["configuration"]
    options = " ".join(f"{key}={value}" for key, value in chosen["options"].items())
    released = f"  linear as released {100 * metrics['linear_paper']:.1f} %" if "linear_paper" in metrics else ""
    print(f"{chosen['method']} ({options}): {setting(run.record)}, batch {chosen['batch_size']}, lr {chosen['lr']:g}\n"
          f"kNN {100 * metrics['knn']:.1f} %  linear {100 * metrics['linear']:.1f} %{released}  "
          f"{run.record['seconds']:.1f} s  {folder / records.name(chosen)}.json")
    return 0


def setting(record: dict) -> str:
    """Where a recorded run was made, but for method, options and seed: data, encoder, epochs, what else is unusual.

    "cifar10, 10000 images, small-cnn, 10 epochs". Runs of one method with one `setting` and the same `methods.changed`
    options differ in their seed alone. Usual is the default of `train`, and for the augmentation that of the channels.
    """
    c = record["configuration"]
    if "framework" in c:  # graphs
        usual = {"hidden": 32, "batch_size": 128, "lr": 1e-3, "folds": 10, "labels": None,
                 "augmentations": ["drop", "edges", "subgraph", "mask"], "ratio": 0.2}
        text = f"{c['dataset']}, {c['framework']}, {c['encoder']}, {c['epochs']} epochs"
        return text + "".join(f", {key} {c[key]}" for key, value in usual.items() if c.get(key, value) != value)
    usual = {"lr_schedule": "constant", "precision": "32-true"} | RECIPES[c.get("recipe", "book")]
    usual, c = usual | usual.get(c["dataset"], {}), {"lr_schedule": "constant"} | c
    text = f"{c['dataset']}, {c['train_size'] or 'all'} images, {c['encoder']}, {c['epochs']} epochs"
    text += f", recipe {c['recipe']}" if "recipe" in c else ""
    for key in ("batch_size", "lr", "weight_decay", "precision", "max_steps", "evaluate_size"):
        text += f", {key} {c[key]}" if c[key] != usual.get(key) else ""
    for key in ("lr_schedule", "schedule", "queue", "momentum", "oracle_positives", "projector", "compile", "devices",
                "validation"):
        text += f", {key} {c[key]}" if c.get(key) != usual.get(key) else ""
    recipe = augment.resolve(usual.get("augmentation") or augment.recipe_for(record["image_shape"][0]))
    same = c["augmentation"] == json.loads(json.dumps(augment.recorded(recipe)))
    return text + ("" if same else f", {c['augmentation']}")


def _method(method, usual: dict, options: dict, epochs: int):
    """The method with the `options` given, else those `usual` in the recipe that it has, else the catalogue's."""
    if isinstance(method, str):
        known = methods.CATALOGUE[method].defaults if method in methods.CATALOGUE else {}
        return methods.build(method, **{k: v for k, v in usual.items() if k in known} | options)
    if options:
        raise ValueError(f"unknown option {next(iter(options))!r}; method options go with a method's name")
    if method is None and epochs:
        raise ValueError(f"method=None trains nothing; name a method ({', '.join(methods.CATALOGUE)}) or pass epochs=0")
    return method


def _asks(method, what: str) -> bool:
    """Whether the method, or its row of the catalogue, says that it needs "supervised" labels or "features"."""
    return bool(getattr(getattr(method, "entry", method), what, False))


def _own(method):
    """A copy for this run alone: schedules, learned parameters and counts leave the caller's method as it was."""
    if type(method) is not methods.Method:
        return copy.deepcopy(method)
    own = method._rebuild(method.name, **method.options)  # a copied closure would share its count
    own.load_state_dict(method.state_dict())
    return own


def _has_batch_norm(*parts) -> bool:
    """Whether any of them looks at the batch: the encoders and the projector built by name do."""
    norm = nn.modules.batchnorm._BatchNorm
    return any(not isinstance(p, nn.Module) or any(isinstance(m, norm) for m in p.modules()) for p in parts)


def _title(module: nn.Module) -> str:
    """Class and digest of a module of one's own: structure, plain attributes and weights before training."""
    digest = hashlib.sha256(repr(module).encode())
    for part, inner in module.named_modules():
        plain = {k: v for k, v in vars(inner).items() if isinstance(v, bool | int | float | str) and k != "training"}
        digest.update(repr((part, sorted(plain.items()))).encode())
    for key, value in module.state_dict().items():
        digest.update(key.encode() + value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return f"{type(module).__name__}-{digest.hexdigest()[:8]}"


def _check_schedule(method, schedule: dict) -> None:
    for option, course in schedule.items():
        if not isinstance(method, methods.Method) or option not in method.options:
            known = ", ".join(getattr(method, "options", {})) or "none"
            raise ValueError(f"schedule: the method has no option {option!r}; it has {known}")
        ends = list(course) if isinstance(course, list | tuple) else []
        whole = len(ends) == 2 or (len(ends) == 3 and isinstance(ends[2], int) and ends[2] >= 1)
        if not whole or not all(isinstance(v, Real) and not isinstance(v, bool) for v in ends):
            raise ValueError(f"schedule: {option}={course!r} must be (start, end) or (start, end, number of changes)")
        for value in ends[:2]:
            _own(method).change(**{option: float(value)})  # refuses what the method would refuse


def _check_queue(method, queue: int) -> None:
    if not queue:
        return
    if not isinstance(method, methods.Method):
        raise ValueError(f"queue={queue} needs a method of the catalogue, which can score candidates of a queue")
    eye, y = torch.eye(6), torch.arange(2)
    labels = (y, y + 2) if method.entry.supervised else ()
    try:
        _own(method).loss(Contrast.from_queue(eye[:2], eye[2:4], eye[4:], *labels))
    except ValueError as error:
        raise ValueError(f"queue={queue} is not for {method.name}: {error}") from error


def _model(encoder: str | nn.Module, projector: nn.Module | None, shape) -> Model:
    """Encoder and projector: built by name, or copies of one's own modules."""
    if isinstance(encoder, str):
        encoder = encoders.build(encoder, shape[0], shape[1])
    if projector is None:
        projector = encoders.Projector(encoder.feature_dim, hidden=min(512, encoder.feature_dim))
    return copy.deepcopy(Model(encoder, projector))


def _fabric(device: str, precision: str, devices: int = 1):
    import lightning_fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    if devices < 1:
        raise ValueError(f"devices={devices} must be at least 1")
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
    chosen = dict(devices=devices, strategy="ddp_spawn" if devices > 1 else "auto")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started the processes already
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        chosen = dict(devices=local, num_nodes=int(os.environ["WORLD_SIZE"]) // local, strategy="ddp")
    try:
        fabric = lightning_fabric.Fabric(accelerator=device, precision=precision, **chosen)
        if chosen["strategy"] == "ddp":
            fabric.launch()
        return fabric
    except Exception as error:
        raise ValueError(f"device={device!r} with devices={devices} and precision={precision!r} is not possible here: "
                         f"{error}") from error


@contextmanager
def _fastest_convolutions():
    """All batches have one shape: let cuDNN try its algorithms, unless the caller wants them deterministic."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _memory(device: torch.device, batch_size: int):
    """Where memory does not suffice, say how much there is and what to change."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(error):
            raise
        free = ""
        if device.type == "cuda":
            left, total = torch.cuda.mem_get_info(device)
            free = f" ({left / 2**30:.1f} of {total / 2**30:.1f} GiB are free)"
        raise ValueError(f"out of memory on {device} with batch_size={batch_size}{free}; choose a smaller batch "
                         "(--batch-size), half precision (--precision bf16-mixed) or a smaller encoder") from error


def _fixed_views(dataset: data.Dataset, recipe: augment.Recipe):
    """Views of the batch that all learning curves look at, the same whatever the seed and the method; its labels."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(dataset.x_train), generator=generator)[:DIAGNOSTIC_BATCH]
    x, y = dataset.x_train[chosen], dataset.y_train[chosen]
    if len(y.unique()) == len(y):
        raise ValueError(f"no class has two of the {len(y)} training images that the learning curves look at; "
                         "train on more images (train_size) or on fewer classes")
    return *augment.two_views(x, generator, recipe), y


def _limited(dataset: data.Dataset, size: int | None) -> data.Dataset:
    """At most `size` images in each split, class-balanced."""
    if size is None:
        return dataset
    flipped = replace(dataset, x_train=dataset.x_test, y_train=dataset.y_test)
    test = data.subset(flipped, min(size, len(dataset.x_test)), seed=0)
    train = data.subset(dataset, min(size, len(dataset.x_train)), seed=0)
    return replace(train, x_test=test.x_train, y_test=test.y_train)


def _generator(device, seed: int, epoch: int) -> torch.Generator:
    """All randomness of one epoch: a function of seed and epoch alone, so that resuming needs no random state."""
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]))


def _plain(value):
    """An option as a record can hold it: numbers, words, and a function by its name."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else getattr(value, "__qualname__", str(value))


def _course(text: str) -> tuple[str, list]:
    option, _, course = text.partition("=")
    try:
        start, end, *changes = course.split(":")
        return option, [float(start), float(end), *(int(c) for c in changes)]
    except ValueError:
        raise ValueError(f"--schedule {text}: write OPTION=START:END or OPTION=START:END:CHANGES, for example "
                         "beta=1:0") from None


def _option(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"-o {text}: an option is written KEY=VALUE, for example -o beta=1.0")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _peak_memory(device: torch.device) -> float | None:
    """MB: of the GPU, or of the whole process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


@contextmanager
def _stoppable():
    """SIGTERM ends the training as Ctrl-C does. Signals can be handled in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
