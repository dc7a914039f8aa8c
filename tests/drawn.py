"""What tests draw at random, the same in every run."""

import torch
from hypothesis import strategies as st

from hnlib.contrast import Contrast

SEEDS = st.integers(0, 9999)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def views(seed=0, size=5, dimension=3, dtype=torch.float64):
    """Two views of a batch that have nothing in common."""
    g = seeded(seed)
    return [torch.randn(size, dimension, generator=g, dtype=dtype) for _ in range(2)]


def space(seed, n=4, m=6):
    """A finite space without embeddings, dense: few rows and columns have no negative."""
    g = seeded(seed)
    s = 2 * torch.rand(n, m, generator=g, dtype=torch.float64) - 1
    positives = torch.rand(n, m, generator=g) < 0.25
    positives[torch.arange(n), torch.randint(m, (n,), generator=g)] = True
    admissible = torch.rand(n, m, generator=g) < 0.7
    admissible[:, 1] = admissible[0] = True
    return Contrast.from_similarity(s, positives, admissible)
