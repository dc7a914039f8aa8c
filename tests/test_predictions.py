"""What is said of a prediction."""

import pytest

from hnlib.book.predictions import Verdicts, inside, outside
from hnlib.results.comparisons import Effect


def effect(difference, error, df=9):
    return Effect(difference, error, df, "these images")


def test_inside_is_equivalence_outside_the_whole_interval_and_between_is_neither():
    close, far, vague = effect(0.1, 0.1), effect(1.0, 0.1), effect(0.4, 0.2)
    assert inside(close, 0.5) and not outside(close, 0.5)
    assert outside(far, 0.5) and not inside(far, 0.5)
    assert outside(effect(-1.0, 0.1), 0.5)
    assert not inside(vague, 0.5) and not outside(vague, 0.5)
    assert not inside(effect(0.0, float("inf"), 0), 0.5)  # one seed


def test_a_verdict_is_open_while_something_is_missing():
    verdicts, few = Verdicts(), "1 of 3 seeds"
    verdicts.add("X1", "a", "1.0", holds=True)
    verdicts.add("X2", "b", "1.0", refuted=True)
    verdicts.add("X3", "c")
    verdicts.add("X4", "d", "9", refuted=True, missing=few)  # no further run undoes it
    verdicts.add("X5", "e", "9", holds=True, missing=few)
    words = [row["verdict"] for row in verdicts.rows.values()]
    assert words == ["holds", "refuted", "unresolved", "refuted", f"open: {few}"]
    with pytest.raises(ValueError, match="X6 cannot both hold and be refuted"):
        verdicts.add("X6", "f", "9", True, True)
    shown = verdicts.show("caption")._repr_html_()
    assert shown.count("<tr") == 6 and "open: 1 of 3 seeds" in shown and "caption" in shown


def test_lines_by_their_margins():
    verdicts, close, far = Verdicts(), effect(0.1, 0.1), effect(1.0, 0.1)
    verdicts.equivalent("X1", "a", {"one": close, "two": close}, 0.5)
    verdicts.equivalent("X2", "b", {"one": close, "two": far}, 0.5)
    verdicts.equivalent("X3", "c", {}, 0.5, missing="2 seeds")
    verdicts.between("X4", "d", far, 0.5, 1.5)
    verdicts.between("X5", "e", close, 0.5, 1.5)
    verdicts.between("X6", "f", None, 0.5, 1.5)
    verdicts.undefined("X7", "g", "too few cells")
    words = [row["verdict"] for row in verdicts.rows.values()]
    assert words == [
        "holds",
        "refuted",
        "open: 2 seeds",
        "holds",
        "refuted",
        "unresolved",
        "undefined",
    ]
