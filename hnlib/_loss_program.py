"""A loss of a reader's with the arguments of a batch, which may be anything that can be called."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn

TWO = "each of at least 2 queries needs its key in the same row"
MOST_ROOM = 4096  # dimensions of rows of our own, where a loss takes all rows or none
ROWS = 32  # pairs of rows of our own, where all of the batch are too many for the dimensions


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
        shown = ", ".join(map(_described, self.given.values())) or "no arguments"
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
        self.room = width  # dimensions of the rows of the curve

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
            if used * processes() < self.room:  # one more is common to all
                return rows, [owner + used * rank() for owner in owners]
        raise ValueError("too few dimensions")

    def widen(self) -> bool:
        """Make room for all rows in more dimensions; return whether that changes what is probed."""
        room = self.n * len(self.columns) * processes() + 1
        if self.layout == "rows" or not self.width < room <= MOST_ROOM:
            return False
        self.room = room
        self.__dict__.pop("probe_rows", None)
        return True

    @property
    def _rows_of_labels(self) -> tuple[list[Tensor], list[Tensor]]:
        """Two rows of each label; the first of all stand before the second."""
        labels = self.labels.cpu()
        two = [torch.nonzero(labels == y)[:2, 0] for y in labels.unique()]
        two = [rows for rows in two if len(rows) == 2][: min(ROWS, (self.width - 1) // processes())]
        if len(two) < 2:
            raise ValueError("labels make no two pairs")
        owner = torch.arange(len(two)) + len(two) * rank()
        return [torch.stack(two, 1).flatten()], [owner.repeat(2)]

    @property
    def candidates(self) -> set[int]:
        """How many candidates a query of the probe may have in a softmax."""
        rows, _ = self.probe_rows
        if self.layout == "rows":
            rows = rows[0].chunk(2)
        pairs, keys = (count * processes() for count in (len(rows[0]), sum(map(len, rows[1:]))))
        return {keys, keys - 1, 2 * pairs, 2 * pairs - 1, 2 * pairs - 2} - {0, 1}

    @property
    def apart(self) -> set[int]:
        """How many candidates a query has that meets a queue alone, or its own negatives alone."""
        rows, _ = self.probe_rows
        return {1 + sum(map(len, rows[2:])) * processes(), len(rows) - 1} - {0, 1}

    def is_log(self, value: float) -> bool:
        """Return whether a loss of equal rows is the logarithm of a number of candidates."""
        return any(abs(value - math.log(n)) < 1e-3 for n in self.candidates | self.apart)


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


def _described(x) -> str:
    return f"{x.dtype} {[*x.shape]}" if isinstance(x, Tensor) else type(x).__name__


def _is_embedding(x) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim in (2, 3) and x.shape[-1] > 1


def is_labels(x) -> bool:
    whole = isinstance(x, Tensor) and x.ndim == 1
    return whole and not x.is_floating_point() and x.dtype != torch.bool


def processes() -> int:
    there = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if there else 1


def rank() -> int:
    return distributed.get_rank() if processes() > 1 else 0


@contextmanager
def same_draws(like: Tensor) -> Iterator[None]:
    """Let a loss draw the same random numbers each time, and leave the generators as they were."""
    devices = [like.device] if like.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(0)
        yield
