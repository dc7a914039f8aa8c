"""Sinkhorn against a slow loop and its optimality conditions; and refusals."""

import math

import numpy as np
import pytest
import reference
import torch
from drawn import SEEDS, seeded, views
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import _checks, transport
from hnlib.transport import ConvergenceError, ConvergenceWarning, sinkhorn

cases = settings(max_examples=12)
general_and_symmetric = pytest.mark.parametrize("symmetric", [False, True])


@cases
@given(
    seed=SEEDS,
    epsilon=st.sampled_from([0.05, 0.3, 1.0, 20.0]),
    relaxation=st.sampled_from([0.0, 0.01, 0.4, 5.0, math.inf]),
    masked=st.booleans(),
)
def test_the_plan_is_the_reference_plan(seed, epsilon, relaxation, masked):
    g, shape = seeded(seed), (5, 6)
    cost = 2 * torch.rand(shape, generator=g, dtype=torch.float64)
    mask = (torch.rand(shape, generator=g) < 0.75) | (not masked)
    mask[0] = mask[:, 0] = True
    plan = mask * (torch.rand(shape, generator=g, dtype=torch.float64) + 0.1)
    p, q = (plan.sum(axis) / plan.sum() for axis in (1, 0))  # the mask admits a coupling
    options = dict(tol=1e-12, max_iterations=50_000)
    c = sinkhorn(cost, p, q, epsilon, relaxation, mask if masked else None, **options)
    arrays = (x.numpy() for x in (cost, p, q))
    expected = reference.sinkhorn(*arrays, epsilon, relaxation, mask.numpy())
    assert np.abs(c.plan.numpy() - expected).max() < 1e-9
    assert c.converged and c.marginal_error <= 1e-12
    form = p.log()[:, None] + q.log() + (c.u[:, None] + c.v - cost) / epsilon  # Lemma 3 of hcl-ot
    assert (form - c.log_plan)[mask].abs().max() < 1e-10
    if 0 < relaxation < math.inf:  # v is the multiplier of the marginal, its constant too
        multiplier = -relaxation * (c.plan.sum(0) / q).log()
        assert (c.v - multiplier).abs().max() < 1e-8 * (1 + relaxation)


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("epsilon", [0.03, 0.0005])
@general_and_symmetric
def test_small_epsilon_is_right_also_where_scaling_fails(dtype, tol, epsilon, symmetric):
    """exp(-c/epsilon) is zero almost everywhere, so plain scaling would divide by zero.

    Four pairs of near twins, the pairs at right angles: all mass goes to the twin but a share of
    about exp(-1/epsilon).
    """
    angle = torch.tensor([0.0, 0.1, 0.0, 0.12, 0.0, 0.05, 0.0, 0.08], dtype=torch.float64)
    pair, options = torch.arange(8) // 2, dict(symmetric=symmetric, tol=tol)
    s = torch.where(pair[:, None] == pair, torch.cos(angle[:, None] - angle), -0.5)
    mask = ~torch.eye(8, dtype=torch.bool)
    c = sinkhorn((1 - s).to(dtype), epsilon=epsilon, mask=mask, **options)
    twin = torch.arange(8) ^ 1
    assert c.converged and (c.plan[torch.arange(8), twin] * 8 - 1).abs().max() < 1e-4
    if symmetric:  # the twins fix u_i + u_twin(i), and these the far cells
        far = c.log_conditional[0, 2] + c.log_conditional[1, 3]
        exact = ((1 - s[0, 1]) + (1 - s[2, 3]) - 3.0) / epsilon
        assert abs(float(far / exact) - 1) < (1e-3 if dtype == torch.float32 else 1e-9)


forbidden = ~torch.eye(3, dtype=torch.bool)
flat = torch.zeros(3, 3, dtype=torch.float64)


@general_and_symmetric
def test_an_infeasible_coupling_is_refused_and_explained(symmetric):
    p = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64)  # no way out for .6 - .4 of the first
    with pytest.raises(ValueError, match=r"no coupling .*at most 0\.8000 of the mass.*allow more"):
        sinkhorn(flat, p, p, mask=forbidden, symmetric=symmetric, on_failure="warn")


@general_and_symmetric
def test_the_feasible_boundary_does_not_pass_for_convergence(symmetric):
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    options = dict(mask=forbidden, symmetric=symmetric)
    with pytest.raises(ConvergenceError, match=r"marginal error of \S+, not tol=1e-10, in 1000"):
        sinkhorn(flat, p, p, **options)
    with pytest.warns(ConvergenceWarning, match="marginal error of"):
        c = sinkhorn(flat, p, p, **options, on_failure="warn")
    assert not c.converged
    assert abs(c.marginal_error - float((c.plan.sum(0) - p).abs().sum())) < 1e-3
    assert sinkhorn(flat, p, p, **options, tol=1e-2).converged


def test_without_a_second_marginal_a_column_may_be_empty():
    """The plan has no gradient, and the cost is left as it was."""
    c = torch.rand(1, 3, generator=seeded(0)).requires_grad_()
    mask, before = torch.tensor([[False, True, True]]), c.detach().clone()
    plan = sinkhorn(c, epsilon=0.5, relaxation=0.0, mask=mask).plan
    assert not plan.requires_grad and torch.equal(c, before)
    c = c.detach()
    torch.testing.assert_close(plan, (-c / 0.5).masked_fill(~mask, -math.inf).softmax(1))


# --- where nothing may wait for the device


@pytest.mark.parametrize("relaxation", [0.0, 1.0, math.inf])
@general_and_symmetric
def test_masked_iterations_are_those_of_the_loop_that_stops(monkeypatch, relaxation, symmetric):
    z = torch.nn.functional.normalize(views(7, size=12)[0], dim=1)
    eye = torch.eye(12, dtype=torch.bool)  # own view and own image are forbidden
    cost, mask = 1 - z @ z.T, ~(eye | eye.roll(6, 0))
    options = dict(epsilon=0.5, relaxation=relaxation, mask=mask, symmetric=symmetric)
    options |= dict(tol=1e-6, on_failure="warn", max_iterations=transport.STEPS)
    stops = sinkhorn(cost, **options)
    monkeypatch.setattr(_checks, "on_cpu", lambda x: False)  # as on an accelerator
    fixed = sinkhorn(cost, **options)
    for part in ("log_conditional", "u", "v"):
        torch.testing.assert_close(getattr(fixed, part), getattr(stops, part), rtol=0, atol=1e-12)
    assert stops.converged and fixed.converged
    assert abs(float(fixed.marginal_error) - stops.marginal_error) < 1e-12
