"""What is said of a prediction."""

import numpy as np
import pytest
from scipy import stats

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


def test_lines_by_their_margins():
    verdicts, close, far = Verdicts(), effect(0.1, 0.1), effect(1.0, 0.1)
    verdicts.equivalent("X1", "a", both(one=close, two=close), 0.5)
    verdicts.equivalent("X2", "b", both(one=close, two=far), 0.5)
    verdicts.equivalent("X3", "c", both(), 0.5, missing="2 seeds")
    verdicts.between("X4", "d", both(one=far), 0.5, 1.5)
    verdicts.between("X5", "e", both(one=close), 0.5, 1.5)
    verdicts.between("X6", "f", both(one=effect(0.4, 0.2)), 0.5, 1.5)
    verdicts.add("X7", "g", ("too few cells", ""), otherwise="undefined")
    expected = ["holds", "refuted", "open: 2 seeds", "holds", "refuted", "unresolved", "undefined"]
    assert words(verdicts) == expected


def test_the_second_metric_is_shown_and_does_not_decide():
    verdicts = Verdicts()
    verdicts.equivalent("X", "a", lambda m: {"": effect(0.1 + 5 * (m == "knn"), 0.1)}, 0.5)
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
