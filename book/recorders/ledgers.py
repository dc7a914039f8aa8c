"""Write the ledgers of `book/results` that these scripts measure."""

import json
from pathlib import Path

from hnlib._files import write_atomically

FOLDER = Path(__file__).parents[1] / "results"


def write(name: str, content: dict) -> None:
    """Write a ledger, indented; if it has `rows`, these come last, one a line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    if "rows" in content:
        head = json.dumps({key: x for key, x in content.items() if key != "rows"})
        lines = ",\n".join(map(json.dumps, content["rows"]))
        text = f'{head[:-1]}, "rows": [\n{lines}\n]}}'
    write_atomically(FOLDER / name, f"{text}\n".encode())
