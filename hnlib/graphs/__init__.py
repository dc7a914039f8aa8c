"""Graphs: InfoGraph and GraphCL with any negatives, on PyTorch Geometric."""
