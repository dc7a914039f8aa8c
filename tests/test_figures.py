"""One style and one colour for each method; the shared plots draw what they are given."""

import matplotlib

matplotlib.use("Agg")

import io
import json
import re

import numpy as np
import pytest
import torch
from colours import DARK, LIGHT, contrast, lifted
from matplotlib import pyplot as plt

from hnbook import figures
from hnlib import methods


@pytest.fixture(autouse=True)
def own_settings():
    with matplotlib.rc_context():
        yield
    plt.close("all")


def test_every_method_has_a_colour_that_reads_on_light_and_dark():
    assert set(methods.CATALOGUE) <= set(figures.COLOURS)
    for colour in figures.COLOURS.values():
        assert contrast(colour, LIGHT) > 2.1 and contrast(lifted(colour), DARK) > 3


def test_the_style_is_transparent_and_reproducible():
    figures.use_style()

    def svg():
        figure, ax = plt.subplots()
        ax.plot([0, 1], [0, 1], color=figures.COLOURS["hcl"])
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()

    first = svg()
    assert first == svg() and figures.COLOURS["hcl"] in first and "#ffffff" not in first


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_labels_of_lines_do_not_overlap_and_keep_order_and_colour(scale):
    _, ax = plt.subplots()
    for end, name in ((1.0, "hcl"), (1.001, "ot"), (5.0, "simclr"), (1.002, "adnce")):
        ax.plot([0, 1], [1, end], label=name, color=figures.COLOURS[name])
    ax.plot([0, 1], [2, 2])  # a line without a label gets none
    ax.set_yscale(scale)
    figures.label_lines(ax)
    heights = {text.get_text(): text.get_position()[1] for text in ax.texts}
    assert list(sorted(heights, key=heights.get)) == ["hcl", "ot", "adnce", "simclr"]
    assert np.diff(sorted(heights.values())).min() > 0.05
    assert {text.get_text(): text.get_color() for text in ax.texts}["ot"] == figures.COLOURS["ot"]


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
    assert not plt.get_fignums()
    with pytest.raises(ValueError, match=r"at most 4\.2 inches, got 7\.0"):
        figures.show(lambda narrow: plt.figure(figsize=(7.0, 3.0)))


LABEL = 'Move β and see a < b: "the bars" grow.'


def numbers_of(picture):
    """Return the HTML of a picture and the numbers in it, as the script of the page reads them."""
    page = picture._repr_html_()
    return page, json.loads(re.search(r'application/json">(.*?)</script>', page, re.S)[1])


def test_interactive_leaves_its_numbers_in_the_page():
    tensor = torch.tensor([[0.123456, 2.0]])
    data = dict(angle=np.arange(3), weight=tensor, same=[True], end="</script><b>", w=(0.5,))
    page, numbers = numbers_of(figures.interactive("class-mass", LABEL, **data))
    assert numbers == {
        "colours": figures.COLOURS,
        "angle": [0, 1, 2],
        "weight": [[0.1235, 2]],
        "same": [True],
        "end": "</script><b>",
        "w": [0.5],
    }
    assert page.count("<script") == page.count("</script") == 1


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([np.inf]), "not JSON compliant"),
        (np.random.default_rng(0).random(30_000), "must have at most 150,000"),
    ],
)
def test_interactive_refuses(x, message):
    with pytest.raises(ValueError, match=message):
        figures.interactive("path", LABEL, x=x)
