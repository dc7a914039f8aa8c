"""Files of the book that its pages read, from the checkout or as installed."""

from pathlib import Path

from hnlib._files import INSTALLED, project_root
from hnlib.training import records


def book_file(name: str) -> Path:
    """Return a file of the book; a chapter is executed again when it changes."""
    for folder in (project_root(), INSTALLED):
        path = folder / name
        if path.is_file():
            records.depend(path)
            return path
    raise ValueError(f"{name} is neither in a checkout around {Path.cwd()} nor installed")
