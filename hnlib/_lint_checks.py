"""What `hnlib.lint` looks for: each check returns a sentence, or None if all is well."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor, nn

from hnlib._loss_probes import CURVE, Batch, Program, is_labels, leaves, processes, same_draws

NEAR = 4  # place on the curve, x = 0.015, where a scale of 1,000 has decided everything
WARM, COLD = 0.9, 1 / 250  # temperatures outside which cosines do not serve a softmax
CHOICE = "; cosines want a scale, t from 0.02 to 0.5"
WIDEST = 100.0  # margin: a loss of more has a masked positive
FEW = math.log(4.5)  # of fewer candidates a value may be the logarithm by chance
FLOOR = 0.01  # nats: a lower floor of equal keys is not worth a sentence
ALIKE = 0.1  # share of rows that equal a row of another input: fewer are texts that differ in case
SAME = 1e-6  # 1 − cosine of rows that are equal
CHANGES = 1e-3  # relative change of the value that is no rounding
LEAST = 1e-3  # of the strongest push: a weaker pull is rounding
LENGTH = 0.05  # by which the norm of a row may differ from one
IDLE = 0.2  # share of a model's parameters without a gradient: fewer are a layer that nobody uses
PULLED = 0.9  # share of the rows whose own key must pull them


def _world_size(b: Batch) -> str | None:
    if b.ratio is None:
        return None
    many = processes()
    scaled = b.fit is not None and abs(b.fit.factor - many) < 0.02 * many
    ratio = b.ratio * (many if scaled else 1)
    if 0.9 < ratio < 1.1:
        return None
    if abs(ratio * many - 1) < 0.05:
        says = f"the averaged gradient is 1/{many} of the whole batch's"
        remedy = "gather with gradients (hnlib.distributed.gather), or multiply the loss by {many}"
    elif abs(ratio / many - 1) < 0.05:
        says = f"the averaged gradient is {many} times the whole batch's"
        remedy = "the gather sums gradients already; do not multiply the loss by {many}"
    else:
        says = "the averaged gradient lacks what gathered rows should feel"
        remedy = "gather with gradients, as hnlib.distributed.gather does"
    return f"{says} on {many} processes; {remedy.format(many=many)}"


def _no_gradient(b: Batch) -> str | None:
    trains = b.program.trains
    first, *others = (bool((g != 0).any()) for g in b.gradients)
    if not first and any(others) and (trains[0] or not any(trains)):
        says = "the loss gives queries no gradient, only their keys"
        return f"{says}; look for detach or no_grad on the wrong side"
    if b.model is None or len(trains) < 2 or trains[0] == trains[1]:
        return None
    wants = {k: p for k, p in b.model.named_parameters() if p.requires_grad}
    reached = leaves(b.program.graphs)
    idle = {k: p for k, p in wants.items() if id(p) not in reached}
    idle = {k: p for k, p in idle.items() if not _follows(p, reached.values())}
    part, whole = (sum(p.numel() for p in of.values()) for of in (idle, wants))
    if not reached or part <= IDLE * whole:
        return None
    says = f"{'keys' if trains[0] else 'queries'} are made without a gradient, and {len(idle)} of"
    says = f"{says} {len(wants)} parameters of the model get none ({next(iter(idle))})"
    return f"{says}; look for no_grad or detach, or freeze them with requires_grad_(False)"


def _follows(parameter: Tensor, others: Iterable[Tensor]) -> bool:
    """Return whether one of the others is nearly the same, as in a momentum encoder."""
    same = [x.detach() for x in others if x.shape == parameter.shape]
    p = parameter.detach()
    return any(float((x - p).norm()) <= 0.5 * float(p.norm()) for x in same)


def _pairing(b: Batch) -> str | None:
    labels = b.program.labels
    wrong = _not_pulled(b) if labels is None or _targets(labels) else None
    if wrong is None:
        return None
    n, rows = b.program.n, torch.nonzero(wrong)[:, 0]
    if b.curve is not None and max(b.curve) - min(b.curve) < 1e-5:
        says = f"the loss is {b.curve[0]:.3g} whether rows are equal or orthogonal"
        return f"{says}: its terms cancel; has a direction or a term the wrong sign?"
    pulls, i = b.pulls.nan_to_num(nan=0.0).fill_diagonal_(0)[:n], int(rows[0])
    own, others = pulls[:, n : 2 * n].diagonal(), pulls.clone()
    others[:, n : 2 * n].fill_diagonal_(0)
    if float((-own[rows] > 1.5 * others[rows].abs().amax(1)).float().mean()) > 0.5:
        says = "the loss pushes queries away from their own keys; has it the wrong sign"
        return f"{says}, or do distances stand where it wants similarities?"
    says = f"{len(rows)} of {n} queries are not pulled to the key in their own row"
    if processes() > 1:
        return f"{says}; targets must be shifted by rank × batch, the place of own keys among all"
    best = int(pulls[i].argmax())
    where = f" (query {i} to key {best - n})" if best >= n else f" (query {i} to query {best})"
    where = where if float(pulls[i, best]) > 0 else ""
    return f"{says}{where}; check the targets and the order of the rows"


def _labels(b: Batch) -> str | None:
    labels = b.program.labels
    if labels is None or _targets(labels):
        return None
    if len(labels.unique()) == 1:
        return "all rows have one label, so no negative is left; check the labels of the batch"
    wrong = _not_pulled(b)
    if wrong is not None:
        says = f"{int(wrong.sum())} of {len(wrong)} rows are not pulled to their own key"
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
    active = pulls.abs().amax(1) > 1e-6 * pulls.abs().max()
    if b.program.layout == "rows":
        same = (b.program.labels[:, None] == b.program.labels).to(pulls.device)
        same = same.fill_diagonal_(False) & measured
        own = pulls.masked_fill(~same, -torch.inf).amax(1)
        active &= same.any(1)
    else:
        own = pulls[:, n : 2 * n].diagonal()
    wrong = active & (own <= LEAST * -pulls.amin(1))
    return wrong if int(wrong.sum()) > (1 - PULLED) * int(active.sum()) else None


def _mutual(s: Tensor) -> Tensor:
    """Return which rows have a column that they are nearest to, too."""
    best = s.argmax(1)
    return s.argmax(0)[best] == torch.arange(len(s), device=s.device)


def _unused(b: Batch) -> str | None:
    if b.pulls is None or b.program.layout != "columns":
        return None
    n = b.program.n
    further, pairs = b.pulls[:n, 2 * n :].nan_to_num(nan=0.0), b.pulls[:n, n : 2 * n]
    if not further.numel() or b.pulls[:n, 2 * n :].isnan().all():
        return None
    pushed = float(-pairs[~pairs.isnan()].min())
    if pushed <= 0 or float(further.abs().max()) > LEAST * pushed:
        return None
    says = f"the {further.shape[1]} keys behind the first {n} change nothing"
    return f"{says}; they are masked, cut off, or the softmax runs over queries, dim=0"


def _zero_rows(b: Batch) -> str | None:
    for side, z in _sides(b).items():
        zero = z.float().norm(dim=1) == 0
        if float(zero.float().mean()) > ALIKE:
            says = f"{int(zero.sum())} of {len(z)} {side} are zero (row {int(zero.int().argmax())})"
            return f"{says}: they have no direction; an empty queue, or a dead layer?"
    return None


def _equal_negatives(b: Batch) -> str | None:
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
    return f"{says}; are they empty texts, or a default where none was mined?"


def _margin(b: Batch) -> str | None:
    if b.curve is None or b.fit is not None or _products(b) or b.curve[0] > WIDEST:
        return None
    x, y = torch.tensor(CURVE, dtype=torch.float64), torch.tensor(b.curve, dtype=torch.float64)
    fall = float(y[0] - y[-1])
    for law, most in ((x.sqrt(), math.sqrt(2)), (x, 2.0)):  # distances, and cosines or squares
        least = float(y[0]) - most * fall  # opposite negatives
        straight = float((y[0] - fall * law - y).abs().max()) < 0.01 * fall
        if straight and float(y[0]) > 0 and least > 0.05 * fall:
            says = f"the margin, {b.curve[0]:.3g}, cannot be reached by rows of length one"
            return f"{says}: the loss stays above {least:.3g}; use a smaller one"
    return None


def _own_row(b: Batch) -> str | None:
    if b.fit is None or not 1.9 < b.fit.equal < 2.1 or b.fit.temperature > 5:
        return None
    says = "each row is among its own negatives, with a cosine of 1: the loss stays above log 2"
    return f"{says}; fill the diagonal with −inf before the softmax"


def _equal_views(b: Batch) -> str | None:
    z = _pairs(b)
    if z is None:
        return None
    same = _cosines(*z).diagonal() > 1 - SAME
    if float(same.float().mean()) < 0.9 or _spread(z[0]) < SAME:
        return None
    says = f"{int(same.sum())} of {len(same)} queries are equal to their keys, so nothing is asked"
    return f"{says}; two augmentations, or dropout in training mode, must make them differ"


def _equal_scores(b: Batch) -> str | None:
    z = _pairs(b)
    if z is None:
        return None
    keys = torch.cat([*b.program.columns[1:]])
    if min(_spread(z[0]), _spread(keys)) >= SAME:
        return None
    which = "queries" if _spread(z[0]) < SAME else "keys"
    says = f"all {which} have one direction, so every candidate scores the same, loss {b.value:.3g}"
    return f"{says}; a collapse, a dead layer, too high a rate, or one input for all rows"


def _equal_rows(b: Batch) -> str | None:
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
            remedy = "is padding pooled, or a text cut off before it differs?"
            return f"{says} ({side} {i} and {j}); {remedy}"
    return None


def _equal_keys(b: Batch) -> str | None:
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
    equal &= ~_left_out(program, len(keys))
    if b.curve is not None:  # the loss may leave equal rows out
        counts = [x > b.curve[-1] + 1e-5 * abs(b.curve[-1]) for x in b.twins]  # pyright: ignore[reportOptionalIterable]
        own = torch.arange(n)
        equal[:, :n] &= counts[0]
        equal[own, own] = True
        equal[:, n:] &= counts[1]
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


def _lengths(b: Batch) -> str | None:
    changed, columns, depends = b.changed, b.program.columns, _depends(b)
    if not any(depends):
        return None
    if changed["units"][0] <= CHANGES < changed["origin"][0]:
        says = "columns are normalised instead of rows, over the batch"
        return f"{says}; use normalize(z, dim=1), the last dimension"
    norms = [x.float().norm(dim=1) for x in columns]
    off = [i for i in range(len(columns)) if depends[i] and _is_off(norms[i])]
    cosine = b.fit is not None and b.fit.temperature < WARM
    loud = b.curve is not None and b.program.is_log(b.curve[0]) and b.value > 3 * b.curve[0]
    if not off or not (cosine or loud):
        return None
    which = "queries" if off == [0] else "keys" if 0 not in off else "embeddings"
    low, high = (float(f(torch.stack([f(norms[i]) for i in off]))) for f in (torch.min, torch.max))
    at = f" at t = {b.fit.temperature:.3g}" if b.fit is not None else ""
    says = f"{which} are not normalised (lengths {low:.3g} to {high:.3g}), and multiply logits{at}"
    return f"{says}; normalise rows before the product: normalize(z, dim=1)"


def _depends(b: Batch) -> list[bool]:
    """Return whether the loss depends on the lengths of the rows of each column."""
    return [change > CHANGES for change in b.changed.get("rows", [])]


def _products(b: Batch) -> bool:
    """Return whether logits are products of rows of any length, which need no temperature."""
    return any(_depends(b)) and _is_off(torch.cat(b.program.columns).float().norm(dim=1))


def _is_off(norms: Tensor) -> bool:
    return bool(((norms - 1).abs() > LENGTH).any())


def _temperature(b: Batch) -> str | None:
    if b.curve is None:
        return None
    fit = b.fit
    known = fit is not None and b.program.is_log(b.curve[0])  # else a hinge may look like one
    scale = 1 / fit.temperature if known else 0.0
    if fit is None and abs(b.curve[NEAR]) < 1e-4 and b.pulls is not None:
        n = b.program.n
        scale = float(b.pulls[:n, n : 2 * n].diagonal().nanmedian())
        scale *= n * n / (n - 1) / 2  # both ends feel a pull
    if scale > 1 / COLD:
        says = f"cosines are multiplied by {scale:.0f}, so only the nearest negative counts"
        return f"{says}; is a scale applied twice (scale and 1/t, exp of exp)?"
    if fit is not None and fit.temperature > WARM and not _products(b):
        t = fit.temperature
        outside = abs(fit.factor - 1) > 0.1 or abs(fit.equal - round(fit.equal)) > 0.02
        if outside and t < 1.2:
            says = "the temperature stands outside the softmax and does not divide the similarities"
            return f"{says}; with cosines from −1 to 1 it hardly falls: use cross_entropy(s / t)"
        says = f"similarities are divided by t = {t:.3g}"
        guess = f"; if t = {1 / t:.3g} was meant, divide instead of multiplying" if t > 1.2 else ""
        low = b.curve[-1]
        return f"{says}, so the loss of orthogonal negatives is still {low:.3g}{guess or CHOICE}"
    return None


def _softmax(b: Batch) -> str | None:
    if b.curve is None or b.fit is not None:
        return None
    first, last = b.curve[0], b.curve[-1]
    squashed = first > FEW and b.program.is_log(first) and 0 < first - last < 1.05 / WARM
    if squashed and not _products(b):
        says = f"between equal and orthogonal negatives the loss falls only from {first:.3g} to "
        says += f"{last:.3g}"
        return f"{says}; cross_entropy wants logits, not the output of a softmax or sigmoid"
    if -0.4 < first < 0 and b.program.is_log(-math.log(-first)) and last >= -1 - 1e-4:
        says = "the loss is minus a probability, whose gradient vanishes where a query loses"
        return f"{says}; take its logarithm: log_softmax before nll_loss, or cross_entropy"
    return None


def _scale(b: Batch) -> str | None:
    t = None if b.fit is None else b.fit.temperature
    if t is not None and abs(1 / t - math.log(1 / 0.07)) < 1e-3:
        says = f"the scale is {1 / t:.4g}, the logarithm of 1/0.07"
        return f"{says}; a learned log-scale is used without exp"
    stuck = any(bool((g != 0).any()) for g in b.gradients)  # else nothing has a gradient
    for name, (value, gradient) in b.scales.items():
        number = float(value)
        if t is not None and 1 < number < 7 and abs(t * number - 1) < 0.01:
            says = f"{name} = {number:.4g} looks like a log-scale and is used as the scale"
            return f"{says}; use {name}.exp(), {math.exp(number):.3g}"
        if stuck and (gradient is None or not bool((gradient != 0).any())):
            says = f"{name} = {number:.4g} gets no gradient"
            return f"{says}; it is clamped at its limit, detached, or not used"
        if t is not None and abs(t - 0.01) < 1e-4 and number > math.log(99):
            says = f"{name} = {number:.4g} is at its limit, a scale of {1 / t:.0f}"
            return f"{says}; start lower, lower its rate and decay, or fix the temperature"
    return None


def _shuffled(b: Batch) -> str | None:
    z = _pairs(b)
    if z is None or len(z[0]) < 8:
        return None
    if b.program.layout == "halves":
        both = torch.cat(z)
        order, _ = _order_of_views(_cosines(both, both).fill_diagonal_(-1))
        if order == "views in turn":
            says = "rows are views in turn, and the loss takes row i and row i + n for a pair"
            return f"{says}; join the views with cat, not with stack and flatten"
    s = _cosines(*z)
    best, lead = s.argmax(1), s.amax(1).mean() - s.diagonal().mean()
    mutual = _mutual(s) & (best != torch.arange(len(s), device=s.device))
    if float(mutual.float().mean()) < 0.7 or float(lead) < 3 * float(s.std()):
        return None
    i = int(mutual.nonzero()[0])
    says = f"{int(mutual.sum())} of {len(s)} queries have another key than their own nearest"
    where = f"query {i} and key {int(best[i])}, nearest to each other"
    return f"{says} ({where}); one side was shuffled or sorted, or a join went wrong"


def floor(b: Batch) -> str | None:
    if any(bool((g != 0).any()) for g in b.gradients):
        return None
    says = f"the loss, {b.value:.3g}, has no gradient on this batch, since every query has won"
    return f"{says}; a leak, negatives that are too easy, or too large a scale"


def _batch_statistics(b: Batch) -> str | None:
    z, model = _pairs(b), b.model
    if z is None or model is None or b.inputs is None or not _has_batch_norm(model):
        return None
    if not all(isinstance(x, Tensor) for x in b.inputs[:2]):
        return None
    kept = {k: x.clone() for k, x in model.named_buffers()}
    with torch.no_grad(), same_draws(z[0]):
        again = [model(x[: len(z[0])]) for x in b.inputs[:2]]
        for k, x in model.named_buffers():
            x.copy_(kept[k])
    before, after = (_hits(_cosines(*pair)) for pair in (z, again))
    if before - after < 0.1:
        return None
    says = f"{before:.0%} of the pairs are found, but {after:.0%} if all rows are encoded at once"
    return f"{says}: statistics of parts of the batch tell pairs apart; shuffle or synchronise them"


CHECKS = {
    "world size": _world_size,
    "no gradient": _no_gradient,
    "pairing": _pairing,
    "labels": _labels,
    "zero rows": _zero_rows,
    "equal scores": _equal_scores,
    "equal views": _equal_views,
    "equal rows": _equal_rows,
    "equal negatives": _equal_negatives,
    "equal keys": _equal_keys,
    "unused": _unused,
    "own row": _own_row,
    "lengths": _lengths,
    "temperature": _temperature,
    "softmax": _softmax,
    "margin": _margin,
    "scale": _scale,
    "shuffled pairs": _shuffled,
    "batch statistics": _batch_statistics,
}


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


def _left_out(program: Program, keys: int) -> Tensor:
    """Return which keys labels or a mask take from the negatives of a query, [n, keys]."""
    out = torch.zeros(program.n, keys, dtype=torch.bool, device=program.columns[0].device)
    for x in program.given.values():
        if isinstance(x, Tensor) and x.dtype == torch.bool and x.shape == out.shape:
            out |= x.to(out.device)
        elif is_labels(x) and len(x) in (program.n, keys):
            y = x.to(out.device)
            many = min(len(y), keys)
            out[:, :many] |= y[: program.n, None] == y[None, :many]
    own = torch.arange(program.n, device=out.device)
    out[own, own] = False
    return out
