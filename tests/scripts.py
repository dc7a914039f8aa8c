"""Scripts that belong to no package, as modules, and the head of a notebook."""

import importlib.util
import sys
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


def script(path):
    """The module that the file at `path`, seen from the checkout, is."""
    path = ROOT / path
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # worker processes look a module up by its name
    spec.loader.exec_module(module)
    return module
