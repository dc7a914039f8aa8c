"""What every method can do: run where nothing can be asked of a value, be traced, pickled and
copied, and be right in single precision."""

import copy
import math
import pickle

import pytest
import reference
import torch

from hnlib import graphs, methods, negatives
from hnlib.contrast import Contrast
from hnlib.transport import ConvergenceWarning

LABELS = torch.tensor([0, 1, 2, 1, 0, 2])
CLASSES = torch.tensor([0, 1, 0, -1])  # of graphs; of the last it is unknown
BATCH = torch.arange(4).repeat_interleave(torch.tensor([3, 5, 2, 4]))


def variants(entry):
    """The options under which other code runs than by default."""
    chosen = [{}]
    if "positives" in entry.defaults:
        chosen += [{"positives": "view" if "average" in entry.defaults else "own"}]
    if "average" in entry.defaults:
        chosen += [{"average": "pairs"}, {"on_empty": "skip"}]
    if "weights_gradient" in entry.defaults:
        chosen += [{"weights_gradient": not entry.defaults["weights_gradient"]}]
    if "learn" in entry.defaults:
        chosen += [{"learn": how} for how in methods.LEARN if how != "fixed"]
    if "order" in entry.defaults:
        chosen += [{"order": 3}]
    if "cost" in entry.defaults:
        chosen += [{"cost": cubed}]
    later = {"exponent": 1.5, "level": 0.1, "gradient": "nt-xent"}
    chosen += [{name: value} for name, value in later.items() if name in entry.later]
    return chosen


def cubed(contrast):
    return (1 - contrast.similarity.detach()) ** 3


def title(value):
    if isinstance(value, dict):
        return ",".join(f"{k}={getattr(v, '__name__', v)}" for k, v in value.items()) or "default"
    return value


NEEDS_VIEWS = ("unremix", "unremix-repaired")  # they compare the candidates of one batch
EVERY = [
    *(("views", name) for name in methods.CATALOGUE),
    *(("queue", name) for name in methods.CATALOGUE if name not in NEEDS_VIEWS),
    *(("pairs", name) for name in methods.CATALOGUE if name not in NEEDS_VIEWS),
    *(("nodes", name) for name in graphs.methods.CATALOGUE),
]
VARIED = [
    (kind, name, options)
    for kind, name in EVERY
    for options in variants((graphs.methods if kind == "nodes" else methods).CATALOGUE[name])
]
BUILT = [(kind, name) for kind, name in EVERY if kind not in ("queue", "pairs")]


def build(kind, name, **options):
    return (graphs.methods if kind == "nodes" else methods).build(name, **options)


def embeddings(kind, seed=0, dtype=torch.float64, device="cpu", size=6):
    """The two tensors that a gradient goes to: views, queries and keys, or nodes and graphs."""
    g = torch.Generator().manual_seed(seed)
    sizes = (len(BATCH), 4) if kind == "nodes" else (size, size)
    drawn = [torch.randn(n, 4, generator=g, dtype=torch.float64) for n in sizes]
    return [z.to(device, dtype).requires_grad_() for z in drawn]


def loss(kind, method, a, b):
    """The loss of a method on them, with the labels, features or queue that it asks for."""
    entry, device = method.entry, a.device
    y, positives = LABELS.to(device), method.options.get("positives", "class")
    if kind == "views":
        features = (a.detach() + 0.5, b.detach() - 0.5) if entry.features else None
        return method(a, b, y, features)
    if kind == "queue":
        queue = torch.cat([b.detach().flip(1), -a.detach()])
        labels = (y, torch.cat([y, y.flip(0)]), positives) if entry.supervised else ()
        return method.loss(Contrast.from_queue(a, b, queue, *labels))
    if kind == "pairs":
        keys = torch.cat([b, b.detach().flip(1)])
        return method.pairs(a, keys, labels=torch.cat([y, y]) if entry.supervised else None)
    labels = CLASSES.to(device) if entry.supervised else None
    return method.loss(Contrast.from_nodes(a, b, BATCH.to(device), labels, positives))


@pytest.mark.parametrize(("kind", "name", "options"), VARIED, ids=title)
def test_nothing_is_asked_of_a_device(kind, name, options, monkeypatch):
    """On meta there are no values: what would make an accelerator wait fails there."""
    method = build(kind, name, **options).to("meta")
    a, b = embeddings(kind, device="meta", dtype=torch.float32)
    loss(kind, method, a, b)  # the masks are made once, and from a number
    as_tensor = torch.as_tensor

    def of_tensors(x, **more):  # the copy of a number would make it wait as well
        assert isinstance(x, torch.Tensor)
        return as_tensor(x, **more)

    monkeypatch.setattr(torch, "tensor", of_tensors)
    monkeypatch.setattr(torch, "as_tensor", of_tensors)
    value = loss(kind, method, a, b)
    value.backward()
    assert value.shape == () and value.is_meta and value.dtype == torch.float32
    assert a.grad.shape == a.shape and (b.grad is not None or kind == "queue")
    assert all(p.grad.is_meta for p in method.parameters())
    assert method.skipped.is_meta and method.unconverged.is_meta


TRACED = [
    *((kind, name, {}) for kind, name in BUILT),
    *(("queue", name, {}) for name in ("hcl", "h-scl")),  # from there on the way is that of views
    ("views", "unremix-repaired", {"learn": "maximise"}),
]


@pytest.mark.parametrize(("kind", "name", "options"), TRACED, ids=title)
def test_the_compiler_traces_the_whole_loss(kind, name, options):
    method = build(kind, name, **options)
    if "tol" in method.options:  # few steps to write out, and they are enough
        method.change(tol=1e-7, epsilon=2.0, max_iterations=25)
    a, b = embeddings(kind)
    leaves = [a, *method.parameters()]

    def eager(a, b):
        return loss(kind, method, a, b)

    torch._dynamo.reset()
    traced = torch.compile(eager, fullgraph=True, backend="aot_eager")(a, b)
    assert traced.item() == pytest.approx(eager(a, b).item(), rel=1e-6)
    found, expected = (torch.autograd.grad(value, leaves) for value in (traced, eager(a, b)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_single_precision_is_close_to_double(kind, name):
    """And on views double precision to the reference, which is written as loops."""
    options = {"tol": 1e-5} if "tol" in build(kind, name).options else {}
    method = build(kind, name, **options)
    single, double = (
        loss(kind, method, *embeddings(kind, 1, dtype)) for dtype in (torch.float32, torch.float64)
    )
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(double.item(), rel=3e-5, abs=3e-6)
    if kind == "views":
        a, b = (z.detach() for z in embeddings(kind, 1))
        hidden = {"features": (a + 0.5, b - 0.5)} if method.entry.features else {}
        expected = float(reference.METHODS[name](a, b, LABELS.tolist(), **hidden))
        assert single.item() == pytest.approx(expected, rel=1e-4, abs=3e-6)


def pickled(x):
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("duplicate", [pickled, copy.copy, copy.deepcopy, methods.Method.copy])
@pytest.mark.parametrize(("kind", "name"), BUILT)
def test_a_duplicate_of_a_method_is_the_same_loss(kind, name, duplicate):
    z = embeddings(kind, 2)
    entry = (graphs.methods if kind == "nodes" else methods).CATALOGUE[name]
    for options in variants(entry):
        method = build(kind, name, **options)
        twin = duplicate(method)
        assert torch.equal(loss(kind, twin, *z), loss(kind, method, *z))
        assert repr(twin) == repr(method) and twin.entry == entry
        assert twin.options == method.options and twin.options is not entry.defaults
        if "learn" not in options:
            assert twin.log_weights == method.log_weights
            assert hash(twin.log_weights) == hash(method.log_weights)
            assert repr(twin.log_weights) == repr(method.log_weights)


@pytest.mark.parametrize("duplicate", [pickled, copy.deepcopy, methods.Method.copy])
def test_a_duplicate_counts_for_itself(duplicate):
    z = embeddings("views", 3)
    ot = methods.build("ot", epsilon=0.01, max_iterations=1)
    skipping = methods.build("h-scl-threshold", tau=math.exp(1.9))
    with pytest.warns(ConvergenceWarning):
        loss("views", ot, *z)
    loss("views", skipping, *z)
    before = int(ot.unconverged), int(skipping.skipped)
    assert before[0] == 1 and before[1] > 0
    start = (0, 0) if duplicate is methods.Method.copy else before
    others = duplicate(ot), duplicate(skipping)
    assert (int(others[0].unconverged), int(others[1].skipped)) == start
    with pytest.warns(ConvergenceWarning):
        loss("views", others[0], *z)
    loss("views", others[1], *z)
    assert (int(ot.unconverged), int(skipping.skipped)) == before
    assert int(others[0].unconverged) == start[0] + 1
    assert int(others[1].skipped) == start[1] + before[1]
    assert not ot.state_dict() and not skipping.state_dict()


@pytest.mark.parametrize("duplicate", [pickled, copy.deepcopy, methods.Method.copy])
@pytest.mark.parametrize("name", [n for n, e in methods.CATALOGUE.items() if "learn" in e.defaults])
def test_a_duplicate_learns_for_itself(name, duplicate):
    z = embeddings("views", 4)
    method = methods.build(name, learn="maximise")
    before = loss("views", method, *z)
    twin = duplicate(method)
    with torch.no_grad():
        twin.logits += torch.tensor([-2.0, 1.0, 2.0])
    assert torch.equal(loss("views", method, *z), before)
    assert (loss("views", twin, *z) - before).abs() > 1e-4


def test_counts_are_left_alone_inside_transforms():
    """They could not be kept; the gradient is that of autograd."""
    a, b = embeddings("views", 3)
    method = methods.build("h-scl-threshold", tau=math.exp(1.9))
    found = torch.func.grad(lambda z: loss("views", method, z, b.detach()))(a.detach())
    assert int(method.skipped) == 0
    torch.testing.assert_close(found, torch.autograd.grad(loss("views", method, a, b), a)[0])


WEIGHTINGS = [
    negatives.uniform("skip"),
    negatives.tilted(1.5, 0.2),
    negatives.tilted(-2.0, weights_gradient=False),
    negatives.thresholded(0.4),
    negatives.gaussian(0.1, 0.3, weights_gradient=True),
    negatives.centred_tilt(0.4),
    negatives.entropic_ot(0.3),
    negatives.semi_relaxed_ot(0.3, 0.1, cubed),
    negatives.unremix((0.2, 0.3, 0.5)),
    negatives.unremix_repaired(2.0),
    negatives.chi2_ball(0.3),
    negatives.tilted(torch.linspace(0.5, 1.0, 12, dtype=torch.float64)),
    graphs.methods.tilted(2.0, per="node"),
    graphs.methods.tilted_by_node(2.0),
    graphs.methods.entropic_ot(0.3),
]


@pytest.mark.parametrize("duplicate", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("weights", WEIGHTINGS, ids=str)
def test_weightings_are_values(weights, duplicate):
    twin = duplicate(weights)
    assert twin == weights and hash(twin) == hash(weights) and repr(twin) == repr(weights)
    assert sum(twin == other for other in WEIGHTINGS) == 1
    with pytest.raises(AttributeError):
        twin.on_empty = "drop"
    if not isinstance(weights, graphs.methods.tilted) and "scores" not in repr(weights):
        a, b = embeddings("views", 5)
        c = Contrast.from_views(a, b, features=(a.detach(), b.detach()))
        assert torch.equal(twin(c), weights(c))


def test_a_weighting_prints_the_call_that_makes_it():
    assert (
        repr(negatives.tilted(beta=1))
        == "tilted(beta=1, temperature=0.5, weights_gradient=True, on_empty='raise', exponent=1.0)"
    )
    for weights in WEIGHTINGS:
        if "function" not in repr(weights) and "tensor" not in repr(weights):
            room = graphs.methods if type(weights).__module__ != "hnlib.negatives" else negatives
            assert eval(repr(weights), {**vars(room), "inf": math.inf}) == weights


def test_weightings_of_different_kinds_or_options_differ():
    values = torch.ones(3), torch.ones(4), torch.zeros(3), 1.0
    several = [negatives.gaussian(value) for value in values] + [negatives.tilted(1.0)]
    for i, one in enumerate(several):
        assert [one == other for other in several] == [i == j for j in range(len(several))]
    assert negatives.uniform() != "uniform"


@pytest.mark.parametrize("weights", WEIGHTINGS, ids=str)
def test_scores_pickle_and_say_what_the_weights_are(weights):
    score, s = weights.score, torch.linspace(-1, 1, 7, dtype=torch.float64)
    known = (negatives.uniform, negatives.tilted, negatives.thresholded, negatives.gaussian)
    numbers = not any(isinstance(value, torch.Tensor) for value in vars(weights).values())
    assert (score is not None) == (isinstance(weights, known) and numbers)
    if score is None:
        return
    twin = pickled(score)
    assert twin.cuts == score.cuts == isinstance(weights, negatives.thresholded)
    assert (score.value is None) == isinstance(weights, negatives.uniform)
    if score.value is not None:
        assert torch.equal(twin.value(s), score.value(s))
    if score.slope is None:
        assert not getattr(weights, "weights_gradient", False)
        return
    x = s.clone().requires_grad_()
    slope = torch.autograd.grad(score.value(x).sum(), x)[0]
    torch.testing.assert_close(torch.as_tensor(twin.slope(s)).expand(7).to(s), slope)
