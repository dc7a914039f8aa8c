"""What the pages show for labels, pages and citations, computed from the sources of the book."""

import re
from collections import Counter
from functools import cache
from itertools import count

from hnlib.book.execute import root

LABELLED = re.compile(
    r"^ *[`:]{3,}\{(?:prf:)?(?!solution)(\w+)\}.*\n *:label: (\S+)"
    r"|^ *\$\$ \(([\w-]+)\)$|^  figure:\n    name: (\S+)|^\(([\w-]+)\)=\n+#+ (.*)",
    re.M,
)
FORMS = {"math": "({})", "figure": "Fig. {}"}  # of other kinds: "Theorem 3.2"


@cache
def pages() -> dict[str, str]:
    """Return every page of ``_toc.yml`` with what its numbers start with: "3.", or nothing."""
    from sphinx_external_toc.parsing import parse_toc_yaml

    toc, chapter = parse_toc_yaml(root() / "_toc.yml"), count(1)
    listed = {str(toc.root.docname): ""}
    for part in toc.root.subtrees:
        listed |= {str(page): f"{next(chapter)}." if part.numbered else "" for page in part.items}
    return listed


@cache
def labels() -> dict[str, tuple[str, str]]:
    """Return what is shown for each label, or "/page", and the page it is on.

    Numbers are Sphinx's: each kind counts in its chapter, and through all pages without a number.
    """
    shown, counts = {}, Counter()
    for page, chapter in pages().items():
        text = (root() / f"{page}.md").read_text(encoding="utf-8")
        shown[f"/{page}"] = re.findall("^# (.*)", text, re.M)[0], page
        for found in LABELLED.finditer(text):
            kind, label, equation, figure, target, title = found.groups()
            if not title:
                kind = kind or ("figure" if figure else "math")
                counts[chapter, kind] += 1
                form = FORMS.get(kind, f"{kind.capitalize()} {{}}")
                title = form.format(f"{chapter}{counts[chapter, kind]}")
            shown[label or equation or figure or target] = title, page
    return shown


@cache
def cited() -> dict[str, tuple[str, str]]:
    """Return the authors and the year of each entry of the bibliography."""
    from pybtex.database import parse_file

    entries = {}
    for key, entry in parse_file(root() / "book/references.bib").entries.items():
        people = entry.persons["author"]
        names = [" ".join(map(str, p.rich_prelast_names + p.rich_last_names)) for p in people]
        several = len(names) > 2 or names[-1] == "others"
        name = f"{names[0]} et al." if several else " and ".join(names)
        entries[key] = name, entry.fields["year"]
    return entries
