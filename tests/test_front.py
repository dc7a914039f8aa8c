"""What a stranger meets first: the README's picture and code, the skill, the notes for other trackers."""

import contextlib
import io
import json
import re

import pytest
import yaml
from colours import contrast, lifted
from matplotlib.colors import to_hex
from scripts import ROOT, script
from test_printed_code import BLOCK

import hnlib
from builder import portable_notebooks
from hnlib.book.figures import GREY

SKILL = "skills/choose-negatives/SKILL.md"
PAGE = "notebooks/experiments/which-method.md"


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_profile_of_the_readme_prints_what_stands_below_it():
    code, shown = re.search(
        r"^```python\n(import torch\nfrom hnlib.profile.*?)^```\n+```text\n(.*?)^```",
        text("README.md"),
        re.M | re.S,
    ).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == shown and len(code.splitlines()) <= 8
    assert shown != printed.getvalue().replace("14.29", "14.28")


def test_the_pictures_of_the_readme_can_be_read_on_both_grounds():
    """Every picture that it names exists; letters have 4.5:1 on GitHub's grounds."""
    shown = re.findall(r'(?:srcset|src)="([^"]+)"', text("README.md"))
    assert len(shown) == 2 and all((ROOT / name).is_file() for name in shown)
    dark, light = map(text, shown)
    assert dark == script("book/theme/dial.py").on_dark(light)
    for picture, ink, ground in ((light, GREY, "#ffffff"), (dark, to_hex(lifted(GREY)), "#0d1117")):
        assert f"fill: {ink}" in picture and contrast(ink, ground) >= 4.5


def test_one_version_everywhere():
    """In the file to install, the citation and the archive; `make repository` rewrites the first."""
    if not portable_notebooks.is_set(portable_notebooks.repository(ROOT)):
        assert text("README.md").count(f"'./{portable_notebooks.WHEEL}") == 3
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["version"] == json.loads(text(".zenodo.json"))["version"] == hnlib.__version__
    preferred = citation["preferred-citation"]
    assert hnlib.__version__ in preferred["edition"] and preferred["title"] == citation["title"]
    assert citation["date-released"].year == preferred["year"]


def said(page):
    """Return the code lines and the options of methods of a page."""
    lines = {
        line.strip() for block in BLOCK.findall(text(page)) for line in block.splitlines() if line
    }
    words = " ".join(text(page).split())
    return lines, set(re.findall(r"methods\.build\([^)]*\)", words)) | set(
        re.findall(r"HardNegatives\(model, [^)]*\)", words)
    )


def disagreements(skill: str, page: str) -> list[str]:
    """Return what the skill prints as code and the page does not, and sections it leaves out."""
    lines, calls = said(page)
    ours = {line.strip() for block in BLOCK.findall(skill) for line in block.splitlines() if line}
    inline = set(re.findall(r"methods\.build\([^)]*\)", skill))
    heads = re.findall(r"^\(which-(?!rules)\w+\)=\n## (.*)", text(page), re.M)
    found = sorted(ours - lines) + sorted(inline - calls)
    return found + [head for head in heads if f"**{head}.**" not in skill]


def test_the_skill_says_what_the_decision_page_says():
    skill = text(SKILL)
    assert disagreements(skill, PAGE) == []
    assert disagreements(skill.replace("beta=1.0", "beta=2.0"), PAGE) != []
    assert disagreements(skill.replace("**Graphs.**", "**Trees.**"), PAGE) == ["Graphs"]
    about = yaml.safe_load(skill.split("---")[1])
    assert about["name"] == "choose-negatives" and len(skill.splitlines()) < 80
    assert all((ROOT / name).is_file() for name in re.findall(r"`(notebooks/\S+)`", skill))


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")))
def test_an_issue_form_is_one_that_github_takes(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert all({"id", "type", "attributes"} <= field.keys() for field in fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
