r"""Any loss on the dial: `profile_loss(loss, z1, z2)` measures how a loss pushes and pulls.

A loss that is a function of the similarities of its points moves point $a$ by
$g_a = \sum_b F_{ab}(z_b - s_{ab}z_a)$, with a force $F_{ab} = \partial\ell/\partial s_{ab}$ for
every pair. If the points are linearly independent, the gradient determines the forces, so the loss
may be a black box. Each point's forces are measured in coordinates of its own and must rebuild the
gradient: what they leave of it, the residual, is due to something else (other keys, class weights,
statistics of the batch, coordinates).
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
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from hnlib import _checks
from hnlib._checks import shapes
from hnlib.contrast import unit_rows
from hnlib.profile_findings import EXACT, Nearest, Profile, summary

__all__ = ["Nearest", "Profile", "profile_loss", "summary"]

FOREIGN = 1e-3  # residual above which a loss depends on more than the similarities of its points
COARSE = 0.05  # the same, of a loss in low precision
MOST = 64  # pairs
CONFIGURED = 8  # configurations of a file at most
TINY = 1e-306  # below, float64 has fewer digits


def profile_loss(loss: Callable, a: Tensor, b: Tensor, pairs: int = MOST) -> Profile:
    r"""Measure sharpness, loudness and balance of a loss that may be a black box.

    Sharpness says how much harder a loss pushes negatives that are more similar (InfoNCE at
    temperature $t$: $\gamma = 1/t$), loudness how hard an anchor pulls, and balance how the total
    push compares with the total pull. The sentence names the nearest temperature.

    Parameters
    ----------
    loss : callable
        ``loss(z1, z2)``, ``loss(queries, keys)`` or ``loss(z, labels)``; returns a scalar. A module
        is copied to float64 first, so its state does not change. A function that refuses float64 is
        called in float32.
    a : Tensor of shape [n, d]
        Embeddings. Rows are normalised; the first d/2 pairs (or d rows with labels) are used.
    b : Tensor of shape [m, d], m ≥ n, or integers of shape [n]
        The other views, or the keys, of which row i answers row i of `a`; or labels.
    pairs : int, default 64
        At most so many pairs (or twice as many rows with labels) are used; 256 take minutes.

    Returns
    -------
    Profile
        The measurement.

    Raises
    ------
    ValueError
        If shapes disagree, the points are too few, too many or not linearly independent, none has
        a positive or a negative, or the loss cannot be called with them, has no finite gradient, is
        random or keeps a state.

    Examples
    --------
    >>> import torch
    >>> from hnlib import methods
    >>> from hnlib.profile import profile_loss
    >>> views = torch.randn(2, 24, 128, generator=torch.Generator().manual_seed(0))
    >>> print(profile_loss(methods.build("simclr", temperature=0.5), *views))
    γ = 2.00, 0.0° from SimCLR at t = 0.5, as loud as InfoNCE: a temperature, on these embeddings
    """
    z, positives, sides, value = _points(loss, a, b, pairs)
    value, gradient, precision = _first(value, z)
    mixed = z[torch.randperm(len(z), generator=torch.Generator().manual_seed(0))]
    try:
        elsewhere = _gradient(value, mixed)
    except ValueError:  # of the logarithm of an answer's similarity, say
        elsewhere = 0 * z
    _same_again(value, z, gradient)  # a queue now has the mixed keys
    unit = float(torch.maximum(gradient.abs(), elsewhere.abs()).max()) or 1.0
    radial, tangent = _split(gradient / unit, z)
    norm, strength = float(tangent.norm()), float(_split(elsewhere / unit, mixed)[1].norm())
    if max(norm, strength) < 1e-12:
        raise ValueError(
            "the loss has no gradient, even with the pairs mixed up; look for detach or no_grad"
        )
    scale_free = float(radial.abs().max()) < 1e-2 * norm
    if norm <= 1e4 * precision * strength:  # a pull is a difference of numbers near 1
        return Profile(len(z), scale_free, 0.0)

    basis, triangle = torch.linalg.qr(z.T)
    spread = torch.linalg.svdvals(triangle)
    if spread[-1] < 1e-6 * spread[0]:
        raise ValueError("the points must be linearly independent; give no row twice")
    residual = float((tangent - tangent @ basis @ basis.T).norm()) / norm
    coarse = torch.equal(value(1 * z), value(z + 1e-12 * (mixed - z)))  # rounds that away
    if residual <= (COARSE if coarse else FOREIGN):
        forces = _forces(value, triangle.T, z.shape[1])
        _same_again(value, z, gradient)
        rebuilt = _moved(forces / unit, triangle.T) @ basis.T
        residual = min(1.0, float((tangent - rebuilt).norm()) / norm)
    found = Profile(len(z), scale_free, residual)
    if residual > (COARSE if coarse else FOREIGN):
        return found
    return _of_forces(found, forces, triangle.T, positives, sides)


def from_file(target: str) -> Callable:
    """Run ``FILE.py:NAME`` (NAME is ``loss`` if left out) and return that function or module.

    If the file has CONFIGURATIONS, as `hnlib null` wants them, ``loss`` gets the options of the
    first. A class is called with them.

    Raises
    ------
    ValueError
        If the file cannot be read or raises an error, or the name is not that of a callable.
    """
    path, _, name = (target, "", "loss") if target.endswith(".py") else target.rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(f"name a loss as FILE.py or FILE.py:NAME, got {target}")
    names = run_file(path)
    found = names.get(name)
    if not callable(found):
        made_here = [k for k, x in names.items() if callable(x) and not k.startswith("_")]
        raise ValueError(f"{path} has no loss {name!r}; it has {', '.join(made_here) or 'none'}")
    options = configurations(names, path)[0] if name == "loss" else {}
    if not isinstance(found, type):
        return functools.partial(found, **options)
    try:
        return found(**options)
    except Exception as error:
        raise ValueError(f"{path}, {name} with {options}: {error}") from error


def configurations(names: dict, path: Path | str) -> list[dict]:
    """Return the CONFIGURATIONS among a file's names, [{}] without; ValueError if malformed."""
    listed = names.get("CONFIGURATIONS", [{}])
    counted = isinstance(listed, list | tuple) and 1 <= len(listed) <= CONFIGURED
    if not counted or not all(isinstance(one, dict) for one in listed):
        rule = f"CONFIGURATIONS of {path} must be a list of 1 to {CONFIGURED} dictionaries"
        many = isinstance(listed, list | tuple) and len(listed) > CONFIGURED
        got = f"{len(listed)} of them" if many else f"{listed!r:.60}"
        raise ValueError(f"{rule}, got {got}")
    return [*listed]


def source(path: Path | str) -> str:
    """Return the text of a Python file in its encoding."""
    with tokenize.open(path) as file:
        return file.read()


def run_file(path: str) -> dict:
    """Run a Python file and return its names; ValueError says where it raised an error or ended."""
    sys.path.insert(0, str(Path(path).parent))  # as `python FILE.py` finds its neighbours
    try:
        source(path)  # Python reads over letters that are no UTF-8
        return runpy.run_path(path)
    except (Exception, SystemExit) as error:
        lines = [x.lineno for x in traceback.extract_tb(error.__traceback__) if x.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            lines.append(error.lineno)
        where = ", line ".join(map(str, [path, *lines[-1:]]))
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def _points(
    loss: Callable, a: Tensor, b: Tensor, pairs: int
) -> tuple[Tensor, Tensor, Tensor, Callable]:
    """Return unit points, the mask of positives, the side of each, and the loss of the points."""
    labelled = b.ndim == 1
    fits = a.ndim == 2 and (labelled or (b.ndim == 2 and b.shape[1] == a.shape[1]))
    rule = "embeddings must be [n, d] and [m, d], m >= n, or labels [n]"
    shapes(fits and (labelled or len(a) <= len(b)), rule, a, b)
    most = min(a.shape[1], 2 * pairs)
    given = len(a) if labelled else len(a) + len(b)
    if min(given, most) < 8:
        raise ValueError(
            f"need at least 8 points in at least 8 dimensions, got {given} in {a.shape[1]}"
        )
    a, b = a.detach().double().cpu(), b.detach().cpu()
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).cpu().double()
    if labelled:
        labels = _checks.labels(b, len(a), "embeddings")[:most]
        positives = (labels[:, None] == labels).fill_diagonal_(False)
        z = unit_rows(a[:most], "given")[0]
        return z, positives, torch.zeros(len(z)), lambda z: loss(z, labels)
    if len(a) == len(b):
        a, b = a[: most // 2], b[: most // 2]
    n, m = len(a), len(b)
    if n + m > most:
        raise ValueError(f"give at most {most} queries and keys, got {n} and {m}")
    z = torch.cat([unit_rows(a, "of a")[0], unit_rows(b.double(), "of b")[0]])
    positives = torch.zeros(n + m, n + m, dtype=torch.bool)
    positives[range(n), range(n, 2 * n)] = positives[range(n, 2 * n), range(n)] = True
    return z, positives, torch.tensor([0.0] * n + [1.0] * m), lambda z: loss(z[:n], z[n:])


def _of_forces(
    found: Profile, forces: Tensor, z: Tensor, positives: Tensor, sides: Tensor
) -> Profile:
    """Return the profile with what the forces say."""
    s, tangent = z @ z.T, _moved(forces / forces.abs().max(), z)
    asymmetry = float((forces - forces.T).abs().max() / forces.abs().max())
    one_sided = asymmetry > found.tolerance
    if not one_sided:  # where both ends do not agree, what is there is what rounding left of zero
        most = torch.maximum(forces.abs(), forces.T.abs())
        apart = (forces - forces.T).abs() > max(1e-4, 20 * found.residual) * most
        forces = ((forces + forces.T) / 2).masked_fill(apart, 0.0)
    active = (forces != 0).any(1, keepdim=True) | (not one_sided)
    negatives = ~positives & ~torch.eye(len(z), dtype=torch.bool) & active
    across = sides[:, None] != sides
    if across.any() and not forces[~across].any():
        negatives &= across
    positives = positives & active
    if not (positives.any() and negatives.any()):
        raise ValueError("some embedding must have a positive and a negative; check the labels")

    once = torch.ones_like(s, dtype=torch.bool).triu(1) | one_sided  # each force
    anchors = [active]
    if not one_sided and across.any() and not (negatives & ~across).any():  # or one direction
        anchors += [(sides == x)[:, None] for x in (0, 1)]
    roles = [(positives & mask, negatives & mask) for mask in anchors]
    nearest = _nearest(z, tangent, roles, one_sided)
    pushed, fits = negatives & (forces > TINY) & once, []
    for mask in anchors:
        ends = torch.stack([mask & pushed, mask.T & pushed & (not one_sided)])
        # far from any, one of two starts may not converge
        tried = (_sharpness(s, forces, pushed, ends, 1 / x.temperature) for x in nearest[:2])
        fits.append(min(tried, key=lambda fit: fit.get("misfit", 0.0)))
    exact = (fit for fit in fits if fit.get("misfit", math.inf) <= found.tolerance)
    fit = next(exact, fits[0])
    spread = float(s[negatives].max() - s[negatives].min())
    underflow = fit.get("sharpness", 0.0) * spread > 690
    pull, push = -forces[positives & once], forces[negatives & once]
    return replace(
        found,
        **fit,
        asymmetry=asymmetry,
        forces=forces,
        balance=float(push.sum() / pull.sum()),
        silent=0.0 if underflow else float((push == 0).double().mean()),
        attracted=float((push < 0).double().mean()),
        loudness=pull * nearest[1].temperature * len(pull),
        nearest=nearest,
    )


def _first(value: Callable, z: Tensor) -> tuple[Callable, Tensor, float]:
    """Return the loss, its gradient at the points and its precision.

    A loss that refuses float64, as with a table of its own in float32, is called in float32.
    """
    try:
        return value, _gradient(value, z), torch.finfo(torch.float64).eps
    except ValueError as error:
        single = lambda z: value(z.float())  # noqa: E731
        try:
            return single, _gradient(single, z), torch.finfo(torch.float32).eps
        except ValueError:
            raise error from None


def _same_again(value: Callable, z: Tensor, gradient: Tensor) -> None:
    """Raise ValueError unless the loss still has this gradient."""
    changed = float((_gradient(value, z) - gradient).abs().max())
    if changed > 1e-6 * float(gradient.abs().max()):
        raise ValueError(
            "a later call gives another gradient: the loss is random (seed it inside) or keeps a "
            "state, such as a queue of keys"
        )


def _split(gradient: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient along each point, and across."""
    radial = (gradient * z).sum(1, keepdim=True)
    return radial, gradient - radial * z


@torch.enable_grad()
def _gradient(value: Callable, z: Tensor) -> Tensor:
    """Return the gradient of the loss at the points."""
    z = z.clone().requires_grad_()
    try:
        found = value(1 * z)  # which the loss may change in place
        if isinstance(found, Tensor) and found.numel() == 1:  # it may ignore the embeddings
            (gradient,) = torch.autograd.grad((found + 0 * z.sum()).sum(), z)
    except Exception as error:
        raise ValueError(f"the loss of float64 embeddings raised {error!r}") from error
    if not isinstance(found, Tensor) or found.numel() != 1:
        shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        mean = ": return its mean" if isinstance(found, Tensor) else ""
        raise ValueError(f"loss must return a scalar tensor, got {shown}{mean}")
    if not (found.isfinite() and gradient.isfinite().all()):
        raise ValueError(
            f"loss and gradient must be finite, got {found.item()} and {gradient.norm().item()} at "
            "these embeddings"
        )
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


def _moved(forces: Tensor, z: Tensor) -> Tensor:
    """Return the gradient at each point of forces [..., points, points]."""
    return forces @ z - (forces * (z @ z.T)).sum(-1, keepdim=True) * z


def _sharpness(s: Tensor, forces: Tensor, pushed: Tensor, ends: Tensor, start: float) -> dict:
    r"""Fit $\log F_{ab}=\gamma s_{ab}+\log(u_a+u_b)$; return the fields of a profile that follow.

    `ends` [2, points, points] says which of $u_a$ and $u_b$ a force has: only anchors have one. The
    Levenberg–Marquardt method fits u and not its logarithm, because some u are zero: those of the
    keys, if only queries are anchors. Each is relative to the most that the forces at `start`
    allow, so that none is too small for a number.
    """
    n, (a, b) = len(s), pushed.nonzero().T
    x, y = s[a, b], forces[a, b].log()
    has = torch.zeros(len(x), n, dtype=torch.bool)  # [forces, points]
    has.scatter_(1, torch.stack([a, b], 1), ends[:, a, b].T)
    unknown = int(has.any(0).sum())
    if len(x) < max(8, unknown + 4) or x.max() - x.min() < 1e-6:
        return {}
    scatter = float((y - y.mean()).square().sum())
    if scatter < 1e-12 * len(y):
        return dict(sharpness=0.0, misfit=0.0)
    # log u_a is below that of u_a + u_b
    bound = torch.where(has, (y - start * x)[:, None], math.inf).amin(0)
    share = torch.where(has, bound, -math.inf)
    y = y - share.amax(1)
    share = (share - share.amax(1, keepdim=True)).exp()
    found = torch.cat([torch.ones_like(bound), x.new_tensor([start])])  # u and γ
    step, best, damping = torch.zeros_like(found), math.inf, 1e-3
    while damping < 1e6:
        tried = found + step
        total = share @ tried[:-1]
        missed = tried[-1] * x + total.log() - y  # NaN below zero
        left = float(missed.square().sum())
        if left < best:
            converged = left > (1 - 1e-7) * best or left < 1e-20 * len(x)
            found, error, best, damping = tried, missed, left, max(damping / 10, 1e-14)
            if converged:
                break
            slopes = torch.cat([share / total[:, None], x[:, None]], 1)
            normal, along = slopes.T @ slopes, slopes.T @ error
            scale = normal.diagonal().sqrt().clamp_min(1e-150)  # the u are of different sizes
            normal = normal / scale / scale[:, None]
        else:
            damping *= 10
        damped = normal + damping * torch.eye(n + 1, dtype=x.dtype)
        step = -torch.linalg.solve(damped, along / scale) / scale
    gamma, misfit = float(found[-1]), math.sqrt(best / len(x))
    if misfit > EXACT and len(x) < 3 * unknown:  # only an exact fit tells of itself that it is one
        return {}
    local = []
    for third in x.argsort().chunk(3):
        at = x[third] - x[third].mean()
        slope = gamma - float((at * error[third]).sum() / at.square().sum())
        local.append((float(x[third].mean()), slope))
    return dict(sharpness=gamma, misfit=misfit, r2=1 - best / scatter, local=tuple(local))


def _nearest(z: Tensor, tangent: Tensor, roles: list, one_sided: bool) -> tuple[Nearest, ...]:
    """Return the nearest of the three families, for the roles (positives, negatives) that fit best.

    A grid of sharpness and loudness narrows around its best member.
    """

    def search(role, powers, balanced: bool) -> Nearest:
        temperatures, found = torch.logspace(-4, 1, 51, dtype=z.dtype), []
        for step in range(11):
            members = torch.cartesian_prod(temperatures, powers)
            for some in members.split(max(1, 2**21 // len(z) ** 2)):  # megabytes at a time
                found.append(_closest(z, tangent, role, some, balanced, one_sided))
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

    push = (rivals - total).exp() * loud.sum(-1, keepdim=True)
    both = (directed if one_sided else directed + directed.mT for directed in (-loud, push))
    pull, push = (_moved(forces, z).flatten(1) for forces in both)
    target = tangent.flatten() / tangent.norm()
    balance = torch.ones_like(members[:, 0])
    if balanced:  # the least angle with pull + balance × push
        cross = (pull * push).sum(1)
        balance = (push @ target) * pull.square().sum(1) - (pull @ target) * cross
        balance /= (pull @ target) * push.square().sum(1) - (push @ target) * cross
        balance = balance.nan_to_num(1.0).clamp(1e-3, 1e3)
    member = pull + balance[:, None] * push
    cosine = member @ target / member.norm(dim=1).clamp_min(1e-150)
    i = int(cosine.argmax())
    angle = cosine.clamp(-1, 1).acos().rad2deg()
    return Nearest(*(float(x[i]) for x in (angle, *members.T, balance)))
