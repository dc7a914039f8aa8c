"""What stays through a version: the names in the table of the API page, and options that have another name."""

import importlib
import re
import warnings

import pytest
from scripts import ROOT

from hnlib import _checks

PAGE = (ROOT / "book/api.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(hnlib[\w.]*)` \| (.*) \|$", PAGE, re.MULTILINE)
TABLE = {module: re.findall(r"`(\w+)`", names) for module, names in ROWS}


def listed():
    """The public modules of the library that have an `__all__`."""
    paths = [path.relative_to(ROOT) for path in (ROOT / "hnlib").rglob("*.py")]
    paths = [path for path in paths if "\n__all__" in (ROOT / path).read_text(encoding="utf-8")]
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    return {module for module in modules if "._" not in module}


@pytest.mark.parametrize("module", TABLE)
def test_a_module_s_row_names_what_it_exports(module):
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(TABLE[module])
    assert all(hasattr(found, name) and not name.startswith("_") for name in found.__all__)


def test_the_table_has_each_module_that_says_what_it_exports_and_every_loss():
    assert TABLE.keys() == listed() and len(ROWS) == len(TABLE)
    losses = PAGE.partition("\n## The losses")[2].partition("\n## ")[0]
    assert {*re.findall(r"^   (hnlib\S+)$", losses, re.MULTILINE)} < TABLE.keys()


@_checks.renamed(tau="temperature", k="loudness")
def scaled(value, temperature=0.5, loudness=1.0):
    return value / temperature * loudness


def test_an_option_is_taken_under_its_old_name_with_one_sentence_that_names_both():
    with pytest.warns(FutureWarning) as found:
        assert scaled(1.0, tau=0.25, loudness=3.0) == 12.0
    (one,) = found
    assert str(one.message).startswith("scaled: tau is called temperature now; ")
    assert one.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scaled(1.0, temperature=0.25, loudness=3.0) == scaled(1.0, 0.25, 3.0) == 12.0
    with pytest.raises(TypeError, match="tau is the old name of temperature; give temperature al"):
        scaled(1.0, tau=0.25, temperature=0.25)


def test_the_page_leads_to_what_moved_between_versions():
    (path,) = re.findall(r"Migrating\* in {download}`[^`]*<(.*)>`", PAGE)
    assert "\n### Migrating" in (ROOT / "book" / path).resolve().read_text(encoding="utf-8")
