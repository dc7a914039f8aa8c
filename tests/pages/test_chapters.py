"""Every chapter's checks of claims hold: its code, executed in order in this process, with nothing drawn.

`make book` executes them, too; here the mutants of chapters meet them one page at a time.
"""

import re

import matplotlib as mpl
import pytest
import torch
from scripts import ROOT

from hnbook import claims, figures
from hnlib.notebooks import execute

#: Which train, or read many records: `make book` alone executes them
LONG = {"balance", "ground-cost", "pairs", "stuck"}
PAGES = {
    page.stem: page
    for page in sorted((ROOT / "notebooks").rglob("*.md"))
    if "claims.check(" in page.read_text("utf-8") and page.stem not in LONG
}


@pytest.fixture
def checked(monkeypatch):
    """The ids of the checks that passed while the fixture is there."""
    ids = []
    default, style = torch.get_default_dtype(), mpl.rcParams.copy()
    monkeypatch.setenv("HNLIB_RECALL", "1")  # a chapter rests on records
    monkeypatch.setattr(claims, "display", lambda line: ids.append(line.record["id"]))
    monkeypatch.setattr(figures, "panels", lambda *size, **options: lambda draw: draw)
    monkeypatch.setattr(figures, "show", lambda draw: draw)
    yield ids
    torch.set_default_dtype(default)
    mpl.rcParams.update(style)
    figures.plt.close("all")


@pytest.mark.parametrize("name", PAGES)
def test_checks_hold(name, checked):
    """A check raises what `make book` would stop at; one that is left out is missed."""
    page = execute.read(PAGES[name])
    cells = [cell.source for cell in page.cells if cell.cell_type == "code"]
    names = {"__name__": "__main__"}
    for i, source in enumerate(cells):
        exec(compile(source, f"{name}, code cell {i}", "exec", dont_inherit=True), names)
    announced = re.findall(r'claims\.check\(\s*"(\w+)"', PAGES[name].read_text("utf-8"))
    assert {*checked} == {*announced}
