"""A page at other parameters says the same, whichever of three ways it is run."""

import shutil
import zipfile

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from scripts import ROOT

from builder import portable_notebooks
from hnlib.notebooks import execute
from hnlib.training import records


def said(node):
    """Return the sentences and tables of a notebook, without what its cells print."""
    texts = []
    for cell in node.cells:
        if cell.cell_type == "markdown":
            texts.append(cell.source)
            continue
        for data in (output.get("data", {}) for output in cell.outputs):
            table = data.get("text/html", "")
            texts.append(data.get("text/markdown", table if "<table" in table else ""))
    return [" ".join(text.split()) for text in texts if text]


@pytest.mark.parametrize("page", ["experiments/graphs", "appendix/two-towers"])
def test_a_page_says_the_same_by_the_command_by_papermill_and_in_an_editor(
    html, page, tmp_path, monkeypatch, prints
):
    """The editor is in a folder with nothing but the notebook, the wheel and the records."""
    monkeypatch.chdir(ROOT)
    downloaded, executed = tmp_path / "page.ipynb", tmp_path / "executed.ipynb"
    prints("notebook", page, "-o", downloaded)
    prints("run", page, "-p", "small", "True", "-o", executed)
    node = nbformat.read(executed, as_version=4)
    site = portable_notebooks.repository(ROOT)
    *by_command, title = said(portable_notebooks.portable(node, site, f"notebooks/{page}"))
    assert by_command.count(title) == 1  # of what is beside, which a download has again

    options = dict(kernel_name="python3", progress_bar=False, cwd=ROOT)
    by_papermill = said(
        papermill.execute_notebook(downloaded, executed, {"small": True}, **options)
    )

    empty, unpacked = tmp_path / "empty", tmp_path / "unpacked"
    empty.mkdir()
    shutil.copy(html / records.PARQUET, empty)
    with zipfile.ZipFile(html / portable_notebooks.WHEEL) as archive:
        archive.extractall(unpacked)
    monkeypatch.setenv("PYTHONPATH", str(unpacked))
    node = nbformat.read(downloaded, as_version=4)
    published = said(node)
    (first,) = (cell for cell in node.cells if "parameters" in cell.metadata.get("tags", []))
    assert execute.parameters_of(node)["small"] is False
    first.source += "\nsmall = True"
    node.cells.append(nbformat.v4.new_code_cell("import hnlib\n\nprint(hnlib.__file__)"))
    NotebookClient(node, kernel_name="python3", resources={"metadata": {"path": empty}}).execute()
    assert str(unpacked) in node.cells.pop().outputs[0].text

    assert by_command == by_papermill == said(node)
    assert len(by_command) > 5 and by_command != published
