r"""Any loss on the dial: `profile_loss(loss, z1, z2)` measures how a loss pushes and pulls.

A loss that is a function of the similarities of its points moves point $a$ by
$g_a = \sum_b F_{ab}(z_b - s_{ab}z_a)$, with a force $F_{ab} = \partial\ell/\partial s_{ab}$ for
every pair. If the points are linearly independent, the gradient determines the forces, so the loss
may be a black box. At most d/2 points are used: what is then left of the gradient, the residual, is
due to something else (a queue of other keys, class weights, statistics of the batch).
"""

from __future__ import annotations

import copy
import math
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hnlib import _checks
from hnlib._checks import shapes
from hnlib.contrast import unit_rows

FOREIGN = 1e-3  # residual above which a loss depends on more than the similarities of its points
ONE_SIDED = 1e-3  # asymmetry above which forces are those on a row's point
CLOSE = 5.0  # degrees within which a gradient is called that of a temperature
EXACT = 1e-3  # root mean square of log push around its fit, up to which it has one temperature
MOST = 64  # pairs


@dataclass(frozen=True)
class Nearest:
    r"""The gradient of a family that has the smallest angle with the loss's.

    An anchor of the family pulls its positive by $(1-p)^k$ and pushes its negatives by $b$ times
    as much, shared like a softmax at temperature $t$.

    Parameters
    ----------
    angle : float
        Degrees.
    temperature, loudness, balance : float
        $t$, $k$ (1 for InfoNCE, 0 for DCL) and $b$.
    """

    angle: float
    temperature: float
    loudness: float = 1.0
    balance: float = 1.0


@dataclass(frozen=True, eq=False)
class Profile:
    r"""What `profile_loss` found; `str()` is one sentence.

    Parameters
    ----------
    points : int
        How many embeddings were used.
    scale_free : bool
        Whether the loss ignores the lengths of the embeddings.
    residual : float
        Share of the gradient's norm that no forces between the points explain. If it shows that
        there is something else, all below is None or empty.
    asymmetry : float, optional
        $\max_{ab}|F_{ab}-F_{ba}|/\max|F|$; above 0 a gradient was stopped.
    forces : Tensor of shape [points, points], optional
        $F_{ab}$ as felt by point a, positive for a push.
    sharpness, misfit, r2 : float, optional
        $\gamma$ of $\log F_{ab}=\gamma s_{ab}+\log(u_a+u_b)$ (of $\gamma s_{ab}+\log u_a$ where a
        gradient is stopped), the root mean square of the rest, and the share of the variance of
        $\log F_{ab}$ that is explained. None if too few pairs are pushed; $R^2$ also if all alike.
    local : tuple of three pairs
        Similarity and slope in the lower, middle and upper third of the pairs.
    balance : float, optional
        All push over all pull: 1 for a loss of differences of similarities.
    silent, attracted : float, optional
        Shares of the negatives whose force is zero (not small), and negative.
    lead, loudness : Tensor of shape [pairs], optional
        Of each positive pair $s^+-t\log\sum_je^{s_j/t}$, averaged over its anchors, and its pull
        times $t$ and the number of pairs, which is $1-p$ for InfoNCE; $t$ is that of `nearest[1]`.
    nearest : tuple of three Nearest
        Of (temperature), (temperature, loudness), (temperature, loudness, balance).
    """

    points: int
    scale_free: bool
    residual: float
    asymmetry: float | None = None
    forces: Tensor | None = None
    sharpness: float | None = None
    misfit: float | None = None
    r2: float | None = None
    local: tuple[tuple[float, float], ...] = ()
    balance: float | None = None
    silent: float | None = None
    attracted: float | None = None
    lead: Tensor | None = None
    loudness: Tensor | None = None
    nearest: tuple[Nearest, ...] = ()

    @property
    def verdict(self) -> str:
        """The last words of the sentence."""
        if self.residual > FOREIGN:
            return "not a function of these points' similarities alone"
        if self.sharpness is None:
            return "too few pairs are pushed to tell"
        extras = ("", " with a loudness of its own", " with a loudness and a balance of its own")
        near = [x for found, x in zip(self.nearest, extras) if found.angle < CLOSE]
        if self.misfit <= EXACT:
            if self.r2 is None:
                return "a constant push, sharp nowhere"
            return f"a temperature{near[0]}, on these embeddings" if near else "no temperature"
        if near:
            return f"not one temperature, though near one{near[0]} on these embeddings"
        return "no temperature"

    def __str__(self) -> str:
        if self.residual > FOREIGN:
            return (
                f"residual {self.residual:.2g}: {self.verdict} "
                "(other keys, class weights, batch statistics?)"
            )
        one, two, three = self.nearest
        parts = ["γ unknown" if self.sharpness is None else f"γ = {self.sharpness:.2f}"]
        if self.sharpness is not None and self.misfit > EXACT:
            slopes = [slope for _, slope in self.local]
            parts[0] += f" ({min(slopes):.3g} to {max(slopes):.3g} by similarity)"
        parts.append(f"{one.angle:.1f}° from SimCLR at t = {one.temperature:.3g}")
        if one.angle < 0.1 or abs(two.loudness - 1) < 0.15:
            parts.append("as loud as InfoNCE")
        elif two.angle < one.angle - 0.1:
            parts.append(f"{two.angle:.1f}° with loudness (1 − p)^{two.loudness:.2g}")
        if abs(self.balance - 1) > 0.01:
            parts.append(f"push/pull {self.balance:.2g} ({three.angle:.1f}° with it)")
        for share, word in ((self.silent, "silent"), (self.attracted, "attracted")):
            if share > 0:
                parts.append(f"{100 * share:.3g} % of the negatives {word}")
        if self.asymmetry > ONE_SIDED:
            parts.append("a gradient is stopped")
        return f"{', '.join(parts)}: {self.verdict}"

    def latex(self, name: str = "loss") -> str:
        """Return a row of a table: name, γ, R², balance and the three angles."""
        numbers = [(self.sharpness, ".2f"), (self.r2, ".4f"), (self.balance, ".2f")]
        numbers += [(found.angle, ".1f") for found in self.nearest or [Nearest(math.nan, 1.0)] * 3]
        cells = ["--" if x is None or math.isnan(x) else format(x, form) for x, form in numbers]
        return f"{name} & {' & '.join(cells)} \\\\"

    def plot(self, ax) -> None:
        """Draw loudness over lead on axes of matplotlib."""
        if self.lead is None:
            raise ValueError(f"nothing to draw: {self}")
        ax.plot(self.lead, self.loudness, ".")
        ax.set(xlabel="lead of the positive", ylabel="loudness")


def profile_loss(loss: Callable, a: Tensor, b: Tensor) -> Profile:
    r"""Measure sharpness, loudness and balance of a loss that may be a black box.

    Parameters
    ----------
    loss : callable
        ``loss(z1, z2)``, ``loss(queries, keys)`` or ``loss(z, labels)``; returns a scalar. Of a
        module a copy in float64 is called, so that its state stays as it is.
    a : Tensor of shape [n, d]
        Embeddings. Rows are normalised; the first d/4 pairs (or d/2 rows with labels), and at most
        64 (128), are used.
    b : Tensor of shape [m, d], m ≥ n, or integers of shape [n]
        The other views, or the keys, of which row i answers row i of `a`; or labels.

    Returns
    -------
    Profile
        The measurement.

    Raises
    ------
    ValueError
        If shapes disagree, the points are too few, too many or not linearly independent, none has
        a positive or a negative, or the loss cannot be called with them or has no finite gradient.

    Examples
    --------
    >>> from hnlib import methods
    >>> from hnlib.profile import profile_loss, sample
    >>> print(profile_loss(methods.build("simclr", temperature=0.5), *sample()))
    γ = 2.00, 0.0° from SimCLR at t = 0.5, as loud as InfoNCE: a temperature, on these embeddings
    """
    if not callable(loss):
        raise ValueError(f"loss must be callable, got {type(loss).__name__}")
    z, second, positives, parts = _points(a, b)
    gradient = _gradient(loss, z, second)
    again = _gradient(loss, z, second)
    if float((gradient - again).abs().max()) > 1e-6 * float(gradient.abs().max()):
        raise ValueError("a second call gives another gradient: the loss is random or has a state")
    radial = (gradient * z).sum(1, keepdim=True)
    tangent = gradient - radial * z
    norm = float(torch.linalg.vector_norm(tangent))
    if not norm > 1e-12 * float(torch.linalg.vector_norm(gradient)):
        raise ValueError("the loss has no gradient at these embeddings")
    scale_free = float(radial.abs().max()) < 1e-6 * norm
    basis, triangle = torch.linalg.qr(z.T)  # coordinates in the span of the points
    spread = torch.linalg.svdvals(triangle)
    if spread[-1] < 1e-6 * spread[0]:
        raise ValueError("the points must be linearly independent; give no row twice")
    residual = float(torch.linalg.vector_norm(tangent - tangent @ basis @ basis.T)) / norm
    if residual > FOREIGN:
        return Profile(len(z), scale_free, residual)
    forces = _forces(loss, triangle.T, second, z.shape[1])
    z, tangent = triangle.T, tangent @ basis
    asymmetry = float((forces - forces.T).abs().max() / forces.abs().max())

    one_sided = asymmetry > ONE_SIDED
    if not one_sided:  # where both ends do not agree, what is there is what rounding left of zero
        apart = (forces - forces.T).abs() > 1e-4 * torch.maximum(forces.abs(), forces.T.abs())
        forces = ((forces + forces.T) / 2).masked_fill(apart, 0.0)
    active = (forces != 0).any(1) | (not one_sided)
    negatives = ~positives & ~torch.eye(len(z), dtype=torch.bool) & active[:, None]
    across = parts[:, None] != parts
    if across.any() and not forces[~across].any():
        negatives &= across
    positives = positives & active[:, None]
    if not (positives.any() and negatives.any()):
        raise ValueError("some embedding must have a positive and a negative; check the labels")

    s = z @ z.T
    pushed = negatives & (forces > 0)
    sharpness, misfit, r2, local = _sharpness(s, forces, pushed, one_sided)
    roles = [(positives, negatives)]
    if not one_sided and across.any() and not (negatives & ~across).any():  # or one direction
        roles += [[mask & (parts == x)[:, None] for mask in roles[0]] for x in (0, 1)]
    nearest = _nearest(z, tangent, roles, one_sided)
    t = nearest[1].temperature
    lead = s - t * (s / t).masked_fill(~negatives, -torch.inf).logsumexp(1, keepdim=True)
    pairs = positives if one_sided else torch.triu(positives)
    lead = lead if one_sided else (lead + lead.T) / 2
    pull = -forces[pairs]
    total = float(pull.sum())
    push = float(forces[negatives if one_sided else torch.triu(negatives)].sum())
    share = float(negatives.sum())
    return Profile(
        len(z),
        scale_free,
        residual,
        asymmetry,
        forces,
        sharpness,
        misfit,
        r2,
        local,
        push / total if total else math.inf,
        float((negatives & (forces == 0)).sum()) / share,
        float((negatives & (forces < 0)).sum()) / share,
        lead[pairs],
        pull * t * len(pull),
        nearest,
    )


def sample(pairs: int = 24, dimension: int = 128, noise: float = 0.6, seed: int = 0) -> tuple:
    """Return two views of points around four centres, noisier for an earlier stage of training."""
    generator = torch.Generator().manual_seed(seed)
    centres, base, *shifts = (
        unit_rows(torch.randn(n, dimension, generator=generator, dtype=torch.float64), "drawn")[0]
        for n in (4, pairs, pairs, pairs)
    )
    base = unit_rows(0.5 * centres[torch.arange(pairs) % 4] + base, "drawn")[0]
    return tuple(unit_rows(base + noise * shift, "drawn")[0] for shift in shifts)


def from_file(target: str) -> Callable:
    """Run ``FILE.py:NAME`` (NAME is ``loss`` if left out) and return that function or module.

    A class is called without arguments.

    Raises
    ------
    ValueError
        If the file raises an error, or the name is not of something that can be called.
    OSError
        If the file cannot be read.
    """
    path, _, name = (target, "", "loss") if target.endswith(".py") else target.rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(f"name a loss as FILE.py or FILE.py:NAME, got {target}")
    Path(path).read_bytes()  # OSError
    sys.path.insert(0, str(Path(path).parent))  # as `python FILE.py` finds its neighbours
    try:
        names = runpy.run_path(path)
        found = names[name]() if isinstance(names.get(name), type) else names.get(name)
    except Exception as error:
        *_, at = traceback.extract_tb(error.__traceback__)
        at = error if isinstance(error, SyntaxError) else at
        message = f"{at.filename}, line {at.lineno}: {type(error).__name__}: {error}"
        raise ValueError(message) from error
    if not callable(found):
        made = [k for k, x in names.items() if callable(x) and not k.startswith("_")]
        raise ValueError(f"{path} has no loss {name!r}; it has {', '.join(made) or 'none'}")
    return found


def _points(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return unit points, the second argument, the mask of positives, and the side of each."""
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a Tensor, got {type(x).__name__}")
    shapes(a.ndim == 2, "embeddings must be [n, d]", a)
    d = a.shape[1]
    a = a.detach().double().cpu()
    if b.ndim == 1:
        n = min(d // 2, 2 * MOST, len(a))
        labels = _checks.labels(b.detach().cpu(), len(a), "embeddings")[:n]
        z, second, parts = unit_rows(a[:n], "given")[0], labels, torch.zeros(n)
        positives = (labels[:, None] == labels).fill_diagonal_(False)
    else:
        b = b.detach().double().cpu()
        fits = b.ndim == 2 and b.shape[1] == d and len(a) <= len(b)
        shapes(fits, "embeddings must be [n, d] and [m, d], m >= n, or labels [n]", a, b)
        n = m = min(d // 4, MOST, len(a))
        if len(a) < len(b):
            n, m = len(a), len(b)
            if n + m > min(d // 2, 2 * MOST):
                most = min(d // 2, 2 * MOST)
                raise ValueError(f"give at most {most} queries and keys, got {n} and {m}")
        z = torch.cat([unit_rows(a[:n], "of a")[0], unit_rows(b[:m], "of b")[0]])
        parts = torch.cat([torch.zeros(n), torch.ones(m)])
        second, n = z[n:], n + m
        answers = torch.arange(n - m)
        positives = torch.zeros(n, n, dtype=torch.bool)
        positives[answers, answers + n - m] = positives[answers + n - m, answers] = True
    if n < 8:
        raise ValueError(f"need at least 8 points in at least 16 dimensions, got {n} of {d}")
    return z, second, positives, parts


@torch.enable_grad()
def _gradient(loss: Callable, z: Tensor, second: Tensor) -> Tensor:
    """Return the gradient at the points."""
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).cpu().double()
    if second.is_floating_point():
        leaves = [x.clone().requires_grad_() for x in (z[: -len(second)], z[-len(second) :])]
        called, arguments = "loss(z1, z2)", leaves
    else:
        leaves = [z.clone().requires_grad_()]
        called, arguments = "loss(z, labels)", [*leaves, second]
    try:
        value = loss(*arguments)
    except Exception as error:
        raise ValueError(f"{called} of float64 embeddings raised {error!r}") from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss must return a scalar tensor, got {shown}")
    if not value.requires_grad:
        raise ValueError("the loss has no gradient at these embeddings")
    found = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    gradient = torch.cat([torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found)])
    if not gradient.isfinite().all():
        raise ValueError("the gradient of the loss is not finite at these embeddings")
    return gradient


def _forces(loss: Callable, z: Tensor, second: Tensor, d: int) -> Tensor:
    r"""Return $F_{ab}$ as felt by a, small ones as precisely as large ones.

    In coordinates of which only point b has the last, that of the gradient at a is $F_{ab}$ times
    it: no larger force is there to be subtracted. So one gradient for each point.
    """
    n, labelled = len(z), not second.is_floating_point()
    forces = torch.zeros_like(z)
    for b in range(n):
        order = torch.tensor([*range(b), *range(b + 1, n), b])
        turned = z.new_zeros(n, d)
        turned[order, :n] = torch.linalg.qr(z[order].T).R.T
        gradient = _gradient(loss, turned, second if labelled else turned[-len(second) :])
        forces[:, b] = gradient[:, n - 1] / turned[b, n - 1]
    return forces.fill_diagonal_(0.0)


def _sharpness(s: Tensor, forces: Tensor, pushed: Tensor, one_sided: bool):
    r"""Fit $\log F_{ab}=\gamma s_{ab}+\log(u_a+u_b)$; return γ, misfit, R² and local slopes."""
    a, b = (pushed if one_sided else torch.triu(pushed)).nonzero().T
    x, y, n = s[a, b], forces[a, b].log(), len(s)
    if len(x) < max(8, 3 * len(torch.cat([a, b]).unique())) or x.max() - x.min() < 1e-6:
        return None, None, None, ()
    scatter = float((y - y.mean()).square().sum())
    if scatter < 1e-12 * len(y):
        return 0.0, 0.0, None, ()
    sums = torch.zeros(n, 3, dtype=x.dtype)  # of each row: how many, similarities, logarithms
    ends = (a,) if one_sided else (a, b)
    for end in ends:
        sums.index_add_(0, end, torch.stack([torch.ones_like(x), x, y], 1))
    means = sums[:, 1:] / sums[:, :1].clamp_min(1)
    at, off = (torch.cat([v - means[end, k] for end in ends]) for k, v in enumerate((x, y)))
    gamma = float((at * off).sum() / at.square().sum())
    error = gamma * at - off
    if not one_sided:
        gamma, error = _two_ended(x, y, a, b, gamma, (means[:, 1] - gamma * means[:, 0]).exp() / 2)
    local = []
    for third in x.argsort().chunk(3):
        at, off = x[third] - x[third].mean(), error[third]
        slope = gamma - float((at * off).sum() / at.square().sum())
        local.append((float(x[third].mean()), slope))
    left = float(error.square().sum())
    return gamma, math.sqrt(left / len(x)), 1 - left / scatter, tuple(local)


def _two_ended(x: Tensor, y: Tensor, a: Tensor, b: Tensor, gamma: float, u: Tensor):
    r"""Fit $y=\gamma x+\log(u_a+u_b)$ by Levenberg and Marquardt; return γ and what is left.

    Not in $\log u$, as some u are zero: of the keys, if only queries are anchors.
    """
    rows, damping = torch.arange(len(x)), 1e-3
    error = gamma * x + (u[a] + u[b]).log() - y
    for _ in range(100):
        jacobian = x.new_zeros(len(x), len(u) + 1)
        jacobian[rows, a] = jacobian[rows, b] = 1 / (u[a] + u[b])
        jacobian[:, -1] = x
        normal, slope = jacobian.T @ jacobian, jacobian.T @ error
        scale = normal.diagonal().clamp_min(1e-300).rsqrt()  # the u are of very different sizes
        normal = scale[:, None] * normal * scale + damping * torch.eye(len(scale), dtype=x.dtype)
        step = scale * torch.linalg.solve(normal, scale * slope)
        tried = u - step[:-1]
        new = (gamma - step[-1]) * x + (tried[a] + tried[b]).log() - y  # NaN below zero
        before, after = float(error.square().sum()), float(new.square().sum())
        if after < before:
            gamma, u, error, damping = gamma - float(step[-1]), tried, new, max(damping / 10, 1e-14)
            if after > (1 - 1e-7) * before or after < 1e-20 * len(x):
                break
        elif damping > 1e6:
            break
        else:
            damping *= 10
    return gamma, error


def _nearest(z: Tensor, tangent: Tensor, roles: list, one_sided: bool) -> tuple[Nearest, ...]:
    """Return the nearest of the three families, of the roles (positives, negatives) that fit best.

    The grid narrows around its best member.
    """
    gammas = torch.logspace(-1, 2.5, 36, dtype=z.dtype)

    def refined(masks, grid, loudness: bool, balance: bool):
        best = max(_best(grid[k], gammas, k, balance) for k in (grid if loudness else (1.0,)))
        reach = 1.0
        for _ in range(10):
            around = best[1] * (10**0.1) ** (reach * torch.linspace(-1, 1, 5, dtype=z.dtype))
            powers = {1.0}
            if loudness:
                powers = {min(4.0, max(0.0, best[2] + reach * x)) for x in (-1, -0.5, 0, 0.5, 1)}
            for k in powers:
                products = _members(z, tangent, masks, around, k, one_sided)
                best = max(best, _best(products, around, k, balance))
            reach *= 0.6
        return best

    found = []
    for masks in roles:
        kept = masks[0].any(1) & masks[1].any(1)
        masks = [mask & kept[:, None] for mask in masks]
        grid = {float(k): _members(z, tangent, masks, gammas, k, one_sided) for k in range(5)}
        found.append((refined(masks, grid, True, True), masks, grid))
    last, masks, grid = max(found, key=lambda x: x[0])
    family = [refined(masks, grid, False, False), refined(masks, grid, True, False), last]
    degrees = [math.degrees(math.acos(max(-1.0, min(1.0, cosine)))) for cosine, *_ in family]
    return tuple(
        Nearest(angle, 1 / gamma, k, b) for angle, (_, gamma, k, b) in zip(degrees, family)
    )


def _members(z, tangent, masks: list, gammas: Tensor, power: float, one_sided: bool) -> Tensor:
    """Return the inner products [5, k] of pull, push and the loss's gradient, for k sharpnesses."""
    positives, negatives = masks
    s, towards = z @ z.T, tangent @ z.T

    def moved(directed: Tensor) -> tuple[Tensor, Tensor]:
        forces = directed if one_sided else directed + directed.mT
        along = (forces * s).sum(-1, keepdim=True)
        return (forces @ z - along * z).flatten(1), (forces * towards).sum((-2, -1))

    scaled = gammas[:, None, None] * s
    rivals = scaled.masked_fill(~negatives, -torch.inf)
    total = rivals.logsumexp(-1, keepdim=True).nan_to_num(neginf=0.0)
    counts = positives.sum(1, keepdim=True).clamp_min(1)
    loud = (total - scaled).sigmoid().pow(power) * positives / counts
    pull, from_pull = moved(-loud)
    push, from_push = moved((rivals - total).exp() * loud.sum(-1, keepdim=True))
    squares = [(u * v).sum(1) for u, v in ((pull, pull), (pull, push), (push, push))]
    return torch.stack([from_pull / tangent.norm(), from_push / tangent.norm(), *squares])


def _best(products: Tensor, gammas: Tensor, power: float, balanced: bool):
    """Return the largest cosine with the loss's gradient, and its γ, loudness and balance."""
    to_pull, to_push, pulls, both, pushes = products
    b = torch.ones_like(gammas)
    if balanced:
        b = (to_push * pulls - to_pull * both) / (to_pull * pushes - to_push * both)
        b = b.nan_to_num(1.0).clamp(1e-3, 1e3)
    length = (pulls + 2 * b * both + b * b * pushes).clamp_min(1e-300).sqrt()
    cosine = (to_pull + b * to_push) / length
    i = int(cosine.argmax())
    return float(cosine[i]), float(gammas[i]), power, float(b[i])
