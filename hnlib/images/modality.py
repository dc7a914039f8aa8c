"""Images as the training loop meets them: an epoch's batches, two views, their loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hnlib.contrast import Contrast
from hnlib.images import augment, data, encoders, mixing


class Images:
    """The images that are trained on, resident on `device`: those of the training split and, where
    no class has to be known, the unlabelled ones.

    `encoder`, `projector`: as `encoders.model` takes them. `same_class`: the second view is of a
    random image of the class. `admitted`: which share of a class's pairs may be negatives.
    `separate`: each view passes the model by itself, as in released code. `mixed`: which of
    `mixing.MIXINGS` makes the first view, or one more, and the share of the own image in it, if it
    is fixed.
    """

    title, unit, first_epoch, fused = "", "image", 0, True

    def __init__(
        self,
        dataset: data.Dataset,
        recipe: augment.Recipe,
        batch_size: int,
        device: torch.device | str = "cpu",
        encoder: str | nn.Module = "small-cnn",
        projector: nn.Module | None = None,
        unlabelled: bool = True,
        same_class: bool = False,
        admitted: float = 1.0,
        separate: bool = False,
        mixed: tuple[str | None, float | None] = (None, None),
    ):
        self.recipe, self.batch_size, self.draws_on = recipe, batch_size, device
        size = recipe.size or dataset.image_size
        self.shape = (dataset.channels, size, size)
        self.parts = encoder, projector
        self.x, self.labels = dataset.x_train.to(device), dataset.y_train.to(device)
        self.admitted, self.separate = admitted, separate
        self.mixing, self.share = mixed
        if unlabelled and not same_class and admitted == 1 and dataset.x_unlabelled is not None:
            self.x = torch.cat([self.x, dataset.x_unlabelled.to(device)])
        self.classmates = Classmates(self.labels) if same_class else None

    def __len__(self) -> int:
        return len(self.x) // self.batch_size * self.batch_size

    def model(self) -> encoders.Model:
        return encoders.model(*self.parts, self.shape)

    def batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Index vectors of one epoch: a permutation, the last partial batch dropped."""
        order = torch.randperm(len(self.x), generator=generator, device=self.x.device)
        return order[: len(self)].split(self.batch_size)

    def views(self, batch: Tensor, generator: torch.Generator, share: slice) -> tuple:
        """Two views of the images of `batch` that lie in this device's `share` of it; with them, if
        some are not admitted, the pairs $[2B,2B]$ of the whole batch that are no negatives. With
        i-Mix the first view is mixed, with Un-Mix there is a third; their shares come last."""
        mine = batch[share]
        other = None
        if self.classmates is not None:
            other = self.x[self.classmates.draw(batch, generator)[share]]
        part = None if len(mine) == len(batch) else (share.start, len(batch))
        views = augment.two_views(self.x[mine], generator, self.recipe, part=part, other=other)
        views = tuple(view.contiguous(memory_format=torch.channels_last) for view in views)
        if self.mixing == "i-mix":
            mixed, *about = mixing.i_mix(views[0], generator, self.share)
            return mixed, views[1], *about
        if self.mixing == "un-mix":
            return *views, *mixing.un_mix(views[0], generator, self.share)
        return views if self.admitted == 1 else (*views, self._dismissed(batch, generator))

    def _dismissed(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        y = self.labels[batch]
        u = torch.rand(len(y), len(y), generator=generator, device=y.device).triu(1)
        same = y[:, None].eq(y)
        return (same & (u + u.T >= self.admitted)).repeat(2, 2)

    def loss(self, model: nn.Module, method, views: tuple, labels, gather: Callable) -> Tensor:
        """The loss of the batch whose share `views` are; `gather` brings the rows of all devices
        together."""
        wanted = bool(getattr(getattr(method, "entry", method), "features", False))
        found = [model(x, hidden=True) if wanted else (model(x),) for x in self._passes(views)]
        z, *hidden = (
            [gather(part) for part in torch.cat(parts).split(len(views[0]))]
            for parts in zip(*found)
        )
        if self.mixing == "i-mix":
            return mixing.i_mix_loss(method, *z, *views[2:])
        if self.mixing == "un-mix":
            return mixing.un_mix_loss(method, z, views[3], *hidden)
        more = {"features": tuple(hidden[0])} if wanted else {}
        if self.admitted == 1:
            return method(*z, labels, **more)
        return method.loss(Contrast.from_views(*z, **more).without(views[2]))

    def _passes(self, views: tuple) -> list[Tensor]:
        """What goes through the model at once: in one pass views share batch-norm's statistics.
        Mixtures go apart, as in the code of Un-Mix."""
        parts = views[:2] if self.separate else (torch.cat(views[:2]),)
        parts += views[2:3] if self.mixing == "un-mix" else ()
        return [x.contiguous(memory_format=torch.channels_last) for x in parts]

    def mean_loss(self, losses: Tensor, batches: Sequence[Tensor]) -> float:
        return float(losses.mean())


class Classmates:
    """Random images of the same class, itself among them, drawn on the device without a wait."""

    def __init__(self, labels: Tensor):
        self.labels, self.order = labels, labels.argsort(stable=True)
        self.count = labels.bincount()
        self.start = self.count.cumsum(0) - self.count

    def draw(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        y = self.labels[batch]
        u = torch.rand(len(batch), generator=generator, device=batch.device, dtype=torch.float64)
        return self.order[self.start[y] + (u * self.count[y]).long()]
