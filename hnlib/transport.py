"""Entropic optimal transport between finite measures, by Sinkhorn scaling."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hnlib import _checks

# Iterations where none may ask for its error. In training, tol 1e-4, a coupling of two views takes
# 10 at epsilon = 0.5 and 50 at 0.03; one with a relaxed marginal 4 and 100.
STEPS = 100


class ConvergenceError(ValueError):
    """Sinkhorn did not reach its tolerance; the message carries the marginal error it did reach."""


class ConvergenceWarning(UserWarning):
    """The same, where the caller asked to go on with the best plan found."""


@dataclass(frozen=True, eq=False)
class Coupling:
    r"""A plan $P_{ij}=p_iq_j\,e^{(u_i+v_j-c_{ij})/\varepsilon}$.

    The potentials `u` $[n]$ and `v` $[m]$ are in units of the cost. `iterations` spent;
    `marginal_error` $\lVert P^\top1-q\rVert_1$ (with a relaxed marginal: the last relative change
    of the column scaling but for its size, weighted by $q$); `converged`: numbers on the CPU,
    tensors of no dimension on an accelerator. Rows are exact, $P1=p$.
    """

    log_kernel: Tensor
    p: Tensor
    q: Tensor
    u: Tensor
    v: Tensor
    epsilon: float
    iterations: int | Tensor
    marginal_error: float | Tensor
    converged: bool | Tensor

    @property
    def log_conditional(self) -> Tensor:
        r"""$\log P(j\mid i)$ $[n,m]$: rows sum to one in the exponential, $-\infty$ off the
        mask."""
        rows, columns = self.u / self.epsilon, self.v / self.epsilon + self.q.log()
        return (self.log_kernel + columns).add_(rows[:, None])

    @property
    def log_plan(self) -> Tensor:
        r"""$\log P_{ij}$ $[n,m]$, $-\infty$ off the mask."""
        return self.log_conditional + self.p.log()[:, None]

    @property
    def plan(self) -> Tensor:
        """The coupling itself $[n,m]$."""
        return self.log_plan.exp()


# unrolled iterations would give a gradient that depends on when they stop: the plan is a constant
@torch.no_grad()
def sinkhorn(
    cost: Tensor,
    p: Tensor | None = None,
    q: Tensor | None = None,
    epsilon: float = 0.5,
    relaxation: float = math.inf,
    mask: Tensor | None = None,
    tol: float = 1e-10,
    max_iterations: int = 1000,
    domain: str = "auto",
    symmetric: bool = False,
    on_failure: str = "raise",
) -> Coupling:
    r"""Entropic optimal transport with a hard or a relaxed second marginal.

    $$\min_{P\ge0,\;P1=p}\ \langle c,P\rangle+\varepsilon\,\mathrm{KL}(P\,\|\,p\otimes q)
      +\lambda\,\mathrm{KL}(P^\top1\,\|\,q)$$

    with $\lambda$ = `relaxation`: $\infty$ is entropic OT ($P^\top1=q$), $0$ is the tilt,
    $P(j\mid i)\propto q_je^{-c_{ij}/\varepsilon}$.

    `cost` $[n,m]$; `p` $[n]$ and `q` $[m]$ positive, summing to one (default uniform); `mask`
    $[n,m]$ is true where mass may go; `epsilon` $>0$, `relaxation` $\ge0$. `symmetric=True`
    promises the same points and masses on both sides and a symmetric cost and mask: with
    $\lambda=\infty$ one potential is solved for, by geometric-mean updates. `domain`: "scaling"
    vectors, "log", or "auto" (scaling while the kernel can neither under- nor overflow).

    ValueError: bad shapes or ranges; a row (for $\lambda>0$, a column) without an allowed cell; a
    mask no coupling of $p$ and $q$ fits. ConvergenceError: `tol` not reached in `max_iterations`
    (`on_failure="warn"`: a warning, and `converged` is false).

    On an accelerator nothing waits for the device: `STEPS` iterations in the log domain, or
    `max_iterations` if that is less, of which those after convergence change nothing. A failure is
    then an error kept for `hnlib._checks.deferred`, or with "warn" `converged` alone. For
    torch.compile the iterations are one operation, which is not traced.

    Source: Cuturi (2013); the relaxed marginal: Chizat et al. (2018); symmetric updates: Knight,
    Ruiz and Uçar (2014). The problem is eq. (5) of hcl-ot with $\varphi=\mathrm{KL}$; the form of
    the plan is Lemma 3 there.
    """
    rule = dict(epsilon=epsilon, relaxation=relaxation, tol=tol, max_iterations=max_iterations)
    rule |= dict(domain=domain, symmetric=symmetric, on_failure=on_failure)
    p, q = _marginal(p, cost, 0, "p"), _marginal(q, cost, 1, "q")
    _check(cost, mask, rule)
    if symmetric and p.shape != q.shape:
        raise ValueError(_BROKEN)
    couple = _traced if torch.compiler.is_compiling() else _couple
    log_kernel, log_a, log_b, iterations, error = couple(cost, p, q, mask, **rule)
    if _checks.readable(cost):
        iterations, error = iterations.item(), error.item()
    u, v = epsilon * log_a, epsilon * log_b
    return Coupling(log_kernel, p, q, u, v, epsilon, iterations, error, error <= tol)


_BROKEN = "symmetric=True needs the same masses on both sides; p and q differ"


def _couple(
    cost, p, q, mask, epsilon, relaxation, tol, max_iterations, domain, symmetric, on_failure
):
    """The logarithms of the kernel and of its two scalings, the iterations, the error."""
    if symmetric:
        _checks.refuse(p != q, _BROKEN)
    lowest, highest = torch.aminmax(cost)
    spread = highest - lowest  # NaN or infinite if any cost is
    _checks.refuse(
        ~spread.isfinite()[None],
        "the cost is not finite; forbid cells with mask=… instead of an infinite cost",
    )
    power = relaxation / (relaxation + epsilon) if math.isfinite(relaxation) else 1.0
    log_kernel = cost / -epsilon
    if mask is not None:
        log_kernel.masked_fill_(~mask, -torch.inf)
        _reject_empty(mask, columns=power > 0 and not symmetric)
    symmetric, waits = symmetric and power == 1.0, _checks.readable(cost)
    if not waits:
        domain, max_iterations = "log", min(max_iterations, STEPS)
    elif domain == "auto":  # beyond this spread the kernel leaves the range of its type
        limit = 60 if cost.dtype == torch.float32 else 500
        domain = "scaling" if float(spread) / epsilon < limit else "log"
    solve = _symmetric if symmetric else _general
    problem = p.log(), q.log(), power, tol, max_iterations, waits
    with _checks.outside_autocast(cost.device):
        for form in (domain, "log") if domain == "scaling" else (domain,):
            rows, columns, of_a, of_b = _products(log_kernel, form, symmetric)
            log_a, log_b, iterations, error = solve(rows, columns, *problem)
            if not waits or error.isfinite():
                break
        log_a, log_b = log_a - of_a, log_b - of_b
    text = (
        f"Sinkhorn reached a marginal error of {{value:.2e}} after "
        f"{iterations if waits else max_iterations} iterations, not tol={tol:g}, at "
        f"epsilon={epsilon:g}; raise max_iterations, tol or epsilon (a mask that forces zeros "
        "converges only like 1/k)"
    )
    if waits and not error <= tol:
        _fail(p, q, mask if power == 1.0 else None, log_a, text.format(value=error), on_failure)
    elif not waits and on_failure == "raise":
        _checks.refuse(~(error <= tol)[None], text, error[None])
    return [log_kernel, log_a, log_b, iterations, error]


_traced = torch.library.custom_op(
    "hnlib::couple",
    _couple,
    mutates_args=(),
    schema="(Tensor cost, Tensor p, Tensor q, Tensor? mask, float epsilon, float relaxation, "
    "float tol, int max_iterations, str domain, bool symmetric, str on_failure) -> Tensor[]",
)


@_traced.register_fake
def _(cost, p, q, *_):
    iterations = torch.empty((), dtype=torch.long, device=p.device)
    return [*map(torch.empty_like, (cost, p, q)), iterations, p.new_empty(())]


def _products(log_kernel, domain, symmetric):
    """x -> log(K e^x) and y -> log(K' e^y) for the kernel as it is or brought to size, and by what
    the scalings of the former are then too large: rounding must not see a size in every step."""
    if domain == "log":
        return (
            lambda x: torch.logsumexp(log_kernel + x, 1),
            lambda y: torch.logsumexp(log_kernel + y[:, None], 0),
            0.0,
            0.0,
        )
    shift = log_kernel.amax() if symmetric else log_kernel.amax(1)
    kernel = (log_kernel - (shift if symmetric else shift[:, None])).exp_()
    shares = (shift / 2, shift / 2) if symmetric else (shift, 0.0)
    return lambda x: (kernel @ x.exp()).log(), lambda y: (kernel.T @ y.exp()).log(), *shares


# Both solvers return (log a, log b, iterations, error) for P = p a K b q with exact rows, a =
# 1/K(qb). An update takes log b to (the next one, the error of this one, what else belongs to it).


def _general(rows, columns, log_p, log_q, power, *rule):
    """Half a step of the columns: b <- (1/K'(pa))^power, power = λ/(λ+ε), 1 for a hard marginal.

    With a relaxed marginal the size of b, on which the plan does not depend, converges slowest of
    all, by the factor power a step: the error leaves it out, and it is set to its limit in the end.
    """
    q = log_q.exp()

    def update(log_b):
        log_a = -rows(log_q + log_b)
        new = -power * columns(log_p + log_a)
        drift = (q * (new - log_b)).sum() if power < 1 else 0 * q[0]
        return new, (q * (log_b - new + drift).expm1().abs()).sum(), (log_a, drift)

    (log_a, drift), log_b, iterations, error = _iterate(update, torch.zeros_like(q), *rule)
    if (
        1 - power > torch.finfo(q.dtype).eps ** 0.5
    ):  # else as good as hard, which leaves the size free
        log_a, log_b = log_a - drift / (1 - power), log_b + drift / (1 - power)
    return log_a, log_b, iterations, error


def _symmetric(rows, columns, log_p, log_q, power, tol, max_iterations, waits):
    """The geometric mean of b and its half step; the error is that of the symmetric plan, and in
    the end that of the columns of what is returned, whose rows are exact."""
    q = log_q.exp()

    def update(log_b):
        log_total = rows(log_q + log_b)
        error = (q * (log_b + log_total).expm1().abs()).sum()
        if not waits or error <= tol:
            of_columns = (q * (log_b + rows(log_q - log_total)).expm1().abs()).sum()
            error = torch.where(error <= tol, of_columns, error)
        return (log_b - log_total) / 2, error, log_total

    log_total, *rest = _iterate(update, torch.zeros_like(q), tol, max_iterations, waits)
    return -log_total, *rest


def _iterate(update, log_b, tol, max_iterations, waits):
    """Update until the error is within tol; where none may ask for it, nothing changes then."""
    if waits:
        for iteration in range(max_iterations + 1):
            new, error, rest = update(log_b)
            if not tol < error < math.inf or iteration == max_iterations:
                return rest, log_b, torch.tensor(iteration), error
            log_b = new
    iterations = torch.zeros((), dtype=torch.long, device=log_b.device)
    for _ in range(max_iterations):
        new, error, _ = update(log_b)
        going = error > tol
        log_b, iterations = torch.where(going, new, log_b), iterations + going
    _, error, rest = update(log_b)
    return rest, log_b, iterations, error


def _marginal(weights, cost, axis, name):
    kind = getattr(cost, "dtype", type(cost).__name__)
    if kind not in (torch.float32, torch.float64):
        raise ValueError(f"the cost is {kind}; convert it to a tensor of float32 or float64")
    if cost.ndim != 2 or not cost.numel():
        raise ValueError(
            f"the cost must be a matrix with at least one cell; got shape {tuple(cost.shape)}"
        )
    size = cost.shape[axis]
    if weights is None:
        return torch.full((size,), 1 / size, dtype=cost.dtype, device=cost.device)
    weights = _checks.as_tensor(name, weights).to(cost)
    if weights.shape != (size,):
        raise ValueError(
            f"{name} has shape {tuple(weights.shape)}; the cost {tuple(cost.shape)} needs ({size},)"
        )
    total = weights.sum()
    bad = ~((weights > 0).all() & ((total - 1).abs() <= 1e-5))
    sentence = "must be positive and sum to one (it sums to {value:.6g}); normalise it"
    _checks.refuse(bad[None], f"{name} {sentence}", total[None])
    return weights


_LINEAR = "be positive and finite; at 0 the problem is a linear programme"
_RELAXED = "be at least 0 (0: no second marginal, the tilt; inf: a hard one, entropic OT)"
_BOUND = "be at least 0 and finite: it bounds the marginal error"
#: What an option of `sinkhorn` may be, by its name.
RANGES = {
    "epsilon": partial(
        _checks.number, fits=lambda x: (x >= _checks.SMALL) & (x < math.inf), what=_LINEAR
    ),
    "relaxation": partial(_checks.number, fits=lambda x: x >= 0, what=_RELAXED),
    "tol": partial(_checks.number, fits=lambda x: (x >= 0) & (x < math.inf), what=_BOUND),
    "max_iterations": partial(_checks.whole, least=0),
    "domain": partial(_checks.one_of, known=("auto", "scaling", "log")),
    "symmetric": _checks.flag,
    "on_failure": partial(_checks.one_of, known=("raise", "warn")),
}


def _check(cost, mask, options: dict) -> None:
    for name, value in options.items():
        RANGES[name](name, value)
    if mask is not None:
        _checks.mask("mask", mask, cost)


def _reject_empty(mask, columns):
    for axis, name in ((1, "row"), (0, "column"))[: 1 + columns]:
        sentence = f"{name} {{row}} of the mask allows no cell; no coupling exists"
        _checks.refuse(~mask.any(axis), sentence)


def _fail(p, q, mask, log_a, text, on_failure):
    placed = 1.0 if mask is None else _placeable(p, q, mask, log_a)
    if placed < 1 - 1e-5:
        raise ValueError(
            f"the mask leaves no coupling of the two marginals: at most {placed:.4f} of the mass "
            "can be placed (Hall's condition fails; with a forbidden diagonal no atom may exceed "
            "1/2, in a labelled batch no class half of it, among m graphs no graph 1 - 1/m of the "
            "nodes): allow more cells, or take a larger or more balanced batch"
        )
    if on_failure == "raise":
        raise ConvergenceError(text)
    warnings.warn(text, ConvergenceWarning, stacklevel=5)


def _placeable(p, q, mask, log_a) -> float:
    r"""A bound on the mass that fits the mask, $\min_S1-p(S)+q(N(S))$ over the rows whose scaling
    exceeds a threshold.

    Every set of rows $S$ gives a bound (Hall), the best one the maximum flow. Where no coupling
    exists the scaling grows beyond all bounds on the rows that have too much mass.
    """
    order = log_a.argsort(descending=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    first = torch.where(mask, rank[:, None], len(order)).amin(0)  # whose row brings the column in
    reached = torch.zeros_like(p).double().index_add_(0, first, q.double())
    return float((1 - p.double()[order].cumsum(0) + reached.cumsum(0)).amin())
