r"""Distributions over negatives: `negatives.tilted(beta=2.0)(contrast)` gives log-weights.

A weighting is a frozen dataclass of its options. Called with a contrast it returns
$\log w_{ij}$ of shape [n, m], $-\infty$ where $j \notin N(i)$ and with logsumexp 0 over $N(i)$ in
every row. An anchor without an admissible negative is an error that names it; with
``on_empty="skip"`` its row is all $-\infty$ and the objectives leave it out (transport couples all
anchors and has no such option). Do not write to the result: it may be shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from hnlib import _checks, robust, transport
from hnlib._checks import Finite, Flag, OnFailure, Positive, per_anchor, raise_if
from hnlib.contrast import Contrast
from hnlib.masks import as_numbers
from hnlib.unremix import unremix, unremix_components, unremix_score
from hnlib.weightings import SKIP, SimilarityWeighting, Weighting, normalise, refuse_empty, uniform

__all__ = ["SimilarityWeighting", "Weighting", "chi2_ball", "entropic_ot", "gaussian", "normalise"]
__all__ += ["popularity", "semi_relaxed_ot", "thresholded", "tilted", "uniform", "unremix"]
__all__ += ["unremix_components", "unremix_score"]


def _named_cost(name: str, value) -> None:
    if not callable(value):
        _checks.one_of(name, value, ("exponential",))


@dataclass(frozen=True)
class tilted(SimilarityWeighting):
    r"""Exponentially tilted negatives, $w_{ij} \propto e^{\beta s_{ij} / t}$.

    Negatives that are similar to their anchor weigh more. Used by HCL and H-UCL; with class labels,
    by H-SCL($\beta$). Held fixed in InfoNCE at the same temperature, they push like InfoNCE at
    $t/(1 + \beta)$.

    Parameters
    ----------
    beta : float or Tensor of shape [n], default 1.0
        Concentration. 0 gives uniform negatives, negative values prefer easy ones.
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$ of the tilt.
    weights_gradient : bool, default True
        Whether gradients flow through the weights, as in the code released with [hcl]_.

    Raises
    ------
    ValueError
        If an option is out of range; when called, if an anchor has no admissible negative and
        ``on_empty="raise"``.

    Notes
    -----
    On the sphere of radius $1/\sqrt t$ this is the tilt of [hcl]_; in the notation of [hscl]_ it is
    the hardening function $\eta_{\exp}(g) = e^{\beta g}$ with $g = s/t$.

    References
    ----------
    .. [hcl] Robinson et al., *Contrastive Learning with Hard Negative Samples*, ICLR 2021, eq. (4).
    .. [hscl] Jiang et al., *Supervised Contrastive Learning with Hard Negative Samples*, 2024.

    Examples
    --------
    With these weights InfoNCE is HCL without a class prior.

    >>> import torch
    >>> from hnlib import methods, negatives, objectives
    >>> from hnlib.contrast import Contrast
    >>> z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> contrast = Contrast.from_views(z1, z2)
    >>> log_w = negatives.tilted(beta=1.0, temperature=0.5)(contrast)
    >>> loss = objectives.info_nce(contrast, log_w, temperature=0.5)
    >>> torch.isclose(loss, methods.build("hcl", beta=1.0, tau_plus=0.0)(z1, z2))
    tensor(True)
    """

    beta: Finite = 1.0
    temperature: Positive = 0.5
    weights_gradient: Flag = True

    def score(self, s: Tensor) -> tuple[Tensor, float | Tensor]:
        r"""Return the similarities and $\beta/t$."""
        n = len(s)
        scale = per_anchor("beta", self.beta, n) / per_anchor("temperature", self.temperature, n)
        return s, scale


@dataclass(frozen=True)
class thresholded(Weighting):
    r"""Uniform negatives among those with $e^{s_{ij}/t} \ge \tau$.

    The condition is $s_{ij} \ge t\log\tau$. Used by H-SCL($\tau$).

    Parameters
    ----------
    tau : float, default exp(-1)
        Threshold $\tau > 0$.
    temperature : float or Tensor of shape [n], default 0.5
        Temperature $t > 0$.
    on_empty : {"raise", "skip"}, default "raise"
        What happens to an anchor without a negative above the threshold. The better the encoder
        separates classes, the more anchors have none.
    level : float or Tensor of shape [n], optional
        If given, the threshold on $s_{ij}$ itself, instead of `tau` and `temperature`; [hscl]_
        moves it during training.

    Raises
    ------
    ValueError
        If an option is out of range; when called, if an anchor has no negative above the threshold
        and ``on_empty="raise"``.

    References
    ----------
    .. [hscl] Jiang et al., *Supervised Contrastive Learning with Hard Negative Samples*, 2024,
       Sec. IV-A (where the condition is misprinted as $s \ge t\tau$) and eq. (4).
    """

    tau: Positive = 1 / math.e
    temperature: Positive = 0.5
    level: Finite | None = None

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights of shape [n, m]."""
        s = contrast.similarity.detach()
        lowest = per_anchor("level", self.level, len(s))
        if lowest is None:
            tau, t = self.tau, per_anchor("temperature", self.temperature, len(s))
            lowest = t * (tau.detach().log() if isinstance(tau, Tensor) else math.log(tau))
        if isinstance(lowest, Tensor):
            lowest = lowest.detach()  # which pass has no gradient in a learned threshold
        passes = (s - lowest).ge_(0).mul_(as_numbers(contrast.admissible, s.dtype))
        count = passes.sum(1, keepdim=True)
        if self.on_empty == "raise":
            message = f"anchor {{row}} has no negative above the threshold; lower it, {SKIP}"
            raise_if(count.squeeze(1) == 0, message)
        # 0 for 1 and −inf for 0, in place: `torch.where` takes ten times as long
        return passes.reciprocal_().neg_().add_(1).sub_(count.clamp_min(1).log())


@dataclass(frozen=True)
class gaussian(SimilarityWeighting):
    r"""Negatives in a Gaussian window, $w_{ij} \propto e^{-(s_{ij} - \mu)^2 / 2\sigma^2}$.

    Used by ADNCE.

    Parameters
    ----------
    mu : float or Tensor of shape [n], default 0.7
        Centre $\mu$ of the window.
    sigma : float or Tensor of shape [n], default 1.0
        Width $\sigma > 0$ of the window.
    weights_gradient : bool, default False
        Whether gradients flow through the weights.

    Raises
    ------
    ValueError
        If an option is out of range; when called, if an anchor has no admissible negative and
        ``on_empty="raise"``.

    References
    ----------
    .. [adnce] Wu et al., *Understanding Contrastive Learning via Distributionally Robust
       Optimization*, NeurIPS 2023, eq. (11).
    """

    mu: Finite = 0.7
    sigma: Positive = 1.0
    weights_gradient: Flag = False

    def score(self, s: Tensor) -> tuple[Tensor, float | Tensor]:
        r"""Return $(s-\mu)^2$ and $-1/2\sigma^2$."""
        distance = s - per_anchor("mu", self.mu, len(s))
        # in place where no backward pass needs it: saves a matrix
        square = distance.square() if distance.requires_grad else distance.square_()
        return square, -0.5 / per_anchor("sigma", self.sigma, len(s)) ** 2


@dataclass(frozen=True, eq=False)
class popularity(Weighting):
    r"""Negatives weighted against their popularity, $w_{ij} \propto 1/q_j$.

    These weights share an anchor's push as both logQ corrections do, but they sum to one, so by
    themselves they are neither: a correction also decides how much all negatives weigh together.
    The two need no weighting of their own (see the example).

    Parameters
    ----------
    frequency : Tensor of shape [m]
        How often each candidate is sampled, $q_j > 0$, up to a factor; its count in the batch makes
        copies of one key count once.

    Raises
    ------
    ValueError
        If a frequency is not positive; when called, if their number is not that of the candidates,
        or an anchor has no admissible negative and ``on_empty="raise"``.

    References
    ----------
    .. [logq] Yi et al., *Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
       Recommendations*, RecSys 2019.
    .. [logqrefined] Khrylchenko et al., *Correcting the LogQ Correction*, RecSys 2025.

    Examples
    --------
    LogQ subtracts $\log q_j$ from every logit, the positive's too [logq]_. The refined one leaves
    the positive alone and subtracts $\log(nq_j)$ from those of $n$ negatives [logqrefined]_.
    `popularity` is the latter if its scale is the mean of $1/q_j$ over the negatives.

    >>> import torch
    >>> from hnlib import negatives, objectives
    >>> from hnlib.contrast import Contrast
    >>> users, items = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> q = torch.arange(1, 9) / 100  # of each item's pairs among all
    >>> contrast = Contrast.from_pairs(users, items)
    >>> logq = contrast.uniform_log_weights - (q / q[:, None]).log()
    >>> refined = contrast.uniform_log_weights - (7 * q).log()  # of 7 negatives
    >>> log_w = negatives.popularity(q)(contrast)
    >>> [f"{objectives.info_nce(contrast, w):.3f}" for w in (logq, refined, log_w)]
    ['2.753', '3.941', '2.460']
    >>> scale = (contrast.admissible / q).sum(1) / 7
    >>> f"{objectives.info_nce(contrast, log_w, scale=scale):.3f}"
    '3.941'
    """

    frequency: Annotated[Tensor, _checks.positive]

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights of shape [n, m]."""
        s = contrast.similarity
        log_q = self.frequency.to(s).log()
        _checks.shapes(log_q.shape == s.shape[1:], f"frequency must be [{s.shape[1]}]", log_q)
        return normalise(-log_q.expand_as(s), 1.0, contrast, self.on_empty)


@dataclass(frozen=True)
class semi_relaxed_ot(Weighting):
    r"""Rows of a semi-relaxed entropic plan, $w_{ij} \propto e^{(v_j - c_{ij})/\epsilon}$.

    The second marginal is not enforced but charged, $\lambda\,\mathrm{KL}(P^\top 1 \| q)$.

    Parameters
    ----------
    epsilon : float, default 0.5
        Regularisation $\epsilon > 0$.
    relaxation : float, default 1.0
        Price $\lambda \ge 0$ of the second marginal: 0 is the tilt with $\beta/t = 1/\epsilon$,
        infinity is `entropic_ot`.
    cost : callable or "exponential", optional
        Maps a contrast to its costs of shape [n, m]; default $1 - s_{ij}$. "exponential" is
        $e^{2 - 2s_{ij}}$, the cost of Sec. VII-C of [hclot]_; its factor $e^{-\kappa}$ is
        $\epsilon \to \epsilon e^\kappa$.
    tol : float, default 1e-10
        Marginal error at which Sinkhorn stops; raised to 1e-5 in float32, which cannot reach less.
    max_iterations : int, default 1000
        Limit of Sinkhorn's iterations.
    on_failure : {"raise", "warn"}, default "raise"
        What happens if `tol` is not reached.

    Raises
    ------
    ValueError
        If an option is out of range; when called, if an anchor has no admissible negative or no
        plan fits the mask.
    ConvergenceError
        When called, if `tol` is not reached and ``on_failure="raise"``.

    Notes
    -----
    No gradient flows through the weights. `coupling` returns the plan itself and says whether `tol`
    was reached; a `Method` counts where it was not. See `hnlib.transport.sinkhorn`.

    References
    ----------
    .. [hclot] Jiang et al., *Hard Negative Sampling via Regularized Optimal Transport for
       Contrastive Representation Learning*, IJCNN 2023.
    """

    epsilon: transport.Regularisation = 0.5
    relaxation: transport.Relaxation = 1.0
    cost: Annotated[Callable[[Contrast], Tensor] | str, _named_cost] | None = None
    tol: transport.Tolerance = 1e-10
    max_iterations: transport.Iterations = 1000
    on_failure: OnFailure = "raise"
    on_empty: str = field(default="raise", init=False)  # no option: it couples all anchors

    @property
    def couples(self) -> bool:
        """True: a plan is of all anchors."""
        return True

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights of shape [n, m]."""
        return self.coupling(contrast).log_conditional

    def counted(self, contrast: Contrast) -> tuple[Tensor, int | Tensor]:
        """Return the log-weights, and 1 if the coupling missed its tolerance, else 0."""
        coupling = self.coupling(contrast)
        return coupling.log_conditional, 1 - 1 * coupling.converged  # a bool, or a tensor of one

    def skipping(self) -> Weighting:
        """Return this weighting: transport couples all anchors."""
        return self

    def coupling(self, contrast: Contrast) -> transport.Coupling:
        """Return the coupling whose rows are the weights."""
        if callable(self.cost):
            c = self.cost(contrast)
            # a cost that cannot be read is taken to be asymmetric: right for any cost
            same = _checks.on_cpu(c) and torch.equal(c, c.T)
        else:
            s, same = contrast.similarity.detach(), True
            c = -s if self.cost is None else torch.exp(2 - 2 * s)
        return transport.sinkhorn(
            c,
            epsilon=self.epsilon,
            relaxation=self.relaxation,
            mask=contrast.admissible,
            symmetric=contrast.symmetric and same,
            tol=max(self.tol, 1e-5) if c.dtype == torch.float32 else self.tol,
            max_iterations=self.max_iterations,
            on_failure=self.on_failure,
        )


@dataclass(frozen=True)
class entropic_ot(semi_relaxed_ot):
    r"""Rows of the entropic transport plan, $w_{ij} \propto e^{(v_j - c_{ij})/\epsilon}$.

    Like a tilt that cannot make one candidate the hard negative of everybody: all candidates have
    the same total weight. Anchors and candidates have uniform marginals and cells outside $N(i)$
    are forbidden. This is `semi_relaxed_ot` with an infinite `relaxation` (with none it is `tilted`
    at $\beta/t = 1/\epsilon$); errors and notes as there.

    Parameters
    ----------
    epsilon : float, default 0.5
        Regularisation $\epsilon > 0$.
    cost : callable or "exponential", optional
        As in `semi_relaxed_ot`; default
        $1 - s_{ij} = \tfrac12 \lVert z_i - z_j \rVert^2$. The code released with [hclot]_ uses
        $\lVert z_i - z_j \rVert^2$, which is $\epsilon \to \epsilon/2$.
    tol, max_iterations, on_failure
        As in `semi_relaxed_ot`.

    References
    ----------
    .. [hclot] Jiang et al., *Hard Negative Sampling via Regularized Optimal Transport for
       Contrastive Representation Learning*, IJCNN 2023, eq. (5).

    Examples
    --------
    Unlike a tilt, the plan gives every candidate the same total weight.

    >>> import torch
    >>> from hnlib import negatives
    >>> from hnlib.contrast import Contrast
    >>> z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> log_w = negatives.entropic_ot(epsilon=0.5)(Contrast.from_views(z1, z2))
    >>> torch.allclose(log_w.exp().sum(0), torch.ones(16), atol=1e-3)
    True
    """

    relaxation: float = field(default=math.inf, init=False)


@dataclass(frozen=True)
class chi2_ball(Weighting):
    r"""The worst case in a $\chi^2$ ball around uniform, $w_{ij} \propto (s_{ij} - \ell_i)_+$.

    Each anchor's weights maximise the mean similarity under
    $\tfrac12 \mathbb E(\mathrm dw_i/\mathrm d\text{unif} - 1)^2 \le \eta$.

    Parameters
    ----------
    eta : float, default 0.2
        Radius $\eta > 0$.

    Raises
    ------
    ValueError
        If an option is out of range; when called, if an anchor has no admissible negative and
        ``on_empty="raise"``.

    Notes
    -----
    While no weight is cut,
    $w_{ij} = |N(i)|^{-1} \big(1 + (s_{ij} - \bar s_i) \sqrt{2\eta/\mathrm{Var}_i}\big)$. No
    gradient flows through the weights; with `objectives.basic` that is robust optimisation. See
    `hnlib.robust.chi2_ball`.

    References
    ----------
    .. [adnce] Wu et al., *Understanding Contrastive Learning via Distributionally Robust
       Optimization*, NeurIPS 2023, Theorem 3.5, here made exact.
    """

    eta: Positive = 0.2

    def __call__(self, contrast: Contrast) -> Tensor:
        """Return the log-weights of shape [n, m]."""
        refuse_empty(contrast, self.on_empty)
        s, uniform = contrast.similarity.detach(), contrast.uniform_log_weights
        log_w = robust.chi2_ball(s, eta=self.eta, log_reference=uniform).weights.log()
        return log_w.masked_fill((contrast.negative_counts == 0)[:, None], -torch.inf)
