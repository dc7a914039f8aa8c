"""Groups of runs in a few words: means and spreads. How they differ: `comparisons`."""

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
