"""A check of a claim can pass, can fail, and is refused if it cannot fail."""

import json
import math

import pytest
import torch
from IPython.core.formatters import DisplayFormatter

from hnbook.claims import ClaimError, check, harvest

GOOD = dict(kind="inequality", value=1e-12, tolerance=1e-9, instances=4000, control=0.3)


def test_a_good_check_passes_and_says_so():
    passed = check("O9", "mean hardness falls", **GOOD)
    assert passed.record == dict(id="O9", title="mean hardness falls", **GOOD)
    assert check("O9", "a definition", **GOOD | dict(kind="definition", value=1e-9, control=None))
    assert "discrepancy 1e-12 ≤ 1e-09 · 4,000 instances · control 0.3" in repr(passed)


@pytest.mark.parametrize("value", [1.1e-9, math.inf, torch.tensor(float("nan"))])
def test_a_false_claim_fails(value):
    with pytest.raises(ClaimError, match=r"S1 x: the discrepancy .* exceeds the tolerance 1e-09"):
        check("S1", "x", **GOOD | {"value": value})


@pytest.mark.parametrize("control", [1e-9, math.nan])
def test_a_control_that_passes_fails_the_check(control):
    with pytest.raises(ClaimError, match=r"negative control passes .*could not have failed"):
        check("S1", "x", **GOOD | {"control": control})


@pytest.mark.parametrize(
    "change",
    [
        dict(kind="theorem"),
        dict(tolerance=math.inf, control=math.inf),
        dict(control=None),
        dict(kind="identity", value=-1.0),
    ],
)
def test_a_check_that_could_not_fail_is_refused(change):
    with pytest.raises(ValueError, match=r"kind must be one of|H1: "):
        check("H1", "x", **GOOD | change)


def test_what_a_notebook_shows_is_harvested_in_order():
    checks = [check("O1", "one", **GOOD), check("O2", "two", **GOOD)]
    shown = [{"data": DisplayFormatter().format(passed)[0]} for passed in checks]
    stream = {"output_type": "stream", "text": "x"}
    cells = [{"cell_type": "markdown"}, {"outputs": [stream, shown[0]]}, {"outputs": [shown[1]]}]
    notebook = json.loads(json.dumps({"cells": cells}))
    assert harvest(notebook) == [passed.record for passed in checks]
