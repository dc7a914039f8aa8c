"""Evaluate encoders of images by kNN and linear probes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hnlib.images import augment
from hnlib.training import evaluation
from hnlib.training.evaluation import linear_probe, neighbours, weighted_knn


def embed(encoder: nn.Module, x: Tensor, batch_size: int | None = None) -> Tensor:
    """Return the features [N,d], float32, of the plain images `x` uint8 [N,H,W,C], in eval mode.

    Batches go to the encoder's device, and the features stay there.
    By default a batch has at most 1,000 images, and as many pixels as 1,000 images of CIFAR-10.
    """
    batch_size = batch_size or max(1, min(1000, 3_072_000 // x[0].numel()))
    parts = x.split(batch_size)
    return evaluation.embed(encoder, parts, lambda part: encoder(augment.plain(part)))


def knn(encoder: nn.Module, dataset) -> float:
    """Return the test accuracy of `weighted_knn` with `neighbours`."""
    x, x_test = (embed(encoder, images) for images in (dataset.x_train, dataset.x_test))
    y, y_test = (labels.to(x.device) for labels in (dataset.y_train, dataset.y_test))
    return _accuracy(weighted_knn(x, y, x_test, y_test, neighbours(len(x))))


def _accuracy(correct: Tensor) -> float:
    return int(correct.sum()) / len(correct)


def readouts(encoder: nn.Module, dataset) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return the accuracies of kNN and of a linear probe, and which images were right, bool [N].

    The encoder is frozen and in eval mode, images are plain, features are computed once. Where the
    data set has validation images, there are knn_validation and linear_validation too.
    """
    train_x = embed(encoder, dataset.x_train)
    train_y = dataset.y_train.to(train_x.device)
    parts = {"": (dataset.x_test, dataset.y_test)}
    if dataset.x_validation is not None:
        parts["_validation"] = (dataset.x_validation, dataset.y_validation)
    x = torch.cat([embed(encoder, images) for images, _ in parts.values()])
    y = torch.cat([labels for _, labels in parts.values()]).to(x.device)
    sizes, k = [len(labels) for _, labels in parts.values()], neighbours(len(train_x))
    right = {
        "knn": weighted_knn(train_x, train_y, x, y, k).split(sizes),
        "linear": linear_probe(train_x, train_y, x, y).split(sizes),
    }
    correct = {name + part: bits for name in right for part, bits in zip(parts, right[name])}
    return {"knn_k": k} | {name: _accuracy(bits) for name, bits in correct.items()}, correct
