r"""Two random views of every image, made in batch on the device that holds the images.

Every choice (crop, flip, colours, noise) is drawn separately for each image, as a pipeline of one
image at a time would draw it; only the order of the colour operations is fixed. There is no loop
over images and no wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hnlib.images.config import Augmentation, as_augmentation


def plain(x: Tensor) -> Tensor:
    r"""Normalise images for the encoder: uint8 [B,H,W,C] → float [B,C,H,W], $(x/255-0.5)/0.25$.

    One constant for all data sets: the batch norm after the first convolution undoes any other.
    """
    return _normalise(_unit(x))


class Drawn(NamedTuple):
    """What is drawn for the views of B images, None where an augmentation does without.

    Boxes [B, 4] as of `crop_boxes`; flip and grey [B], bool; angle in radians, factors of the
    colours, hue in turns, and sigma in pixels, each [B]; noise [B, C, H, W], as it is added.
    """

    boxes: Tensor | None = None
    flip: Tensor | None = None
    angle: Tensor | None = None
    brightness: Tensor | None = None
    contrast: Tensor | None = None
    saturation: Tensor | None = None
    hue: Tensor | None = None
    grey: Tensor | None = None
    sigma: Tensor | None = None
    noise: Tensor | None = None


def two_views(
    x: Tensor,
    generator: torch.Generator | None = None,
    augmentation: str | Augmentation = "simclr",
    part: tuple[int, int] | None = None,
    other: Tensor | None = None,
    render: Callable | None = None,
) -> tuple[Tensor, Tensor]:
    """Return two random views, float [B,C,H,W], of images uint8 [B,H,W,C].

    The second view is of `other`, if given. `part` = (offset, total): `x` are the images offset …
    offset+B of a batch of `total`. Random numbers are drawn for the whole batch and each image uses
    its own: devices that share a batch make the views that one device would (bitwise on the CPU),
    and their generators stay together. The generator must live on the device of `x`. `render` makes
    the views of what was drawn: `rendered`, which is the default, or that compiled.
    """
    # one pass over 2B images is faster than two over B
    both = torch.cat([x, x if other is None else other])
    rows = None
    offset, total = part or (0, len(x))
    if part is not None:
        rows = offset + torch.arange(len(x), device=x.device)
        rows = torch.cat([rows, total + rows])
    both = view(both, generator, augmentation, 2 * total, rows, render)
    return both[: len(x)], both[len(x) :]


def view(
    x: Tensor,
    generator: torch.Generator | None = None,
    augmentation: str | Augmentation = "simclr",
    n: int | None = None,
    rows: Tensor | None = None,
    render: Callable | None = None,
) -> Tensor:
    """Return one random view of each image; images, generator and `render` as in `two_views`.

    `x` may be the given `rows` of a batch of `n`, for all of which random numbers are drawn.
    """
    how = as_augmentation(augmentation)
    drawn = _draw(n or len(x), tuple(x.shape[1:]), how, generator, x.device)
    if rows is not None:
        drawn = Drawn(*(one if one is None else one[rows] for one in drawn))
    return (render or rendered)(x, drawn, how.size, how.blur_kernel)


def _draw(n: int, shape: tuple[int, int, int], how: Augmentation, generator, device) -> Drawn:
    """Draw all that is random in the views of `n` images of a shape (H, W, C)."""

    def uniform(low, high):
        return torch.rand(n, generator=generator, device=device) * (high - low) + low

    def happens(p):
        return torch.rand(n, generator=generator, device=device) < p

    height, width, channels = shape
    drawn: dict[str, Tensor] = {}
    if how.crop_scale != (1.0, 1.0) or how.rotation or how.flip or how.size:
        ranges = how.crop_scale, how.crop_ratio
        drawn["boxes"] = crop_boxes(n, height, width, *ranges, generator, device)
        if how.rotation:
            drawn["angle"] = uniform(-how.rotation, how.rotation) * (math.pi / 180)
        if how.flip:
            drawn["flip"] = happens(how.flip)
    if how.jitter_p:
        on = happens(how.jitter_p)
        for name, j in zip(("brightness", "contrast", "saturation"), how.jitter):
            drawn[name] = torch.where(on, uniform(1 - j, 1 + j), 1.0)
        drawn["hue"] = torch.where(on, uniform(-how.jitter[3], how.jitter[3]), 0.0)
    if how.grey:
        drawn["grey"] = happens(how.grey)
    if how.blur:
        drawn["sigma"] = torch.where(happens(how.blur), uniform(*how.blur_sigma), 0.0)
    if how.noise:
        size = (how.size, how.size) if how.size else (height, width)
        noise = torch.randn((n, channels, *size), generator=generator, device=device)
        drawn["noise"] = how.noise * noise
    return Drawn(**drawn)


def rendered(x: Tensor, drawn: Drawn, size: int | None = None, blur_kernel: int = 3) -> Tensor:
    """Make the views, float [B,C,H,W], of images uint8 [B,H,W,C]; nothing in it is random."""
    x = _unit(x)
    if drawn.boxes is not None and size is None:
        x = _resample(x, drawn.boxes, drawn.flip, drawn.angle)
    elif drawn.boxes is not None:
        x = _resize(x, drawn.boxes, drawn.flip, size)
    if drawn.hue is not None:
        x = jitter(x, drawn.brightness, drawn.contrast, drawn.saturation, drawn.hue)
    if drawn.grey is not None:
        x = torch.where(drawn.grey.view(-1, 1, 1, 1), _luma(x), x)
    if drawn.sigma is not None:
        x = blur(x, drawn.sigma, blur_kernel)
    if drawn.noise is not None:
        x = x + drawn.noise
    return _normalise(x)


def crop_boxes(
    n: int, height: int, width: int, scale, ratio, generator=None, device=None
) -> Tensor:
    """Draw crops [n, 4]: top, left, height, width, distributed as torchvision's RandomResizedCrop.

    Boxes have whole pixels. The area is uniform in `scale` and the logarithm of width:height is
    uniform. After ten attempts to find a box that fits, the whole image is taken (torchvision's
    centre crop, if `ratio` has its own).
    """

    def uniform(low, high):
        return torch.rand(n, 10, generator=generator, device=device) * (high - low) + low

    area = uniform(*scale) * (height * width)
    aspect = uniform(math.log(ratio[0]), math.log(ratio[1])).exp()
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)
    fitted = fits.any(1)
    w = torch.where(fitted, w.gather(1, first).squeeze(1), width)
    h = torch.where(fitted, h.gather(1, first).squeeze(1), height)
    corner = torch.rand(2, n, generator=generator, device=device)
    top, left = (corner[0] * (height - h + 1)).floor(), (corner[1] * (width - w + 1)).floor()
    return torch.stack([top, left, h, w], 1)


def jitter(
    x: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor
) -> Tensor:
    """Jitter the colours with one factor per image [B]: x float [B,C,H,W] in [0,1].

    Brightness, contrast, saturation, hue, in this order; the operations are torchvision's. Factors
    of 1 and a hue of 0 change nothing.
    """
    b, c, s, turn = (f.view(-1, 1, 1, 1) for f in (brightness, contrast, saturation, hue))
    x = (x * b).clamp(0, 1)
    x = torch.lerp(_luma(x).mean((2, 3), keepdim=True), x, c).clamp(0, 1)
    if x.shape[1] == 1:
        return x
    x = torch.lerp(_luma(x), x, s).clamp(0, 1)
    return _turn_hue(x, turn)


def blur(x: Tensor, sigma: Tensor, kernel: int = 3) -> Tensor:
    r"""Blur x, float [B,C,H,W], with one Gaussian deviation per image [B]; 0 changes no bit.

    Weights $e^{-k^2/2\sigma^2}$, $|k|\le$ `kernel`//2, divided by their sum; the image is mirrored
    at its outermost pixels, which do not repeat. Both as in OpenCV's GaussianBlur.
    """
    k = torch.arange(kernel // 2 + 1, device=sigma.device)  # the middle tap, and those beside it
    # at 1e-3 the side taps are zero exactly
    weights = (-0.5 * (k / sigma.clamp(min=1e-3)[:, None]).square()).exp()
    weights = weights / (2 * weights.sum(1, keepdim=True) - 1)
    return _blur_columns(_blur_columns(x, weights).mT, weights).mT


def _blur_columns(x: Tensor, weights: Tensor) -> Tensor:
    """Blur along the last axis, tap by tap: a convolution with one group per image is slow."""
    reach, width = weights.shape[1] - 1, x.shape[3]
    padded = functional.pad(x, (reach, reach, 0, 0), mode="reflect")
    middle, *sides = weights.view(*weights.shape, 1, 1, 1).unbind(1)
    out = middle * x
    for k, side in enumerate(sides, 1):
        before, after = (padded[..., start : start + width] for start in (reach - k, reach + k))
        out = out + side * (before + after)
    return out


def _unit(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2).float() / 255  # a permuted NHWC array is already channels_last


def _normalise(x: Tensor) -> Tensor:
    return (x - 0.5) * 4


def _resample(x: Tensor, boxes: Tensor, flip: Tensor | None, angle: Tensor | None) -> Tensor:
    """Cut each box out, turn it about its centre, mirror it and stretch it to the image."""
    height, width = x.shape[2:]
    top, left, h, w = (side.view(-1, 1, 1) for side in boxes.T)
    # centres of the output's pixels, in the unit square
    across = ((torch.arange(width, device=x.device) + 0.5) / width).view(1, 1, -1)
    down = ((torch.arange(height, device=x.device) + 0.5) / height).view(1, -1, 1)
    if flip is not None:
        across = torch.where(flip.view(-1, 1, 1), 1 - across, across)
    # In pixels from the corner of the box. A crop knows nothing of the pixels around it: stay half
    # a pixel inside, as resizing the cut-out crop would.
    columns = torch.minimum((across * w).clamp(min=0.5), w - 0.5).expand(-1, height, -1)
    rows = torch.minimum((down * h).clamp(min=0.5), h - 0.5).expand(-1, -1, width)
    if angle is not None:
        sine, cosine = angle.sin().view(-1, 1, 1), angle.cos().view(-1, 1, 1)
        dx, dy = columns - w / 2, rows - h / 2
        columns, rows = cosine * dx - sine * dy + w / 2, sine * dx + cosine * dy + h / 2
    grid = torch.stack([(columns + left) * (2 / width) - 1, (rows + top) * (2 / height) - 1], -1)
    outside = "border" if angle is None else "zeros"
    return functional.grid_sample(x, grid, "bilinear", outside, align_corners=False)


def _resize(x: Tensor, boxes: Tensor, flip: Tensor | None, size: int) -> Tensor:
    """Cut out, mirror and resize (bilinear, antialiased) to size × size by two matrix products."""
    top, left, h, w = boxes.T
    down = _interpolation(top, h, x.shape[2], size)
    across = _interpolation(left, w, x.shape[3], size)
    if flip is not None:
        across = torch.where(flip[:, None, None], across.flip(1), across)
    return down[:, None] @ x.contiguous() @ across.mT[:, None]


def _interpolation(start: Tensor, length: Tensor, pixels: int, size: int) -> Tensor:
    """Return weights [B, size, pixels] of old pixels in the new ones; rows sum to 1.

    Each is a triangle about the new pixel's centre, as wide as the wider kind of pixel, cut at the
    ends.
    """
    start, length = start.view(-1, 1, 1), length.view(-1, 1, 1)
    scale = length / size
    centre = start + (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    pixel = torch.arange(pixels, device=start.device) + 0.5
    weights = (1 - (pixel - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    weights = weights * ((pixel > start) & (pixel < start + length))
    return weights / weights.sum(2, keepdim=True)


def _luma(x: Tensor) -> Tensor:
    """Return the grey value [B,1,H,W] by the ITU-R 601 weights."""
    if x.shape[1] == 1:
        return x
    r, g, b = x.split(1, 1)
    return 0.299 * r + 0.587 * g + 0.114 * b


def _turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a fraction of the circle; value and saturation of each pixel stay."""
    top, argmax = x.max(1, keepdim=True)
    spread = top - x.amin(1, keepdim=True)
    r, g, b = x.split(1, 1)
    pairs = torch.cat([g - b, b - r, r - g], 1).gather(1, argmax)
    hue = pairs / spread.clamp(min=1e-8) + 2.0 * argmax + 6.0 * turn  # in sixths of the circle
    first = torch.arange(5, 0, -2, device=x.device)  # 5, 3, 1, made without a wait
    k = (first.view(1, 3, 1, 1) + hue) % 6
    return top - spread * torch.minimum(k, 4 - k).clamp(0, 1)
