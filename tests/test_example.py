"""The script in one file trains with the losses of the library."""

import runpy
import sys

import pytest
import torch
from scripts import ROOT
from test_transformers import write as write_transformer

from hnlib import methods
from hnlib.images import _torchvision  # noqa: F401, before transformers is imported: see there

EXAMPLES = ROOT / "examples"


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
    arguments = ["hcl_cifar10.py", "--epochs", "1", "--width", "8"]
    monkeypatch.setattr(sys, "argv", arguments)
    example.main()
    assert capsys.readouterr().out.count("kNN") == 2


@pytest.mark.slow
def test_simcse_trains_a_transformer_and_reads_a_set_of_similarity(tmp_path, monkeypatch, capsys):
    write_transformer(tmp_path, "Bert")
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("the dog runs\nthe cat sleeps\na cat on the table\na dog under a tree\n")
    arguments = ["--model", tmp_path, "--sentences", sentences, "--sets", "alike", "-o", "mu=0.4"]
    arguments += ["--method", "adnce", "--batch-size", 4]
    monkeypatch.setattr(sys, "argv", ["simcse.py", *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / "simcse.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("alike: ")
