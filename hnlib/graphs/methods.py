"""InfoGraph: the contrast of nodes and graphs, weights on raw scores, and its objective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hnlib import _checks, methods, negatives, objectives
from hnlib._checks import Finite, Flag, Fraction, Reduction, per_anchor
from hnlib.contrast import Contrast, at_least_two, in_one_precision, inner_products
from hnlib.masks import own_masks

_POSITIVES = "class", "own"


def from_nodes(
    nodes: Tensor,
    graphs: Tensor,
    batch: Tensor,
    labels: Tensor | None = None,
    positives: str = "class",
) -> Contrast:
    r"""Contrast the nodes of a batch with its graphs, as InfoGraph does.

    The similarity $T = \langle h_u, H_G\rangle$, a score, is not normalised. A node's positive
    is its own graph; every other graph is admissible.

    Parameters
    ----------
    nodes : Tensor of shape [n, d]
        Embeddings of the nodes, the anchors.
    graphs : Tensor of shape [m, d], m ≥ 2
        Embeddings of the graphs, the candidates.
    batch : integers of shape [n]
        The graph of each node, from 0 to m − 1.
    labels : integers of shape [m], optional
        Classes of the graphs, −1 where unknown. Graphs of the node's class are not admissible.
    positives : {"class", "own"}, default "class"
        With labels: whether graphs of the node's class are positives, or only its own graph.

    Returns
    -------
    Contrast
        With scale $Q = m - 1$.

    Raises
    ------
    ValueError
        If shapes disagree, there is a single graph, a score is not finite, or `batch` or
        `labels` are out of range.

    References
    ----------
    .. [infograph] Sun et al., *InfoGraph: Unsupervised and Semi-supervised Graph-Level
       Representation Learning via Mutual Information Maximization*, ICLR 2020.
    """
    fits = graphs.ndim == 2 and nodes.shape == (*batch.shape, graphs.shape[1])
    rule = "nodes must be [n, d], graphs [m, d] and batch [n]"
    _checks.shapes(fits and nodes.ndim == 2, rule, nodes, graphs, batch)
    m = len(graphs)
    at_least_two(m, "graphs")
    _checks.one_of("positives", positives, _POSITIVES)
    nodes, graphs = in_one_precision(nodes, graphs)
    similarity = inner_products(nodes, graphs)
    _checks.raise_if(
        ~similarity.detach().sum().isfinite()[None],
        "a score of nodes and graphs is not finite; lower the learning rate, or look for "
        "features that are not finite",
    )
    stray = f"batch must hold graphs from 0 to {m - 1}, got {{value}}"
    _checks.raise_if((batch < 0) | (batch >= m), stray, batch)
    masks = own_masks(batch.long(), m, 0, similarity.dtype)
    contrast = Contrast(similarity, masks, m - 1, nodes, graphs)
    if labels is None:
        return contrast
    y = _checks.labels(labels, m, "graphs").to(batch.device)
    _checks.raise_if(y < -1, "label of graph {row} must be at least -1 (unknown), got {value}", y)
    y = torch.where(y < 0, -1 - torch.arange(m, device=y.device), y)  # each a class by itself
    same = masks.positives | (y[:, None] == y)[batch]
    return contrast.with_labels(same, y[batch], y, positives)


@_checks.checked
def jensen_shannon(
    contrast: Contrast, log_w: Tensor, tau_plus: Fraction = 0.0, reduction: Reduction = "mean"
) -> Tensor:
    r"""Compute InfoGraph's Jensen–Shannon objective with weighted negatives and a class prior.

    Parameters
    ----------
    contrast, log_w, reduction
        As in `info_nce`; similarities are scores of any size.
    tau_plus : float or Tensor of shape [n], default 0.0
        Class prior $\tau^+ \in [0, 1)$.

    Returns
    -------
    Tensor of shape [] or [n]
        The loss.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    $$\mathrm{sp}(-s_i^+) + \max\Big\{
      \frac{\sum_j w_{ij}\,\mathrm{sp}(s_{ij}) - \tau^+ \mathrm{sp}(s_i^+)}{1 - \tau^+}, 0\Big\},\\
      \mathrm{sp}(x) = \log(1 + e^x)$$

    For $\tau^+ = 0$ the maximum never acts; without it the objective has no lower bound.

    References
    ----------
    .. [infograph] Sun et al., *InfoGraph: Unsupervised and Semi-supervised Graph-Level
       Representation Learning via Mutual Information Maximization*, ICLR 2020.
    .. [hcl] Robinson et al., *Contrastive Learning with Hard Negative Samples*, ICLR 2021,
       App. B.2; the prior is that of the released code with its sign corrected.
    """
    objectives.check_weights(contrast, log_w)
    prior = per_anchor("tau_plus", tau_plus, len(log_w))
    chosen = contrast.masks.at_positives(contrast.similarity)
    negative = objectives.weighted_mean(log_w, objectives.softplus(contrast.similarity))
    if isinstance(prior, Tensor) or prior > 0:
        negative = ((negative - prior * objectives.softplus(chosen)) / (1 - prior)).clamp_min(0.0)
    loss = objectives.softplus(-chosen) + negative
    return objectives.averaged(loss, contrast, log_w.amax(1), reduction)


def scores(contrast: Contrast, per: str = "batch") -> Tensor:
    r"""Scale the scores of a contrast: $x_{uG}=2\,T_{uG}/\max|T|$.

    The maximum is over the negatives of all nodes (`per` "batch", as released) or of each node
    ("node"). Admissible scores lie in $[-2,2]$; gradients flow through the maximum too. Zero scores
    stay zero. Source: hcl, App. D.2 ("clip", by released code a rescaling); "node" is ours.
    """
    size = contrast.similarity.masked_fill(~contrast.admissible, 0.0).abs()
    largest = size.amax() if per == "batch" else size.amax(1, keepdim=True)
    smallest = torch.finfo(largest.dtype).tiny ** 0.5
    return contrast.similarity / (largest.clamp_min(smallest) / 2)


@dataclass(frozen=True, eq=False)
class tilted(negatives.Weighting):
    r"""The tilt of the scaled score: $w_{uG}\propto e^{\beta x_{uG}}$, $x$ = `scores`.

    `beta` is any real number: positive as in the paper's text, negative as in its released code,
    which prefers easy negatives. With `weights_gradient`, gradients flow through the weights, and
    so through the scale too; with the scale detached the update would not be the gradient of any
    objective. `per`: see `scores`. Source: hcl, App. B.2.
    """

    beta: Finite = 1.0
    weights_gradient: Flag = True
    per: str = "batch"

    @property
    def couples(self) -> bool:
        """Whether the scale is that of all nodes."""
        return self.per == "batch"

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights $[n,m]$."""
        x = scores(contrast, self.per)
        x = x if self.weights_gradient else x.detach()
        beta = per_anchor("beta", self.beta, len(x))
        return negatives.normalise(x, beta, contrast, self.on_empty)


def minus_scores(contrast: Contrast) -> Tensor:
    r"""Return the cost $-x_{uG}$, $x$ = `scores`, of InfoGraph's transport, without gradient.

    The marginals over nodes and over graphs are uniform, and the node's own graph is forbidden:
    `epsilon` = $1/\beta$ is the tilt $\beta$ with a price for each graph. A plan exists unless a
    graph holds more than $1-1/m$ of the nodes. Options and errors: `hnlib.negatives.entropic_ot`.
    Source: hcl-ot, eq. (5); its graph code is not released.
    """
    return -scores(contrast).detach()


def _entry(title: str, paper: str, weights, supervised: bool = False, **defaults) -> methods.Entry:
    how = weights, jensen_shannon, supervised
    return methods.Entry(title, paper, defaults, *how, positives=_POSITIVES)


_TILT = dict(beta=1.0, tau_plus=0.0, weights_gradient=True)
_plan = partial(negatives.entropic_ot, cost=minus_scores)
_PLAN = dict(epsilon=0.5, tau_plus=0.0, tol=1e-4, max_iterations=1000, on_failure="warn")
_LABELS = dict(positives="class", on_empty="raise")
#: InfoGraph's methods by name, as in `hnlib.methods.CATALOGUE`: Jensen–Shannon objectives.
#:
#: :meta hide-value:
CATALOGUE = {
    "infograph": _entry("InfoGraph", "infograph", negatives.uniform),
    "debiased": _entry("Debiased", "dcl", negatives.uniform, tau_plus=0.1),
    "hcl": _entry("HCL", "hcl", tilted, **_TILT),
    "hcl-node": _entry("HCL, scaled by node", "ours", partial(tilted, per="node"), **_TILT),
    "ot": _entry("Entropic OT", "hclot", _plan, **_PLAN),
    "unremix": _entry(
        "UnReMix", "unremix", negatives.unremix, mixture=(1 / 3, 1 / 3, 1 / 3), learn="fixed"
    ),
    "scl": _entry("SCL", "hscl", negatives.uniform, True, **_LABELS),
    "h-scl": _entry("H-SCL(β)", "hscl", tilted, True, beta=1.0, weights_gradient=True, **_LABELS),
}


def build(name: str, /, **options) -> methods.Method:
    """Build an InfoGraph method, to call as `method.loss(contrast)`: `build("hcl", beta=2.0)`.

    `train` reads the option `positives`; for a contrast of your own pass it to `from_nodes`.
    """
    return methods.make(name, methods.entry_of(CATALOGUE, name), options)
