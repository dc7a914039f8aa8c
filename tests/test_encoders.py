import torch
from torch import nn

from hnlib.images import encoders


def test_the_stem_keeps_the_resolution_of_small_images():
    encoder, x = encoders.build("resnet18", 3, 32), torch.zeros(2, 3, 32, 32)
    assert nn.Sequential(encoder.conv1, encoder.maxpool)(x).shape == (2, 64, 32, 32)
    assert encoder(x).shape == (2, encoder.feature_dim)
