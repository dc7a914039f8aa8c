"""The examples in the docstrings of the library run, in all modules that have one."""

import doctest
import importlib
import re

import pytest
from scripts import ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "hnlib").rglob("*.py")
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.M)
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed
