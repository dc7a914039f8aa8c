import math

CONFIGURATIONS = [{"scale": 3.0}, {"scale": 7.0}, {"scale": 14.0}]


def loss(a, b, scale):
    """Bits to name the answer if it is drawn with odds that double with every 1/scale."""
    leads = scale * (a @ b.T - (a * b).sum(1, keepdim=True)) * math.log(2)
    return leads.logsumexp(1).mean() / math.log(2)
