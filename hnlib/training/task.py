"""The part of training that depends on the kind of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Views:
    """Two views of the examples in a batch; InfoGraph takes one."""

    first: Any
    second: Any = None


class Task:
    """What a run trains and measures; each kind of data has its subclass.

    The task provides data, model, views, the loss of a batch and evaluation; the loop provides
    steps, schedules, the key queue, checkpoints and progress.

    `run` is the resolved run, with name and digest of the data that were loaded. `labels` $[N]$ is
    indexed by what `batches` returns. `title` tells trainings of one run apart, `unit` is the word
    for an example, `examples` their number, `len` the number of examples in an epoch. Random
    numbers of epoch $e$ come from a generator on the device `draws_on`, seeded by the run's seed
    and $e$ + `first_epoch`. `fused` steps of Adam round differently; with `decoupled` weight decay
    Adam is AdamW. With `fixed_shapes` all batches have one shape, so that a step can be compiled;
    of its views `render` can, if any, a function without random numbers. It is made as
    `Task(run, method, device, data_root)`, with the user's own `dataset` and `encoder`, if any.
    """

    run: Any
    examples: int
    labels: Tensor = torch.zeros(0)
    title, unit, first_epoch, fused, decoupled = "", "example", 0, True, False
    fixed_shapes, render = False, None
    draws_on: torch.device | str = "cpu"

    def __init__(self, run, data, device: torch.device | str = "cpu", **about):
        """Keep the run, with the name and the digest of its data, and what else is known now."""
        self.device = device
        self.run = replace(run, dataset=data.name, dataset_digest=data.digest, **about)

    @staticmethod
    def build_method(run) -> nn.Module:
        """Return the method that a resolved run names."""
        from hnlib import methods

        entry = run.entry or methods.entry_of(run.catalogue, run.method)
        return methods.make(run.method, entry, run.options)

    @property
    def parts(self) -> list[Task]:
        """The trainings of the run: one, or one for each fold."""
        return [self]

    def __len__(self) -> int:
        return self.examples // self.run.batch_size * self.run.batch_size

    def model(self) -> nn.Module:
        """Return a model with random weights and an attribute `encoder`."""
        raise NotImplementedError

    def batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Return the index vectors of one epoch: a permutation, the last partial batch dropped."""
        order = torch.randperm(self.examples, generator=generator, device=generator.device)
        return order[: len(self)].split(self.run.batch_size)

    def views(self, batch: Tensor, generator: torch.Generator, share: slice) -> Any:
        """Return what `loss` takes, made of the examples in this process's `share` of the batch.

        Draw as many random numbers as for the whole batch. A key queue needs `Views`.
        """
        raise NotImplementedError

    def loss(self, model, method, views: Any, labels, gather: Callable) -> Tensor:
        """Return the loss of the whole batch; `gather` collects the rows of all processes."""
        raise NotImplementedError

    def mean_loss(self, losses: Tensor, batches: Sequence[Tensor]) -> float:
        """Return the loss of an epoch from those of its batches."""
        return float(losses.mean())

    def evaluate(self, loop, loss: float | None, rate: float | None) -> dict | None:
        """Return a row of the history with at least `epoch` and `loss`, or None.

        Called before the first epoch and after each one with its loss and examples per second.
        """
        if not (loop.should_evaluate(loop.progress.epoch) or loop.finished):
            return None
        row = dict(epoch=loop.progress.epoch, step=loop.progress.step, loss=loss) | loop.scheduled
        row[f"{self.unit}s_per_second"] = rate
        return row if loop.finished else row | self._scores(loop.model)[0]

    def _scores(self, model: nn.Module) -> tuple[dict, dict]:
        """Return the metrics of a model, and the other fields of its record.

        The loop's last row is completed by `measure`.
        """
        return {}, {}

    def measure(self, model: nn.Module, trainings: list, device) -> dict:
        """Return the record's contents besides the configuration, with at least `metrics`."""
        (training,) = trainings
        scores, about = self._scores(model)
        last, steps = training.history[-1], training.step
        curve = [name for name in scores if name in last]  # of images: kNN alone
        last |= {name: scores[name] for name in curve or scores}
        rate = steps * self.run.batch_size / sum(training.seconds) if steps else None
        metrics = scores | dict(loss=last["loss"], steps=steps)
        metrics[f"{self.unit}s_per_second"] = rate
        return dict(metrics=metrics, history=training.history, losses=training.losses) | about

    @staticmethod
    def saved_model(record: dict, state: dict, encoder: nn.Module | None = None) -> nn.Module:
        """Return the model of a saved run, before its weights are loaded."""
        raise NotImplementedError
