r"""Graphs: InfoGraph and GraphCL with any negatives, on PyTorch Geometric.

InfoGraph contrasts every node with the graphs of its batch, GraphCL two views of every graph.
Layers, batches and data sets are PyTorch Geometric's; what is chosen here is the law of the
negatives.
"""

try:
    import torch_geometric  # noqa: F401
except ImportError as error:
    raise ImportError(
        "hnlib.graphs needs PyTorch Geometric; install it with: pip install 'hnlib[graphs]'"
    ) from error

from hnlib.graphs import data, encoders, methods, views

__all__ = ["data", "encoders", "methods", "views"]
