"""What learning curves show: the geometry of an embedding, and the papers' losses and assumptions
on one batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from hnlib import methods
from hnlib.contrast import Contrast

HARDENINGS = ("exp", "threshold")


def alignment(z1: Tensor, z2: Tensor) -> float:
    r"""$\mathbb E\lVert z-z^+\rVert^2$ over the pairs of normalised rows; 0 is perfect (wangisola,
    Sec. 4.1.1)."""
    return float((functional.normalize(z1) - functional.normalize(z2)).square().sum(1).mean())


def uniformity(z: Tensor, t: float = 2.0) -> float:
    r"""$\log\mathbb E\,e^{-t\lVert z-z'\rVert^2}$ over pairs of rows: lower is more uniform
    (wangisola, Sec. 4.1.2).

    ValueError: fewer than two rows.
    """
    if len(z) < 2:
        raise ValueError(f"uniformity needs at least 2 embeddings; got {len(z)}")
    exponent = -t * torch.pdist(functional.normalize(z)).square()
    return float(exponent.logsumexp(0)) - math.log(len(exponent))


def collision_mass(contrast: Contrast, log_w: Tensor, labels: Tensor | None = None) -> float:
    r"""Mean over the anchors of the weight on candidates of the anchor's own class,
    $\frac1n\sum_i\sum_{j:\,y_j=y_i}w_{ij}$. Anchors without any negative (a row of $-\infty$) are
    left out.

    `labels` [B] for a contrast built without. NaN if no anchor has a negative.
    """
    mass = (log_w.exp() * contrast.same_class(labels)).sum(1)
    return float(mass[log_w.amax(1) > -torch.inf].mean())


def class_prior(labels: Tensor) -> float:
    r"""The class prior $\tau^+$ of labelled data, $\sum_c\frac{n_c(n_c-1)}{n(n-1)}$: how often two
    of them, `labels` [n], are of one class.

    Without bias for $\sum_c\rho_c^2$, which is hcl's $\tau^+$ where classes are alike. ValueError:
    fewer than two labels.
    """
    if len(labels) < 2:
        raise ValueError(f"class_prior needs at least 2 labels; got {len(labels)}")
    counts = labels.unique(return_counts=True)[1].double()
    return float((counts * (counts - 1)).sum() / (len(labels) * (len(labels) - 1)))


def class_prior_bound(positive: Tensor, pairs: Tensor, level: float = 0.05) -> float:
    r"""An upper bound of the class prior $\tau^+$ from similarities, wrong with probability `level`
    at most.

    Random pairs are a mixture, $P=\tau^+P^++(1-\tau^+)P^-$, so that $\tau^+\le P(s\ge c)/P^+(s\ge
    c)$ at every $c$; this is the least of these ratios over the $c$ that were met, both tails
    widened by $\sqrt{\log(2/\text{level})/2n}$. It is near $\tau^+$ where some similarities are met
    within classes alone. `positive` [m]: independent pairs of one class; `pairs` [n]: independent
    random pairs. It needs such pairs, and so some labels: two views of one image are closer than
    two images of a class, and with them this bounds the share of near copies, not $\tau^+$.
    ValueError: an empty sample; a level outside (0, 1). Source: Massart's constant in the
    inequality of Dvoretzky, Kiefer and Wolfowitz; hcl, Sec. 5, refers to estimates of this kind.
    """
    if not len(positive) or not len(pairs) or not 0 < level < 1:
        sizes = f"{len(positive)} and {len(pairs)} pairs and level={level}"
        raise ValueError(f"class_prior_bound got {sizes}; give some pairs and a level in (0, 1)")
    at, found = positive.double().sort().values, pairs.double().sort().values
    within = 1 - torch.arange(len(at)).to(at) / len(at)
    among = 1 - torch.searchsorted(found, at).double() / len(found)
    wider = [math.sqrt(math.log(2 / level) / (2 * len(x))) for x in (found, at)]
    kept = within > wider[1]
    ratio = (among[kept] + wider[0]) / (within[kept] - wider[1])
    return min(1.0, float(ratio.min())) if len(ratio) else 1.0


def log_expectations(
    contrast: Contrast,
    labels: Tensor | None = None,
    *,
    beta: float = 1.0,
    temperature: float = 0.5,
    hardening: str | Callable = "exp",
    tau: float = math.exp(-0.5),
) -> dict[str, Tensor]:
    r"""$\log\mathbb E_{q_i}e^{g}$ $[n]$, $g=s/\gamma$, $\gamma$ = `temperature`, under five laws
    $q_i$ of the negatives; not finite where nothing (that survives) is left.

    The batch law: each of the contrast's admissible candidates, for two views everyone but the
    anchor *and its own other view* (its positive), is as likely as the other. "UCL" is this law,
    "SCL" its restriction to other classes; "H-UCL", "H-SCL" and "collision", which is restricted to
    the anchor's class, are reweighted by $\eta(g)$. `hardening`: "exp", $\eta=e^{\beta g}$;
    "threshold", $\eta=1(e^g\ge\tau)$; or a function $g\mapsto\log\eta(g)$. The contrast must admit
    same-class candidates: build it with `Contrast.from_views(z1, z2)` and pass `labels` here.
    Source: hscl, Sec. III. ValueError: no labels, no same-class candidate, $\gamma\le0$ or
    $\tau\le0$, an unknown hardening.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive")
    g = contrast.similarity / temperature
    if callable(hardening):
        log_eta = hardening(g)
    elif hardening == "exp":
        log_eta = beta * g
    elif hardening == "threshold":
        if not tau > 0:
            raise ValueError(f"tau={tau} must be positive")
        log_eta = torch.zeros_like(g).masked_fill(g < math.log(tau), -torch.inf)
    else:
        raise ValueError(
            f"unknown hardening {hardening!r}; known: {', '.join(HARDENINGS)}, or a function of g"
        )
    everyone, same = contrast.admissible, contrast.same_class(labels)
    if not (everyone & same).any():
        raise ValueError(
            "no anchor has an admissible candidate of its own class; build the contrast with "
            "Contrast.from_views(z1, z2), pass the labels here, and take a batch with "
            "repeated classes"
        )

    def log_mean(mask, log_eta):  # log of the eta-weighted mean of e^g over the mask
        log_eta = torch.where(mask, log_eta, -torch.inf)
        return (log_eta + g).logsumexp(1) - log_eta.logsumexp(1)

    return {
        "UCL": log_mean(everyone, torch.zeros_like(g)),
        "H-UCL": log_mean(everyone, log_eta),
        "SCL": log_mean(everyone & ~same, torch.zeros_like(g)),
        "H-SCL": log_mean(everyone & ~same, log_eta),
        "collision": log_mean(everyone & same, log_eta),
    }


def assumption_fraction(
    contrast: Contrast, labels: Tensor | None = None, reduction: str = "mean", **law
):
    r"""Fraction of the anchors that satisfy H-SCL's Assumption 1,
    $\mathbb E_{H_{col}}e^g\ge\mathbb E_{H\text{-}SCL}e^g$.

    `law` and errors: as in `log_expectations`. An anchor of which one side is undefined is not
    counted; `reduction="none"` gives [n] with 1, 0, or NaN there; NaN if no anchor is defined.
    Source: hscl, Assumption 1.
    """
    log_e = log_expectations(contrast, labels, **law)
    collision, other = log_e["collision"], log_e["H-SCL"]
    defined = collision.isfinite() & other.isfinite()
    holds = torch.where(defined, (collision >= other).to(collision.dtype), torch.nan)
    return holds if reduction == "none" else float(holds.nanmean())


def four_losses(
    contrast: Contrast,
    labels: Tensor | None = None,
    temperature: float = 0.5,
    reduction: str = "mean",
    **law,
) -> dict[str, Tensor]:
    r"""The four losses of H-SCL's Fig. 5 in the limit of many negatives, on the batch law and *one*
    set of positives:

    $\ell_i=\operatorname{mean}_{p\in P(i)}\log\!\big(1+M\,e^{-g_{ip}}\,\mathbb E_{q_i}e^{g}\big)$,
    $M=2B-2$,

    $P(i)$: every candidate of the anchor's class but the anchor; `law` and errors: as in
    `log_expectations`. Anchor by anchor H-UCL ≥ H-SCL exactly where Assumption 1 holds.

    Returns {"UCL", "H-UCL", "SCL", "H-SCL"}: means over the anchors for which all four exist (a
    threshold may leave an anchor without negatives), or with `reduction="none"` tensors [n] with
    NaN where one does not exist. Source: hscl, eq. (3), with the sign of its first exponent
    corrected.
    """
    log_e = log_expectations(contrast, labels, temperature=temperature, **law)
    g = contrast.similarity / temperature
    positives = contrast.same_class(labels) & (contrast.admissible | contrast.positives)
    losses = {}
    for name in ("UCL", "H-UCL", "SCL", "H-SCL"):
        e = log_e[name]
        terms = functional.softplus(math.log(contrast.scale) + e[:, None] - g) * positives
        losses[name] = torch.where(e.isfinite(), terms.sum(1) / positives.sum(1), torch.nan)
    if reduction == "none":
        return losses
    defined = torch.stack(list(losses.values())).isfinite().all(0)
    return {name: loss[defined].mean() for name, loss in losses.items()}


def loudness(method, z1: Tensor, z2: Tensor) -> dict:
    r"""Measure how loud the anchors of a batch are, and how far the method is from the dial.

    "loudness" and "loudness_low" are the mean and the 10 % quantile of
    $c_i=-t\,\partial\ell_i/\partial s_i^+$ over the anchors of two views [B, d]; for InfoNCE
    $c_i=1-p_i$. "dial_angle" is the angle in degrees between the gradients with respect to the
    embeddings of this method and of SimCLR at the temperature $t/(1+\beta)$; None where a method
    has no $\beta$. `method` is one of the catalogue with an option `temperature`.
    """
    t, beta = method.options["temperature"], method.options.get("beta")
    with torch.enable_grad():
        contrast = Contrast.from_views(z1.double(), z2.double())
        pull = _similarity_gradient(method, contrast)
        c = -t * pull[contrast.positives]
        angle = None
        if beta is not None:
            simclr = methods.build("simclr", temperature=t / (1 + beta))
            ends = [
                _embedding_gradient(g, contrast.anchors)
                for g in (pull, _similarity_gradient(simclr, contrast))
            ]
            cosine = functional.cosine_similarity(*(end.flatten() for end in ends), dim=0)
            angle = math.degrees(math.acos(min(1.0, float(cosine))))
    return {
        "loudness": float(c.mean()),
        "loudness_low": float(c.quantile(0.1)),
        "dial_angle": angle,
    }


def _similarity_gradient(method, contrast: Contrast) -> Tensor:
    similarity = contrast.similarity.detach().clone().requires_grad_()
    losses = method.loss(replace(contrast, similarity=similarity), reduction="none")
    return torch.autograd.grad(losses.sum(), similarity)[0]


def _embedding_gradient(pull: Tensor, z: Tensor) -> Tensor:
    gradient = (pull + pull.T) @ z.detach()
    return gradient - (gradient * z.detach()).sum(1, keepdim=True) * z.detach()


@torch.no_grad()
def diagnostics(
    z1: Tensor, z2: Tensor, labels: Tensor, log_weights=None, supervised=False, features=None
) -> dict:
    r"""What the learning curves show, of two views [B,d] of one fixed batch (and the last layer's
    inputs, if needed).

    "collision": weight that `log_weights` (a method's) puts on same-class negatives, zero by
    construction for a supervised method, None without one; "alignment"; "uniformity" (of the first
    views); and for each hardening, "exp" ($\beta=1$) and "threshold" ($\tau=e^{-1/2}$), both at
    $\gamma=.5$: the "assumption" fraction, the four losses, "undefined" anchors, and "violations",
    the anchors whose H-UCL falls below their H-SCL.
    """
    z1, z2 = z1.float(), z2.float()
    contrast = Contrast.from_views(z1, z2, features=features)
    row = {"collision": None, "alignment": alignment(z1, z2), "uniformity": uniformity(z1)}
    if log_weights is not None:
        own = Contrast.from_views(z1, z2, labels, features=features) if supervised else contrast
        row["collision"] = collision_mass(own, log_weights(own), labels)
    for hardening in HARDENINGS:
        holds = assumption_fraction(contrast, labels, hardening=hardening, reduction="none")
        losses = four_losses(contrast, labels, hardening=hardening, reduction="none")
        defined = torch.stack(list(losses.values())).isfinite().all(0)
        # a difference of rounding is no violation: where Assumption 1 is an equality the two losses
        # are one number
        below = losses["H-UCL"] < losses["H-SCL"] - 1e-6 * losses["H-SCL"].abs()
        row[hardening] = {
            "assumption": float(torch.as_tensor(holds).nanmean()),
            **{name: float(loss[defined].mean()) for name, loss in losses.items()},
            "violations": int((below & defined).sum()),
            "undefined": int((~defined).sum()),
        }
    return row
