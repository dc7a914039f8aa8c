"""The frames of embeddings that move while they are trained."""

import json

import pytest
import torch
from scripts import script

from hnlib import _files
from hnlib.book import figures

TOLD = _files.project_root() / "book/results/motion.json"


@pytest.fixture(scope="module")
def motion():
    return script("book/results/motion.py")


@pytest.fixture(scope="module")
def told():
    return json.loads(TOLD.read_text(encoding="utf-8"))


def points(at):
    """Unit vectors [n, 3] from degrees of longitude and, on the sphere, of latitude."""
    longitude, latitude = torch.deg2rad(torch.tensor([*at, [0] * len(at[0])][:2]).double())
    level = latitude.cos()
    return torch.stack([level * longitude.cos(), level * longitude.sin(), latitude.sin()], 1)


def test_the_frames_are_those_of_the_script(motion, told):
    _, _, labels = motion.digits()
    assert told["steps"] == motion.frame_steps() and told["labels"] == labels.tolist()
    ran = [(run["method"], run["options"], run["space"]) for run in told["runs"]]
    assert ran == [(*rule, space) for rule in motion.RULES for space in motion.SPACES]
    for run in told["runs"]:
        assert len(run["frames"]) == len(told["steps"]) and len(run["ends"]) == motion.SEEDS
        last = run["frames"][-1]
        assert run["ends"][0] == {name: last[name] for name in run["ends"][0]}
    assert TOLD.stat().st_size < figures.LARGEST


def test_what_is_measured_is_what_is_shown(motion, told):
    """From whole degrees the neighbours come out, but for those in a crowd."""
    labels = torch.tensor(told["labels"])
    for run in (run for run in told["runs"] if run["gamma"] < 20):
        seen = motion.own_share(points(run["frames"][-1]["at"]), labels)
        assert seen == pytest.approx(run["frames"][-1]["own"], abs=0.03)
        first = points(run["frames"][5]["at"])  # negative control: an earlier picture
        assert abs(motion.own_share(first, labels) - run["frames"][-1]["own"]) > 0.03


def test_a_training_begins_as_recorded(motion, told, monkeypatch):
    monkeypatch.setattr(motion, "STEPS", 1)
    x, shown, labels = motion.digits()
    for run in told["runs"]:
        rule = (run["method"], run["options"])
        seen = motion.train(x, motion.Look(shown, labels), rule, motion.SPACES[run["space"]], 0)
        for now, then in zip(seen, run["frames"][:2], strict=True):
            measures = [
                [frame[name] for name in ("alignment", "uniformity")] for frame in (now, then)
            ]
            assert measures[0] == pytest.approx(measures[1], abs=0.02)
