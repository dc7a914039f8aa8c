"""The book away from its checkout: one address for all, and notebooks that start elsewhere."""

import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from builder import portable_notebooks
from hnlib.training import records

URL = "https://github.com/somebody/a-book"


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
