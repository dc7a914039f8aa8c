"""What a stranger meets first: the README's picture and code, and one version everywhere."""

import contextlib
import io
import json
import re

import dial
import yaml
from scripts import ROOT

import hnlib
from builder import portable_notebooks


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
    assert printed.getvalue() == shown


def test_the_pictures_of_the_readme_are_there_and_the_dark_one_is_the_light_one():
    shown = re.findall(r'(?:srcset|src)="([^"]+)"', text("README.md"))
    assert len(shown) == 2 and all((ROOT / name).is_file() for name in shown)
    dark, light = map(text, shown)
    assert dark == dial.on_dark(light)


def test_one_version_everywhere():
    """In the file to install, the citation and the archive; `make repository` rewrites the first."""
    if not portable_notebooks.address(portable_notebooks.repository(ROOT)):
        assert text("README.md").count(f"'./{portable_notebooks.WHEEL}") == 3
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["version"] == json.loads(text(".zenodo.json"))["version"] == hnlib.__version__
    assert hnlib.__version__ in citation["preferred-citation"]["edition"]
