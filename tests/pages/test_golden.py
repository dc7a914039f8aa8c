"""No recorded number moves: experiments, losses and the numbers in texts are as in the snapshot.

If one was meant to move, write the snapshot anew: `PYTHONPATH=book python tests/golden.py`.
"""

import math
from dataclasses import replace
from pathlib import Path

import golden
import pytest
from golden import experiments, methods

ROOT = Path(__file__).parents[2]
SHOWN = 20


def is_same(old, new):
    if isinstance(old, float) and isinstance(new, int | float):
        return math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12)
    return old == new


def differences(old, new):
    """A line for each place where they differ, or that only one of them has."""
    pairs = {place: (old.get(place, "nothing"), new.get(place, "nothing")) for place in old | new}
    return [
        f"{', '.join(filter(None, map(str, place)))}: {before} → {after}"
        for place, (before, after) in pairs.items()
        if not is_same(before, after)
    ]


def assert_same(old, new):
    lines = differences(old, new)
    shown = "\n".join(lines[:SHOWN])
    assert not lines, f"{len(lines)} values have moved, of which up to {SHOWN} are shown:\n{shown}"


def test_no_number_of_an_experiment_or_a_loss_has_moved():
    names = experiments.names()
    # the effects of a screen would take half a minute
    found = {name: golden.of_experiment(name, not golden.is_screen(name)) for name in names}
    old = {k: x for k, x in golden.stored("experiments").items() if k[2] != "effects"}
    assert_same(old | golden.stored("losses"), golden.flat(found) | golden.flat(golden.of_losses()))


@pytest.mark.slow
def test_no_effect_in_a_screen_has_moved():
    screens = [name for name in experiments.names() if golden.is_screen(name)]
    old = {k: x for k, x in golden.stored("experiments").items() if k[0] in screens}
    assert_same(old, golden.flat({name: golden.of_experiment(name) for name in screens}))


def test_a_changed_mean_is_reported():
    old = golden.stored("experiments")
    place = ("images-long", "", "t0.25", "mean linear")
    (line,) = differences(old, old | {place: old[place] * (1 + 2e-9)})
    assert line.startswith("images-long, t0.25, mean linear: 0.")
    assert not differences(old, old | {place: old[place] * (1 + 1e-10)})
    (line,) = differences(old, {key: x for key, x in old.items() if key != place})
    assert line.endswith("→ nothing")
    with pytest.raises(AssertionError, match=r"t0\.25, mean linear: 0.* → 1"):
        assert_same(old, old | {place: 1.0})


def test_a_changed_loss_is_reported(monkeypatch):
    hcl = methods.CATALOGUE["hcl"]
    changed = replace(hcl, defaults=hcl.defaults | {"beta": 1 + 1e-6})
    monkeypatch.setitem(methods.CATALOGUE, "hcl", changed)
    lines = differences(golden.stored("losses"), golden.flat(golden.of_losses()))
    assert len(lines) == 7 and lines[0].startswith("hcl, loss: 1.")


@pytest.mark.slow
def test_no_number_in_a_text_has_moved():
    pages = golden.of_pages(ROOT)
    if not pages:
        pytest.skip("no page has been executed; run `make book`")
    old, new = (
        {place: x for place, x in one.items() if place[0] in pages}
        for one in (golden.stored("inline"), golden.flat(pages))
    )
    assert_same(old, new)
