"""The example losses: each trains for a step, and a method that has become one says so."""

import pytest
import torch
from drawn import views
from scripts import ROOT

from hnlib import __main__ as cli
from hnlib import methods
from hnlib.contrast import Contrast
from hnlib.experiments import null

FILES = sorted((ROOT / "examples/losses").glob("*.py"))


def test_every_example_has_its_file():
    names = {path.stem.replace("_", "-") for path in FILES}
    assert set(methods.EXAMPLES) == {x for x in names if "ENTRY" in text(x)}
    assert not set(methods.EXAMPLES) & set(methods.CATALOGUE)


def text(name):
    return (ROOT / f"examples/losses/{name.replace('-', '_')}.py").read_text("utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_step_against_the_gradient_lowers_the_loss(path):
    name = path.stem.replace("_", "-")
    if name in methods.EXAMPLES:
        method = methods.example(name).build()
    else:
        file = null.read(path)
        method = file.method(file.configurations[0])
    z = torch.stack(views(1, 20, 6)).requires_grad_()
    loss = method(*z)
    (gradient,) = torch.autograd.grad(loss, z)
    step = 1e-4 * gradient / gradient.norm()
    down, up = (method(*(z + sign * step)) for sign in (-1, 1))
    assert loss.isfinite() and down < loss < up


def test_methods_meet_where_their_options_say():
    z = views(9, 6, 4)

    def built(name, **options):
        return methods.example(name).build(**options)(*z).item()

    for ours, theirs in (
        (built("hcl-exact", tau_plus=0.0), ("hcl", dict(tau_plus=0.0))),
        (built("unremix-repaired", mixture=(0.0, 1.0, 0.0)), ("hcl", dict(tau_plus=0.0))),
        (built("weince", share=0.0), ("simclr", {})),
        (built("gbce", power=1.0), ("siglip", dict(bias=0.0))),
        (built("kl-budget", eta=1e3, floor=0.3) / 0.3, ("simclr", dict(temperature=0.3))),
    ):
        name, options = theirs
        assert ours == pytest.approx(methods.build(name, **options)(*z).item(), abs=1e-9)
    assert built("weince", share=0.1, shape=1.0) != pytest.approx(built("weince", share=0.0))


def test_learning_curves_see_where_the_guard_acts_and_the_temperatures():
    z1, z2 = views(18, 6, 4)
    exact = methods.example("hcl-exact").build(tau_plus=0.3)
    far, near = (Contrast.from_views(z1, z) for z in (z2, z1 + 0.05 * z2))
    assert exact.observe(near)["guarded"] > 0.5 > exact.observe(far)["guarded"]
    seen = methods.example("kl-budget").build(eta=0.1).observe(far)
    assert 0 < seen["temperature_low"] < seen["temperature"] < seen["temperature_high"]


@pytest.mark.parametrize("name", methods.EXAMPLES)
def test_the_catalogue_answers_with_the_path(name, capsys):
    path = methods.EXAMPLES[name]
    assert (ROOT / path).is_file()
    with pytest.raises(
        ValueError, match=f"method {name!r} is an example, {path}; see methods.exam"
    ):
        methods.build(name)
    assert cli.main(["train", "images", "--method", name, "--dry-run"]) == 0
    assert name in capsys.readouterr().out
    with pytest.raises(ValueError, match="example 'hcl' is unknown; there are hcl-exact, cent"):
        methods.example("hcl")
