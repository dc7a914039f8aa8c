"""The book away from its checkout: its repository, and notebooks that one downloads."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from hnlib.book.execute import root

BRANCH = "notebooks"  # where the workflow puts the downloads, for Colab
COLAB = "https://colab.research.google.com"
WHEEL = f"hnlib-{metadata.version('hnlib')}-py3-none-any.whl"


def repository(root: Path) -> str:
    """Return the address in `pyproject.toml`."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"]["Repository"]


def is_set(url: str) -> bool:
    """Return whether the address is real: no host ends in ``.invalid`` (RFC 2606)."""
    return not urlsplit(url).netloc.endswith(".invalid")


def configured(config: str, url: str) -> str:
    """Return ``_config.yml`` with buttons for the repository and, if it is on GitHub, for Colab."""
    if not is_set(url):
        return config
    button = "use_repository_button: "
    config = config.replace(f"{button}false", f"{button}true")
    config += f"\nrepository:\n  url: {url}\n  branch: {BRANCH}\n"
    if pages := address(url):
        config += f"launch_buttons:\n  colab_url: {COLAB}\n"
        config = config.replace("\nhtml:\n", f"\nhtml:\n  baseurl: {pages}\n")
    return config


def address(url: str) -> str:
    """Return where the workflow publishes the pages, if the repository is on GitHub."""
    if urlsplit(url).netloc != "github.com":
        return ""
    owner, _, name = urlsplit(url).path.strip("/").partition("/")
    return f"https://{owner}.github.io/{name}/"


def parts(url: str) -> dict[str, str]:
    """Return what *How to reproduce* says about the address."""
    clone = f"git clone {url} hard-negatives\ncd hard-negatives"
    link = f'<a href="../{WHEEL}" download>{WHEEL}</a>'
    return {"clone": clone if is_set(url) else "# in a checkout of this book", "wheel": link}


def wheel(folder: Path) -> None:
    """Build the library's wheel into the folder, for readers of the pages without a checkout."""
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", build, str(folder)]
    quiet = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # setuptools would warn of it
    subprocess.run(command, cwd=root(), env=quiet, stdout=subprocess.DEVNULL, check=True)


# Notebooks that are downloaded

MISSING = """\
# Away from a checkout of the book: its library, with the records that the pages read.
import importlib.util

if importlib.util.find_spec("hnlib") is None:
    {install}
"""
INSTALL = '%pip install --quiet "hnlib[notebooks] @ {source}"'
REFUSE = f"""raise ImportError(
        "hnlib is missing here; take {WHEEL} from the book's page "
        "'How to reproduce any number' and run pip install './{WHEEL}[notebooks]'"
    )"""
DIRECTIVE = re.compile(
    r"^ *(`{3,}|:{3,})\{([\w:-]+)\} *([^\n]*)\n((?: *:[\w-]+:[^\n]*\n)*)(.*?)^ *\1 *$", re.M | re.S
)
ROLE = re.compile(r"\{([\w:+-]+)\}`([^`]+)`")
TITLED = ("admonition", "dropdown", "grid-item-card", "tab-item")  # shown as their title alone
FRAMES = ("grid", "tab-set")


def _directive(match: re.Match) -> str:
    """Return the Markdown that replaces a directive: its title above its contents."""
    _, kind, title, options, contents = match.groups()
    label = re.search(r":label:\s*(.*)", options)
    number = f" ({label[1]})" if label else ""
    if kind == "math":
        return f"\n$$\n{contents}$${number}\n"
    if kind in FRAMES:
        return contents
    name = kind.rpartition(":")[2].capitalize()
    head = f"**{title}**" if kind in TITLED else f"**{name}.** {title}".strip()
    return f"\n{head}{number}\n\n{contents}\n"


def _words(role: re.Match) -> str:
    """Return the Markdown that replaces a role."""
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
    """Convert MyST to plain Markdown: directives, targets and roles, the labels of which stay."""
    text, count = f"{text}\n", 1
    while count:  # one directive may contain another
        text, count = DIRECTIVE.subn(_directive, text)
    text = re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.M)
    return ROLE.sub(_words, re.sub(r"\n{3,}", "\n\n", text).strip("\n"))


def portable(node, url: str):
    """Change a notebook to plain Markdown, with a first cell that installs the library."""
    from nbformat.v4 import new_code_cell

    pages = address(url)
    source = f"{pages}{WHEEL}" if pages else f"git+{url}"
    install = INSTALL.format(source=source) if is_set(url) else REFUSE
    for cell in node.cells:
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source)
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).pop("narrow", None)
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
