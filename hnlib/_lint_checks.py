"""What `hnlib.lint` looks for: each check returns a sentence, or None if all is well.

Here are those of the loss: its gradient, the lengths it sees, its temperature, softmax and scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from hnlib import _lint_rows
from hnlib._loss_probes import CURVE, Batch, is_flat
from hnlib._loss_program import leaves, processes

NEAR = 4  # place on the curve, x = 0.015, where a scale of 1,000 has decided everything
WARM, COLD = 0.9, 1 / 250  # temperatures outside which cosines do not serve a softmax
CHOICE = "; give cosines a scale, t from 0.02 to 0.5"
WIDEST = 100.0  # margin: a loss of more has a masked positive
FEW = math.log(4.5)  # of fewer candidates a value may be the logarithm by chance
CHANGES = 1e-3  # relative change of the value that is no rounding
LENGTH = 0.05  # by which the norm of a row may differ from one
IDLE = 0.2  # share of a model's parameters without a gradient: fewer are a layer that nobody uses


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


def _no_push(b: Batch) -> str | None:
    if b.curve is None or b.slopes is None or b.pulls is None or _over_batch(b):
        return None
    inner = b.curve[1:-1]
    fall = max(inner) - min(inner)
    if fall > CHANGES * abs(inner[0]) and not is_flat(inner):
        if max(map(abs, b.slopes)) > _lint_rows.LEAST * fall:
            return None
        says = "negatives change the loss, but no gradient pushes queries and negatives apart"
        return f"{says}; look for no_grad, detach or .item() around the denominator"
    places = b.curve + (b.twins or [])
    flat = is_flat(places)
    both = all(b.program.trains) and all(bool((g != 0).any()) for g in b.gradients)
    labelled = b.program.layout == "rows"
    beside = labelled and places[0] <= CHANGES  # rows of a label together, beside a classifier
    if not flat or not both or beside or any(b.changed.get("near", [])):
        return None
    n = b.program.n
    pulls = b.pulls[:n].nan_to_num(nan=0.0).fill_diagonal_(0)
    own = float(pulls.max() if labelled else b.pulls[:n, n : 2 * n].diagonal().nanmedian())
    if own <= 0 or float(pulls.min()) < -_lint_rows.LEAST * own:
        return None
    says = "queries are pulled to their keys, and nothing is pushed away: all rows may become one"
    return f"{says}; look for a mask that hides all negatives, or labels of 0 instead of −1"


def _own_key(b: Batch) -> str | None:
    if b.curve is None or b.ends is None:
        return None
    flat, (_, alone, crossed) = b.curve[0], b.ends
    near = CHANGES * abs(flat)
    if flat <= 0 or max(abs(y - flat) for y in [*b.curve, alone]) > near or crossed <= flat + near:
        return None
    says = f"wherever its own key is the nearest, a query's loss is {flat:.3g} without a gradient"
    return f"{says}; the key is among its own negatives: mask the diagonal before max, min or topk"


def _overflow(b: Batch) -> str | None:
    if b.ends is None or b.ends[0] < math.inf or not math.isfinite(b.ends[1]):
        return None
    says = f"the loss is {b.value:.3g} on this batch, and {b.ends[0]:g} where pairs are equal"
    return f"{says}; use logsumexp or cross_entropy for exp(s / t), and clamp before acos"


def _unused(b: Batch) -> str | None:
    if b.pulls is None or b.program.layout != "columns":
        return None
    n = b.program.n
    further, pairs = b.pulls[:n, 2 * n :].nan_to_num(nan=0.0), b.pulls[:n, n : 2 * n]
    if not further.numel() or b.pulls[:n, 2 * n :].isnan().all():
        return None
    if any(b.changed.get("beyond", [])):  # as a teacher's embeddings do
        return None
    pushed = float(-pairs[~pairs.isnan()].min())
    if pushed <= 0 or float(further.abs().max()) > _lint_rows.LEAST * pushed:
        return None
    says = f"the {further.shape[1]} keys behind the first {n} change nothing"
    return f"{says}; look for a mask, a slice, or a softmax over queries, dim=0"


def _margin(b: Batch) -> str | None:
    places = [*(b.curve or []), *(b.ends or [])]
    flat = b.curve and b.ends and is_flat(places)
    if flat and (_lint_rows.graded(b) or _lint_rows.crossed(b)):  # of which no place shows a force
        return None
    if flat and places[0] == 0 and not b.value:
        return "the loss is 0 wherever rows lie; look for a mask that hides all negatives"
    if flat and places[0] <= WIDEST:
        says = f"the loss is {round(places[0], 5):g} whether rows are equal, orthogonal or opposite"
        return f"{says}: no margin is reached; are margins of a distance used for similarities?"
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
    pairs = 0 if b.fit is None or _symmetric(b) else len(b.program.probe_rows[0][0])
    if pairs > 3 and abs(b.fit.equal - pairs) < CHANGES * pairs and b.fit.temperature < WARM:
        says = (
            f"the denominator of a query sums over all {pairs} queries, as exp(logits).sum() does"
        )
        return f"{says}; sum over its own candidates: logsumexp(logits, dim=1)"
    own = len(b.program.columns) - 1 if b.program.layout == "stacked" else 1  # its further views
    if pairs < 3 or abs(b.fit.equal - own - 1) > 0.01 or b.fit.temperature > 5:
        return None  # of two pairs a sigmoid has this curve, too
    says = "each row, or its own key once more, is among its negatives: the loss stays above"
    says = f"{says} log {own + 1}"
    return f"{says}; fill the diagonal with −inf before the softmax"


def _symmetric(b: Batch) -> bool:
    """Return whether further columns of n rows are pairs, too: a term that the curve leaves out."""
    n, sizes = b.program.n, [len(z) for z in b.program.columns]
    if b.pulls is None or b.program.layout != "columns" or sizes != [n] * max(len(sizes), 4):
        return False
    own = b.pulls[2 * n : 3 * n, 3 * n : 4 * n].diagonal().nan_to_num(nan=0.0)
    return float(own.max()) > _lint_rows.SILENT * float(b.pulls.nan_to_num(nan=0.0).max())


def _lengths(b: Batch) -> str | None:
    changed, columns, depends = b.changed, b.program.columns, _depends(b)
    if not any(depends):
        return None
    if _over_batch(b):
        says = "rows are normalised over other rows instead of each by itself"
        return f"{says}; use normalize(z, dim=-1), the last dimension"
    norms = [x.float().norm(dim=1) for x in columns]
    off = [i for i in range(len(columns)) if depends[i] and _is_off(norms[i])]
    cosine = b.fit is not None and b.fit.temperature < WARM
    loud = b.curve is not None and b.program.is_log(b.curve[0]) and b.value > 3 * b.curve[0]
    if not off or not (cosine or loud) or changed["origin"][0] <= CHANGES:  # distances
        return None
    which = "queries" if off == [0] else "keys" if 0 not in off else "embeddings"
    low, high = (float(f(torch.stack([f(norms[i]) for i in off]))) for f in (torch.min, torch.max))
    at = f" at t = {b.fit.temperature:.3g}" if b.fit is not None else ""
    says = f"{which} are not normalised (lengths {low:.3g} to {high:.3g}), and multiply logits{at}"
    return f"{says}; normalise rows before the product: normalize(z, dim=1)"


def _over_batch(b: Batch) -> bool:
    """Return whether each dimension is normalised over rows, so that its units do not matter."""
    if not any(_depends(b)):
        return False
    return b.changed["units"][0] <= CHANGES < b.changed["origin"][0]


def _depends(b: Batch) -> list[bool]:
    """Return whether the loss depends on the lengths of the rows of each column."""
    return [change > CHANGES for change in b.changed.get("rows", [])]


def _products(b: Batch) -> bool:
    """Return whether logits are products of rows of any length, which need no temperature."""
    used = zip(b.program.columns, _depends(b))
    return any(depends and _is_off(z.float().norm(dim=1)) for z, depends in used)


def _is_off(norms: Tensor) -> bool:
    return bool(((norms - 1).abs() > LENGTH).any())


def _temperature(b: Batch) -> str | None:
    if b.curve is None:
        return None
    fit = b.fit
    if says := _two_temperatures(b):
        return says
    known = fit is not None and b.program.is_log(b.curve[0])  # else a hinge may look like one
    scale = 1 / fit.temperature if known else 0.0
    if fit is None and abs(b.curve[NEAR]) < 1e-4 and b.pulls is not None and not b.by_parts:
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


def _two_temperatures(b: Batch) -> str | None:
    """Say that a positive, or a numerator, has another temperature than what stands below it."""
    fit = b.fit
    if b.curve is None or fit is None or fit.factor != 1 or fit.temperature > WARM or _products(b):
        return None
    counts = b.program.candidates | b.program.apart
    if fit.equal > 1.5 * max(counts):
        return "the similarity above and those below are divided by different t; divide all by one"
    others = math.expm1(b.curve[-1]) * math.e  # of negatives at 0 beside a pair of cosine 1
    if abs(fit.equal - 1) > 0.01 or all(abs(others / (k - 1) - 1) > 0.01 for k in counts - {1}):
        return None
    says = f"negatives are divided by t = {fit.temperature:.3g}, and the pair's similarity is not"
    return f"{says}; divide both"


def _softmax(b: Batch) -> str | None:
    if b.curve is None or b.fit is not None:
        return None
    first, last = b.curve[0], b.curve[-1]
    squashed = first > FEW and b.program.is_log(first) and 0 < first - last < 1.05 / WARM
    squashed = squashed and last <= min(b.curve) + CHANGES * first  # smoothed labels let it rise
    alike = b.program.labels is not None and processes() > 1  # a class has rows in each of them
    if squashed and not alike and not _products(b):
        says = f"between equal and orthogonal negatives the loss falls only from {first:.3g} to "
        says += f"{last:.3g}"
        return f"{says}; give cross_entropy logits, not the output of a softmax or sigmoid"
    if -0.4 < first < 0 and b.program.is_log(-math.log(-first)) and last >= -1 - 1e-4:
        says = "the loss is minus a probability, whose gradient vanishes where a query loses"
        return f"{says}; take its logarithm: log_softmax before nll_loss, or cross_entropy"
    return None


def _scale(b: Batch) -> str | None:
    t = None if b.fit is None else b.fit.temperature
    if t is not None and abs(1 / t - math.log(1 / 0.07)) < 1e-3:
        says = f"the scale is {1 / t:.4g}, the logarithm of 1/0.07"
        return f"{says}; take exp of a learned log-scale"
    stuck = any(bool((g != 0).any()) for g in b.gradients)  # else nothing has a gradient
    for name, (value, gradient) in b.scales.items():
        number = float(value)
        if t is not None and 1 < number < 7 and abs(t * number - 1) < 0.01:
            says = f"{name} = {number:.4g} looks like a log-scale and is used as the scale"
            return f"{says}; use {name}.exp(), {math.exp(number):.3g}"
        if stuck and (gradient is None or not bool((gradient != 0).any())):
            says = f"{name} = {number:.4g} gets no gradient"
            return f"{says}; look for a clamp that it has reached, or detach, or drop it"
        if t is not None and abs(t - 0.01) < 1e-4 and number > math.log(99):
            says = f"{name} = {number:.4g} is at its limit, a scale of {1 / t:.0f}"
            return f"{says}; start lower, lower its rate and decay, or fix the temperature"
    return None


def floor(b: Batch) -> str | None:
    if any(bool((g != 0).any()) for g in b.gradients):
        return None
    says = f"the loss, {b.value:.3g}, has no gradient on this batch, since every query has won"
    return f"{says}; look for a leak, mine harder negatives, or lower the scale"


OF_PAIRS = {"no push", "pairing", "labels", "shuffled pairs", "equal keys"}  # which scores may mend
OF_CURVE = {"own key", "own row", "temperature", "softmax", "margin"}  # of rows that meet
CHECKS = {
    "world size": _world_size,
    "zero rows": _lint_rows.zero_rows,
    "no gradient": _no_gradient,
    "not finite": _overflow,
    "own key": _own_key,
    "no push": _no_push,
    "pairing": _lint_rows.pairing,
    "labels": lambda b: None if _over_batch(b) else _lint_rows.wrong_labels(b),
    "equal scores": _lint_rows.equal_scores,
    "equal views": _lint_rows.equal_views,
    "equal rows": _lint_rows.equal_rows,
    "equal negatives": _lint_rows.equal_negatives,
    "shuffled pairs": _lint_rows.shuffled_pairs,
    "equal keys": _lint_rows.equal_keys,
    "unused": _unused,
    "own row": _own_row,
    "lengths": _lengths,
    "temperature": _temperature,
    "softmax": _softmax,
    "margin": _margin,
    "scale": _scale,
    "batch statistics": _lint_rows.batch_statistics,
}
