"""What is said of a prediction."""

import numpy as np
import pytest
from scipy import stats

from hnlib import experiments
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.predictions import STATISTICS, Level, judge, severe, severity, worded


def effect(difference, error, df=9):
    return Effect(difference, error, df, "these images")


def test_lines_by_their_ranges():
    close, far, edge, alone = effect(0.1, 0.1), effect(1.0, 0.1), effect(0.3, 0.1), effect(0, 0, 0)
    wide, level, half = effect(0.4, 0.2), Level("γ = 12", 12, 12), [-0.5, 0.5]
    for found, word, bounds, expected in (
        ([close, close], "inside", half, "holds"),
        ([close, far], "inside", half, "refuted"),
        ([far], "inside", [0.5, 1.5], "holds"),
        ([close], "above", 0.5, "refuted"),
        ([wide], "above", 0.5, "unresolved"),
        ([edge], "inside", half, "holds"),  # by two one-sided tests
        ([edge], "whole", half, "unresolved"),
        ([level], "inside", [5, 20], "holds"),
        ([level], "inside", [15, 20], "refuted"),
        ([alone], "inside", half, "unresolved"),  # one seed has no interval
        ([], "inside", half, "unresolved"),
    ):
        refuted = {"below": bounds} if word == "above" else {"outside": bounds}
        named = dict(zip("ab", found))
        assert judge(named, {word: bounds}, refuted) == expected, (found, word)
        assert ("at" in severe(named, {word: bounds})) == any(
            x not in (level, alone) for x in found
        )
    assert worded({"one": level, "": level}) == "one γ = 12; γ = 12"


def test_severity_is_at_zero_of_either_sign():
    """Of a range that ends at −1 without another end the truth is 0, never −0."""
    assert severe({"": effect(-1.2, 0.1, 4)}, {"below": -1.0}) == "1.00 at 0"


@pytest.mark.parametrize(
    ("low", "high", "truth"), [(-1, 1, -2), (0, 2, -1), (2, np.inf, 0), (-np.inf, 0, 1)]
)
def test_severity_is_the_rate_of_refutation_in_simulated_experiments(low, high, truth):
    rng, n, sd = np.random.default_rng(0), 5, 0.9
    at, chance = severity(effect(0.0, sd / n**0.5, n - 1), low, high)
    d = at + sd * rng.standard_normal((40_000, n))
    half = stats.t.isf(0.025, n - 1) * d.std(1, ddof=1) / n**0.5
    refuted = (d.mean(1) + half < low) | (d.mean(1) - half > high)
    assert at == truth and abs(refuted.mean() - chance) < 0.01
    known = stats.norm.cdf(-1.96 - (low - at) / (sd / n**0.5))  # if the deviation were
    assert low != -1 or abs(refuted.mean() - known) > 0.05


def test_a_prediction_names_what_can_be_computed():
    """Before its runs are complete nothing would notice a statistic that is gone."""
    for name in experiments.names():
        for line in experiments.load(name).predictions:
            assert {"compare", "settled"} & {*line} or line["statistic"] in STATISTICS, line["id"]
