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

INTERVAL = re.compile(r"[+-]\d+\.\d+ \[[+-]\d+\.\d+, [+-]\d+\.\d+\]")
RUN = re.compile(r"  (.+)  (\d+)  (\S+)  (\d+\.\d\d)")


def plain(text):
    return text.translate(str.maketrans("\u00a0\u202f−", "  -"))


def test_the_readme_has_the_rows_of_the_front_page_and_quotes_headlines():
    rows = [plain(f"| {' | '.join(row.values())} |") for row in page.gain_rows()]
    table, rest = [], []
    for line in plain((ROOT / "README.md").read_text(encoding="utf-8")).split("\n"):
        inside = line.startswith("|") and INTERVAL.search(line)
        (table if inside else rest).append(line)
    assert table == rows, "print headlines.gain_rows() and correct the README"
    quoted = {plain(interval(effect)) for effect in headlines().values()}
    found = {*INTERVAL.findall(" ".join(rest))}
    assert found and found <= quoted, "run headlines() and correct the README"


def test_the_rows_of_the_front_page_are_told_by_one_rule():
    """The choice as given in one column and repeated in the other; the two differ."""
    _, name, *pair = page.GAINS["hundred"]
    found = experiments.recorded(name)
    assert page.given("hundred") == experiments.effect(found, *pair)
    assert page.repeated("hundred") == selection.effect(found, *pair)
    assert page.repeated("equal") == "nothing was chosen"
    assert page.repeated("captions") == "2 seeds chose"
    chosen = [name for name in page.GAINS if not isinstance(page.repeated(name), str)]
    assert len(chosen) > 5
    assert all(interval(page.given(x)) != interval(page.repeated(x)) for x in chosen)


def test_pages_of_advice_take_gains_from_the_rows():
    """A number with the choice repeated among numbers as given would be told by another rule."""
    other = [f'"{name}"' for name, one in HEADLINES.items() if one.chosen]
    other += ["selection.", "chosen_searches"]
    for name in ("start-here", "experiments/which-method"):
        text = (ROOT / f"notebooks/{name}.md").read_text(encoding="utf-8")
        assert "given(" in text and [x for x in other if x in text] == []


def test_apart_is_the_difference_at_the_best_rate_that_both_losses_have():
    found = experiments.recorded("captions-rates")
    by_rate = {}
    for rate in ("2e-05", "5e-05", "0.0001", "0.0002"):
        pair = f"tilt20 lr{rate}", f"t0.05 lr{rate}"
        likes = sum(found.mean(arm, "ndcg_validation") for arm in pair)
        tilt, temperature = (100 * found.mean(arm, "ndcg") for arm in pair)
        by_rate[likes] = tilt - temperature
    assert page.apart(found, "gamma", 20) == pytest.approx(by_rate[max(by_rate)])
    assert page.apart(found, "gamma", 20) != pytest.approx(by_rate[min(by_rate)], abs=0.1)
    assert page.apart(found, "gamma", 3) is None


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
