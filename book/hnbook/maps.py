"""Draw accuracy against what was varied: temperature, tilt, sharpness."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from hnbook import figures
from hnlib.experiments.sharpness_map import Map

HUES = ("#d55e00", "#b8860b", "#6b8e23", "#009e73", "#0b7fbf", "#8a79c9")  # of temperatures


def scatter(ax, drawn: Map, metric: str | None = None) -> None:
    """Draw the means in percent against γ, and their curve if they have one; a ring marks β = 0.

    With two seeds or more, a bar shows the standard deviation of a cell.
    """
    mean, gammas = drawn.accuracy(metric).mean(1), drawn.gammas
    temperatures, unnamed = drawn.temperatures, {*drawn.temperatures}
    more = plt.get_cmap("turbo")(np.linspace(0.05, 0.95, len(temperatures)))
    hues = dict(zip(temperatures, HUES if len(temperatures) <= len(HUES) else more))
    for (t, beta), gamma, y in zip(drawn.points, gammas, mean, strict=True):
        style = dict(ms=9, mfc="none", mew=1.8) if beta == 0 else dict(ms=6)
        label = f"$t={t:g}$" * (t in unnamed)  # it may have no β = 0
        unnamed -= {t}
        ax.plot(gamma, y, "o", color=hues[t], label=label, **style)
    if drawn.has_curve:
        x = np.geomspace(gammas.min(), gammas.max(), 100)
        ax.plot(x, drawn.curve(metric)(x), color=figures.GREY, lw=1.2, zorder=0)
    if len(drawn.seeds) > 1 < len(gammas):
        ax.errorbar(1.1, mean.max(), drawn.noise(metric), color=figures.GREY, capsize=3)
        ax.text(1.25, mean.max(), "± one seed's\ndeviation", va="center", fontsize=9)
    ax.set_xlabel(r"sharpness $\gamma=(1+\beta)/t$")
    figures.log_ticks(ax, [1, 2, 4, 8, 16, 32, 64, 128])


def sweep(ax, found, arms: dict, metric: str, block: str = "", **style) -> None:
    """Draw mean and standard deviation over seeds, in percent, of the arm at each x.

    Arms that the design does not have at these parameters are left out.
    """
    points = {x: arm for x, arm in arms.items() if arm in found.design.names(block)}
    scores = [[*found.values(arm, metric, block).values()] for arm in points.values()]
    means = [100 * np.mean(values) for values in scores]
    spreads = [100 * np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in scores]
    ax.errorbar([*points], means, spreads, capsize=3, **({"marker": "o", "ms": 5} | style))
