"""Small repairs to the pages the theme writes, so that they read offline, without script errors and
with a reader."""

import hashlib
import json
import os
import re
from importlib import import_module
from pathlib import Path
from string import ascii_uppercase

from sphinx.ext.autodoc.mock import mock
from sphinx_external_toc.parsing import parse_toc_yaml
from sphinx_proof.domain import ProofDomain

from hnlib.notebooks.execute import root

PROOF = '<div class="proof hn-proof admonition"><p><em class="hn-proof-word">Proof.</em>'
KERNEL = r"<script type=\"text/x-thebe-config\">.*?</script>\s*<script>kernelName = '\w+'</script>"
# The title of a theorem, a definition or an exercise, to which it gets a link.
TITLE = re.compile(
    r'(<div class="(?:proof|exercise) (\w+)[^"]*" id="([^"]+)">\s*<p class="admonition-title">.*?)(</p>)',
    re.S,
)
LINK = r'\1<a class="headerlink" href="#\3" title="Link to this \2">#</a>\4'
PART = re.compile(
    r'<p [^>]*class="caption"[^>]*>(.*?)</p>\s*(<ul.*?)(?=<p [^>]*class="caption"|</div>|\Z)', re.S
)
# A formula in a line with the marks that touch it: a browser would let a comma start the next line.
FORMULA = r'[(“‘]?<span class="math notranslate nohighlight">(?:(?!</span>).)*</span>[,.;:!?)”’\]s-]*(?!\w)'


def repair(app, pagename, templatename, context, doctree):
    # the theme names one script twice, which ends in "THEBE_JS_URL already declared"
    scripts = context.get("script_files", [])
    scripts[:] = {(x.filename or "", x.attributes.get("body")): x for x in scripts}.values()
    # what a page would need to start a kernel of its own, and three findings of axe-core
    body = re.sub(KERNEL, "", context.get("body", ""), flags=re.S)
    body = re.sub(' aria-label="Toggle hidden content"| role="(list|doc-biblioentry)"', "", body)
    # a head without words is the corner of a table, which nobody should have read to them as a head
    body = re.sub(r"<th( [^>]*)?>(<p></p>)?</th>", r"<td\1></td>", body)
    # sphinx-proof gives the same name to all of them
    body = re.sub(r' id="(proof(-content)?|(solution|exercise)-content)"', "", body)
    body = re.sub(r'<div class="proof admonition">\s*<p>Proof\.', PROOF, body)
    body = TITLE.sub(LINK, body)
    # a word of code is not broken, nor parted from its comma or bracket, but for one as long as a line
    body = re.sub(r'(?<=<span class="pre)(?=">[^<]{35})', " hn-long", body)
    context["body"] = re.sub(FORMULA, r'<span class="hn-nobreak">\g<0></span>', body, flags=re.S)


def _part(part: re.Match) -> str:
    """Fold a part of the sidebar, unless it holds the open page, or what a newcomer looks for."""
    caption, pages = part.groups()
    shown = " open" * ("current" in pages or re.sub("<.*?>", "", caption) in ("Start", "Use"))
    return f'<details class="hn-part"{shown}><summary>{caption}</summary>{pages}</details>'


def fold_sidebar(app, pagename, templatename, context, doctree):
    if made := context.get("generate_toctree_html"):
        context["generate_toctree_html"] = lambda *args, **options: PART.sub(
            _part, str(made(*args, **options))
        )


def stacked(caption: re.Match) -> str:
    """Say in a caption which panel is meant both where panels stand side by side and stacked."""

    def both(side: re.Match) -> str:
        word = {"left": "top", "right": "bottom"}[side[0].lower()]
        word = word.capitalize() if side[0][0].isupper() else word
        return f'<span class="hn-on-wide">{side[0]}</span><span class="hn-on-narrow">{word}</span>'

    return re.sub(r"\b([Ll]eft|[Rr]ight)\b(?=[:)])", both, caption[0])


def offer_narrow(app, pagename, templatename, context, doctree):
    """Offer a phone the second drawing of a figure (`hnbook.figures.show`)."""
    if doctree is None or not (source := app.env.doc2path(pagename)).endswith(".ipynb"):
        return
    for cell in json.loads(Path(source).read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            if drawing := output.get("metadata", {}).get("narrow"):
                wide = "".join(output["data"]["image/svg+xml"])
                # as myst-nb names it
                name = hashlib.sha256("\n".join(wide.splitlines()).encode()).hexdigest()
                path = Path(app.outdir, "_images", f"{name}-narrow.svg")
                path.parent.mkdir(exist_ok=True)
                path.write_text(drawing, encoding="utf-8")
                context["body"] = re.sub(
                    rf'<img [^>]*src="([^"]*){name}\.svg"[^>]*>',
                    rf'<picture><source media="(max-width: 600px)" srcset="\g<1>{path.name}">\g<0></picture>',
                    context["body"],
                )
    context["body"] = re.sub(
        r"(?<=</picture>)\s*<figcaption>.*?</figcaption>", stacked, context["body"], flags=re.S
    )


def read_in_parallel(app, env, docnames):
    app.parallel = 2 * (os.cpu_count() or 1)  # their shares of the pages take unequal times
    # these do not say, or not in full, that they can be read in parallel
    for name in ("sphinx-mathjax-offline", "sphinx_multitoc_numbering", "sphinx_jupyterbook_latex"):
        if name in app.extensions:
            app.extensions[name].parallel_read_safe = True
    ProofDomain.merge_domaindata = lambda *nothing: None
    with mock(app.config.autodoc_mock_imports):
        for page in docnames:  # once, before the processes that document them are forked
            if page.startswith("book/api/"):
                import_module(page.rpartition("/")[2])


def twins(notebook: str) -> set[str]:
    """Return the names of a page's static figures that only paper shows beside a picture that moves."""
    tag = "static-of-picture"
    cells = json.loads(notebook)["cells"] if tag in notebook else []
    tagged = [cell["metadata"] for cell in cells if tag in cell["metadata"].get("tags", ())]
    figures = (one.get("mystnb", {}).get("figure", {}) for one in tagged)
    return {figure["name"] for figure in figures if figure}


def number_figures(app, env):
    """Number figures without their static twins, and by letter all that appendices number.

    The start page has numbers without a chapter.
    """
    toc = parse_toc_yaml(root() / "_toc.yml").root
    places: dict[str, tuple] = {toc.docname: ()}
    for letter, part in zip(ascii_uppercase, (one for one in toc.subtrees if not one.numbered)):
        places |= {page: (f"{letter}{i}",) for i, page in enumerate(part.items, 1)}
    for page, kinds in env.toc_fignumbers.items():
        source = Path(env.doc2path(page))
        hidden = twins(source.read_text("utf-8")) if source.suffix == ".ipynb" else ()
        for kind, numbers in kinds.items():
            if kind == "figure":
                for name in hidden:
                    numbers.pop(name, None)
            if page in places or kind == "figure":
                renumber(numbers, places.get(page))
    return []


def renumber(numbers: dict[str, tuple], place: tuple | None) -> None:
    """Count from 1 in a place; by default in the chapter that the numbers have."""
    for i, (name, number) in enumerate(numbers.items(), 1):
        numbers[name] = (*(number[:-1] if place is None else place), i)
