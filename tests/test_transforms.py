"""The losses under torch.func and torch.compile."""

import drawn
import pytest
import torch
from torch import func
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad

from hnlib import methods
from hnlib.contrast import Contrast

CLOSE = dict(rtol=0, atol=1e-10)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
FEATURES = tuple(drawn.views(8, 6, 4))
#: Dynamo of an older torch cannot trace whether a region is autocast
TRACED = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="needs torch 2.13"
)
# so tightly that it does not matter how many iterations follow
TIGHT = {"tol": 1e-13, "on_empty": "skip"}


def loss_of(name):
    """The loss of a method as a function of two views [2, B, d]."""
    name, _, option = name.partition(" ")
    entry = methods.CATALOGUE[name]
    options = {key: value for key, value in TIGHT.items() if key in entry.defaults}
    options |= {option: True} if option else {}
    method = methods.build(name, **options)
    labels = LABELS if entry.supervised else None
    features = FEATURES if entry.features else None
    return lambda z: method(z[0], z[1], labels, features)


def gradient(loss, z):
    z = z.clone().requires_grad_()
    return torch.autograd.grad(loss(z), z)[0]


@pytest.mark.parametrize("name", [*methods.CATALOGUE, "unremix printed"])
def test_transforms_of_torch_func_agree_with_autograd(name):
    loss = loss_of(name)
    batches = torch.stack([torch.stack(drawn.views(seed, 6, 3)) for seed in range(3)])
    expected = torch.stack([gradient(loss, z) for z in batches])
    one = batches[0]
    for transform in (func.grad, func.jacrev, func.jacfwd):
        torch.testing.assert_close(transform(loss)(one), expected[0], **CLOSE)
    losses = torch.stack([loss(z) for z in batches])
    torch.testing.assert_close(func.vmap(loss)(batches), losses, **CLOSE)
    torch.testing.assert_close(func.vmap(func.grad(loss))(batches), expected, **CLOSE)
    assert expected[0].abs().max() > 1e-3


@pytest.mark.parametrize("name", ["simclr", "dcl", "hcl", "debiased", "scl", "siglip"])
def test_the_hessian_agrees_with_second_derivatives_of_autograd(name):
    loss, z = loss_of(name), torch.stack(drawn.views(1, 6, 2))
    expected = torch.autograd.functional.hessian(loss, z)
    torch.testing.assert_close(func.hessian(loss)(z), expected, **CLOSE)
    torch.testing.assert_close(func.jacrev(func.jacrev(loss))(z), expected, **CLOSE)


def test_functional_call_takes_the_parameters_of_a_method_and_counts_nothing():
    method = methods.build("unremix", learn="maximise").double()
    z1, z2 = drawn.views(2, 6, 4)
    parameters = dict(method.named_parameters())

    def loss(parameters):
        return func.functional_call(method, parameters, (z1, z2), {"features": FEATURES})

    (expected,) = torch.autograd.grad(method(z1, z2, features=FEATURES), method.logits)
    torch.testing.assert_close(func.grad(loss)(parameters)["logits"], expected, **CLOSE)
    shifted = {"logits": parameters["logits"] + torch.tensor([1.0, 0.0, -1.0])}
    assert not torch.isclose(loss(shifted), loss(parameters))


def test_forward_mode_reaches_a_temperature_of_each_anchor():
    contrast = Contrast.from_views(*drawn.views(3, 6, 4))
    t, step = torch.full((12,), 0.5).double(), torch.linspace(-1, 1, 12).double()
    objective = methods.build("hcl").objective
    log_w = contrast.uniform_log_weights

    def loss(t):
        return objective(contrast, log_w, temperature=t)

    expected = gradient(loss, t) @ step
    _, along = func.jvp(loss, (t,), (step,))
    torch.testing.assert_close(along, expected, **CLOSE)
    with forward_ad.dual_level():
        dual = loss(forward_ad.make_dual(t, step))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected, **CLOSE)


def test_what_cannot_be_read_under_vmap_is_not_refused_and_everything_else_is():
    loss, z = loss_of("simclr"), torch.stack(drawn.views(0, 6, 3))
    bad = z.clone()
    bad[0, 2] = 0
    for call in (loss, func.grad(loss)):
        with pytest.raises(ValueError, match="row 2 of view 1 has norm 0"):
            call(bad)
    values = func.vmap(loss)(torch.stack([z, bad]))
    assert values[0].isfinite() and values[1].isnan()


def test_a_contrast_keeps_nothing_of_a_transform_that_saw_it():
    z = drawn.views(4, 6, 3)
    method, contrast = methods.build("h-scl"), Contrast.from_views(*z, labels=LABELS)
    expected = method.loss(Contrast.from_views(*z, labels=LABELS))
    func.grad(lambda x: method.loss(contrast) * x)(torch.ones(()))
    assert not is_functorch_wrapped_tensor(contrast.uniform_log_weights)
    torch.testing.assert_close(method.loss(contrast), expected, **CLOSE)


@pytest.mark.slow
@TRACED
@pytest.mark.parametrize("name", ["simclr", "dcl", "hcl", "scl"])
def test_a_method_compiles_into_one_graph_with_its_values_and_gradients(name):
    loss, z = loss_of(name), torch.stack(drawn.views(0, 6, 3))
    torch._dynamo.reset()  # `fullgraph` raises at a break
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z), loss(z), **CLOSE)
    torch.testing.assert_close(gradient(compiled, z), gradient(loss, z), **CLOSE)


@pytest.mark.slow
@TRACED
def test_a_compiled_method_counts_the_anchors_that_it_skips():
    method = methods.build("h-scl-threshold", tau=5.0)
    z1, z2 = drawn.views(0, 6, 3)
    method(z1, z2, LABELS)
    once = int(method.skipped)
    torch._dynamo.reset()
    torch.compile(method, fullgraph=True, backend="eager")(z1, z2, LABELS)
    assert int(method.skipped) == 2 * once > 0
