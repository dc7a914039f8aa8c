"""The front page, the decision page and the README quote one family of comparisons."""

import re

import pytest
from scripts import ROOT

from hnlib.book.headlines import ASKED, NOT_DONE, evidence, headlines
from hnlib.book.tables import interval
from hnlib.results.comparisons import compare
from hnlib.training import records

PAGES = ("notebooks/start-here.md", "notebooks/experiments/which-method.md")
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


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_take_their_numbers_from_the_headlines(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    typed = INTERVAL.findall(text)
    assert typed == [], "points of accuracy come from headlines(), not from the keyboard"


def test_an_interval_in_prose_would_be_seen():
    assert INTERVAL.findall("gains +1.7 [+0.8, +2.7] points") == ["+1.7 [+0.8, +2.7]"]


@pytest.mark.parametrize("page", ["which-method", "retrieval"])
def test_search_is_quoted_from_one_family(page):
    assert "searches(" in (ROOT / f"notebooks/experiments/{page}.md").read_text(encoding="utf-8")


def test_the_costs_on_similarity_are_those_of_the_records():
    runs = records.frame(kind="sentences").query("temperature > 0.03 and method == 'simclr'")
    runs = runs.fillna({"hardness_strength": 0.0})
    usual = "temperature == 0.05 and hardness_strength == 0"
    strength, colder = "temperature == 0.05 and hardness_strength == 5", "temperature == 0.04"
    costs = [-compare(runs, one, usual, "sts", mixed=True).difference for one in (colder, strength)]
    said = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    assert all(f"costs {cost:.1f}" in said[PAGES[1]] for cost in costs)
    assert "costs {1:.1f} points, the temperature {0:.1f}".format(*costs) in said[PAGES[0]]


def test_a_headline_answers_every_question_or_says_that_it_was_not_done():
    found = evidence()
    assert len(found) >= 8
    measured = re.compile(r"[+−]\d+\.\d")
    for headline, row in found.items():
        assert list(row) == list(ASKED), headline
        assert all(cell == NOT_DONE or measured.search(cell) for cell in row.values()), headline
        assert row["here"] != NOT_DONE and row["beside"] != NOT_DONE, headline
