"""Seeds as a file or a reader gives them: a text, a list, or how many."""

from __future__ import annotations

import re
from typing import Any


def seeds_of(text: Any) -> Any:
    """Return the seeds of a text like "0-11" or "3"."""
    if not isinstance(text, str):
        return text
    first, _, last = text.partition("-")
    if not re.fullmatch(r"\d+(-\d+)?", text) or int(last or first) < int(first):
        raise ValueError(f'seeds must be like "0-11" or "3", got {text!r}')
    return tuple(range(int(first), int(last or first) + 1))


def numbered(seeds: Any, first: int) -> Any:
    """Return seeds: so many from the first, or those of a text or a list."""
    if not isinstance(seeds, int):
        return seeds_of(seeds)
    if seeds < 1 or isinstance(seeds, bool):
        raise ValueError(f"seeds must be at least one, got {seeds}")
    return tuple(range(first, first + seeds))
