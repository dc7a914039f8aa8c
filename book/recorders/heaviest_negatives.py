"""Record on which negatives the losses of the experiment *anatomy* push: no run records it.

`python book/recorders/heaviest_negatives.py` trains the models that `_build/models` lacks, with
5,000 images held out and in bf16, and writes `heaviest_negatives.json`.
"""

import ledgers

from hnbook import weights
from hnlib import experiments


def measured() -> dict:
    """Return the shares, and configuration and environment of the first model."""
    held_out = experiments.recorded("anatomy", validation=5000, precision="bf16-mixed")
    arm, seed = held_out.design.names()[0], held_out.design.seeds[0]
    first = experiments.model(held_out, arm, seed).record
    about = {part: first[part] for part in ("configuration", "environment")}
    return weights.measured(held_out) | about


if __name__ == "__main__":
    ledgers.record("heaviest_negatives.json", measured)
