"""Tables: nothing that comes from data is markup, what was not measured is a dash, and a summary
says what the runs say."""

import html
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hnbook import tables
from hnlib.experiments.comparisons import Effect


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])))
def test_a_cell_reads_as_the_text_it_was(text):
    page = tables.table([{"a": text}])._repr_html_()
    cell = re.search("<td>(.*)</td>", page, re.S)[1]
    assert "<" not in cell and html.unescape(cell).strip() == text.strip()


def test_a_head_may_be_markup_and_data_is_not_taken_for_a_formula():
    page = tables.table([{tables.term("a < b"): r"\(x\) $y$"}])._repr_html_()
    assert '<th><a class="hn-term">a &lt; b</a></th>' in page
    assert "mathjax_ignore" in re.search('<table [^>]*class="([^"]*)"', page)[1]


@pytest.mark.parametrize("gap", [None, float("nan"), pd.NA, pd.NaT])
def test_what_was_not_measured_is_a_dash(gap):
    rows = [{"a": 1, "b": gap, "c": ""}, {"a": 0.5, "b": 2, "c": True}]
    cells = re.findall("<td>(.*)</td>", tables.table(rows)._repr_html_())
    assert cells == ["1", "–", "", "0.5", "2", "True"]
    assert tables.table([])._repr_html_() == "<p>Not measured.</p>"


def test_a_difference_stands_with_or_without_its_interval():
    one = Effect(-1.24, 0.2, 5, "these images")
    assert tables.difference(one) == "−1.2" and tables.interval(one).startswith("−1.2\u00a0[−1.")
    assert tables.difference({"static": one, "random": one}) == "−1.2 (static) and −1.2 (random)"
    assert tables.difference(Effect(-0.01, 0.2, 5, "")) == "+0.0"


def test_an_interval_shows_the_signs_of_its_ends_and_the_effect_between_them():
    text = lambda *x: tables.interval(Effect(*x, "these images")).replace("\u00a0", " ")  # noqa: E731
    assert text(0.02, 0.004, 95) == "+0.02 [+0.01, +0.03]"
    assert text(-0.02, 0.004, 95) == "\u22120.02 [\u22120.03, \u22120.01]"
    assert text(0.04, 0.015, 95) == "+0.04 [+0.01, +0.1]"
    assert text(0.04, 0.04, 95) == "+0.0 [\u22120.04, +0.1]"
    assert text(-0.02, 0.004, 0) == "+0.0"
