"""Streamed losses against the dense ones: values, gradients, memory, and what is refused.

Dense losses of views and pairs have tests of their own; here the two must agree, and the dense loss
of a near miss must not.
"""

import sys
from functools import partial

import drawn
import pytest
import reference
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from processes import printed_by

from hnlib import graphs, methods, streaming

STREAMED = [  # one of each distribution, objective and logit, with options off the defaults
    ("simclr", {"hardness_strength": 5.0}),
    ("siglip", {"bias": -1.0}),
    ("hcl", {"beta": 3.0, "weights_gradient": False}),
    ("adnce", {"mu": 0.2, "sigma": 0.3, "weights_gradient": True}),
    ("chi2-dro", {}),
    ("artanh", {}),
    ("h-scl", {"positives": "view", "beta": 2.0}),
    ("h-scl-threshold", {"level": 0.6}),  # skips anchors of small batches
]


@settings(max_examples=20)
@given(
    seed=drawn.SEEDS,
    case=st.sampled_from(STREAMED),
    size=st.integers(2, 23),
    rows=st.sampled_from([None, 1, 3, 8]),
)
@example(seed=2, case=STREAMED[-1], size=4, rows=3)
def test_streamed_methods_are_the_dense_ones(seed, case, size, rows):
    method = methods.build(case[0], **case[1]).double()
    z = [x.requires_grad_() for x in drawn.views(seed, size, 5)]
    y = torch.arange(size) % 2
    found = []
    for one in (method, streaming.streamed(method, rows)):
        before = int(method.skipped)
        value = one(*z, y)
        inputs = [*z, *method.parameters()]
        found.append([value, torch.tensor(int(method.skipped) - before)])
        found[-1] += torch.autograd.grad(2 * value, inputs) if value.requires_grad else []
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


KINDS = ["plain", "answers", "classes", "excluded", "both"]
MORE = [  # with those above every method that can be streamed, the learned ones apart
    *((name, {}) for name in ("debiased", "bcl", "alpha-cl", "mw", "dcl", "focal", "bpr")),
    ("soft-targets", {"share": 0.2}),
    ("scl", {}),
    ("supcon", {}),
]


def pairs_of(kind, seed, n, further, dimension=5):
    """Queries, keys and what else `pairs` takes; all have a negative, unless it is excluded."""
    g = drawn.seeded(seed)
    m = max(n if kind == "both" else n + further, 3)
    n = m if kind == "both" else n
    z = [torch.randn(k, dimension, generator=g, dtype=torch.float64) for k in (n, m)]
    masks = torch.rand(2, n, m, generator=g) < 0.3
    masks[0, :, -1] = masks[0, -1] = False  # so that all have a negative
    more = {
        "plain": {},
        "answers": {"positives": masks[0]},
        "classes": {"labels": torch.arange(m) % 3},
        "excluded": {"excluded": masks[1]},
        "both": {"both": True, "positives": masks[0], "excluded": masks[1]},
    }[kind]
    return z, more


def value_and_gradients(loss, method, inputs, more):
    """The loss, its gradients in the inputs, and how many anchors it left out."""
    before = int(method.skipped)
    value = loss(*inputs, **more)
    found = torch.autograd.grad(2 * value, inputs, allow_unused=True)
    skipped = torch.tensor(int(method.skipped) - before)
    zero = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found)]
    return [value.detach(), skipped, *zero]


@settings(max_examples=60)
@given(
    seed=drawn.SEEDS,
    case=st.sampled_from(STREAMED + MORE),
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 13),
    further=st.integers(0, 9),
    rows=st.sampled_from([None, 1, 3, 8, 100]),
)
@example(seed=0, case=STREAMED[0], kind="plain", n=1, further=1, rows=1)
@example(seed=0, case=STREAMED[0], kind="both", n=7, further=0, rows=3)
@example(seed=2, case=STREAMED[-1], kind="classes", n=4, further=5, rows=3)
@example(seed=1, case=STREAMED[2], kind="excluded", n=6, further=2, rows=4)
def test_streamed_pairs_are_the_dense_ones(seed, case, kind, n, further, rows):
    method = methods.build(case[0], **case[1]).double()
    if method.entry.supervised:
        kind = "classes"
    z, more = pairs_of(kind, seed, n, further)
    z = [x.requires_grad_() for x in z]
    expected = value_and_gradients(method.pairs, method, z, more)
    found = value_and_gradients(streaming.streamed(method, rows).pairs, method, z, more)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


COUPLED = ["ot", "ot-semirelaxed", "bcl-ot", "unremix", "mochi"]
COUPLED += ["weince", "centred-hcl", "unremix-repaired"]
COUPLED += [f"graphs {name}" for name in ("hcl", "ot", "unremix", "h-scl")]
EVERY = {name: partial(methods.build, name) for name in methods.CATALOGUE}
EVERY |= {name: methods.example(name).build for name in methods.EXAMPLES}
EVERY |= {f"graphs {x}": partial(graphs.methods.build, x) for x in graphs.methods.CATALOGUE}
EVERY["weince, λ fixed"] = partial(EVERY["weince"], share=0.3)


@pytest.mark.parametrize("name", EVERY)
def test_a_streamed_loss_does_not_depend_on_the_rows_or_is_refused(name):
    method = EVERY[name]().double()
    if name in COUPLED:
        with pytest.raises(ValueError, match="which compare the anchors of a batch; call the met"):
            streaming.streamed(method)
        return
    for seed, n in enumerate((2, 7, 20)):
        z, y = drawn.views(seed, n, 5), torch.arange(n) % 2
        labels = y if method.entry.supervised else None
        expected = [method(*z, y), method.pairs(*z, labels=labels)]
        for rows in (1, 3):
            one = streaming.streamed(method, rows)
            found = [one(*z, y), one.pairs(*z, labels=labels)]
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


SUPERVISED = [name for name, entry in methods.CATALOGUE.items() if entry.supervised]


@settings(max_examples=25)
@given(
    seed=drawn.SEEDS,
    name=st.sampled_from(SUPERVISED),
    n=st.integers(2, 13),
    further=st.integers(0, 9),
    rows=st.sampled_from([None, 1, 3, 8]),
    view=st.booleans(),
)
@example(seed=0, name="supcon", n=2, further=0, rows=1, view=False)
def test_every_supervised_method_is_streamed_on_views_and_on_pairs(
    seed, name, n, further, rows, view
):
    """Classes of another batch are a near miss."""
    known = methods.CATALOGUE[name].defaults
    chosen = {"positives": "view"} if view and "positives" in known else {}
    method = methods.build(name, **chosen).double()
    (queries, keys), more = pairs_of("classes", seed, n, further)
    views, y = [x.requires_grad_() for x in drawn.views(seed, n, 5)], torch.arange(n) % 2
    pairs = [x.requires_grad_() for x in (queries, keys)]
    found = []
    for one in (method, streaming.streamed(method, rows)):
        on_views = value_and_gradients(one, method, views, {"labels": y})
        found.append([*on_views, *value_and_gradients(one.pairs, method, pairs, more)])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
    if n > 3:
        other = method(*views, y.sort().values)
        assert abs(other - found[0][0]) > 1e-9


NEAR = {  # what a wrong stream could pass over, kind by kind
    "plain": lambda z, more: ([z[0], torch.cat([z[1][:1].flip(1), z[1][1:]])], more),
    "answers": lambda z, more: (z, {}),
    "classes": lambda z, more: (z, {"labels": more["labels"].roll(1)}),
    "excluded": lambda z, more: (z, {"excluded": more["excluded"].roll(1, 0)}),
    "both": lambda z, more: (z, more | {"both": False}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["simclr", "hcl", "siglip"])
def test_a_near_miss_of_streamed_pairs_is_another_loss(kind, name):
    """So the test above would see rows of another part, a mask of another row, one direction."""
    method = methods.build(name).double()
    z, more = pairs_of(kind, 3, 7, 4)
    other, changed = NEAR[kind](z, more)
    streamed = streaming.streamed(method, 3).pairs
    assert abs(streamed(*z, **more) - method.pairs(*z, **more)) < 1e-12
    assert abs(streamed(*z, **more) - method.pairs(*other, **changed)) > 1e-5


def learned(log_scale, which):
    """Options that are tensors: two made of one number, and one for each anchor."""
    t = (-log_scale).exp()
    return {
        "one": ("simclr", {"temperature": t}),
        "two of one": ("siglip", {"temperature": t, "bias": -1 / t}),
        "in the weights": ("hcl", {"temperature": t, "beta": 3 * t}),
        "of anchors": ("dcl", {"temperature": t * torch.linspace(1, 2, 7).double()}),
        "fixed": ("simclr", {"temperature": t.detach()}),
    }[which]


@pytest.mark.parametrize("which", ["one", "two of one", "in the weights", "of anchors", "fixed"])
@pytest.mark.parametrize("rows", [1, 3, None])
def test_a_learned_temperature_gets_its_gradient(which, rows):
    """A near miss, a temperature 0.1 % off, is another one."""
    z, _ = pairs_of("both", 5, 7, 0)
    found = []
    for shift in (0.0, 0.0, 1e-3):
        inputs = [*(x.clone().requires_grad_() for x in z)]
        inputs.append(torch.tensor(1.2 + shift, dtype=torch.float64, requires_grad=True))
        name, options = learned(inputs[2], which)
        method = methods.build(name, **options).double()
        loss = method if len(found) % 2 else streaming.streamed(method, rows)
        two = loss.pairs(*inputs[:2], both=True)
        found.append([two.detach(), *torch.autograd.grad(two, inputs, allow_unused=True)])
    assert (found[0][3] is None) == (which == "fixed")
    far = [
        max(float((a - b).abs().max()) for a, b in zip(one, found[0]) if a is not None)
        for one in found[1:]
    ]
    assert far[0] < 1e-12 and far[1] > 1e-5


def test_a_queue_of_keys_gets_no_gradient_and_evaluation_no_graph():
    z, _ = pairs_of("plain", 1, 5, 6)
    method = methods.build("hcl").double()
    streamed = streaming.streamed(method, 2).pairs
    queries = z[0].clone().requires_grad_()
    value = streamed(queries, z[1])
    expected = torch.autograd.grad(method.pairs(queries, z[1]), queries)
    torch.testing.assert_close(torch.autograd.grad(value, queries), expected)
    with torch.no_grad():
        assert not streamed(queries, z[1]).requires_grad
    assert streamed(queries.detach(), z[1]) == pytest.approx(value.item(), rel=1e-12)


def test_anchors_that_are_skipped_do_not_count_in_the_mean():
    """By hand: the mean of the anchors with a negative above the threshold alone."""
    method = methods.build("h-scl-threshold", level=0.6).double()
    z, y = drawn.views(2, 4, 5), torch.arange(4) % 2
    values = []
    for part in range(1, 6):  # in parts of every size
        before = int(method.skipped)
        values.append(float(streaming.streamed(method, part)(*z, y)))
        skipped = int(method.skipped) - before
    _, S, P, A = reference.views(*z, y.tolist())
    W = reference.thresholded(S, A, level=0.6)
    of_anchors = reference.info_nce(S, P, W, scale=6)
    assert 0 < skipped == (W.sum(1) == 0).sum() < 8
    assert values == pytest.approx([of_anchors.sum() / (8 - skipped)] * 5)
    assert values[0] != pytest.approx(of_anchors.mean())


def test_what_compares_anchors_and_a_second_derivative_are_refused():
    compare = [("ot", {}), ("unremix", {}), ("mochi", {}), ("dcl", {"loudness": "relative"})]
    for name, options in (*compare, ("scl", {"average": "pairs"})):
        with pytest.raises(ValueError, match=f"^{name} cannot be streamed with these options"):
            streaming.streamed(methods.build(name, **options))
    method = methods.build("dcl")
    later = streaming.streamed(method)
    method.change(loudness="mean")
    with pytest.raises(ValueError, match=r"^dcl cannot be streamed"):
        later.pairs(torch.eye(4), torch.eye(4))
    z = [x.requires_grad_() for x in drawn.views(8)]
    loss = streaming.streamed(methods.build("hcl"), 3)(*z)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, z, create_graph=True)


@pytest.mark.parametrize(
    ("sizes", "more", "sentence"),
    [
        ((5, 4), {}, "need at least as many keys as queries, and 2, got 5 and 4"),
        ((4, 6), {"both": True}, "only pairs without further keys"),
        ((4, 4), {"both": True, "labels": torch.arange(4)}, "only pairs without further keys"),
        ((4, 6), {"positives": torch.eye(4) > 0}, "positives must be a boolean mask of shape"),
        ((4, 6), {"excluded": torch.eye(4, 6)}, "excluded must be a boolean mask of shape"),
        ((4, 6), {"labels": torch.arange(4)}, "labels of 6 keys must be integers"),
    ],
)
def test_pairs_that_do_not_fit_are_refused_as_by_the_method(sizes, more, sentence):
    method, z = methods.build("simclr"), [torch.randn(n, 3) for n in sizes]
    for loss in (method, streaming.streamed(method, 3)):
        with pytest.raises(ValueError, match=f"^{sentence}"):
            loss.pairs(*z, **more)


def test_options_of_anchors_and_rows_are_checked():
    method = methods.build("simclr", temperature=torch.full((9,), 0.5))
    with pytest.raises(ValueError, match=r"^temperature must be a number or have shape \(7,\)"):
        streaming.streamed(method, 3).pairs(torch.randn(7, 3), torch.randn(9, 3))
    with pytest.raises(ValueError, match=r"^rows must be an integer of at least 1, got 0"):
        streaming.streamed(method, 0)


MEASURE = r"""
import re, torch
from hnlib import methods, streaming


def peak():  # of this program; getrusage would begin with the peak of the one that started it
    return int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read()).group(1)) / 2**10


loss = streaming.streamed(methods.build("hcl"))
z = [torch.randn(8192, 64, requires_grad=True) for _ in range(2)]
OF(*(v[:600] for v in z)).backward()
before = peak()
OF(*z).backward()
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(("of", "most"), [("loss", 300), ("loss.pairs", 150)])
def test_memory_does_not_grow_with_the_matrix(of, most):
    """One matrix of the similarities would take 1,024 MB of views, and 256 MB of pairs."""
    assert 1 < float(printed_by(MEASURE.replace("OF", of))) < most
