"""Where the checkout is, and the head of a notebook."""

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
