"""The adversaries of the chapters on robustness: at a price, and with one budget for all rows."""

import pytest
import torch
from drawn import seeded

pytest.importorskip("cvxpy")
from hnbook.chapters.robustness import kl_penalised, shared_kl_ball
from hnlib import robust


def rows(seed, n=3, m=7):
    """Return values and masses; the point of the largest value has none."""
    g = seeded(seed)
    f = torch.rand(n, m, generator=g, dtype=torch.float64) * 2 - 1
    q0 = torch.rand(n, m, generator=g, dtype=torch.float64) + 0.05
    f[:, 2], q0[:, 2] = 3.0, 0.0
    return f, q0 / q0.sum(-1, keepdim=True)


def nats(q, q0):
    return torch.special.xlogy(q, q / q0.clamp_min(1e-300)).sum(-1)


def test_at_a_price_no_law_does_better_and_the_gradient_is_the_law():
    f, q0 = rows(0)
    price = torch.tensor([0.2, 0.5, 2.0], dtype=torch.float64)
    x = f.clone().requires_grad_()
    found = kl_penalised(x, q0, price)
    (gradient,) = torch.autograd.grad(found.value.sum(), x)
    torch.testing.assert_close(gradient, found.weights)
    worth = lambda q: (q * f).sum(-1) - price * nats(q, q0)  # noqa: E731
    torch.testing.assert_close(found.value.detach(), worth(found.weights))
    assert (found.weights[:, 2] == 0).all() and (found.alpha == price).all()
    for other in (q0, rows(1)[1], 0.99 * found.weights + 0.01 * q0):
        assert (worth(other) < found.value).all()


def test_at_the_price_of_a_ball_its_law_is_that_of_the_ball():
    f, q0 = rows(2)
    ball = robust.kl_ball(f, q0, 0.3)
    torch.testing.assert_close(kl_penalised(f, q0, ball.alpha).weights, ball.weights)


@pytest.mark.parametrize("eta", [1e-4, 0.3])
def test_a_shared_budget_is_spent_by_the_rows_on_average(eta):
    f, q0 = rows(2)
    shared = shared_kl_ball(f, q0, eta)
    spent = nats(shared.weights, q0)
    assert abs(float(spent.mean()) - eta) < 1e-9 and (shared.alpha == shared.alpha[0]).all()
    assert abs(spent - eta).min() > 1e-3 * eta  # no row has the radius of a ball of its own
    dual = kl_penalised(f, q0, shared.alpha).value.mean() + shared.alpha[0] * eta
    torch.testing.assert_close(shared.value.mean(), dual)


def test_a_budget_that_suffices_for_the_largest_points_has_no_price():
    f, q0 = rows(3)
    f[0, 0] = f[0, 1] = 2.0  # two largest points share by their masses
    found = shared_kl_ball(f, q0, 50.0)
    largest = f.masked_fill(q0 == 0, -torch.inf).amax(1)
    assert (found.alpha == 0).all() and torch.equal(found.value, largest)
    torch.testing.assert_close(found.weights[0, :2], q0[0, :2] / q0[0, :2].sum())
