"""BPR: the logistic loss of the margin to each negative, at four temperatures."""

from hnlib import methods

CONFIGURATIONS = [{"t": t} for t in (0.5, 0.2, 0.1, 0.05)]


def loss(a, b, t):
    """Return the loss of the catalogue on pairs."""
    return methods.build("bpr", temperature=t).pairs(a, b)
