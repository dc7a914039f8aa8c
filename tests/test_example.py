"""The script in one file trains with the losses of the library."""

import runpy
import sys

import pytest
import torch
from scripts import ROOT

from hnlib import methods


def test_its_losses_are_those_of_the_library():
    hcl = runpy.run_path(f"{ROOT}/examples/hcl_cifar10.py")["hcl"]
    z1, z2 = torch.randn(2, 32, 16, generator=torch.Generator().manual_seed(0))
    held = methods.build("hcl", beta=1.0, temperature=0.5, tau_plus=0.0, weights_gradient=False)
    simclr = methods.build("simclr", temperature=0.25)
    expected = [pytest.approx(float(method(z1, z2)), abs=1e-5) for method in (held, simclr)]
    assert [float(hcl(z1, z2, *at)) for at in ((1.0, 0.5), (0.0, 0.25))] == expected
    assert float(hcl(z1, z2, 1.0, 0.25)) != expected[0]  # the near miss


@pytest.mark.slow
def test_it_runs_without_data(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hcl_cifar10.py", "--epochs", "1", "--width", "8"])
    runpy.run_path(f"{ROOT}/examples/hcl_cifar10.py", run_name="__main__")
    assert capsys.readouterr().out.count("kNN") == 2


FOUR = ["data=digits", "encoder=small-cnn", "images=40", "batch=4", "epochs=2", "compiled=False"]


@pytest.mark.parametrize("method", [[], ["method=hcl", "beta=1"], ["method=dcl"]])
def test_the_fast_script_trains_with_four_images_in_a_batch(monkeypatch, capsys, method):
    monkeypatch.setattr(sys, "argv", ["simclr_fast.py", *FOUR, *method])
    names = runpy.run_path(f"{ROOT}/examples/simclr_fast.py", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == ["epoch 1", "epoch 2"]
    assert names["steps"] == 20 and names["rate"](19) < names["rate"](10) < names["rate"](1)
    assert names["loss_of"].options["temperature"] == 0.25


def test_the_fast_script_learns(monkeypatch):
    """Its loss falls below that of a network that hardly moves (4.58; here 4.16)."""
    losses = []
    for rate in ("1e-9", "3e-3"):
        settings = f"data=digits encoder=small-cnn images=500 batch=50 epochs=5 lr={rate}"
        monkeypatch.setattr(sys, "argv", ["simclr_fast.py", *settings.split()])
        losses.append(
            runpy.run_path(f"{ROOT}/examples/simclr_fast.py", run_name="__main__")["mean"]
        )
    assert losses[1] < losses[0] - 0.2


@pytest.mark.parametrize("wrong", ["betta=1", "epochs", "epochs="])
def test_the_fast_script_names_its_settings(monkeypatch, wrong):
    monkeypatch.setattr(sys, "argv", ["simclr_fast.py", wrong])
    with pytest.raises(SystemExit, match="is not a setting; choose from data, images"):
        runpy.run_path(f"{ROOT}/examples/simclr_fast.py", run_name="__main__")
