"""A check of a claim can pass, can fail, and can be caught being unable to fail."""

import json
import math

import pytest
import torch

from hnlib.book import claims
from hnlib.book.claims import ClaimError, check, harvest

GOOD = dict(kind="inequality", value=1e-12, tolerance=1e-9, instances=4000, control=0.3)


def test_a_good_check_passes_and_says_so():
    c = check("O9", "mean hardness falls", **GOOD)
    assert c.record == dict(id="O9", title="mean hardness falls", **GOOD)
    assert repr(c) == (
        "O9 mean hardness falls: 1e-12 against a tolerance of 1e-09 (inequality, 4000 instances; the control gives 0.3)"
    )
    assert "1 instance;" in repr(check("O9", "x", **{**GOOD, "instances": 1}))


@pytest.mark.parametrize("kind", claims.KINDS)
def test_every_kind_passes_at_the_tolerance_and_not_beyond(kind):
    assert check("R1", "x", **{**GOOD, "kind": kind, "value": 1e-9})
    with pytest.raises(
        ClaimError, match=r"R1 x: the discrepancy 1\.1e-09 exceeds the tolerance 1e-09"
    ):
        check("R1", "x", **{**GOOD, "kind": kind, "value": 1.1e-9})


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0, torch.tensor(float("nan"))])
def test_a_false_claim_fails(value):
    with pytest.raises(ClaimError, match=r"S1 x: the discrepancy .* exceeds the tolerance"):
        check("S1", "x", **{**GOOD, "value": value})


@pytest.mark.parametrize("control", [0.0, 1e-9, -1.0, math.nan])
def test_a_control_that_passes_fails_the_check(control):
    with pytest.raises(
        ClaimError, match=r"negative control passes .*so this check could not have failed"
    ):
        check("S1", "x", **{**GOOD, "control": control})


@pytest.mark.parametrize("tolerance", [math.inf, math.nan])
def test_a_tolerance_that_forgives_everything_is_no_tolerance(tolerance):
    with pytest.raises(ValueError, match="tolerance"):
        check("S1", "x", **{**GOOD, "tolerance": tolerance, "control": math.inf})


def test_an_assertion_stops_a_notebook():
    assert issubclass(ClaimError, AssertionError)


@pytest.mark.parametrize("kind", [k for k in claims.KINDS if k != "definition"])
def test_only_a_definition_goes_without_a_control(kind):
    with pytest.raises(
        ValueError, match=r"H1: a check without a negative control cannot fail; pass control="
    ):
        check("H1", "x", kind=kind, value=0.0, tolerance=0.0)
    assert check("H1", "x", kind="definition", value=0.0, tolerance=0.0).record["control"] is None


def test_unknown_kinds_are_listed():
    with pytest.raises(
        ValueError, match="kind='theorem' is unknown; use one of identity, inequality, refutation"
    ):
        check("H1", "x", **{**GOOD, "kind": "theorem"})


@pytest.mark.parametrize("instances", [0, -3])
def test_a_check_of_nothing_is_refused(instances):
    with pytest.raises(ValueError, match="instances"):
        check("H1", "x", **{**GOOD, "instances": instances})


def test_the_numbers_may_be_tensors_and_the_record_is_json():
    numbers = {
        "value": torch.tensor(0.0),
        "control": torch.tensor(2.0),
        "instances": torch.tensor(5),
    }
    c = check("H1", "x", **{**GOOD, **numbers})
    assert json.loads(json.dumps(c.record, allow_nan=False)) == c.record
    assert type(c.record["value"]) is float and type(c.record["instances"]) is int


def test_an_infinite_control_leaves_a_record_of_plain_json_and_the_words_alone():
    c = check("H1", "the Infinity norm, -Infinity and NaN", **{**GOOD, "control": math.inf})
    json.dumps(c.record, allow_nan=False)
    assert c.record["title"] == "the Infinity norm, -Infinity and NaN"
    assert c.record["control"] > 1e300 and type(c.record["value"]) is float


def test_what_a_notebook_shows_and_keeps():
    bundle = check("O9", "a <b> & c", **GOOD)._repr_mimebundle_()
    assert "a &lt;b&gt; &amp; c" in bundle["text/html"] and "4,000 instances" in bundle["text/html"]
    assert bundle["text/plain"].startswith("O9 a <b> & c")
    assert bundle[claims.MIME]["id"] == "O9"


def test_harvest_finds_every_record_in_order_and_nothing_else():
    one, two = check("O1", "one", **GOOD), check("O2", "two", **GOOD)
    shown = [
        {"output_type": "display_data", "data": c._repr_mimebundle_(), "metadata": {}}
        for c in (one, two)
    ]
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": "text"},
            {
                "cell_type": "code",
                "source": "",
                "outputs": [{"output_type": "stream", "text": "hello"}, shown[0]],
            },
            {"cell_type": "code", "source": "", "outputs": []},
            {
                "cell_type": "code",
                "source": "",
                "outputs": [shown[1], {"output_type": "error", "ename": "X"}],
            },
        ]
    }
    assert harvest(notebook) == [one.record, two.record]
    assert harvest(json.loads(json.dumps(notebook))) == [one.record, two.record]
    assert harvest({"cells": []}) == []


def test_a_check_displayed_by_ipython_is_harvested():
    nbformat = pytest.importorskip("nbformat")
    formatter = pytest.importorskip("IPython.core.formatters").DisplayFormatter()
    c = check("O3", "three", **GOOD)
    data, _ = formatter.format(c)
    notebook = nbformat.v4.new_notebook()
    notebook.cells.append(
        nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", data=data)])
    )
    assert harvest(notebook) == [c.record]
