"""What a page shows at small parameters follows from them: what is caught, and what is excused."""

from builder import small_pages


def executed(pinned, **about):
    """An executed page, as JSON."""
    outputs = [{"data": {"text/plain": "Figure", "image/svg+xml": f"<svg>{pinned}</svg>"}}]
    about = {"inline": {"gain": "+1.0", "pinned": pinned}, "used": [], "planned": {}} | about
    cells = [{"cell_type": "code", "source": "draw()", "outputs": outputs}]
    return {"cells": cells, "metadata": {"hnlib": about}}


def test_a_pinned_output_is_caught_unless_a_reason_excuses_it():
    """Short numbers may agree by chance."""
    published = executed("+0.5 [0.1, 0.9]")
    assert small_pages.unchanged(published, executed("+0.7 [0.3, 1.1]"), []) == []
    found = small_pages.unchanged(published, published, ["pinned"])
    assert found == ["'draw()' does not follow the parameters"]


def test_a_record_outside_the_plan_is_caught():
    plan = {"map": {"changed": ["seeds"], "where": "", "runs": ["a", "b"]}}
    assert small_pages.outside_plan(executed("", used=["a"], planned=plan)) == []
    for used, planned, words in (
        (["a", "c"], plan, "1 records of no planned run were used"),
        (["*"], plan, "a table of all records was read"),
        (["a"], {"map": plan["map"] | {"changed": []}}, "map is as published"),
        ([], {}, "no experiment was loaded"),
    ):
        assert words in small_pages.outside_plan(executed("", used=used, planned=planned))
