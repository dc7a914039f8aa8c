import pytest
import torch

from hnlib.images import encoders


@pytest.mark.parametrize(
    "name, channels, size, features", [("small-cnn", 3, 96, 128), ("resnet50", 3, 16, 2048)]
)
def test_features_have_the_promised_dimension(name, channels, size, features):
    encoder = encoders.build(name, channels, size).eval()
    with torch.no_grad():
        output = encoder(torch.zeros(2, channels, size, size))
    assert encoder.feature_dim == features and output.shape == (2, features)


def test_the_stem_keeps_the_resolution_of_small_images():
    encoder = encoders.build("resnet18", 3, 32)
    stem = torch.nn.Sequential(encoder.conv1, encoder.maxpool)
    assert stem(torch.zeros(2, 3, 32, 32)).shape == (2, 64, 32, 32)
