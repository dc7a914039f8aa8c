"""Write the ledgers of `book/results` that these scripts measure."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from hnlib._files import write_atomically

FOLDER = Path(__file__).parents[1] / "results"


def record(name: str, measure: Callable[[], dict | bytes]) -> None:
    """Write what a script measures on one thread: a ledger, or the bytes of a file."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    write(name, measure())


def write(name: str, content: dict | bytes) -> None:
    """Write bytes, or a ledger, indented; if it has `rows`, these come last, one a line."""
    if isinstance(content, bytes):
        return write_atomically(FOLDER / name, content)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    if "rows" in content:
        head = json.dumps({key: x for key, x in content.items() if key != "rows"})
        lines = ",\n".join(map(json.dumps, content["rows"]))
        text = f'{head[:-1]}, "rows": [\n{lines}\n]}}'
    write_atomically(FOLDER / name, f"{text}\n".encode())
