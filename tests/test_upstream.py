"""The texts for other libraries print what the records say."""

import re

from scripts import ROOT

from hnbook.headlines import BAGS, headlines, searches
from hnbook.tables import interval
from hnlib import experiments


def effects():
    loudness, pairs = experiments.recorded("loudness"), experiments.recorded("pairs")
    for t in (0.5, 0.1, 0.05):
        yield experiments.effect(loudness, f"DCL, t = {t:g}", f"InfoNCE, t = {t:g}", "linear")
    yield experiments.outcome(pairs, "T5, STS")["α = 5"]
    yield from (experiments.effect(pairs, arm, "t0.05", "sts") for arm in ("strength 5", "t1/25"))
    yield from (searches(bag)["strength"] for bag in BAGS)
    yield experiments.effect(experiments.recorded("decomposition"), "t0.25", "t0.5", "knn")
    yield from (headlines()["network"], headlines("knn")["network"])


def test_every_interval_is_one_of_the_records():
    found = {interval(one).replace("\u00a0", " ") for one in effects()}
    text = " ".join((ROOT / "book/upstream.txt").read_text(encoding="utf-8").split())
    assert {*re.findall(r"[+−]\d\.\d \[[+−]\d\.\d, [+−]\d\.\d\]", text)} == found
