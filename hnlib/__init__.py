"""Hard negatives in contrastive learning: a method is a distribution over an anchor's negatives.

Nothing is imported here, so that ``import hnlib`` and the command line stay quick; import the
modules that you need, as in ``from hnlib import negatives, objectives``.
"""

__version__ = "0.2.0"
