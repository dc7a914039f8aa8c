"""The map of accuracy over temperature and tilt, and how much of it the sharpness γ explains."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline

from hnlib.experiments.found_records import kept

COEFFICIENTS = 5  # of the smooth curve


@dataclass(frozen=True, eq=False)
class Map:
    """Runs on one data set over temperatures and tilts, at most one for each cell and seed.

    Parameters
    ----------
    runs : DataFrame
        Rows of `records.frame` with SimCLR (β = 0) and HCL with its weights held fixed, such as an
        experiment's table. Seeds that lack a cell are left out.
    primary : str, default "linear"
        The metric where none is named.
    """

    runs: pd.DataFrame
    primary: str = "linear"

    @functools.cached_property
    def points(self) -> list[tuple[float, float]]:
        """Return the cells (t, β) of the map, by falling temperature and then by rising tilt."""
        rows = self.runs["temperature"], self.runs["beta"].fillna(0.0)
        return sorted({*zip(*rows, strict=True)}, key=lambda cell: (-cell[0], cell[1]))

    @property
    def gammas(self) -> np.ndarray:
        """Return the sharpness of every cell."""
        return np.array([(1 + beta) / t for t, beta in self.points])

    @property
    def temperatures(self) -> list[float]:
        """Return the temperatures, falling."""
        return [*dict.fromkeys(t for t, _ in self.points)]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds for which every cell of the map has been run."""
        counts = Counter(self.runs["seed"])
        # at least: `accuracy` refuses two runs of a cell
        return tuple(sorted(int(s) for s, n in counts.items() if n >= len(self.points)))

    @kept
    def accuracy(self, metric: str | None = None) -> np.ndarray:
        """Return percents [cells, seeds], in the orders of `points` and `seeds`."""
        runs = self.runs.assign(beta=self.runs["beta"].fillna(0.0))
        wide = runs[runs["seed"].isin(self.seeds)].pivot(
            index=["temperature", "beta"], columns="seed", values=metric or self.primary
        )
        return 100 * wide.reindex(self.points).to_numpy()

    @property
    def has_curve(self) -> bool:
        """Whether there are more cells, and no fewer sharpnesses, than the curve has numbers."""
        return len(self.points) > COEFFICIENTS <= len({*self.gammas.round(6)})

    def curve(self, metric: str | None = None):
        """Fit the means over seeds by a smooth function of γ."""
        return smooth(self.gammas, self.accuracy(metric).mean(1))

    def noise(self, metric: str | None = None) -> float:
        """Return the residual standard deviation of cell and seed, in points; needs two seeds."""
        return _noise(self.accuracy(metric))

    def share(self, metric: str | None = None) -> tuple[float, float, float]:
        """Return the share of the variance between cells that a smooth function of γ explains.

        The noise of seeds is subtracted. The other two numbers are its 95 % interval, simulated
        with normal errors around the means. All are NaN where there is no curve, of equal
        scores, of a single seed, whose noise is not known, and where cells differ hardly more than
        their noise makes them.
        """
        accuracy, rng = self.accuracy(metric), np.random.default_rng(0)
        if accuracy.shape[1] < 2 or not self.has_curve or not accuracy.mean(1).var():
            return math.nan, math.nan, math.nan
        noise = _noise(accuracy) * rng.standard_normal((400, *accuracy.shape))
        # the means bring noise of their own, so it is there twice
        cells = np.eye(len(self.points))
        left = cells - smooth(self.gammas, cells)(self.gammas)
        drawn = [_explained(one, 2, left) for one in accuracy.mean(1)[:, None] + noise]
        if np.isnan(drawn).mean() > 0.025:
            return math.nan, math.nan, math.nan
        low, high = np.nanquantile(drawn, (0.025, 0.975))
        return _explained(accuracy, 1, left), float(low), float(high)

    def ends(self, low: float = 5.0, high: float = 60.0) -> tuple[float, float]:
        """Return which share of the variance between cells lies at the ends, and R² between them.

        The ends are the cells with γ below `low` or above `high`; R² is that of a parabola in log γ
        over the others. `share` is high where the ends are far down, whatever happens between. Of
        equal scores a share is NaN, and R² of three cells or fewer, which a parabola goes through.
        """
        mean, gammas = self.accuracy().mean(1), self.gammas.round(6)
        middle = (low <= gammas) & (gammas <= high)
        outside = explained = math.nan
        if mean.var():
            outside = float(((mean[~middle] - mean.mean()) ** 2).sum() / len(mean) / mean.var())
        if middle.sum() > 3 and mean[middle].var():
            explained = parabola(gammas[middle], mean[middle]).r2
        return outside, explained


@dataclass(frozen=True, eq=False)
class Parabola:
    """Scores as a parabola in log γ.

    Parameters
    ----------
    coefficients : ndarray of shape [3]
        The highest power first.
    ends : tuple of float
        The least and the greatest log γ that was fitted.
    r2 : float
        Share of the scores' variance that it explains; 1 for three sharpnesses or fewer.
    """

    coefficients: np.ndarray
    ends: tuple[float, float]
    r2: float

    def __call__(self, gamma):
        """Return the fitted score at `gamma`."""
        return np.polyval(self.coefficients, np.log(gamma))

    @property
    def peak(self) -> float:
        """Return the γ between the ends at which the parabola is highest."""
        bend, slope, _ = self.coefficients
        vertex = np.clip(-slope / 2 / bend, *self.ends)  # perhaps of a valley
        tries = np.exp([*self.ends, vertex])
        return float(tries[self(tries).argmax()])


def parabola(gamma, scores) -> Parabola:
    """Fit scores [n] by least squares as a parabola in log γ; needs three sharpnesses [n]."""
    x, y = np.log(gamma), np.asarray(scores, dtype=float)
    coefficients = np.polyfit(x, y, 2)
    left = y - np.polyval(coefficients, x)
    return Parabola(coefficients, (x.min(), x.max()), float(1 - left.var() / y.var()))


def smooth(gamma, accuracy):
    """Fit a natural cubic spline in log γ; return a function of γ."""
    x = np.log(gamma)
    knots = np.quantile(np.unique(x), np.linspace(0, 1, COEFFICIENTS))
    basis = CubicSpline(knots, np.eye(COEFFICIENTS), bc_type="natural")
    values, *_ = np.linalg.lstsq(basis(x), accuracy)
    return lambda at: basis(np.log(np.atleast_1d(at))) @ values


def _noise(accuracy: np.ndarray) -> float:
    means = accuracy.mean(1, keepdims=True) + accuracy.mean(0) - accuracy.mean()
    cells, seeds = accuracy.shape
    return float(np.sqrt(((accuracy - means) ** 2).sum() / (cells - 1) / (seeds - 1)))


def _explained(accuracy: np.ndarray, times: int, left: np.ndarray) -> float:
    """Return the share explained, after subtracting the seeds' noise `times` times.

    `left` [cells, cells] subtracts the fit from the means. NaN where the noise is all there is.
    """
    mean, variance = accuracy.mean(1), times * _noise(accuracy) ** 2 / accuracy.shape[1]
    lost = ((left @ mean) ** 2).sum() - (len(mean) - COEFFICIENTS) * variance
    between = ((mean - mean.mean()) ** 2).sum() - (len(mean) - 1) * variance
    return min(1.0, max(0.0, 1 - max(0.0, lost) / between)) if between > 0 else math.nan
