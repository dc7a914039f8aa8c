"""Graphs: InfoGraph and GraphCL with any negatives, on PyTorch Geometric."""

from importlib import import_module


def __getattr__(name: str):  # on first use: the options of a run need no PyTorch Geometric
    if name in ("data", "encoders", "methods", "task", "views"):
        return import_module(f"hnlib.graphs.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
