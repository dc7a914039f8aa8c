"""The texts for other libraries print what the records say, and their code is the library's."""

import math
import re

import pytest
import torch
from drawn import seeded
from scripts import ROOT
from torch.nn import functional

from hnbook.headlines import BAGS, headlines, searches
from hnbook.tables import interval
from hnlib import experiments, methods
from hnlib.experiments import evidence

LEDGER = evidence.measurement("loss_profiles")


def text(name):
    return (ROOT / "book/upstream" / f"{name}.txt").read_text(encoding="utf-8")


def plain(effect):
    return interval(effect).partition(", {")[0].replace("\N{NO-BREAK SPACE}", " ")


def profile(library, loss):
    """What was measured of a loss late in a training on CIFAR-10."""
    (row,) = (x for x in LEDGER["rows"] if (x["library"], x["loss"]) == (library, loss))
    return row["batches"]["cifar10 late"]


def of_lightly(metric="linear"):
    loudness, loss = experiments.load("loudness"), profile("lightly", "DCLLoss")
    for t in (0.5, 0.1, 0.05):
        yield plain(loudness.effect(f"DCL, t = {t:g}", f"InfoNCE, t = {t:g}", metric))
    yield from (f"{loss['balance']:.2f}", f"{loss['sharpness']:.3g}", LEDGER["versions"]["lightly"])


def of_sentence_transformers(scale="t1/25"):
    pairs = experiments.load("pairs")
    yield LEDGER["versions"]["sentence-transformers"]
    yield plain(pairs.outcome("T5, STS")["α = 5"])
    yield from (plain(pairs.effect(arm, "t0.05", "sts")) for arm in ("strength 5", scale))
    yield from (plain(searches(bag)["strength"]) for bag in BAGS)


def of_metric_learning(shown=0):
    library = "pytorch-metric-learning"
    yield LEDGER["versions"][library]
    names = [
        "NPairsLoss",
        "NCALoss",
        "SupConLoss",
        "NTXentLoss",
        "MultiSimilarityLoss",
        "TupletMarginLoss",
    ]
    for name in names:
        row = profile(library, name)
        yield f"| {name} | {row['sharpness']:.3g} | {row['balance'] + shown:.3g} |"


def of_simclr(metric="knn"):
    temperatures = experiments.load("decomposition").effect("t0.25", "t0.5", metric)
    yield from map(plain, (temperatures, headlines()["network"], headlines("knn")["network"]))


@pytest.mark.parametrize(
    ("name", "numbers", "near"),
    [
        ("lightly", of_lightly, "knn"),
        ("sentence-transformers", of_sentence_transformers, "t1/29"),
        ("pytorch-metric-learning", of_metric_learning, 0.02),
        ("simclr-cifar10", of_simclr, "linear"),
    ],
)
def test_every_number_is_that_of_the_records(name, numbers, near):
    """All intervals and rows of the text, no other; the control computes one of another run."""
    found, words = [*numbers()], " ".join(text(name).split())
    assert [one for one in found if one not in words] == []
    printed = re.findall(r"[+−]\d\.\d \[[+−]\d\.\d, [+−]\d\.\d\]", words)
    assert {*printed} == {one for one in found if "[" in one}
    assert {*numbers(near)} != {*found}


def test_the_hcl_of_the_contest_is_the_librarys():
    """Value and gradient at the options of the release; the control has another β."""
    (code,) = re.findall(r"```python\n(.*?)```", text("simclr-cifar10"), re.S)
    names = {"torch": torch, "F": functional, "math": math}
    exec(compile(code, "simclr-cifar10.txt", "exec"), names)
    z = torch.randn(2, 16, 8, generator=seeded(0), dtype=torch.float64)

    def values(loss):
        x = z.clone().requires_grad_()
        value = loss(x)
        return torch.cat([value[None], torch.autograd.grad(value, x)[0].flatten()])

    released = methods.build("hcl", temperature=0.5, beta=1.0, tau_plus=0.1)
    expected = values(lambda x: released(*x))
    torch.testing.assert_close(values(lambda x: names["hcl"](x.flatten(0, 1))), expected)
    near = values(lambda x: names["hcl"](x.flatten(0, 1), beta=1.02))
    assert (near - expected).abs().max() > 1e-3
