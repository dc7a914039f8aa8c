"""Evaluate encoders of images by kNN and linear probes."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from hnlib.images import augment
from hnlib.images.config import Augmentation
from hnlib.training.evaluation import eval_mode, linear_probe, neighbours, weighted_knn


def embed(encoder: nn.Module, x: Tensor, batch_size: int | None = None) -> Tensor:
    """Return the features [N,d], float32, of the plain images `x` uint8 [N,H,W,C], in eval mode.

    Batches go to the encoder's device, and the features stay there.
    By default a batch has at most 1,000 images, and as many pixels as 1,000 images of CIFAR-10.
    """
    batch_size = batch_size or max(1, min(1000, 3_072_000 // x[0].numel()))
    device = next((p.device for p in encoder.parameters()), x.device)
    with eval_mode(encoder):
        parts = [encoder(augment.plain(part.to(device))).float() for part in x.split(batch_size)]
    return torch.cat(parts)


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


def paper_readout(
    encoder: nn.Module,
    dataset,
    augmentation: str | Augmentation = "hcl",
    epochs: int = 100,
    batch_size: int = 512,
    lr: float = 1e-3,
    weight_decay: float = 1e-6,
    seed: int = 0,
    precision: str = "32-true",
) -> float:
    """Return the test accuracy of a linear layer trained as in the code released with hcl.

    The defaults are those of its `image/linear.py`. An oddity of that code: the weights of the
    encoder are frozen, yet the encoder is in train mode while the layer learns. So the layer learns
    on features normalised by the statistics of their batch, and each batch moves the running
    statistics, which the test images then meet in eval mode. The layer learns from augmented
    images, one fresh view an epoch, and is tested on plain ones. Nothing is standardised; the
    optimiser is Adam, batches are shuffled, and the last, partial one is used.

    The encoder is not changed: this works on a copy, with autocast where `precision` is bf16-mixed;
    the layer is in float32. An `augmentation` with a size (STL-10 as released)
    needs an encoder for images of any size.
    """
    device = next((p.device for p in encoder.parameters()), dataset.x_train.device)
    x, y = dataset.x_train.to(device), dataset.y_train.to(device)
    encoder = copy.deepcopy(encoder)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
    dimension = embed(encoder, dataset.x_train[:1]).shape[1]
    generator = torch.Generator(device).manual_seed(seed)
    # The caller's random state stays; ours decides the layer's start and what an encoder draws
    # itself in train mode.
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        torch.manual_seed(seed)
        layer = nn.Linear(dimension, dataset.num_classes).to(device)
        optimiser = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=weight_decay)
        encoder.train()
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=generator, device=device)
            for batch in order.split(batch_size):
                views = augment.view(x[batch], generator, augmentation)
                with torch.no_grad(), autocast:
                    views = views.contiguous(memory_format=torch.channels_last)
                    features = encoder(views).float()
                loss = functional.cross_entropy(layer(features), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    with autocast:
        x_test = embed(encoder, dataset.x_test)
    with torch.no_grad():
        predicted = layer(x_test).argmax(1)
    return _accuracy(predicted == dataset.y_test.to(device))
