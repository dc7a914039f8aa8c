"""What a page shows at small parameters follows from them: what is caught, and what is excused."""

import pytest
from scripts import HEAD

from builder import small_pages

PAGE = (
    HEAD
    + """# A page

```{code-cell} ipython3
first = 1
```

It gains {eval}`gain` points, {eval}`pinned` of them here.

```{code-cell} ipython3
draw()
```
"""
)


PINNED = "+0.5 [0.1, 0.9]"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def executed(gain, pinned, drawn, **about):
    """An executed page, as JSON."""
    text = f"# A page\n\nIt gains {gain} points, {pinned} of them here."
    texts = [text.split("\n\n")[0], text.split("\n\n")[1]]
    cells = [
        {"cell_type": "markdown", "source": texts[0]},
        {"cell_type": "code", "source": "first = 1", "outputs": []},
        {"cell_type": "markdown", "source": texts[1]},
        {
            "cell_type": "code",
            "source": "draw()",
            "outputs": [{"data": {"image/svg+xml": drawn, "text/plain": "Figure"}}],
        },
    ]
    about = {"used": [], "planned": {}} | about
    return {"cells": cells, "metadata": {"hnlib": about}}


def test_a_pinned_output_is_caught_unless_a_reason_excuses_it(page):
    published = executed("+1.0", PINNED, "<svg>a</svg>")
    assert (
        small_pages.unchanged(
            page, published, executed("+2.0", "+0.7 [0.3, 1.1]", "<svg>b</svg>"), {}
        )
        == []
    )
    small = executed("+2.0", PINNED, "<svg>a</svg>")
    assert small_pages.unchanged(page, published, small, {}) == [
        "'draw()' does not follow the parameters",
        "'pinned' does not follow the parameters",
    ]
    short = executed("+1.0", "+0.7 [0.3, 1.1]", "<svg>b</svg>")  # by chance
    assert small_pages.unchanged(page, published, short, {}) == []
    excused = {"pinned": "a count of arms", "draw()": "theory"}
    assert small_pages.unchanged(page, published, small, excused) == []


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
