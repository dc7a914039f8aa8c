"""Comparisons that share one variance."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from hnbook.comparison_tables import READOUTS, OneVariance
from hnlib.experiments import comparisons


def groups(gains, seeds=(0, 1, 2), images=10_000):
    """Runs of settings that gain so many points over the first, with noise of their own."""
    rng = np.random.default_rng(0)
    start, found = rng.normal(0.5, 0.01, len(seeds)), []
    for number, gain in enumerate(gains):
        value = start + gain / 100 + rng.normal(0, 0.002, len(seeds))
        about = dict(record=[f"{number}-{x}" for x in seeds], seed=seeds, test_images=images)
        rounded = np.round(value * images) / images
        found.append(pd.DataFrame(about | dict(method="x") | dict.fromkeys(READOUTS, rounded)))
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
        assert ours.p == pytest.approx(theirs.p) and ours.df == theirs.df == 6
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
        assert ours.between != pytest.approx(alone[0].between)
    arms = {arm: group.iloc[:1] for arm, group in arms.items()}  # a page at one seed
    for arm, one in OneVariance(runs, pairs, "0123").effects("linear").items():
        assert one.df == 0 and one.difference == alone[int(arm) - 1].values[0]
