"""A check of a claim can pass, can fail, and is refused if it cannot fail."""

import math

import pytest
import torch

from hnbook import claims


@pytest.fixture
def line(monkeypatch):
    """Return what a check shows of a value and a control."""
    shown = []
    monkeypatch.setattr(claims, "display", shown.append)

    def check(*seen, tolerance=1e-9, kind="inequality"):
        with claims.check("S1", "x", tolerance, kind) as see:
            for one in seen:
                see(*one)
        return shown.pop()

    return check


def test_a_check_shows_the_largest_of_all_it_has_seen(line):
    passed = line((torch.tensor([-1.0, 1e-12]).double(), [0.0, 0.3]), (-2.0, 0.1, 4000))
    numbers = dict(value=pytest.approx(1e-12), tolerance=1e-9, instances=4002, control=0.3)
    numbers |= dict(failed=2, controls=3)
    assert passed.record == dict(id="S1", title="x", kind="inequality") | numbers
    assert "discrepancy 1e-12 ≤ 1e-09 · 4,002 instances · control 0.3, fails in 2 of 3" in repr(
        passed
    )
    assert "control" not in repr(line((1e-9,), kind="definition"))


FAILS = r"S1 x: the discrepancy .* exceeds the tolerance 1e-09"
PASSES = r"negative control passes .*could not have failed"


@pytest.mark.parametrize(
    ("seen", "how", "message"),
    [
        ([(0.0, 1.0), (1.1e-9, 1.0)], {}, FAILS),
        ([(math.inf, 1.0)], {}, FAILS),
        ([([0.0, math.nan], 1.0)], {}, FAILS),
        ([(0.0, 1e-9)], {}, PASSES),
        ([(0.0, math.nan)], {}, PASSES),
        ([(0.0, 1.0)], {"kind": "theorem"}, "kind must be one of"),
        ([(0.0, 1.0)], {"tolerance": math.inf}, "S1: "),
        ([(0.0,)], {}, "S1: .*control"),
        ([([], 1.0)], {}, "S1: .*value"),
        ([(-1.0, 1.0)], {"kind": "identity"}, "S1: "),
    ],
)
def test_a_check_that_fails_or_could_not_fail_is_an_error(line, seen, how, message):
    with pytest.raises((claims.ClaimError, ValueError), match=message):
        line(*seen, **how)
