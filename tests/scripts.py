"""Where the checkout is, what was read of it, and texts of small pages and experiments."""

from pathlib import Path

#: The front matter of a MyST notebook.
HEAD = """---
kernelspec:
  name: python3
  display_name: Python 3
jupytext:
  text_representation:
    extension: .md
    format_name: myst
---

"""
ROOT = Path(__file__).resolve().parents[1]


def experiment(seeds: str, epochs: int) -> str:
    """Return the file of an experiment that trains one arm, dcl, on a few digits."""
    return f"""
question = "Is it trained?"
primary = "knn"
seeds = "{seeds}"
minutes = 0.1
[fields]
kind = "images"
dataset = "digits"
train_size = 64
batch_size = 32
epochs = {epochs}
[blocks]
digits = {{}}
[arms]
dcl = {{ method = "dcl", options = {{ temperature = 0.5 }} }}
"""


def forget():
    """Forget what was read of a checkout."""
    from builder import build
    from hnlib.notebooks import execute

    for cached in (execute.root, execute.sources, build.toc):
        cached.cache_clear()
