"""The model that a run on images trains, and its measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hnlib import methods
from hnlib.contrast import Contrast
from hnlib.images import augment, data, encoders, evaluation, mixed_views
from hnlib.images.config import Augmentation, ImageRun, as_augmentation
from hnlib.training import diagnostics, records, task
from hnlib.training.loop import needs

DIAGNOSTIC_BATCH = 256  # images in the fixed batch of the learning curves


@dataclasses.dataclass
class Views(task.Views):
    """Two views [B, C, H, W] of this process's share of a batch, and what its loss needs.

    i-Mix mixes the `first` view, Un-Mix makes a third, `mixed`. `share` is the share of the image
    itself in a mixture and `partner` [B] the row of the other image. `kept_out` [2B, 2B] are pairs
    of one class that do not count as negatives.
    """

    mixed: Tensor | None = None
    share: Tensor | None = None
    partner: Tensor | None = None
    kept_out: Tensor | None = None


class Task(task.Task):
    """Two views of each image. The images are resident on the device.

    `render` makes the views of images and random numbers; it may be compiled.
    """

    unit, fixed_shapes = "image", True

    def __init__(
        self, run: ImageRun, method=None, device="cpu", data_root=None, dataset=None, encoder=None
    ):
        supervised = needs(method, "supervised")
        _check(run, method, supervised)
        dataset = dataset or data.load(run.dataset, data_root)
        if run.validation:
            dataset = data.hold_out(dataset, run.validation)
        if run.train_size is not None:  # for every seed: it varies the training, not the data
            dataset = data.subset(dataset, run.train_size, seed=0)
        chosen = as_augmentation(run.resolved().augmentation)
        super().__init__(run, dataset, device, augmentation=chosen)
        self.augmentation, self.dataset = chosen, dataset
        self.encoder, self.draws_on = encoder, device
        self.render = augment.rendered
        size = chosen.size or dataset.image_size
        self.shape = (dataset.channels, size, size)
        self.x, self.labels = dataset.x_train.to(device), dataset.y_train.to(device)
        needs_class = run.train_size or supervised or run.oracle_positives or run.admitted < 1
        if dataset.x_unlabelled is not None and not needs_class:
            self.x = torch.cat([self.x, dataset.x_unlabelled.to(device)])
        self.examples = len(self.x)
        self.classmates = Classmates(self.labels) if run.oracle_positives else None
        self.evaluation_data = cap_sizes(dataset, run.evaluate_size)
        self.fixed = [part.to(device) for part in fixed_views(dataset, chosen)]

    def model(self) -> encoders.Model:
        """Return a model with random weights."""
        return encoders.model(self.encoder or self.run.encoder, self.shape)

    def views(self, batch: Tensor, generator: torch.Generator, share: slice) -> Views:
        """Return two views of the images in this process's `share`."""
        images = batch[share]
        other = None
        if self.classmates is not None:
            other = self.x[self.classmates.draw(batch, generator)[share]]
        part = None if len(images) == len(batch) else (share.start, len(batch))
        how: Any = dict(part=part, other=other, render=self.render)
        pair = augment.two_views(self.x[images], generator, self.augmentation, **how)
        first, second = (view.contiguous(memory_format=torch.channels_last) for view in pair)
        views = Views(first, second)
        if self.run.mixing == "i-mix":
            mixture = mixed_views.i_mix(first, generator, self.run.mixing_share)
            views.first, views.partner, views.share = mixture
        if self.run.mixing == "un-mix":
            views.mixed, views.share = mixed_views.un_mix(first, generator, self.run.mixing_share)
        if self.run.admitted < 1:
            views.kept_out = self._false_negatives_kept_out(batch, generator)
        return views

    def _false_negatives_kept_out(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        y = self.labels[batch]
        u = torch.rand(len(y), len(y), generator=generator, device=y.device).triu(1)
        same = y[:, None].eq(y)
        return (same & (u + u.T >= self.run.admitted)).repeat(2, 2)

    def loss(self, model: nn.Module, method, views: Views, labels, gather: Callable) -> Tensor:
        """Return the loss of the whole batch; `gather` collects the rows of all processes."""
        hidden = needs(method, "features")
        outputs = [model(x, hidden=True) if hidden else (model(x),) for x in self._passes(views)]
        z, *features = (
            [gather(part) for part in torch.cat(parts).split(len(views.first))]
            for parts in zip(*outputs)
        )
        if self.run.mixing == "i-mix":
            return mixed_views.i_mix_loss(method, z[0], z[1], views.partner, views.share)
        if self.run.mixing == "un-mix":
            return mixed_views.un_mix_loss(method, z, views.share, *features)
        if self.run.pairs_only:
            known = {} if labels is None else {"labels": labels}
            return (method.pairs(*z, **known) + method.pairs(*reversed(z), **known)) / 2
        more = {"features": tuple(features[0])} if hidden else {}
        if views.kept_out is None:
            return method(*z, labels, **more)
        return method.loss(Contrast.from_views(*z, **more).without(views.kept_out))

    def _passes(self, views: Views) -> list[Tensor]:
        """Return the groups that pass the model together and share the statistics of batch-norm.

        Mixtures pass separately, as in the code of Un-Mix.
        """
        parts = [views.first, views.second]
        if not self.run.separate_views:
            parts = [torch.cat(parts)]
        if views.mixed is not None:
            parts.append(views.mixed)
        return [x.contiguous(memory_format=torch.channels_last) for x in parts]

    @torch.no_grad()
    def evaluate(self, loop, loss: float | None, rate: float | None) -> dict | None:
        """Return a row of the history; `measure` completes the last row."""
        due = loop.should_evaluate(loop.progress.epoch)
        if not (due or loop.finished or loop.progress.epoch == 0):
            return None
        loop.model.eval()  # not Fabric's wrapper: evaluation is in float32
        row = dict(epoch=loop.progress.epoch, step=loop.progress.step, loss=loss, knn=None)
        if due and not loop.finished:
            row["knn"] = evaluation.knn(loop.model.encoder, self.evaluation_data)
        return row | {"images_per_second": rate} | self._geometry(loop)

    def _geometry(self, loop) -> dict:
        """Return what learning curves show of the fixed views."""
        model, method = loop.model, loop.method
        v1, v2, labels = self.fixed
        outputs = [model(view, hidden=True) for view in (v1, v2)]
        (z1, z2), h = zip(*outputs)
        shown = diagnostics.diagnostics(z1, z2, labels, method, loop.supervised, h)
        if isinstance(method, methods.Method) and method.entry.loud:
            shown |= diagnostics.loudness(method, z1, z2)
        return shown | loop.scheduled

    def _scores(self, model: nn.Module) -> tuple[dict, dict]:
        """Return accuracies, and which test images were right."""
        encoder = model.get_submodule("encoder")
        metrics, correct = evaluation.readouts(encoder, self.evaluation_data)
        return metrics, {
            "image_shape": list(self.shape),
            "test_images": len(self.evaluation_data.x_test),
            "correct": {name: records.pack(bits) for name, bits in correct.items()},
        }

    @staticmethod
    def saved_model(record: dict, state: dict, encoder=None) -> encoders.Model:
        """Return the model of a saved run, before its weights are loaded."""
        named = encoder or record["configuration"]["encoder"]
        return encoders.model(named, record["image_shape"])


class Classmates:
    """Random images of the same class, the image itself among them, drawn on the device."""

    def __init__(self, labels: Tensor):
        self.labels, self.order = labels, labels.argsort(stable=True)
        self.count = labels.bincount()
        self.start = self.count.cumsum(0) - self.count

    def draw(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        """Return an image of the same class for each image of the batch."""
        y = self.labels[batch]
        u = torch.rand(len(batch), generator=generator, device=batch.device, dtype=torch.float64)
        return self.order[self.start[y] + (u * self.count[y]).long()]


def fixed_views(dataset: data.Dataset, augmentation: Augmentation) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of the batch that all learning curves of all runs use, and its labels."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(dataset.x_train), generator=generator)[:DIAGNOSTIC_BATCH]
    x, y = dataset.x_train[chosen], dataset.y_train[chosen]
    return *augment.two_views(x, generator, augmentation), y


def cap_sizes(dataset: data.Dataset, size: int | None) -> data.Dataset:
    """Return at most `size` images in the splits for training and test, class-balanced."""
    if size is None:
        return dataset
    flipped = dataclasses.replace(dataset, x_train=dataset.x_test, y_train=dataset.y_test)
    train, test = (data.subset(x, min(size, len(x.x_train))) for x in (dataset, flipped))
    return dataclasses.replace(train, x_test=test.x_train, y_test=test.y_train)


def _check(run: ImageRun, method, supervised: bool) -> None:
    """Check that the options fit each other and the method, before the images are loaded."""
    if "paper" in run.protocols:
        raise ValueError("protocols must be clean; paper is that of a few records alone")
    chosen = [name for name in ("mixing", "queue", "pairs_only") if getattr(run, name)]
    chosen += ["admitted"] * (run.admitted < 1)
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} do not go together; choose one of them")
    if run.separate_views and run.queue:
        raise ValueError(f"separate_views does not apply with queue={run.queue}")
    if supervised and (run.mixing or run.admitted < 1):
        raise ValueError(f"{chosen[0]} requires a method without class labels, not {run.method}")
    if needs(method, "features") and (run.pairs_only or run.mixing == "i-mix"):
        raise ValueError(f"{chosen[0]} has no two views to weigh, which {run.method} needs")
