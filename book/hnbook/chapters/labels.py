"""H-SCL's four losses and its assumption, anchor by anchor (*Hard negatives with labels*)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hnlib import methods, negatives
from hnlib.contrast import Contrast


def log_expectations(
    contrast: Contrast, labels: Tensor, log_eta: Tensor, temperature: float
) -> dict[str, Tensor]:
    r"""Return $\log\mathbb E_{q_i}e^{g}$ [n] under five distributions $q_i$ of the negatives.

    Here $g=s/\gamma$ with $\gamma$ = `temperature`. "UCL" is uniform over the contrast's admissible
    candidates (of two views, all but the anchor and its positive), "SCL" its restriction to other
    classes; "H-UCL", "H-SCL" and "collision", which is restricted to the anchor's class, are
    reweighted by $\eta$, given as its logarithm [n, m]. The result is not finite where no candidate
    is left. Build the contrast without labels and pass them here. Source: hscl, Sec. III.
    """
    g = contrast.similarity / temperature
    uniform = torch.zeros_like(g)
    everyone, same = contrast.admissible, contrast.same_class(labels)

    def log_mean(mask, log_eta):
        log_eta = torch.where(mask, log_eta, -torch.inf)
        return (log_eta + g).logsumexp(1) - log_eta.logsumexp(1)

    return {
        "UCL": log_mean(everyone, uniform),
        "H-UCL": log_mean(everyone, log_eta),
        "SCL": log_mean(everyone & ~same, uniform),
        "H-SCL": log_mean(everyone & ~same, log_eta),
        "collision": log_mean(everyone & same, log_eta),
    }


def assumption_holds(log_e: dict[str, Tensor]) -> Tensor:
    r"""Return where H-SCL's Assumption 1 holds, $\mathbb E_{col}e^g\ge\mathbb E_{H\text{-}SCL}e^g$.

    Shape [n], 1 or 0, NaN where a side is undefined, from `log_expectations`.
    """
    collision, other = log_e["collision"], log_e["H-SCL"]
    defined = collision.isfinite() & other.isfinite()
    return torch.where(defined, (collision >= other).to(collision.dtype), torch.nan)


def four_losses(
    contrast: Contrast, labels: Tensor, log_e: dict[str, Tensor], temperature: float
) -> dict[str, Tensor]:
    r"""Return the four losses of H-SCL's Fig. 5, in the limit of many negatives.

    $\ell_i=\operatorname{mean}_{p\in P(i)}\log\!\big(1+M\,e^{-g_{ip}}\,\mathbb E_{q_i}e^{g}\big)$
    of shape [n], $M=2B-2$, NaN where undefined, for "UCL", "H-UCL", "SCL" and "H-SCL". $P(i)$ is
    every candidate of the anchor's class but the anchor; `log_e` is that of `log_expectations`. For
    each anchor, H-UCL ≥ H-SCL exactly where Assumption 1 holds. Source: hscl, eq. (3), with the
    sign of its first exponent corrected.
    """
    g = contrast.similarity / temperature
    positives = contrast.same_class(labels) & (contrast.admissible | contrast.positives)
    losses = {}
    for name in ("UCL", "H-UCL", "SCL", "H-SCL"):
        e = log_e[name]
        terms = functional.softplus(math.log(contrast.scale) + e[:, None] - g) * positives
        losses[name] = torch.where(e.isfinite(), terms.sum(1) / positives.sum(1), torch.nan)
    return losses


class Watched(methods.Method):
    """The method of a run of H-SCL, whose learning curves also show the four losses.

    They are means over the fixed views of all learning curves, with the run's own hardening, where
    all four are `defined`; `holds` is the share of anchors at which Assumption 1 holds. H-UCL is
    `below` H-SCL at so many anchors; at those `contradicted` their order is not that of Assumption
    1.
    """

    def __init__(self, run):
        from hnlib.images.task import Task  # slow to import, and only training needs it

        run = run.resolved()
        entry = methods.CATALOGUE[run.method]
        super().__init__(run.method, entry, entry.defaults | run.options)
        self.labels = Task(run).fixed[-1].cpu()

    @classmethod
    def of(cls, run) -> Watched | None:
        """Return the method of a run of the experiment *assumption*, None for any other run."""
        return cls(run) if run.experiment.startswith("assumption") else None

    def observe(self, contrast: Contrast) -> dict[str, float]:
        """Return what the learning curves show of these views."""
        labels, t = self.labels.to(contrast.similarity.device), self.options["temperature"]
        g = contrast.similarity / t
        log_eta = self.options.get("beta", 0.0) * g
        if "tau" in self.options:
            log_eta.masked_fill_(g < math.log(self.options["tau"]), -torch.inf)
        log_e = log_expectations(contrast, labels, log_eta, t)
        holds, losses = assumption_holds(log_e), four_losses(contrast, labels, log_e, t)
        defined = torch.stack([*losses.values()]).isfinite().all(0)
        above = losses["H-UCL"] - losses["H-SCL"]
        below = (above < -1e-5) & defined  # by more than rounding in float32
        against = (below & (holds == 1)) | ((above > 1e-5) & (holds == 0))
        seen = super().observe(contrast) | {"holds": float(holds.nanmean())}
        for name, mask in {"defined": defined, "below": below, "contradicted": against}.items():
            seen[name] = int(mask.sum())
        return seen | {name: float(loss[defined].mean()) for name, loss in losses.items()}


def curve(found, name: str) -> list[dict]:
    """Return the learning curve of the first run of a watched arm.

    It is NaN, which records write as null, where a threshold leaves no anchor a negative.
    """
    rows = found.group(name)["history"].iloc[0]
    return [{key: math.nan if x is None else x for key, x in row.items()} for row in rows]


def mean_exp(law, t):
    """Return E e^g under the law, one value per anchor."""
    contrast, log_w = law
    g = contrast.similarity / torch.as_tensor(t).reshape(-1, 1)
    return torch.logsumexp(g + log_w, 1).exp()


def laws(s, same, harden):
    """Return the contrast and log-weights of five laws; s, same [anchors, candidates]."""
    masks = {"UCL": torch.ones_like(same), "SCL": ~same, "Hcol": same}
    masks |= {"H-UCL": masks["UCL"], "H-SCL": masks["SCL"]}
    built = {}
    for name, mask in masks.items():
        contrast = Contrast.from_similarity(s, same, mask)
        weigh = harden if name.startswith("H") else negatives.uniform()
        built[name] = contrast, weigh(contrast)
    return built


def random_spaces(rng, count, points=6):
    """Return points on a circle or sphere in two classes: s, same [count * n, n]."""
    flat = rng.integers(0, 2, (count, 1, 1))
    z = rng.normal(size=(count, points, 3)) * np.array([1, 1, 0]) ** flat
    z /= np.linalg.norm(z, axis=2, keepdims=True)
    y = np.arange(points) < rng.integers(1, points, (count, 1))
    s, same = np.einsum("cid,cjd->cij", z, z).clip(-1, 1), y[:, :, None] == y[:, None]
    return torch.tensor(s.reshape(-1, points)), torch.tensor(same.reshape(-1, points))
