"""The commands that pages print, in blocks of shell and in running text."""

import re
import shlex

from scripts import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "book").glob("*.md")),
    ROOT / "book/recorders/README.md",
    *sorted((ROOT / "notebooks").rglob("*.md")),
    *sorted((ROOT / "skills").rglob("*.md")),
]
#: What a command in running text begins with.
PROGRAM = r"hnlib|make|python|pip|bash|torchrun|jupytext|myst|source|PYTHONPATH=\w+|\.venv/bin/\w+"


def commands_of(text: str) -> list[str]:
    """Return the commands of a page, without comments."""
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S):
        begun = ""
        for line in block.replace("\\\n", " ").splitlines():
            begun = f"{begun}\n{line}".strip()
            try:
                shlex.split(begun, comments=True)
            except ValueError:  # a quotation that goes on
                continue
            found.append(re.sub(r"(^|\s+)#[^\n]*$|^<!--.*", "", begun))
            begun = ""
    found += re.findall(rf"(?<!`)`((?:{PROGRAM}) [^`]+)`", text)
    return [one if "\n" in one and " -c " in one else " ".join(one.split()) for one in found if one]
