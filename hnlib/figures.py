"""One style for every figure, and one colour for every method everywhere."""

from __future__ import annotations

import html
import json
import math

import matplotlib.pyplot as plt
import numpy as np

GREY = "#7b7b7b"  # axes and text: reads on white and on the dark theme alike

# Okabe and Ito's colour-blind-safe palette, deepened where yellow and sky blue vanish on white; methods that never meet
# in one figure share a hue at another lightness.
COLOURS = {
    "simclr": "#7b7b7b",
    "infograph": "#6f7f8f",
    "debiased": "#a6761d",
    "hcl": "#d55e00",
    "hcl-node": "#e6893c",
    "ot": "#0072b2",
    "ot-semirelaxed": "#7570b3",
    "hcl-exact": "#8659c9",
    "centred-hcl": "#56a0d3",
    "bcl": "#e7969c",
    "alpha-cl": "#c7a76c",
    "adnce": "#cc79a7",
    "mw": "#9e5f88",
    "chi2-dro": "#6b8e23",
    "kl-budget": "#c51b7d",
    "unremix": "#b5489a",
    "unremix-repaired": "#4d4f9e",
    "scl": "#97a61b",
    "h-scl": "#009e73",
    "h-scl-threshold": "#b8860b",
}

PICTURES = ("balls", "class-mass", "masks", "packing", "path")  # the kinds that book/theme/pictures.js draws


def use_style() -> None:
    """Set matplotlib and seaborn up for the book: SVG in notebooks, transparent ground, mid-grey axes."""
    import seaborn as sns

    sns.set_theme(
        context="notebook",
        style="ticks",
        rc={
            "figure.figsize": (6.4, 3.6),
            "figure.facecolor": "none",
            "figure.constrained_layout.use": True,
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "savefig.transparent": True,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.labelsize": 10,
            "svg.fonttype": "path",
            "svg.hashsalt": "hnlib",
            **dict.fromkeys(
                ["text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"],
                GREY,
            ),
            "grid.color": GREY,
            "grid.alpha": 0.25,
        },
    )
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg")
    except ImportError:  # outside a notebook there is no inline backend to set
        pass


def heat_map(ax, matrix, title: str = "", vmin: float = 0.0, vmax: float | None = None, cmap: str = "rocket_r"):
    """Draw a matrix $[n,m]$ of weights with square cells and no ticks; returns the image for a colour bar."""
    image = ax.imshow(np.asarray(matrix), vmin=vmin, vmax=vmax, cmap=cmap, interpolation="nearest")
    ax.set(xticks=[], yticks=[], title=title)
    for spine in ax.spines.values():
        spine.set_visible(True)
    return image


def label_lines(ax, pad: float = 0.01) -> None:
    """Write each line's label at its right end in its own colour, apart enough to read, instead of a legend."""
    lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
    ends = [(np.asarray(line.get_ydata(), float)[-1], line) for line in lines]
    low, high = ax.get_ylim()
    to_axis = (lambda y: (np.log(y) - np.log(low)) / (np.log(high) - np.log(low))) if ax.get_yscale() == "log" else (
        lambda y: (y - low) / (high - low)
    )
    height, last = 0.055, -np.inf
    for y, line in sorted(ends, key=lambda pair: pair[0]):
        last = max(to_axis(y), last + height)
        ax.text(1 + pad, last, line.get_label(), color=line.get_color(), transform=ax.transAxes, va="center",
                fontsize=9)


def circle(ax, points, colours=None, labels=None) -> None:
    """Draw unit vectors $[n,2]$ as dots on the circle."""
    angle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(np.cos(angle), np.sin(angle), color=GREY, lw=0.8, alpha=0.6)
    points = np.asarray(points)
    ax.scatter(points[:, 0], points[:, 1], c=colours if colours is not None else GREY, zorder=3, s=42)
    for point, label in zip(points, labels or [], strict=False):
        ax.annotate(label, point, point * 1.18, ha="center", va="center")
    ax.set(aspect="equal", xlim=(-1.35, 1.35), ylim=(-1.35, 1.35))
    ax.axis("off")


class Picture:
    """The numbers of a picture that the reader moves, and the sentence that says what to move; shown by a notebook."""

    def __init__(self, kind: str, label: str, numbers: str):
        self.kind, self.label, self.numbers = kind, label, numbers

    def __repr__(self) -> str:
        return self.label

    def _repr_mimebundle_(self, include=None, exclude=None):
        # hidden until the script has drawn it: without a script, and on paper, the static figure stands alone
        box = (
            f'<div class="hn-picture" data-kind="{self.kind}" role="group" aria-label="{html.escape(self.label)}" '
            f'hidden><p class="hn-hint">{html.escape(self.label)}</p>'
            f'<script type="application/json">{self.numbers}</script></div>'
        )
        return {"text/plain": repr(self), "text/html": box}


def interactive(kind: str, data: dict, label: str) -> Picture:
    """A picture that ``book/theme/pictures.js`` draws in the page from the numbers in `data` and lets the reader move.

    `kind` is one of `PICTURES`. `data` holds numbers, texts, arrays, tensors, and lists and dictionaries of them;
    numbers are rounded to four digits after the point, and `COLOURS` travel with them. `label` is a sentence that says
    what to move and what to see; it stands above the picture and is its accessible name.
    ValueError: an unknown kind, a label of fewer than 20 characters, a number that is not finite, more than 40 kB.
    """
    if kind not in PICTURES:
        raise ValueError(f"kind={kind!r} is unknown; use one of {', '.join(PICTURES)}")
    if len(label) < 20:
        raise ValueError(f"label={label!r} is too short; say in a sentence what to move and what to see")

    def plain(value):
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"the picture {kind!r} holds {value}; leave it out or name it in a text")
            return int(value) if value.is_integer() else round(value, 4)
        return value

    numbers = json.dumps(plain({"colours": COLOURS, **data}), separators=(",", ":"), ensure_ascii=False)
    numbers = numbers.replace("<", "\\u003c")  # nothing in it can end the script element
    if len(numbers.encode()) > 40_000:
        raise ValueError(f"the picture {kind!r} holds {len(numbers.encode()):,} bytes; give it fewer frames (40,000)")
    return Picture(kind, label, numbers)


__all__ = ["COLOURS", "GREY", "PICTURES", "circle", "heat_map", "interactive", "label_lines", "plt", "use_style"]
