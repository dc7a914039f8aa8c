"""The frames of embeddings that move while they are trained."""

import json

import pytest
from scripts import script

from hnlib import _files
from hnlib.book import figures

FILE = _files.project_root() / "book/results/motion.json"


@pytest.fixture(scope="module")
def motion():
    return script("book/results/motion.py")


@pytest.fixture(scope="module")
def recorded():
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_the_frames_are_those_of_the_script(motion, recorded):
    _, _, labels = motion.digits()
    assert recorded["steps"] == motion.frame_steps() and recorded["labels"] == labels.tolist()
    settings = [(run["method"], run["options"], run["space"]) for run in recorded["runs"]]
    assert settings == [(*rule, space) for rule in motion.RULES for space in motion.SPACES]
    for run in recorded["runs"]:
        assert len(run["frames"]) == len(recorded["steps"]) and len(run["ends"]) == motion.SEEDS
        last = run["frames"][-1]
        assert run["ends"][0] == {name: last[name] for name in run["ends"][0]}
    assert FILE.stat().st_size < figures.LARGEST


@pytest.mark.slow
def test_a_training_begins_as_recorded(motion, recorded, monkeypatch):
    monkeypatch.setattr(motion, "STEPS", 1)
    x, *shown = motion.digits()
    for run in recorded["runs"]:
        rule = (run["method"], run["options"])
        frames = motion.train(x, shown, rule, motion.SPACES[run["space"]], 0)
        for now, then in zip(frames, run["frames"][:2], strict=True):
            assert now["alignment"] == pytest.approx(then["alignment"], abs=0.02)
            assert now["uniformity"] == pytest.approx(then["uniformity"], abs=0.02)
