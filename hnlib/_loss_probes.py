r"""Call a loss that is a black box on rows of our own, and read what it answers.

The value where all rows that are no pair have one cosine $1-x$ is a curve. Of a softmax it is
$A\log(a+b\,e^{-x/t})$, which shows the temperature $t$, the factor $A$ before the logarithm and the
number $a$ of candidates that equal the positive.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn

CURVE = (0.0, 1e-4, 1e-3, 4e-3, 0.015, 0.05, 0.12, 0.25, 0.45, 0.7, 1.0)  # x where it is read
COLDEST, HOTTEST = 3e-4, 300.0  # temperatures that it can show
FITS = 1e-3  # largest relative misfit of a curve that is a softmax's
APART = 0.1  # of rows that are nearly one
PARTS = 8  # of a batch that are compared, each by a call and its gradient
TWO = "each of at least 2 queries needs its key in the same row"
ROWS = 32  # pairs on the curve, where all of the batch are too many for the dimensions


class Program:
    """A loss with the arguments of a batch, of which the embeddings can be replaced."""

    def __init__(self, loss: Callable, arguments: tuple, named: dict):
        self.loss, self.count = loss, len(arguments)
        self.numbers = _numbers(loss)
        if isinstance(loss, nn.Module):
            self.loss = copy.deepcopy(loss)
        given = dict(enumerate(arguments)) | named
        wide = [k for k, x in given.items() if isinstance(x, Tensor) and x.numel() > 1]
        self.given = given | {k: given[k].detach() for k in wide}  # a number may be learned
        slots = [k for k, x in self.given.items() if _is_embedding(x)]
        many, width = (self.given[slots[0]].shape[i] if slots else 0 for i in (0, -1))
        slots = [k for k in slots if self.given[k].shape[-1] == width]
        self.slots = [k for k in slots if len(self.given[k]) > 1 or many == 1]
        shown = ", ".join(type(x).__name__ for x in self.given.values()) or "no arguments"
        if not self.slots:
            raise ValueError(f"pass the loss's embeddings, float tensors [n, d], got {shown}")
        whole = [self.given[k] for k in self.slots]
        self.graphs = [given[k].grad_fn for k in self.slots]  # how the training made them
        self.trains = [given[k].requires_grad for k in self.slots]
        first = whole[0]
        integers = [x for x in self.given.values() if is_labels(x)]
        self.labels = next((x for x in integers if len(x) in (len(first), 2 * len(first))), None)
        if first.ndim == 3:
            self.layout, self.columns = "stacked", [*first.unbind(1)]
        elif len(whole) > 1:
            self.layout = "columns"
            self.columns = [z for x in whole for z in (x.unbind(1) if x.ndim == 3 else [x])]
        elif self.labels is not None and len(self.labels) == len(first):
            self.layout, self.columns = "rows", whole
        elif len(first) % 2:
            rule = "a single tensor of embeddings must be two views [2n, d]"
            raise ValueError(f"{rule}, or come with labels, got {len(first)} rows")
        else:
            self.layout, self.columns = "halves", [*first.chunk(2)]
        sizes = [len(z) for z in self.columns]
        if len(sizes) > 1 and sizes[1] < sizes[0]:
            raise ValueError(f"{TWO}, got embeddings of {sizes} rows")
        self.n, self.width = sizes[0], width

    @property
    def of_one_pass(self) -> bool:
        """Whether queries and keys are all the rows that an encoder made in one call."""
        if self.layout != "columns" or [len(z) for z in self.columns] != [self.n] * 2:
            return False
        if len({z.untyped_storage().data_ptr() for z in self.columns}) == 1:
            return True
        shared = set.intersection(*(_nodes([graph]) for graph in self.graphs))
        return any(not hasattr(node, "variable") for node in shared)

    def _call(self, columns: Sequence[Tensor], rows: Sequence[Tensor] | None) -> Tensor:
        if self.layout == "columns":
            put, ahead = {}, iter(columns)
            for k in self.slots:
                parts = [next(ahead) for _ in range(self.given[k][0].numel() // self.width)]
                put[k] = parts[0] if self.given[k].ndim == 2 else torch.stack(parts, 1)
        else:
            join = torch.cat if self.layout != "stacked" else functools.partial(torch.stack, dim=1)
            put = {self.slots[0]: join([*columns])}
        given = {k: x if rows is None else self._part(x, rows) for k, x in self.given.items()} | put
        places = [given[i] for i in range(self.count)]
        value = self.loss(*places, **{k: x for k, x in given.items() if isinstance(k, str)})
        if not isinstance(value, Tensor) or value.numel() != 1:
            shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"the loss must return a scalar tensor, got {shown}")
        return value.reshape(())

    def _part(self, x, rows: Sequence[Tensor]):
        """Return the labels or the mask of those rows of each column."""
        sizes = [len(z) for z in self.columns]
        shifts = [sum(sizes[:i]) for i in range(len(sizes))]
        every = torch.cat([r + shift for r, shift in zip(rows, shifts)])
        keys = every[len(rows[0]) :] - sizes[0]
        if isinstance(x, Tensor) and x.ndim == 1:
            chosen = {sum(sizes): every, sum(sizes[1:]): keys, sizes[0]: rows[0]}.get(len(x))
            if chosen is not None and bool((x == torch.arange(len(x), device=x.device)).all()):
                return x[: len(chosen)]  # places of keys
            return x if chosen is None else x[chosen.to(x.device)]
        if isinstance(x, Tensor) and x.shape == (sizes[0], sum(sizes[1:])) and not _is_embedding(x):
            return x[rows[0].to(x.device)][:, keys.to(x.device)]
        return x

    def value(self, columns: Sequence[Tensor], rows: Sequence[Tensor] | None = None) -> float:
        """Return the loss of other embeddings, of those rows of the batch if they are given."""
        with torch.no_grad(), same_draws(columns[0]):
            return float(self._call(columns, rows))

    def slope(self, columns: Sequence[Tensor], place: Tensor, rows: Sequence[Tensor]) -> float:
        """Return the derivative by the place of which the columns are made."""
        with same_draws(columns[0]):
            value = self._call(columns, rows)
        if not value.requires_grad:
            return 0.0
        (found,) = torch.autograd.grad(value, place, allow_unused=True)
        return 0.0 if found is None else float(found)

    def gradients(
        self, columns: Sequence[Tensor], model: nn.Module | None = None
    ) -> tuple[float, list[Tensor], dict[str, tuple[Tensor, Tensor | None]]]:
        """Return the loss, its gradients ([] without) and each learned number with its gradient."""
        leaves = [z.clone().requires_grad_() for z in columns]
        learned, elsewhere = self._learned(model)
        with torch.enable_grad(), same_draws(columns[0]):
            value = self._call([1 * z for z in leaves], None)  # a loss may change them in place
            wanted = [*leaves, *learned.values()]
            if value.requires_grad:
                found = torch.autograd.grad(value, wanted, allow_unused=True, retain_graph=True)
            else:
                found = [None] * len(wanted)
        reached = any(g is not None for g in found[: len(leaves)])
        of_rows = [torch.zeros_like(z) if g is None else g for z, g in zip(columns, found)]
        of_numbers = zip(learned.items(), found[len(leaves) :])
        known = (((k, p), g) for (k, p), g in of_numbers if g is not None or k not in elsewhere)
        scales = {k: (p.detach(), g) for (k, p), g in known}
        return float(value.detach()), of_rows if reached else [], scales

    def _learned(self, model: nn.Module | None) -> tuple[dict[str, Tensor], set[str]]:
        """Return the learned numbers, and the names of those that the encoder may use."""
        of_model = _numbers(model)
        copies = dict(zip(map(id, self.numbers.values()), _numbers(self.loss).values()))
        learned = self.numbers | of_model
        used = leaves(self.graphs) if learned else {}
        shared = {id(p) for p in of_model.values()}
        elsewhere = {
            name for name, p in learned.items() if id(p) in used or (not used and id(p) in shared)
        }
        return {name: copies.get(id(p), p) for name, p in learned.items()}, elsewhere

    @functools.cached_property
    def probe_rows(self) -> tuple[list[Tensor], list[Tensor]]:
        """The rows of each column with different labels, and the orthogonal row each gets."""
        if self.layout == "rows":
            return self._rows_of_labels
        pairs = torch.arange(self.n)
        if self.labels is not None:
            _, which = self.labels[: self.n].cpu().unique(return_inverse=True)
            firsts = (which == which[:, None]).int().argmax(1)
            pairs = pairs[firsts == pairs]
        sizes = [len(z) for z in self.columns]
        for count in [len(pairs)] * (len(pairs) > 1) + [*range(min(len(pairs), ROWS), 1, -1)]:
            rows, owners, used = [pairs[:count]], [torch.arange(count)], count
            for size in sizes[1:]:
                new = self.layout == "columns" and len(rows) > 1
                more = min(size, count) if new else min(size - self.n, count)
                extra = torch.arange(more) if new else self.n + torch.arange(more)
                rows.append(extra if new else torch.cat([rows[0], extra]))
                fresh = used + torch.arange(more)
                owners.append(fresh if new else torch.cat([owners[0], fresh]))
                used += more
            if used * processes() < self.width:  # one more is common to all
                return rows, [owner + used * _rank() for owner in owners]
        raise ValueError("too few dimensions")

    @property
    def _rows_of_labels(self) -> tuple[list[Tensor], list[Tensor]]:
        """Two rows of each label; the first of all stand before the second."""
        labels = self.labels.cpu()
        two = [torch.nonzero(labels == y)[:2, 0] for y in labels.unique()]
        two = [rows for rows in two if len(rows) == 2][: min(ROWS, (self.width - 1) // processes())]
        if len(two) < 2:
            raise ValueError("labels make no two pairs")
        owner = torch.arange(len(two)) + len(two) * _rank()
        return [torch.stack(two, 1).flatten()], [owner.repeat(2)]

    @property
    def candidates(self) -> set[int]:
        """How many candidates a query of the probe may have in a softmax."""
        rows, _ = self.probe_rows
        if self.layout == "rows":
            rows = rows[0].chunk(2)
        pairs, keys = (count * processes() for count in (len(rows[0]), sum(map(len, rows[1:]))))
        return {keys, keys - 1, 2 * pairs, 2 * pairs - 1, 2 * pairs - 2} - {0, 1}

    def is_log(self, value: float) -> bool:
        """Return whether a loss of equal rows is the logarithm of a number of candidates."""
        return any(abs(value - math.log(count)) < 1e-3 for count in self.candidates)


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
        x[part] = basis[_rank() * room :][: len(part)]
        z = nn.functional.normalize(basis[-1] + APART * x, dim=1)
        _, gradients, _ = program.gradients(z.to(_single(program.columns[0])).split(sizes))
        ends = torch.cat(gradients)[part].float() @ x[part].T
        pulls[part[:, None], part] = -(ends + ends.T) / APART
    return pulls


def _random_rows(program: Program) -> list[Tensor]:
    """Return unit rows for all columns, orthogonal if there are dimensions enough."""
    sizes = [len(z) for z in program.columns]
    x = torch.randn(sum(sizes), program.width, generator=torch.Generator().manual_seed(_rank()))
    if len(x) <= program.width:
        x = torch.linalg.qr(x.T)[0].T
    like = program.columns[0]
    return [*nn.functional.normalize(x, dim=1).to(like.device, _single(like)).split(sizes)]


def _changes(program: Program) -> dict[str, list[float]]:
    """Return how the value changes with lengths, units, origin, and keys that are no row's own.

    "near" is the share of pairs, of a cosine of about 0.7, that the loss pushes apart.
    """
    z = _random_rows(program)
    if len(z) > 1:
        z[1][: program.n] += z[0]  # else only noise has lengths
    z = [nn.functional.normalize(x, dim=1) for x in z]
    generator = torch.Generator().manual_seed(0)
    draw = lambda *size: (0.5 + 1.5 * torch.rand(*size, generator=generator)).to(z[0])  # noqa: E731
    before = program.value(z)

    def change(columns):
        return abs(program.value(columns) - before) / max(abs(before), 1e-6)

    kept = [program.n if i < 2 else 0 for i in range(len(z))]
    beyond = [torch.cat([x[:n], x[n:].roll(i + 1, 1)]) for i, (x, n) in enumerate(zip(z, kept))]
    units, origin = draw(program.width), torch.cat(z).std() * draw(program.width)
    rows = [[x * draw(len(x), 1) if i == j else x for j, x in enumerate(z)] for i in range(len(z))]
    near = []
    if len(z) > 1:
        pair, gradients = (z[1][: program.n], z[0]), program.gradients(z)[1]
        slopes = sum((g[: program.n] * x).sum(1) for g, x in zip(gradients, pair))
        near = [float((slopes > 1e-3 * slopes.abs().max()).float().mean())] if gradients else []
    return {
        "near": near,
        "rows": [*map(change, rows)],
        "units": [change([x * units for x in z])],
        "origin": [change([x + origin for x in z])],
        "beyond": [change(beyond)],
    }


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
    basis = _orthogonal(program.width, total)
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
    flat = max(curve) - min(curve) <= 1e-5 * abs(curve[0])
    if best is None or flat or (abs(best.equal) < 0.5 and not program.is_log(curve[0])):
        return None  # factor and temperature of a straight line are one number
    return best


def _two_weights(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return least-squares weights of x [p] and y [t, p] whose sum is to be 1, for each t."""
    xx, xy, yy = one @ one, other @ one, other.square().sum(1)
    x, y = one.sum(), other.sum(1)
    determinant = (xx * yy - xy * xy).clamp_min(1e-300)
    return (x * yy - y * xy) / determinant, (xx * y - xy * x) / determinant


def _of_whole_batch(program: Program) -> float | None:
    """Return the gradient that processes average, over that of the mean of their losses.

    Along the gradient itself, and along keys that move towards the queries of all: what these do to
    the keys of other processes may be missing.
    """
    z = [x.to(_single(x)) for x in program.columns]
    _, gradients, _ = program.gradients(z)
    middle = z[0].mean(0)
    distributed.all_reduce(middle)
    towards = [0 * z[0], *(0 * x + middle for x in z[1:])]
    along, across = (_ratio(program, z, gradients, way) for way in (gradients, towards))
    return along if None in (along, across) or abs(across - along) < 0.1 else across


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
    if abs(change) < 1e-4 * size:
        return None  # rounding
    return slope * 2 * step / change


def leaves(graphs: Sequence) -> dict[int, Tensor]:
    """Return the parameters that the backward pass from these nodes reaches, by id."""
    ends = [node.variable for node in _nodes(graphs) if hasattr(node, "variable")]
    return {id(p): p for p in ends}


def _nodes(graphs: Sequence) -> set:
    seen, ahead = set(), [x for x in graphs if x is not None]
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += [x for x, _ in node.next_functions if x is not None]
    return seen


def _numbers(module) -> dict[str, Tensor]:
    """Return the learned numbers of a module; of anything else, none."""
    named = module.named_parameters() if isinstance(module, nn.Module) else ()
    return {name: p for name, p in named if p.numel() == 1 and p.requires_grad}


def _is_embedding(x) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim in (2, 3) and x.shape[-1] > 1


def is_labels(x) -> bool:
    whole = isinstance(x, Tensor) and x.ndim == 1
    return whole and not x.is_floating_point() and x.dtype != torch.bool


def _single(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def processes() -> int:
    there = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if there else 1


def _rank() -> int:
    return distributed.get_rank() if processes() > 1 else 0


def unless_refused(probe: Callable):
    """Return what the probe finds, None if the loss refuses its rows (their number, say)."""
    try:
        return probe()
    except Exception:  # the loss is the reader's: it may raise anything
        return None


@contextmanager
def same_draws(like: Tensor) -> Iterator[None]:
    """Let a loss draw the same random numbers each time, and leave the generators as they were."""
    devices = [like.device] if like.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(0)
        yield
