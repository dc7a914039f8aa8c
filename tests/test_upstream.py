"""The texts for other libraries print what the records say."""

import re

import pytest
from scripts import ROOT

from hnbook.headlines import BAGS, headlines, searches
from hnbook.tables import interval
from hnlib import experiments
from hnlib.experiments import evidence

LEDGER = evidence.measurement("loss_profiles")


def profile(library, loss):
    """What was measured of a loss late in a training on CIFAR-10."""
    (row,) = (x for x in LEDGER["rows"] if (x["library"], x["loss"]) == (library, loss))
    return row["batches"]["cifar10 late"]


def of_lightly():
    loudness, loss = experiments.load("loudness"), profile("lightly", "DCLLoss")
    yield from (f"{loss['balance']:.2f}", f"{loss['sharpness']:.3g}", LEDGER["versions"]["lightly"])
    for t in (0.5, 0.1, 0.05):
        yield loudness.effect(f"DCL, t = {t:g}", f"InfoNCE, t = {t:g}", "linear")


def of_sentence_transformers():
    pairs = experiments.load("pairs")
    yield from (LEDGER["versions"]["sentence-transformers"], pairs.outcome("T5, STS")["α = 5"])
    yield from (pairs.effect(arm, "t0.05", "sts") for arm in ("strength 5", "t1/25"))
    yield from (searches(bag)["strength"] for bag in BAGS)


def of_metric_learning():
    yield LEDGER["versions"]["pytorch-metric-learning"]
    for name in ("NPairsLoss", "NCALoss", "SupConLoss", "NTXentLoss", "TupletMarginLoss"):
        row = profile("pytorch-metric-learning", name)
        yield f"| {name} | {row['sharpness']:.3g} | {row['balance']:.3g} |"


def of_simclr():
    yield experiments.load("decomposition").effect("t0.25", "t0.5", "knn")
    yield from (headlines()["network"], headlines("knn")["network"])


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("lightly", of_lightly),
        ("sentence-transformers", of_sentence_transformers),
        ("pytorch-metric-learning", of_metric_learning),
        ("simclr-cifar10", of_simclr),
    ],
)
def test_every_number_is_that_of_the_records(name, numbers):
    """All intervals of the text, and no other one."""
    text = " ".join((ROOT / "book/upstream" / f"{name}.txt").read_text(encoding="utf-8").split())
    found = [x if isinstance(x, str) else interval(x).replace("\u00a0", " ") for x in numbers()]
    found = [x.partition(", {")[0] for x in found]
    assert [one for one in found if one not in text] == []
    printed = re.findall(r"[+−]\d\.\d \[[+−]\d\.\d, [+−]\d\.\d\]", text)
    assert {*printed} == {one for one in found if "[" in one}
