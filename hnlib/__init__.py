"""Hard negatives in contrastive learning: every method as a distribution over the negatives of each
anchor.

Nothing is imported here, so that ``import hnlib`` and the command line stay quick; import the rooms
one needs, as in ``from hnlib import negatives, objectives``.
"""

__version__ = "0.2.0"
