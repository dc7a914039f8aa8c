"""A check of a claim can pass, can fail, and is refused if it cannot fail."""

import math

import pytest
import torch

from hnbook.claims import ClaimError, check

GOOD = dict(kind="inequality", value=1e-12, tolerance=1e-9, instances=4000, control=0.3)


def test_a_good_check_passes_and_says_so():
    passed = check("O9", "mean hardness falls", **GOOD)
    assert passed.record == dict(id="O9", title="mean hardness falls", **GOOD)
    assert check("O9", "a definition", **GOOD | dict(kind="definition", value=1e-9, control=None))
    assert "discrepancy 1e-12 ≤ 1e-09 · 4,000 instances · control 0.3" in repr(passed)


FAILS = r"S1 x: the discrepancy .* exceeds the tolerance 1e-09"
PASSES = r"negative control passes .*could not have failed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(value=1.1e-9), FAILS),
        (dict(value=torch.tensor(math.nan)), FAILS),
        (dict(control=1e-9), PASSES),
        (dict(kind="theorem"), "kind must be one of"),
        (dict(tolerance=math.inf, control=math.inf), "S1: "),
        (dict(control=None), "S1: "),
        (dict(kind="identity", value=-1.0), "S1: "),
    ],
)
def test_a_check_that_fails_or_could_not_fail_is_an_error(change, message):
    with pytest.raises((ClaimError, ValueError), match=message):
        check("S1", "x", **GOOD | change)
