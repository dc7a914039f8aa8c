"""What a page shows at other parameters follows from them: what is caught, and what is excused."""

import copy

import pytest

from builder import changed_pages, own_data
from hnlib.notebooks import execute, two_texts
from hnlib.training import kinds


def executed(pinned, **about):
    """An executed page, as JSON."""
    outputs = [{"data": {"text/plain": "Figure", "image/svg+xml": f"<svg>{pinned}</svg>"}}]
    about = {"inline": {"gain": "+1.0", "pinned": pinned}, "used": [], "planned": {}} | about
    cells = [
        {"cell_type": "code", "source": "experiments.train()", "outputs": [], "metadata": {}},
        {"cell_type": "code", "source": "draw()", "outputs": outputs, "metadata": {}},
    ]
    return {"cells": cells, "metadata": {"hnlib": about}}


def showing(**more):
    """An executed page with one cell more, of a code that shows HTML or of a text."""
    page = executed("")
    cell = {"cell_type": "code", "source": "table()", "outputs": [], "metadata": {}}
    if html := more.pop("html", None):
        cell["outputs"] = [{"data": {"text/html": html}}]
    page["cells"].append(cell | more)
    return page


def test_a_pinned_output_is_caught_unless_a_reason_excuses_it():
    """Short numbers may agree by chance."""
    published = executed("+0.5 [0.1, 0.9]")
    assert changed_pages.unchanged(published, executed("+0.7 [0.3, 1.1]"), []) == []
    found = changed_pages.unchanged(published, published, ["pinned"])
    assert found == ["'draw()' does not follow the parameters"]


def test_a_record_outside_the_plan_is_caught():
    plan = {"map": {"changed": ["seeds"], "where": "", "runs": ["a", "b"]}}
    assert changed_pages.outside_plan(executed("", used=["a"], planned=plan)) == []
    for used, planned, words in (
        (["a", "c"], plan, "1 records of no planned run were used"),
        (["*"], plan, "a table of all records was read"),
        (["a"], {"map": plan["map"] | {"changed": []}}, "map is as published"),
        ([], {}, "no experiment was loaded"),
    ):
        assert words in changed_pages.outside_plan(executed("", used=used, planned=planned))


def test_a_page_that_trains_past_the_records_is_caught():
    page = executed("", used=[])
    del page["cells"][0]
    assert changed_pages.outside_plan(page) == ["no experiment was loaded"]


TABLE = "<table><tr><td>gain</td><td>{}</td></tr></table>"
CAPTION = {"mystnb": {"figure": {"caption": "Drawn: 0.71234."}}}


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        # a published value of more than four digits; one of four may agree by chance
        (showing(html=TABLE.format("+4.1 [+2.8, +5.4]")), None, "the published +4.1 [+2.8, +5.4]"),
        (showing(html=TABLE.format("71.23")), "nothing", None),
        # not a number, but in a word
        (showing(html=TABLE.format("+nan [nan, nan]")), "nan", "nan"),
        (showing(html=TABLE.format("finance")), "nothing", None),
        # a dash alone, but between two numbers
        (showing(html=TABLE.format("–")), None, "a lone dash"),
        (showing(html=TABLE.format("3–5")), "nothing", None),
        # data that are not those of the setting
        (showing(html=TABLE.format("CIFAR-100")), None, "CIFAR-100"),
        # in a caption, and in a computed text, but not in what is quoted there
        (showing(metadata=CAPTION), None, "the published 0.71234"),
        (
            showing(cell_type="markdown", source="Here it is 12,345.", metadata={"computed": ""}),
            None,
            "the published 12,345",
        ),
        (
            showing(
                cell_type="markdown", source="> On CIFAR-10 12,345.", metadata={"computed": ""}
            ),
            "nothing",
            None,
        ),
    ],
)
def test_what_cannot_follow_from_the_parameters_is_caught(wrong, right, words):
    published = showing(
        html=TABLE.format("+4.1 [+2.8, +5.4]") + TABLE.format("71.23 0.71234 12,345")
    )
    found = changed_pages.false(published, wrong, {"dataset": "digits"}, [])
    assert len(found) == (right != "nothing")
    if right != "nothing":
        ((place, _),) = [*changed_pages.told(wrong).items()][-1:]
        assert found == [f"{place!r} shows {words}"]
        assert changed_pages.false(published, wrong, {"dataset": "digits"}, [place]) == []


@pytest.mark.parametrize("kind", [one for one in kinds.KINDS if kinds.run_class(one).datasets])
def test_every_public_data_set_is_known_by_name_and_title(kind):
    """What is made here is not, and what stands in a word is none."""
    known = kinds.run_class(kind).datasets
    made = {*known} & {*changed_pages.HERE}
    assert made and len(known) > len(made)
    for name, one in known.items():
        for said in (name, one.title):
            found = changed_pages.DATA.findall(f"On {said}, it gains.")
            assert bool(found) == (name not in made) or (said.islower() and len(said) < 4), said


def test_a_part_of_a_name_is_known_and_a_part_of_a_word_is_none():
    assert changed_pages.DATA.findall("IMDB and PTC, Reddit, MED: CIFAR") == [
        *("IMDB", "PTC", "Reddit", "MED", "CIFAR")
    ]
    assert not changed_pages.DATA.findall("MEDIAN, medium, adding, ADD, digits, precision, med.")


def test_the_table_of_yours_beside_the_published_may_show_both():
    beside = showing(html=TABLE.format("+4.1 [+2.8, +5.4]"))
    table = copy.deepcopy(beside)
    table["cells"][-1]["source"] = two_texts.BESIDE_CODE
    assert changed_pages.false(beside, beside, {}, []) != []
    assert changed_pages.false(beside, table, {}, []) == []
    assert changed_pages.false(beside, beside, {"add": "+4.1 [+2.8, +5.4]"}, []) == []  # asked for


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("Nothing is left to train.", 0),
        ("In all 3 runs to train", 1),
        ("appendix/ground-cost trains nothing.", 1),  # that the plan knows of
    ],
)
def test_what_is_trained_again_on_own_data_is_caught(said, count, monkeypatch):
    monkeypatch.setattr(execute, "plan", lambda notebook, given: f"map\n{said}")
    assert len(changed_pages.untrained(changed_pages.pages()[0], {})) == count


def test_settings_beside_are_two_for_each_page_and_half_of_them_on_own_data(monkeypatch, tmp_path):
    monkeypatch.setattr(own_data, "_folder", lambda: tmp_path)
    every = changed_pages.settings()
    pages = [page for page, *_ in every]
    assert sorted(pages) == sorted(2 * changed_pages.pages()) and len({*pages}) == 16
    own = {page.stem for page, given, _ in every if own_data.is_in(given)}
    assert len(own) >= 9 and {"graphs", "pairs", "retrieval", "how-hard"} <= own
    again = changed_pages.settings()
    assert every == again  # what was made once is the same

    read = changed_pages.tomllib.loads
    for change in (lambda x: x.popitem(), lambda x: next(iter(x.values())).pop()):

        def loads(text, change=change):
            given = read(text)
            change(given)
            return given

        monkeypatch.setattr(changed_pages.tomllib, "loads", loads)
        with pytest.raises(ValueError, match=r"must have two settings of each of experiments/"):
            changed_pages.settings()


def test_a_reason_for_the_small_page_alone_excuses_nothing_beside():
    small, beside = changed_pages.reasons(), changed_pages.reasons(beside=True)
    assert "experiments/anatomy" in small and "experiments/anatomy" not in beside
    assert small["experiments/graphs"] == beside["experiments/graphs"]
