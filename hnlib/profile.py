r"""Any loss on the dial: `profile_loss(loss, z1, z2)` measures how a loss pushes and pulls.

A loss that is a function of the similarities of its points moves point $a$ by
$g_a = \sum_b F_{ab}(z_b - s_{ab}z_a)$, with a force $F_{ab} = \partial\ell/\partial s_{ab}$ for
every pair. If the points are linearly independent, the gradient determines the forces, so the loss
may be a black box. At most d/2 points are used, so that what the forces leave of the gradient, the
residual, is due to something else (a queue of other keys, class weights, statistics of the batch).
"""

from __future__ import annotations

import copy
import functools
import math
import runpy
import sys
import tokenize
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
SILENT = (
    "the loss has no gradient"  # how the error of a batch begins on which nothing is left to learn
)


class Nearest(NamedTuple):
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
    loudness: float
    balance: float


@dataclass(frozen=True, eq=False)
class Profile:
    r"""The findings of `profile_loss`; `str()` is one sentence.

    Parameters
    ----------
    points : int
        How many embeddings were used.
    scale_free : bool
        Whether the loss ignores the lengths of the embeddings.
    residual : float
        Share of the gradient's norm that no forces between the points explain. If it shows another
        influence, all fields below are None or empty.
    asymmetry : float, optional
        $\max_{ab}|F_{ab}-F_{ba}|/\max|F|$; above 0 a gradient was stopped.
    forces : Tensor of shape [points, points], optional
        $F_{ab}$ as felt by point a, positive for a push.
    sharpness, misfit, r2 : float, optional
        $\gamma$ of $\log F_{ab}=\gamma s_{ab}+\log(u_a+u_b)$ (of $\gamma s_{ab}+\log u_a$ where a
        gradient is stopped), the root mean square of the residuals, and the share of the variance
        of $\log F_{ab}$ that is explained. None if too few pairs are pushed; $R^2$ is also None if
        all are pushed alike.
    local : tuple of three pairs
        Similarity and slope in the lower, middle and upper third of the pairs.
    balance : float, optional
        Total push over total pull: 1 for a loss of differences of similarities.
    silent, attracted : float, optional
        Shares of the negatives whose force is zero (not small), and negative.
    lead, loudness : Tensor of shape [pairs], optional
        For each positive pair, $s^+-t\log\sum_je^{s_j/t}$ averaged over its anchors, and its pull
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
        """The last words of the sentence, also in ``book/theme/typed.js``."""
        if self.residual > FOREIGN:
            return "not a function of these points' similarities alone"
        if self.sharpness is None:
            few = "too few pairs are pushed to tell"
            return "no negative is pushed" if self.silent + self.attracted == 1 else few
        extras = ("", " with a loudness of its own", " with a loudness and a balance of its own")
        near = [x for found, x in zip(self.nearest, extras) if found.angle < CLOSE]
        if abs(self.balance) < math.sin(math.radians(CLOSE)):  # so weak a push turns no gradient
            near = []
        if self.misfit <= EXACT:
            if self.r2 is None and self.silent > 0:
                return "a constant push on the negatives that are not silent"
            if self.r2 is None:
                return "a constant push, sharp nowhere"
            if near:
                return f"a temperature{near[0]}, on these embeddings"
            if self.silent > 0:
                return "a temperature on the negatives that are not silent"
            return "a temperature in its choice of negatives, but not in how hard it pushes"
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
        numbers += [(found.angle, ".1f") for found in self.nearest]
        cells = ["--" if x is None else format(x, form) for x, form in numbers]
        return " & ".join([name, *cells, *["--"] * (6 - len(cells))]) + r" \\"

    def plot(self, ax) -> None:
        """Draw loudness against lead on axes of matplotlib."""
        if self.lead is None:
            raise ValueError(f"nothing to draw: {self}")
        ax.plot(self.lead, self.loudness, ".")
        ax.set(xlabel="lead of the positive", ylabel="loudness")


def profile_loss(loss: Callable, a: Tensor, b: Tensor) -> Profile:
    r"""Measure sharpness, loudness and balance of a loss that may be a black box.

    Sharpness says how much harder a loss pushes negatives that are more similar (InfoNCE at
    temperature $t$: $\gamma = 1/t$), loudness how hard an anchor pulls, and balance how the total
    push compares with the total pull. The sentence names the nearest temperature.

    Parameters
    ----------
    loss : callable
        ``loss(z1, z2)``, ``loss(queries, keys)`` or ``loss(z, labels)``; returns a scalar. A module
        is copied to float64 first, so its state does not change.
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
    >>> import torch
    >>> from hnlib import methods
    >>> from hnlib.profile import profile_loss
    >>> views = torch.randn(2, 24, 128, generator=torch.Generator().manual_seed(0))
    >>> print(profile_loss(methods.build("simclr", temperature=0.5), *views))
    γ = 2.00, 0.0° from SimCLR at t = 0.5, as loud as InfoNCE: a temperature, on these embeddings
    """
    if not callable(loss):
        raise ValueError(f"loss must be callable, got {type(loss).__name__}")
    z, positives, sides, value = _points(loss, a, b)
    gradient = _gradient(value, z)
    if float((gradient - _gradient(value, z)).abs().max()) > 1e-6 * float(gradient.abs().max()):
        raise ValueError("a second call gives another gradient: the loss is random or has a state")
    radial = (gradient * z).sum(1, keepdim=True)
    tangent = gradient - radial * z
    norm = float(tangent.norm())
    if not norm > 1e-12 * float(gradient.norm()):
        raise ValueError(f"{SILENT} at these embeddings")
    scale_free = float(radial.abs().max()) < 1e-6 * norm
    basis, triangle = torch.linalg.qr(z.T)  # coordinates in the span of the points
    spread = torch.linalg.svdvals(triangle)
    if spread[-1] < 1e-6 * spread[0]:
        raise ValueError("the points must be linearly independent; give no row twice")
    residual = float((tangent - tangent @ basis @ basis.T).norm()) / norm
    if residual > FOREIGN:
        return Profile(len(z), scale_free, residual)
    forces = _forces(value, triangle.T, z.shape[1])
    asymmetry = float((forces - forces.T).abs().max() / forces.abs().max())

    one_sided = asymmetry > ONE_SIDED
    if not one_sided:  # where both ends do not agree, what is there is what rounding left of zero
        apart = (forces - forces.T).abs() > 1e-4 * torch.maximum(forces.abs(), forces.T.abs())
        forces = ((forces + forces.T) / 2).masked_fill(apart, 0.0)
    active = (forces != 0).any(1, keepdim=True) | (not one_sided)
    negatives = ~positives & ~torch.eye(len(z), dtype=torch.bool) & active
    across = sides[:, None] != sides
    if across.any() and not forces[~across].any():
        negatives &= across
    positives = positives & active
    if not (positives.any() and negatives.any()):
        raise ValueError("some embedding must have a positive and a negative; check the labels")

    s = triangle.T @ triangle
    once = torch.ones_like(s, dtype=torch.bool).triu(1) | one_sided  # each force
    anchors = [active]
    if not one_sided and across.any() and not (negatives & ~across).any():  # or one direction
        anchors += [(sides == x)[:, None] for x in (0, 1)]
    roles = [(positives & mask, negatives & mask) for mask in anchors]
    nearest = _nearest(triangle.T, tangent @ basis, roles, one_sided)
    t = nearest[1].temperature
    pushed = negatives & (forces > 0) & once
    starts = (1 / near.temperature for near in nearest[:2])  # far from any, one may not converge
    fits = (_sharpness(s, forces, pushed, one_sided, start) for start in starts)
    fit = min(fits, key=lambda fit: fit[1] or 0.0)
    lead = s - t * (s / t).masked_fill(~negatives, -torch.inf).logsumexp(1, keepdim=True)
    lead = lead if one_sided else (lead + lead.T) / 2
    pull, push = -forces[positives & once], forces[negatives & once]
    return Profile(
        len(z),
        scale_free,
        residual,
        asymmetry,
        forces,
        *fit,
        float(push.sum() / pull.sum()),
        float((push == 0).double().mean()),
        float((push < 0).double().mean()),
        lead[positives & once],
        pull * t * len(pull),
        nearest,
    )


def from_file(target: str) -> Callable:
    """Run ``FILE.py:NAME`` (NAME is ``loss`` if left out) and return that function or module.

    A class is called without arguments. If the file has CONFIGURATIONS, as `hnlib null` wants them,
    ``loss`` gets the options of the first.

    Raises
    ------
    ValueError
        If the file raises an error, or the name is not that of a callable.
    OSError
        If the file cannot be read.
    """
    path, _, name = (target, "", "loss") if target.endswith(".py") else target.rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(f"name a loss as FILE.py or FILE.py:NAME, got {target}")

    def made(names: dict) -> tuple[dict, Any]:
        found = names.get(name)
        return names, found() if isinstance(found, type) else found

    names, found = run_file(path, made)
    if not callable(found):
        made_here = [k for k, x in names.items() if callable(x) and not k.startswith("_")]
        raise ValueError(f"{path} has no loss {name!r}; it has {', '.join(made_here) or 'none'}")
    listed = names.get("CONFIGURATIONS", [{}]) if name == "loss" else [{}]
    first = listed[0] if isinstance(listed, list | tuple) and listed else None
    if not isinstance(first, dict):
        raise ValueError(f"CONFIGURATIONS of {path} must be a list of dictionaries, got {listed!r}")
    return functools.partial(found, **first) if first else found


def source(path: Path | str) -> str:
    """Return the text of a Python file. Raises ValueError if it is none, OSError as in reading."""
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (SyntaxError, UnicodeDecodeError):  # of the encoding alone: nothing is parsed
        raise ValueError(f"{path} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        raise ValueError(f"{path} holds a NUL byte; save the file as UTF-8")
    return text


def run_file(path: str, then: Callable = dict) -> Any:
    """Run a Python file and return `then` of its names; ValueError says where it raised an error.

    An exit is an error, too. Raises OSError if the file cannot be read.
    """
    source(path)
    sys.path.insert(0, str(Path(path).parent))  # as `python FILE.py` finds its neighbours
    try:
        return then(runpy.run_path(path))
    except (Exception, SystemExit) as error:
        *_, at = traceback.extract_tb(error.__traceback__)
        at = error if isinstance(error, SyntaxError) else at
        # ours: what `then` calls has no line there
        where = path if at.filename == __file__ else f"{at.filename}, line {at.lineno}"
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def _points(loss: Callable, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Callable]:
    """Return unit points, the mask of positives, the side of each, and the loss of the points."""
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a Tensor, got {type(x).__name__}")
    labelled = b.ndim == 1
    fits = a.ndim == 2 and (labelled or (b.ndim == 2 and b.shape[1] == a.shape[1]))
    rule = "embeddings must be [n, d] and [m, d], m >= n, or labels [n]"
    shapes(fits and (labelled or len(a) <= len(b)), rule, a, b)
    most = min(a.shape[1] // 2, 2 * MOST)
    a, b = a.detach().double().cpu(), b.detach().cpu()
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).cpu().double()
    if labelled:
        labels = _checks.labels(b, len(a), "embeddings")[:most]
        z, sides = unit_rows(a[:most], "given")[0], torch.zeros(len(labels))
        positives = (labels[:, None] == labels).fill_diagonal_(False)
    else:
        if len(a) == len(b):
            a, b = a[: most // 2], b[: most // 2]
        n, m = len(a), len(b)
        if n + m > most:
            raise ValueError(f"give at most {most} queries and keys, got {n} and {m}")
        z = torch.cat([unit_rows(a, "of a")[0], unit_rows(b.double(), "of b")[0]])
        sides = torch.tensor([0.0] * n + [1.0] * m)
        positives = torch.zeros(n + m, n + m, dtype=torch.bool)
        positives[range(n), range(n, 2 * n)] = positives[range(n, 2 * n), range(n)] = True
    if len(z) < 8:
        raise ValueError(
            f"need at least 8 points in at least 16 dimensions, got {len(z)} of {a.shape[1]}"
        )
    if labelled:
        return z, positives, sides, lambda z: loss(z, labels)
    return z, positives, sides, lambda z: loss(z[:n], z[n:])


@torch.enable_grad()
def _gradient(value: Callable, z: Tensor) -> Tensor:
    """Return the gradient of the loss at the points."""
    z = z.clone().requires_grad_()
    try:
        found = value(z)
        if isinstance(found, Tensor) and found.numel() == 1:  # it may ignore the embeddings
            (gradient,) = torch.autograd.grad((found + 0 * z.sum()).sum(), z)
    except Exception as error:
        raise ValueError(f"the loss of float64 embeddings raised {error!r}") from error
    if not isinstance(found, Tensor) or found.numel() != 1:
        shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        mean = ": return its mean" if isinstance(found, Tensor) else ""
        raise ValueError(f"loss must return a scalar tensor, got {shown}{mean}")
    if not found.isfinite():
        raise ValueError(f"loss must be finite, got {found.item()} at these embeddings")
    if not gradient.isfinite().all():
        raise ValueError("the gradient of the loss is not finite at these embeddings")
    return gradient


def _forces(value: Callable, z: Tensor, d: int) -> Tensor:
    r"""Return $F_{ab}$ as felt by a, small ones as precisely as large ones.

    In coordinates of which the last is nonzero for point b alone, the last coordinate of the
    gradient at a is $F_{ab}$ times that of b: no larger force has to be subtracted. This takes one
    gradient for each point.
    """
    n = len(z)
    forces = torch.zeros_like(z)
    for b in range(n):
        order = torch.tensor([*range(b), *range(b + 1, n), b])
        turned = z.new_zeros(n, d)
        turned[order, :n] = torch.linalg.qr(z[order].T).R.T
        forces[:, b] = _gradient(value, turned)[:, n - 1] / turned[b, n - 1]
    return forces.fill_diagonal_(0.0)


def _sharpness(
    s: Tensor, forces: Tensor, pushed: Tensor, one_sided: bool, start: float
) -> tuple[float | None, float | None, float | None, tuple]:
    r"""Fit $\log F_{ab}=\gamma s_{ab}+\log(u_a+u_b)$; return γ, misfit, R² and local slopes.

    The Levenberg–Marquardt method fits u and not its logarithm, because some u are zero: those of
    the keys, if only queries are anchors.
    """
    a, b = pushed.nonzero().T
    x, y, rows = s[a, b], forces[a, b].log(), torch.arange(len(a))
    ends = torch.stack([a, a if one_sided else b])
    if len(x) < max(8, 3 * len(ends.unique())) or x.max() - x.min() < 1e-6:
        return None, None, None, ()
    scatter = float((y - y.mean()).square().sum())
    if scatter < 1e-12 * len(y):
        return 0.0, 0.0, None, ()
    counts = torch.zeros(len(x), len(s), dtype=x.dtype)  # how often the force of a pair has u_a
    counts[rows, ends] = 1.0
    bound = torch.full((len(s),), math.inf, dtype=x.dtype)  # u_a is below u_a + u_b
    bound.scatter_reduce_(0, ends.flatten(), (y - start * x).repeat(2), "amin")
    u = bound.clamp(-690, 690).exp()
    found, step = torch.cat([u, u.new_tensor([start])]), torch.zeros(len(s) + 1, dtype=x.dtype)
    best, damping = math.inf, 1e-3
    while damping < 1e6:
        total = counts @ (found + step)[:-1]
        tried = (found + step)[-1] * x + total.log() - y  # NaN below zero
        left = float(tried.square().sum())
        if left < best:
            converged = left > (1 - 1e-7) * best or left < 1e-20 * len(x)
            found, error, best, damping = found + step, tried, left, max(damping / 10, 1e-14)
            if converged:
                break
            jacobian = torch.cat([counts / total[:, None], x[:, None]], 1)
            scale = jacobian.norm(dim=0).clamp_min(1e-300)  # the u are of very different sizes
            normal = (jacobian / scale).T @ (jacobian / scale)
        else:
            damping *= 10
        damped = normal + damping * torch.eye(len(scale), dtype=x.dtype)
        step = -torch.linalg.solve(damped, jacobian.T @ error / scale) / scale
    gamma = float(found[-1])
    local = []
    for third in x.argsort().chunk(3):
        at = x[third] - x[third].mean()
        slope = gamma - float((at * error[third]).sum() / at.square().sum())
        local.append((float(x[third].mean()), slope))
    return gamma, math.sqrt(best / len(x)), 1 - best / scatter, tuple(local)


def _nearest(z: Tensor, tangent: Tensor, roles: list, one_sided: bool) -> tuple[Nearest, ...]:
    """Return the nearest of the three families, for the roles (positives, negatives) that fit best.

    A grid of sharpness and loudness narrows around its best member.
    """

    def search(role, powers, balanced: bool) -> Nearest:
        temperatures, found = torch.logspace(-2.5, 1, 36, dtype=z.dtype), []
        for step in range(11):
            members = torch.cartesian_prod(temperatures, powers)
            found.append(_closest(z, tangent, role, members, balanced, one_sided))
            around = 0.6**step * torch.linspace(-1, 1, 5, dtype=z.dtype)
            temperatures = min(found).temperature * 10 ** (0.1 * around)
            powers = (min(found).loudness + around).clamp(0, 4) if len(powers) > 1 else powers
        return min(found)

    alike, free = z.new_ones(1), torch.arange(5, dtype=z.dtype)
    last, role = min(((search(role, free, True), role) for role in roles), key=lambda x: x[0])
    return search(role, alike, False), search(role, free, False), last


def _closest(z, tangent, role, members: Tensor, balanced: bool, one_sided: bool) -> Nearest:
    """Return the nearest of the members (temperature, loudness)."""
    anchors = role[0].any(1, keepdim=True) & role[1].any(1, keepdim=True)
    positives, negatives = (mask & anchors for mask in role)
    s, (temperatures, powers) = z @ z.T, members.T[..., None, None]
    scaled = s / temperatures
    rivals = scaled.masked_fill(~negatives, -torch.inf)
    total = rivals.logsumexp(-1, keepdim=True).nan_to_num(neginf=0.0)
    loud = (total - scaled).sigmoid().pow(powers) * positives
    loud = loud / positives.sum(1, keepdim=True).clamp_min(1)

    def moved(directed: Tensor) -> Tensor:
        forces = directed if one_sided else directed + directed.mT
        return (forces @ z - (forces * s).sum(-1, keepdim=True) * z).flatten(1)

    pull, push = moved(-loud), moved((rivals - total).exp() * loud.sum(-1, keepdim=True))
    target = tangent.flatten() / tangent.norm()
    balance = torch.ones_like(members[:, 0])
    if balanced:  # the least angle with pull + balance × push
        both = (pull * push).sum(1)
        balance = (push @ target) * pull.square().sum(1) - (pull @ target) * both
        balance /= (pull @ target) * push.square().sum(1) - (push @ target) * both
        balance = balance.nan_to_num(1.0).clamp(1e-3, 1e3)
    member = pull + balance[:, None] * push
    cosine = member @ target / member.norm(dim=1).clamp_min(1e-150)
    i = int(cosine.argmax())
    angle = cosine.clamp(-1, 1).acos().rad2deg()
    return Nearest(*(float(x[i]) for x in (angle, *members.T, balance)))
