"""What training leaves on disk: checkpoints to resume from, and runs, saved or loaded."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from hnlib import _files
from hnlib.training import kinds

DIGEST_SIZE = hashlib.sha256().digest_size


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A trained model with its measurements; `record` is what `hnlib.training.store.append` takes.

    After several trainings (`labels="fold"`) it is the model of the last. `method` is the one
    trained with, its learned parameters and counts; it is not saved and not sent between processes.
    """

    record: dict
    model: nn.Module = field(repr=False)
    method: nn.Module | None = field(default=None, repr=False)

    @property
    def encoder(self) -> nn.Module:
        """Return the trained encoder."""
        return self.model.get_submodule("encoder")

    @property
    def projector(self) -> nn.Module:
        """Return the head that was trained with the encoder."""
        return self.model.get_submodule("projector")

    @property
    def history(self) -> list[dict]:
        """Return the rows of the learning curves."""
        return self.record["history"]

    @property
    def metrics(self) -> dict:
        """Return the metrics of the trained encoder."""
        return self.record["metrics"]

    def save(self, path: Path | str) -> Path:
        """Write weights and record to a safetensors file, which `load` reads."""
        from safetensors.torch import save

        state = {k: v.detach().cpu().contiguous() for k, v in self.model.state_dict().items()}
        _files.write_atomically(path, save(state, metadata={"record": json.dumps(self.record)}))
        return Path(path)


def load(path: Path | str, encoder: nn.Module | None = None) -> TrainedRun:
    """Read a run that `TrainedRun.save` wrote, in eval mode on the CPU.

    A run with your own encoder needs such an encoder again. Raises ValueError if the file is
    damaged or another.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())  # it is not a dictionary
            state = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        text = f"{path} is damaged, or TrainedRun.save did not write it: {error}"
        raise ValueError(text) from error
    if "record" not in metadata:
        raise ValueError(f"{path} holds no record; TrainedRun.save did not write it")
    record = json.loads(metadata["record"])
    model = kinds.task_class(record["kind"]).saved_model(record, state, encoder)
    model.load_state_dict(state)
    return TrainedRun(record, model.eval())


class Checkpoint:
    """The file with the state of a training; nothing is saved without a path.

    The file is what `torch.save` writes, with its SHA-256 at the end: torch checks neither its
    archive's CRCs nor whether the state is one that a training wrote. A state is written when
    `seconds` have passed since the last one; in between it is in memory, and `flush` writes it.
    `epoch` is the number of epochs of the last state, None if there is none of this run. Under
    torchrun one process `writes`.
    """

    def __init__(
        self, path: Path | None, configuration: dict, seconds: float = 0, writes: bool = True
    ):
        self.path, self.configuration = path, configuration
        self.seconds, self.writes = seconds, writes
        self.epoch: int | None = None
        self._kept: dict | None = None
        self._written = time.monotonic()

    def resume_hint(self) -> str:
        """Describe how to resume."""
        if self.epoch is None and self.path:
            return "no epoch is whole, so the same call begins it again"
        if self.epoch is None:
            return "nothing was saved: checkpoint=PATH (--checkpoint PATH) saves each whole epoch"
        return f"repeat the same call to resume after the last whole epoch, from {self.path}"

    def save(self, state: dict) -> None:
        """Save the training state, at once or, until `seconds` have passed, in memory."""
        if self.path is None:
            return
        self.epoch = state["epoch"]
        if not self.writes:
            return
        self._kept = {"configuration": json.dumps(self.configuration)} | state
        if time.monotonic() - self._written >= self.seconds:
            self.flush()
        else:
            self._kept = copy.deepcopy(self._kept)  # training goes on with the tensors

    def flush(self) -> None:
        """Write the last state unless it is in the file."""
        if self._kept is not None:
            torch.save(self._kept, buffer := io.BytesIO())
            content = buffer.getvalue()
            _files.write_atomically(self.path, content + hashlib.sha256(content).digest())
            self._kept, self._written = None, time.monotonic()

    def read(self, device: torch.device | str) -> dict | None:
        """Return the state, or None if there is no file.

        Raises ValueError if the file is not as `save` wrote it, or belongs to another run.
        """
        if self.path is None or not self.path.exists():
            return None
        content = self.path.read_bytes()
        content, digest = content[:-DIGEST_SIZE], content[-DIGEST_SIZE:]
        if hashlib.sha256(content).digest() != digest:
            raise ValueError(
                f"{self.path} is not a checkpoint, or was changed after it was written; "
                "pass another path or resume=False (--restart)"
            )
        try:
            state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(f"{self.path} has more than tensors and numbers: {error}") from error
        saved = json.loads(state["configuration"])
        for key in self.configuration | saved:
            ours, other = self.configuration.get(key), saved.get(key)
            if ours != other:
                raise ValueError(
                    f"the checkpoint {self.path} belongs to another run: {key} is {other!r} there "
                    f"and {ours!r} here; use its value, another path, or resume=False (--restart) "
                    "to start over"
                )
        self.epoch = state["epoch"]
        return state
