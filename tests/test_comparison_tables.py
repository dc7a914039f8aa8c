"""Comparisons that share one variance."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from hnbook.comparison_tables import READOUTS, OneVariance
from hnlib.experiments import comparisons


def groups(gains):
    """Runs of three seeds that gain so many points over the first, with noise of their own."""
    rng = np.random.default_rng(0)
    start, found = rng.normal(0.5, 0.01, 3), []
    for number, gain in enumerate(gains):
        value = np.round(start + gain / 100 + rng.normal(0, 0.002, 3), 4)
        about = dict(record=[f"{number}-{x}" for x in range(3)], seed=range(3), test_images=10_000)
        found.append(pd.DataFrame(about | dict.fromkeys(READOUTS, value)))
    return found


def test_pooled_as_the_family_of_all_settings():
    """Against one base it is `comparisons.family(pooled=True)`; an absent group is left out."""
    base, *others = settings = groups([0, 0, 1, 2])
    arms = {str(k): group for k, group in enumerate(settings)} | {"absent": base.iloc[:0]}
    runs = SimpleNamespace(group=lambda arm, block: arms[arm])
    pairs = {arm: (arm, "0") for arm in ("1", "2", "3", "absent")}
    found = OneVariance(runs, pairs, "0123").effects("linear")
    alone = [comparisons.between(group, base) for group in others]
    for ours, theirs in zip(found.values(), comparisons.family(alone, pooled=True), strict=True):
        assert ours.df == theirs.df == 6 and ours.between != pytest.approx(alone[0].between)
        for name in ("p", "low", "high"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name))
    arms = {arm: group.iloc[:1] for arm, group in arms.items()}  # a page at one seed
    assert all(x.df == 0 for x in OneVariance(runs, pairs, "0123").effects("linear").values())
