"""Format the code cells of the chapters with ruff at 88 columns, which a page shows whole.

    python .ci/format_cells.py [--check] [notebooks/theory/labels.md …]

jupytext reads a chapter and writes it as a notebook, which ruff formats: it knows magics, trailing
semicolons and the end of a cell. Only the code goes back into the chapter: prose, front matter and
the options of cells stay as they were typed, which they would not if jupytext wrote the file.
`--check` changes nothing, names the chapters that are not formatted and exits with 1. A line that
does not parse is shown with its chapter, and the exit status is 2.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jupytext

COLUMNS = 88
ROOT = Path(__file__).resolve().parents[1]


def formatted(sources: dict) -> dict:
    """Return the chapters' texts, by name, with their code formatted, by one call of ruff."""
    chapters = {name: jupytext.reads(source, fmt="md:myst") for name, source in sources.items()}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{i}-{Path(name).stem}.ipynb") for i, name in enumerate(chapters)]
        for chapter, path in zip(chapters.values(), paths):
            jupytext.write(chapter, path)
        settings = ["--config", str(ROOT / "pyproject.toml"), "--line-length", str(COLUMNS)]
        command = [sys.executable, "-m", "ruff", "format", "--no-cache", *settings, folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr.strip())
        tidy = [jupytext.read(path) for path in paths]
    texts = zip(sources.values(), map(code, chapters.values()), map(code, tidy))
    return {name: spliced(*triple) for name, triple in zip(sources, texts)}


def code(notebook) -> list[str]:
    """Return the sources of the code cells."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def spliced(text: str, old: list[str], new: list[str]) -> str:
    """Return the text with the cells `old`, which it contains in this order, replaced by `new`."""
    parts, end = [], 0
    for before, after in zip(old, new, strict=True):
        fence = text.index("\n```{code-cell}", end)
        found = re.compile(rf"^{re.escape(before)}\s*^```$", re.M).search(text, fence + 1)
        parts += [text[end : found.start()], after, "\n```"]
        end = found.end()
    return "".join(parts) + text[end:]


def main(argv: list[str] | None = None) -> int:
    """Format or check the chapters and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if something would")
    parser.add_argument("chapters", nargs="*", type=Path, help="default: all")
    arguments = parser.parse_args(argv)
    chapters = arguments.chapters or sorted((ROOT / "notebooks").rglob("*.md"))
    sources = {path: path.read_text() for path in chapters}
    try:
        changed = [(path, new) for path, new in formatted(sources).items() if new != sources[path]]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path, new in changed:
        print(f"{'would reformat' if arguments.check else 'reformatted'} {path}")
        if not arguments.check:
            path.write_text(new)
    return int(bool(arguments.check and changed))


if __name__ == "__main__":
    sys.exit(main())
