"""What `hnlib.lint` looks for in a batch: equal rows, zero rows, wrong pairs, wrong labels."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from hnlib._loss_probes import Batch, unless_refused
from hnlib._loss_program import Program, is_labels, processes, same_draws

FLOOR = 0.01  # nats: a lower floor of equal keys is not worth a sentence
ALIKE = 0.1  # share of rows that equal a row of another input: fewer are texts that differ in case
SAME = 1e-6  # 1 − cosine of rows that are equal
SILENT = 1e-4  # of the strongest force: a row that feels less is not mined, and rounding decides
FAINT = 0.1  # of a further view's pull: a weaker one between queries comes from shared negatives
LEAST = 1e-3  # of the strongest push: a weaker pull is rounding
OPPOSITE = 0.9  # of the strongest pull: a wrong target pulls more than the own key is pushed
GRADED = 0.5  # correlation of pulls with what is then a score of each pair
TURNED = 1e-4  # change of a loss of pairs that is rounding, where all rows turn together
MASKED = 1e3  # a loss of more, wherever rows lie, has a masked target
PULLED = 0.9  # share of the rows whose own key must pull them


def pairing(b: Batch) -> str | None:
    labels, places = b.program.labels, b.curve or [0.0]
    if labels is not None and not _targets(labels):
        return None
    if min(places) > MASKED and max(places) - min(places) < LEAST * places[0]:
        says = f"the loss is {places[0]:.3g} wherever rows lie: a mask hides what targets point at"
        return f"{says}; let it leave each query its own key, and point no target at a row itself"
    wrong = _not_pulled(b)
    if wrong is None:
        return None
    n, rows = b.program.n, torch.nonzero(wrong)[:, 0]
    pulls, i = b.pulls.nan_to_num(nan=0.0).fill_diagonal_(0)[:n], int(rows[0])
    own, others = pulls[:, n : 2 * n].diagonal(), pulls.clone()
    felt = max(float(own[rows].abs().max()), float(pulls[rows].max()))
    if b.by_parts and b.ends and felt < LEAST * float(pulls.abs().max()):
        near, alone, _ = b.ends  # rows of a part are near, where a sigmoid has won its pairs
        if alone > near + LEAST * abs(near):
            return None
    others[:, n : 2 * n].fill_diagonal_(0)
    most, least = others[rows].amax(1), others[rows].amin(1)
    if float((-own[rows] > torch.maximum(OPPOSITE * most, -1.5 * least)).float().mean()) > 0.5:
        says = "the loss pushes queries away from their own keys; has it the wrong sign, or do"
        return f"{says} distances and similarities, or labels 1 and 0, stand in each other's place?"
    if b.curve is not None and max(b.curve) - min(b.curve) < 1e-5:
        says = f"the loss is {b.curve[0]:.3g} whether rows are equal or orthogonal"
        return f"{says}: its terms cancel; has a direction or a term the wrong sign?"
    says = f"{len(rows)} of {n} queries are not pulled to the key in their own row"
    if processes() > 1:
        return f"{says}; targets must be shifted by rank × batch, the place of own keys among all"
    best = int(pulls[i].argmax())
    if best == n + i:
        return f"{says}: the pull is lost beside the push; look for too high a bias or margin"
    where = f" (query {i} to key {best - n})" if best >= n else f" (query {i} to query {best})"
    where = where if float(pulls[i, best]) > 0 else ""
    return f"{says}{where}; check the targets and the order of the rows"


def wrong_labels(b: Batch) -> str | None:
    labels = b.program.labels
    if labels is None:
        return None
    if _targets(labels):
        silent = b.program.layout == "rows" and not any(bool((g != 0).any()) for g in b.gradients)
        says = "no two rows have one label, so the loss, without a gradient, has no pairs"
        return f"{says}; give two views of a row its label: y.repeat(2)" if silent else None
    if len(labels.unique()) == 1:
        return "all rows have one label, so no negative is left; check the labels of the batch"
    if b.curve is not None and b.curve[-1] > b.curve[0] + LEAST * abs(b.curve[0]):
        says = f"the loss grows, {b.curve[0]:.3g} to {b.curve[-1]:.3g}, as other labels move away"
        says = f"{says}, so they are positives"
        return f"{says}; labels == labels.T of a vector are all true: use labels[:, None] == labels"
    wrong = _not_pulled(b)
    if wrong is not None:
        says = f"{int(wrong.sum())} of {len(wrong)} rows are not pulled to their own key"
        if b.program.layout == "columns":
            return f"{says}; give cross_entropy arange(n), not classes, or mend a mask of labels"
        return f"{says}; a mask made of labels hides it, or labels are in another order than rows"
    if b.program.layout == "rows":
        z = b.program.columns[0]
        s = _cosines(z, z).fill_diagonal_(-1)
        best = s.argmax(1)
        order, partner = _order_of_views(s)
        partner = partner.to(labels.device)
        apart = labels != labels[partner]
        if order and float(apart.float().mean()) > 1 - PULLED:
            i = int(apart.nonzero()[0])
            says = f"rows {i} and {int(partner[i])} are two views and have other labels, as"
            remedy = "y.repeat(2)" if partner[0] > 1 else "y.repeat_interleave(2)"
            return f"{says} {int(apart.sum())} of {len(z)} rows; rows are {order}: use {remedy}"
        apart = _mutual(s) & (labels[best] != labels).to(s.device)
        lead = s.amax(1) - s.masked_fill(labels[:, None] != labels, -1).amax(1)
        if float(apart.float().mean()) > 0.7 and float(lead.mean()) > 3 * float(s.std()):
            i = int(apart.nonzero()[0])
            says = f"rows {i} and {int(best[i])} are nearest to each other and have other labels"
            return f"{says}, as most rows do; labels are in another order than the rows"
    return None


def _order_of_views(s: Tensor) -> tuple[str, Tensor]:
    """Return in which order rows are two views, "" if they are not, and the other view of each."""
    here, n, nearest = torch.arange(len(s), device=s.device), len(s) // 2, s.argmax(1)
    one_after_the_other, in_turn = (here + n) % len(s), (here ^ 1).clamp(max=len(s) - 1)
    for order, partner in (
        ("one view after the other", one_after_the_other),
        ("views in turn", in_turn),
    ):
        if n > 3 and int((nearest == partner).sum()) > n:
            return order, partner
    return "", here


def _not_pulled(b: Batch) -> Tensor | None:
    """Return which queries their own key does not pull [n], None if they are few."""
    if b.pulls is None:
        return None
    n, measured = b.program.n, ~b.pulls.isnan()
    pulls = b.pulls.nan_to_num(nan=0.0).fill_diagonal_(0)[:n]
    active = pulls.abs().amax(1) > SILENT * pulls.abs().max()
    if b.program.layout == "rows":
        same = (b.program.labels[:, None] == b.program.labels).to(pulls.device)
        same = same.fill_diagonal_(False) & measured
        own = pulls.masked_fill(~same, -torch.inf).amax(1)
        active &= same.any(1)
    else:
        own = pulls[:, n : 2 * n].diagonal()
        active &= ~_of_further_view(b, pulls)
    wrong = active & (own <= LEAST * -pulls.amin(1))
    return wrong if int(wrong.sum()) > (1 - PULLED) * int(active.sum()) else None


def _of_further_view(b: Batch, pulls: Tensor) -> Tensor:
    """Return which queries a further view of their own row pulls, and their key does not [n]."""
    n, (most, best) = b.program.n, pulls.max(1)
    further = (best % n == torch.arange(n, device=best.device)) & (most > 0)
    further &= pulls[:, n : 2 * n].diagonal().abs() <= FAINT * most
    return further if all(len(z) == n for z in b.program.columns) else further & False


def crossed(b: Batch) -> bool:
    """Return whether most queries are asked for a further view, as by a second encoder's keys."""
    if b.pulls is None or b.program.layout != "columns":
        return False
    pulls = b.pulls[: b.program.n].nan_to_num(nan=0.0)
    further = _of_further_view(b, pulls.fill_diagonal_(0))
    return int(further.sum()) > PULLED * int((pulls.amax(1) > 0).sum())


def anchored(program: Program) -> bool:
    """Return whether labelled rows meet something fixed, as a classifier's: no two need be a pair.

    Then the loss changes where all rows turn together.
    """
    if program.labels is None or program.layout not in ("rows", "columns"):
        return False
    draw = torch.Generator().manual_seed(0)
    z = [torch.randn(x.shape, generator=draw).to(x.device) for x in program.columns]
    z = [nn.functional.normalize(x, dim=1) for x in z]
    before, after = (
        unless_refused(lambda i=i: program.value([x.roll(i, 1) for x in z])) for i in (0, 1)
    )
    if program.layout == "columns" and _targets(program.labels):
        return False
    return None not in (before, after) and abs(after - before) > TURNED * abs(before)


def graded(b: Batch) -> bool:
    """Return whether pairs have scores, or 1 and 0: the loss pulls high ones and pushes others."""
    if b.pulls is None or b.program.layout != "columns":
        return False
    own = b.pulls[: b.program.n, b.program.n : 2 * b.program.n].diagonal()
    known = ~own.isnan()
    if int(known.sum()) < 3 or not bool((own[known] < -LEAST * own[known].abs().max()).any()):
        return False
    vectors = [x for x in b.program.given.values() if isinstance(x, Tensor) and x.ndim == 1]
    both = [torch.stack([own, x.to(own)])[:, known] for x in vectors if len(x) == len(own)]
    return any(float(torch.corrcoef(x)[0, 1]) > GRADED for x in both)


def _mutual(s: Tensor) -> Tensor:
    """Return which rows have a column that they, or rows like them, are nearest to, too."""
    best = s.argmax(1)
    return s.amax(0)[best] <= s.amax(1) + SAME


def zero_rows(b: Batch) -> str | None:
    used = [(g != 0).any(1) | ~(g != 0).any() for g in b.gradients]  # a mask hides some of a column
    for (side, z), felt in zip(_sides(b).items(), (used[0], torch.cat([*used[1:], used[0][:0]]))):
        zero = (z.float().norm(dim=1) == 0) & felt
        if float(zero.float().mean()) > ALIKE:
            says = f"{int(zero.sum())} of {len(z)} {side} are zero (row {int(zero.int().argmax())})"
            return f"{says}: they have no direction; fill a queue before use, or mend a dead layer"
    return None


def equal_negatives(b: Batch) -> str | None:
    n, columns = b.program.n, b.program.columns
    if b.program.layout != "columns" or len(columns) < 2:
        return None
    further = torch.cat([*columns[1:]])[n:]
    if len(further) < 4 or bool((further.float().norm(dim=1) == 0).all()):
        return None
    many = int(_groups(further).bincount().max())
    if many <= len(further) / 2 or _spread(columns[0]) < SAME:
        return None
    says = f"{many} of {len(further)} negatives behind the pairs are equal to each other"
    return f"{says}; drop empty texts, or what stands where none was mined"


def equal_views(b: Batch) -> str | None:
    z = _pairs(b)
    if z is None:
        return None
    same = _cosines(*z).diagonal() > 1 - SAME
    if float(same.float().mean()) < 0.9 or _spread(z[0]) < SAME:
        return None
    says = f"{int(same.sum())} of {len(same)} queries are equal to their keys, so nothing is asked"
    return f"{says}; let two augmentations, or dropout in training mode, make them differ"


def equal_scores(b: Batch) -> str | None:
    z = _pairs(b)
    if z is None:
        return None
    keys = torch.cat([*b.program.columns[1:]])
    if min(_spread(z[0]), _spread(keys)) >= SAME:
        return None
    which = "queries" if _spread(z[0]) < SAME else "keys"
    says = f"all {which} have one direction, so every candidate scores the same, loss {b.value:.3g}"
    return f"{says}; look for a dead layer or one input for all rows, or lower the rate"


def equal_rows(b: Batch) -> str | None:
    if b.inputs is None or b.program.layout == "stacked":
        return None
    sides = _sides(b)
    if any(_spread(z) < SAME for z in sides.values()):
        return None
    for (side, z), given in zip(sides.items(), _inputs_of(b)):
        of_rows = _groups(z)
        alike = (of_rows[:, None] == of_rows) & (given[:, None] != given)
        many = int(alike.any(1).sum())
        if many > ALIKE * len(z):
            i, j = alike.nonzero()[0].tolist()
            says = f"{many} of {len(z)} {side} equal another one whose input differs"
            remedy = "mask padding where it is pooled, or let texts be longer"
            return f"{says} ({side} {i} and {j}); {remedy}"
    return None


def equal_keys(b: Batch) -> str | None:
    program = b.program
    if len(program.columns) < 2 or program.layout == "stacked":
        return None
    n, keys = program.n, torch.cat([*program.columns[1:]])
    if min(_spread(program.columns[0]), _spread(keys)) < SAME:
        return None
    of_keys, of_queries = _groups(keys), _groups(program.columns[0])
    equal = of_keys[:n, None] == of_keys
    equal[:, :n] |= of_queries[:, None] == of_queries
    if b.inputs is not None:
        given_queries, given_keys = _inputs_of(b)
        equal |= given_keys[:n, None] == given_keys
        equal[:, :n] |= given_queries[:, None] == given_queries
    counted = ~_left_out(b, len(keys))
    if b.curve is not None:  # the loss may leave equal rows out
        counts = [x > b.curve[-1] + 1e-5 * abs(b.curve[-1]) for x in b.twins]  # pyright: ignore[reportOptionalIterable]
        own = torch.arange(n)
        counted[:, :n] &= counts[0]
        counted[own, own] = True
        counted[:, n:] &= counts[1]
        if not counts[2] and all(len(z) == n for z in program.columns):  # each query has its own
            row = torch.eye(n, dtype=torch.bool, device=equal.device)
            counted[:, n:] &= row.repeat(1, len(program.columns) - 2)
    equal &= counted
    itself = (counted & (_cosines(program.columns[0], keys) > 1 - SAME))[:, n:]
    if float(itself.any(1).float().mean()) > ALIKE and not bool(equal[:, n:].any()):
        i, j = itself.nonzero()[0].tolist()
        says = f"{int(itself.any(1).sum())} of {n} queries are themselves among the negatives"
        return (
            f"{says} (query {i}: key {n + j}), nearer than any answer; do not mine a query itself"
        )
    copies = equal.sum(1).clamp_min(1)
    floor = float(copies.double().log().mean())
    if floor < FLOOR:
        return None
    i = int((copies > 1).nonzero()[0])
    others = [j for j in equal[i].nonzero()[:, 0].tolist() if j != i]
    shown = ", ".join(map(str, others[:3])) + (", …" if len(others) > 3 else "")
    says = f"{int((copies > 1).sum())} of {n} queries have their own answer among their negatives"
    where = f"query {i}: keys {shown}"
    ask = "" if b.inputs is not None else " (if texts differ: is padding pooled? pass inputs=)"
    return (
        f"{says} ({where}), so the loss cannot fall below {floor:.3g}, the mean log(copies); "
        f"drop them, mask them, or sample batches without duplicates{ask}"
    )


def shuffled_pairs(b: Batch) -> str | None:
    z = _pairs(b)
    if z is None or len(z[0]) < 8:
        return None
    if b.program.layout == "stacked" and len(b.program.columns) == 2 and _apart(*z):
        both = torch.stack(z, 1).flatten(0, 1)
        order, _ = _order_of_views(_cosines(both, both).fill_diagonal_(-1))
        if order == "one view after the other":
            says = "rows are one view after the other, and the loss takes them for views in turn"
            return f"{says}; join the views with stack(dim=1), not with cat and view"
    if b.program.layout == "halves" or (b.program.of_one_pass and _apart(*z)):
        both = torch.cat(z)
        order, _ = _order_of_views(_cosines(both, both).fill_diagonal_(-1))
        if order == "views in turn":
            says = "rows are views in turn, and the loss takes row i and row i + n for a pair"
            return f"{says}; join the views with cat, not with stack and flatten"
    s = _cosines(*z)
    best, lead = s.argmax(1), s.amax(1).mean() - s.diagonal().mean()
    mutual = _mutual(s) & (best != torch.arange(len(s), device=s.device))
    share = float(mutual.float().mean())
    if share < 0.7 or float(lead) < (2 if share > 0.9 else 3) * float(s.std()):  # 0.5 by chance
        return None
    i = int(mutual.nonzero()[0])
    says = f"{int(mutual.sum())} of {len(s)} queries have another key than their own nearest"
    where = f"query {i} and key {int(best[i])}, nearest to each other"
    return f"{says} ({where}); look for one side that was shuffled or sorted, or a wrong join"


def batch_statistics(b: Batch) -> str | None:
    z, model = _pairs(b), b.model
    if z is None or model is None or b.inputs is None or not _has_batch_norm(model):
        return None
    if not all(isinstance(x, Tensor) for x in b.inputs[:2]):
        return None
    ahead = [x[: len(z[0])] for x in b.inputs[:2]]
    own = {k: x.clone() for k, x in model.named_buffers()}  # those of the model are in its graph
    with torch.no_grad(), same_draws(z[0]):
        again = unless_refused(lambda: [torch.func.functional_call(model, own, x) for x in ahead])
    if again is None or any(getattr(x, "shape", None) != z[0].shape for x in again):
        return None  # the encoder is another call
    before, after = (_hits(_cosines(*pair)) for pair in (z, again))
    if before - after < 0.1:
        return None
    says = f"{before:.0%} of the pairs are found, but {after:.0%} if all rows are encoded at once"
    return f"{says}: statistics of parts of the batch tell pairs apart; shuffle or synchronise them"


def _apart(queries: Tensor, keys: Tensor) -> bool:
    """Return whether pairs are no nearer than others."""
    s = _cosines(queries, keys)
    return float(s.diagonal().mean() - s.mean()) < 0.5 * float(s.std())


def _targets(labels: Tensor) -> bool:
    """Return whether labels are the places of keys, as cross_entropy takes them."""
    return len(labels.unique()) == len(labels)


def _pairs(b: Batch) -> tuple[Tensor, Tensor] | None:
    """Return queries and their own keys."""
    columns = b.program.columns
    return None if len(columns) < 2 else (columns[0], columns[1][: b.program.n])


def _sides(b: Batch) -> dict[str, Tensor]:
    """Return the rows of each side by its name."""
    first, *others = b.program.columns
    return {"queries": first, "keys": torch.cat(others)} if others else {"rows": first}


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    unit = (nn.functional.normalize(x.float(), dim=1) for x in (a, b))
    return torch.matmul(next(unit), next(unit).T)


def _spread(z: Tensor) -> float:
    """Return 1 minus the least cosine with the first row."""
    return float(1 - _cosines(z[:1], z).min())


def _hits(s: Tensor) -> float:
    return float((s.argmax(1) == torch.arange(len(s), device=s.device)).float().mean())


def _has_batch_norm(model: nn.Module) -> bool:
    kind = nn.modules.batchnorm._BatchNorm  # pyright: ignore[reportPrivateUsage]
    return any(isinstance(x, kind) and x.training for x in model.modules())


def _groups(z: Tensor) -> Tensor:
    """Return the first row that each row equals."""
    return (_cosines(z, z) > 1 - SAME).fill_diagonal_(True).int().argmax(1)


def _named(values: Sequence) -> Tensor:
    """Return a number for each value, the same for equal ones."""
    known: dict[Hashable, int] = {}
    plain = (tuple(x.flatten().tolist()) if isinstance(x, Tensor) else x for x in values)
    return torch.tensor([known.setdefault(x, len(known)) for x in plain])


def _inputs_of(b: Batch) -> tuple[Tensor, Tensor]:
    """Return numbers of the queries' and of all keys' inputs; one that is not given has its own."""
    first, *parts = [[*part] for part in b.inputs or ()]
    known = [x for part in parts for x in part]
    missing = sum(map(len, b.program.columns[1:])) - len(known)
    device = b.program.columns[0].device
    both = _named(first), _named([*known, *(object() for _ in range(missing))])
    return both[0].to(device), both[1].to(device)


def _left_out(b: Batch, keys: int) -> Tensor:
    """Return which keys labels or a mask take from the negatives of a query, [n, keys]."""
    program = b.program
    out = torch.zeros(program.n, keys, dtype=torch.bool, device=program.columns[0].device)
    if b.pulls is not None:  # the loss may know a mask
        force = b.pulls[: program.n, program.n :].abs()
        silent = force <= SILENT * force.nan_to_num(nan=0.0).max()
        if float(silent.float().mean()) < 0.5:  # else it counts the hardest alone
            out |= silent
    for x in program.given.values():
        if isinstance(x, Tensor) and x.dtype == torch.bool and x.shape == out.shape:
            out |= x.to(out.device)
        elif is_labels(x) and len(x) in (program.n, keys):
            y = x.to(out.device)
            many = min(len(y), keys)
            out[:, :many] |= y[: program.n, None] == y[None, :many]
    ids = [x.to(out.device) for x in program.given.values() if is_labels(x)]
    for one, other in itertools.pairwise(ids):  # of queries' keys, and of the keys behind them
        if len(one) == program.n and len(one) + len(other) == keys:
            out |= one[:, None] == torch.cat([one, other])
    own = torch.arange(program.n, device=out.device)
    out[own, own] = False
    return out
