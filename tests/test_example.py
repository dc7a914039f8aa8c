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
