"""Where the checkout is, what was read of it, and the head of a notebook."""

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


def forget():
    """Forget what was read of a checkout."""
    from builder import build
    from hnlib.notebooks import execute

    for cached in (execute.root, execute.sources, build.toc):
        cached.cache_clear()
