r"""Two random views of every image, made in batch on the device that holds the images.

Every choice (crop, flip, colours, noise) is drawn separately for each image, as a pipeline of one
image at a time would draw it; only the order of the colour operations is fixed. There is no loop
over images and no wait for the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from hnlib.images.config import Augmentation, as_augmentation


def plain(x: Tensor) -> Tensor:
    r"""Normalise images for the encoder: uint8 [B,H,W,C] → float [B,C,H,W], $(x/255-0.5)/0.25$.

    One constant for all data sets: the batch norm after the first convolution undoes any other.
    """
    return _normalise(_unit(x))


def two_views(
    x: Tensor,
    generator: torch.Generator | None = None,
    augmentation: str | Augmentation = "simclr",
    part: tuple[int, int] | None = None,
    other: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return two random views, float [B,C,H,W], of images uint8 [B,H,W,C].

    The second view is of `other`, if given. `part` = (offset, total): `x` are the images offset …
    offset+B of a batch of `total`. Random numbers are drawn for the whole batch and each image uses
    its own: devices that share a batch make the views that one device would (bitwise on the CPU),
    and their generators stay together. The generator must live on the device of `x`.
    """
    # one pass over 2B images is faster than two over B
    both = torch.cat([x, x if other is None else other])
    rows = None
    offset, total = part or (0, len(x))
    if part is not None:
        rows = offset + torch.arange(len(x), device=x.device)
        rows = torch.cat([rows, total + rows])
    both = view(both, generator, augmentation, 2 * total, rows)
    return both[: len(x)], both[len(x) :]


def view(
    x: Tensor,
    generator: torch.Generator | None = None,
    augmentation: str | Augmentation = "simclr",
    n: int | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Return one random view of each image; images and generator as in `two_views`.

    `x` may be the given `rows` of a batch of `n`, for all of which random numbers are drawn.
    """
    how, device, n = as_augmentation(augmentation), x.device, n or len(x)

    def uniform(low, high):
        return torch.rand(n, generator=generator, device=device) * (high - low) + low

    def happens(p):
        return torch.rand(n, generator=generator, device=device) < p

    def ours(drawn):
        return drawn if rows is None or drawn is None else drawn[rows]

    x = _unit(x)
    if how.crop_scale != (1.0, 1.0) or how.rotation or how.flip or how.size:
        height, width = x.shape[2:]
        ranges = how.crop_scale, how.crop_ratio
        boxes = crop_boxes(n, height, width, *ranges, generator, device)
        degrees = uniform(-how.rotation, how.rotation) if how.rotation else None
        angle = None if degrees is None else degrees * (math.pi / 180)
        flip = happens(how.flip) if how.flip else None
        if how.size is None:
            x = _resample(x, ours(boxes), ours(flip), ours(angle))
        else:
            x = _resize(x, ours(boxes), ours(flip), how.size)
    if how.jitter_p:
        on = happens(how.jitter_p)
        factors = [torch.where(on, uniform(1 - j, 1 + j), 1.0) for j in how.jitter[:3]]
        hue = torch.where(on, uniform(-how.jitter[3], how.jitter[3]), 0.0)
        x = jitter(x, *map(ours, (*factors, hue)))
    if how.grey:
        x = torch.where(ours(happens(how.grey)).view(-1, 1, 1, 1), _luma(x), x)
    if how.blur:
        sigma = torch.where(happens(how.blur), uniform(*how.blur_sigma), 0.0)
        x = blur(x, ours(sigma), how.blur_kernel)
    if how.noise:
        drawn = torch.randn((n, *x.shape[1:]), generator=generator, device=device)
        x = x + how.noise * ours(drawn)
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
