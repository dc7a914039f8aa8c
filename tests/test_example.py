"""The script in one file trains with the losses of the library."""

import runpy
import sys

import pytest
import torch
from scripts import ROOT
from test_transformers import write as write_transformer

from hnlib import methods
from hnlib.images import _torchvision  # noqa: F401, before transformers is imported: see there


@pytest.fixture
def run(monkeypatch, capsys):
    """run(name, *arguments) runs an example and returns what it prints."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(f"{ROOT}/examples/{name}", run_name="__main__")
        return capsys.readouterr().out

    return run


def test_its_losses_are_those_of_the_library():
    hcl = runpy.run_path(f"{ROOT}/examples/hcl_cifar10.py")["hcl"]
    z1, z2 = torch.randn(2, 32, 16, generator=torch.Generator().manual_seed(0))
    held = methods.build("hcl", beta=1.0, temperature=0.5, tau_plus=0.0, weights_gradient=False)
    simclr = methods.build("simclr", temperature=0.25)
    expected = [pytest.approx(float(method(z1, z2)), abs=1e-5) for method in (held, simclr)]
    assert [float(hcl(z1, z2, *at)) for at in ((1.0, 0.5), (0.0, 0.25))] == expected
    assert float(hcl(z1, z2, 1.0, 0.25)) != expected[0]  # the near miss


@pytest.mark.slow
def test_it_runs_without_data(run):
    assert run("hcl_cifar10.py", "--epochs", 1, "--width", 8).count("kNN") == 2


@pytest.mark.slow
def test_simcse_trains_a_transformer_and_reads_a_set_of_similarity(tmp_path, run):
    write_transformer(tmp_path, "Bert")
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("the dog runs\nthe cat sleeps\na cat on the table\na dog under a tree\n")
    arguments = ["--model", tmp_path, "--sentences", sentences, "--sets", "alike", "-o", "mu=0.4"]
    printed = run("simcse.py", *arguments, "--method", "adnce", "--batch-size", 4)
    assert printed.startswith("alike: ")
