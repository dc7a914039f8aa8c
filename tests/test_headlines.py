"""The front page, the decision page and the README quote one family of comparisons."""

import re

import pytest
from scripts import ROOT

from hnlib.book.headlines import headlines
from hnlib.book.tables import interval

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
