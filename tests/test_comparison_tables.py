"""Comparisons that share one variance."""

import numpy as np
import pandas as pd
import pytest

from hnbook.comparison_tables import READOUTS, Question
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
    pairs = {str(k): (group, base) for k, group in enumerate(others)} | {"": (base.iloc[:0], base)}
    found = Question(pairs, tuple(settings)).effects("linear")
    alone = [comparisons.between(group, base) for group in others]
    for ours, theirs in zip(found.values(), comparisons.family(alone, pooled=True), strict=True):
        assert ours.p == pytest.approx(theirs.p) and ours.df == theirs.df == 6
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    two = Question({"a": (others[0], others[1])}, tuple(settings)).effects()["a"]
    assert two.between == pytest.approx(found["0"].between) and two.family == 1
    assert two.between != pytest.approx(alone[0].between)
