"""Focal InfoNCE as in KaLM: an anchor's weight 1 − p, without gradient, at four temperatures."""

from hnlib import methods

CONFIGURATIONS = [{"t": t} for t in (0.5, 0.2, 0.1, 0.05)]


def loss(a, b, t):
    """Return the loss of the catalogue on pairs."""
    return methods.build("focal", temperature=t).pairs(a, b)
