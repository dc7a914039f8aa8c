"""The configuration of a run on a task of your own; needs no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from hnlib.training.config import Configuration, Hidden, Rare, checked


@dataclass(frozen=True, kw_only=True, config=checked)
class OwnRun(Configuration):
    """One call of your task's `train`; its file decides all but method, rate and seed.

    Parameters
    ----------
    dataset
        the task: the stem of its file and a digest of its code; the file is in the folder of the
        data sets
    """

    experiment: Annotated[str, Field(min_length=1), Rare] = "own"
    dataset: str = "task"
    encoder: Annotated[str, Hidden] = "own"

    kind: ClassVar = "own"
    recorded: ClassVar = ("experiment", "dataset", "method", "options", "lr", "seed")

    def defaults_for_run(self) -> dict:
        """Return the defaults of fields that are None; the loop itself takes no step."""
        return super().defaults_for_run() | dict(epochs=0, batch_size=2, lr=1e-3)


Run = OwnRun
