"""Streamed losses against the dense ones: values, gradients, memory, and what is refused."""

import sys

import drawn
import pytest
import reference
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from processes import printed_by

from hnlib import methods, streaming

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
    for refused in (methods.build("ot"), methods.build("dcl", loudness="relative")):
        with pytest.raises(ValueError, match=f"{refused.name} cannot be streamed"):
            streaming.streamed(refused)
    z = [x.requires_grad_() for x in drawn.views(8)]
    loss = streaming.streamed(methods.build("hcl"), 3)(*z)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, z, create_graph=True)


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
