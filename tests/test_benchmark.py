"""The training benchmark runs; nothing here asserts how fast anything is."""

import re

import pytest
from scripts import script


@pytest.mark.slow
def test_each_row_is_a_speed_or_says_why_not(monkeypatch, capsys):
    speed = script("tests/benchmarks/training_speed.py")
    measure = speed.images_per_second

    def fail(run, *rest):
        if run.method == "ot":
            raise RuntimeError("no kernel\nsecond line")
        return measure(run, *rest)

    monkeypatch.setattr(speed, "images_per_second", fail)
    words = "--device cpu --encoders small-cnn --precisions 32-true --methods simclr ot"
    speed.main([*words.split(), "--batch-size", "8", "--steps", "2"])
    first, second = capsys.readouterr().out.splitlines()
    assert re.search(r"small-cnn +32-true +simclr +\S+ images/s, 400 epochs in \S+ min", first)
    assert second.endswith("ot         no kernel")
