import functools

import pytest
import torch
from drawn import seeded
from scipy.stats import ks_2samp

from hnlib.images import augment
from hnlib.images._torchvision import torchvision

transforms = torchvision.transforms
functional_ = transforms.functional


def images(n=6, size=32, channels=3, seed=0):
    generator = seeded(seed)
    return torch.randint(0, 256, (n, size, size, channels), generator=generator, dtype=torch.uint8)


def pictures(n, size=32):
    """Images as torchvision has them, channels first and in [0, 1]."""
    return images(n, size).permute(0, 3, 1, 2) / 255


def one_by_one(change, x, *columns):
    """What torchvision makes of each image, with the values of its row."""
    return torch.stack([change(image, *values) for image, *values in zip(x, *columns)])


def test_plain_is_the_image_and_so_is_a_recipe_that_does_nothing():
    x = images()
    expected = (x.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    nothing = augment.two_views(x, seeded(), augment.Augmentation())[1]
    assert torch.allclose(augment.plain(x), expected) and torch.equal(nothing, augment.plain(x))


PINNED = {  # mean squares of three images' first and second views, and the generator's next number
    "simclr": (3, 32, [0.57, 0.6547, 0.9081, 0.5926, 0.6262, 0.4561], 0.04877),
    "digits": (1, 8, [0.8237, 0.664, 0.5965, 0.8111, 0.8935, 0.9622], 0.992692),
    "hcl": (3, 32, [0.5328, 0.6747, 0.1576, 0.2615, 0.6217, 0.3814], 0.379763),
    "hcl-32": (3, 96, [0.5124, 0.1626, 0.0197, 0.0406, 0.1205, 0.3823], 0.379763),
}


@pytest.mark.parametrize("name", PINNED)
def test_a_seed_gives_the_views_it_always_gave(name):
    """Records depend on it."""
    channels, size, expected, following = PINNED[name]
    draw = seeded()
    views = torch.cat(augment.two_views(images(3, size, channels), draw, name))
    assert views.square().mean((1, 2, 3)).tolist() == pytest.approx(expected, abs=1e-4)
    assert float(torch.rand((), generator=draw)) == pytest.approx(following, abs=1e-6)


@pytest.mark.parametrize(
    "name, channels, size", [("simclr", 3, 32), ("digits", 1, 8), ("hcl-32", 3, 48)]
)
def test_the_parts_of_a_batch_make_the_views_of_the_whole(name, channels, size):
    x, draw = images(7, size, channels), seeded(1)
    whole = augment.two_views(x, draw, name)
    parts = []
    for a, b in ((0, 2), (2, 4), (4, 7)):
        own = seeded(1)
        parts.append(augment.two_views(x[a:b], own, name, part=(a, 7)))
        assert torch.equal(own.get_state(), draw.get_state())
    for expected, found in zip(whole, zip(*parts)):
        assert torch.equal(expected, torch.cat(found))
    alone = augment.two_views(x[4:], seeded(1), name)[0]  # control: draws of the part alone
    assert not torch.equal(alone, whole[0][4:])


@pytest.mark.parametrize("size, out", [(32, None), (96, 32), (8, 32)])
def test_a_crop_equals_torchvisions_resized_crop(size, out):
    """Antialiased, as Pillow's, where the views have another size."""
    x, flip = pictures(8, size), torch.tensor([True, False] * 4)
    boxes = augment.crop_boxes(8, size, size, (0.08, 0.9), (3 / 4, 4 / 3), seeded())
    ours = augment._resize(x, boxes, flip, out) if out else augment._resample(x, boxes, flip, None)

    def theirs(antialias):
        to = dict(size=[out or size] * 2, antialias=antialias)
        crop = functools.partial(functional_.resized_crop, **to)
        crops = one_by_one(crop, x, *boxes.int().T.tolist())
        return torch.where(flip.view(-1, 1, 1, 1), crops.flip(3), crops)

    expected = theirs(antialias=out is not None)
    assert torch.allclose(ours, expected, atol=1e-4)
    assert not torch.allclose(ours, expected.roll(1, 3), atol=1e-2), "one pixel aside"
    if size == 96:  # the control: where a crop shrinks, it matters
        assert not torch.allclose(ours, theirs(antialias=False), atol=0.1)


def test_colour_jitter_equals_torchvisions_one_image_at_a_time():
    x, draw = pictures(16), seeded(3)
    x[0], x[1] = 0.5, 0.0  # grey and black have no hue
    factors = torch.rand(3, 16, generator=draw) * 0.8 + 0.6
    hue = torch.rand(16, generator=draw) * 0.2 - 0.1

    def theirs(y, brightness, contrast, saturation, hue):
        y = functional_.adjust_brightness(y, brightness)
        y = functional_.adjust_contrast(y, contrast)
        y = functional_.adjust_saturation(y, saturation)
        return functional_.adjust_hue(y, hue.item())

    ours = augment.jitter(x, *factors, hue)
    # torchvision's own luma weights are rounded to four digits
    assert (ours - one_by_one(theirs, x, *factors, hue)).abs().max() < 1e-3
    assert (ours - one_by_one(theirs, x, *factors, -hue)).abs().max() > 0.05  # the control


@pytest.mark.parametrize("kernel, size", [(3, 32), (9, 8)])
def test_blur_equals_torchvisions_one_image_at_a_time(kernel, size):
    x = pictures(8, size)
    sigma = torch.rand(8, generator=seeded()) * 1.9 + 0.1

    def theirs(image, sigma):
        return functional_.gaussian_blur(image, [kernel, kernel], [sigma.item()])

    ours = augment.blur(x, sigma, kernel)
    assert torch.allclose(ours, one_by_one(theirs, x, sigma), atol=1e-5)
    assert torch.equal(augment.blur(x, torch.zeros(8), kernel), x)
    assert not torch.allclose(ours, one_by_one(theirs, x, sigma.flip(0)), atol=1e-2)  # another's


def test_crops_are_distributed_as_torchvisions():
    """By two-sample Kolmogorov–Smirnov tests, corrected together. Control: another smallest area."""
    n, ratio, draw = 2000, (3 / 4, 4 / 3), transforms.RandomResizedCrop.get_params
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = [draw(torch.empty(3, 32, 32), [0.2, 1.0], [*ratio]) for _ in range(n)]

    def agreement(smallest):
        ours = augment.crop_boxes(n, 32, 32, (smallest, 1.0), ratio, seeded(1))
        return 4 * min(ks_2samp(*both).pvalue for both in zip(ours.T.numpy(), zip(*theirs)))

    assert agreement(0.2) > 0.01 and agreement(0.3) < 1e-4
