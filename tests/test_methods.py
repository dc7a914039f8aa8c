"""The catalogue: every entry is the loss its paper writes, every option reaches what it names,
mistakes are told."""

import copy
import dataclasses
import functools
import inspect
import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import methods, negatives, objectives
from hnlib.book import figures
from hnlib.contrast import Contrast
from hnlib.transport import ConvergenceWarning

LABELS = torch.tensor([0, 1, 2, 1, 0, 2])


def batch(seed, size=6, dimension=4, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(size, dimension, generator=g, dtype=dtype) for _ in range(2)]


def hidden(method, z1, z2):
    """What stands for the inputs of the last layer, for the methods that ask for them."""
    return {"features": (z1.detach() + 0.5, z2.detach() - 0.5)} if method.entry.features else {}


def call(method, z1, z2, y=None):
    return method(z1, z2, y, **hidden(method, z1, z2))


def contrast_for(method, z1, z2):
    return Contrast.from_views(
        z1, z2, LABELS if method.entry.supervised else None, **hidden(method, z1, z2)
    )


def tight(options, entry):
    """Transport to the accuracy of a test instead of that of training."""
    return {
        **options,
        **({"tol": 1e-12, "max_iterations": 20_000} if "tol" in entry.defaults else {}),
    }


@pytest.mark.parametrize("name", methods.CATALOGUE)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 9999))
def test_defaults_are_the_reference(name, seed):
    z1, z2 = batch(seed)
    method = methods.build(name, **tight({}, methods.CATALOGUE[name]))
    loss = call(method, z1, z2, LABELS)
    assert loss.shape == () and loss.dtype == torch.float64
    expected = float(reference.METHODS[name](z1, z2, LABELS.tolist(), **hidden(method, z1, z2)))
    assert float(loss) == pytest.approx(expected, rel=1e-8, abs=1e-10)


CHANGED = {
    "temperature": 0.2,
    "tau_plus": 0.3,
    "beta": 2.5,
    "epsilon": 0.9,
    "relaxation": 0.2,
    "mu": 0.1,
    "sigma": 0.4,
    "tau": 0.6,
    "positives": "view",
    "average": "pairs",
    "eta": 0.07,
    "floor": 0.6,
    "mixture": (0.2, 0.7, 0.1),
    "hardness_strength": 5.0,
    "exponent": 1.7,
    "level": 0.1,
    "gradient": "nt-xent",
    "hardest": 3,
    "pairs": 7,
    "with_anchor": 0,
}
EXAMPLES = [(n, o) for n, e in methods.CATALOGUE.items() for o in e.options if o in CHANGED]


@pytest.mark.parametrize(("name", "option"), EXAMPLES)
def test_an_option_reaches_what_it_names(name, option):
    """One temperature serves both halves: weights built with another t would miss the reference."""
    z1, z2 = batch(1)
    labels = torch.tensor(
        [0, 1, 2, 1, 0, 1]
    )  # classes of unequal size: averages over pairs and anchors differ
    entry, options = methods.CATALOGUE[name], {option: CHANGED[option]}
    method, default = (methods.build(name, **tight(o, entry)) for o in (options, {}))
    loss, more = float(call(method, z1, z2, labels)), hidden(method, z1, z2)
    assert loss == pytest.approx(
        float(reference.METHODS[name](z1, z2, labels.tolist(), **options, **more)), rel=1e-8
    )
    assert abs(loss - float(call(default, z1, z2, labels))) > 1e-6


def test_the_catalogue_is_the_one_that_the_references_promise():
    assert list(methods.CATALOGUE) == list(reference.METHODS)
    for name, entry in methods.CATALOGUE.items():
        halves = (entry.objective, entry.negatives, entry.made_up)
        known = {p for f in halves if f for p in inspect.signature(f).parameters}
        known |= (
            {"positives"}
            if entry.supervised
            else {"learn"}
            if "mixture" in entry.defaults
            else set()
        )
        assert set(entry.options) <= known, f"{name} has an option that goes nowhere"
        assert name in figures.COLOURS
        assert entry.supervised == ("positives" in entry.defaults)
        radius = "eta" in entry.defaults or name == "bcl-ot"  # which takes its place
        assert ("temperature" in entry.defaults) != radius
        assert entry.title and entry.paper


@pytest.mark.parametrize("name", methods.CATALOGUE)
def test_gradients_flow_through_the_weights_where_the_catalogue_says(name):
    entry = methods.CATALOGUE[name]
    z1, z2 = (z.requires_grad_() for z in batch(2))
    method = methods.build(name)
    contrast = method.extended(contrast_for(method, z1, z2))
    log_w = method.log_weights(contrast)
    assert log_w.requires_grad == entry.defaults.get("weights_gradient", False)
    assert log_w.requires_grad == (name in ("hcl", "hcl-exact", "bcl", "h-scl"))
    assert torch.equal(call(method, z1, z2, LABELS), method.objective(contrast, log_w))
    gradient = torch.autograd.grad(call(method, z1, z2, LABELS), z1)[0]
    assert gradient.isfinite().all() and gradient.abs().max() > 0
    if "weights_gradient" in entry.defaults:
        flipped = methods.build(name, weights_gradient=not entry.defaults["weights_gradient"])
        loss = call(flipped, z1, z2, LABELS)
        other = torch.autograd.grad(loss, z1)[0]
        assert (
            torch.equal(loss, call(method, z1, z2, LABELS))
            and (gradient - other).abs().max() > 1e-5
        )


@pytest.mark.parametrize("name", [k for k, e in methods.CATALOGUE.items() if not e.supervised])
def test_methods_without_labels_ignore_them(name):
    z1, z2 = batch(3)
    method = methods.build(name)
    assert torch.equal(call(method, z1, z2), call(method, z1, z2, LABELS))


@pytest.mark.parametrize("name", [k for k, e in methods.CATALOGUE.items() if e.supervised])
def test_supervised_methods_need_labels(name):
    z1, z2 = batch(4)
    with pytest.raises(
        ValueError, match=rf"{name} learns from labels; call it as method\(z1, z2, labels\)"
    ):
        methods.build(name)(z1, z2)
    with pytest.raises(ValueError, match=r"labels have shape \(3,\); 6 images"):
        methods.build(name)(z1, z2, LABELS[:3])


@pytest.mark.parametrize("name", methods.CATALOGUE)
def test_autocast_does_not_reach_the_loss(name):
    z1, z2 = batch(5, size=12, dimension=8, dtype=torch.float32)
    y = LABELS.repeat(2)
    method = methods.build(name)
    outside = call(method, z1, z2, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = call(method, z1, z2, y)
        half = call(method, z1.bfloat16(), z2.bfloat16(), y)
    assert inside.dtype == torch.float32 and torch.equal(inside, outside)
    assert half.dtype == torch.float32 and abs(float(half - outside)) < 0.05


@pytest.mark.parametrize("name", methods.CATALOGUE)
def test_a_temperature_of_a_hundredth_in_float32(name):
    """Where a radius takes the temperature's place: one that leaves the hardest negative alone."""
    z1, z2 = batch(6, size=12, dimension=8)
    y = LABELS.repeat(2)
    known = methods.CATALOGUE[name].defaults
    cold = {"temperature": 0.01} if "temperature" in known else {"eta": 30.0}
    method = methods.build(name, **(cold if name != "bcl-ot" else {"epsilon": 0.05}))
    exact, single = call(method, z1, z2, y), call(method, z1.float(), z2.float(), y)
    assert single.isfinite() and abs(float(single / exact) - 1) < 1e-3
    x = z1.float().requires_grad_()
    assert torch.autograd.grad(call(method, x, z2.float(), y), x)[0].isfinite().all()


@pytest.mark.parametrize("name", [k for k, e in methods.CATALOGUE.items() if not e.supervised])
def test_the_smallest_batch_has_one_pair_of_negatives(name):
    z1, z2 = batch(7, size=2)
    assert call(methods.build(name), z1, z2).isfinite()
    with pytest.raises(ValueError, match=r"a batch of 1 .*use a batch of at least 2"):
        call(methods.build(name), z1[:1], z2[:1])


def test_alpha_cl_is_bcl_with_weights_held_fixed():
    z1, z2 = batch(8)
    assert torch.equal(methods.build("alpha-cl")(z1, z2), methods.build("bcl")(z1, z2))


def test_methods_meet_where_their_options_say():
    z1, z2 = batch(9)

    def loss(name, **options):
        return float(methods.build(name, **options)(z1, z2, LABELS))

    def same(a, b):
        return abs(a - b) < 1e-9

    assert same(loss("hcl", beta=0.0), loss("debiased"))
    assert same(loss("debiased", tau_plus=0.0), loss("simclr"))
    assert same(loss("ot-semirelaxed", relaxation=0.0), loss("hcl"))
    assert same(loss("ot-semirelaxed", relaxation=math.inf, tol=1e-12), loss("ot", tol=1e-12))
    assert same(loss("h-scl", beta=0.0), loss("scl"))
    assert same(loss("h-scl-threshold", tau=1e-9), loss("scl"))
    assert same(loss("h-scl-threshold", level=-0.1, tau=9.0), loss("h-scl-threshold"))
    assert abs(loss("bcl-ot", epsilon=1e4) - loss("bcl", beta=0.0)) < 1e-4  # uniform in the limit
    assert same(loss("hcl-exact", tau_plus=0.0, beta=2.0), loss("hcl", tau_plus=0.0, beta=2.0))
    assert same(loss("unremix-repaired", mixture=(0.0, 1.0, 0.0)), loss("hcl", tau_plus=0.0))
    assert same(loss("chi2-dro", eta=1e3), loss("bcl", beta=1e6))  # the hardest negative alone
    assert same(loss("kl-budget", eta=1e3, floor=0.3) / 0.3, loss("simclr", temperature=0.3))


def test_mean_plus_deviation_is_the_chi2_method_while_it_cuts_no_weight():
    z1, z2 = batch(17)
    c = Contrast.from_views(z1, z2)
    for eta, equal in ((0.01, True), (1.0, False)):
        total = 0.0
        for i in range(12):
            s = c.similarity[i][c.admissible[i]]
            total += (
                float(
                    s.mean()
                    + (2 * eta * s.var(correction=0)).sqrt()
                    - c.similarity[i, (i + 6) % 12]
                )
                / 12
            )
        assert (abs(total - float(methods.build("chi2-dro", eta=eta)(z1, z2))) < 1e-9) == equal


def test_learning_curves_see_what_the_method_shows():
    z1, z2 = batch(18)
    near = z1 + 0.05 * z2  # positives closer than nearly all negatives: the guard acts
    for beta in (0.5, 2.0):
        method = methods.build("hcl-exact", beta=beta, tau_plus=0.3)
        acts = []
        for views in ((z1, z2), (z1, near)):
            c = Contrast.from_views(*views)
            parts = reference.exact_debiased(
                c.similarity.numpy(), c.positives.numpy(), c.admissible.numpy(), 0.5, beta, 0.3
            )[1]
            acts.append(sum(low > x or least > y for _, x, low, y, least in parts) / 12)
            assert method.observe(c) == {"guarded": pytest.approx(acts[-1], abs=1e-6)}
        assert acts[1] > 0.5 > acts[0]
    c = Contrast.from_views(z1, z2)
    method = methods.build("kl-budget", eta=0.1)
    seen = method.observe(c)
    t = [
        reference.kl_temperature(c.similarity[i].numpy(), c.admissible[i].numpy() / 10, 0.1)
        for i in range(12)
    ]
    for key, share in (("temperature_low", 0.1), ("temperature", 0.5), ("temperature_high", 0.9)):
        assert seen.pop(key) == pytest.approx(np.quantile(t, share), rel=1e-8)
    assert not seen
    for name in ("simclr", "scl", "unremix-repaired", "ot"):
        assert methods.build(name).observe(c) == {}


MIXED = [name for name, entry in methods.CATALOGUE.items() if "mixture" in entry.defaults]


@pytest.mark.parametrize("name", MIXED)
def test_a_learned_mixture_descends_or_climbs_the_loss(name):
    z1, z2 = batch(19)
    start = dict(mixture=(0.2, 0.5, 0.3))
    fixed, down, up = (methods.build(name, learn=how, **start) for how in methods.LEARN)
    assert not list(fixed.parameters()) and "logits" in down.state_dict()
    assert [call(m, z1, z2).item() for m in (down, up)] == pytest.approx(
        [call(fixed, z1, z2).item()] * 2
    )
    gradients = [torch.autograd.grad(call(m, z1, z2), m.logits)[0] for m in (down, up)]
    assert torch.allclose(gradients[0], -gradients[1]) and gradients[0].abs().max() > 1e-6
    h, step = 1e-3, torch.tensor([1.0, -1.0, 0.5])  # an independent slope, through softmax by hand
    losses = []
    for sign in (1, -1):
        mixture = torch.softmax(torch.tensor(start["mixture"]).log() + sign * h * step, 0)
        losses.append(call(methods.build(name, mixture=tuple(mixture.tolist())), z1, z2).item())
    assert float(gradients[0] @ step) == pytest.approx((losses[0] - losses[1]) / (2 * h), rel=1e-2)
    before = call(fixed, z1, z2).item()
    for method, better in ((down, False), (up, True)):
        optimiser = torch.optim.SGD(method.parameters(), lr=1.0)
        call(method, z1, z2).backward()
        optimiser.step()
        assert (call(method, z1, z2).item() > before) == better
        assert method.mixture.sum().item() == pytest.approx(1) and (method.mixture > 0).all()
        seen = method.observe(contrast_for(method, z1, z2))
        assert seen == dict(zip("usr", method.mixture.tolist()))
    assert call(down, z1.requires_grad_(), z2).requires_grad


@pytest.mark.parametrize("name", MIXED)
def test_a_copy_of_a_learned_mixture_is_its_own(name):
    z1, z2 = batch(20)
    method = methods.build(name, learn="maximise")
    twin = copy.deepcopy(method)
    before = call(method, z1, z2)
    with torch.no_grad():
        twin.logits += torch.tensor([-2.0, 1.0, 2.0])
    assert torch.equal(call(method, z1, z2), before) and (call(twin, z1, z2) - before).abs() > 1e-4


def test_a_mixture_at_a_vertex_can_be_left():
    """A share of zero has no logarithm: it starts just above."""
    method = methods.build("unremix-repaired", mixture=(0.0, 1.0, 0.0), learn="minimise")
    assert method.logits.isfinite().all()
    assert method.mixture.tolist() == pytest.approx([0, 1, 0], abs=1e-5)


def test_a_learned_mixture_holds_shares():
    """A softmax would turn (1, 1, 1), three times as hard, into thirds unasked."""
    for name in MIXED:
        assert methods.build(name, mixture=(1, 1, 1)).options["mixture"] == (1, 1, 1)
        with pytest.raises(
            ValueError, match=r"mixture=\(1, 1, 1\) is learned as shares; make them sum to one"
        ):
            methods.build(name, mixture=(1, 1, 1), learn="minimise")
        learned = methods.build(name, mixture=tuple(np.array([0.2, 0.3, 0.5])), learn="maximise")
        assert learned.logits.dtype == torch.float32


def test_features_are_asked_for_and_checked():
    z1, z2 = batch(21)
    method = methods.build("unremix")
    with pytest.raises(
        ValueError,
        match=r"unremix needs the inputs of the last layer; call it as method\(z1, z2, fea",
    ):
        method(z1, z2)
    with pytest.raises(
        ValueError, match=r"features must be one \[6, k\] for each view; got \(6, 4\) and \(5, 4\)"
    ):
        method(z1, z2, features=(z1, z2[:5]))
    other = methods.build("simclr")
    assert torch.equal(
        other(z1, z2), other(z1, z2, features=(z1, z2[:5]))
    )  # who does not ask does not look


def test_skipped_anchors_are_counted():
    z1, z2 = batch(10)
    method = methods.build("h-scl-threshold", tau=math.exp(1.0))  # s >= 1/2
    assert int(method.skipped) == 0  # building a method counts nothing
    c = Contrast.from_views(z1, z2, LABELS)
    empty = int((~(c.admissible & (c.similarity >= 0.5)).any(1)).sum())
    assert 0 < empty < 12
    method(z1, z2, LABELS)
    method(z1, z2, LABELS)
    assert int(method.skipped) == 2 * empty
    assert "skipped" not in method.state_dict()
    with pytest.raises(
        ValueError, match=r"anchor \d+ has no negative with exp\(s/t\) >= tau=2\.71828; lower tau"
    ):
        methods.build("h-scl-threshold", tau=math.exp(1.0), on_empty="raise")(z1, z2, LABELS)
    for name in ("scl", "h-scl"):
        with pytest.raises(ValueError, match=r"anchor 0 has no admissible negative"):
            methods.build(name)(z1, z2, torch.zeros(6, dtype=torch.long))
        lenient = methods.build(name, on_empty="skip")
        assert (
            float(lenient(z1, z2, torch.zeros(6, dtype=torch.long))) == 0
            and int(lenient.skipped) == 12
        )


def test_a_threshold_that_suits_the_data_is_not_refused_beforehand():
    """Building tries the method on points at right angles, which such a threshold empties; these
    data it does not."""
    z1, z2 = batch(16)
    twins = torch.cat([z1[:3], z1[:3]]) + 1e-3 * z2  # every image has a near twin of another class
    labels = torch.tensor([0, 1, 2, 3, 4, 5])
    method = methods.build("h-scl-threshold", tau=math.exp(1.0), on_empty="raise")
    assert method(twins, twins, labels).isfinite()


def test_missed_tolerances_are_counted():
    z1, z2 = batch(11)
    method = methods.build("ot", epsilon=0.05, max_iterations=1)
    assert method.unconverged == 0
    with pytest.warns(ConvergenceWarning, match="marginal error"):
        assert method(z1, z2).isfinite()
    assert method.unconverged == 1
    assert methods.build("hcl").unconverged == 0


def test_an_option_of_each_anchor():
    """DESIGN 3: temperature and prior may be vectors, also through the catalogue."""
    z1, z2 = batch(12)
    n = 12
    t, prior = (
        torch.full((n,), 0.4, dtype=torch.float64),
        torch.full((n,), 0.2, dtype=torch.float64),
    )
    expected = methods.build("hcl", temperature=0.4, tau_plus=0.2)(z1, z2)
    assert torch.allclose(methods.build("hcl", temperature=t, tau_plus=prior)(z1, z2), expected)


def test_a_cost_made_for_one_batch_size():
    z1, z2 = batch(13)
    penalty = torch.rand(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    method = methods.build("ot", cost=lambda c: 1 - c.similarity + penalty)
    assert method(z1, z2).isfinite()


def test_methods_are_modules_one_can_copy_and_print():
    z1, z2 = batch(14)
    method = methods.build("hcl", beta=2.0)
    assert isinstance(method, torch.nn.Module) and not list(method.parameters())
    assert torch.equal(copy.deepcopy(method)(z1, z2), method(z1, z2))
    assert "hcl" in repr(method) and "beta=2.0" in repr(method)
    assert (
        methods.CATALOGUE["hcl"].defaults["beta"] == 1.0
    )  # the catalogue is not changed by building


def test_the_readme_loop():
    """A method is a loss: it drops into any loop, and the loop learns."""
    torch.manual_seed(0)
    x = torch.randn(16, 10)
    encoder = torch.nn.Linear(10, 4)
    method = methods.build("hcl")
    losses = []
    for _ in range(20):
        loss = method(encoder(x + 0.01), encoder(x - 0.01))
        gradients = torch.autograd.grad(loss, list(encoder.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(encoder.parameters(), gradients):
                parameter -= 0.5 * gradient
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


def test_a_validation_in_inference_mode_does_not_break_training():
    z1, z2 = batch(15, size=19)
    method = methods.build("hcl")
    with torch.inference_mode():
        method(z1, z2)
    method(z1.requires_grad_(), z2).backward()
    assert z1.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "simclrr",
            {},
            "method 'simclrr' is unknown; the catalogue has simclr, debiased, hcl, .*h-scl-threshold",
        ),
        (
            "hcl",
            {"betta": 2.0},
            "hcl has no option 'betta'; it has temperature, beta, tau_plus, weights_gradient",
        ),
        ("simclr", {"beta": 2.0}, "simclr has no option 'beta'; it has temperature"),
        ("ot", {"weights_gradient": True}, "ot has no option 'weights_gradient'"),
        ("hcl", {"temperature": 0.0}, "temperature=0 must be positive"),
        ("simclr", {"temperature": -1.0}, "temperature=-1 must be positive"),
        ("mw", {"temperature": 0.0}, "temperature=0 must be positive"),
        ("bcl", {"temperature": 0.0}, "temperature=0 must be positive"),
        ("hcl", {"tau_plus": 1.0}, r"tau_plus=1 must lie in \[0, 1\)"),
        ("debiased", {"tau_plus": -0.2}, r"tau_plus=-0\.2 must lie in \[0, 1\)"),
        ("ot", {"epsilon": 0.0}, "epsilon=0 must be positive"),
        ("ot-semirelaxed", {"relaxation": -1.0}, "relaxation=-1 must be at least 0"),
        ("ot", {"on_failure": "ignore"}, "on_failure=.ignore. is unknown"),
        ("adnce", {"sigma": -1.0}, "sigma=-1 must be positive"),
        ("h-scl-threshold", {"tau": 0.0}, "tau=0 must be positive"),
        ("scl", {"positives": "all"}, 'positives=.all. is unknown; use "class" or "view"'),
        ("scl", {"average": "rows"}, "average=.rows. is unknown"),
        ("h-scl", {"on_empty": "drop"}, "on_empty=.drop. is unknown"),
        ("hcl", {"beta": math.nan}, "beta=nan"),
        ("adnce", {"mu": math.nan}, "mu=nan"),
        ("hcl", {"weights_gradient": "False"}, "weights_gradient='False' must be True or False"),
        ("hcl", {"temperature": "abc"}, "temperature='abc' must be positive .*pass a number"),
        ("hcl", {"temperature": True}, "temperature=True must be positive .*pass a number"),
        ("ot", {"cost": "squared"}, "cost='squared' must be a function"),
        ("ot", {"max_iterations": 10.5}, "max_iterations=10.5 must be a whole number"),
        ("ot", {"max_iterations": -1}, "max_iterations=-1 must be at least 0"),
        ("scl", {"average": 1}, "average=1 is unknown; use"),
        ("hcl-exact", {"beta": -0.5}, r"beta=-0\.5 must be at least 0"),
        ("hcl-exact", {"beta": math.inf}, "beta=inf"),
        ("hcl-exact", {"tau_plus": 1.0}, r"tau_plus=1 must lie in \[0, 1\)"),
        ("hcl-exact", {"tau_plus": -0.1}, r"tau_plus=-0\.1 must lie in \[0, 1\)"),
        ("hcl-exact", {"temperature": 0.0}, "temperature=0 must be positive"),
        ("centred-hcl", {"epsilon": 0.0}, "epsilon=0 must be positive"),
        ("chi2-dro", {"eta": 0.0}, "eta=0 must be positive"),
        ("chi2-dro", {"temperature": 0.5}, "chi2-dro has no option 'temperature'; it has eta"),
        ("kl-budget", {"eta": -1.0}, "eta=-1 must be positive"),
        ("kl-budget", {"floor": 0.0}, "floor=0 must be positive"),
        (
            "kl-budget",
            {"order": 4},
            "order=4 is unknown; use 0 for the exact temperature, or 1, 2, 3 terms",
        ),
        ("kl-budget", {"order": 1.5}, "order=1.5 is unknown; use 0"),
        ("unremix", {"learn": "x"}, "learn=.x. is unknown; use .fixed., .minimise. or .maximise."),
        ("unremix", {"mixture": (0.5, 0.5)}, r"mixture has shape \(2,\); give three numbers"),
        ("unremix", {"mixture": "usr"}, "mixture has shape .*give three numbers"),
        (
            "unremix",
            {"mixture": (1.0, -1.0, 1.0)},
            "mixture=.*must be three finite numbers >= 0, not all zero",
        ),
        ("unremix-repaired", {"mixture": (0.0, 0.0, 0.0)}, "mixture=.*not all zero"),
        ("unremix-repaired", {"learn": True}, "learn=True is unknown; use"),
    ],
)
def test_mistakes_are_told_when_the_method_is_built(name, options, message):
    with pytest.raises(ValueError, match=message):
        methods.build(name, **options)


def test_the_halves_are_the_library_s_own():
    for name, entry in methods.CATALOGUE.items():
        assert getattr(objectives, entry.objective.__name__) is entry.objective, name
        assert getattr(negatives, entry.negatives.__name__) is entry.negatives


def test_options_change_while_counts_and_learned_parameters_stay():
    z1, z2 = batch(1)
    method = methods.build("hcl", beta=1.0)
    method.change(beta=2.0, tau_plus=0.0)
    assert method.options == methods.build("hcl", beta=2.0, tau_plus=0.0).options
    assert torch.equal(method(z1, z2), methods.build("hcl", beta=2.0, tau_plus=0.0)(z1, z2))
    with pytest.raises(ValueError, match="tau_plus=2"):
        method.change(tau_plus=2.0)
    assert method.options["tau_plus"] == 0.0  # a refused change changes nothing
    ot = methods.build("ot", epsilon=0.01, max_iterations=1)
    with pytest.warns(UserWarning):
        ot(z1, z2)
    ot.change(epsilon=0.02)
    assert ot.unconverged == 1
    learned = methods.build("unremix-repaired", learn="minimise")
    logits = learned.logits
    learned.change(temperature=0.4)
    assert learned.logits is logits and torch.equal(learned.log_weights.mixture, logits.softmax(0))
    with pytest.raises(ValueError, match="learns its mixture"):
        learned.change(mixture=(0.2, 0.3, 0.5))


def test_a_record_s_name_holds_what_was_there_first_and_what_is_not_at_its_default():
    entry = methods.CATALOGUE["unremix-repaired"]
    older = {**entry.defaults, "mixture": [1 / 3, 1 / 3, 1 / 3]}
    grown = dataclasses.replace(entry, later={"floor": 0.0})
    assert entry.later == {} and entry.recorded(older) == older
    assert grown.options == entry.defaults | {"floor": 0.0}
    assert grown.recorded(older | {"floor": 0.0}) == older
    assert grown.recorded(older | {"floor": 0.1}) == older | {"floor": 0.1}
    assert entry.changed(older) == entry.changed(entry.defaults) == {}
    several = {"floor": 0.1, "mixture": (0.2, 0.3, 0.5), "beta": 2.0, "temperature": 0.5}
    found = grown.changed(several)
    assert found == {"beta": 2.0, "mixture": [0.2, 0.3, 0.5], "floor": 0.1}
    assert list(found) == ["beta", "mixture", "floor"]  # the entry's order


def test_an_option_that_came_later_is_an_option():
    entry = methods.CATALOGUE["simclr"]
    later = dataclasses.replace(entry, defaults={}, later=entry.defaults)
    method = later.build("mine", {"temperature": 0.2})
    z1, z2 = batch(3)
    assert torch.equal(method(z1, z2), methods.build("simclr", temperature=0.2)(z1, z2))
    assert later.build("mine", {}).options == {"temperature": 0.5}
    with pytest.raises(ValueError, match="mine has no option 'beta'; it has temperature"):
        later.build("mine", {"beta": 1.0})


def test_a_method_of_one_s_own_is_an_entry():
    """As CONTRIBUTING says: no more than a weighting and a row."""
    law = functools.partial(negatives.gaussian, sigma=0.4)
    entry = methods.Entry("Mine", "ours", objectives.basic, law, False, {"mu": 0.2})
    z1, z2 = batch(4)
    contrast = Contrast.from_views(z1, z2)
    expected = objectives.basic(contrast, negatives.gaussian(0.3, 0.4)(contrast))
    assert torch.equal(entry.build("mine", {"mu": 0.3})(z1, z2), expected)
    with pytest.raises(ValueError, match="mu=nan"):
        entry.build("mine", {"mu": math.nan})


def test_a_copy_has_the_options_and_parameters_but_counts_from_zero():
    z1, z2 = batch(5)
    method = methods.build("unremix", learn="minimise", temperature=0.3)
    with torch.no_grad():
        method.logits += torch.tensor([0.1, 0.2, -0.1])
    method.unconverged.fill_(3)
    method.skipped.fill_(4)
    own = method.copy()
    assert own.options == method.options and torch.equal(own.logits, method.logits)
    assert (int(own.unconverged), int(own.skipped)) == (0, 0)
    own.change(temperature=0.2)
    assert (int(method.unconverged), int(method.skipped), method.options["temperature"]) == (
        3,
        4,
        0.3,
    )
    assert torch.equal(call(method, z1, z2), call(method.copy(), z1, z2))


def test_a_queue_is_scored_like_any_contrast():
    z1, z2 = batch(2)
    contrast = contrast_for(methods.build("hcl"), z1, z2)
    assert torch.equal(methods.build("hcl").loss(contrast), methods.build("hcl")(z1, z2))
