"""What every method can do, however it is called: on a device without values, and duplicated."""

import copy
import math
import pickle

import pytest
import torch

from hnlib import graphs, methods, robust, transport

LABELS = torch.tensor([0, 1, 2, 1, 0, 2])
CLASSES = torch.tensor([0, 1, 0, -1])  # of graphs; the last is unknown
BATCH = torch.arange(4).repeat_interleave(torch.tensor([3, 5, 2, 4]))
EVERY = [
    *((kind, name) for kind in ("views", "pairs") for name in methods.CATALOGUE),
    *(("nodes", name) for name in graphs.methods.CATALOGUE),
]


def variants(entry):
    """The options under which other code runs than by default."""
    chosen = [{}]
    if "positives" in entry.defaults:
        chosen += [{"positives": "view" if "average" in entry.defaults else "own"}]
    if "average" in entry.defaults:
        chosen += [{"average": "pairs"}, {"on_empty": "skip"}]
    if "weights_gradient" in entry.defaults:
        chosen += [{"weights_gradient": not entry.defaults["weights_gradient"]}]
    changed = {"learn": "maximise", "level": 0.1, "gradient": "nt-xent", "printed": True}
    return chosen + [{k: v} for k, v in changed.items() if k in entry.defaults]


def build(kind, name, **options):
    return (graphs.methods if kind == "nodes" else methods).build(name, **options)


def embeddings(kind, device="cpu"):
    """The two tensors that a gradient goes to: views, queries and keys, or nodes and graphs."""
    g = torch.Generator().manual_seed(3)
    sizes = (len(BATCH), 4) if kind == "nodes" else (6, 6)
    return [torch.randn(n, 4, generator=g).to(device).requires_grad_() for n in sizes]


def loss(kind, method, a, b):
    """The loss of a method on them, with the labels, features or queue that it asks for."""
    entry, device = method.entry, a.device
    y = LABELS.to(device)
    if kind == "views":
        features = (a.detach() + 0.5, b.detach() - 0.5) if entry.features else None
        return method(a, b, y, features)
    if kind == "pairs":
        keys = torch.cat([b, b.detach().flip(1)])
        return method.pairs(a, keys, labels=torch.cat([y, y]) if entry.supervised else None)
    labels = CLASSES.to(device) if entry.supervised else None
    owners, positives = BATCH.to(device), method.options.get("positives", "class")
    return method.loss(graphs.methods.from_nodes(a, b, owners, labels, positives))


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_nothing_is_asked_of_a_device_and_no_other_one_is_used(kind, name, monkeypatch):
    """On meta there are no values: what would make an accelerator wait, or mixes devices, fails."""
    monkeypatch.setattr(transport, "STEPS", 3)
    monkeypatch.setattr(robust, "STEPS", 3)
    for options in variants(build(kind, name).entry):
        if kind == "pairs" and options.get("gradient") == "nt-xent":
            continue  # is refused: it needs two views
        a, b = embeddings(kind, device="meta")
        value = loss(kind, build(kind, name, **options).to("meta"), a, b)
        value.backward()
        assert value.shape == () and value.is_meta and a.grad.shape == a.shape


@pytest.mark.parametrize(
    "duplicate", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy, methods.Method.copy]
)
def test_a_duplicate_is_the_same_loss_and_counts_and_learns_for_itself(duplicate):
    z = embeddings("views")
    skipping = methods.build("h-scl-threshold", tau=math.exp(1.9))
    learned = methods.build("unremix", learn="maximise", temperature=0.3)
    loss("views", skipping, *z)
    before = loss("views", learned, *z)
    skipped = int(skipping.skipped)
    counter, learner = (duplicate(method) for method in (skipping, learned))
    assert repr(learner) == repr(learned) and torch.equal(loss("views", learner, *z), before)
    assert int(counter.skipped) == (0 if duplicate is methods.Method.copy else skipped)
    loss("views", counter, *z)
    assert int(skipping.skipped) == skipped > 0
    with torch.no_grad():
        learner.logits += torch.tensor([-2.0, 1.0, 2.0])
    assert torch.equal(loss("views", learned, *z), before)
    assert (loss("views", learner, *z) - before).abs() > 1e-4
