"""Diagnose an embedding: its geometry, the losses of H-SCL, the loudness of anchors."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from hnlib import _checks, methods
from hnlib.contrast import Contrast


def alignment(z1: Tensor, z2: Tensor) -> float:
    r"""Return $\mathbb E\lVert z-z^+\rVert^2$ over the pairs of normalised rows; 0 is perfect.

    Source: wangisola, Sec. 4.1.1.
    """
    return float((functional.normalize(z1) - functional.normalize(z2)).square().sum(1).mean())


def uniformity(z: Tensor, t: float = 2.0) -> float:
    r"""Return $\log\mathbb E\,e^{-t\lVert z-z'\rVert^2}$ over pairs of rows; lower is more uniform.

    Source: wangisola, Sec. 4.1.2.
    """
    exponent = -t * torch.pdist(functional.normalize(z)).square()
    return float(exponent.logsumexp(0)) - math.log(len(exponent))


def collision_mass(contrast: Contrast, log_w: Tensor, labels: Tensor | None = None) -> float:
    r"""Return the mean weight on candidates of the anchor's class.

    $\frac1n\sum_i\sum_{j:\,y_j=y_i}w_{ij}$ over the anchors that have a negative; NaN if none has.
    `labels` [B] for a contrast built without.
    """
    mass = (log_w.exp() * contrast.same_class(labels)).sum(1)
    return float(mass[log_w.amax(1) > -torch.inf].mean())


def log_expectations(
    contrast: Contrast,
    labels: Tensor | None = None,
    beta: float = 1.0,
    temperature: float = 0.5,
    hardening: str = "exp",
    tau: float = math.exp(-0.5),
) -> dict[str, Tensor]:
    r"""Return $\log\mathbb E_{q_i}e^{g}$ [n] under five distributions $q_i$ of the negatives.

    Here $g=s/\gamma$ with $\gamma$ = `temperature`. "UCL" is uniform over the contrast's admissible
    candidates (of two views, all but the anchor and its positive), "SCL" its restriction to other
    classes; "H-UCL", "H-SCL" and "collision", which is restricted to the anchor's class, are
    reweighted by $\eta(g)$: $e^{\beta g}$ for `hardening` "exp", $1(e^g\ge\tau)$ for "threshold".
    Not finite where nothing is left. Build the contrast without labels and pass them here. Source:
    hscl, Sec. III.
    """
    _checks.one_of("hardening", hardening, ("exp", "threshold"))
    g = contrast.similarity / temperature
    uniform, hardened = torch.zeros_like(g), beta * g
    if hardening == "threshold":
        hardened = uniform.masked_fill(g < math.log(tau), -torch.inf)
    everyone, same = contrast.admissible, contrast.same_class(labels)

    def log_mean(mask, log_eta):
        log_eta = torch.where(mask, log_eta, -torch.inf)
        return (log_eta + g).logsumexp(1) - log_eta.logsumexp(1)

    return {
        "UCL": log_mean(everyone, uniform),
        "H-UCL": log_mean(everyone, hardened),
        "SCL": log_mean(everyone & ~same, uniform),
        "H-SCL": log_mean(everyone & ~same, hardened),
        "collision": log_mean(everyone & same, hardened),
    }


def assumption_holds(contrast: Contrast, labels: Tensor | None = None, **options) -> Tensor:
    r"""Return where H-SCL's Assumption 1 holds, $\mathbb E_{col}e^g\ge\mathbb E_{H\text{-}SCL}e^g$.

    Shape [n], 1 or 0, NaN where a side is undefined. Options as in `log_expectations`.
    """
    log_e = log_expectations(contrast, labels, **options)
    collision, other = log_e["collision"], log_e["H-SCL"]
    defined = collision.isfinite() & other.isfinite()
    return torch.where(defined, (collision >= other).to(collision.dtype), torch.nan)


def four_losses(
    contrast: Contrast, labels: Tensor | None = None, temperature: float = 0.5, **options
) -> dict[str, Tensor]:
    r"""Return the four losses of H-SCL's Fig. 5, in the limit of many negatives.

    $\ell_i=\operatorname{mean}_{p\in P(i)}\log\!\big(1+M\,e^{-g_{ip}}\,\mathbb E_{q_i}e^{g}\big)$
    of shape [n], $M=2B-2$, NaN where undefined, for "UCL", "H-UCL", "SCL" and "H-SCL". $P(i)$ is
    every candidate of the anchor's class but the anchor; options as in `log_expectations`. Anchor
    by anchor H-UCL ≥ H-SCL exactly where Assumption 1 holds. Source: hscl, eq. (3), with the sign
    of its first exponent corrected.
    """
    log_e = log_expectations(contrast, labels, temperature=temperature, **options)
    g = contrast.similarity / temperature
    positives = contrast.same_class(labels) & (contrast.admissible | contrast.positives)
    losses = {}
    for name in ("UCL", "H-UCL", "SCL", "H-SCL"):
        e = log_e[name]
        terms = functional.softplus(math.log(contrast.scale) + e[:, None] - g) * positives
        losses[name] = torch.where(e.isfinite(), terms.sum(1) / positives.sum(1), torch.nan)
    return losses


def loudness(method, z1: Tensor, z2: Tensor) -> dict:
    r"""Measure how loud the anchors of a batch are, and how far the method is from the dial.

    "loudness" and "loudness_low" are the mean and the 10 % quantile of
    $c_i=-t\,\partial\ell_i/\partial s_i^+$ over the anchors of two views [B, d]; for InfoNCE
    $c_i=1-p_i$. "dial_angle" is the angle in degrees between the gradients with respect to the
    embeddings of this method and of SimCLR at the temperature $t/(1+\beta)$; None where a method
    has no $\beta$. `method` is one of the catalogue with an option `temperature`.
    """
    t, beta = method.options["temperature"], method.options.get("beta")
    views = [functional.normalize(z.detach().double()).requires_grad_() for z in (z1, z2)]
    pull, gradient = _gradients(method, *views)
    angle = None
    if beta is not None:
        _, other = _gradients(methods.build("simclr", temperature=t / (1 + beta)), *views)
        cosine = float(functional.cosine_similarity(gradient, other, dim=0))
        angle = math.degrees(math.acos(min(1.0, cosine)))
    c = -t * pull
    low = float(c.quantile(0.1))
    return {"loudness": float(c.mean()), "loudness_low": low, "dial_angle": angle}


@torch.enable_grad()
def _gradients(method, z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients at the similarities of the positives and at the embeddings."""
    contrast = Contrast.from_views(z1, z2)
    loss = method.loss(contrast, reduction="none").sum()
    pull, *gradient = torch.autograd.grad(loss, (contrast.similarity, z1, z2))
    return pull[contrast.positives], torch.cat(gradient).flatten()


@torch.no_grad()
def diagnostics(
    z1: Tensor, z2: Tensor, labels: Tensor, log_weights=None, supervised=False, features=None
) -> dict:
    """Return what learning curves show, of two views [B, d] of one fixed batch.

    "collision" is the weight that `log_weights` (a method's) puts on negatives of the same class,
    zero by construction for a supervised method, None without one; "alignment"; "uniformity" of the
    first views. `features` are the last layer's inputs, if the weights need them.
    """
    z1, z2 = z1.float(), z2.float()
    row = {"collision": None, "alignment": alignment(z1, z2), "uniformity": uniformity(z1)}
    if log_weights is not None:
        contrast = Contrast.from_views(z1, z2, labels if supervised else None, features=features)
        row["collision"] = collision_mass(contrast, log_weights(contrast), labels)
    return row
