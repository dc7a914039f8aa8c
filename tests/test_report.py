"""The report of a run: one file of HTML with figures, captions, formulas and folded code."""

import base64
import re

from nbformat import v4, write

from hnlib.notebooks import execute, plain_markdown, report, two_texts

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><circle id="a" r="3"/></svg>'
FIGURE = {
    "figure": {"name": "fig-one", "caption": "Dots by $\\gamma$."},
    "image": {"alt": "Two <dots>"},
}


def notebook():
    drawn = v4.new_output("display_data", data={"image/svg+xml": SVG, "text/plain": "<Figure>"})
    shown = v4.new_output("stream", text="a < b\n")
    said = v4.new_output("display_data", data={"text/markdown": "**Yes** {ref}`a-label`"})
    table = v4.new_output(
        "execute_result", data={"text/html": "<table></table>", "text/plain": "x"}
    )
    return v4.new_notebook(
        cells=[
            v4.new_markdown_cell("# A page\n\nIf $x<y_1$ then {prf:ref}`thm-one`.\n\n$$\nz\n$$"),
            v4.new_markdown_cell("<!-- fold: Set-up -->"),
            v4.new_code_cell("x < 1", outputs=[shown]),
            v4.new_markdown_cell("<!-- end of fold -->"),
            v4.new_code_cell("hidden", metadata={"tags": ["hide-input"]}, outputs=[table]),
            v4.new_code_cell("gone", metadata={"tags": ["remove-cell"]}),
            v4.new_code_cell("draw()", metadata={"mystnb": FIGURE}, outputs=[drawn, said]),
            v4.new_code_cell(two_texts.BESIDE_CODE),
            v4.new_markdown_cell(
                "> *In the published runs:* It rises.\n\n| a | b |\n|---|---|\n| 1 | 2 |"
            ),
        ]
    )


def test_a_report_has_all_that_the_notebook_shows(new_checkout, monkeypatch):
    labels = {"thm-one": "Theorem 3.1", "a-label": "A title"}
    monkeypatch.setattr(plain_markdown, "LABELS", labels)
    root = new_checkout({"_toc.yml": "", "notebooks/page.md": "# A page\n"})
    execute.root.cache_clear()
    write(notebook(), path := root / "out.ipynb")
    made = report.write(path, "notebooks/page", "page <1>")
    text = re.sub(r"<script>.*?</script>", "", made.read_text("utf-8"), flags=re.S)
    execute.root.cache_clear()
    assert made == path.with_suffix(".html") and "<title>page &lt;1&gt;</title>" in text
    assert r"\(x&lt;y_1\)" in text and r"\[z\]" in text  # no emphasis inside a formula
    assert "Theorem 3.1" in text and "<strong>Yes</strong> A title" in text
    assert re.search(r"<summary>Set-up</summary>.*x &lt; 1.*a &lt; b.*</details>", text, re.S)
    assert "<details><summary>Code</summary><pre>hidden</pre></details>\n<table></table>" in text
    assert "gone" not in text and "&lt;Figure&gt;" not in text
    (alt, content), *_ = re.findall(
        r'<img alt="(.*?)" src="data:image/svg\+xml;base64,(.*?)">', text
    )
    assert alt == "Two &lt;dots&gt;" and base64.b64decode(content).decode() == SVG
    assert re.search(r"<figcaption><p>Dots by <span.*?>\\\(\\gamma\\\)</span>.</p>", text)
    assert text.count("<details>") == text.count("</details>") == 3
    assert "<blockquote>" in text and "<td>1</td>" in text


def test_a_report_opens_alone(new_checkout):
    root = new_checkout({"_toc.yml": "", "notebooks/page.md": "# A page\n"})
    execute.root.cache_clear()
    write(notebook(), path := root / "out.ipynb")
    text = report.write(path, "notebooks/page", "page").read_text("utf-8")
    execute.root.cache_clear()
    body = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert len(text) > 1e6  # with what sets formulas
    assert not re.search(r'(src|href)="(?!data:)', body)
    write(v4.new_notebook(cells=[v4.new_markdown_cell("No formula.")]), path)
    assert report.write(path, "notebooks/page", "page").stat().st_size < 5000


def test_a_link_to_a_page_of_prose_has_its_title(new_checkout, monkeypatch):
    monkeypatch.setattr(plain_markdown, "LABELS", {})
    toc = "root: notebooks/page\nparts:\n- chapters:\n  - file: prose/other\n  - file: prose/made\n"
    files = {"notebooks/page.md": "# A page\n", "prose/other.md": "# Of numbers\n"}
    root = new_checkout({"_toc.yml": toc} | files)
    linked = v4.new_markdown_cell("See [](../prose/other.md).")
    write(v4.new_notebook(cells=[linked]), path := root / "out.ipynb")
    made = report.write(path, "notebooks/page", "page").read_text("utf-8")
    assert "See <em>Of numbers</em>." in made
