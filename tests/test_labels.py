"""No statement and no claim is lost unnoticed: each that there has been is listed, and stands or says where it went."""

import subprocess

import labels
import pytest
from scripts import ROOT

ONE = "```{prf:theorem} One\n:label: thm-one\nText.\n```\n\n```{prf:proof}\nClear.\n```\n"
TWO = ONE.replace("one", "two")
HEAD = "label,page,went\n"
ROWS = "thm-one,notebooks/a,\nclaim-X1,notebooks/errata,\nthm-old,,thm-one has it\n"


@pytest.fixture
def book(tmp_path):
    """book(text, rows) makes a book of one page and one claim, and its list."""

    def make(text=ONE, rows=ROWS):
        for name, content in {
            "notebooks/a.md": text,
            labels.CLAIMS: "id\nX1\n",
            labels.LIST: HEAD + rows,
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return tmp_path

    return make


def pages_listed(root):
    return {one["label"]: one["page"] for one in labels.listed(root) if one["page"]}


def test_every_statement_and_claim_is_listed_on_its_page():
    assert labels.standing() == pages_listed(ROOT)
    every = [one["label"] for one in labels.listed()]
    assert len(every) == len({*every}) and not [one for one in every if " " in one]


def test_a_label_that_went_says_where():
    assert all(bool(one["page"]) != bool(one["went"]) for one in labels.listed())


def test_a_statement_that_is_missing_moved_or_nameless_is_noticed(book):
    assert labels.standing(book()) == pages_listed(book())
    for text in ("", TWO, ONE + TWO, ONE.replace(":label: thm-one\n", "")):
        assert labels.standing(book(text)) != pages_listed(book(text))
    moved = ROWS.replace("notebooks/a", "notebooks/b")
    assert labels.standing(book()) != pages_listed(book(ONE, moved))


def test_a_label_without_its_anchor_in_the_built_page_is_noticed(book, tmp_path):
    root, html = book(), tmp_path / "html"
    (html / "notebooks").mkdir(parents=True)
    (html / "notebooks/errata.html").write_text('<span id="claim-X1">')
    page = html / "notebooks/a.html"
    page.write_text('<div class="proof theorem" id="thm-one">')
    assert labels.unbuilt(html, root) == []
    page.write_text('<a href="#thm-one">')
    assert labels.unbuilt(html, root) == ["thm-one"]


def test_no_row_was_ever_taken_from_the_list():
    git = ["git", "-C", str(ROOT)]
    log = subprocess.run([*git, "log", "--format=%H", "--", labels.LIST], capture_output=True)
    if not (commits := log.stdout.decode().split()):
        pytest.skip("the history of the list is not here")
    before = set()
    for commit in commits:
        shown = subprocess.run([*git, "show", f"{commit}:{labels.LIST}"], capture_output=True)
        before |= {one["label"] for one in labels.read(shown.stdout.decode())}
    assert before <= {one["label"] for one in labels.listed()}
