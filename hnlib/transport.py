"""Entropic optimal transport between finite measures, by Sinkhorn scaling."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor


class ConvergenceError(ValueError):
    """Sinkhorn did not reach its tolerance; the message carries the marginal error it did reach."""


class ConvergenceWarning(UserWarning):
    """The same, where the caller asked to go on with the best plan found."""


@dataclass(frozen=True, eq=False)
class Coupling:
    r"""A plan $P_{ij}=p_iq_j\,e^{(u_i+v_j-c_{ij})/\varepsilon}$.

    The potentials `u` $[n]$ and `v` $[m]$ are in units of the cost. `iterations` spent; `marginal_error`
    $\lVert P^\top1-q\rVert_1$ (with a relaxed marginal: the last relative change of the column scaling but for its
    size, weighted by $q$); `converged`. Rows are exact, $P1=p$.
    """

    log_kernel: Tensor
    p: Tensor
    q: Tensor
    u: Tensor
    v: Tensor
    epsilon: float
    iterations: int
    marginal_error: float
    converged: bool

    @property
    def log_conditional(self) -> Tensor:
        r"""$\log P(j\mid i)$ $[n,m]$: rows sum to one in the exponential, $-\infty$ off the mask."""
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


@torch.no_grad()  # unrolled iterations would give a gradient that depends on when they stop: the plan is a constant
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

    `cost` $[n,m]$; `p` $[n]$ and `q` $[m]$ positive, summing to one (default uniform); `mask` $[n,m]$ is true where
    mass may go; `epsilon` $>0$, `relaxation` $\ge0$. `symmetric=True` promises the same points and masses on both sides
    and a symmetric cost and mask: with $\lambda=\infty$ one potential is solved for, by geometric-mean updates.
    `domain`: "scaling" vectors, "log", or "auto" (scaling while the kernel can neither under- nor overflow).

    ValueError: bad shapes or ranges; a row (for $\lambda>0$, a column) without an allowed cell; a mask no coupling of
    $p$ and $q$ fits. ConvergenceError: `tol` not reached in `max_iterations` (`on_failure="warn"`: a warning, and
    `converged` is false). On an accelerator each iteration waits until its error is known.

    Source: Cuturi (2013); the relaxed marginal: Chizat et al. (2018); symmetric updates: Knight, Ruiz and Uçar (2014).
    The problem is eq. (5) of hcl-ot with $\varphi=\mathrm{KL}$; the form of the plan is Lemma 3 there.
    """
    p, q = _marginal(p, cost, 0, "p"), _marginal(q, cost, 1, "q")
    _check(cost, epsilon, relaxation, mask, tol, max_iterations, domain, on_failure)
    if symmetric and not (p.shape == q.shape and torch.equal(p, q)):
        raise ValueError("symmetric=True needs the same masses on both sides; p and q differ")
    lowest, highest = torch.aminmax(cost)
    spread = float(highest - lowest)  # NaN or infinite if any cost is
    if not math.isfinite(spread):
        raise ValueError("the cost is not finite; forbid cells with mask=… instead of an infinite cost")
    power = relaxation / (relaxation + epsilon) if math.isfinite(relaxation) else 1.0
    log_kernel = cost / -epsilon
    if mask is not None:
        log_kernel.masked_fill_(~mask, -torch.inf)
        _reject_empty(mask, columns=power > 0 and not symmetric)
    symmetric = symmetric and power == 1.0
    if domain == "auto":  # beyond this spread the kernel leaves the range of its floating-point type
        domain = "scaling" if spread / epsilon < (60 if cost.dtype == torch.float32 else 500) else "log"
    problem = log_kernel, p, q, power, tol, max_iterations
    with torch.autocast(cost.device.type, enabled=False):
        log_a, log_b, iterations, error = _SOLVERS[domain, symmetric](*problem)
        if domain == "scaling" and not math.isfinite(error):
            log_a, log_b, iterations, error = _SOLVERS["log", symmetric](*problem)
    converged = error <= tol
    if not converged:
        _fail(p, q, mask, power, iterations, error, tol, epsilon, on_failure)
    return Coupling(log_kernel, p, q, epsilon * log_a, epsilon * log_b, epsilon, iterations, error, converged)


# The four solvers share one signature and return (log a, log b, iterations, error) for P = p a K b q with exact rows,
# a = 1/K(qb). Half a step of the column scaling is b <- (1/K'(pa))^power: power = λ/(λ+ε), 1 for a hard marginal.
# With a relaxed marginal the size of b, on which the plan does not depend, converges slowest of all (by the factor
# power a step): the error leaves it out, and _settle sets it to its limit in the end.


def _scaling(log_kernel, p, q, power, tol, max_iterations):
    shift = log_kernel.amax(1, keepdim=True)
    kernel = (log_kernel - shift).exp_()
    transpose = kernel.T
    b, error = torch.ones_like(q), math.inf
    for iteration in range(max_iterations + 1):
        a = 1 / (kernel @ (q * b))
        new = (1 / (transpose @ (p * a))) ** power
        drift = (q * (new / b).log()).sum() if power < 1 else 0 * q[0]
        error = float((q * (b / new * drift.exp() - 1).abs()).sum())
        if error <= tol or not math.isfinite(error) or iteration == max_iterations:
            break
        b = new
    return *_settle(a.log() - shift.squeeze(1), b.log(), drift, power), iteration, error


def _scaling_symmetric(log_kernel, p, q, power, tol, max_iterations):
    shift = log_kernel.amax()
    kernel = (log_kernel - shift).exp_()
    b, error = torch.ones_like(q), math.inf
    for iteration in range(max_iterations + 1):
        total = kernel @ (q * b)
        error = float((q * (b * total - 1).abs()).sum())
        if error <= tol:  # the symmetric plan is within tol; what is returned has exact rows, so measure its columns
            error = float((q * (b * (kernel @ (q / total)) - 1).abs()).sum())
        if error <= tol or not math.isfinite(error) or iteration == max_iterations:
            break
        b = (b / total).sqrt()
    return -total.log() - shift / 2, b.log() - shift / 2, iteration, error


def _log(log_kernel, p, q, power, tol, max_iterations):
    log_p, log_q = p.log(), q.log()
    log_b, error = torch.zeros_like(q), math.inf
    for iteration in range(max_iterations + 1):
        log_a = -torch.logsumexp(log_kernel + (log_q + log_b), 1)
        new = -power * torch.logsumexp(log_kernel + (log_p + log_a)[:, None], 0)
        drift = (q * (new - log_b)).sum() if power < 1 else 0 * q[0]
        error = float((q * (log_b - new + drift).expm1().abs()).sum())
        if error <= tol or iteration == max_iterations:
            break
        log_b = new
    return *_settle(log_a, log_b, drift, power), iteration, error


def _log_symmetric(log_kernel, p, q, power, tol, max_iterations):
    log_q = q.log()
    log_b, error = torch.zeros_like(q), math.inf
    for iteration in range(max_iterations + 1):
        log_total = torch.logsumexp(log_kernel + (log_q + log_b), 1)
        error = float((q * (log_b + log_total).expm1().abs()).sum())
        if error <= tol:
            columns = torch.logsumexp(log_kernel + (log_q - log_total), 1)
            error = float((q * (log_b + columns).expm1().abs()).sum())
        if error <= tol or iteration == max_iterations:
            break
        log_b = (log_b - log_total) / 2
    return -log_total, log_b, iteration, error


def _settle(log_a, log_b, drift, power):
    if 1 - power < torch.finfo(log_b.dtype).eps ** 0.5:  # as good as a hard marginal, which leaves the size free
        return log_a, log_b
    step = drift / (1 - power)
    return log_a - step, log_b + step


_SOLVERS = {
    ("scaling", False): _scaling,
    ("scaling", True): _scaling_symmetric,
    ("log", False): _log,
    ("log", True): _log_symmetric,
}


def _marginal(weights, cost, axis, name):
    if cost.ndim != 2 or not cost.numel():
        raise ValueError(f"the cost must be a matrix with at least one cell; got shape {tuple(cost.shape)}")
    if cost.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"the cost is {cost.dtype}; convert it to float32 or float64")
    size = cost.shape[axis]
    if weights is None:
        return torch.full((size,), 1 / size, dtype=cost.dtype, device=cost.device)
    weights = torch.as_tensor(weights, dtype=cost.dtype, device=cost.device)
    if weights.shape != (size,):
        raise ValueError(f"{name} has shape {tuple(weights.shape)}; the cost {tuple(cost.shape)} needs ({size},)")
    if not (weights > 0).all() or abs(float(weights.sum()) - 1) > 1e-5:
        total = float(weights.sum())
        raise ValueError(f"{name} must be positive and sum to one (it sums to {total:.6g}); normalise it")
    return weights


def _check(cost, epsilon, relaxation, mask, tol, max_iterations, domain, on_failure):
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon={epsilon} must be positive and finite; at 0 the problem is a linear programme")
    if not relaxation >= 0:
        raise ValueError(f"relaxation={relaxation} must be at least 0 (0: no second marginal, inf: a hard one)")
    if not tol >= 0:
        raise ValueError(f"tol={tol} must be at least 0: it bounds the marginal error")
    if max_iterations < 0:
        raise ValueError(f"max_iterations={max_iterations} must be at least 0")
    if domain not in ("auto", "scaling", "log"):
        raise ValueError(f'domain={domain!r} is unknown; use "auto", "scaling" or "log"')
    if on_failure not in ("raise", "warn"):
        raise ValueError(f'on_failure={on_failure!r} is unknown; use "raise" or "warn"')
    if mask is not None and (mask.shape != cost.shape or mask.dtype != torch.bool):
        raise ValueError(f"the mask must be boolean of shape {tuple(cost.shape)}; got {mask.dtype} {tuple(mask.shape)}")


def _reject_empty(mask, columns):
    for axis, name in ((1, "row"), (0, "column"))[: 1 + columns]:
        empty = ~mask.any(axis)
        if empty.any():
            raise ValueError(f"{name} {int(empty.nonzero()[0])} of the mask allows no cell; no coupling exists")


def _fail(p, q, mask, power, iterations, error, tol, epsilon, on_failure):
    if mask is not None and power == 1.0 and not (on_failure == "warn" and _surely_feasible(p, q, mask, error)):
        placed = _placeable(p, q, mask)
        if placed < 1 - 1e-5:
            raise ValueError(
                f"the mask leaves no coupling of the two marginals: at most {placed:.4f} of the mass can be placed "
                "(Hall's condition fails; with a forbidden diagonal no atom may exceed 1/2, in a labelled batch no "
                "class half of it, among m graphs no graph 1 - 1/m of the nodes): allow more cells, or take a larger "
                "or more balanced batch"
            )
    text = (
        f"Sinkhorn reached a marginal error of {error:.2e} after {iterations} iterations, not tol={tol:g}, at "
        f"epsilon={epsilon:g}; raise max_iterations, tol or epsilon (a mask that forces zeros converges only like 1/k)"
    )
    if on_failure == "raise":
        raise ConvergenceError(text)
    warnings.warn(text, ConvergenceWarning, stacklevel=3)


def _surely_feasible(p, q, mask, error) -> bool:
    """A cheap sufficient condition, so that training that goes on with warnings pays for no flow at each step.

    Between uniform laws an error of a fraction of an atom (n = m), or rows and columns that each allow so many cells
    that the two smallest shares add up to one (Hall), rule infeasibility out.
    """
    n, m = mask.shape
    uniform = bool((p == p[0]).all() and (q == q[0]).all())
    shares = m * int(mask.sum(0).min()) + n * int(mask.sum(1).min())
    return uniform and ((n == m and error < float(p[0]) / 4) or shares >= n * m)


def _placeable(p, q, mask) -> float:
    """The largest share of the mass that fits the mask: a maximum flow from rows to columns, in units of 1e-7."""
    import numpy as np
    from scipy.sparse import coo_array, csr_array
    from scipy.sparse.csgraph import maximum_flow

    unit, (n, m) = 10_000_000, mask.shape
    supply, demand = (np.rint(unit * w.double().cpu().numpy()).astype(np.int32) for w in (p, q))
    rows, columns = mask.cpu().numpy().nonzero()
    tail = np.concatenate([np.zeros(n, int), 1 + rows, 1 + n + np.arange(m)])
    head = np.concatenate([1 + np.arange(n), 1 + n + columns, np.full(m, n + m + 1)])
    room = np.concatenate([supply, np.full(len(rows), unit, np.int32), demand]).astype(np.int32)
    graph = csr_array(coo_array((room, (tail, head)), shape=(n + m + 2, n + m + 2)))
    return maximum_flow(graph, 0, n + m + 1).flow_value / min(supply.sum(), demand.sum())
