r"""Call a loss that is a black box on rows of our own, and read what it answers.

The value where all rows that are no pair have one cosine $1-x$ is a curve. Of a softmax it is
$A\log(a+b\,e^{-x/t})$, which shows the temperature $t$, the factor $A$ before the logarithm and the
number $a$ of candidates that equal the positive.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn

from hnlib._loss_program import Program, processes, rank

CURVE = (0.0, 1e-4, 1e-3, 4e-3, 0.015, 0.05, 0.12, 0.25, 0.45, 0.7, 1.0)  # x where it is read
COLDEST, HOTTEST = 3e-4, 300.0  # temperatures that it can show
FITS = 1e-3  # largest relative misfit of a curve that is a softmax's
APART = 0.1  # of rows that are nearly one
PARTS = 8  # of a batch that are compared, each by a call and its gradient
NEARER = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)  # a pair's share of its query, until the loss has a value
WORTH = 0.1  # nats: of a smaller loss a change may be rounding


class Fit(NamedTuple):
    """A curve of the form $A log(a + b exp(-x/t))$."""

    factor: float
    equal: float
    others: float
    temperature: float


class Batch(NamedTuple):
    """What the checks read."""

    program: Program
    value: float
    gradients: list[Tensor]
    scales: dict[str, tuple[Tensor, Tensor | None]]
    pulls: Tensor | None  # [rows, rows], of all columns, where all rows are orthogonal; or NaN
    changed: dict[str, list[float]]  # relative changes of the value by lengths, of each column
    curve: list[float] | None
    slopes: list[float] | None  # its derivatives that autograd sees, without those at its ends
    twins: list[float] | None  # at its end if a pair, the first or last further key, equals one
    fit: Fit | None
    ends: list[float] | None  # the loss at three places where rows are orthogonal
    ratio: float | None  # gradient by processes over that of the whole batch
    inputs: Sequence | None
    model: nn.Module | None

    @property
    def by_parts(self) -> bool:
        """Whether pulls were measured in parts, of rows that are nearly one."""
        return self.pulls is not None and bool(self.pulls.isnan().any())


def probed(
    program: Program,
    value: float,
    gradients: list[Tensor],
    scales: dict[str, tuple[Tensor, Tensor | None]],
    inputs: Sequence | None,
    model: nn.Module | None,
) -> Batch:
    """Call the loss as often whatever it answers: all processes have to call it together."""
    pulls = unless_refused(lambda: _pulls(program))
    changed = unless_refused(lambda: _changes(program)) or {}
    curve = unless_refused(lambda: [_on_curve(program, x) for x in CURVE])
    if curve is None and program.widen():  # as by targets made once for all batches
        curve = unless_refused(lambda: [_on_curve(program, x) for x in CURVE])
    slopes = unless_refused(lambda: [_slope(program, x) for x in CURVE[1:-1]])
    twins = unless_refused(lambda: [_on_curve(program, 1.0, twins=i) for i in range(3)])
    ends = unless_refused(lambda: _ends(program))
    if curve is None or twins is None or not all(map(math.isfinite, curve + twins)):
        curve = twins = None
    if slopes is None or not all(map(math.isfinite, slopes)):  # as of a root at 0
        slopes = None
    fit = None if curve is None else _fitted(program, curve)
    ratio = unless_refused(lambda: _of_whole_batch(program)) if processes() > 1 else None
    shape = (curve, slopes, twins, fit, ends)
    return Batch(program, value, gradients, scales, pulls, changed, *shape, ratio, inputs, model)


def _pulls(program: Program) -> Tensor:
    """Return by how much rows pull each other where all are as near to each other [rows, rows].

    With too few dimensions, or several processes, rows of a part are compared; the rest is NaN.
    """
    rows = _random_rows(program)
    if sum(map(len, rows)) > program.width or processes() > 1:
        return _pulls_by_parts(program)
    _, gradients, _ = program.gradients(rows)
    ends = torch.cat(gradients) @ torch.cat(rows).T
    return -(ends + ends.T)


def _pulls_by_parts(program: Program) -> Tensor:
    """Put all rows at one place, and those of one part a little apart, orthogonally."""
    sizes, width = [len(z) for z in program.columns], program.width
    room = (width - 1) // processes()  # directions of a process
    if program.layout == "rows":
        parts = program.labels.argsort(stable=True).cpu().split(room)
    else:
        n, further = program.n, sum(sizes) - 2 * program.n
        shifts = [(0, n), (n, n), (2 * n, further)][: 2 + (further > 0)]
        if {*sizes} == {n}:  # the key of a query may be a further view
            shifts = [(i * n, n) for i in range(min(len(sizes), 4, room))]
        some = torch.arange(program.n).split(room // len(shifts))
        parts = [torch.cat([i[i < size] + shift for shift, size in shifts]) for i in some]
    basis = _orthogonal(width, width - 1).to(program.columns[0].device)
    pulls = torch.full((sum(sizes), sum(sizes)), torch.nan, device=basis.device)
    for part in parts[:: math.ceil(len(parts) / PARTS)]:
        x = torch.zeros(sum(sizes), width, device=basis.device)
        x[part] = basis[rank() * room :][: len(part)]
        z = nn.functional.normalize(basis[-1] + APART * x, dim=1)
        _, gradients, _ = program.gradients(z.to(_single(program.columns[0])).split(sizes))
        ends = torch.cat(gradients)[part].float() @ x[part].T
        pulls[part[:, None], part] = -(ends + ends.T) / APART
    return pulls


def _random_rows(program: Program) -> list[Tensor]:
    """Return unit rows for all columns, orthogonal if there are dimensions enough."""
    sizes = [len(z) for z in program.columns]
    x = torch.randn(sum(sizes), program.width, generator=torch.Generator().manual_seed(rank()))
    if len(x) <= program.width:
        x = torch.linalg.qr(x.T)[0].T
    like = program.columns[0]
    return [*nn.functional.normalize(x, dim=1).to(like.device, _single(like)).split(sizes)]


def _changes(program: Program) -> dict[str, list[float]]:
    """Return how the value changes with lengths, units, origin, and keys that are no row's own.

    "near" is the share of pairs, of a cosine of about 0.7, that the loss pushes apart.
    """
    near = _pushed_apart(program, _pairs_of(program, 1.0))
    values = {share: program.value(_pairs_of(program, share)) for share in NEARER}
    # at a low temperature near pairs leave nothing but rounding
    share = next((share for share, y in values.items() if abs(y) > WORTH), NEARER[-1])
    z, before = _pairs_of(program, share), values[share]
    generator = torch.Generator().manual_seed(0)
    draw = lambda *size: (0.5 + 1.5 * torch.rand(*size, generator=generator)).to(z[0])  # noqa: E731

    def change(columns):
        return abs(program.value(columns) - before) / max(abs(before), 1e-6)

    kept = [program.n if i < 2 else 0 for i in range(len(z))]
    beyond = [torch.cat([x[:n], x[n:].roll(i + 1, 1)]) for i, (x, n) in enumerate(zip(z, kept))]
    units, origin = draw(program.width), torch.cat(z).std() * draw(program.width)
    rows = [[x * draw(len(x), 1) if i == j else x for j, x in enumerate(z)] for i in range(len(z))]
    return {
        "near": near,
        "rows": [*map(change, rows)],
        "units": [change([x * units for x in z])],
        "origin": [change([x + origin for x in z])],
        "beyond": [change(beyond)],
    }


def _pairs_of(program: Program, share: float) -> list[Tensor]:
    """Return unit rows of which each key holds that share of its query."""
    z = _random_rows(program)
    if len(z) > 1:
        z[1][: program.n] += share * z[0]  # else only noise has lengths
    return [nn.functional.normalize(x, dim=1) for x in z]


def _pushed_apart(program: Program, z: list[Tensor]) -> list[float]:
    """Return the share of these pairs that the loss pushes apart, [] without pairs."""
    gradients = program.gradients(z)[1] if len(z) > 1 else []
    if not gradients:
        return []
    pair = z[1][: program.n], z[0]
    slopes = torch.stack([(g[: program.n] * x).sum(1) for g, x in zip(gradients, pair)]).sum(0)
    return [float((slopes > 1e-3 * slopes.abs().max()).float().mean())]


def _on_curve(program: Program, x: float, twins: int | None = None) -> float:
    """Return the loss where rows that are no pair have cosine 1 − x; twins as in `Batch`."""
    return program.value(_columns_at(program, x, twins), program.probe_rows[0])


def _ends(program: Program) -> list[float]:
    """Return the loss where pairs are equal, and where keys are minus and plus the query before."""
    columns, rows = _columns_at(program, 1.0), program.probe_rows[0]
    found = [program.value([z.to(x.dtype) for z, x in zip(columns, program.columns)], rows)]
    z, n = torch.cat(columns), len(columns[0]) // (2 if program.layout == "rows" else 1)
    for sign in (-1, 1):
        z[n : 2 * n] = sign * z[:n].roll(1, 0)
        found.append(program.value(z.split([*map(len, columns)]), rows))
    return found


def _slope(program: Program, x: float) -> float:
    """Return the derivative of the loss along the curve, without what is detached."""
    place = torch.tensor(x, device=program.columns[0].device, requires_grad=True)
    with torch.enable_grad():
        return program.slope(_columns_at(program, place), place, program.probe_rows[0])


def _columns_at(program: Program, x: float | Tensor, twins: int | None = None) -> list[Tensor]:
    rows, owners = program.probe_rows
    total = len(torch.cat(owners).unique()) * processes()  # the same in every process
    basis = _orthogonal(program.room, total)
    like, count = program.columns[0], len(rows[0])
    columns = []
    for owner in owners:
        if twins is not None:
            twin = (owners[0][0] + 1, owners[0][0] + count, owners[-1][-1])[twins]
            owner = torch.where(owner == twin, owners[0][0], owner)
        one, common = (part.to(like.device, _single(like)) for part in (basis[owner], basis[-1]))
        columns.append(x**0.5 * one + (1 - x) ** 0.5 * common)
    return columns


@functools.cache
def _orthogonal(width: int, count: int) -> Tensor:
    """Return rows of length one, orthogonal to each other [count + 1, width]."""
    x = torch.randn(width, count + 1, generator=torch.Generator().manual_seed(0))
    return torch.linalg.qr(x)[0].T


def _fitted(program: Program, curve: list[float]) -> Fit | None:
    """Return the softmax whose curve it is, if there is one."""
    x, y = (torch.tensor(part, dtype=torch.float64) for part in (CURVE, curve))
    best, least = None, FITS
    for factor in [1.0, *(curve[0] / math.log(many) for many in program.candidates)]:
        if factor <= 0 or float(y.abs().max()) / factor > 80:
            continue
        one = (-y / factor).exp()  # misfits are relative
        low, high = COLDEST, 1e3
        for _ in range(3):
            t = torch.logspace(math.log10(low), math.log10(high), 200, dtype=torch.float64)
            other = torch.exp(-x / t[:, None]) * one
            a, b = _two_weights(one, other)
            misfit = (a[:, None] * one + b[:, None] * other - 1).square().mean(1).sqrt()
            i = int(misfit.argmin())
            low, high = float(t[max(i - 1, 0)]), float(t[min(i + 1, 199)])
        if float(misfit[i]) < least and 1.1 * COLDEST < float(t[i]) < HOTTEST:
            best, least = Fit(factor, float(a[i]), float(b[i]), float(t[i])), float(misfit[i]) / 2
    if best is None or is_flat(curve) or (abs(best.equal) < 0.5 and not program.is_log(curve[0])):
        return None  # factor and temperature of a straight line are one number
    return best


def is_flat(values: list[float]) -> bool:
    """Return whether values of a loss differ by no more than rounding in float32."""
    return max(values) - min(values) < 1e-5 * max(1.0, abs(values[0]))


def _two_weights(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return least-squares weights of x [p] and y [t, p] whose sum is to be 1, for each t."""
    xx, xy, yy = one @ one, other @ one, other.square().sum(1)
    x, y = one.sum(), other.sum(1)
    determinant = (xx * yy - xy * xy).clamp_min(1e-300)
    return (x * yy - y * xy) / determinant, (xx * y - xy * x) / determinant


def _of_whole_batch(program: Program) -> float | None:
    """Return the gradient that processes average, over that of the mean of their losses.

    Along the gradient itself, and along keys that move towards the queries of all: what these do to
    the keys of other processes may be missing. Among rows that are alike that is as much as what a
    key feels as a query, so one key is also moved alone, and further once it is the nearest.
    """
    z = [x.to(_single(x)) for x in program.columns]
    _, gradients, _ = program.gradients(z)
    middle = z[0].mean(0)
    distributed.all_reduce(middle)
    towards = [0 * z[0], *(0 * x + middle for x in z[1:])]
    along, across = (_ratio(program, z, gradients, way) for way in (gradients, towards))
    if len(z) == 1 or None in (along, across):
        return along
    alone = [torch.zeros_like(x) for x in z]
    alone[1][0] = z[1].norm(dim=1).mean() * nn.functional.normalize(middle, dim=0)
    near = [x + step for x, step in zip(z, alone)]
    there = _ratio(program, near, program.gradients(near)[1], alone)
    found = (x for x in (there, across) if x is not None and abs(x - along) > 0.1 * abs(along))
    return next(found, along)


def _ratio(program: Program, z: list, gradients: list, way: list) -> float | None:
    """Return the slope by averaged gradients over the slope of the mean loss, None at a summit."""
    longest = torch.cat(way).norm(dim=1).max()
    distributed.all_reduce(longest, distributed.ReduceOp.MAX)
    step = 0.01 * float(torch.cat(z).norm(dim=1).mean() / longest.clamp_min(1e-30))
    shared = torch.tensor(step).to(z[0])
    distributed.all_reduce(shared, distributed.ReduceOp.MIN)
    step = float(shared)
    ends = [program.value([x + sign * step * v for x, v in zip(z, way)]) for sign in (1, -1)]
    slope = sum(float((g * v).sum()) for g, v in zip(gradients, way))
    sums = torch.tensor([ends[0] - ends[1], slope, abs(ends[0])]).to(z[0])
    distributed.all_reduce(sums)
    change, slope, size = sums.tolist()
    if abs(change) < 1e-4 * max(size, WORTH):
        return None  # rounding
    return slope * 2 * step / change


def _single(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def unless_refused(probe: Callable):
    """Return what the probe finds, None if the loss refuses its rows (their number, say)."""
    try:
        return probe()
    except Exception:  # the loss is the reader's: it may raise anything
        return None
