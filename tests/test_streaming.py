"""Streamed losses against the dense ones: values, gradients, memory, and what is refused."""

import sys

import drawn
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import printed_by

from hnlib import methods, negatives, objectives, streaming
from hnlib.contrast import Contrast

STREAMED = [  # every method of the catalogue that has a score, with its options off the defaults
    ("simclr", {}),
    ("debiased", {"tau_plus": 0.5}),
    ("dcl", {}),
    ("focal", {}),
    ("hcl", {"tau_plus": 0.0}),
    ("hcl", {"beta": 3.0, "weights_gradient": False}),
    ("hcl", {"beta": -1.0}),
    ("adnce", {}),
    ("adnce", {"mu": 0.2, "sigma": 0.3, "weights_gradient": True}),
    ("scl", {"positives": "view"}),
    ("h-scl", {"positives": "view", "beta": 2.0}),
    ("h-scl-threshold", {"positives": "view", "tau": 1.0}),
]
TIGHT = {torch.float64: 1e-10, torch.float32: 1e-5}


def views(seed, size, dimension=5, dtype=torch.float64):
    a, b = drawn.views(seed, size, dimension)
    return [z.to(dtype).requires_grad_() for z in (a, a + 0.7 * b)]


def agree(ours, dense, inputs, tolerance):
    """Value and gradient, relative to the size of each."""
    assert float((ours - dense).detach().abs()) <= tolerance * max(1.0, float(dense.detach().abs()))
    g, expected = (torch.cat(torch.autograd.grad(loss, inputs)) for loss in (ours, dense))
    assert float((g - expected).norm()) <= tolerance * float(expected.norm()) + 1e-14


@settings(max_examples=20)
@given(
    seed=st.integers(0, 9999),
    case=st.sampled_from(STREAMED),
    size=st.integers(2, 23),
    temperature=st.sampled_from([0.01, 0.1, 0.5, 2.0]),
    block=st.sampled_from([1, 3, 7, 8, 100]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_streamed_methods_are_the_dense_ones(seed, case, size, temperature, block, dtype):
    name, options = case
    if dtype == torch.float32:  # what it leaves of a difference of large numbers is another matter
        temperature = max(temperature, 0.1)
    method = methods.build(name, temperature=temperature, **options)
    z = views(seed, size, dtype=dtype)
    y = torch.arange(size) % 2
    agree(streaming.streamed(method, block)(*z, y), method(*z, y), z, TIGHT[dtype])


def test_anchors_without_negatives_are_named_or_left_out():
    z = views(2, 9)
    for tau, empty in ((5.0, True), (0.01, False)):
        contrast = Contrast.from_views(*z)
        log_w = negatives.thresholded(tau, on_empty="skip")(contrast)
        skipped = log_w.amax(1) == -torch.inf
        assert skipped.any() == empty and not skipped.all()
        weights, skipping = (negatives.thresholded(tau, on_empty=do) for do in ("raise", "skip"))
        ours = streaming.info_nce(*z, skipping, tau_plus=0.1, block=4)
        agree(ours, objectives.info_nce(contrast, log_w, tau_plus=0.1), z, 1e-10)
        if empty:
            row = int(skipped.nonzero()[0])
            with pytest.raises(
                ValueError, match=rf"anchor {row} has no negative .* lower thr.* on_empty"
            ):
                streaming.info_nce(*z, weights)
    with pytest.raises(ValueError, match="anchor 0 has no negative"):
        streaming.info_nce(*z, labels=torch.zeros(9, dtype=torch.long))


@pytest.mark.parametrize(
    "name, options",
    [
        ("ot", {}),
        ("unremix-printed", {}),
        ("mochi", {}),
        ("h-scl", {}),
        ("simclr", {"hardness_strength": 5.0}),
        ("hcl", {"beta": torch.ones(8)}),
    ],
)
def test_what_cannot_be_streamed_is_refused(name, options):
    with pytest.raises(ValueError, match=f"{name} cannot be streamed"):
        streaming.streamed(methods.build(name, **options))


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"block": 0}, "block"),
        ({"temperature": torch.ones(8)}, "one number, without gradient"),
        ({"temperature": torch.tensor(0.5, requires_grad=True)}, "one number, without gradient"),
        ({"weights": negatives.tilted(torch.ones(8))}, "options that are numbers"),
        ({"weights": negatives.chi2_ball()}, "weights must be"),
        ({"labels": torch.zeros(3)}, "labels"),
    ],
)
def test_bad_input_is_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        streaming.info_nce(*views(6, 4), **arguments)


MEASURE = r"""
import re, torch
from hnlib import methods, streaming


def peak():  # of this program; getrusage would begin with the peak of the one that started it
    return int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read()).group(1)) / 2**10


loss = streaming.streamed(methods.build("hcl"))
z = [torch.randn(8192, 64, requires_grad=True) for _ in range(2)]
loss(*(v[:600] for v in z)).backward()
before = peak()
loss(*z).backward()
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_memory_does_not_grow_with_the_matrix():
    """16,384 embeddings: one matrix of their similarities would take 1,024 MB."""
    assert 1 < float(printed_by(MEASURE)) < 300


def test_a_second_derivative_is_refused():
    z = views(8, 5)
    loss = streaming.info_nce(*z, negatives.tilted(), block=3)
    with pytest.raises(RuntimeError, match="no second derivative; use the dense loss"):
        torch.autograd.grad(loss, z, create_graph=True)


def test_a_backward_pass_inside_autocast_is_as_exact_as_outside():
    z = views(10, 9, dtype=torch.float32)
    loss = streaming.info_nce(*z, negatives.tilted(), block=4)
    outside = torch.autograd.grad(loss, z, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(loss, z)
    assert all(torch.equal(a, b) for a, b in zip(outside, inside))


@pytest.mark.parametrize("name", ["uniform", "tilted", "thresholded", "gaussian"])
def test_nothing_waits_for_the_device(name):
    z = [torch.empty(6, 5, device="meta", requires_grad=True) for _ in range(2)]
    labels = torch.empty(6, dtype=torch.long, device="meta")
    loss = streaming.info_nce(*z, getattr(negatives, name)(), block=4, tau_plus=0.1, labels=labels)
    loss.backward()
    assert z[0].grad.shape == (6, 5)
