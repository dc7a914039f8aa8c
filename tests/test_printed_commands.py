"""Every `hnlib` command that a page prints is one that the command line takes."""

import re
import shlex
from pathlib import Path

import pytest
from scripts import ROOT

from hnlib import __main__ as cli
from hnlib import commands
from hnlib.notebooks import execute, report

PAGES = [ROOT / "README.md", *(ROOT / "book").glob("*.md"), *(ROOT / "notebooks").rglob("*.md")]


def printed_on(page: Path) -> list[str]:
    """Return the commands of a page, in lines of shell and in running text."""
    text, found = page.read_text(encoding="utf-8"), []
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S):
        lines = block.replace("\\\n", " ").replace(";", "\n").splitlines()
        variables = dict(re.findall(r'^\s*(\w+)="(.*)"$', "\n".join(lines), re.M))
        for line in lines:
            for name, value in variables.items():
                line = line.replace(f"${name}", value)
            found.append(line.split("|")[0].replace("$seed", "0").strip())
    found += re.findall(r"`(hnlib [^`\n]+)`", text)
    return [
        line for line in found if line.startswith("hnlib ") and not re.search(r"…|[A-Z]:", line)
    ]


COMMANDS = sorted({line for page in PAGES for line in printed_on(page) if len(line.split()) > 2})


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_a_printed_command_is_taken(line, monkeypatch):
    """It does what it does up to where it would train, execute or download."""
    words = shlex.split(line.replace("mine.npy", __file__), comments=True)[1:]
    if words[0] == "train" or "--grid" in words:
        assert cli.main([word for word in words if word != "--dry-run"] + ["--dry-run"]) == 0
    elif words[0] == "run":
        monkeypatch.setattr(execute, "execute", lambda *notebook, **how: 0.0)
        monkeypatch.setattr(report, "write", lambda made, *about: made)
        assert cli.main(words) == 0
    else:
        commands.app.parse_args(words, print_error=False, exit_on_error=False)
