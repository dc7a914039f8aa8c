"""Colours as the pages show them: contrast, the two grounds, and what the dark theme makes of a
figure."""

import re

from matplotlib import colors

from hnlib import _files

CSS = (_files.project_root() / "book/theme/book.css").read_text(encoding="utf-8")
LIGHT, DARK = re.findall(r"--pst-color-background: (#[0-9a-f]{6})", CSS)
(LIFT,) = map(float, re.findall(r"filter: brightness\(([\d.]+)\)", CSS))


def shares(colour):
    """Red, green and blue in [0, 1] of what matplotlib or a browser, ``rgb(r, g, b)``, names."""
    if isinstance(colour, str) and colour.startswith("rgb"):
        return [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    return colors.to_rgb(colour)


def luminance(colour):
    """Relative luminance (WCAG)."""
    parts = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one, other):
    """Contrast ratio of two colours (WCAG)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lifted(colour):
    """A colour of a figure as the dark theme shows it."""
    return [min(1.0, LIFT * x) for x in shares(colour)]
