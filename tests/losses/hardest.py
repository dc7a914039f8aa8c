import torch

CONFIGURATIONS = [{"margin": 0.2}, {"margin": 0.5}, {"margin": 1.0}]


def loss(a, b, margin):
    """Hinge on the hardest negative of each query."""
    s = a @ b.T
    hardest = (s - 4 * torch.eye(len(a))).max(1).values
    return torch.relu(margin + hardest - s.diagonal()).mean()
