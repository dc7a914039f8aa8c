"""Logits other than s/t, and BPR: references at the size of a batch, bounds, second derivatives."""

import drawn
import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import logit_functions, methods, objectives
from hnlib.contrast import Contrast

OPTIONS = {
    "artanh": [{}, {"temperature": 0.2}],
    "weince": [{}, {"share": 0.7}, {"shape": 3.0}, {"share": 1.0, "shape": 1.0}],
    "bpr": [{}],
}
CASES = [(name, options) for name, some in OPTIONS.items() for options in some]


@settings(max_examples=10)
@given(seed=drawn.SEEDS, size=st.sampled_from([2, 3, 18, 40, 190]))
def test_weince_selects_by_the_tail_of_each_anchor(seed, size):
    """Of all negatives, of the 32 nearest, or of a tenth; a row's own two views are no negatives."""
    z1, z2 = drawn.views(seed, size, dimension=6)
    share, shape = logit_functions.weince().select(Contrast.from_views(z1, z2))
    if size < 3:  # two negatives: no line can be fitted to what is left
        assert shape.isfinite().all() and share.max() < 0.5
        return
    _, S, _, A = reference.views(z1, z2)
    expected = np.array(reference.weince_selection(S, A))
    np.testing.assert_allclose(shape, expected[:, 1], rtol=1e-7)
    np.testing.assert_allclose(share, expected[:, 0], rtol=1e-5, atol=1e-9)
    assert not np.allclose(expected[:, 0], expected[::-1, 0])


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_finite_where_a_logit_is_not(name, options, dtype):
    """Views that agree, and negatives that are the anchor's twin or its opposite."""
    z = drawn.views(0, 6, 4, dtype)[0]
    z = torch.cat([z, z[:2], -z[:2]]).requires_grad_()
    value = methods.build(name, **options)(z, z)
    (gradient,) = torch.autograd.grad(value, z)
    assert value.dtype == dtype and value.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_second_derivatives_are_right(name, options):
    """Those of `weince` with a selection that is held: it has no gradient."""
    z = [x.requires_grad_() for x in drawn.views(1, 4, 3)]
    method = methods.build(name, **options)
    if name == "weince" and len(options) < 2:
        share, shape = logit_functions.weince(**options).select(Contrast.from_views(*z))
        method = methods.build(name, share=share, shape=shape)
    assert torch.autograd.gradgradcheck(method, z, atol=1e-4)


def test_a_selection_has_no_gradient_but_moves_the_loss():
    z = [x.requires_grad_() for x in drawn.views(2, 20, 6)]
    contrast = Contrast.from_views(*z)
    share, shape = logit_functions.weince().select(contrast)
    assert not share.requires_grad and share.max() > 0.5 > share.min() >= 0
    free, held = (methods.build("weince", **o) for o in ({}, {"share": share, "shape": shape}))
    ours, expected = (
        torch.autograd.grad(m.loss(contrast), z, retain_graph=True) for m in (free, held)
    )
    assert all(torch.equal(*pair) for pair in zip(ours, expected))
    other = methods.build("weince", shape=1.0).loss(contrast)
    assert abs(other - free.loss(contrast)) > 1e-4


def test_bpr_of_one_negative_is_info_nce_and_averages_over_positives():
    s = torch.tensor([[0.4, 0.7, -0.2, 0.1]], dtype=torch.float64)
    mask = lambda *columns: torch.tensor([[j in columns for j in range(4)]])  # noqa: E731
    one = Contrast.from_similarity(s, mask(0), mask(2))
    log_w = one.uniform_log_weights
    assert objectives.pairwise(one, log_w, 0.3) == pytest.approx(
        float(objectives.info_nce(one, log_w, 0.3))
    )
    several = [Contrast.from_similarity(s, mask(*k), mask(2, 3)) for k in ((0,), (1,), (0, 1))]
    losses = [float(objectives.pairwise(c, c.uniform_log_weights, 0.3)) for c in several]
    assert losses[2] == pytest.approx((losses[0] + losses[1]) / 2)
    nce = [float(objectives.info_nce(c, c.uniform_log_weights, 0.3, 0.0, 1)) for c in several]
    assert abs(losses[0] - nce[0]) > 1e-3
