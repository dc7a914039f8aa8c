"""The book away from its checkout: one address for all, and notebooks that start elsewhere."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from scripts import ROOT

from builder import earlier_releases, portable_notebooks
from hnlib.training import records

URL = "https://github.com/somebody/a-book"


STAGE = """
from builder import build, portable_notebooks
from hnlib.training import records
folder = build.stage([], records.frame(), draft=True)
portable_notebooks.downloads(folder, portable_notebooks.repository(build.root()))
print(folder)
"""


@pytest.mark.slow
def test_every_page_of_a_copy_follows_the_command(tmp_path):
    """What Sphinx reads there has no placeholder; every notebook's first cell installs the wheel."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    runs = "book/results/records"
    for name in listed.stdout.splitlines():
        if not name.startswith(runs) and (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / runs).symlink_to(ROOT / runs)
    subprocess.run(["make", "repository", f"URL={URL}"], cwd=tmp_path, check=True)
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert readme.count(f"@ git+{URL}'") == 3 and f"]({URL}/actions/workflows/book.yml)" in readme
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'book'}"}
    command = [sys.executable, "-c", STAGE]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.is_relative_to(tmp_path)
    texts = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert [p for p, text in texts.items() if b"repository.invalid" in text] == []
    notebooks = [text for p, text in texts.items() if p.suffix == ".ipynb"]
    link = f"https://somebody.github.io/a-book/{portable_notebooks.WHEEL}".encode()
    assert len(notebooks) > 30 and all(link in text for text in notebooks)
    assert f"git clone {URL} ".encode() in texts[folder / "book/gpu.md"]


def test_the_buttons_wait_for_an_address():
    """None for the placeholder; the repository's for any; Colab's where Colab can read it."""
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert portable_notebooks.configured(config, "https://repository.invalid/owner/x") == config
    here = yaml.safe_load(portable_notebooks.configured(config, "https://git.somewhere.org/x"))
    assert here["html"]["use_repository_button"] and "launch_buttons" not in here
    there = yaml.safe_load(portable_notebooks.configured(config, URL))
    assert there["launch_buttons"] == {"colab_url": portable_notebooks.COLAB}
    assert there["html"]["baseurl"] == "https://somebody.github.io/a-book/"
    assert there["repository"] == {"url": URL, "branch": portable_notebooks.BRANCH}
    rest = there.keys() - {"launch_buttons", "repository", "html", "sphinx"}
    switch = there["sphinx"]["config"]["html_theme_options"]["switcher"]
    assert switch["json_url"] == "https://somebody.github.io/a-book/versions.json"
    assert "switcher" not in here["sphinx"]["config"]["html_theme_options"]
    assert all(there[key] == yaml.safe_load(config)[key] for key in rest)


def test_the_pages_of_each_release_stand_beside_the_latest(tmp_path, monkeypatch):
    """In a folder of its tag; a release that was made without pages is left out."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old/index.html").write_text("old")
    made = {"v0.2.0": [earlier_releases.PAGES], "v0.1.0": []}

    def gh(verb, what, *rest):
        if what == "list":
            return json.dumps([{"tagName": tag} for tag in made])
        if what == "view":
            return json.dumps({"assets": [{"name": name} for name in made[rest[0]]]})
        with tarfile.open(Path(rest[-1]) / earlier_releases.PAGES, "w:gz") as archive:
            archive.add(tmp_path / "old", ".")
        return ""

    monkeypatch.setattr(earlier_releases, "gh", gh)
    listed = earlier_releases.add(tmp_path / "html", "https://a.github.io/b/")
    assert [one["url"] for one in listed] == [
        "https://a.github.io/b/",
        "https://a.github.io/b/v0.2.0/",
    ]
    assert (tmp_path / "html/v0.2.0/index.html").read_text() == "old"
    assert json.loads((tmp_path / "html/versions.json").read_text()) == listed


MYST = """\
(a-label)=
## A title

````{prf:theorem} Prices
:label: thm-prices

See {prf:ref}`thm-other`, {eq}`eq-one`, {cite:t}`hcl`, {cite:p}`hcl,hclot` and
{doc}`the page of
losses </notebooks/other>`, {doc}`other`, {py:func}`~hnlib.transport.sinkhorn`.

$$
x
$$ (eq-one)

- {ref}`a-label`, {term}`held fixed`
````

<!-- checks -->

```{solution} ex-one
:label: sol-one
:class: dropdown
$y$
```

<!-- end of checks -->

```python
d = {":key": 1}
:label: not an option
```
"""
PLAIN = """\
## A title

**Theorem 3.1 (Prices)**

See [*Other losses*, Lemma 4.2](SITE/notebooks/other.html#thm-other), (3.1), Robinson et al. [2021], [Robinson et al., 2021; Jiang et al., 2023] and
[the page of losses](SITE/notebooks/other.html), [Other *losses*](SITE/notebooks/other.html), `hnlib.transport.sinkhorn`.

$$
x
\\tag{3.1}
$$

- A title, [held fixed](SITE/book/notation.html#term-held-fixed)

**Checks**

<details><summary>Solution to Exercise 3.1</summary>

$y$

</details>

```python
d = {":key": 1}
:label: not an option
```"""
HERE = {"a-label": "A title", "thm-prices": "Theorem 3.1", "eq-one": "(3.1)"}
HERE |= {"ex-one": "Exercise 3.1"}
THERE = {"thm-other": "Lemma 4.2", "/notebooks/other": "Other *losses*"}


@pytest.mark.parametrize("site", ["SITE/", ""])
def test_myst_becomes_markdown_that_any_notebook_shows(monkeypatch, site):
    """Without an address, the words of a link stay, those of a page in italics."""
    shown = {label: (text, "notebooks/one") for label, text in HERE.items()}
    shown |= {label: (text, "notebooks/other") for label, text in THERE.items()}
    monkeypatch.setattr(portable_notebooks, "LABELS", shown)
    expected = PLAIN
    if not site:
        expected = re.sub(r"\[([^]]*)\]\(SITE/notebooks/other.html\)", r"*\1*", PLAIN)
        expected = re.sub(r"\[([^]]*)\]\(SITE\S*\)", r"\1", expected)
    assert portable_notebooks.plain(MYST, "notebooks/one", site) == expected


def test_a_download_hides_what_the_page_hides_and_says_what_a_figure_shows(monkeypatch):
    page = "notebooks/theory/packing"
    label = {"fig-packing-rates": ("Fig. 8.2", page)}
    monkeypatch.setattr(portable_notebooks, "LABELS", label)
    figure = {"mystnb": {"figure": {"name": "fig-packing-rates", "caption": "See {cite:t}`hcl`."}}}
    cells = [
        new_markdown_cell("<!-- fold: Set-up -->"),
        new_code_cell("1"),
        new_markdown_cell("<!-- end of fold -->"),
        new_code_cell("2", metadata={"tags": ["remove-input"]} | figure),
        new_code_cell("3"),
    ]
    node = portable_notebooks.portable(new_notebook(cells=cells), URL, page)
    _, title, *code, last, references = node.cells
    assert title.source == "**Set-up**"
    assert code.pop().source == "**Fig. 8.2.** See Robinson et al. [2021]."
    hidden = [tuple(cell.metadata.jupyter.values()) for cell in (*code, last)]
    assert hidden == [(True, True), (True, False), (False, False)]
    assert references.source.startswith("## References\n\n- J. Robinson")


def test_records_are_found_in_the_checkout_or_beside_the_notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "project_root", lambda: tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HNLIB_RECORDS", raising=False)
    with pytest.raises(ValueError, match=r"put that file, which the book links, beside the noteb"):
        records.tracked()
    (tmp_path / records.PARQUET).touch()
    assert records.tracked() == tmp_path / records.PARQUET
    folder = tmp_path / "here/book/results/records"
    folder.mkdir(parents=True)
    assert records.tracked() == folder
    monkeypatch.setenv("HNLIB_RECORDS", str(tmp_path / "mine"))
    with pytest.raises(ValueError, match="neither a folder nor a Parquet"):
        records.tracked()
    (tmp_path / "mine").mkdir()
    assert records.tracked() == tmp_path / "mine"
