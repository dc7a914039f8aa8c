"""What the papers' tables ask for, rehearsed small: a run of each kind is recorded in its cell."""

from dataclasses import fields, replace

import numpy as np
import pytest

from builder import paper_numbers
from hnlib.images import data
from hnlib.training import records
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
