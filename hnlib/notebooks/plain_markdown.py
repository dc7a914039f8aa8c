"""Plain Markdown of a page's MyST, with labels as a reader of the page sees them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

from hnlib.notebooks import two_texts
from hnlib.notebooks.execute import root

DIRECTIVE = re.compile(
    r"^ *(`{3,}|:{3,})\{([\w:-]+)\} *([^\n]*)\n((?: *:[\w-]+:[^\n]*\n)*)(.*?)^ *\1 *$", re.M | re.S
)
ROLE = re.compile(r"(?<!`)\{([\w:+-]+)\}`([^`]+)`")
PAGE = re.compile(r"\[([^][]*)\]\(((?:\.\./)*[\w/-]+)\.md\)")
EQUATION = re.compile(r"^( *)\$\$ \(([\w-]+)\)$", re.M)
FOLD = re.compile(r"<!-- fold: (.*?) -->\s*(\S.*?)\s*(?:<!-- end of fold -->|\Z)", re.S)
# In a page of HTML the label of a statement, an equation or a figure, and its number.
NUMBER = re.compile(
    r' id="(?:equation-)?([\w-]+)"(?:(?! id=").)*?<span class="(?:caption-number|eqno)">([^<]*)',
    re.S,
)
HEADING = re.compile(r"^\((\S+)\)=\n+#+ (.*)", re.M)
#: What is shown for each label, and for each page as "/page".
LABELS: dict[str, str] = {}


def read_labels(html: Path, pages: Iterable[str]) -> None:
    """Fill `LABELS`: numbers from the finished pages, if they are, titles from their sources."""
    for page in pages:
        text, made = (root() / f"{page}.md").read_text(encoding="utf-8"), html / f"{page}.html"
        numbers = NUMBER.findall(made.read_text(encoding="utf-8")) if made.is_file() else []
        found = [(f"/{page}", re.findall("^# (.*)", text, re.M)[0]), *HEADING.findall(text)]
        LABELS.update({label: shown.strip() for label, shown in [*found, *numbers]})


@cache
def cited() -> dict[str, str]:
    """Return authors and year of each entry of the bibliography, by key."""
    import yaml
    from pybtex.database import parse_file

    files = yaml.safe_load((root() / "_config.yml").read_text("utf-8")).get("bibtex_bibfiles", ())
    entries = [one for file in files for one in parse_file(root() / file).entries.items()]
    found = {}
    for key, entry in entries:
        people = entry.persons["author"]
        names = [" ".join(map(str, p.rich_prelast_names + p.rich_last_names)) for p in people]
        several = len(names) > 2 or names[-1] == "others"
        who = f"{names[0]} et al." if several else " and ".join(names)
        found[key] = f"{who}, {entry.fields['year']}"
    return found


def shown_label(label: str) -> str:
    """Return what is shown for a label: a number, a title, or itself."""
    return LABELS.get(label, label)


def _directive(match: re.Match) -> str:
    """Return the Markdown that replaces a directive: its title above its contents."""
    _, kind, title, options, contents = match.groups()
    if kind == "prf:proof":
        return f"\n*Proof.* {contents}\n"
    if kind == "solution":
        kind, title = "dropdown", f"Solution to {shown_label(title)}"
    if kind == "dropdown":
        return f"\n<details><summary>{title}</summary>\n\n{contents}\n\n</details>\n"
    label = re.search(r":label:\s*(.*)", options)
    name = shown_label(label[1]) if label else kind.rpartition(":")[2].capitalize()
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
    return said or shown_label(label)


def _page(link: re.Match, page: str) -> str:
    """Return the words of a link from a page to another."""
    path = posixpath.normpath(posixpath.join("/", posixpath.dirname(page), link[2]))
    return f"*{link[1] or shown_label(path).replace('*', '')}*"


def plain(text: str, page: str) -> str:
    """Convert the MyST of a page to plain Markdown, with labels as a reader of the page sees them.

    Of a link to another page the words are left.
    """
    text = two_texts.without_marks(text)  # before comments go with the lines below them
    text, count = FOLD.sub(r":::::::{dropdown} \1\n\2\n:::::::", f"{text}\n"), 1
    while count:  # one directive may contain another
        text, count = DIRECTIVE.subn(_directive, text)
    text = re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.M)
    text = EQUATION.sub(lambda eq: f"{eq[1]}\\tag{{{shown_label(eq[2])[1:-1]}}}\n{eq[1]}$$", text)
    text = re.sub(r"<!-- (?:more|fold): (.*?) -->", r"**\1**", text)
    text = text.replace("<!-- checks -->", "**Checks**")
    text = re.sub(r"<!--.*?-->\n*", "", text, flags=re.S)
    text = re.sub(r'<a href="(?:\.\./)+\S+?">(.*?)</a>', r"\1", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip("\n")
    return PAGE.sub(partial(_page, page=page), ROLE.sub(_words, text))
