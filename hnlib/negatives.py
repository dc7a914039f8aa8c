r"""Distributions over negatives: factories of functions `Contrast -> log_w`.

Each function returns $\log w_{ij}$ of shape $[n,m]$: $-\infty$ where $j\notin N(i)$, and
$\operatorname{logsumexp}_{j\in N(i)}\log w_{ij}=0$ in every row. An anchor without an admissible negative is an error
that names its row; with `on_empty="skip"` its row is all $-\infty$ and the objectives leave the anchor out (transport
couples all anchors and has no such option). The result may be shared between calls: do not write to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hnlib import robust, transport
from hnlib.contrast import Contrast

LogWeights = Callable[[Contrast], Tensor]


@dataclass(frozen=True)
class Score:
    r"""$f$ of weights $w_{ij}\propto e^{f(s_{ij})}$ that are a function of one similarity, for `hnlib.streaming`.

    `value` is $f$, elementwise on any block of similarities, None where it is constant; `slope` is $f'$, None where no
    gradient flows through the weights; `cuts` says that $f$ may be $-\infty$. The functions that `uniform`, `tilted`,
    `thresholded` and `gaussian` return carry theirs as `.score`, unless an option is given for each anchor.
    """

    value: Callable[[Tensor], Tensor] | None = None
    slope: Callable[[Tensor], Tensor | float] | None = None
    cuts: bool = False


def uniform(on_empty: str = "raise") -> LogWeights:
    r"""Every admissible candidate alike: $w_{ij}=1/|N(i)|$ (SimCLR; with class labels SCL).

    Errors: an anchor without negatives (see the module).
    """
    _check_on_empty(on_empty)

    def log_weights(contrast: Contrast) -> Tensor:
        _reject_empty(contrast, on_empty)
        return contrast.uniform_log_weights

    log_weights.score = Score()
    return log_weights


def tilted(
    beta: float = 1.0, temperature: float = 0.5, weights_gradient: bool = True, on_empty: str = "raise"
) -> LogWeights:
    r"""The exponential tilt: $w_{ij}\propto e^{\beta s_{ij}/t}$ (HCL, H-UCL; with class labels H-SCL($\beta$)).

    `beta` any real ($0$: uniform, negative: easy negatives), `temperature` $t>0$; numbers or $[n]$.
    `weights_gradient`: whether the gradient flows through the weights.
    Source: hcl, Sec. 3 and eq. (4), on the sphere of radius $1/\sqrt t$; h-scl, $\eta_{\exp}(g)=e^{\beta g}$.
    """
    _finite("beta", beta)
    _positive("temperature", temperature)
    _check_on_empty(on_empty)

    def log_weights(contrast: Contrast) -> Tensor:
        s = contrast.similarity if weights_gradient else contrast.similarity.detach()
        scale = _per_anchor("beta", beta, contrast) / _per_anchor("temperature", temperature, contrast)
        return _normalise(s, scale, contrast, on_empty)

    if not isinstance(beta, Tensor) and not isinstance(temperature, Tensor):
        tilt = beta / temperature
        log_weights.score = Score(lambda s: s * tilt, (lambda s: tilt) if weights_gradient else None)
    return log_weights


def thresholded(
    tau: float = math.exp(-1.0), temperature: float = 0.5, on_empty: str = "raise"
) -> LogWeights:
    r"""Uniform over the candidates with $e^{s_{ij}/t}\ge\tau$, that is $s_{ij}\ge t\log\tau$ (H-SCL($\tau$)).

    `tau` $>0$; `temperature` $t>0$, a number or $[n]$. The better the encoder separates classes, the likelier
    an anchor has no candidate above the threshold: see `on_empty`.
    Source: h-scl, Sec. IV-A (where the equivalent condition is misprinted as $s\ge t\tau$).
    """
    _positive("tau", tau)
    _positive("temperature", temperature)
    _check_on_empty(on_empty)

    def log_weights(contrast: Contrast) -> Tensor:
        s = contrast.similarity.detach()
        passes = contrast.admissible & (s >= math.log(tau) * _per_anchor("temperature", temperature, contrast))
        count = passes.sum(1, keepdim=True)
        if on_empty == "raise" and not count.all():
            row = int((count == 0).nonzero()[0, 0])
            raise ValueError(f"anchor {row} has no negative with exp(s/t) >= tau={tau:g}; lower tau, {_SKIP}")
        return torch.where(passes, -count.to(s.dtype).log(), -torch.inf)

    if not isinstance(temperature, Tensor):
        least = math.log(tau) * temperature
        log_weights.score = Score(lambda s: torch.zeros_like(s).masked_fill_(s < least, -torch.inf), cuts=True)
    return log_weights


def entropic_ot(
    epsilon: float = 0.5,
    cost: Callable[[Contrast], Tensor] | None = None,
    tol: float = 1e-10,
    max_iterations: int = 1000,
    on_failure: str = "raise",
) -> LogWeights:
    r"""Rows of the entropic OT plan between anchors and candidates: $w_{ij}\propto e^{(v_j-c_{ij})/\varepsilon}$.

    Uniform marginals on both sides, cells outside $N(i)$ forbidden. `epsilon` $\varepsilon>0$; `cost` maps a contrast
    to $[n,m]$, default $c_{ij}=1-s_{ij}=\tfrac12\lVert z_i-z_j\rVert^2$ (released code uses $\lVert\cdot\rVert^2$,
    which is $\varepsilon\to\varepsilon/2$). No gradient flows through the weights. `tol`, `max_iterations` and
    `on_failure`: see `hnlib.transport.sinkhorn`; in float32 `tol` below 1e-5 is out of reach and is raised to it.
    The returned function counts in `.unconverged` how often the tolerance was missed.
    Errors: infeasible masks and failure to converge, as there.
    Source: hcl-ot, eq. (5).
    """
    return semi_relaxed_ot(epsilon, math.inf, cost, tol, max_iterations, on_failure)


def semi_relaxed_ot(
    epsilon: float = 0.5,
    relaxation: float = 1.0,
    cost: Callable[[Contrast], Tensor] | None = None,
    tol: float = 1e-10,
    max_iterations: int = 1000,
    on_failure: str = "raise",
) -> LogWeights:
    r"""Entropic OT whose second marginal costs $\lambda\,\mathrm{KL}(P^\top1\|q)$ instead of being imposed.

    $w_{ij}\propto e^{(v_j-c_{ij})/\varepsilon}$ with $v$ shrunk by $\lambda/(\lambda+\varepsilon)$. `relaxation`
    $\lambda\ge0$: $0$ is the tilt with $\beta/t=1/\varepsilon$, $\infty$ is `entropic_ot`. Other arguments and errors
    as there. Ours.
    """
    _positive("epsilon", epsilon)
    if not relaxation >= 0:
        raise ValueError(f"relaxation={relaxation} must be at least 0 (0 is the tilt, inf is entropic OT)")

    def log_weights(contrast: Contrast) -> Tensor:
        c = -contrast.similarity.detach() if cost is None else cost(contrast)
        if c.shape != (needed := contrast.similarity.shape):
            raise ValueError(f"the cost has shape {tuple(c.shape)}; this contrast needs {tuple(needed)}")
        _reject_empty(contrast, "raise", "as transport must leave every anchor a candidate")
        symmetric = contrast.symmetric and (cost is None or torch.equal(c, c.T))
        coupling = transport.sinkhorn(
            c, epsilon=epsilon, relaxation=relaxation, mask=contrast.admissible, symmetric=symmetric,
            tol=max(tol, 1e-5) if c.dtype == torch.float32 else tol, max_iterations=max_iterations,
            on_failure=on_failure,
        )
        log_weights.unconverged += not coupling.converged
        return coupling.log_conditional

    log_weights.unconverged = 0
    return log_weights


def centred_tilt(epsilon: float = 0.5, weights_gradient: bool = False, on_empty: str = "raise") -> LogWeights:
    r"""The tilt seen from a centred anchor: $w_{ij}\propto e^{\langle z_i-\bar z,\,z_j\rangle/\varepsilon}$.

    $\bar z$ is the mean candidate. Entropic OT to first order in $1/\varepsilon$, at the price of a tilt. `epsilon`
    $>0$, a number or $[n]$. Ours.
    ValueError: a contrast without embeddings.
    """
    _positive("epsilon", epsilon)
    _check_on_empty(on_empty)

    def log_weights(contrast: Contrast) -> Tensor:
        if contrast.candidates is None:
            raise ValueError("centred_tilt needs embeddings; build the contrast from views, or pass candidates=… too")
        z, s = contrast.candidates, contrast.similarity
        if not weights_gradient:
            z, s = z.detach(), s.detach()
        with torch.autocast(z.device.type, enabled=False):
            centre = z @ z.mean(0)
        return _normalise(s - centre, 1 / _per_anchor("epsilon", epsilon, contrast), contrast, on_empty)

    return log_weights


def gaussian(
    mu: float = 0.7, sigma: float = 1.0, weights_gradient: bool = False, on_empty: str = "raise"
) -> LogWeights:
    r"""A Gaussian window on similarity: $w_{ij}\propto e^{-(s_{ij}-\mu)^2/2\sigma^2}$ (ADNCE).

    `mu` any real, `sigma` $>0$; numbers or $[n]$. Source: dro-adnce, eq. (11).
    """
    _finite("mu", mu)
    _positive("sigma", sigma)
    _check_on_empty(on_empty)

    def log_weights(contrast: Contrast) -> Tensor:
        s = contrast.similarity if weights_gradient else contrast.similarity.detach()
        distance = s - _per_anchor("mu", mu, contrast)
        distance = distance.square() if distance.requires_grad else distance.square_()  # saves a matrix
        return _normalise(distance, -0.5 / _per_anchor("sigma", sigma, contrast) ** 2, contrast, on_empty)

    if not isinstance(mu, Tensor) and not isinstance(sigma, Tensor):
        log_weights.score = Score(lambda s: (s - mu).square_().mul_(-0.5 / sigma**2),
                                  (lambda s: (mu - s).div_(sigma**2)) if weights_gradient else None)
    return log_weights


def unremix_components(contrast: Contrast) -> Tensor:
    r"""The three scores of UnReMix, $[3,n,m]$: uncertainty $u_{ij}$, similarity $s_{ij}$, distance $r_{ij}$.

    With last layer $z=Wh$, $p_{jk}\propto e^{s_{jk}}$ on $N(j)$ and the pseudo-label $\hat y_j=\arg\max_kp_{jk}$,

    $$a_j=\frac1{|Wh_j|}(I-z_jz_j^\top)\Big(\sum_kp_{jk}z_k-z_{\hat y_j}\Big),\qquad
      u_{ij}=\langle a_i,a_j\rangle\langle h_i,h_j\rangle,\qquad
      r_{ij}=\operatorname*{mean}_{k\in N(i)\cap N(j)}(1-s_{jk}).$$

    $a_jh_j^\top$ is the gradient in $W$ of $-\log p_{j\hat y_j}$, the other points held fixed. The paper says "the
    parameter vector of the last layer"; the measure it takes up (Ash et al., 2020) is of the weights alone, and so is
    training here. To count a bias $b$ too, append a one to every $h$: $u_{ij}$ gains $\langle a_i,a_j\rangle$. Cells
    outside $N(i)$ mean nothing. $r=0$ for a batch of two images. No gradient flows. Memory: a few $[n,m]$ matrices.
    ValueError: a contrast that is not of two views without labels, or was built without features.
    Source: unremix, eqs. (2)-(4); the closed form is ours.
    """
    return torch.stack(_unremix_components(contrast))


def _unremix_components(contrast: Contrast) -> tuple[Tensor, Tensor, Tensor]:
    _needs_views("unremix", contrast)
    if contrast.features is None:
        raise ValueError("unremix needs the inputs of the last layer; pass features=(h1, h2) to Contrast.from_views")
    with torch.no_grad(), torch.autocast(contrast.candidates.device.type, enabled=False):
        z, s, n = contrast.candidates, contrast.similarity, len(contrast.candidates)
        p = torch.softmax(contrast.uniform_log_weights + s, 1)
        pull = p @ z - z[p.argmax(1)]
        a = (pull - (pull * z).sum(1, keepdim=True) * z) / contrast.norms.to(z)[:, None]
        h = contrast.features.to(z)
        kept = s.masked_fill(~contrast.admissible, 0.0)
        if n == 4:
            distance = torch.zeros_like(s)
        else:  # the sum over N(j) less the two views of i
            distance = (kept + kept.roll(n // 2, 0)).div_(n - 4).add_(1 - kept.sum(0) / (n - 4))
        return (a @ a.T).mul_(h @ h.T), s.detach(), distance


def unremix(mixture=(1 / 3, 1 / 3, 1 / 3), on_empty: str = "raise") -> LogWeights:
    r"""UnReMix, made a law: $w_{ij}\propto\max(0,\lambda_1u_{ij}+\lambda_2s_{ij}+\lambda_3r_{ij})$.

    The paper's score can be negative and is not normalised. Here a candidate of negative score gets no weight, an
    anchor without a positive score has uniform weights, and rows are normalised. `mixture` $\lambda\ge0$: three
    numbers or a tensor $[3]$; gradient flows through the mixture alone. Scores: see `unremix_components`.
    ValueError: as there; a mixture of other shape, negative or zero (of a tensor only the shape is checked).
    Source: unremix, eq. (5) and Algorithm 1.
    """
    _check_mixture(mixture)
    _check_on_empty(on_empty)

    def log_weights(contrast: Contrast) -> Tensor:
        weight = _as_mixture(mixture, contrast)
        score = sum(part * share for part, share in zip(_unremix_components(contrast), weight, strict=True))
        positive = contrast.admissible & (score > 0)
        log_score = torch.where(positive, score.clamp_min(torch.finfo(score.dtype).tiny).log(), -torch.inf)
        log_score = log_score.masked_fill(~positive.any(1, keepdim=True), 0.0)
        return _normalise(log_score, 1.0, contrast, on_empty)

    return log_weights


def neighbour_scores(contrast: Contrast, temperature: float | None = None) -> tuple[Tensor, Tensor]:
    r"""How unsure and how representative each candidate is, by what its neighbours predict: two vectors $[m]$.

    $$\mu_j=\sum_{k\in N(j)}p_{jk}z_k,\quad p_{jk}\propto e^{s_{jk}/\tau},\qquad
      u_j=1-|\mu_j|^2\in[0,1],\qquad r_j=\langle z_j,\mu_j\rangle\in[-1,1].$$

    $u_j=\sum_kp_{jk}|z_k-\mu_j|^2$: the neighbours disagree. $r_j=\sum_kp_{jk}s_{jk}$: they resemble $j$; high at the
    centre of a cluster, low for an outlier. `temperature` $\tau>0$, default $1/\log m$. No gradient flows.
    ValueError: a contrast that is not of two views without labels. Ours.
    """
    _needs_views("neighbour_scores", contrast)
    tau = 1 / math.log(len(contrast.candidates)) if temperature is None else temperature
    _positive("temperature", tau)
    with torch.no_grad(), torch.autocast(contrast.candidates.device.type, enabled=False):
        z = contrast.candidates
        mean = torch.softmax((contrast.similarity / tau).masked_fill(~contrast.admissible, -torch.inf), 1) @ z
        return 1 - mean.square().sum(1), (z * mean).sum(1)


def unremix_repaired(
    beta: float = 1.0, mixture=(1 / 3, 1 / 3, 1 / 3), temperature: float = 0.5, weights_gradient: bool = False,
    on_empty: str = "raise",
) -> LogWeights:
    r"""UnReMix repaired: $w_{ij}\propto\exp\frac\beta t\big(\lambda_1\sigma_i\hat u_j+\lambda_2s_{ij}
    +\lambda_3\sigma_i\hat r_j\big)$.

    $\hat u,\hat r$ are `neighbour_scores`, standardised over the candidates; $\sigma_i$ is the
    standard deviation of $s_{ij}$ over $N(i)$, so that the three terms spread alike. Mixture $(0,1,0)$ is `tilted`.
    `beta` real, `temperature` $t>0$: numbers or $[n]$; `mixture` as in `unremix`. Gradient flows through the mixture,
    and through $s_{ij}$ if `weights_gradient`. ValueError: as `neighbour_scores` and `unremix`. Ours.
    """
    _finite("beta", beta)
    _positive("temperature", temperature)
    _check_mixture(mixture)
    _check_on_empty(on_empty)

    def log_weights(contrast: Contrast) -> Tensor:
        unsure, typical = (_standardise(x) for x in neighbour_scores(contrast))
        weight = _as_mixture(mixture, contrast)
        s, admissible = contrast.similarity.detach(), contrast.admissible
        count = contrast.negative_counts[:, None]
        centred = (s - s.masked_fill(~admissible, 0.0).sum(1, keepdim=True) / count).masked_fill(~admissible, 0.0)
        spread = (centred.square().sum(1, keepdim=True) / count).sqrt()
        s = contrast.similarity if weights_gradient else s
        score = weight[1] * s + spread * (weight[0] * unsure + weight[2] * typical)
        scale = _per_anchor("beta", beta, contrast) / _per_anchor("temperature", temperature, contrast)
        return _normalise(score, scale, contrast, on_empty)

    return log_weights


def _standardise(x: Tensor) -> Tensor:
    """Mean 0 and variance 1, or 0 where nothing varies."""
    return (x - x.mean()) / x.std(correction=0).clamp_min(torch.finfo(x.dtype).eps)


def _as_mixture(mixture, contrast: Contrast):
    """Numbers stay numbers: a copy to an accelerator would make it wait in every step."""
    return mixture.to(contrast.similarity) if isinstance(mixture, Tensor) else mixture


def _check_mixture(mixture) -> None:
    values = mixture if isinstance(mixture, Tensor) else torch.as_tensor(mixture, dtype=torch.float64)
    if values.shape != (3,):
        raise ValueError(f"mixture has shape {tuple(values.shape)}; give three numbers, for u, s and r")
    if not isinstance(mixture, Tensor) and not (values.isfinite().all() and values.min() >= 0 and values.sum() > 0):
        raise ValueError(f"mixture={tuple(values.tolist())} must be three finite numbers >= 0, not all zero")


def _needs_views(name: str, contrast: Contrast) -> None:
    if contrast.candidates is None or not (contrast.never_empty and contrast.symmetric):
        raise ValueError(f"{name} compares the candidates of a batch: use Contrast.from_views without labels")


def chi2_ball(eta: float = 0.2, on_empty: str = "raise") -> LogWeights:
    r"""The worst law in a $\chi^2$ ball of radius $\eta$ around the uniform one: $w_{ij}\propto(s_{ij}-\ell_i)_+$.

    $\tfrac12\mathbb E(\mathrm dw_i/\mathrm d\text{unif}-1)^2\le\eta$ for each anchor; while no weight is cut it is
    $|N(i)|^{-1}\big(1+(s_{ij}-\bar s_i)\sqrt{2\eta/\mathrm{Var}_i}\big)$. `eta` $>0$. No gradient flows through the
    weights; with `objectives.basic` that is $\chi^2$-robust optimisation.
    Errors: an anchor without negatives. Source: dro-adnce, Theorem 3.5 made exact; `hnlib.robust.chi2_ball`.
    """
    _positive("eta", eta)
    _check_on_empty(on_empty)

    def log_weights(contrast: Contrast) -> Tensor:
        _reject_empty(contrast, on_empty)
        s, empty = contrast.similarity.detach(), (contrast.negative_counts == 0)[:, None]
        reference = contrast.uniform_log_weights.double().masked_fill(empty, 0.0).softmax(1)
        return robust.chi2_ball(s, reference, eta).weights.log().to(s).masked_fill(empty, -torch.inf)

    return log_weights


def _normalise(score: Tensor, scale: float | Tensor, contrast: Contrast, on_empty: str) -> Tensor:
    """Make every row of scale * score a log-distribution over N(i); adding log uniform weights is the mask."""
    _reject_empty(contrast, on_empty)
    mask = contrast.uniform_log_weights
    masked = mask + score * scale if isinstance(scale, Tensor) else torch.add(mask, score, alpha=scale)
    if contrast.never_empty or on_empty == "raise":
        return torch.log_softmax(masked, 1)
    empty = (contrast.negative_counts == 0)[:, None]  # kept from the softmax, whose gradient would be NaN there
    return torch.log_softmax(masked.masked_fill(empty, 0.0), 1).masked_fill(empty, -torch.inf)


_SKIP = 'or on_empty="skip" to leave such anchors out and count them'


def _reject_empty(contrast: Contrast, on_empty: str, remedy: str = _SKIP) -> None:
    if on_empty == "raise" and not contrast.never_empty and not contrast.negative_counts.all():
        row = int((contrast.negative_counts == 0).nonzero()[0])
        raise ValueError(f"anchor {row} has no admissible negative; use a batch with more classes in it, {remedy}")


def _per_anchor(name: str, value, contrast: Contrast):
    """A number as it is; one value per anchor $[n]$ as a column, to be broadcast along the anchor's row."""
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    n = len(contrast.similarity)
    if value.shape != (n,):
        raise ValueError(f"{name} has shape {tuple(value.shape)}; give one number, or one per anchor ({n},)")
    return value[:, None]


def _positive(name: str, value) -> None:
    smallest = value.min().item() if isinstance(value, Tensor) else value
    if not (smallest > 0 and math.isfinite(smallest)):
        raise ValueError(f"{name}={smallest:g} must be positive and finite")


def _finite(name: str, value) -> None:
    if not (value.isfinite().all() if isinstance(value, Tensor) else math.isfinite(value)):
        raise ValueError(f"{name}={value} must be a finite number")


def _check_on_empty(value: str) -> None:
    if value not in ("raise", "skip"):
        raise ValueError(f'on_empty={value!r} is unknown; use "raise" or "skip"')
