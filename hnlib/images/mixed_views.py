r"""Mixed views: every image with a partner, $\tilde x=m\odot x+(1-m)\odot x'$.

The share of the image itself is $\lambda$, the mean of the mask $m$. A mixture should be recognised
as both: the loss of the image's key has weight $\lambda$, and that of the partner's key has weight
$1-\lambda$. Both papers draw $\lambda$ from $\mathrm{Beta}(1,1)$ on CIFAR, so it is uniform here,
or a given `share`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hnlib.contrast import Contrast


def i_mix(
    x: Tensor, generator: torch.Generator | None = None, share: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Mix the images `x` $[B,C,H,W]$; also return the partners' rows $[B]$ and $\lambda$ $[B]$.

    Each image draws a $\lambda\ge\tfrac12$, the larger of $u$ and $1-u$ for a uniform $u$, unless a
    `share` is given; partners are a random permutation. Source: Lee et al. (2021) and their code.
    """
    u = torch.rand(len(x), generator=generator, device=x.device)
    partner = torch.randperm(len(x), generator=generator, device=x.device)
    lam = torch.maximum(u, 1 - u) if share is None else torch.full_like(u, share)
    return torch.lerp(x[partner], x, lam.to(x)[:, None, None, None]), partner, lam


def un_mix(
    x: Tensor, generator: torch.Generator | None = None, share: float | None = None
) -> tuple[Tensor, Tensor]:
    r"""Mix the images `x` $[B,C,H,W]$ with those of the batch reversed; also return $\lambda$.

    One $u$ for the batch, uniform unless a `share` is given. With probability ½ it is $\lambda$ for
    every pixel; else a box of $1-u$ of the area, with a uniform centre and cut off at the border,
    comes from the partner. Source: Shen et al. (2022) and their code; the box: Yun et al. (2019).
    """
    coin, u, *centre = torch.rand(4, generator=generator, device=x.device)
    u = u if share is None else torch.full_like(u, share)
    inside = []
    for side, middle in zip(x.shape[2:], centre):
        half = (side * (1 - u).sqrt()).floor() // 2
        away = (torch.arange(side, device=x.device) - (middle * side).floor()).add(0.5).abs()
        inside.append(away < half)
    box = inside[0][:, None] & inside[1]
    mask = torch.where((coin < 0.5) | ~box, torch.where(coin < 0.5, u, 1.0), 0.0)
    return torch.lerp(x.flip(0), x, mask.to(x)), mask.mean()


def i_mix_loss(method, queries: Tensor, keys: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    r"""Return the loss of mixed `queries` among the `keys` of the batch, $[B,d]$ each.

    $\frac1B\sum_i\lambda_i\ell_i(\tilde z_i,z_i)+(1-\lambda_i)\ell_i(\tilde z_i,z_{\pi(i)})$. With
    InfoNCE and uniform weights it is the N-pair loss of Lee et al. (2021).
    """
    pairs = (Contrast.from_pairs(queries, answers) for answers in (keys, keys[partner]))
    first, second = (method.loss(contrast, reduction="none") for contrast in pairs)
    return (lam * first + (1 - lam) * second).mean()


def un_mix_loss(
    method: Callable, z: Sequence[Tensor], lam: Tensor, hidden: Sequence[Tensor] = ()
) -> Tensor:
    r"""Return $L(z_1,z_2)+\lambda L(\tilde z,z_2)+(1-\lambda)L(\mathrm{rev}\,\tilde z,z_2)$.

    $L$ is any method of two views; `z` are $z_1,z_2,\tilde z$ $[B,d]$ each, `hidden` the inputs of
    the last layer, if the method wants them. Source: Shen et al. (2022).
    """

    def loss(first: Tensor, h: Tensor | None) -> Tensor:
        if h is None:
            return method(first, z[1])
        return method(first, z[1], features=(h, hidden[1]))

    h1, _, h = hidden or (None, None, None)
    reversed_h = None if h is None else h.flip(0)
    return loss(z[0], h1) + lam * loss(z[2], h) + (1 - lam) * loss(z[2].flip(0), reversed_h)
