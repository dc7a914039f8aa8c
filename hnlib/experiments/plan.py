"""What an experiment's runs take, and where they were made."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hnlib.training.config import to_text


@dataclass(frozen=True)
class Plan:
    """Which runs of an experiment are recorded and which are to be trained; printed as a sentence.

    `seconds` is the estimate for the CPU, None where no comparable run is recorded.
    """

    name: str
    changed: dict[str, tuple]
    recorded: int
    missing: tuple
    waits: bool  # on a choice among runs that are missing, here or in another experiment
    seconds: float | None
    closed: str = ""  # why what is missing stays so

    def __str__(self) -> str:
        left = len(self.missing)
        runs = self.recorded + left  # without those of arms that are not chosen yet
        if left and self.closed:
            return f"{self.name}: {self.recorded} of {runs} runs recorded; {self.closed}."
        took = f", about {duration(self.seconds)} on one thread" if left and self.seconds else ""
        text = f"{self.name}: {runs} runs, {self.recorded} recorded, {left} to train{took}"
        return f"{text}; more once validation has chosen." if self.waits else f"{text}."

    def difference(self) -> str:
        """Return a sentence on what is not as published, empty if all is."""
        if not self.changed:
            return ""
        here = ", ".join(f"{name} = {to_text(new)}" for name, (_, new) in self.changed.items())
        return f"Not as published: {here}. The sentences were written for the published runs."


def duration(seconds: float) -> str:
    """Format a duration with one unit.

    >>> duration(90), duration(5000)
    ('90 s', '83 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def where(found: Iterable[dict[str, Any]]) -> str:
    """Return a sentence on where records were made: machines, precision and speed."""
    found = [*found]
    if not found:
        return "No runs."
    machines = Counter(machine(one["environment"].get("hardware", {})) for one in found)
    precisions = {one["configuration"].get("precision", "32-true") for one in found}
    rates = [r for one in found if (r := one["metrics"].get("images_per_second"))]
    speed = f"; {statistics.median(rates):,.0f} images/s" if rates else ""
    made = " and ".join(f"{n} on {one}" for one, n in machines.most_common())
    return f"{len(found)} runs, {' and '.join(sorted(precisions))}: {made}{speed}."


def machine(hardware: dict[str, Any]) -> str:
    """Return a machine in words: its GPU, or its processor and threads."""
    if gpu := hardware.get("gpu"):
        return str(gpu)
    named = hardware.get("cpu", "an unknown processor").removesuffix(" Processor")
    model = [hardware[part] for part in ("family", "model") if part in hardware]
    threads = hardware.get("threads", 1)
    return f"{named} {'/'.join(model)}, {threads} thread{'s' * (threads != 1)}".replace(" ,", ",")
