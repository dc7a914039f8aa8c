"""What a page shows at small parameters follows from them: what is caught, and what is excused."""

from builder import small_pages

PINNED = "+0.5 [0.1, 0.9]"


def executed(gain, pinned, drawn, **about):
    """An executed page, as JSON."""
    outputs = [{"data": {"image/svg+xml": drawn, "text/plain": "Figure"}}]
    cells = [
        {"cell_type": "markdown", "source": "# A page"},
        {"cell_type": "code", "source": "first = 1", "outputs": []},
        {"cell_type": "code", "source": "draw()", "outputs": outputs},
    ]
    about |= {"inline": {"gain": gain, "pinned": pinned}}
    return {"cells": cells, "metadata": {"hnlib": {"used": [], "planned": {}} | about}}


def test_a_pinned_output_is_caught_unless_a_reason_excuses_it():
    """Short numbers may agree by chance."""
    published = executed("+1.0", PINNED, "<svg>a</svg>")
    other = executed("+1.0", "+0.7 [0.3, 1.1]", "<svg>b</svg>")
    assert small_pages.unchanged(published, other, []) == []
    found = small_pages.unchanged(published, published, ["pinned"])
    assert found == ["'draw()' does not follow the parameters"]


def test_a_record_outside_the_plan_is_caught():
    plan = {"map": {"changed": ["seeds"], "where": "", "runs": ["a", "b"]}}
    good = executed("", "", "", used=["a"], planned=plan)
    assert small_pages.outside_plan(good) == []
    for used, planned, words in (
        (["a", "c"], plan, "1 records of no planned run were used"),
        (["*"], plan, "a table of all records was read"),
        (["a"], {"map": plan["map"] | {"changed": []}}, "map is as published"),
        ([], {}, "no experiment was loaded"),
    ):
        assert words in small_pages.outside_plan(executed("", "", "", used=used, planned=planned))
