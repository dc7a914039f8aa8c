"""What a page shows of a record is escaped: a small book of hostile records, in a real browser."""

import json
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from builder import build, ledger_pages, papers_page
from hnlib.book import claims, figures, papers, tables
from hnlib.images.run import ImageRun
from hnlib.notebooks import execute
from hnlib.training import records

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = [
    "<script>window.bad = alert(1)</script>$",
    '"><img src=x onerror="window.bad = alert(2)">',
    "[a](javascript:window.bad=alert(3)) <javascript:window.bad=alert(4)>",
    "$$ <iframe srcdoc='<script>parent.bad = alert(5)</script>'></iframe> $$",
    "x\n\n```{raw} html\n<svg onload='window.bad = alert(6)'></svg>\n```\n",
    "{raw}`<b onclick='window.bad = 7'>x</b>` `` ``` ```` `````",
    "x\n``````\n\n# <details open ontoggle='window.bad = alert(8)'>\n",
]
PAGES = ["book/claims", "book/results", "book/papers"]
# What none of our own pages has in its text.
FOREIGN = """() => [...document.querySelectorAll('article *')].filter(e =>
    (e.tagName === 'SCRIPT' && e.type !== 'application/json')
    || ['IFRAME', 'OBJECT', 'EMBED'].includes(e.tagName)
    || (e.tagName === 'IMG' && e.getAttribute('src') === 'x')
    || (e.getAttribute('href') || '').trim().toLowerCase().startsWith('javascript:')
    || [...e.attributes].some(a => a.name.startsWith('on') && !e.closest('.article-header-buttons')))
    .map(e => e.outerHTML.slice(0, 150))"""


def chapter(outputs) -> str:
    """An executed notebook that shows ``outputs``, MIME bundles."""
    shown = [nbformat.v4.new_output("display_data", data=bundle) for bundle in outputs]
    node = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# A chapter"),
            nbformat.v4.new_code_cell("1", outputs=shown, execution_count=1),
        ]
    )
    node.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    node.metadata["hnlib"] = dict(seconds=1.0)
    return nbformat.writes(node)


def ledgers(folder: Path) -> None:
    """Records and printed numbers in which every text is hostile."""
    for text in HOSTILE:
        about = {"hardware": {"gpu": text}, "date": text, "versions": {"torch": text}}
        words = dict.fromkeys(("experiment", "dataset", "method", "encoder"), text)
        run = ImageRun(**words, options={text: text}, epochs=1).resolved()
        record = {"configuration": run.configuration, "metrics": {"knn": 0.5}, "environment": about}
        records.write(record | {"image_shape": [1, 8, 8], "seconds": 1.0}, folder / "runs")
    shutil.copy(ROOT / "book/results/papers.toml", folder)
    rows = pd.read_csv(ROOT / "book/results/papers.csv", comment="#", dtype=str).fillna("")
    for row, text in enumerate(HOSTILE):
        for column in ("table", "row", "column", "note"):
            rows.loc[row::29, column] += f"; remark={text}" if column == "note" else text
    rows.to_csv(folder / "papers.csv", index=False)
    shutil.copy(ROOT / "book/results/graph_sets.csv", folder)


def shown(text: str) -> list[dict]:
    """``text`` on all ways that a chapter has to show it."""
    check = claims.check("X1", text, kind="definition", value=0.0, tolerance=0.0)
    table = tables.table([{text: text}], caption=text)
    picture = figures.interactive("balls", f"{text} moves as you like it.", x=text)
    frame = pd.DataFrame({text: [text]}, index=[text])
    html = [x._repr_html_() for x in (table, tables.table([]), picture, frame)]
    return [
        check._repr_mimebundle_(),
        *({"text/html": page} for page in html),
        {"text/plain": text},
    ]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The pages of a book made of hostile data; on ``two`` nothing was escaped."""
    folder = tmp_path_factory.mktemp("hostile")
    stage = folder / "_build/stage"
    shutil.copytree(ROOT / "book", stage / "book", ignore=shutil.ignore_patterns("results"))
    shutil.copy(ROOT / "_config.yml", stage)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "notebooks").mkdir()
    (stage / "notebooks").mkdir()
    files = "".join(f"- file: {name}\n" for name in ("notebooks/two", *PAGES))
    for place in (folder, stage):
        (place / "_toc.yml").write_text(f"format: jb-book\nroot: notebooks/one\nchapters:\n{files}")
    shutil.copytree(ROOT / "book", folder / "book", ignore=shutil.ignore_patterns("results"))
    row = "X1,ours,,a statement,definition\n"
    (folder / "book/claims.csv").write_text("id,paper,location,statement,verdict\n" + row)
    ledgers(folder / "book/results")
    texts = {
        "one": chapter([bundle for text in HOSTILE for bundle in shown(text)]),
        "two": chapter([{"text/html": text} for text in HOSTILE]),
    }
    for name, text in texts.items():
        (stage / f"notebooks/{name}.ipynb").write_text(text)
        (folder / f"notebooks/{name}.md").write_text(f"# {name}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        execute.root.cache_clear()
        papers.cells.cache_clear()
        executed = {name: json.loads(text) for name, text in texts.items()}
        runs = records.frame(folder / "book/results/runs")
        ledger_pages.write(stage / "book", executed, runs, folder, draft=True)
        papers_page.write(stage / "book", runs)
        build.render(stage, draft=True)
    execute.root.cache_clear()
    papers.cells.cache_clear()
    return folder / "_build/html"


@pytest.mark.slow
def test_nothing_that_came_with_data_runs(browser, hostile):
    """No dialog and no foreign element, but on the page where nothing was escaped."""
    page, dialogs, foreign = browser.new_page(), [], []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for name in ("notebooks/one", *PAGES):
        page.goto((hostile / f"{name}.html").as_uri())
        page.evaluate("() => window.MathJax?.startup?.promise")
        foreign += page.evaluate(FOREIGN)
    assert foreign == []
    assert dialogs == []
    page.goto((hostile / "notebooks/two.html").as_uri())
    assert page.evaluate(FOREIGN) != []
    page.close()
