"""Diagnose an embedding: its geometry and the loudness of its anchors."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from hnlib.contrast import Contrast


def alignment(z1: Tensor, z2: Tensor) -> float:
    r"""Return $\mathbb E\lVert z-z^+\rVert^2$ over the pairs of normalised rows; 0 is perfect.

    Source: wangisola, Sec. 4.1.1.
    """
    return float((functional.normalize(z1) - functional.normalize(z2)).square().sum(1).mean())


def uniformity(z: Tensor) -> float:
    r"""Return $\log\mathbb E\,e^{-2\lVert z-z'\rVert^2}$ over pairs of rows; lower is more uniform.

    Source: wangisola, Sec. 4.1.2.
    """
    exponent = -2 * torch.pdist(functional.normalize(z)).square()
    return float(exponent.logsumexp(0)) - math.log(len(exponent))


def collision_mass(contrast: Contrast, log_w: Tensor, labels: Tensor) -> float:
    r"""Return the mean weight on candidates of the anchor's class.

    $\frac1n\sum_i\sum_{j:\,y_j=y_i}w_{ij}$ over the anchors that have a negative; NaN if none has.
    `labels` [B] are the classes.
    """
    mass = (log_w.exp() * contrast.same_class(labels)).sum(1)
    return float(mass[log_w.amax(1) > -torch.inf].mean())


@torch.enable_grad()
def loudness(method, z1: Tensor, z2: Tensor) -> dict[str, float]:
    r"""Measure how loud the anchors of a batch are.

    "loudness" and "loudness_low" are the mean and the 10 % quantile of
    $c_i=-t\,\partial\ell_i/\partial s_i^+$ over the anchors of two views [B, d]; for InfoNCE
    $c_i=1-p_i$. `method` is one of the catalogue with an option `temperature`.
    """
    views = [functional.normalize(z.detach().double()).requires_grad_() for z in (z1, z2)]
    contrast = Contrast.from_views(*views)
    loss = method.loss(contrast, reduction="none").sum()
    (pull,) = torch.autograd.grad(loss, contrast.similarity)
    c = -method.options["temperature"] * pull[contrast.positives]
    return {"loudness": float(c.mean()), "loudness_low": float(c.quantile(0.1))}


@torch.no_grad()
def diagnostics(
    z1: Tensor, z2: Tensor, labels: Tensor, method=None, supervised=False, features=None
) -> dict:
    """Return the quantities that learning curves show, for two views [B, d] of one fixed batch.

    "collision" is the weight that the `log_weights` of a method put on negatives of the same class,
    zero by construction for a supervised one, and None without them; "alignment"; "uniformity" of
    the first views; and what its `observe` returns. `features` are the last layer's inputs, if the
    weights need them.
    """
    z1, z2 = z1.float(), z2.float()
    row = {"collision": None, "alignment": alignment(z1, z2), "uniformity": uniformity(z1)}
    observe, log_weights = (getattr(method, name, None) for name in ("observe", "log_weights"))
    if observe is None and log_weights is None:
        return row
    contrast = Contrast.from_views(z1, z2, labels if supervised else None, features=features)
    if log_weights is not None:
        row["collision"] = collision_mass(contrast, log_weights(contrast), labels)
    return row if observe is None else row | observe(contrast)
