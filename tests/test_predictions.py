"""What is said of a prediction."""

import numpy as np
import pytest
from scipy import stats

from hnlib.book.measures import Level
from hnlib.book.predictions import Verdicts, inside, severity
from hnlib.results.comparisons import Effect


def effect(difference, error, df=9):
    return Effect(difference, error, df, "these images")


def both(**effects):
    return lambda metric: effects


def words(verdicts):
    return [row["verdict"] for row in verdicts.rows]


def test_inside_is_equivalence_with_more_than_one_seed():
    assert inside(effect(0.1, 0.1), 0.5)
    assert not inside(effect(1.0, 0.1), 0.5)
    assert not inside(effect(0.4, 0.2), 0.5)
    assert not inside(effect(0.0, float("inf"), 0), 0.5)


def test_nothing_is_called_while_something_is_missing():
    verdicts, few = Verdicts(), "1 of 3 seeds"
    verdicts.add("X1", "a", holds=True)
    verdicts.add("X2", "b", refuted=True)
    verdicts.add("X3", "c")
    verdicts.add("X4", "d", refuted=True, missing=few)
    assert words(verdicts) == ["holds", "refuted", "unresolved", f"open: {few}"]
    shown = verdicts.show("caption")._repr_html_()
    assert shown.count("<tr") == 5 and "open: 1 of 3 seeds" in shown and "caption" in shown


def within(low, high, word="inside"):
    """The ranges of a line that holds in one and is refuted outside."""
    return {word: [low, high]}, {"outside": [low, high]}


def test_lines_by_their_ranges():
    verdicts, close, far = Verdicts(), effect(0.1, 0.1), effect(1.0, 0.1)
    edge, one = effect(0.3, 0.1), Level("γ = 12", 12, 12)
    verdicts.judge("X1", "a", both(one=close, two=close), *within(-0.5, 0.5))
    verdicts.judge("X2", "b", both(one=close, two=far), *within(-0.5, 0.5))
    verdicts.judge("X3", "c", both(), *within(-0.5, 0.5), missing="2 seeds")
    verdicts.judge("X4", "d", both(one=far), *within(0.5, 1.5))
    verdicts.judge("X5", "e", both(one=close), {"above": 0.5}, {"below": 0.5})
    verdicts.judge("X6", "f", both(one=effect(0.4, 0.2)), {"above": 0.5}, {"below": 0.5})
    verdicts.judge("X7", "g", both(one=edge), *within(-0.5, 0.5))  # by two one-sided tests
    verdicts.judge("X8", "h", both(one=edge), *within(-0.5, 0.5, "whole"))
    verdicts.judge("X9", "i", both(one=one), *within(5, 20))
    verdicts.judge("X10", "j", both(one=one), *within(15, 20))
    verdicts.add("X11", "k", ("too few cells", ""), otherwise="undefined")
    expected = ["holds", "refuted", "open: 2 seeds", "holds", "refuted", "unresolved"]
    expected += ["holds", "unresolved", "holds", "refuted", "undefined"]
    assert words(verdicts) == expected
    assert verdicts.rows[8]["linear"] == "one γ = 12" and verdicts.rows[8]["severity"] == ""


def test_the_second_metric_is_shown_and_does_not_decide():
    verdicts = Verdicts()
    found = lambda metric: {"": effect(0.1 + 5 * (metric == "knn"), 0.1)}  # noqa: E731
    verdicts.judge("X", "a", found, *within(-0.5, 0.5))
    assert words(verdicts) == ["holds"] and "+5.1" in verdicts.rows[0]["knn"]


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
    normal = stats.norm.cdf(
        -1.96 - (low - at) / (sd / n**0.5)
    )  # the seeds' deviation not estimated
    assert low != -1 or abs(refuted.mean() - normal) > 0.05
