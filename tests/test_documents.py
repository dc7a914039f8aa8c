"""What the changelog and CONTRIBUTING name is there: modules, functions, commands and extras."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
from scripts import ROOT

from builder import pdf
from hnlib.commands import app

TEXTS = ["CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"]
#: What a sentence names because it is gone, or as an example of what is yours
GONE = {"hnlib.book.campaign", "hnlib.graphs.methods.entropic_ot", "hnlib.mixtures", "hnlib.rows"}
OLD_COMMANDS = {"book", "evaluate", "sweep"}


def text_of(name: str) -> str:
    """Return a text; of tables that migrate only what is new."""
    text = Path(ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"^\| `[^|]*\|", "|", text, flags=re.MULTILINE) if name == TEXTS[0] else text


def is_there(name: str) -> bool:
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in parts[k:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("name", TEXTS)
def test_names_of_modules_and_functions_are_there(name):
    named = {*re.findall(r"\b(?:hnlib|hnbook|builder)(?:\.\w+)+", text_of(name))}
    assert {one for one in named - GONE if not is_there(one)} == set()
    assert not any(is_there(one) for one in GONE)


@pytest.mark.parametrize("name", TEXTS)
def test_commands_and_extras_are_there(name):
    text = text_of(name)
    commands = {*re.findall(r"`hnlib ([a-z]+)\b", text)}
    assert commands <= {*app} | OLD_COMMANDS and not OLD_COMMANDS & {*app}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {one for group in re.findall(r"hnlib\[([a-z,-]+)\]", text) for one in group.split(",")}
    assert named <= extras["optional-dependencies"].keys()


def test_the_leaflet_prints_sections_that_its_page_has():
    """One that the page lacks is left out of the print without a word, and two sheets stay two."""
    text = (ROOT / f"{pdf.LEAFLET_PAGE}.md").read_text("utf-8")
    headings = re.findall(r"^## (.+)$", text, re.M)
    ids = {re.sub(r"\W+", "-", one.lower()).strip("-") for one in headings}
    assert pdf.SECTIONS and {*pdf.SECTIONS} <= ids
