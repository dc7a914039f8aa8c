"""What `hnlib.lint` looks for: each check returns a sentence, or None if all is well."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from hnlib._loss_probes import Batch, Program, is_labels, processes, same_draws

NEAR = 4  # place on the curve, x = 0.015, where a scale of 1,000 has decided everything
WARM, COLD = 0.9, 1 / 250  # temperatures outside which cosines do not serve a softmax
CHOICE = "; cosines want a scale, t from 0.02 to 0.5"
FEW = math.log(4.5)  # of fewer candidates a value may be the logarithm by chance
FLOOR = 0.01  # nats: a lower floor of equal keys is not worth a sentence
SAME = 1e-6  # 1 − cosine of rows that are equal
CHANGES = 1e-3  # relative change of the value that is no rounding
LENGTH = 0.05  # by which the norm of a row may differ from one
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


def _pairing(b: Batch) -> str | None:
    labels = b.program.labels
    wrong = _not_pulled(b) if labels is None or _targets(labels) else None
    if wrong is None:
        return None
    n, rows = b.program.n, torch.nonzero(wrong)[:, 0]
    pulls, i = b.pulls[:n], int(rows[0])
    own = pulls[:, n : 2 * n].diagonal()
    if float((-own[rows] > pulls[rows].amax(1)).float().mean()) > 0.5:
        says = "the loss pushes queries away from their own keys; has it the wrong sign"
        return f"{says}, or do distances stand where it wants similarities?"
    says = f"{len(rows)} of {n} queries are not pulled to the key in their own row"
    if processes() > 1:
        return f"{says}; targets must be shifted by rank × batch, the place of own keys among all"
    best = int(pulls[i].argmax())
    where = f"query {i} to key {best - n}" if best >= n else f"query {i} to query {best}"
    return f"{says} ({where}); check the targets and the order of the rows"


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
        apart = _mutual(s) & (labels[best] != labels).to(s.device)
        lead = s.amax(1) - s.masked_fill(labels[:, None] != labels, -1).amax(1)
        if float(apart.float().mean()) > 0.7 and float(lead.mean()) > 3 * float(s.std()):
            i = int(apart.nonzero()[0])
            says = f"rows {i} and {int(best[i])} are nearest to each other and have other labels"
            return f"{says}, as most rows do; labels are in another order than the rows"
    return None


def _not_pulled(b: Batch) -> Tensor | None:
    """Return which queries their own key does not pull [n], None if they are few."""
    if b.pulls is None:
        return None
    n, pulls = b.program.n, b.pulls.clone().fill_diagonal_(0)[: b.program.n]
    active = pulls.abs().amax(1) > 1e-6 * pulls.abs().max()
    if b.program.layout == "rows":
        same = (b.program.labels[:, None] == b.program.labels).to(pulls.device)
        same.fill_diagonal_(False)
        own = pulls.masked_fill(~same, -torch.inf).amax(1)
        active &= same.any(1)
    else:
        own = pulls[:, n : 2 * n].diagonal()
    wrong = active & (own <= 0.5 * -pulls.amin(1))
    return wrong if int(wrong.sum()) > (1 - PULLED) * int(active.sum()) else None


def _mutual(s: Tensor) -> Tensor:
    """Return which rows have a column that they are nearest to, too."""
    best = s.argmax(1)
    return s.argmax(0)[best] == torch.arange(len(s), device=s.device)


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


def _equal_keys(b: Batch) -> str | None:
    program = b.program
    if len(program.columns) < 2 or program.layout == "stacked":
        return None
    n, keys = program.n, torch.cat([*program.columns[1:]])
    if min(_spread(program.columns[0]), _spread(keys)) < SAME:
        return None
    if b.inputs is None:
        of_keys, of_queries = _groups(keys), _groups(program.columns[0])
    else:
        of_queries = _named(b.inputs[0])
        of_keys = _named([x for part in b.inputs[1:] for x in part])
    equal = of_keys[:n, None] == of_keys
    equal[:, :n] |= of_queries[:, None] == of_queries
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
    return (
        f"{says} ({where}), so the loss cannot fall below {floor:.3g}, the mean log(copies); "
        "drop them, mask them, or sample batches without duplicates"
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
    scale = 0.0 if fit is None else 1 / fit.temperature
    if fit is None and abs(b.curve[NEAR]) < 1e-4 and b.pulls is not None:
        n = b.program.n
        scale = float(b.pulls[:n, n : 2 * n].diagonal().median())
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
    "pairing": _pairing,
    "labels": _labels,
    "equal scores": _equal_scores,
    "equal views": _equal_views,
    "equal keys": _equal_keys,
    "own row": _own_row,
    "lengths": _lengths,
    "temperature": _temperature,
    "softmax": _softmax,
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
    return (_cosines(z, z) > 1 - SAME).int().argmax(1)


def _named(values: Sequence) -> Tensor:
    """Return a number for each value, the same for equal ones."""
    known: dict[Hashable, int] = {}
    plain = (tuple(x.flatten().tolist()) if isinstance(x, Tensor) else x for x in values)
    return torch.tensor([known.setdefault(x, len(known)) for x in plain])


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
