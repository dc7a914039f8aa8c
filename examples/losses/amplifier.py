"""Explicit gradient amplifier (Xue, Li and Liu, arXiv 2506.02020), as we read it.

The paper multiplies the gradient of each negative by a factor that grows with its similarity
relative to the positive's. Here the factor is exp(alpha (s - s+)), and the rows of probabilities
are normalised again. The repository of the paper has no training loss to compare this with.

    hnlib null examples/losses/amplifier.py
"""

from torch import arange
from torch.nn.functional import cross_entropy

CONFIGURATIONS = [
    {"t": 0.05, "alpha": 5.0},
    {"t": 0.1, "alpha": 5.0},
    {"t": 0.1, "alpha": 10.0},
    {"t": 0.2, "alpha": 5.0},
]


def loss(a, b, t, alpha):
    """InfoNCE whose negatives have the weights e^(alpha (s - s+)), without gradient."""
    s = a @ b.T
    harder = alpha * (s - s.diagonal()[:, None]).detach()
    return cross_entropy(s / t + harder, arange(len(a), device=a.device))
