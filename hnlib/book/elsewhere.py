"""The book away from its checkout: the repository that its pages name, and notebooks that start
where they are downloaded to."""

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

BRANCH = "notebooks"  # where the workflow puts the downloads, for Colab
COLAB = "https://colab.research.google.com"
NO_ADDRESS = """
```{note}
This copy of the book does not know its repository: the address above is a placeholder. In a
checkout, `make repository URL=…` sets it, here, in the buttons of every page and in the notebooks
one downloads.
```
"""


def repository(root: Path) -> str:
    """The address in `pyproject.toml`; ValueError: it is no plain https address."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    url = project["urls"]["Repository"]
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", url, re.ASCII):
        raise ValueError(f"pyproject.toml names the repository {url!r}; write https://HOST/PATH.")
    return url


def known(url: str) -> bool:
    """Whether the address is one: nothing ever answers under ``.invalid`` (RFC 2606)."""
    return not urlsplit(url).netloc.endswith(".invalid")


def configured(config: str, url: str) -> str:
    """``_config.yml`` with the buttons that lead to the repository and, from GitHub, to Colab."""
    if not known(url):
        return config
    button = "use_repository_button: "
    config = config.replace(f"{button}false", f"{button}true")
    config += f"\nrepository:\n  url: {url}\n  branch: {BRANCH}\n"
    if urlsplit(url).netloc == "github.com":
        config += f"launch_buttons:\n  colab_url: {COLAB}\n"
    return config


def parts(url: str) -> dict[str, str]:
    """What *How to reproduce* says of the address."""
    return {"repository": url, "address": "" if known(url) else NO_ADDRESS}


# Notebooks that are downloaded

MISSING = """\
# Away from a checkout of the book: its library, with the records that the pages read.
import importlib.util

if importlib.util.find_spec("hnlib") is None:
    {install}
"""
INSTALL = '%pip install --quiet "hnlib[notebooks] @ git+{url}"'
REFUSE = """raise ImportError(
        "hnlib is missing here; run pip install '.[notebooks]' in a checkout of the book"
    )"""
DIRECTIVE = re.compile(r"(`{3,}|:{3,})\{([\w:-]+)\} *(.*)")
ROLE = re.compile(r"\{([\w:+-]+)\}`([^`]+)`")
TITLED = ("admonition", "dropdown", "grid-item-card", "tab-item")  # whose name says nothing
FRAMES = ("grid", "tab-set")


def _opening(kind: str, title: str) -> str:
    """The line of Markdown that says what a directive began with."""
    if kind == "math" or kind in FRAMES:
        return "$$" if kind == "math" else ""
    if kind in TITLED:
        return f"**{title}**"
    return f"**{kind.rpartition(':')[2].capitalize()}.** {title}".strip()


def _words(role: re.Match) -> str:
    """What is left of a role where nothing can be linked."""
    kind, text = role[1], " ".join(role[2].split())
    shown = re.sub(r" <[^<>]*>$", "", text)
    if kind == "math":
        return f"${text}$"
    if kind.startswith("py:"):
        return f"`{shown.removeprefix('~')}`"
    if kind.startswith("cite"):
        return f"[{text}]"
    return f"({text})" if kind == "eq" else f"*{shown.strip('/')}*"


def plain(text: str) -> str:
    """MyST as Markdown that a notebook without MyST shows well: a directive is its title above its
    contents, a reference the words or the label it was written with."""
    lines, open_, options = [], [], False
    for line in text.splitlines():
        bare = line.strip()
        if options and (option := re.fullmatch(r":([\w-]+):\s*(.*)", bare)):
            if option[1] == "label" and lines[-1] == "$$":
                open_[-1] = (open_[-1][0], f"$$ ({option[2]})")
            elif option[1] == "label":
                lines[-1] += f" ({option[2]})"
            continue
        if options and lines[-1] != "$$":  # a title is a paragraph
            lines.append("")
        options = False
        if found := DIRECTIVE.fullmatch(bare):
            open_.append((found[1], "$$" if found[2] == "math" else ""))
            lines += ["", _opening(found[2], found[3])]
            options = True
        elif open_ and bare == open_[-1][0]:
            lines += [open_.pop()[1], ""]
        elif not re.fullmatch(r"\([\w-]+\)=", bare):
            lines.append(line)
    return ROLE.sub(_words, re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n"))


def portable(node, url: str):
    """The notebook as it is downloaded: a first cell that finds the library or installs it, and
    plain Markdown. Changed in place, and returned."""
    from nbformat.v4 import new_code_cell

    install = INSTALL.format(url=url) if known(url) else REFUSE
    for cell in node.cells:
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source)
        for output in cell.get("outputs", ()):
            if "text/markdown" in output.get("data", {}):
                output.data["text/markdown"] = plain(output.data["text/markdown"])
    first = new_code_cell(MISSING.format(install=install).strip(), id="elsewhere")
    node.cells.insert(0, first)
    return node


def downloads(folder: Path, url: str) -> None:
    """Make every notebook below the folder `portable`."""
    import nbformat

    for path in sorted(folder.rglob("*.ipynb")):
        node = portable(nbformat.read(path, as_version=4), url)
        path.write_text(f"{nbformat.writes(node)}\n", encoding="utf-8")
