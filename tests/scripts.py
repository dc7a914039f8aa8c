"""Scripts that belong to no package, as modules."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def script(path):
    """The module that the file at `path`, seen from the checkout, is."""
    path = ROOT / path
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # worker processes look a module up by its name
    spec.loader.exec_module(module)
    return module
