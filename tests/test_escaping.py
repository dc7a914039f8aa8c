"""What a page shows of a record is escaped: it stays a text in MyST and in HTML."""

import re
from types import SimpleNamespace

import pytest
import yaml
from docutils import nodes
from docutils.core import publish_doctree
from myst_parser.parsers.docutils_ import Parser
from scripts import ROOT

from builder import ledger_pages, paper_numbers
from hnbook import claims, figures, tables
from hnlib.images.config import ImageRun
from hnlib.training import records

NUMBERS = dict(value=0.0, tolerance=0.0, instances=1, control=None)
HOSTILE = [
    "$$ <script>window.bad = alert(1)</script> $$",
    '"><img src=x onerror="window.bad = alert(2)">',
    "[a](javascript:window.bad=alert(3)) <javascript:window.bad=alert(4)>",
    "x\n\n```{raw} html\n<svg onload='window.bad = alert(6)'></svg>\n```\n",
    "{raw}`<b onclick='window.bad = 7'>x</b>` `` ``` ```` `````",
    "\x1c* - \x85\u2028x\x0b```\n<script>",
]
EXTENSIONS = yaml.safe_load((ROOT / "_config.yml").read_text())["parse"]["myst_enable_extensions"]
MORE = (nodes.raw, nodes.reference, nodes.image, nodes.math, nodes.math_block)
MORE += (nodes.problematic, nodes.system_message)
OURS = re.compile(
    r'</?(a|span|br)( class="reference internal"| id="claim-X1")?( href="\S+")?>|&nbsp;'
)


def more_than_text(myst: str) -> list[str]:
    """Return what a page of MyST has beside text and tables, and what its tables link."""
    folds = r"^:{3,}.*$"  # of an extension of Sphinx
    myst = "# A page\n\n## Of tables\n\n" + re.sub(folds, "", myst, flags=re.M)
    chosen = {"myst_enable_extensions": EXTENSIONS, "report_level": 5, "halt_level": 5}
    tree = publish_doctree(myst, parser=Parser(), settings_overrides=chosen)
    found = (node for node in tree.findall() if isinstance(node, MORE))
    return [str(node) for node in found if not OURS.fullmatch(node.astext())]


@pytest.mark.parametrize("text", HOSTILE)
def test_the_generated_pages_show_it_as_text(text, monkeypatch):
    words = dict.fromkeys(("experiment", "dataset", "method", "encoder"), text)
    run = ImageRun(**words, options={text: text}, epochs=1)
    record = dict(kind="images", configuration=run.resolved().configuration, metrics={"knn": 0.5})
    record |= dict(environment={"hardware": {"gpu": text}, "date": text}, seconds=1.0)
    frame = records.frame([record])
    assert more_than_text(ledger_pages.dataset_table(frame)) == []
    one = next(cell for cell in paper_numbers.cells() if cell.run)
    words = ("table", "row", "column", "dataset", "remark", "ours")
    shown = vars(one) | dict.fromkeys(words, text)
    both = dict(run=run, key="k"), dict(run=None, reason=text)
    cells = [SimpleNamespace(**shown | more) for more in both]
    monkeypatch.setattr(paper_numbers, "cells", lambda: cells)
    claim = {"id": "X1", "paper": "ours", "statement": "s", "verdict": "definition"}
    check = claims.Line("X1", text, "definition", **NUMBERS).record
    page = ledger_pages.claims_tables([claim], [check | {"chapter": "one"}])
    for part in (page, *paper_numbers.parts(frame).values()):
        assert more_than_text(part) == []


@pytest.mark.parametrize("text", [text for text in HOSTILE if "<" in text])
def test_what_a_chapter_displays_shows_it_as_text(text):
    check = claims.Line("X1", text, "definition", **NUMBERS)
    pages = [
        check._repr_mimebundle_()["text/html"],
        tables.table([{text: text}], caption=text)._repr_html_(),
        figures.interactive("balls", f"{text} moves as you like it.", x=text).data,
    ]
    tag = re.search("<[^>]*", text)[0]
    assert not [page for page in pages if tag in re.sub("<script type=.*?>", "", page)]


def test_hostile_texts_are_seen():
    """Negative control: unescaped. MyST drops two of them by itself."""
    unescaped = [ledger_pages.table(["a"], [[tables.Markup(text)]]) for text in HOSTILE]
    assert sum(bool(more_than_text(page)) for page in unescaped) >= 4
