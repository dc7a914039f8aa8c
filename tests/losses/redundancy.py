CONFIGURATIONS = [{"off": 0.005}, {"off": 0.02}, {"off": 0.1}]


def loss(a, b, off):
    """Cross-correlation of the coordinates: ones on its diagonal, zeros beside it."""
    a, b = ((x - x.mean(0)) / (x.std(0) + 1e-6) for x in (a, b))
    c = a.T @ b / len(a)
    diagonal = c.diagonal()
    return ((1 - diagonal) ** 2).sum() + off * ((c**2).sum() - (diagonal**2).sum())
