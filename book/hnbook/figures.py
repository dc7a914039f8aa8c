"""One style for every figure, and one colour for every method everywhere."""

from __future__ import annotations

import base64
import functools
import html
import io
import json
from pathlib import Path

import matplotlib.pyplot as plt
import matplotlib.text as mtext
import numpy as np

from hnlib.training import records

GREY = "#737373"  # of axes and text, as in book.mplstyle

# Okabe and Ito's colour-blind-safe palette, deepened where yellow and sky blue vanish on white, and
# hues between, moved until the nearest two of all methods are as far apart as can be.
COLOURS = {
    "simclr": "#737373",
    "infograph": "#6ba3aa",
    "dcl": "#d64ae6",
    "focal": "#215c38",
    "siglip": "#3a44e6",
    "artanh": "#a80018",
    "weince": "#fc3c9c",
    "bpr": "#a800fc",
    "gbce": "#00747c",
    "warp": "#7a5230",
    "soft-targets": "#e0609a",
    "debiased": "#955415",
    "hcl": "#d55e00",
    "hcl-node": "#e6893c",
    "ot": "#0072b2",
    "ot-semirelaxed": "#866cb0",
    "hcl-exact": "#8442c3",
    "centred-hcl": "#809ee7",
    "bcl": "#e7969c",
    "bcl-ot": "#268aeb",
    "alpha-cl": "#b19d80",
    "adnce": "#cc79a7",
    "mw": "#af6269",
    "chi2-dro": "#6f8125",
    "kl-budget": "#d30a5f",
    "unremix": "#b5489a",
    "unremix-printed": "#7d3665",
    "unremix-repaired": "#4d4f9e",
    "mochi": "#128b99",
    "scl": "#84ac12",
    "h-scl": "#009e73",
    "h-scl-threshold": "#b8860b",
    "supcon": "#00cc18",
    "accent": "#9669ff",  # no method: an anchor's own class, or what stands beside something grey
}

STYLE = Path(__file__).with_name("book.mplstyle")
NARROW = 4.2  # inches: on a phone of 390 pixels, letters of 9 pt are 10 pixels high
LARGEST = 150_000  # bytes of one picture's numbers: a tenth of what a page may weigh


def use_style() -> None:
    """Set matplotlib and seaborn up for the book, by `book.mplstyle` beside this module."""
    import seaborn as sns
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    plt.uninstall_repl_displayhook()  # else a cell's figure is drawn once more, for no output
    # matplotlib makes a parser of formulas for each file, with a cache of its own: let all share it
    shared = mtext.TextToPath()
    mtext.TextToPath = lambda: shared
    sns.set_theme(context="notebook", style="ticks")
    records.depend(STYLE)
    plt.style.use(STYLE)
    set_matplotlib_formats("svg")


def heat_map(ax, matrix, title="", vmax=None, cmap="rocket_r"):
    """Draw a matrix [n, m] of weights, with NaN in grey, and return the image for a colour bar."""
    colours = plt.get_cmap(cmap).with_extremes(bad=GREY)
    look = {"vmin": 0.0, "vmax": vmax, "cmap": colours, "interpolation": "nearest"}
    image = ax.imshow(np.asarray(matrix), **look)
    ax.set(xticks=[], yticks=[], title=title)
    for spine in ax.spines.values():
        spine.set_visible(True)
    return image


def label_lines(ax) -> None:
    """Write each line's label at its right end in the line's colour, without overlaps."""
    lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
    scale = np.log if ax.get_yscale() == "log" else np.asarray
    low, high = scale(ax.get_ylim())
    ends = [(scale(float(line.get_ydata()[-1])) - low) / (high - low) for line in lines]
    last = -np.inf
    for end, line in sorted(zip(ends, lines), key=lambda pair: pair[0]):
        last = max(end, last + 0.055)
        style = {"color": line.get_color(), "transform": ax.transAxes, "va": "center"}
        ax.text(1.01, last, line.get_label(), fontsize=9, **style)


def log_ticks(ax, ticks) -> None:
    """Make the horizontal axis logarithmic, with only these ticks."""
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()


def effect(ax, effect, y: float, colour: str, hollow: bool = False, marker: str = "o") -> None:
    """Draw a difference and its interval at the height y."""
    style = {"fmt": marker, "ms": 5, "color": colour, "mfc": "none" if hollow else colour}
    ax.errorbar(effect.difference, y, xerr=effect.high - effect.difference, **style)


def effect_pairs(ax, rows, xlabel: str) -> None:
    """Draw a difference in each row, or two, the second hollow: (first, second, colour) by name."""
    for y, (*effects, colour) in enumerate(rows.values()):
        for k, one in enumerate(effects):
            effect(ax, one, y - 0.15 + 0.3 * k, colour, hollow=k > 0)
    effect_rows(ax, [*rows], xlabel)


def effect_rows(ax, names, xlabel: str) -> None:
    """Label rows 0, 1, … from the top, and draw a vertical line at zero difference."""
    ax.axvline(0, color=GREY, lw=0.8, ls="--")
    ax.set_yticks(range(len(names)), names, fontsize=10)
    ax.set(ylim=(len(names) - 0.5, -0.5))
    # beside long names a phone leaves an axis that is shorter than its label
    ax.set_xlabel(xlabel, loc="right" if ax.figure.get_figwidth() <= NARROW else "center")


def circle(ax, points, colours=GREY, **style) -> None:
    """Draw unit vectors [n, 2] as dots on the circle, in a style of `scatter`."""
    angle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(np.cos(angle), np.sin(angle), color=GREY, lw=0.8, alpha=0.6)
    ax.scatter(*np.asarray(points).T, c=colours, **({"zorder": 3, "s": 42} | style))
    ax.set(aspect="equal", xlim=(-1.35, 1.35), ylim=(-1.35, 1.35))
    ax.axis("off")


def panels(count: int, size: tuple[float, float], columns=None, **options):
    """Show what the decorated function draws on ``count`` axes, stacked on a phone.

    ``size`` is that of the wide figure in inches; panels of the narrow one have the same height.
    ``columns`` are those of the wide and of the narrow figure, by default ``(count, 1)``. Further
    options are those of `matplotlib.pyplot.subplots`. *How we compare* has an example.
    """
    columns = columns or (count, 1)
    rows = [-(-count // across) for across in columns]

    def figure(draw, narrow: bool):
        grid = {"squeeze": False, "figsize": size} | options
        if narrow:
            grid |= {"figsize": (NARROW, size[1] * rows[1] / rows[0]), "width_ratios": None}
            grid["gridspec_kw"] = {"hspace": 0.1}  # a title belongs to the panel below it
        figure, axes = plt.subplots(rows[narrow], columns[narrow], **grid)
        for ax in axes.flat[count:]:
            ax.remove()
        draw(*axes.flat[:count])
        return figure

    return lambda draw: show(functools.partial(figure, draw))


def show(draw) -> None:
    """Display a figure for wide screens that a phone replaces by a narrow one.

    ``draw(narrow)`` returns a figure; if ``narrow``, it is at most `NARROW` inches wide. `panels`
    does both for figures whose panels are stacked.
    """
    from IPython.display import display

    wide, narrow = draw(False), draw(True)
    if (width := narrow.get_figwidth()) > NARROW:
        raise ValueError(f"a narrow figure has at most {NARROW} inches, got {width}")
    drawn = [_svg(figure) for figure in (wide, narrow)]
    plt.close(wide)
    plt.close(narrow)
    display(
        {"image/svg+xml": drawn[0], "text/plain": "figure"}, raw=True, metadata={"narrow": drawn[1]}
    )


def _svg(figure) -> str:
    """Return a figure as SVG, cropped."""
    file = io.StringIO()
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    return file.getvalue()


def interactive(kind: str, label: str, /, **data):
    """Return a picture that a script of ``book/theme`` draws and lets the reader change.

    Parameters
    ----------
    kind : str
        One of the kinds in ``pictures.js`` or ``typed.js``.
    label : str
        A sentence that says what to move and what to see: the text above the picture and its
        accessible name.
    **data
        Numbers, texts, arrays, tensors, and lists and dictionaries of them. Numbers are rounded to
        four digits after the point; `COLOURS` are added.

    Raises
    ------
    ValueError
        If a number is not finite, or the numbers take more than 150 kB.
    """
    from IPython.display import HTML

    def rounded(digits: str):
        value = round(float(digits), 4)
        return int(value) if value.is_integer() else value

    text = json.dumps(data, default=lambda array: array.tolist(), allow_nan=False)
    data = {"colours": COLOURS} | json.loads(text, parse_float=rounded)
    numbers = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    numbers = numbers.replace("<", "\\u003c")  # so that nothing in it ends the script element
    if (size := len(numbers.encode())) > LARGEST:
        raise ValueError(f"{kind!r} must have at most {LARGEST:,} bytes of numbers, got {size:,}")
    # hidden until the script has drawn it: without a script, and on paper, only the static figure
    # is shown
    name = html.escape(label)
    box = f'data-kind="{kind}" role="group" aria-label="{name}" hidden'
    hint = f'<p class="hn-hint">{name}</p><script type="application/json">{numbers}</script>'
    return HTML(f'<div class="hn-picture" {box}>{hint}</div>')


def coordinates(points) -> str:
    """Pack unit points [..., n, d], n in all, for ``book/theme/typed.js``.

    In coordinates of their span, point i has i + 1 of them: n(n + 1)/2 numbers of 16 bits, in
    base64.
    """
    points = np.asarray(points, dtype=float)
    points = points.reshape(-1, points.shape[-1])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    triangle = np.linalg.qr(points.T)[1].T
    packed = np.round(32767 * triangle[np.tril_indices(len(points))]).astype("<i2")
    return base64.b64encode(packed.tobytes()).decode()
