"""Worst cases: atoms without mass, near the limit, temperatures, fixed steps."""

import math

import numpy as np
import pytest
import torch
from drawn import SEEDS, seeded
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import _checks, robust

cases = settings(max_examples=12)


# --- atoms without mass


def with_gaps(seed, n=3, m=7):
    """Return values and masses, some of them zero, among them that of the largest value."""
    g = seeded(seed)
    f = torch.rand(n, m, generator=g, dtype=torch.float64) * 2 - 1
    massive = torch.rand(n, m, generator=g) < 0.6
    massive[:, 0] = massive[:, 1] = True
    f[:, 2], massive[:, 2] = 3.0, False
    q0 = massive * (torch.rand(n, m, generator=g, dtype=torch.float64) + 0.05)
    return f, q0 / q0.sum(-1, keepdim=True), massive


BALLS = {"kl": robust.kl_ball, "chi2": robust.chi2_ball}


@pytest.mark.parametrize("name", BALLS)
@cases
@given(seed=SEEDS, eta=st.sampled_from([1e-6, 0.05, 0.5, 3.0]))
def test_an_atom_without_mass_plays_no_part(name, seed, eta):
    f, q0, massive = with_gaps(seed)
    x = f.clone().requires_grad_()
    r = BALLS[name](x, q0, eta)
    (gradient,) = torch.autograd.grad(r.value.sum(), x)
    assert (gradient - r.weights).abs().max() < 1e-9
    assert (r.weights[~massive] == 0).all() and (gradient[~massive] == 0).all()
    for i, on in enumerate(massive):
        alone = BALLS[name](f[i, on], q0[i, on], eta)
        assert abs(float(r.value[i].detach() - alone.value)) < 1e-9
        assert (r.weights[i, on] - alone.weights).abs().max() < 1e-8
    # negative control: with a little mass it does play one
    q1 = 0.99 * q0 + 0.01 / 7
    assert (BALLS[name](f, q1, eta).value - r.value).abs().max() > 1e-3


@pytest.mark.parametrize("share", [0.01, 0.999])
def test_balls_with_gaps_and_near_the_limit_are_the_optima_of_a_convex_solver(share):
    cp = pytest.importorskip("cvxpy")
    f, q0, massive = (x[0] for x in with_gaps(5, n=1))
    on, largest = massive.numpy(), float(f[massive].max())
    top = float(q0[massive & (f == largest)])
    q, p = cp.Variable(int(on.sum()), nonneg=True), q0.numpy()[on]
    constraint = {
        "kl": (cp.sum(cp.kl_div(q, p)), -math.log(top)),
        "chi2": (cp.sum_squares(cp.multiply(q - p, 1 / np.sqrt(p))) / 2, (1 / top - 1) / 2),
    }
    for name, (radius, limit) in constraint.items():
        inside = [cp.sum(q) == 1, radius <= share * limit]
        problem = cp.Problem(cp.Maximize(f.numpy()[on] @ q), inside)
        problem.solve(solver=cp.CLARABEL)
        r = BALLS[name](f, q0, share * limit)
        assert abs(float(r.value) - problem.value) < 1e-6 and float(r.alpha) > 0
        assert np.abs(r.weights.numpy()[on] - q.value).max() < 1e-3
        beyond = BALLS[name](f, q0, 1.001 * limit)
        assert float(beyond.alpha) == 0 and float(beyond.value) == largest


@cases
@given(seed=SEEDS, eta=st.sampled_from([1e-4, 0.05, 0.4, 5.0]))
def test_the_exact_temperature_is_that_of_the_ball(seed, eta):
    f, q0, _ = with_gaps(seed)
    t = robust.kl_temperature(f.requires_grad_(), q0, eta)
    assert torch.equal(t, robust.kl_ball(f.detach(), q0, eta).alpha) and not t.requires_grad


@pytest.mark.parametrize("order", [1, 2, 3])
def test_each_term_of_the_expansion_gains_an_order_of_the_root_of_the_radius(order):
    f, q0, _ = with_gaps(3)
    errors = [
        abs(robust.kl_temperature(f, q0, eta, order) - robust.kl_temperature(f, q0, eta))
        for eta in (1e-3, 1e-5)
    ]
    rate = (errors[0] / errors[1]).log10()
    torch.testing.assert_close(rate, torch.full_like(rate, order - 1.0), rtol=0, atol=0.4)


# --- log-weights, and where nothing may wait for the device


SOLVERS = {
    name: lambda *problem, ball=ball: ball(*problem).weights for name, ball in BALLS.items()
} | {
    "temperature": robust.kl_temperature,
    "expansion": lambda *problem: robust.kl_temperature(*problem, 3),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_a_fixed_number_of_steps_finds_the_same(name, monkeypatch):
    f, q0, _ = with_gaps(1, 60, 50)
    f[5] = 0.3  # constant: no step finds anything
    etas = (1e-4, 0.5, 6.0)
    stops = [SOLVERS[name](f, q0, eta) for eta in etas]
    monkeypatch.setattr(_checks, "on_cpu", lambda x: False)
    for eta, expected in zip(etas, stops):
        assert torch.allclose(SOLVERS[name](f, q0, eta), expected, rtol=1e-9, atol=1e-12)
