"""What training leaves on disk: checkpoints to go on from, and runs, saved, loaded or exported."""

from __future__ import annotations

import copy
import hashlib
import io
import json
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from hnlib import _checks, _files
from hnlib._archives import said
from hnlib.training import config, records

# What each kind of run is made of and how it is judged; a room is imported when a run needs it.
ROOMS = {
    config.ImageRun: "hnlib.images.task",
    config.GraphRun: "hnlib.graphs.task",
    config.SentenceRun: "hnlib.sentences.task",
}


def room(kind: type) -> ModuleType:
    """The room of a kind of run."""
    return import_module(ROOMS[kind])


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model with what was measured on the way. `record` is what `records.write` takes.

    Of several trainings (`labels="fold"`) it is the first one's model. `method` is the one trained
    with, its learned parameters and counts; files and other processes do not bring it back.
    """

    record: dict
    model: nn.Module = field(repr=False)
    method: nn.Module | None = field(default=None, repr=False)

    @property
    def encoder(self) -> nn.Module:
        return self.model.get_submodule("encoder")

    @property
    def projector(self) -> nn.Module:
        return self.model.get_submodule("projector")

    @property
    def history(self) -> list[dict]:
        return self.record["history"]

    @property
    def metrics(self) -> dict:
        return self.record["metrics"]

    def save(self, path: Path | str) -> Path:
        """Write weights, record and a digest of both to one safetensors file, atomically; `load`
        reads it back."""
        from safetensors.torch import save

        state = {k: v.detach().cpu().contiguous() for k, v in self.model.state_dict().items()}
        words = json.dumps(self.record)
        about = {"record": words, "digest": _digest(words, state)}
        _files.write_atomically(path, save(state, metadata=about))
        return Path(path)

    def export(self, path: Path | str) -> Path:
        """Write the encoder alone as a `torch.export` program (.pt2) for inputs of any number,
        atomically.

        In eval mode and without this library it maps normalised images (`augment.plain`) to
        features, or `x`, `edge_index`, `batch` and the number of a batch of two graphs and more to
        the embeddings of nodes and of graphs.
        """
        kind = type(config.read(self.record["configuration"]))
        inputs, sizes = room(kind).example_inputs(self.record, self.encoder)
        encoder = copy.deepcopy(self.encoder).cpu().eval()
        program = torch.export.export(encoder, inputs, dynamic_shapes=sizes)
        _files.write_atomically(path, lambda temporary: torch.export.save(program, temporary))
        return Path(path)


def load(
    path: Path | str, encoder: nn.Module | None = None, projector: nn.Module | None = None
) -> Run:
    """The run that `Run.save` wrote, in eval mode on the CPU; a run of your own modules needs such
    modules again.

    ValueError: the file is missing, altered or not such a file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            names = list(file.keys())  # it is no dictionary
            state = {name: file.get_tensor(name) for name in names}
        if "digest" not in about:
            raise ValueError("it has no digest; hnlib 0.2 wrote none and still loads it")
        if about["digest"] != _digest(about["record"], state):
            raise ValueError("its content is not what its digest says")
        record = json.loads(about["record"])
        records.check(json.loads(config.canonical(record)))
        kind = type(config.read(record["configuration"]))
        model = room(kind).saved_model(record, state, encoder, projector)
        model.load_state_dict(state)
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{path} is not a whole saved run ({said(error)}); save it again with Run.save"
        ) from error
    return Run(record, model.eval())


def _digest(words: str, state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(words.encode())
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def check_like(name: str, value, fresh) -> None:
    """ValueError unless a state is made as a `fresh` one: keys, types, shapes, and no number that
    is not finite where the fresh one is."""
    if isinstance(fresh, dict) and isinstance(value, dict) and value.keys() == fresh.keys():
        for key in fresh:
            check_like(f"{name}.{key}", value[key], fresh[key])
    elif isinstance(fresh, list) and isinstance(value, list) and len(value) == len(fresh):
        for i, (one, like) in enumerate(zip(value, fresh)):
            check_like(f"{name}.{i}", one, like)
    elif isinstance(fresh, Tensor) and isinstance(value, Tensor):
        forms = [(x.dtype, x.shape, x.layout, x.is_meta) for x in (value, fresh)]
        if forms[0] != forms[1] or (fresh.isfinite().all() and not value.isfinite().all()):
            form = f"{forms[0][0]} of shape {tuple(value.shape)}"
            raise ValueError(f"{name} is {form}, or not finite, where {forms[1]} is trained")
    elif isinstance(fresh, dict | list | Tensor) or value != fresh:
        raise ValueError(f"{name} is {_checks.shown(value)}, which this training has not")


SEAL = b"hnlib checkpoint 2 "  # stands behind the content, before its digest


class Checkpoint:
    """The file that keeps the state of a training; without a path nothing is kept.

    `kept`: the epoch whose state of this run it holds, None: none. Of several processes one
    `writes`.
    """

    def __init__(self, path: Path | None, configuration: dict, writes: bool = True):
        self.path, self.configuration, self.writes, self.kept = path, configuration, writes, None

    def way_on(self) -> str:
        """What there is to go on from, and how."""
        if self.path is None:
            return "nothing was saved: pass checkpoint=PATH (--checkpoint PATH) to be able to go on"
        if self.kept is None:
            return f"nothing was saved yet: {self.path} is written after each epoch"
        return (
            f"the state after the last whole epoch is in {self.path}: repeat the same call to go "
            "on from there"
        )

    def save(self, state: dict) -> None:
        """Write tensors, numbers and words, atomically, with a digest."""
        if self.path is None:
            return
        if self.writes:
            file = io.BytesIO()
            torch.save({"configuration": json.dumps(self.configuration)} | state, file)
            content = file.getvalue()
            _files.write_atomically(self.path, content + SEAL + hashlib.sha256(content).digest())
        self.kept = state["epoch"]

    def read(self, device: torch.device | str, parts: int = 1) -> tuple[dict, dict] | None:
        """The state and the configuration of the run it belongs to; None if there is no file.

        ValueError: the file is damaged, or belongs to another run. One that is only shorter is
        this run's beginning, unless something is scheduled over the epochs or a run has several
        `parts`, each trained to its end.
        """
        if self.path is None or not self.path.exists():
            return None
        content, seal, digest = self.path.read_bytes().rpartition(SEAL)
        if not seal:
            raise ValueError(
                f"{self.path} is no checkpoint of this version of hnlib, or cut off; pass another "
                "path, finish the run with the version that wrote it, or start over with "
                "resume=False (--restart)"
            )
        try:
            if digest != hashlib.sha256(content).digest():
                raise ValueError("its content is not what its digest says")
            state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
            theirs, epoch = dict(json.loads(state["configuration"])), state["epoch"]
        except Exception as error:
            raise ValueError(
                f"the checkpoint {self.path} is corrupt ({said(error)}); delete it or pass another "
                "path"
            ) from error
        steady = parts == 1 and not {"lr_schedule", "schedule"} & self.configuration.keys()
        for key in self.configuration | theirs:
            ours, other = self.configuration.get(key), theirs.get(key)
            if key == "epochs" and steady and isinstance(other, int) and ours > other:
                continue  # an epoch does not ask how many follow
            if ours != other:
                raise ValueError(
                    f"the checkpoint {self.path} belongs to another run: {key} is {other!r} there "
                    f"and {ours!r} here; use its value, another path, or resume=False (--restart) "
                    "to start over"
                )
        self.kept = epoch
        return state, theirs
