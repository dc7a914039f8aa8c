"""The front page, the decision page and the README quote one family of comparisons."""

import re

import pytest
from scripts import ROOT

from hnbook.headlines import ASKED, NOT_DONE, evidence, headlines
from hnbook.tables import interval

INTERVAL = re.compile(r"\+?−?\d+\.\d+ \[[+−]?\d+\.\d+, [+−]?\d+\.\d+\]")


@pytest.fixture(scope="module")
def quoted():
    spaces = str.maketrans("\u00a0\u202f", "  ")
    return {interval(effect).translate(spaces) for effect in headlines().values()}


def test_the_readme_quotes_the_headlines(quoted):
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = set(INTERVAL.findall(text))
    assert len(found) >= 2
    assert found <= quoted, "run headlines() and correct the README"


def test_a_headline_answers_every_question_or_says_that_it_was_not_done():
    found = evidence()
    assert len(found) >= 8
    measured = re.compile(r"[+−]\d+\.\d")
    for headline, row in found.items():
        assert list(row) == list(ASKED), headline
        assert re.fullmatch(r"\d+ \(\d+\)", row.pop("seeds")), headline
        assert all(cell == NOT_DONE or measured.search(cell) for cell in row.values()), headline
        assert row["here"] != NOT_DONE and row["beside"] != NOT_DONE, headline
