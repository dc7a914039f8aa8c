"""The book away from its checkout: its repository, and notebooks that one downloads."""

import posixpath
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from builder.redirects import filled
from hnlib.notebooks import inline_values, two_texts
from hnlib.notebooks.execute import parameters_of, root
from hnlib.training import records

BRANCH = "notebooks"  # where the workflow puts the downloads, for Colab
COLAB = "https://colab.research.google.com"
WHEEL = f"hnlib-{metadata.version('hnlib')}-py3-none-any.whl"


def repository(root: Path) -> str:
    """Return the address in `pyproject.toml`."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"]["Repository"]


def address(url: str) -> str:
    """Return where the workflow publishes the pages, "" if the repository is not on GitHub."""
    if urlsplit(url).netloc != "github.com":
        return ""
    owner, _, name = urlsplit(url).path.strip("/").partition("/")
    return f"https://{owner}.github.io/{name}/"


def configured(config: str, url: str) -> str:
    """Return ``_config.yml`` with buttons for the repository and for Colab, if it is on GitHub."""
    if not (pages := address(url)):
        return config
    button = "use_repository_button: "
    config = config.replace(f"{button}false", f"{button}true")
    config = config.replace("\nhtml:\n", f"\nhtml:\n  baseurl: {pages}\n")
    config += f"\nrepository:\n  url: {url}\n  branch: {BRANCH}\n"
    return f"{config}launch_buttons:\n  colab_url: {COLAB}\n"


def parts(url: str) -> dict[str, str]:
    """Return what *Run it on your GPU* says about the address."""
    clone = f"git clone {url} hard-negatives\ncd hard-negatives"
    wheel, packed = (f'<a href="../{x}" download>{x}</a>' for x in (WHEEL, records.PARQUET))
    clone = clone if address(url) else "# in a checkout of this book"
    return {"clone": clone, "wheel": wheel, "records": packed}


def wheel(folder: Path) -> None:
    """Build the library's wheel into the folder, for readers of the pages without a checkout."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=root(), check=True)


# Notebooks that are downloaded

BESIDE = f", put {WHEEL} and {records.PARQUET} of 'Run it on your GPU' beside this notebook"
DIRECTIVE = re.compile(
    r"^ *(`{3,}|:{3,})\{([\w:-]+)\} *([^\n]*)\n((?: *:[\w-]+:[^\n]*\n)*)(.*?)^ *\1 *$", re.M | re.S
)
ROLE = re.compile(r"(?<!`)\{([\w:+-]+)\}`([^`]+)`")
PAGE = re.compile(r"\[([^][]*)\]\(((?:\.\./)*[\w/-]+)\.md\)")
EQUATION = re.compile(r"^( *)\$\$ \(([\w-]+)\)$", re.M)
FOLD = re.compile(r"<!-- fold: (.*?) -->\s*(\S.*?)\s*(?:<!-- end of fold -->|\Z)", re.S)
STRIP = re.compile(r"<!-- (end of )?(?:checks|fold|more)\b")  # book/ext/folds.py
HIDDEN = {"hide-input", "remove-input", "remove-cell"}
# In a page of HTML the label of a statement, an equation or a figure, and its number.
NUMBER = re.compile(
    r' id="(?:equation-)?([\w-]+)"(?:(?! id=").)*?<span class="(?:caption-number|eqno)">([^<]*)',
    re.S,
)
HEADING = re.compile(r"^\((\S+)\)=\n+#+ (.*)", re.M)
#: What is shown for each label, and for each page as "/page".
LABELS: dict[str, str] = {}


def read_labels(html: Path, pages: Iterable[str]) -> None:
    """Fill `LABELS`: numbers from the finished pages, titles from their sources."""
    for page in pages:
        text = (root() / f"{page}.md").read_text(encoding="utf-8")
        numbers = NUMBER.findall((html / f"{page}.html").read_text(encoding="utf-8"))
        found = [(f"/{page}", re.findall("^# (.*)", text, re.M)[0]), *HEADING.findall(text)]
        LABELS.update({label: shown.strip() for label, shown in [*found, *numbers]})


@cache
def cited() -> dict[str, str]:
    """Return authors and year of each entry of the bibliography, by key."""
    from pybtex.database import parse_file

    found = {}
    for key, entry in parse_file(root() / "book/references.bib").entries.items():
        people = entry.persons["author"]
        names = [" ".join(map(str, p.rich_prelast_names + p.rich_last_names)) for p in people]
        several = len(names) > 2 or names[-1] == "others"
        who = f"{names[0]} et al." if several else " and ".join(names)
        found[key] = f"{who}, {entry.fields['year']}"
    return found


def _known(label: str) -> str:
    return LABELS.get(label, label)


def _directive(match: re.Match) -> str:
    """Return the Markdown that replaces a directive: its title above its contents."""
    _, kind, title, options, contents = match.groups()
    if kind == "prf:proof":
        return f"\n*Proof.* {contents}\n"
    if kind == "solution":
        kind, title = "dropdown", f"Solution to {_known(title)}"
    if kind == "dropdown":
        return f"\n<details><summary>{title}</summary>\n\n{contents}\n\n</details>\n"
    label = re.search(r":label:\s*(.*)", options)
    name = _known(label[1]) if label else kind.rpartition(":")[2].capitalize()
    if kind != "admonition":  # shown as its title alone
        title = f"{name} ({title})" if title else name
    return f"\n**{title}**\n\n{contents}\n"


def _words(role: re.Match) -> str:
    """Return the Markdown that replaces a role."""
    kind, text = role[1], " ".join(role[2].split())
    said, label = re.fullmatch(r"(?:(.*) <)?(.*?)>?", text).groups()
    if kind.startswith("py:"):
        return f"`{said or label.removeprefix('~')}`"
    if kind.startswith("cite"):
        names = "; ".join(cited().get(key, key) for key in text.split(","))
        return names if kind == "cite:t" else f"[{names}]"
    return said or _known(label)


def _page(link: re.Match, page: str) -> str:
    """Return the words of a link from a page to another."""
    path = posixpath.normpath(posixpath.join("/", posixpath.dirname(page), link[2]))
    return f"*{link[1] or _known(path).replace('*', '')}*"


def plain(text: str, page: str) -> str:
    """Convert the MyST of a page to plain Markdown, with labels as a reader of the page sees them.

    Of a link to another page the words are left.
    """
    text = two_texts.without_marks(text)  # before comments go with the lines below them
    text, count = FOLD.sub(r":::::::{dropdown} \1\n\2\n:::::::", f"{text}\n"), 1
    while count:  # one directive may contain another
        text, count = DIRECTIVE.subn(_directive, text)
    text = re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.M)
    text = EQUATION.sub(lambda eq: f"{eq[1]}\\tag{{{_known(eq[2])[1:-1]}}}\n{eq[1]}$$", text)
    text = re.sub(r"<!-- (?:more|fold): (.*?) -->", r"**\1**", text)
    text = text.replace("<!-- checks -->", "**Checks**")
    text = re.sub(r"<!--.*?-->\n*", "", text, flags=re.S)
    text = re.sub(r'<a href="(?:\.\./)+\S+?">(.*?)</a>', r"\1", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip("\n")
    return PAGE.sub(partial(_page, page=page), ROLE.sub(_words, text))


def _first(node, site: str) -> str:
    """Return the source of the cell that installs what a notebook needs and fetches what it reads.

    Without the pages' address the reader puts both beside the notebook.
    """
    if not site:
        return filled("elsewhere.txt", beside=BESIDE, wheel=f"./{WHEEL}[notebooks]").strip()
    reads = any(x.endswith("/records") for x in node.metadata.get("hnlib", {}).get("read", {}))
    first = filled("elsewhere.txt", beside="", wheel=f"hnlib[notebooks] @ {site}{WHEEL}")
    return (first + filled("fetch.txt", site=site, file=records.PARQUET) * reads).strip()


def _computed(cell, values: dict[str, str], page: str):
    """Return the code cell that says a text anew; its output is the text as it was published."""
    from nbformat.v4 import new_code_cell, new_output

    expressions = inline_values.EVAL.findall(two_texts.outside(text := cell.metadata["computed"]))
    text = two_texts.in_findings(text, lambda x: inline_values.EVAL.sub(lambda y: values[y[1]], x))
    for i, one in enumerate(expressions):  # `plain` would take it for a role
        text = text.replace(f"{{eval}}`{one}`", f"\ue000{i}\ue001", 1)
    text = plain(two_texts.quoted(text), page)
    for i, one in enumerate(expressions):
        text = text.replace(f"\ue000{i}\ue001", f"{{eval}}`{' '.join(one.split())}`")
    quotes = next(quotes for quotes in ('"""', "'''") if quotes not in text)
    said = {"text/markdown": inline_values.EVAL.sub(lambda x: values[x[1]], text)}
    source = f"from hnlib.notebooks.inline_values import say\n\nsay(r{quotes}{text}{quotes})"
    shown = new_output("display_data", data=said | {"text/plain": said["text/markdown"]})
    made = new_code_cell(source, id=cell.id, outputs=[shown])
    made.metadata["jupyter"] = {"source_hidden": True}
    return made


def portable(node, url: str, page: str, as_notebook: bool = True):
    """Change a page's notebook to plain Markdown; its first cell installs what the page needs.

    Figures have their captions below them; what the page hides is hidden where Jupyter can. Where a
    page has parameters, findings are quoted, and what it computes in other sentences is a cell, but
    for who reads it as the book.
    """
    from nbformat.v4 import new_code_cell, new_markdown_cell

    strips = 0  # a strip may stand in what may be left out
    values = node.metadata.get("hnlib", {}).get("inline", {})
    values |= {" ".join(one.split()): said for one, said in values.items()}
    if changes := as_notebook and bool(parameters_of(node)):
        two_texts.add_beside(node)
    cells = [new_code_cell(_first(node, address(url)), id="elsewhere")]
    for cell in node.cells:
        cells.append(cell)
        if cell.cell_type == "markdown":
            strips += sum(-1 if end else 1 for end in STRIP.findall(cell.source))
            if changes and "computed" in cell.metadata:
                cells[-1] = _computed(cell, values, page)
            else:
                cell.source = plain(two_texts.quoted(cell.source) if changes else cell.source, page)
            cell.metadata.pop("computed", None)
            continue
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).pop("narrow", None)
            if "text/markdown" in output.get("data", {}):
                output.data["text/markdown"] = plain(output.data["text/markdown"], page)
        closed = strips > 0
        cell.metadata["jupyter"] = {
            "source_hidden": closed or bool(HIDDEN & {*cell.metadata.get("tags", [])}),
            "outputs_hidden": closed,
        }
        figure = cell.metadata.get("mystnb", {}).get("figure", {})
        if name := figure.get("name"):
            shown = figure.get("caption", "")
            shown = two_texts.without_findings(shown) if changes else shown
            caption = f"**{_known(name)}.** {plain(shown, page)}"
            cells.append(new_markdown_cell(caption, id=name))
    node.cells = [cell for cell in cells if cell.source]
    return node


def downloads(folder: Path, url: str) -> None:
    """Make every notebook below the folder `portable`."""
    import nbformat

    for path in sorted(folder.rglob("*.ipynb")):
        page = path.relative_to(folder).with_suffix("").as_posix()
        node = portable(nbformat.read(path, as_version=4), url, page)
        path.write_text(f"{nbformat.writes(node)}\n", encoding="utf-8")


def reader_text(folder: Path, pages: Iterable[str]) -> str:
    """Return what stands open on pages, words and tables alone, for a language model to read.

    `folder` has the sources of the pages, before `downloads`.
    """
    import nbformat

    text = []
    for page in pages:
        if (notebook := folder / f"{page}.ipynb").is_file():
            node = nbformat.read(notebook, as_version=4)
            for cell in portable(node, "", page, as_notebook=False).cells:
                shown = [cell.source] * (cell.cell_type == "markdown")
                if not cell.metadata.get("jupyter", {}).get("outputs_hidden"):
                    shown += [
                        output.data["text/plain"]
                        for output in cell.get("outputs", ())
                        if "<table" in output.get("data", {}).get("text/html", "")
                    ]
                text += shown
        else:
            text.append(plain((folder / f"{page}.md").read_text("utf-8"), page))
    return re.sub(r"<details>.*?</details>\n*", "", "\n\n".join(text), flags=re.S) + "\n"
