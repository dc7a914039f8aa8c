"""The example losses: each trains for a step."""

import pytest
import torch
from drawn import views
from scripts import ROOT

from hnlib import methods
from hnlib.experiments import null

FILES = sorted(
    path for folder in ("losses", "ledger") for path in (ROOT / "examples" / folder).glob("*.py")
)


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

    for ours, other, options in (
        (built("hcl-exact", tau_plus=0.0), "hcl", dict(tau_plus=0.0)),
        (built("unremix-repaired", mixture=(0.0, 1.0, 0.0)), "hcl", dict(tau_plus=0.0)),
        (built("weince", share=0.0), "simclr", {}),
        (built("gbce", power=1.0), "siglip", dict(bias=0.0)),
        (built("kl-budget", eta=1e3, floor=0.3) / 0.3, "simclr", dict(temperature=0.3)),
    ):
        assert ours == pytest.approx(methods.build(other, **options)(*z).item(), abs=1e-9)
    assert built("weince", share=0.1, shape=1.0) != pytest.approx(built("weince", share=0.0))


def test_an_example_is_there_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    methods.example.cache_clear()
    assert methods.example("weince").build().name == "weince"
    monkeypatch.setattr(methods, "_FOLDERS", (tmp_path,))
    methods.example.cache_clear()
    with pytest.raises(ValueError, match=r"weince\.py is neither installed nor in a checkout"):
        methods.example("weince")
    methods.example.cache_clear()
