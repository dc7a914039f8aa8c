"""How long the masks of a batch live: with a method or a contrast that has them, no longer."""

import copy
import gc
import pickle

import drawn
import pytest
import torch

from hnlib import methods
from hnlib.contrast import Contrast


def masks_of(*sizes):
    """How many masks [2B, 2B] there are, for each size B of a batch."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.dtype == torch.bool]
    return [sum(x.shape == (2 * size, 2 * size) for x in tensors) for size in sizes]


@pytest.mark.parametrize("name", ["hcl", "scl"])
def test_masks_live_as_long_as_a_method_or_a_contrast_that_has_them(name):
    size = 37
    z1, z2 = drawn.views(0, size)
    labels = torch.arange(size) % 3
    method = methods.build(name)
    method(z1, z2, labels)
    assert masks_of(size) == [2]  # positives and admissible; those with labels are gone
    contrasts = [Contrast.from_views(z1, z2), Contrast.from_views(z2, z1)]
    assert contrasts[0].masks is contrasts[1].masks and masks_of(size) == [2]
    del method
    assert masks_of(size) == [2]  # the contrasts have them
    contrasts.clear()
    assert masks_of(size) == [0]


def test_steps_of_one_size_share_their_masks_and_a_third_size_takes_the_place_of_the_first():
    method, sizes, seen = methods.build("simclr"), (31, 33, 35), []
    for size in (*sizes, sizes[2]):
        method(*drawn.views(0, size))
        seen.append(Contrast.from_views(*drawn.views(1, size)).masks)
    assert seen[2] is seen[3]
    seen.clear()
    assert masks_of(*sizes) == [0, 2, 2]


def test_copies_and_pickles_of_a_method_are_without_masks():
    method = methods.build("hcl")
    before = len(pickle.dumps(method))
    z1, z2 = drawn.views(0, 39)
    value = method(z1, z2)
    assert len(pickle.dumps(method)) == before
    twin = copy.deepcopy(method)
    assert masks_of(39) == [2]
    assert torch.equal(twin(z1, z2), value)
