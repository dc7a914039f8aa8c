"""One style and one colour for each method; the shared plots draw what they are given."""

import matplotlib

matplotlib.use("Agg")

import re

import numpy as np
import pandas as pd
import pytest
from colours import DARK, LIGHT, contrast, lifted
from matplotlib import pyplot as plt

from hnbook import figures, maps
from hnlib import methods
from hnlib.experiments.sharpness_map import Map


def test_every_method_has_a_colour_that_reads_on_light_and_dark():
    assert set(methods.CATALOGUE) <= set(figures.COLOURS)
    for colour in figures.COLOURS.values():
        assert contrast(colour, LIGHT) > 2.1 and contrast(lifted(colour), DARK) > 3


def test_a_figure_is_drawn_for_a_phone_too(monkeypatch):
    """Its panels one below the other, and no wider than a phone shows in letters of 10 pixels."""
    shown = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, **about: shown.append((data, about))
    )

    @figures.panels(3, (7.0, 3.0), columns=(3, 2), width_ratios=[1, 2, 1], sharey=True)
    def draw(*axes):
        assert len(axes) == len(axes[0].figure.axes) == 3

    ((data, about),) = shown
    drawn = data["image/svg+xml"], about["metadata"]["narrow"]
    size = r'<svg [^>]*width="([\d.]+)pt" height="([\d.]+)pt"'
    (wide, high), (narrow, higher) = (map(float, re.search(size, svg).groups()) for svg in drawn)
    assert narrow <= figures.NARROW * 72 < wide and higher > 1.8 * high
    with pytest.raises(ValueError, match=r"at most 4\.2 inches, got 7\.0"):
        figures.show(lambda narrow: plt.figure(figsize=(7.0, 3.0)))


def test_a_label_longer_than_its_axis_stays_on_the_phone():
    """Beside long names the axis is short, and a label centred on it would reach past the figure."""
    with plt.style.context(figures.STYLE):
        fig, ax = plt.subplots(figsize=(figures.NARROW, 1.5))
        figures.effect_rows(
            ax, ["a name that takes two thirds of it"], "points of nDCG@10, random bag"
        )
        fig.draw_without_rendering()
    assert ax.xaxis.label.get_window_extent().x1 <= fig.bbox.x1
    plt.close(fig)


def test_interactive_refuses_numbers_that_a_page_cannot_hold():
    with pytest.raises(ValueError, match="must have at most 150,000"):
        figures.interactive("path", "Move β.", x=np.random.default_rng(0).random(30_000))


@pytest.mark.parametrize("count", [3, 7])
def test_every_temperature_of_a_map_has_a_name_and_a_colour_of_its_own(count):
    """Also one that was tried with a tilt alone, and more of them than hues."""
    cells = [(1.0, 4.0), *((1 / k, beta) for k in range(2, count + 1) for beta in (0.0, 2.0))]
    rows = [dict(temperature=t, beta=b, seed=0, linear=0.5 + b / 100) for t, b in cells]
    ax = plt.figure().add_subplot()
    maps.scatter(ax, Map(pd.DataFrame(rows)))
    points, names = ax.get_legend_handles_labels()
    assert names == [f"$t={1 / k:g}$" for k in range(1, count + 1)]
    assert len({matplotlib.colors.to_hex(one.get_color()) for one in points}) == count
    plt.close("all")
