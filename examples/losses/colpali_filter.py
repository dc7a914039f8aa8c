"""The filter of false negatives in ColPali's losses (`BiEncoderLoss`, colpali-engine 0.3.18).

A negative that scores more than `threshold` times the positive counts with `factor` times its
score. Defaults as released; the other configurations are other temperatures.

    hnlib null examples/losses/colpali_filter.py
"""

import torch
from torch.nn.functional import cross_entropy

CONFIGURATIONS = [{"t": 0.02}, {"t": 0.05}, {"t": 0.1}, {"t": 0.2}]


def loss(a, b, t, threshold=0.95, factor=0.5):
    """InfoNCE that scales down the scores of suspects."""
    s, eye = a @ b.T, torch.eye(len(a), dtype=torch.bool, device=a.device)
    suspects = (s > threshold * s.diagonal()[:, None]) & ~eye
    logits = torch.where(suspects, factor * s, s) / t
    return cross_entropy(logits, torch.arange(len(a), device=a.device))
