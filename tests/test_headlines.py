"""The front page, the decision page and the README quote one family of comparisons."""

import re
from collections import defaultdict
from statistics import fmean

import pytest
from scripts import ROOT

from hnbook import headlines as page
from hnbook.headlines import ASKED, HEADLINES, NOT_DONE, headlines
from hnbook.tables import interval
from hnlib import experiments

INTERVAL = re.compile(r"\+?−?\d+\.\d+ \[[+−]?\d+\.\d+, [+−]?\d+\.\d+\]")
RUN = re.compile(r"  (.+)  (\d+)  (\S+)  (\d+\.\d\d)")


def plain(text):
    return text.translate(str.maketrans("\u00a0\u202f−", "  -"))


@pytest.fixture(scope="module")
def evidence():
    return page.evidence()


def test_the_readme_quotes_the_headlines():
    quoted = {plain(interval(effect)) for effect in headlines().values()}
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = {plain(one) for one in INTERVAL.findall(text)}
    assert len(found) >= 3
    assert found <= quoted, "run headlines() and correct the README"


def test_a_headline_answers_every_question_or_says_that_it_was_not_done(evidence):
    assert [*evidence] == [one.words for one in HEADLINES.values()]
    for headline, row in evidence.items():
        assert list(row) == list(ASKED), headline
        for key in ("here", "beside"):
            assert re.search(r"[+−]\d+\.\d", row[key]), headline


@pytest.mark.parametrize("blank", [None, "", {}])
def test_a_blank_is_no_answer(blank):
    with pytest.raises(ValueError, match="'Labels over none' has no answer to 'on other data'"):
        page._cell("Labels over none", "elsewhere", blank)
    assert page._cell("Labels over none", "elsewhere", NOT_DONE) == NOT_DONE


@pytest.mark.parametrize("name", HEADLINES)
def test_the_command_ends_with_the_number_of_the_page(name, evidence):
    one, lines = HEADLINES[name], page.report(name)
    row = evidence[one.words]
    assert f"python -m hnbook.headlines {name}<" in row["command"]
    assert lines[0] == one.words and lines[-1] == row["here"]
    runs = [RUN.fullmatch(line).groups() for line in lines if RUN.fullmatch(line)]
    assert len({record for _, _, record, _ in runs}) == len(runs) > 5
    if not one.chosen:  # then the printed runs alone give the number
        for block, shown in zip(one.blocks, row["here"].split("; ")):
            assert difference(lines, block, one) == pytest.approx(first_number(shown), abs=0.06)


def test_a_run_less_gives_another_number():
    one, lines = HEADLINES["short temperature"], page.report("short temperature")
    (without,) = [i for i, line in enumerate(lines) if line.startswith("  temperature  1  ")]
    left = lines[:without] + lines[without + 1 :]
    assert difference(left, "CIFAR-10", one) != pytest.approx(first_number(lines[-1]), abs=0.06)


def first_number(text):
    return float(re.search(r"[+-]\d+\.\d", plain(text))[0])


def difference(lines, block, one):
    """The mean of ours less that of the base, of the runs that stand under a block's headings."""
    values, place = defaultdict(list), None
    for line in lines:
        if run := RUN.fullmatch(line):
            values[place].append(float(run[4]))
        elif " of " in line and not line.startswith("  "):
            place = line.partition(" of ")[0]
    ours, base = (f"{block} {arm}".strip() for arm in (one.ours, one.base))
    return fmean(values[ours]) - fmean(values[base])


def test_a_predicted_comparison_has_the_interval_of_its_prediction():
    """As *Rate, length and loudness* prints it; alone the interval would be shorter."""
    pieces = experiments.load("decomposition")
    for metric in ("linear", "knn"):
        shown = interval(headlines(metric)["long hcl at one rate"])
        assert shown == interval(pieces.outcome("H5", metric))
        assert shown != interval(pieces.effect("released", "t0.25", metric))
