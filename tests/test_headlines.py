"""The front page, the decision page and the README quote one family of comparisons."""

import re
from pathlib import Path

import pytest

from hnlib.book.headlines import headlines
from hnlib.book.tables import interval

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("notebooks/start-here.md", "notebooks/experiments/which-method.md")
INTERVAL = re.compile(r"\+?−?\d+\.\d \[[+−]?\d+\.\d, [+−]?\d+\.\d\]")


@pytest.fixture(scope="module")
def quoted():
    spaces = str.maketrans("\u00a0\u202f", "  ")
    return {interval(effect).translate(spaces) for effect in headlines().values()}


def test_the_readme_quotes_the_headlines(quoted):
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = set(INTERVAL.findall(text))
    assert len(found) >= 3
    assert found <= quoted, "run headlines() and correct the README"


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_take_their_numbers_from_the_headlines(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "headlines()" in text
    typed = INTERVAL.findall(text)
    assert typed == [], "points of accuracy come from headlines(), not from the keyboard"


def test_an_interval_in_prose_would_be_seen():
    assert INTERVAL.findall("gains +1.7 [+0.8, +2.7] points") == ["+1.7 [+0.8, +2.7]"]
