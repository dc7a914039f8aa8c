import torch

CONFIGURATIONS = [{"width": 0.7}, {"width": 0.45}, {"width": 0.3}]


def loss(a, b, width):
    """Which Gaussian, centred at a key, drew the query?"""
    density = torch.exp(-(torch.cdist(a, b) ** 2) / (2 * width**2))
    return -(density.diagonal() / density.sum(1)).log().mean()
