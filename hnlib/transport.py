"""Entropic optimal transport between finite measures, by Sinkhorn scaling."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from hnlib import _checks
from hnlib._checks import OnFailure, at_least, integer, number, positive

__all__ = ["ConvergenceError", "ConvergenceWarning", "Coupling", "sinkhorn"]

# Iterations on devices where reading the error would stall. In training, tol 1e-4, a coupling of
# two views takes 10 at epsilon = 0.5 and 50 at 0.03; one with a relaxed marginal 4 and 100.
STEPS = 100

Regularisation = Annotated[float, positive]
Relaxation = Annotated[float, partial(number, holds=lambda x: x >= 0, rule="be at least 0")]
Tolerance = Annotated[float, at_least(0)]
Iterations = Annotated[int, partial(integer, least=1)]


class ConvergenceError(ValueError):
    """Sinkhorn did not reach its tolerance; the message has the marginal error that it reached."""


class ConvergenceWarning(UserWarning):
    """Sinkhorn did not reach its tolerance and continues with its best plan."""


@dataclass(frozen=True, eq=False)
class Coupling:
    r"""A plan $P_{ij} = p_i q_j\, e^{(u_i + v_j - c_{ij})/\epsilon}$ with exact rows, $P1 = p$.

    Attributes
    ----------
    log_kernel : Tensor of shape [n, m]
        $-c_{ij}/\epsilon$, −inf off the mask.
    p, q : Tensor of shape [n], [m]
        The marginals.
    u, v : Tensor of shape [n], [m]
        The potentials, in units of the cost.
    epsilon : float
        The regularisation.
    marginal_error, converged : float, bool
        The error $\lVert P^\top 1 - q\rVert_1$ (with a relaxed marginal the last relative change of
        the column scaling up to its size, weighted by $q$), and whether it is within the tolerance.
        On an accelerator both are tensors of no dimension.
    """

    log_kernel: Tensor
    p: Tensor
    q: Tensor
    u: Tensor
    v: Tensor
    epsilon: float
    marginal_error: float | Tensor
    converged: bool | Tensor

    @property
    def log_conditional(self) -> Tensor:
        r"""Return $\log P(j \mid i)$ of shape [n, m], −inf off the mask."""
        rows, columns = self.u / self.epsilon, self.v / self.epsilon + self.q.log()
        return (self.log_kernel + columns).add_(rows[:, None])

    @property
    def log_plan(self) -> Tensor:
        r"""Return $\log P_{ij}$ of shape [n, m], −inf off the mask."""
        return self.log_conditional + self.p.log()[:, None]

    @property
    def plan(self) -> Tensor:
        """Return the coupling itself, of shape [n, m]."""
        return self.log_plan.exp()


# unrolled iterations would give a gradient that depends on when they stop: the plan is a constant
@torch.no_grad()
@_checks.checked
def sinkhorn(
    cost: Tensor,
    p: Tensor | None = None,
    q: Tensor | None = None,
    epsilon: Regularisation = 0.5,
    relaxation: Relaxation = math.inf,
    mask: Tensor | None = None,
    tol: Tolerance = 1e-10,
    max_iterations: Iterations = 1000,
    symmetric: bool = False,
    on_failure: OnFailure = "raise",
) -> Coupling:
    r"""Solve entropic optimal transport with a hard or a relaxed second marginal.

    The plan moves the masses `p` to the masses `q` at the least cost, blurred by an entropy. With
    hard marginals and no mask it equals POT's ``ot.sinkhorn(p, q, cost, epsilon)``.

    $$\min_{P \ge 0,\; P1 = p}\ \langle c, P\rangle + \epsilon\,\mathrm{KL}(P\,\|\,p \otimes q)
      + \lambda\,\mathrm{KL}(P^\top 1\,\|\,q)$$

    Parameters
    ----------
    cost : Tensor of shape [n, m]
        Finite costs, float32 or float64.
    p, q : Tensor of shape [n], [m], optional
        Positive marginals that sum to one; default uniform.
    epsilon : float, default 0.5
        Regularisation $\epsilon > 0$.
    relaxation : float, default infinity
        $\lambda \ge 0$: infinity is entropic OT ($P^\top 1 = q$), 0 the tilt,
        $P(j \mid i) \propto q_j e^{-c_{ij}/\epsilon}$.
    mask : Tensor of shape [n, m], optional
        True where mass may go.
    tol : float, default 1e-10
        Marginal error at which to stop.
    max_iterations : int, default 1000
        Limit of the iterations.
    symmetric : bool, default False
        Promise that both sides are the same points and masses and that cost and mask are symmetric:
        with $\lambda = \infty$ one potential is solved for, by geometric-mean updates.
    on_failure : {"raise", "warn"}, default "raise"
        What happens if `tol` is not reached.

    Returns
    -------
    Coupling
        The plan, without gradient.

    Raises
    ------
    ValueError
        If a shape or an option is wrong, a row (for $\lambda > 0$, a column) has no allowed cell,
        or no coupling of the marginals fits the mask.
    ConvergenceError
        If `tol` is not reached in `max_iterations` and ``on_failure="raise"``.

    Notes
    -----
    On an accelerator nothing waits for the device: there are `STEPS` iterations in the log domain,
    or `max_iterations` if that is less, and those after convergence change nothing. A failure is
    then an error kept for `hnlib._checks.deferred`, or with "warn" `converged` alone.

    References
    ----------
    Cuturi (2013); the relaxed marginal: Chizat et al. (2018); symmetric updates: Knight, Ruiz and
    Uçar (2014). The problem is eq. (5) of [hclot]_ with $\varphi = \mathrm{KL}$ and the form of the
    plan its Lemma 3.

    .. [hclot] Jiang et al., *Hard Negative Sampling via Regularized Optimal Transport for
       Contrastive Representation Learning*, IJCNN 2023.

    Examples
    --------
    Mass stays on the diagonal where regularisation is weak.

    >>> import torch
    >>> from hnlib.transport import sinkhorn
    >>> sinkhorn(1 - torch.eye(3, dtype=torch.float64), epsilon=0.05).plan.diagonal().sum()
    tensor(1.0000, dtype=torch.float64)
    """
    if cost.dtype not in (torch.float32, torch.float64) or cost.ndim != 2 or not cost.numel():
        raise ValueError(
            "cost must be a float32 or float64 matrix, "
            f"got {cost.dtype} of shape {tuple(cost.shape)}"
        )
    if mask is not None:
        _checks.mask("mask", mask, cost)
    p, q = _marginal(p, cost, 0, "p"), _marginal(q, cost, 1, "q")
    if symmetric:
        _checks.raise_if(p != q, "symmetric=True needs the same masses on both sides")
    lowest, highest = torch.aminmax(cost)
    spread = highest - lowest  # NaN or infinite if any cost is
    _checks.raise_if(
        ~spread.isfinite()[None],
        "the cost is not finite; forbid cells with mask=… instead of an infinite cost",
    )
    power = relaxation / (relaxation + epsilon) if math.isfinite(relaxation) else 1.0
    log_kernel = cost / -epsilon
    if mask is not None:
        log_kernel.masked_fill_(~mask, -torch.inf)
        _refuse_empty(mask, "row", 1)
        if power > 0 and not symmetric:
            _refuse_empty(mask, "column", 0)
    waits = _checks.on_cpu(cost)
    forms = [_Log]
    if not waits:
        max_iterations = min(max_iterations, STEPS)
    elif float(spread) / epsilon < (60 if cost.dtype == torch.float32 else 500):
        forms = [_Scaling, _Log]  # beyond this spread the kernel leaves the range of its type
    symmetric = symmetric and power == 1.0
    with _checks.outside_autocast(cost.device):
        for form in forms:
            kernel = form(log_kernel, symmetric)
            log_a, log_b, error = _solve(
                kernel, p.log(), q.log(), power, symmetric, tol, max_iterations, waits
            )
            if not waits or error.isfinite():
                break
        log_a, log_b = log_a - kernel.offsets[0], log_b - kernel.offsets[1]
    converged = error <= tol
    message = (
        f"Sinkhorn reached a marginal error of {{value:.2e}}, not tol={tol:g}, in "
        f"{max_iterations} iterations at epsilon={epsilon:g}; raise max_iterations, tol or epsilon"
    )
    if waits:
        error, converged = error.item(), bool(converged)
        if not converged:
            message = message.format(value=error)
            _fail(p, q, mask if power == 1.0 else None, log_a, message, on_failure)
    elif on_failure == "raise":
        _checks.raise_if((~torch.le(error, tol))[None], message, error[None])
    u, v = epsilon * log_a, epsilon * log_b
    return Coupling(log_kernel, p, q, u, v, epsilon, error, converged)


class _Log:
    r"""The products $\log(K e^x)$ and $\log(K^\top e^y)$ in the log domain."""

    offsets = 0.0, 0.0

    def __init__(self, log_kernel: Tensor, symmetric: bool):
        self.log_kernel = log_kernel

    def rows(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.log_kernel + x, 1)

    def columns(self, y: Tensor) -> Tensor:
        return torch.logsumexp(self.log_kernel + y[:, None], 0)


class _Scaling:
    """The same as matrix–vector products with a kernel whose largest entries are 1.

    The scalings of the true kernel are smaller by `offsets`. They are subtracted at the end, so
    that rounding does not involve them in every step.
    """

    def __init__(self, log_kernel: Tensor, symmetric: bool):
        shift = log_kernel.amax() if symmetric else log_kernel.amax(1, keepdim=True)
        self.kernel = (log_kernel - shift).exp_()
        self.offsets = (shift / 2, shift / 2) if symmetric else (shift.squeeze(1), 0.0)

    def rows(self, x: Tensor) -> Tensor:
        return (self.kernel @ x.exp()).log()

    def columns(self, y: Tensor) -> Tensor:
        return (self.kernel.T @ y.exp()).log()


def _solve(kernel, log_p, log_q, power, symmetric, tol, max_iterations, waits):
    """Return log a, log b and the error of P = p a K b q with exact rows.

    In general a step takes the half step of the columns, b <- (1/K'(pa))^power, power = λ/(λ+ε), 1
    if hard. With a relaxed marginal the size of b, on which the plan does not depend, converges
    slowest of all, by the factor power a step: the error leaves it out, and it is set to its limit
    at the end. If it is `symmetric`, a step takes the geometric mean of b and its half step. The
    error is then that of the symmetric plan until it is within the tolerance, and after that the
    error of the columns of what is returned. An accelerator stops updating, not iterating.
    """
    q, log_b, drift = log_q.exp(), torch.zeros_like(log_q), 0.0

    def size(x: Tensor) -> Tensor:
        return (q * x.expm1().abs()).sum()

    for step in range(max_iterations + 1):
        log_a = -kernel.rows(log_q + log_b)
        if symmetric:
            new, error = (log_b + log_a) / 2, size(log_b - log_a)
            if not waits or error <= tol:
                of_columns = size(log_b + kernel.rows(log_q + log_a))
                error = torch.where(error <= tol, of_columns, error)
        else:
            # at power 0 not 0 · log 0: there a column may have no cell
            new = -power * kernel.columns(log_p + log_a) if power else log_b
            drift = (q * (new - log_b)).sum() if power < 1 else 0.0
            error = size(log_b - new + drift)
        if step == max_iterations or (waits and not tol < error < math.inf):
            break
        log_b = new if waits else torch.where(error > tol, new, log_b)
    if 1 - power > torch.finfo(q.dtype).eps ** 0.5:  # else as good as hard: the size is free
        log_a, log_b = log_a - drift / (1 - power), log_b + drift / (1 - power)
    return log_a, log_b, error


def _marginal(weights, cost, axis, name):
    size = cost.shape[axis]
    if weights is None:
        return torch.full((size,), 1 / size, dtype=cost.dtype, device=cost.device)
    weights = torch.as_tensor(weights).to(cost)
    _checks.shapes(weights.shape == (size,), f"{name} must have shape ({size},)", weights)
    total = weights.sum()
    bad = ~((weights > 0).all() & ((total - 1).abs() <= 1e-5))
    message = f"{name} must be positive and sum to one, got a sum of {{value:.6g}}"
    _checks.raise_if(bad[None], message, total[None])
    return weights


def _refuse_empty(mask, name, axis):
    message = f"{name} {{row}} of the mask allows no cell; no coupling exists"
    _checks.raise_if(~mask.any(axis), message)


def _fail(p, q, mask, log_a, message, on_failure):
    placed = 1.0 if mask is None else _placeable(p, q, mask, log_a)
    if placed < 1 - 1e-5:
        raise ValueError(
            f"no coupling of the two marginals fits the mask: at most {placed:.4f} of the mass "
            "can be placed; allow more cells or use a larger or more balanced batch (no class may "
            "hold more than half of a labelled batch, no graph 1 - 1/m of the nodes of m graphs)"
        )
    if on_failure == "raise":
        raise ConvergenceError(message)
    warnings.warn(message, ConvergenceWarning, stacklevel=4)


def _placeable(p, q, mask, log_a) -> float:
    r"""Bound the mass that fits the mask, $\min_S 1 - p(S) + q(N(S))$ over level sets of a.

    Every set of rows $S$ gives a bound (Hall), and the best one is the maximum flow. Where no
    coupling exists the scaling grows beyond all bounds on the rows that have too much mass.
    """
    order = log_a.argsort(descending=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    first = torch.where(mask, rank[:, None], len(order)).amin(0)  # whose row brings the column in
    reached = torch.zeros_like(p).double().index_add_(0, first, q.double())
    return float((1 - p.double()[order].cumsum(0) + reached.cumsum(0)).amin())
