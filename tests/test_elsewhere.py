"""The book away from its checkout: one address for all, and notebooks that start elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from scripts import ROOT

from hnlib.book import elsewhere, execute
from hnlib.training import records

NAMING = ("pyproject.toml", "README.md", "CITATION.cff")  # the files that are not built
URL = "https://github.com/somebody/a-book"


def addresses(folder):
    """Every address of a repository of ours that a file of the folder names, by file."""
    found = {}
    for name in NAMING:
        text = (folder / name).read_text(encoding="utf-8")
        named = re.findall(r"(?:git clone|Repository =|repository-code:) \"?([^\s\"]+)", text)
        found[name] = tuple(sorted(set(named)))
    return found


def test_every_file_names_the_address_of_pyproject():
    named = dict.fromkeys(NAMING, (elsewhere.repository(ROOT),))
    if not elsewhere.is_set(elsewhere.repository(ROOT)):  # a reader is shown no placeholder
        named["README.md"] = ()
    assert addresses(ROOT) == named


STAGE = """
from hnlib.book import build, elsewhere
from hnlib.training import records
folder = build.stage([], records.frame(), draft=True)
elsewhere.downloads(folder, elsewhere.repository(build.root()))
print(folder)
"""


@pytest.mark.slow
def test_every_page_of_a_copy_follows_the_command(tmp_path):
    """What Sphinx reads there has no placeholder; every notebook's first cell installs the wheel."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    runs = "book/results/runs"
    for name in listed.stdout.splitlines():
        if not name.startswith(runs) and (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / runs).symlink_to(ROOT / runs)
    subprocess.run(["make", "repository", f"URL={URL}"], cwd=tmp_path, check=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", STAGE]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.is_relative_to(tmp_path)
    texts = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert [p for p, text in texts.items() if b"repository.invalid" in text] == []
    notebooks = [text for p, text in texts.items() if p.suffix == ".ipynb"]
    link = f"https://somebody.github.io/a-book/{elsewhere.WHEEL}".encode()
    assert len(notebooks) > 30 and all(link in text for text in notebooks)
    assert f"git clone {URL} ".encode() in texts[folder / "book/reproduce.md"]


def test_the_buttons_wait_for_an_address():
    """None for the placeholder; the repository's for any; Colab's where Colab can read it."""
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert elsewhere.configured(config, "https://repository.invalid/owner/x") == config
    here = yaml.safe_load(elsewhere.configured(config, "https://git.somewhere.org/x"))
    assert here["html"]["use_repository_button"] and "launch_buttons" not in here
    there = yaml.safe_load(elsewhere.configured(config, URL))
    assert there["launch_buttons"] == {"colab_url": elsewhere.COLAB}
    assert there["html"]["baseurl"] == "https://somebody.github.io/a-book/"
    assert there["repository"] == {"url": URL, "branch": elsewhere.BRANCH}
    rest = there.keys() - {"launch_buttons", "repository", "html"}
    assert all(there[key] == yaml.safe_load(config)[key] for key in rest)


MYST = """\
(a-label)=
## A title

````{prf:theorem} Prices
:label: thm-prices

See {prf:ref}`thm-other`, {eq}`eq-one`, {cite:t}`hcl` and
{doc}`the page of
losses </notebooks/map-of-methods>`, {py:func}`~hnlib.transport.sinkhorn`.

$$
x
$$ (eq-one)

:::{admonition} In ten lines
:class: tip
- one
:::
````

```{math}
:label: eq-two
y
```

```python
d = {":key": 1}
:label: not an option
```
"""
PLAIN = """\
## A title

**Theorem.** Prices (thm-prices)

See *thm-other*, (eq-one), [hcl] and
*the page of losses*, `hnlib.transport.sinkhorn`.

$$
x
$$ (eq-one)

**In ten lines**

- one

$$
y
$$ (eq-two)

```python
d = {":key": 1}
:label: not an option
```"""


def test_myst_becomes_markdown_that_any_notebook_shows():
    assert elsewhere.plain(MYST) == PLAIN


@pytest.mark.slow
def test_no_directive_and_no_role_is_left_in_a_download():
    for path in sorted((ROOT / "notebooks").rglob("*.md")):
        node = elsewhere.portable(execute.read(path), URL)
        text = "\n".join(cell.source for cell in node.cells if cell.cell_type == "markdown")
        assert not re.findall(r"^ *[`:]{3,}\{.*|\{[a-z:+-]+\}`|^\([\w-]+\)=$", text, re.M), path
        fences = re.findall(r"^ *(`{3,}|:{3,})", text, re.M)
        assert len(fences) % 2 == 0 and set(fences) <= {"```"}, path


def test_records_are_found_in_the_checkout_or_where_they_were_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "project_root", lambda: tmp_path / "here")
    monkeypatch.setattr(records, "INSTALLED", tmp_path / "installed")
    with pytest.raises(ValueError, match="book/results/runs"):
        records.tracked_folder()
    for place in ("installed", "here"):
        folder = tmp_path / place / "book/results/runs"
        folder.mkdir(parents=True)
        assert records.tracked_folder() == folder
