"""Files of the book that its pages read, from the checkout or as installed."""

from pathlib import Path

from hnlib._files import of_checkout
from hnlib.training import records


def book_file(name: str) -> Path:
    """Return a file of the book; a chapter is executed again when it changes."""
    path = of_checkout(name)
    records.depend(path)
    return path
