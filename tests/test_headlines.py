"""The headlines: the README quotes them, every question has an answer, and the command its number."""

import re
from statistics import fmean

import pytest
from scripts import ROOT

from hnbook import headlines as page
from hnbook.headlines import ASKED, HEADLINES, headlines
from hnbook.tables import interval
from hnlib import experiments
from hnlib.experiments import selection

INTERVAL = re.compile(r"\+?−?\d+\.\d+ \[[+−]?\d+\.\d+, [+−]?\d+\.\d+\]")
RUN = re.compile(r"  (.+)  (\d+)  (\S+)  (\d+\.\d\d)")


def plain(text):
    return text.translate(str.maketrans("\u00a0\u202f−", "  -"))


def test_the_readme_quotes_the_headlines():
    hundred = experiments.recorded("images-longer-hundred")
    shown = [*headlines().values(), *page.chosen_searches().values()]
    quoted = {plain(interval(effect)) for effect in shown}
    quoted.add(plain(interval(selection.effect(hundred, "released", "temperature"))))
    for name in ("banking77", "captions"):
        quoted.add(
            plain(interval(experiments.effect(experiments.recorded(name), "tilt", "temperature")))
        )
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = {plain(one) for one in INTERVAL.findall(text)}
    assert len(found) >= 3
    assert found <= quoted, "run headlines() and correct the README"


def test_a_headline_answers_every_question_or_says_that_it_was_not_done(monkeypatch):
    assert all(page.answer("labels", key) for key in ASKED)
    monkeypatch.setitem(HEADLINES["labels"].answers, "again", "")
    with pytest.raises(ValueError, match="'labels' has no answer to 'on other seeds'; give one"):
        page.answer("labels", "again")


@pytest.mark.parametrize("name", ["short temperature", "long hcl"])
def test_the_runs_of_a_report_give_the_number_of_the_page(name):
    """A run less gives another number."""
    one, lines = HEADLINES[name], page.report(name)
    assert lines[-1] == page.answer(name, "here")
    number = float(re.search(r"[+-]\d+\.\d", plain(lines[-1]))[0])
    values, arm = {one.ours: [], one.base: []}, ""
    for line in lines:
        if run := RUN.fullmatch(line):
            values[arm].append(float(run[4]))
        elif not line.startswith(" "):
            arm = line.partition(" of ")[0].removeprefix(f"{one.blocks[0]} ")
    ours, base = values[one.ours], values[one.base]
    assert fmean(ours) - fmean(base) == pytest.approx(number, abs=0.06)
    assert max(ours) - fmean(base) != pytest.approx(number, abs=0.06)
