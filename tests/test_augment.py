import functools

import pytest
import torch
from drawn import seeded
from PIL import Image
from scipy.stats import ks_2samp
from torch.nn import functional

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
    x, whole = images(), torch.tensor([[0.0, 0, 32, 32]]).expand(6, 4)
    expected = (x.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    nothing = augment.two_views(x, seeded(), augment.Augmentation())[1]
    cut = augment._resample(expected, whole, None, None)
    for same in (augment.plain(x), nothing, cut):
        assert torch.allclose(same, expected, atol=1e-4)


PINNED = {  # mean squares of three images' first and second views, and the generator's next number
    "simclr": (3, 32, [0.57, 0.6547, 0.9081, 0.5926, 0.6262, 0.4561], 0.04877),
    "digits": (1, 8, [0.8237, 0.664, 0.5965, 0.8111, 0.8935, 0.9622], 0.992692),
    "hcl": (3, 32, [0.5328, 0.6747, 0.1576, 0.2615, 0.6217, 0.3814], 0.379763),
    "hcl-32": (3, 96, [0.5124, 0.1626, 0.0197, 0.0406, 0.1205, 0.3823], 0.379763),
}


@pytest.mark.parametrize("name", PINNED)
def test_a_seed_gives_the_views_it_always_gave(name):
    """Records depend on it. Control: another order of the draws, or one draw more, changes every
    number."""
    channels, size, expected, following = PINNED[name]

    def energy(draw):
        views = torch.cat(augment.two_views(images(3, size, channels), draw, name))
        return views.square().mean((1, 2, 3))

    draw, shifted = seeded(), seeded()
    assert energy(draw).tolist() == pytest.approx(expected, abs=1e-4)
    assert float(torch.rand((), generator=draw)) == pytest.approx(following, abs=1e-6)
    torch.rand((), generator=shifted)
    assert not torch.isclose(energy(shifted), torch.tensor(expected), atol=1e-4).any()


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


def test_a_crop_equals_torchvisions_resized_crop():
    x = pictures(8)
    boxes = augment.crop_boxes(8, 32, 32, (0.2, 0.9), (3 / 4, 4 / 3), seeded())
    ours = augment._resample(x, boxes, None, None)
    crop = functools.partial(functional_.resized_crop, size=[32, 32], antialias=False)
    theirs = one_by_one(crop, x, *boxes.int().T.tolist())
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert not torch.allclose(ours, theirs.roll(1, 3), atol=1e-2), "one pixel aside"
    mirrored = augment._resample(x, boxes, torch.tensor([True, False] * 4), None)
    assert torch.allclose(mirrored[::2], theirs[::2].flip(3), atol=1e-4)
    assert torch.allclose(mirrored[1::2], theirs[1::2], atol=1e-4)


def test_colour_jitter_equals_torchvisions_one_image_at_a_time():
    x = pictures(16)
    x[0], x[1] = 0.5, 0.0  # grey and black have no hue
    draw = seeded(3)
    b, c, s = (torch.rand(16, generator=draw) * 0.8 + 0.6 for _ in range(3))
    hue = torch.rand(16, generator=draw) * 0.2 - 0.1

    def theirs(y, b, c, s, hue):
        y = functional_.adjust_brightness(y, b)
        y = functional_.adjust_contrast(y, c)
        y = functional_.adjust_saturation(y, s)
        return functional_.adjust_hue(y, hue.item())

    ours = augment.jitter(x, b, c, s, hue)
    expected, control = (one_by_one(theirs, x, b, c, s, h) for h in (hue, -hue))
    # torchvision's own luma weights are rounded to four digits
    assert (ours - expected).abs().max() < 1e-3
    assert (ours - control).abs().max() > 0.05


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


@pytest.mark.parametrize("size, out", [(96, 32), (8, 32)])
def test_a_resized_crop_equals_pillows(size, out):
    """Pillow rounds twice to whole grey values. Control: bilinear without antialiasing, where the
    crop shrinks."""
    x = images(8, size)
    channels_first = x.permute(0, 3, 1, 2).float()
    boxes = augment.crop_boxes(8, size, size, (0.08, 1.0), (3 / 4, 4 / 3), seeded())
    flip = torch.tensor([True, False] * 4)
    ours = augment._resize(channels_first, boxes, flip, out)
    theirs = []
    for image, (top, left, h, w) in zip(x, boxes.tolist()):
        crop = Image.fromarray(image.numpy()).crop((left, top, left + w, top + h))
        theirs.append(functional_.pil_to_tensor(crop.resize((out, out), Image.BILINEAR)))
    theirs = torch.stack(theirs).float()
    theirs = torch.where(flip.view(-1, 1, 1, 1), theirs.flip(3), theirs)
    assert (ours - theirs).abs().max() < 1.6
    assert (ours - theirs.roll(1, 3)).abs().max() > 20
    if size == 96:
        aliased = functional.interpolate(channels_first, out, mode="bilinear")
        everything = torch.tensor([[0.0, 0, 96, 96]]).expand(8, 4)
        whole = augment._resize(channels_first, everything, None, out)
        assert (aliased - whole).abs().max() > 20


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
