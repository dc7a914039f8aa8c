"""What `profile_loss` finds of a loss, and the sentence that tells it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

EXACT = 1e-3  # root mean square of log push around its fit, up to which it has one temperature
BENT = 0.05  # the same, up to which it nearly has one
CLOSE, FAR = 5.0, 45.0  # degrees within which a gradient is a temperature's, beyond which it is not
OWN = 1.25  # factor between 1/γ and the temperature of the family, up to which they are one number
COLDEST, HOTTEST = 1e-4, 10.0  # temperatures between which the nearest is searched
TABLE = (
    r"loss & $\gamma$ & $R^2$ & push/pull & angle & with loudness & with balance \\"  # of `latex`
)
UNPUSHED = "no negative is pushed"
WON = "every anchor has won, and nothing is left to judge"


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
        Share of the gradient's norm that the forces between the points do not rebuild: rounding, or
        another influence. If it is the latter, or the gradient is what rounding leaves of that
        with the pairs mixed up (every anchor has won), all fields below are None or empty.
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
    loudness : Tensor of shape [pairs], optional
        Pull of each positive pair times $t$ and the number of pairs, which is $1-p$ for InfoNCE;
        $t$ is that of `nearest[1]`.
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
    loudness: Tensor | None = None
    nearest: tuple[Nearest, ...] = ()

    @property
    def foreign(self) -> bool:
        """Whether the loss depends on more than the similarities of its points."""
        return self.forces is None and self.residual > 0

    @property
    def tolerance(self) -> float:
        """Misfit and asymmetry up to which rounding explains them, in bfloat16 several per cent."""
        return max(EXACT, 20 * self.residual)

    @property
    def verdict(self) -> str:
        """The last words of the sentence."""
        return _verdict([self])

    def __str__(self) -> str:
        left = [f"residual {self.residual:.2g}"] if self.residual > 1e-4 else []
        if self.foreign:
            why = "other keys, a teacher, coordinates, class weights, batch statistics, precision?"
            return f"{left[0]}: {self.verdict} ({why})"
        if not self.nearest or self.verdict == UNPUSHED:
            return self.verdict
        one, two, three = self.nearest
        parts = ["γ unknown" if self.sharpness is None else f"γ = {self.sharpness:.2f}"]
        if self.sharpness is not None and self.misfit > self.tolerance:
            slopes = [slope for _, slope in self.local]
            parts[0] += f" ({min(slopes):.3g} to {max(slopes):.3g} by similarity)"
        edge = "" if COLDEST < one.temperature < HOTTEST else ", the grid's edge"
        parts.append(f"{one.angle:.1f}° from SimCLR at t = {one.temperature:.3g}{edge}")
        if one.angle < 0.1 or abs(two.loudness - 1) < 0.15:
            parts.append("as loud as InfoNCE")
        elif two.angle < one.angle - 0.1:
            loud = f"{two.angle:.1f}° with loudness (1 − p)^{two.loudness:.2g}"
            parts.append(loud + _elsewhere(two, one))
        if abs(self.balance - 1) > 0.01:
            angle = f"{three.angle:.1f}° with it{_elsewhere(three, one)}"
            parts.append(f"push/pull {self.balance:.2g} ({angle})")
        for share, word in ((self.silent, "silent"), (self.attracted, "attracted")):
            if share > 0:
                parts.append(f"{100 * share:.3g} % of the negatives {word}")
        if self.asymmetry > self.tolerance:
            parts.append("a gradient is stopped")
        return f"{', '.join(parts + left)}: {self.verdict}"

    def numbers(self) -> dict:
        """Return the fields that are no tensors, for JSON: None where a number is not finite."""
        values = vars(self) | {"nearest": [near._asdict() for near in self.nearest]}
        infinite = [k for k, x in values.items() if isinstance(x, float) and not math.isfinite(x)]
        return {
            k: None if k in infinite else x for k, x in values.items() if not isinstance(x, Tensor)
        }

    def latex(self, name: str = "loss") -> str:
        """Return a row of a table: name, γ, R², balance and the three angles."""
        numbers = [(self.sharpness, ".2f"), (self.r2, ".4f"), (self.balance, ".2f")]
        numbers += [(found.angle, ".1f") for found in self.nearest]
        cells = ["--" if x is None else format(x, form) for x, form in numbers]
        return " & ".join([name, *cells, *["--"] * (6 - len(cells))]) + r" \\"


def summary(profiles: Sequence[Profile]) -> str:
    """Return γ, as a range if it differs, and the one verdict that holds on all the batches."""
    verdict, gammas = _verdict(profiles), [x.sharpness for x in profiles if x.sharpness is not None]
    if not gammas or any(x.foreign for x in profiles):
        return verdict
    parts = [f"γ = {_span(gammas, '.2f')}: {verdict}"]
    if len(gammas) < len(profiles):
        parts.append(f"judged on {len(gammas)} of {len(profiles)} batches")
    return "; ".join(parts)


def _elsewhere(near: Nearest, first: Nearest) -> str:
    """Return the temperature of a member of a family, if it is not that of the first family's."""
    told, known = (f" at t = {x.temperature:.3g}" for x in (near, first))
    return told if told != known else ""


def _span(values: list[float], form: str) -> str:
    low, high = (format(x, form) for x in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _verdict(profiles: Sequence[Profile]) -> str:
    """Return the verdict that holds on all the batches on which there is something to judge."""
    if any(x.foreign for x in profiles):
        return "not a function of these points' similarities alone"
    judged = [x for x in profiles if x.nearest]
    if not judged:
        return WON
    pushed = [x for x in judged if x.sharpness is not None]
    if not pushed:
        none = all(x.silent + x.attracted == 1 for x in judged)
        return UNPUSHED if none else "too few pairs are pushed to tell"
    exact = all(x.misfit <= x.tolerance for x in pushed)
    heard = "the negatives that are not silent" if any(x.silent > 0 for x in pushed) else ""
    if exact and all(x.r2 is None for x in pushed):
        return f"a constant push{f' on {heard}' if heard else ', sharp nowhere'}"
    extras = ("", " with a loudness of its own", " with a loudness and a balance of its own")
    if all(abs(x.balance) >= math.sin(math.radians(CLOSE)) for x in pushed):  # else too weak
        for extra, *near in zip(extras, *(x.nearest for x in pushed)):
            if max(x.angle for x in near) >= CLOSE:
                continue
            gammas, found = [x.sharpness for x in pushed], [x.temperature for x in near]
            two = any(not 1 / OWN <= t * g <= OWN for t, g in zip(found, gammas))
            if not exact:
                t, every = (
                    _span(x, ".3g") for x in (found, [*found, *(1 / g for g in gammas if g)])
                )
                told = two and min(gammas) > 0
                sweep = f"; 1/γ is another, so sweep t from {every}" if told else ""
                return f"not one temperature, though near t = {t}{extra} on these embeddings{sweep}"
            if two:
                continue  # a free loudness or balance took up what the temperature does not fit
            changes = " that changes with the batch" if max(gammas) > 1.01 * min(gammas) else ""
            return f"a temperature{changes}{extra}, on these embeddings"
    if max(x.nearest[0].angle for x in pushed) > FAR:
        return "far from SimCLR at every t"
    if any(x.misfit > max(BENT, x.tolerance) for x in pushed):
        return "no temperature"
    nearly = "" if exact else "nearly "
    choice = f"in its choice among {heard}" if heard else "in its choice of negatives"
    return f"{nearly}a temperature {choice}, but not in how hard it pushes; sweep γ, not t"
