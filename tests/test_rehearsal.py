"""What the papers' tables ask for, rehearsed small: one run of each kind trains, is recorded and
stands in its cell, and its step is ready for a GPU that is not here."""

from contextlib import nullcontext
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hnbook import paper_numbers
from hnlib import transport
from hnlib.images import data, task
from hnlib.training import loop, records
from hnlib.training.config import Execution
from hnlib.training.train import train

#: What a rehearsal makes smaller; the rest of a run is as printed.
SMALL = {
    "images": dict(epochs=1, batch_size=4, evaluate_size=8, encoder="small-cnn"),
    "graphs": dict(epochs=1, batch_size=32, folds=2, dataset="motifs"),
    "sentences": dict(
        epochs=1, batch_size=16, max_steps=2, dimension=16, dataset="topics", tasks=("alike",)
    ),
}


def kind(cell):
    """Return what tells rehearsals apart: recipe, method, encoder, and what UnReMix learns from."""
    run = cell.run
    named = ("recipe", "framework", "labels", "method", "encoder", "lr", "weight_decay")
    parts = [getattr(run, name, None) for name in named]
    parts += [run.options.get(name) for name in ("learn", "gradient")]
    return " ".join(map(str, filter(None, parts)))


# the last of each kind, on small pictures
KINDS = {kind(c): c for c in paper_numbers.cells() if c.run is not None}
STEPS = {c.run.method: c.run for c in KINDS.values() if c.run.kind == "images"}


def tiny(name):
    """Eight pictures to train on and eight to test, of four classes."""
    x = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
    y = np.arange(16) % 4
    parts = dict(x_train=x[:8], y_train=y[:8], x_test=x[8:], y_test=y[8:])
    more = {"x_unlabelled": x[:4]} if name == "stl10" else {}
    return parts | more | {"class_names": np.array(list("abcd"))}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for name in data.DOWNLOADED:
        path = root / "images" / f"{name}.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **tiny(name))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_small_run_is_recorded_and_stands_in_its_cell(name, root, tmp_path):
    cell = KINDS[name]
    small = SMALL[cell.run.kind]
    if getattr(cell.run, "train_size", None):
        small = small | dict(train_size=8)
    run = replace(cell.run, **small)
    done = train(
        run, device="cpu", data_root=root, record_to=tmp_path, evaluate_every=0, progress=False
    )
    (record,) = records.load_all(tmp_path)
    sentences = run.kind == "sentences"  # whose tasks are those of the corpus
    assert ("alike" if sentences else paper_numbers.READOUTS[cell.metric]) in done.metrics
    assert all(np.isfinite(loss) for loss in record["losses"]) and record["losses"]
    read = records.run_of(record)
    printed = {f.name: getattr(cell.run, f.name) for f in fields(cell.run) if f.name in small}
    assert paper_numbers.key(replace(read, **printed)) == cell.key


class OnMeta(task.Task):
    """Images on a device that has no values, and so answers no question; all in bfloat16."""

    def __init__(self, run):
        parts = data._dataset(run.dataset, *(tiny("")[k] for k in data.PARTS), list("abcd"))
        super().__init__(
            replace(run, batch_size=4, augmentation="simclr", train_size=None), dataset=parts
        )
        self.shape, self.labels = (3, 32, 32), self.labels.to("meta")

    def model(self):
        return super().model().to("meta", torch.bfloat16)

    def views(self, batch, generator, share):
        x = torch.empty(2, len(batch), *self.shape, dtype=torch.bfloat16, device="meta")
        return task.Views(*(part.contiguous(memory_format=torch.channels_last) for part in x))


@pytest.mark.parametrize("queue", [0, 8])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_asks_nothing_of_the_device(name, queue, monkeypatch):
    monkeypatch.setattr(transport, "STEPS", 3)
    plain = dict(momentum=0.999, separate_views=False, mixing=None, mixing_share=None)
    run = replace(STEPS[name].resolved(), queue=queue, encoder="small-cnn", **plain)
    method = task.Task.build_method(run)
    fabric = SimpleNamespace(
        device=torch.device("meta"),
        world_size=1,
        global_rank=0,
        setup=lambda *parts: parts,
        autocast=nullcontext,
    )
    one = loop.Loop(fabric, OnMeta(run), method, Execution())
    batch = torch.arange(4, device="meta")
    if queue and run.options.get("gradient") == "nt-xent":
        with pytest.raises(ValueError, match="nt-xent' needs a contrast of two views"):
            one._loss(batch, torch.Generator())
        return
    for _ in range(2):  # the second finds keys of the first in the queue
        loss = one._loss(batch, torch.Generator())
    loss.backward()
    assert loss.is_meta
    assert loss.dtype == torch.float32
    weights = dict(one.model.named_parameters())
    assert all(p.grad is not None and p.grad.dtype == torch.bfloat16 for p in weights.values())
    first = next(p for p in weights.values() if p.ndim == 4)
    assert first.is_contiguous(memory_format=torch.channels_last)
    assert not queue or len(one.queue.z) == 8
