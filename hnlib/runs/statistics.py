"""Groups of runs in a few words: means, spreads, differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def percent(runs: pd.DataFrame, metric: str) -> np.ndarray:
    """A metric of each run of `records.frame`, in percent."""
    return 100 * runs[metric].to_numpy(float)


def spread(x) -> str:
    """Mean ± standard deviation over $n-1$, or the one value there is."""
    return f"{x.mean():.1f}\u00a0±\u00a0{x.std(ddof=1):.1f}" if len(x) > 1 else f"{x.mean():.1f}"


def difference(
    ours: pd.DataFrame, base: pd.DataFrame, metric: str = "linear"
) -> tuple[float, float]:
    """Mean difference of two groups of runs in percent, seed by seed where they have the same
    seeds; standard error.

    The error adds the variance over seeds to the binomial variance of two accuracies on finitely
    many test images; the images are the same for both, so it errs on the cautious side.
    """
    ours, base = (group.sort_values("seed", kind="stable") for group in (ours, base))
    a, b = percent(ours, metric), percent(base, metric)
    paired = list(ours.seed) == list(base.seed)
    d = a - b if paired else a - b.mean()
    between = [d] if paired else [a, b]
    seeds = sum(x.var(ddof=1) / len(x) for x in between if len(x) > 1)
    images = sum(x.mean() * (100 - x.mean()) / ours.test_images.iloc[0] for x in (a, b))
    return float(d.mean()), float((seeds + images) ** 0.5)
