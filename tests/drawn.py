"""What tests draw at random, the same in every run."""

import torch
from hypothesis import strategies as st

SEEDS = st.integers(0, 9999)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def views(seed=0, size=5, dimension=3, dtype=torch.float64):
    """Two views of a batch that have nothing in common."""
    g = seeded(seed)
    return [torch.randn(size, dimension, generator=g, dtype=dtype) for _ in range(2)]
