r"""Distributions over negatives, as values: `negatives.tilted(beta=2.0)` is called with a contrast.

That returns $\log w_{ij}$ $[n,m]$: $-\infty$ where $j\notin N(i)$, and in every row
$\operatorname{logsumexp}_{j\in N(i)}\log w_{ij}=0$. An anchor without an admissible negative is an
error that names it; with `on_empty="skip"` its row is all $-\infty$ and the objectives leave it out
(transport couples all anchors and has no such option). Do not write to it: it may be shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hnlib import _checks, robust, transport
from hnlib._checks import outside_autocast, per_anchor, positive, readable, refuse
from hnlib.contrast import Contrast, as_numbers

LogWeights = Callable[[Contrast], Tensor]


@dataclass(frozen=True)
class Score:
    r"""$f$ of weights $w_{ij}\propto e^{f(s_{ij})}$, for `hnlib.streaming`.

    `value` is $f$ of any block of similarities, None where constant; `slope` is $f'$, None where no
    gradient flows through the weights; `cuts` says that $f$ may be $-\infty$.
    """

    value: Callable[[Tensor], Tensor] | None = None
    slope: Callable[[Tensor], Tensor | float] | None = None
    cuts: bool = False


class Weighting:
    r"""What the distributions of this room share: each is a frozen dataclass of its options.

    Options are checked when the value is made (`RANGES`). Two of one kind are equal where their
    options are, tensors entry by entry. Names are in lower case, as they are used like functions.
    """

    def __post_init__(self):
        for option, value in vars(self).items():
            if option in RANGES:
                RANGES[option](option, value)

    def __call__(self, contrast: Contrast) -> Tensor:
        r"""$\log w_{ij}$ $[n,m]$."""
        raise NotImplementedError

    @property
    def score(self) -> Score | None:
        """The weights as a function of one similarity; None where they are none alike for all."""
        return None if any(isinstance(v, Tensor) for v in vars(self).values()) else self._score()

    def _score(self) -> Score | None:
        return None

    def __eq__(self, other) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(value, vars(other)[option]) for option, value in vars(self).items())

    def __hash__(self) -> int:
        plain = (value for value in vars(self).values() if not isinstance(value, Tensor))
        return hash((type(self), *plain))


def _same(a, b) -> bool:
    tensors = isinstance(a, Tensor), isinstance(b, Tensor)
    return torch.equal(a, b) if all(tensors) else not any(tensors) and a == b


@dataclass(frozen=True, eq=False)
class uniform(Weighting):
    r"""Every admissible candidate alike: $w_{ij}=1/|N(i)|$ (SimCLR; with class labels SCL).

    Errors: an anchor without negatives (see the module).
    """

    on_empty: str = "raise"

    def __call__(self, contrast: Contrast) -> Tensor:
        _reject_empty(contrast, self.on_empty)
        return contrast.uniform_log_weights

    def _score(self) -> Score:
        return Score()


@dataclass(frozen=True, eq=False)
class tilted(Weighting):
    r"""The exponential tilt: $w_{ij}\propto e^{\beta s_{ij}/t}$ (HCL, H-UCL; with class labels
    H-SCL($\beta$)).

    `beta` any real ($0$: uniform, negative: easy negatives), `temperature` $t>0$; numbers or $[n]$.
    `weights_gradient`: whether the gradient flows through the weights. `exponent` $p\ge1$ bends the
    cost, $w_{ij}\propto e^{-\beta(1-s_{ij})^p/t}$; $1$ is the tilt. Source: hcl, Sec. 3 and eq.
    (4), on the sphere of radius $1/\sqrt t$; h-scl, $\eta_{\exp}(g)=e^{\beta g}$; the exponent: the
    code that dro-adnce released for $\alpha$-CL-direct.
    """

    beta: float | Tensor = 1.0
    temperature: float | Tensor = 0.5
    weights_gradient: bool = True
    on_empty: str = "raise"
    exponent: float = 1.0

    def __call__(self, contrast: Contrast) -> Tensor:
        s = contrast.similarity if self.weights_gradient else contrast.similarity.detach()
        n = len(s)
        scale = per_anchor("beta", self.beta, n) / per_anchor("temperature", self.temperature, n)
        return normalise(self._bent(s), scale, contrast, self.on_empty)

    def _bent(self, s: Tensor) -> Tensor:
        return s if self.exponent == 1 else -_cost_of(s).pow(self.exponent)

    def _score(self) -> Score:
        return Score(self._value, self._slope if self.weights_gradient else None)

    def _value(self, s: Tensor) -> Tensor:
        return self._bent(s) * (self.beta / self.temperature)

    def _slope(self, s: Tensor) -> float | Tensor:
        slope, p = self.beta / self.temperature, self.exponent
        return slope if p == 1 else _cost_of(s).pow(p - 1) * (p * slope)


@dataclass(frozen=True, eq=False)
class thresholded(Weighting):
    r"""Uniform over the candidates with $e^{s_{ij}/t}\ge\tau$, that is $s_{ij}\ge t\log\tau$
    (H-SCL($\tau$)).

    `tau` $>0$; `temperature` $t>0$, a number or $[n]$. `level` $l$, where it is given, stands for
    them both: $\tau=e^{l/t}$, so $s_{ij}\ge l$; it is what h-scl moves while training. The better
    the encoder separates classes, the likelier an anchor has no candidate above the threshold: see
    `on_empty`. Source: h-scl, Sec. IV-A (where the equivalent condition is misprinted as $s\ge
    t\tau$) and eq. (4).
    """

    tau: float = math.exp(-1.0)
    temperature: float | Tensor = 0.5
    on_empty: str = "raise"
    level: float | None = None

    def __call__(self, contrast: Contrast) -> Tensor:
        s = contrast.similarity.detach()
        least = self._least(per_anchor("temperature", self.temperature, len(s)))
        passes = (s - least).ge_(0).mul_(as_numbers(contrast.admissible, s.dtype))
        count = passes.sum(1, keepdim=True)
        if self.on_empty == "raise":
            above, lower = f"exp(s/t) >= tau={self.tau:g}", "tau"
            if self.level is not None:
                above, lower = f"s >= level={self.level:g}", "level"
            sentence = f"no negative with {above}; lower {lower}, {SKIP}"
            refuse(count.squeeze(1) == 0, "anchor {row} has " + sentence)
        return _log_indicator(passes).sub_(count.clamp_min(1).log())

    def _least(self, temperature: float | Tensor) -> float | Tensor:
        return math.log(self.tau) * temperature if self.level is None else self.level

    def _score(self) -> Score:
        return Score(self._value, cuts=True)

    def _value(self, s: Tensor) -> Tensor:
        return torch.zeros_like(s).masked_fill_(s < self._least(self.temperature), -torch.inf)


@dataclass(frozen=True, eq=False)
class semi_relaxed_ot(Weighting):
    r"""Entropic OT that is charged $\lambda\,\mathrm{KL}(P^\top1\|q)$ for its second marginal.

    $w_{ij}\propto e^{(v_j-c_{ij})/\varepsilon}$ with $v$ shrunk by $\lambda/(\lambda+\varepsilon)$.
    `relaxation` $\lambda\ge0$: $0$ is the tilt with $\beta/t=1/\varepsilon$, $\infty$ is
    `entropic_ot`, whose other arguments and errors it has. Ours.
    """

    epsilon: float = 0.5
    relaxation: float = 1.0
    cost: Callable[[Contrast], Tensor] | None = None
    tol: float = 1e-10
    max_iterations: int = 1000
    on_failure: str = "raise"

    def __call__(self, contrast: Contrast) -> Tensor:
        return self.coupling(contrast).log_conditional

    def coupling(self, contrast: Contrast) -> transport.Coupling:
        """The coupling whose rows are the weights; `converged` says whether `tol` was reached."""
        c = -contrast.similarity.detach() if self.cost is None else self.cost(contrast)
        if c.shape != (needed := tuple(contrast.similarity.shape)):
            raise ValueError(f"the cost has shape {tuple(c.shape)}; this contrast needs {needed}")
        _reject_empty(contrast, "raise", "as transport must leave every anchor a candidate")
        # where a cost cannot be looked at, the solver for any cost serves
        same = self.cost is None or (readable(c) and torch.equal(c, c.T))
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


def entropic_ot(
    epsilon: float = 0.5,
    cost: Callable[[Contrast], Tensor] | None = None,
    tol: float = 1e-10,
    max_iterations: int = 1000,
    on_failure: str = "raise",
) -> semi_relaxed_ot:
    r"""Rows of the entropic OT plan between anchors and candidates: $w_{ij}\propto
    e^{(v_j-c_{ij})/\varepsilon}$.

    Uniform marginals on both sides, cells outside $N(i)$ forbidden. `epsilon` $\varepsilon>0$;
    `cost` maps a contrast to $[n,m]$, default $c_{ij}=1-s_{ij}=\tfrac12\lVert z_i-z_j\rVert^2$
    (released code uses $\lVert\cdot\rVert^2$, which is $\varepsilon\to\varepsilon/2$). No gradient
    flows through the weights. `tol`, `max_iterations` and `on_failure`: see
    `hnlib.transport.sinkhorn`; in float32 `tol` below 1e-5 is out of reach and is raised to it.
    `.coupling(contrast)` says whether it was reached; a `Method` counts where it was not. Errors:
    infeasible masks and failure to converge, as there. Source: hcl-ot, eq. (5).
    """
    return semi_relaxed_ot(epsilon, math.inf, cost, tol, max_iterations, on_failure)


@dataclass(frozen=True, eq=False)
class centred_tilt(Weighting):
    r"""The tilt seen from a centred anchor: $w_{ij}\propto e^{\langle z_i-\bar
    z,\,z_j\rangle/\varepsilon}$.

    $\bar z$ is the mean candidate. Entropic OT to first order in $1/\varepsilon$, at the price of a
    tilt. `epsilon` $>0$, a number or $[n]$. ValueError: a contrast without embeddings. Ours.
    """

    epsilon: float | Tensor = 0.5
    weights_gradient: bool = False
    on_empty: str = "raise"

    def __call__(self, contrast: Contrast) -> Tensor:
        if contrast.candidates is None:
            raise ValueError(
                "centred_tilt needs embeddings; build the contrast from views, "
                "or pass candidates=… too"
            )
        z, s = contrast.candidates, contrast.similarity
        if not self.weights_gradient:
            z, s = z.detach(), s.detach()
        with outside_autocast(z.device):
            centre = z @ z.mean(0)
        scale = 1 / per_anchor("epsilon", self.epsilon, len(s))
        return normalise(s - centre, scale, contrast, self.on_empty)


@dataclass(frozen=True, eq=False)
class gaussian(Weighting):
    r"""A Gaussian window on similarity: $w_{ij}\propto e^{-(s_{ij}-\mu)^2/2\sigma^2}$ (ADNCE).

    `mu` any real, `sigma` $>0$; numbers or $[n]$. Source: dro-adnce, eq. (11).
    """

    mu: float | Tensor = 0.7
    sigma: float | Tensor = 1.0
    weights_gradient: bool = False
    on_empty: str = "raise"

    def __call__(self, contrast: Contrast) -> Tensor:
        s = contrast.similarity if self.weights_gradient else contrast.similarity.detach()
        distance = s - per_anchor("mu", self.mu, len(s))
        # in place where nothing needs it again: saves a matrix
        distance = distance.square() if distance.requires_grad else distance.square_()
        scale = -0.5 / per_anchor("sigma", self.sigma, len(s)) ** 2
        return normalise(distance, scale, contrast, self.on_empty)

    def _score(self) -> Score:
        return Score(self._value, self._slope if self.weights_gradient else None)

    def _value(self, s: Tensor) -> Tensor:
        return (s - self.mu).square_().mul_(-0.5 / self.sigma**2)

    def _slope(self, s: Tensor) -> Tensor:
        return (self.mu - s).div_(self.sigma**2)


def unremix_components(
    contrast: Contrast, gradient: str = "pseudo-label", temperature: float | Tensor = 0.5
) -> Tensor:
    r"""The three scores of UnReMix $[3,n,m]$: uncertainty $u$, similarity $s$ and distance $r$.

    With last layer $z=Wh$, $p_{jk}\propto e^{s_{jk}}$ on $N(j)$ and the pseudo-label $\hat
    y_j=\arg\max_kp_{jk}$,

    $$a_j=\frac1{|Wh_j|}(I-z_jz_j^\top)\Big(\sum_kp_{jk}z_k-z_{\hat y_j}\Big),\qquad
      u_{ij}=\langle a_i,a_j\rangle\langle h_i,h_j\rangle,\qquad
      r_{ij}=\operatorname*{mean}_{k\in N(i)\cap N(j)}(1-s_{jk}).$$

    $a_jh_j^\top$ is the gradient in $W$ of $-\log p_{j\hat y_j}$, the other points held fixed. The
    paper says "the parameter vector of the last layer"; the measure it takes up (Ash et al., 2020)
    is of the weights alone, and so is training here. To count a bias $b$ too, append a one to every
    $h$: $u_{ij}$ gains $\langle a_i,a_j\rangle$. With `gradient` "nt-xent" it is the gradient of
    the contrastive loss at `temperature` $t>0$, a number or $[n]$: $\hat y_j$ is the other view,
    $p_{jk}\propto e^{s_{jk}/t}$ on it and $N(j)$, and $a_j$ is divided by $t$. Cells outside $N(i)$
    mean nothing. $r=0$ for a
    batch of two images. No gradient flows. Memory: a few $[n,m]$ matrices. ValueError: a contrast
    that is not of two views without labels, or was built without features; another `gradient`.
    Source: unremix, eqs. (2)-(4) and App. B.3; the closed form is ours.
    """
    _checks.one_of("gradient", gradient, GRADIENTS)
    uncertainty, similarity, distance = _unremix_components(contrast, gradient, temperature)
    return torch.stack([uncertainty, similarity, distance.repeat(2, 1)])


def _unremix_components(
    contrast: Contrast, gradient: str, temperature: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, without gradient; the distance $[n/2,m]$ once for the two views of an image."""
    _needs_views("unremix", contrast)
    if contrast.features is None:
        raise ValueError(
            "unremix needs the inputs of the last layer; "
            "pass features=(h1, h2) to Contrast.from_views"
        )
    z, s = contrast.candidates.detach(), contrast.similarity.detach()
    h, n, images = contrast.features.detach().to(z), len(z), len(z) // 2
    with outside_autocast(z.device), torch.no_grad():
        pull = _pull(contrast, z, s, None if gradient == "pseudo-label" else temperature)
        a = (pull - (pull * z).sum(1, keepdim=True) * z) / contrast.norms.detach().to(z)[:, None]
        both = s[:images] + s[images:]  # a candidate's similarity to the two views of an image
        for offset in (0, images):  # but for its own
            both.diagonal(offset).zero_()
        # the sum over N(j) less the two views of i; of two images nothing is left
        distance = both.zero_() if images == 2 else (both - both.sum(0)).div_(n - 4).add_(1.0)
        uncertainty, one, two = torch.empty_like(s), slice(images), slice(images, n)
        for i, j in ((one, one), (one, two), (two, two)):
            uncertainty[i, j] = (a[i] @ a[j].T).mul_(h[i] @ h[j].T)
        uncertainty[two, one] = uncertainty[one, two].T
    return uncertainty, s, distance


def _pull(contrast: Contrast, z: Tensor, s: Tensor, temperature=None) -> Tensor:
    """The gradient in $z$ of the loss that `unremix_components` speaks of; None: of the
    pseudo-label's."""
    if temperature is None:
        p = torch.softmax(contrast.uniform_log_weights + s, 1)
        return p @ z - z[p.argmax(1)]
    t = per_anchor("temperature", temperature, len(s))
    p = torch.softmax((s / t).fill_diagonal_(-torch.inf), 1)
    return (p @ z - z.roll(len(z) // 2, 0)) / t


@dataclass(frozen=True, eq=False)
class unremix(Weighting):
    r"""UnReMix, made a law: $w_{ij}\propto\max(0,\lambda_1u_{ij}+\lambda_2s_{ij}+\lambda_3r_{ij})$.

    The paper's score can be negative and is not normalised. Here a candidate of negative score gets
    no weight, an anchor without a positive score has uniform weights, and rows are normalised.
    `mixture` $\lambda\ge0$: three numbers or a tensor $[3]$; gradient flows through the mixture
    alone. Scores, `gradient`, `temperature`: see `unremix_components`. ValueError: as there; a
    mixture of other shape, negative or zero (of a tensor only the shape is checked). Source:
    unremix, eq. (5), Algorithm 1.
    """

    mixture: tuple[float, float, float] | Tensor = (1 / 3, 1 / 3, 1 / 3)
    on_empty: str = "raise"
    gradient: str = "pseudo-label"
    temperature: float | Tensor = 0.5

    def __call__(self, contrast: Contrast) -> Tensor:
        u, s, r = _unremix_components(contrast, self.gradient, self.temperature)
        share = self.mixture
        if isinstance(share, Tensor):
            share = share.to(s)
            score = u * share[0] + s * share[1] + (r * share[2]).repeat(2, 1)
        else:  # nothing is kept for a gradient: in place
            score = u.mul_(share[0]).add_(s, alpha=share[1])
            score.unflatten(0, (2, -1)).add_(r, alpha=share[2])
        tiny = torch.finfo(score.dtype).tiny
        fits = (score.detach() - tiny).gt_(0).mul_(as_numbers(contrast.admissible, score.dtype))
        fits += (fits.sum(1, keepdim=True) == 0).to(score.dtype)  # no score is positive: all alike
        log_score = _log_indicator(fits).add_(score.clamp_min(tiny).log())
        return normalise(log_score, 1.0, contrast, self.on_empty)


def neighbour_scores(contrast: Contrast, temperature: float | None = None) -> tuple[Tensor, Tensor]:
    r"""How unsure and how representative a candidate is, by what its neighbours predict: two $[m]$.

    $$\mu_j=\sum_{k\in N(j)}p_{jk}z_k,\quad p_{jk}\propto e^{s_{jk}/\tau},\qquad
      u_j=1-|\mu_j|^2\in[0,1],\qquad r_j=\langle z_j,\mu_j\rangle\in[-1,1].$$

    $u_j=\sum_kp_{jk}|z_k-\mu_j|^2$: the neighbours disagree. $r_j=\sum_kp_{jk}s_{jk}$: they
    resemble $j$; high at the centre of a cluster, low for an outlier. `temperature` $\tau>0$,
    default $1/\log m$. No gradient flows. ValueError: a contrast that is not of two views without
    labels. Ours.
    """
    _needs_views("neighbour_scores", contrast)
    tau = 1 / math.log(len(contrast.candidates)) if temperature is None else temperature
    _checks.single("temperature", tau, "give one number for all candidates")
    positive("temperature", tau)
    z, s = contrast.candidates.detach(), contrast.similarity.detach()
    with torch.no_grad(), outside_autocast(z.device):
        mean = torch.softmax(contrast.uniform_log_weights + s / tau, 1) @ z
        return 1 - mean.square().sum(1), (z * mean).sum(1)


@dataclass(frozen=True, eq=False)
class unremix_repaired(Weighting):
    r"""UnReMix repaired: $w_{ij}\propto\exp\frac\beta t\big(\lambda_1\sigma_i\hat
    u_j+\lambda_2s_{ij} +\lambda_3\sigma_i\hat r_j\big)$.

    $\hat u,\hat r$ are `neighbour_scores`, standardised over the candidates; $\sigma_i$ is the
    standard deviation of $s_{ij}$ over $N(i)$, so that the three terms spread alike. Mixture
    $(0,1,0)$ is `tilted`. `beta` real, `temperature` $t>0$: numbers or $[n]$; `mixture` as in
    `unremix`. Gradient flows through the mixture, and through $s_{ij}$ if `weights_gradient`.
    ValueError: as `neighbour_scores` and `unremix`. Ours.
    """

    beta: float | Tensor = 1.0
    mixture: tuple[float, float, float] | Tensor = (1 / 3, 1 / 3, 1 / 3)
    temperature: float | Tensor = 0.5
    weights_gradient: bool = False
    on_empty: str = "raise"

    def __call__(self, contrast: Contrast) -> Tensor:
        unsure, typical = (_standardise(x) for x in neighbour_scores(contrast))
        s, outside = contrast.similarity.detach(), ~contrast.admissible
        # numbers stay numbers: a copy to an accelerator would make it wait in every step
        weight = self.mixture.to(s) if isinstance(self.mixture, Tensor) else self.mixture
        n, count = len(s), contrast.negative_counts[:, None]
        mean = s.masked_fill(outside, 0.0).sum(1, keepdim=True) / count
        variance = (s - mean).masked_fill_(outside, 0.0).square_().sum(1, keepdim=True) / count
        s = contrast.similarity if self.weights_gradient else s
        score = weight[1] * s + variance.sqrt() * (weight[0] * unsure + weight[2] * typical)
        scale = per_anchor("beta", self.beta, n) / per_anchor("temperature", self.temperature, n)
        return normalise(score, scale, contrast, self.on_empty)


def _standardise(x: Tensor) -> Tensor:
    """Mean 0 and variance 1, or 0 where nothing varies."""
    return (x - x.mean()) / x.std(correction=0).clamp_min(torch.finfo(x.dtype).eps)


def _needs_views(name: str, contrast: Contrast) -> None:
    if contrast.candidates is None or not (contrast.never_empty and contrast.symmetric):
        raise ValueError(
            f"{name} compares the candidates of a batch: use Contrast.from_views without labels"
        )


@dataclass(frozen=True, eq=False)
class chi2_ball(Weighting):
    r"""The worst law in a $\chi^2$ ball of radius $\eta$ around the uniform one:
    $w_{ij}\propto(s_{ij}-\ell_i)_+$.

    $\tfrac12\mathbb E(\mathrm dw_i/\mathrm d\text{unif}-1)^2\le\eta$ for each anchor; while no
    weight is cut it is $|N(i)|^{-1}\big(1+(s_{ij}-\bar s_i)\sqrt{2\eta/\mathrm{Var}_i}\big)$.
    `eta` $>0$. No gradient flows through the weights; with `objectives.basic` that is robust
    optimisation. Errors: an anchor without negatives. Source: dro-adnce, Theorem 3.5 made exact
    (`hnlib.robust.chi2_ball`).
    """

    eta: float = 0.2
    on_empty: str = "raise"

    def __call__(self, contrast: Contrast) -> Tensor:
        _reject_empty(contrast, self.on_empty)
        s, uniform = contrast.similarity.detach(), contrast.uniform_log_weights
        log_w = robust.chi2_ball(s, eta=self.eta, log_reference=uniform).weights.log()
        empty = (contrast.negative_counts == 0)[:, None]
        return log_w if contrast.never_empty else log_w.masked_fill(empty, -torch.inf)


def _cost_of(s: Tensor) -> Tensor:
    """The cost $1-s$; rounding makes no cost negative or zero, where powers have no slope."""
    return (1 - s).clamp_min(torch.finfo(s.dtype).eps)


def normalise(
    score: Tensor, scale: float | Tensor, contrast: Contrast, on_empty: str = "raise"
) -> Tensor:
    r"""$\log w_{ij}$ of $w_{ij}\propto e^{c_ix_{ij}}$ on $N(i)$, for weightings of one's own.

    `score` $x$ $[n,m]$, finite also outside $N(i)$; `scale` $c$, a number or a column $[n,1]$.
    Gradient flows through both. Errors and `on_empty`: see the module.
    """
    _reject_empty(contrast, on_empty)
    if isinstance(scale, Tensor):
        score, scale = score * scale, 1
    masked = torch.add(contrast.uniform_log_weights, score, alpha=scale)
    if contrast.never_empty or on_empty == "raise":
        return torch.log_softmax(masked, 1)
    # kept from the softmax, whose gradient would be NaN there
    empty = (contrast.negative_counts == 0)[:, None]
    return torch.log_softmax(masked.masked_fill(empty, 0.0), 1).masked_fill(empty, -torch.inf)


def _log_indicator(one: Tensor) -> Tensor:
    """0 for 1 and -inf for 0, in place: a choice by a scattered mask takes ten times as long."""
    return one.reciprocal_().neg_().add_(1)


#: The remedy that sentences about an anchor without negatives end with.
SKIP = 'or on_empty="skip" to leave such anchors out and count them'


def _reject_empty(contrast: Contrast, on_empty: str, remedy: str = SKIP) -> None:
    if on_empty == "raise" and not contrast.never_empty:
        sentence = "anchor {row} has no admissible negative; use a batch with more classes in it, "
        refuse(contrast.negative_counts == 0, sentence + remedy)


def _mixture(name: str, value) -> None:
    plain = isinstance(value, list | tuple)
    shape = (len(value),) if plain else tuple(getattr(value, "shape", ()))
    if shape != (3,):
        raise ValueError(f"{name} has shape {shape}; give three numbers, for u, s and r")
    for share in value if plain else (value,):
        _checks.must(name, share, lambda x: (x >= 0) & (x < math.inf), _THREE)
    if plain and not any(value):
        raise ValueError(f"{name}={value} must {_THREE}")


_THREE = "be three finite numbers >= 0, not all zero"


def _threshold(name: str, value) -> None:
    _checks.single(name, value, "give one number for all anchors")
    positive(name, value)


def _level(name: str, value) -> None:
    if value is not None:
        _checks.single(name, value, "give one number for all anchors")
        _checks.finite(name, value)


def _exponent(name: str, value) -> None:
    _checks.single(name, value, "give one number for all anchors")
    _checks.must(name, value, lambda x: (x >= 1) & (x < math.inf), "be finite and at least 1")


#: What UnReMix may take for a candidate's gradient.
GRADIENTS = ("pseudo-label", "nt-xent")


def _gradient(name: str, value: str) -> None:
    _checks.one_of(name, value, GRADIENTS)


def _cost(name: str, value) -> None:
    if value is not None and not callable(value):
        raise ValueError(f"{name}={_checks.shown(value)} must be a function of a contrast")


def check_on_empty(name: str, value: str) -> None:
    """ValueError unless it is "raise" or "skip"."""
    _checks.one_of(name, value, ("raise", "skip"))


#: What an option may be, by its name: it means the same in every weighting.
RANGES = transport.RANGES | {
    **dict.fromkeys(("temperature", "sigma", "eta", "epsilon"), positive),
    **dict.fromkeys(("beta", "mu"), _checks.finite),
    "tau": _threshold,
    "level": _level,
    "exponent": _exponent,
    "gradient": _gradient,
    "mixture": _mixture,
    "cost": _cost,
    "weights_gradient": _checks.flag,
    "on_empty": check_on_empty,
}
