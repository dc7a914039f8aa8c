"""What is on the pages of the printed book, from pictures of them: poppler draws, numpy looks."""

import re
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

DPI = 24
FOOT = 0.75  # inches: nothing is lower but the number of the page
LEAST = 0.5  # of a page that another one of the same chapter follows


def pictures(pdf: Path, folder: Path) -> list[np.ndarray]:
    """Return the pages, dark from 0 to 1, as arrays [height, width]."""
    command = ["pdftoppm", "-r", str(DPI), "-gray", str(pdf), str(folder / "page")]
    subprocess.run(command, check=True, capture_output=True)
    return [1 - np.asarray(Image.open(path)) / 255 for path in sorted(folder.glob("page-*.pgm"))]


def openings(pdf: Path) -> list[str]:
    """Return the first characters of each page: fine print says whose it is above its title."""
    done = subprocess.run(["pdftotext", str(pdf), "-"], check=True, capture_output=True, text=True)
    return [page.strip()[:300] for page in done.stdout.split("\f")]


def ends(first: list[str], titles: list[str]) -> set[int]:
    """Return the numbers, from 1, of pages that a page with a title, in this order, follows.

    A chapter's number is part of its title on the web alone.
    """
    waiting = [letters(re.sub(r"^\w{1,2}\.\s", "", title))[:20] for title in titles]
    found = set()
    for n, opening in enumerate(map(letters, first)):
        if waiting and re.match(rf"(fineprintof.*)?\d*{waiting[0]}", opening):
            found.add(n)
            waiting.pop(0)
    if waiting:
        raise ValueError(f"no page begins with {waiting[0]!r}")
    return found | {len(first) - 1}  # after the last page there is nothing


def letters(text: str) -> str:
    """Return letters and digits alone: a hyphen at a line's end is lost, a dash has two forms."""
    return "".join(filter(str.isalnum, text.lower()))


def filled(page: np.ndarray) -> float:
    """Return how far down a page there is something, as a share of the room above its foot."""
    room = page[: len(page) - round(FOOT * DPI)]
    rows = np.flatnonzero(room.max(1) > 0.1)
    return (rows[-1] + 1) / len(room) if len(rows) else 0.0


def half_empty(pages: list[np.ndarray], last: set[int]) -> list[int]:
    """Return the numbers, from 1, of pages that are too empty; `last` are those before a chapter."""
    return [n for n, page in enumerate(pages, 1) if n not in last and filled(page) < LEAST]
