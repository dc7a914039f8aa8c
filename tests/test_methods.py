"""The catalogue: every entry is its reference, every option has its effect, errors name mistakes."""

import functools
import math

import drawn
import pytest
import reference
import torch
from torch.utils.checkpoint import checkpoint

from hnlib import methods, negatives, objectives
from hnlib.contrast import Contrast
from hnlib.graphs import methods as of_graphs
from hnlib.streaming import streamed
from hnlib.transport import ConvergenceWarning

LABELS = torch.tensor([0, 1, 2, 1, 0, 2])
NAMES = list(methods.CATALOGUE)
batch = functools.partial(drawn.views, size=6, dimension=4)


def hidden(method, z1, z2):
    """What stands for the inputs of the last layer, for the methods that ask for them."""
    return {"features": (z1.detach() + 0.5, z2.detach() - 0.5)} if method.entry.features else {}


def call(method, z1, z2, y=None):
    return method(z1, z2, y, **hidden(method, z1, z2))


#: Other values of the options that are no positive numbers.
CHANGED = {"positives": "view", "average": "pairs", "gradient": "nt-xent", "level": 0.1}
CHANGED |= {"mixture": (0.2, 0.7, 0.1), "hardness_strength": 5.0, "loudness": 3.0, "bias": -1.0}
CHANGED |= {"hardest": 3, "pairs": 7, "with_anchor": 0, "printed": True}


@pytest.mark.parametrize("name", NAMES)
def test_defaults_and_every_option_are_those_of_the_reference(name):
    """One temperature serves both halves: weights built with another would miss the reference."""
    defaults = methods.CATALOGUE[name].defaults
    tight = {"tol": 1e-12, "max_iterations": 20_000} if "tol" in defaults else {}
    labels = torch.tensor([0, 1, 2, 1, 0, 1])  # unequal classes: the two averages differ
    positive = {k: 0.7 * x for k, x in defaults.items() if isinstance(x, float) and k not in tight}
    changed = {k: x for k, x in (positive | CHANGED).items() if k in defaults}
    for seed in range(3):
        z1, z2 = batch(seed)
        more, default = hidden(methods.build(name), z1, z2), None
        for options in [{}, *({k: x} for k, x in changed.items() if seed == 0)]:
            value = call(methods.build(name, **options, **tight), z1, z2, labels)
            assert value.shape == () and value.dtype == torch.float64
            expected = float(reference.METHODS[name](z1, z2, labels.tolist(), **options, **more))
            assert float(value) == pytest.approx(expected, rel=1e-8, abs=1e-10), options
            assert default is None or abs(value - default) > 1e-6, options
            default = value if default is None else default


@pytest.mark.parametrize("printed", [False, True])
def test_a_learned_mixture_descends_or_climbs_the_loss(printed):
    z1, z2 = batch(19)
    start, build = (0.2, 0.5, 0.3), functools.partial(methods.build, "unremix", printed=printed)
    down, up = (build(learn=how, mixture=start) for how in ("minimise", "maximise"))
    gradients = [torch.autograd.grad(call(m, z1, z2), m.logits)[0] for m in (down, up)]
    assert torch.allclose(gradients[0], -gradients[1])
    step, logits = 1e-3 * torch.tensor([1.0, -1.0, 0.5]), torch.tensor(start).log()
    above, below = (
        float(call(build(mixture=(logits + x).softmax(0).tolist()), z1, z2)) for x in (step, -step)
    )  # an independent slope
    assert float(gradients[0] @ step) == pytest.approx((above - below) / 2, rel=1e-2)
    assert abs(above - below) > 1e-5
    seen = down.observe(Contrast.from_views(z1, z2, **hidden(down, z1, z2)))
    assert seen == pytest.approx(dict(zip("usr", start)))
    # a softmax would turn (1, 1, 1), three times as hard, into thirds
    with pytest.raises(ValueError, match=r"a learned mixture must sum to 1, got \(1, 1, 1\)"):
        build(mixture=(1, 1, 1), learn="minimise")


def test_options_change_while_learned_parameters_stay():
    z1, z2 = batch(1)
    method, other = methods.build("hcl", beta=1.0), methods.build("hcl", beta=2.0, tau_plus=0.0)
    method.change(beta=2.0, tau_plus=0.0)
    assert method.options == other.options and torch.equal(method(z1, z2), other(z1, z2))
    with pytest.raises(ValueError, match="tau_plus must lie"):
        method.change(tau_plus=2.0)
    assert method.options["tau_plus"] == 0.0  # a refused change changes nothing
    learned = methods.build("unremix", learn="minimise")
    logits = learned.logits
    learned.change(temperature=0.4)
    assert learned.logits is logits and torch.equal(learned.log_weights.mixture, logits.softmax(0))
    with pytest.raises(ValueError, match="learns its mixture"):
        learned.change(mixture=(0.2, 0.3, 0.5))
    with pytest.raises(ValueError, match="printed cannot change during training"):
        learned.change(printed=True)


def test_the_method_as_printed_takes_no_further_weights_and_learns_its_mixture():
    """Its objective has the scores, so its own weights are uniform."""
    printed = methods.build("unremix", printed=True, learn="minimise")
    assert printed.objective.func is objectives.signed and printed.entry.features
    contrast = Contrast.from_views(*batch(3), **hidden(printed, *batch(3)))
    assert torch.equal(printed.log_weights(contrast), negatives.uniform()(contrast))
    with pytest.raises(ValueError, match="takes no further weights"):
        printed.loss(contrast, log_prior=torch.zeros(1))


@pytest.mark.parametrize(
    "name", [x for x in NAMES if "weights_gradient" in methods.CATALOGUE[x].defaults]
)
def test_gradients_flow_through_the_weights_where_the_option_says(name):
    z1, z2 = (z.requires_grad_() for z in batch(2))
    through, held = (
        call(methods.build(name, weights_gradient=x), z1, z2, LABELS) for x in (True, False)
    )
    assert torch.equal(through, held)
    gradients = [torch.autograd.grad(value, z1)[0] for value in (through, held)]
    assert (gradients[0] - gradients[1]).abs().max() > 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_float32_under_autocast_and_at_a_temperature_of_a_hundredth(name):
    """Where a radius takes the temperature's place: one that leaves the hardest negative alone."""
    z1, z2 = batch(6, size=12, dimension=8)
    a, b, y = z1.float().requires_grad_(), z2.float(), LABELS.repeat(2)
    method = methods.build(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = call(method, a, b, y)
        half = call(method, a.bfloat16(), b.bfloat16(), y)
    outside = call(method, a, b, y)
    assert inside.dtype == torch.float32 and torch.equal(inside, outside)
    assert half.dtype == torch.float32 and abs((half - outside).item()) < 0.05
    cold = {"temperature": 0.01} if "temperature" in method.options else {"eta": 30.0}
    method = methods.build(name, **({"epsilon": 0.05} if name == "bcl-ot" else cold))
    exact, single = call(method, z1, z2, y), call(method, a, b, y)
    assert abs(single.item() / exact.item() - 1) < 1e-3
    assert torch.autograd.grad(single, a)[0].isfinite().all()


def test_artanh_is_finite_where_its_logit_is_not():
    """Views that agree, and negatives that are the anchor's twin or its opposite."""
    z = drawn.views(0, 6, 4, torch.float32)[0]
    z = torch.cat([z, z[:2], -z[:2]]).requires_grad_()
    value = methods.build("artanh")(z, z)
    (gradient,) = torch.autograd.grad(value, z)
    assert value.isfinite() and gradient.isfinite().all()


def test_labels_and_features_are_read_by_those_who_need_them():
    z1, z2 = batch(3)
    for name, entry in methods.CATALOGUE.items():
        method = methods.build(name)
        if not entry.supervised:
            assert torch.equal(call(method, z1, z2), call(method, z1, z2, LABELS))
    with pytest.raises(ValueError, match="h-scl learns from labels"):
        methods.build("h-scl")(z1, z2)
    with pytest.raises(ValueError, match="unremix needs the inputs of the last layer"):
        methods.build("unremix")(z1, z2)


def test_skipped_anchors_and_missed_tolerances_are_counted():
    z1, z2 = batch(10)
    method = methods.build("h-scl-threshold", tau=math.exp(1.0))  # s >= 1/2
    c = Contrast.from_views(z1, z2, LABELS)
    empty = int((~(c.admissible & (c.similarity >= 0.5)).any(1)).sum())
    for _ in range(2):
        method(z1, z2, LABELS)
    assert int(method.skipped) == 2 * empty > 0 and "skipped" not in method.state_dict()
    lenient = methods.build("scl", on_empty="skip")
    assert lenient(z1, z2, torch.zeros(6, dtype=torch.long)) == 0 and lenient.skipped == 12
    transport = methods.build("ot", epsilon=0.05, max_iterations=1)
    with pytest.warns(ConvergenceWarning, match="marginal error"):
        assert transport(z1, z2).isfinite()
    assert transport.unconverged == 1 and method.unconverged == 0


def test_a_validation_in_inference_mode_does_not_break_training():
    z1, z2 = batch(15, size=19)  # a size that no other test uses: its masks are made here
    method = methods.build("hcl")
    with torch.inference_mode():
        method(z1, z2)
    method(z1.requires_grad_(), z2).backward()
    assert z1.grad.isfinite().all()


@pytest.mark.parametrize("catalogue", [methods, of_graphs])
def test_no_option_takes_a_value_of_another_kind(catalogue):
    for name, entry in catalogue.CATALOGUE.items():
        for option, default in entry.defaults.items():
            others = [math.nan, -math.inf, "many", {}, (1.0, 1.0)]
            others += [None] * (default is not None)
            others += [True] * (isinstance(default, int | float) and not isinstance(default, bool))
            for value in others:
                with pytest.raises(ValueError, match=f"{option} must "):
                    catalogue.build(name, **{option: value})


def test_positives_are_those_of_the_kind_of_data_when_built_and_when_changed():
    for of, kept, other in ((methods, "view", "own"), (of_graphs, "own", "view")):
        named = [name for name, entry in of.CATALOGUE.items() if "positives" in entry.defaults]
        assert len(named) > 1
        for name in named:
            method = of.build(name, positives=kept)
            for refused in (of.build, lambda _, method=method, **given: method.change(**given)):
                with pytest.raises(ValueError, match=f"^positives must be one of class, {kept}, "):
                    refused(name, positives=other)


@pytest.mark.filterwarnings("ignore::hnlib.transport.ConvergenceWarning")
def test_a_forward_pass_that_checkpointing_repeats_is_counted_once():
    z1, z2 = (z.requires_grad_() for z in drawn.views(size=6))
    hard = methods.build("h-scl-threshold", tau=math.exp(1.0), on_empty="skip")
    few = methods.build("ot", epsilon=0.05, max_iterations=1)
    for method, labels in ((hard, torch.zeros(6, dtype=torch.long)), (few, None)):
        method(z1, z2, labels)
        once = int(method.skipped), int(method.unconverged)
        checkpoint(method, z1, z2, labels, use_reentrant=False).backward()
        assert (int(method.skipped), int(method.unconverged)) == (2 * once[0], 2 * once[1])
        assert sum(once) > 0


@pytest.mark.parametrize("held", [True, False])
def test_a_learned_temperature_gets_no_gradient_through_weights_that_are_held_fixed(held):
    """By hand, with a learned tilt, too; weights that are not held are the control."""
    log_scale = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
    a, b = (torch.nn.functional.normalize(z, dim=1) for z in drawn.views(1, 6, 4))
    t, beta, s = 1 / log_scale.exp(), 3 / log_scale, a @ b.T
    own = torch.eye(6, dtype=torch.bool)
    log_w = (beta * s / t).masked_fill(own, -torch.inf).log_softmax(1).detach() + math.log(5)
    logits = s / t + log_w.masked_fill(own, 0.0)
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(6))
    options = dict(temperature=t, beta=beta, tau_plus=0.0, weights_gradient=not held)
    found = methods.build("hcl", **options).double().pairs(a, b)
    assert found.item() == pytest.approx(expected.item(), abs=1e-12)
    gradients = [torch.autograd.grad(x, log_scale, retain_graph=True)[0] for x in (found, expected)]
    assert (abs(gradients[0] - gradients[1]) < 1e-12) == held


@pytest.mark.parametrize("option", ["temperature", "level", "tau"])
def test_a_learned_threshold_moves_no_weight_and_the_embeddings_learn(option):
    """Streamed, too; a near miss, a threshold 0.2 off, is another gradient."""
    y, found = torch.arange(6) % 2, []
    for shift, learned in ((0, True), (0, False), (0.2, True)):
        value = torch.tensor(0.4 + shift, dtype=torch.float64, requires_grad=learned)
        method = methods.build("h-scl-threshold", **{option: value}).double()
        for one in (method, streamed(method, 5)):
            z = [x.requires_grad_() for x in drawn.views(4, 6, 3)]
            one(*z, y).backward()
            found.append(torch.cat([x.grad for x in z]))
        if learned and option != "temperature":  # which the softmax has, too
            assert value.grad is None or value.grad == 0
    near = [float((x - found[0]).abs().max()) for x in found]
    assert max(near[:4]) < 1e-12 and min(near[4:]) > 1e-4
