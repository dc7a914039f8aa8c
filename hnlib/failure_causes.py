"""Six numbers of one batch of pairs that say why a loss falls while search gets worse."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hnlib import _checks
from hnlib.contrast import unit_rows

#: Of each cause: what its number is, the argument it needs, and trouble: "<" or "≥" a limit.
CAUSES = {
    "leak": ("in-batch hits minus those as evaluated", "evaluated", "≥", 0.1),
    "false negatives": ("share of the push on right answers", "positives", "≥", 0.25),
    "learning rate": ("correlation of similarities with the start", "before", "<", 0.5),
    "collapse": ("keys told apart, over those of orthogonal keys", "", "<", 0.5),
    "temperature": ("negatives that share an anchor's push, median", "", "<", 2),
    "silent anchors": ("share of anchors with loudness below 0.1", "", "≥", 0.5),
}


@dataclass(frozen=True)
class Triage:
    """The findings of `triage`; `str()` has a line for each cause, with ! if something is wrong.

    Parameters
    ----------
    numbers : dict
        The number of each cause; None where an argument is missing.
    """

    numbers: dict[str, float | None]

    @property
    def suspects(self) -> tuple[str, ...]:
        """The causes whose number is beyond its limit."""
        wrong = []
        for cause, (_, _, side, limit) in CAUSES.items():
            value = self.numbers[cause]
            if value is not None and (value < limit) == (side == "<"):
                wrong.append(cause)
        return tuple(wrong)

    def __str__(self) -> str:
        lines = []
        for cause, (meaning, argument, side, limit) in CAUSES.items():
            value = self.numbers[cause]
            mark = "!" if cause in self.suspects else " "
            right = "<" if side == "≥" else "≥"
            number = f"{value:7.2f}" if value is not None else f"unknown without {argument}="
            lines.append(f"{mark} {cause:15} {number}   (fine: {right} {limit:<4g})  {meaning}")
        return "\n".join(lines)


@torch.no_grad()
def triage(
    z1: Tensor,
    z2: Tensor,
    positives: Tensor | None = None,
    temperature: float = 0.05,
    *,
    excluded: Tensor | None = None,
    before: tuple[Tensor, Tensor] | None = None,
    evaluated: tuple[Tensor, Tensor] | None = None,
) -> Triage:
    r"""Look for six causes of a loss that falls while the metric falls.

    Parameters
    ----------
    z1 : Tensor of shape [n, d]
        Embeddings of n queries, or first views: pairs held out from training, prepared like a
        training batch.
    z2 : Tensor of shape [m, d], m ≥ n
        Their candidates; row i answers query i.
    positives : bool Tensor of shape [n, m], optional
        All candidates known to be right; with class labels, ``y[:, None] == y``.
    temperature : float, default 0.05
        $t$, or 1/scale.
    excluded : bool Tensor of shape [n, m], optional
        Candidates that the loss does not count.
    before : pair of Tensors, optional
        The same texts embedded by the model that training started from.
    evaluated : pair of Tensors, optional
        The same pairs embedded as the evaluation embeds them.

    Returns
    -------
    Triage
        The six numbers.

    Raises
    ------
    ValueError
        If shapes disagree, a row is zero or not finite, or the temperature is not positive.

    Examples
    --------
    >>> z = torch.eye(8)
    >>> triage(z, z).suspects
    ('silent anchors',)
    """
    _checks.positive("temperature", temperature)
    s = _similarities(z1, z2)
    start = s if before is None else _again("before", before, s)
    n, m = s.shape
    own = torch.eye(n, m, dtype=torch.bool, device=s.device)
    for name, mask in (("positives", positives), ("excluded", excluded)):
        if mask is not None:
            _checks.mask(name, mask, s)
    counted = ~own if excluded is None else ~own & ~excluded

    def scores(s: Tensor) -> Tensor:
        return (s / temperature).masked_fill(~counted, -torch.inf)

    def pushes(s: Tensor) -> Tensor:
        return scores(s).softmax(1).nan_to_num()  # 0 if nothing is counted

    push, at_start = pushes(s), pushes(start)
    loudness = (scores(s).logsumexp(1) - s.diagonal() / temperature).sigmoid()
    alike = ((_similarities(z2, z2) - 1) / temperature).exp().mean()
    orthogonal = 1 / m + (1 - 1 / m) * math.exp(-1 / temperature)
    numbers = {
        "leak": None if evaluated is None else _hits(s) - _hits(_again("evaluated", evaluated, s)),
        "false negatives": None if positives is None else at_start[positives].sum() / n,
        # 0 where all similarities are equal: nothing is left of the start
        "learning rate": torch.corrcoef(torch.stack([s[~own], start[~own]]))[0, 1].nan_to_num(),
        "collapse": orthogonal / alike,
        "temperature": torch.special.entr(push).sum(1).exp().median(),
        "silent anchors": (loudness < 0.1).float().mean(),
    }
    numbers["learning rate"] = None if before is None else numbers["learning rate"]
    return Triage({cause: None if x is None else float(x) for cause, x in numbers.items()})


def _similarities(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosines [n, m] of queries and keys."""
    fits = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[1] and 2 <= len(a) <= len(b)
    _checks.shapes(fits, "need embeddings [n, d] and [m, d] with 2 ≤ n ≤ m", a, b)
    return unit_rows(a, "of the queries")[0] @ unit_rows(b, "of the keys")[0].T


def _again(name: str, pair, s: Tensor) -> Tensor:
    """Return the similarities of `pair`, which embeds the queries and keys of `s` again."""
    if len(pair) != 2:
        raise ValueError(f"{name} must be a pair (queries, keys), got {len(pair)} parts")
    other = _similarities(*pair)
    n, m = s.shape
    _checks.shapes(other.shape == s.shape, f"{name} must embed the {n} queries and {m} keys", *pair)
    return other


def _hits(s: Tensor) -> Tensor:
    """Return the share of queries whose own answer leads; ties, up to rounding, count."""
    return (s.diagonal() >= s.amax(1) - 1e-6).float().mean()
