"""Runs on images: what is trained, what learning curves show, how an encoder is judged."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from hnlib import methods
from hnlib.contrast import Contrast
from hnlib.images import augment, data, encoders
from hnlib.images import evaluation as readouts
from hnlib.images.modality import Images
from hnlib.results import diagnostics
from hnlib.training import records
from hnlib.training.config import Execution, ImageRun
from hnlib.training.loop import Course, Loop, asks_for

DIAGNOSTIC_BATCH = 256  # images in the fixed batch of the learning curves
#: Methods whose learning curves show how loud their anchors are
LOUDNESS = ("simclr", "debiased", "hcl", "ot", "adnce")


def method_of(run: ImageRun):
    """The method that the run names. ValueError: as in `methods.build`."""
    return methods.build(run.method, **run.options)


def saved_model(record: dict, state: dict, encoder=None, projector=None) -> encoders.Model:
    """The model of a saved run, before its weights are loaded."""
    named = encoder or record["configuration"]["encoder"]
    return encoders.model(named, projector, record["image_shape"])


def example_inputs(record: dict, encoder: nn.Module) -> tuple[tuple, tuple]:
    """Inputs of an encoder, and which of their sizes are free."""
    free = {0: torch.export.Dim("batch", min=1)}
    return (torch.zeros(2, *record["image_shape"]),), (free,)


class Task:
    """What a run of images trains, and what it measures; `run` says all that was chosen."""

    ROW = frozenset({"epoch", "loss"})  # what is read of a row of the history

    def __init__(self, run: ImageRun, execution: Execution, own: SimpleNamespace, method, device):
        encoder = run.encoder if own.encoder is None else own.encoder
        dataset = own.dataset or data.load(run.dataset, execution.data_root)
        if run.validation:
            dataset = data.hold_out(dataset, run.validation)
        if run.train_size is not None:  # for every seed: it varies the training, not the data
            dataset = data.subset(dataset, run.train_size, seed=0)
        self.recipe = augment.resolve(run.augmentation or augment.recipe_for(dataset.channels))
        supervised = asks_for(method, "supervised")
        images = Images(
            dataset,
            self.recipe,
            run.batch_size,
            device,
            encoder,
            own.projector,
            unlabelled=not (run.train_size or supervised),
            same_class=run.oracle_positives,
            admitted=run.admitted,
            mixed=(run.mixing, run.mixing_share),
            separate=run.separate_views,
        )
        if run.epochs and run.batch_size > len(images.x):
            raise ValueError(
                f"batch_size={run.batch_size} exceeds the {len(images.x)} training images; "
                f"choose 2 to {len(images.x)}"
            )
        self.parts, self.dataset = [images], dataset
        self.judged = at_most(dataset, run.evaluate_size)
        self.fixed = [part.to(device) for part in fixed_views(dataset, self.recipe)]
        self.run = dataclasses.replace(
            run,
            dataset=dataset.name,
            dataset_digest=dataset.digest,
            augmentation=augment.recorded(self.recipe),
        )

    @torch.no_grad()
    def look(self, loop: Loop, loss: float | None, rate: float | None) -> dict | None:
        """A row of the history; the last row's kNN is filled in with the final readout, which
        computes it anyway."""
        course, due = loop.course, loop.due(loop.course.epoch)
        if not (due or loop.last or course.epoch == 0):
            return None
        loop.model.eval()  # not Fabric's wrapper: evaluation is in float32
        seen = dict(epoch=course.epoch, step=course.step, loss=loss)
        knn = None
        if due and not loop.last:
            knn = readouts.knn(loop.model.encoder, self.judged, device=loop.fabric.device)
        return seen | {"knn": knn, "images_per_second": rate} | self._geometry(loop)

    def _geometry(self, loop: Loop) -> dict:
        """What the learning curves show of the fixed views."""
        model, method = loop.model, loop.method
        v1, v2, labels = self.fixed
        # the inputs of the last layer only for those who look at them: a projector of one's own
        # need not have any
        layers = getattr(model.projector, "layers", None)
        hidden = asks_for(method, "features") or isinstance(layers, nn.Sequential)
        found = [model(v, hidden=True) if hidden else (model(v),) for v in (v1, v2)]
        (z1, *h1), (z2, *h2) = found
        h = (*h1, *h2) or None
        observe, seen = getattr(method, "observe", None), {}
        if observe is not None:
            seen = observe(Contrast.from_views(z1.float(), z2.float(), features=h))
        weights = getattr(method, "log_weights", None)
        shown = diagnostics.diagnostics(z1, z2, labels, weights, loop.supervised, h)
        if isinstance(method, methods.Method) and method.name in LOUDNESS:
            shown |= diagnostics.loudness(method, z1, z2)
        return shown | seen | loop.scheduled

    def measure(self, model: nn.Module, courses: list[Course], device) -> dict:
        """What the record says of the trained model besides the configuration."""
        (course,), run, correct = courses, self.run, {}
        chosen = dict(device=device, protocols=run.protocols, recipe=self.recipe, correct=correct)
        metrics = readouts.readouts(model.encoder, self.judged, **chosen)
        metrics |= {"loss": course.history[-1]["loss"], "steps": course.step}
        seconds = sum(course.seconds)
        rate = course.step * run.batch_size / seconds if course.step else None
        metrics["images_per_second"] = rate
        course.history[-1]["knn"] = metrics["knn"]
        return {
            "metrics": metrics,
            "history": course.history,
            "losses": course.losses,
            "image_shape": list(self.parts[0].shape),
            "test_images": len(self.judged.x_test),
            "correct": {name: records.pack(bits) for name, bits in correct.items()},
        }


def fixed_views(dataset: data.Dataset, recipe: augment.Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Views of the batch that all learning curves look at, the same whatever the seed and the
    method; its labels."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(dataset.x_train), generator=generator)[:DIAGNOSTIC_BATCH]
    x, y = dataset.x_train[chosen], dataset.y_train[chosen]
    if len(y.unique()) == len(y):
        raise ValueError(
            f"no class has two of the {len(y)} training images that the learning curves look at; "
            "train on more images (train_size) or on fewer classes"
        )
    return *augment.two_views(x, generator, recipe), y


def at_most(dataset: data.Dataset, size: int | None) -> data.Dataset:
    """At most `size` images in the splits for training and test, class-balanced."""
    if size is None:
        return dataset
    flipped = dataclasses.replace(dataset, x_train=dataset.x_test, y_train=dataset.y_test)
    test = data.subset(flipped, min(size, len(dataset.x_test)), seed=0)
    train = data.subset(dataset, min(size, len(dataset.x_train)), seed=0)
    return dataclasses.replace(train, x_test=test.x_train, y_test=test.y_train)


def check(run: ImageRun, execution: Execution, own: SimpleNamespace, method) -> None:
    """ValueError: what can be refused before the images are there."""
    supervised = asks_for(method, "supervised")
    if run.admitted < 1 and (supervised or run.queue or not hasattr(method, "loss")):
        raise ValueError(
            f"admitted={run.admitted} thins the negatives of an unsupervised method of the "
            "catalogue, without a queue; leave it out here"
        )
    if run.separate_views and run.queue:
        raise ValueError(
            f"separate_views means nothing with queue={run.queue}, whose keys come from another "
            "model; leave it out"
        )
    if run.mixing:
        _check_mixing(run, method, supervised)
    encoder = run.encoder if own.encoder is None else own.encoder
    if isinstance(encoder, str):
        if encoder not in encoders.ENCODERS:
            raise ValueError(f"unknown encoder {encoder!r}; known: {', '.join(encoders.ENCODERS)}")
    elif not isinstance(getattr(encoder, "feature_dim", None), int):
        raise ValueError(
            f"the encoder {type(encoder).__name__} needs an attribute feature_dim, its output's "
            "width"
        )


def _check_mixing(run: ImageRun, method, supervised: bool) -> None:
    """ValueError: mixtures of images mean nothing for this run, or to its method."""
    if supervised or run.queue or run.admitted < 1:
        raise ValueError(
            f"mixing={run.mixing} is for methods without labels, without a queue and with all "
            "pairs admitted; leave it out here"
        )
    if run.mixing == "i-mix":
        if not isinstance(method, methods.Method):
            raise ValueError("mixing=i-mix needs a method of the catalogue; use un-mix here")
        eye = torch.eye(4)
        try:
            method.copy().loss(Contrast.from_pairs(eye[:2], eye[2:]), reduction="none")
        except ValueError as error:
            raise ValueError(f"mixing=i-mix is not for {method.name}: {error}") from error
