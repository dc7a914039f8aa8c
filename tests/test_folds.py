"""The checks of a statement stand in one strip that folds open."""

import re

import folds
import pytest

from hnbook.claims import Line


def line(title="mean hardness falls", **other):
    numbers = dict(value=3e-9, tolerance=1e-6, instances=40, control=0.5) | other
    numbers |= dict(failed=40, controls=40)
    return Line("O9", title, "identity", **numbers)._repr_mimebundle_()["text/html"]


def folded(*inside):
    body = f"<p>a</p><!-- checks -->{''.join(inside)}<!-- end of checks --><p>b</p>"
    return folds.folded("page", body)


def test_a_strip_says_what_its_checks_found():
    """One check: its title. Many: their number, the worst and the weakest control."""
    page = folded("<p>why</p>", line("a < b"))
    said = "a &lt; b: verified on 40 instances, worst 3e−9, the false variant: 0.5"
    assert f"{said}</summary>" in page and "<p>why</p>" in page
    assert page.startswith("<p>a</p><details") and page.endswith("</details><p>b</p>")
    several = line("two", value=2e-8, control=0.25, instances=2), line("three", instances=1)
    said = "verified 3 ways on 43 instances, worst 2e−8, the false variants: 0.2"
    assert said in folded(line(), *several)


@pytest.mark.parametrize("inside", ["<!-- checks -->", "</section>"])
def test_a_strip_ends_where_it_began(inside):
    with pytest.raises(ValueError, match="page: a strip of checks is not closed"):
        folded(line(), inside)


def test_a_strip_after_a_theorem_is_a_tick_beside_its_number():
    """Two strips are two ticks, and of two theorems; without one in the section a strip stays."""
    theorem = '<p><span class="caption-number">Theorem 3.1 </span> (Form)</p>'
    strip = f"<!-- checks -->{line()}<!-- end of checks -->"
    body = f"{strip}<h2>One</h2>{theorem}{theorem}{strip}<p>b</p>{strip}{theorem}{strip}"
    page = folds.folded("page", f"{body}<h2>Two</h2>{strip}")
    _, first, second = re.split("<h2>", page)
    numbers = re.findall(r"</span>(.*?) \(Form\)", first)
    ticks = [re.findall(r'#(strip-\d)" title="O9 mean .*?: 0.5"', text) for text in numbers]
    assert ticks == [["strip-4", "strip-5"]] * 2 + [["strip-7"]]
    names = ["strip-4", "strip-5", "strip-7"]
    assert re.findall(r'hn-beside"><summary id="(strip-\d)">', first) == names
    assert page.count("hn-tick") == 5 and "hn-beside" not in second + page.partition("<h2>")[0]
