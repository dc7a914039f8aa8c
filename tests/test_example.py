"""The script in one file trains with the losses of the library."""

import sys
from pathlib import Path

import pytest
import torch

from hnlib import methods

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import hcl_cifar10

    yield hcl_cifar10
    sys.modules.pop("hcl_cifar10")


def test_its_losses_are_those_of_the_library(example):
    z1, z2 = torch.randn(2, 32, 16, generator=torch.Generator().manual_seed(0))
    held = dict(tau_plus=0.0, weights_gradient=False)
    hcl = methods.build("hcl", beta=1.0, temperature=0.5, **held)(z1, z2)
    simclr = methods.build("simclr", temperature=0.25)(z1, z2)
    assert float(example.hcl(z1, z2, 1.0, 0.5)) == pytest.approx(float(hcl), abs=1e-5)
    assert float(example.hcl(z1, z2, 0.0, 0.25)) == pytest.approx(float(simclr), abs=1e-5)
    assert abs(float(example.hcl(z1, z2, 1.0, 0.25) - hcl)) > 1e-2  # the near miss


@pytest.mark.slow
def test_it_runs_without_data(example, monkeypatch, capsys):
    arguments = ["hcl_cifar10.py", "--epochs", "1", "--width", "4"]
    monkeypatch.setattr(sys, "argv", arguments)
    example.main()
    assert capsys.readouterr().out.count("kNN") == 2


def test_it_fits_on_a_few_screens():
    assert len((EXAMPLES / "hcl_cifar10.py").read_text().splitlines()) < 150
