CONFIGURATIONS = [{"push": 1.0}, {"push": 0.5}, {"push": 2.0}]


def loss(a, b, push):
    """Pull the pairs together, and push all negatives alike."""
    s, n = a @ b.T, len(a)
    positive = s.diagonal().mean()
    return push * (s.sum() - s.diagonal().sum()) / (n * (n - 1)) - positive
