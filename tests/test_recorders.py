"""What `book/recorders/README.md` says of the files of evidence: each came from somewhere, and its script is there."""

import re

from scripts import ROOT

RECORDERS, RESULTS = ROOT / "book/recorders", ROOT / "book/results"
ROW = re.compile(r"^\| `([^`]+)` \| (?:`([^`]+)`|([^|]+?)) \| ([^|]+) \|$", re.M)
HELPERS = {"ledgers.py"}  # which writes what the others measure


def listed():
    """Return what makes each file: a script or command, or else words, and how."""
    return {file: (code, words, how) for file, code, words, how in rows()}


def rows():
    return ROW.findall((RECORDERS / "README.md").read_text("utf-8"))


def test_every_file_of_evidence_is_listed_once():
    found = {path.name + "/" * path.is_dir() for path in RESULTS.glob("[!.]*")}
    assert listed().keys() == found and len(rows()) == len(found)


def test_what_no_script_makes_has_a_source():
    words = {words for code, words, _ in listed().values() if not code}
    assert words == {"by hand", "transcribed"}
    assert all(how.strip() for _, _, how in listed().values())


def test_every_script_is_there_and_writes_the_file_that_it_is_listed_for():
    scripts = {code: file for file, (code, *_) in listed().items() if code.endswith(".py")}
    assert scripts.keys() | HELPERS == {path.name for path in RECORDERS.glob("*.py")}
    for script, file in scripts.items():
        code = (RECORDERS / script).read_text("utf-8")
        assert re.search(rf'ledgers\.(?:record|write)\("{re.escape(file)}"', code), script
