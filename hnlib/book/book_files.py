"""The files of the book that its pages read, from the checkout or as installed."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd

from hnlib._files import INSTALLED, project_root
from hnlib.training import records


def book_file(name: str) -> Path:
    """Return a file or folder of the book; the chapter is executed again when the file changes."""
    for folder in (project_root(), INSTALLED):
        path = folder / name
        if path.exists():
            if path.is_file():
                records.depend(path)
            return path
    raise ValueError(f"{name} is neither in a checkout around {Path.cwd()} nor installed")


def measurement(name: str) -> dict:
    """Return numbers measured for the book, from `book/results/NAME.json`."""
    return json.loads(book_file(f"book/results/{name}.json").read_text(encoding="utf-8"))


def stages() -> dict[str, np.ndarray]:
    """Return recorded batches by data and stage: two views of unit embeddings [2, pairs, d]."""
    with np.load(book_file("book/results/stages.npz")) as file:
        return dict(file)


def printed() -> pd.DataFrame:
    """Return the numbers printed in the papers; lines of papers.csv that begin with # are left out.

    `run` is the setting in papers.toml, or the reason why there is none.
    """
    numbers = dict.fromkeys(("value", "spread"), float)
    return pd.read_csv(  # pyright: ignore[reportCallIssue]
        book_file("book/results/papers.csv"),
        comment="#",
        skipinitialspace=True,
        dtype=defaultdict(lambda: str, numbers),
        keep_default_na=False,
        na_values={name: [""] for name in (*numbers, "note")},
    )
