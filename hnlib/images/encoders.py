"""Encoders, images [B,C,H,W] to features [B,feature_dim], and the projector on top of them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from hnlib import _checks
from hnlib.images.registry import ENCODERS


def build(name: str, in_channels: int = 3, image_size: int = 32) -> nn.Module:
    r"""Build an encoder with random weights and an attribute `feature_dim`.

    "small-cnn": three 3×3 convolutions of 32, 64, 128 channels with batch-norm, mean over the
    picture; 93,000 weights. The others are torchvision's networks with the stem the papers
    use on small pictures, a 3×3 convolution of stride 1 without max-pooling, and no classifier
    (features 512, 2048). The released code of hcl keeps this stem for the 96-pixel images of STL-10
    too, so we do at every size; there it trains on crops resized to 32 pixels.
    """
    _checks.one_of("encoder", name, ENCODERS)
    if ENCODERS[name] == "here":
        return SmallCNN(in_channels, image_size)
    from hnlib.images._torchvision import torchvision

    encoder = getattr(torchvision.models, ENCODERS[name])(weights=None)
    encoder.feature_dim, encoder.fc = encoder.fc.in_features, nn.Identity()
    encoder.conv1 = nn.Conv2d(in_channels, 64, 3, 1, 1, bias=False)
    encoder.maxpool = nn.Identity()
    return encoder


class SmallCNN(nn.Module):
    """A network for a laptop: digits in seconds, CIFAR-10 in less than a minute per epoch."""

    feature_dim = 128

    def __init__(self, in_channels: int, image_size: int):
        super().__init__()
        # for speed large images are halved at once; the last map stays 8×8: 4 points better
        strides = (1, 2, 2) if image_size < 32 else (2, 2, 1)
        self.layers = nn.Sequential(
            *_convolution(in_channels, 32, strides[0]),
            *_convolution(32, 64, strides[1]),
            *_convolution(64, self.feature_dim, strides[2]),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        return self.layers(x).mean((2, 3))


class Projector(nn.Module):
    """The head trained with the encoder and then discarded: Linear, batch-norm, ReLU, Linear.

    With ResNet-50 it is 2048→512→128: the outer two are hcl's (App. D.1), and the inner one is its
    released code's. The loss normalises the output.
    """

    def __init__(self, feature_dim: int, hidden: int = 512, out: int = 128):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(feature_dim, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, out),
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the embeddings."""
        return self.layers(features)


class Model(nn.Module):
    """Encoder and projector as one module: images to the embedding z that the loss sees."""

    projector: Any  # has `layers`, where a method wants features

    def __init__(self, encoder: nn.Module, projector: nn.Module):
        super().__init__()
        self.encoder, self.projector = encoder, projector

    def forward(self, x: torch.Tensor, hidden: bool = False):
        """Return the embeddings; with `hidden` also the inputs of the projector's last layer."""
        if not hidden:
            return self.projector(self.encoder(x))
        h = self.projector.layers[:-1](self.encoder(x))
        return self.projector.layers[-1](h), h


def model(encoder: str | nn.Module, shape) -> Model:
    """Build a projector and an encoder, by name or as a copy, for images of `shape` (C, H, W)."""
    if isinstance(encoder, str):
        encoder = build(encoder, shape[0], shape[1])
    projector = Projector(encoder.feature_dim, hidden=min(512, encoder.feature_dim))
    return copy.deepcopy(Model(encoder, projector))


def _convolution(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
