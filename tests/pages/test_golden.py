"""No recorded number moves: experiments, losses and the numbers in texts are as in the snapshot.

If one was meant to move, write the snapshot anew: `PYTHONPATH=book python tests/golden.py`.
"""

import math
from dataclasses import replace

import golden
import pytest
from golden import experiments, methods

pytestmark = pytest.mark.slow


def differences(old, new):
    """A line for each place where they differ, or that only one of them has."""
    lines = []
    for place in old | new:
        before, after = old.get(place, "nothing"), new.get(place, "nothing")
        same = before == after
        if isinstance(before, float) and isinstance(after, int | float):
            same = math.isclose(before, after, rel_tol=1e-9, abs_tol=1e-12)
        if not same:
            lines.append(f"{', '.join(map(str, place))}: {before} → {after}")
    return lines


def test_no_number_of_an_experiment_or_a_loss_has_moved():
    found = {name: golden.of_experiment(name) for name in experiments.names()}
    assert differences(golden.stored("experiments"), golden.flat(found)) == []
    assert differences(golden.stored("losses"), golden.flat(golden.of_losses())) == []


def test_a_number_that_moves_or_is_lost_is_reported(monkeypatch):
    old = golden.stored("experiments")
    place = ("images-long", "", "t0.25", "mean linear")
    (line,) = differences(old, old | {place: old[place] * (1 + 2e-9)})
    assert line.startswith("images-long, , t0.25, mean linear: 0.")
    (line,) = differences(old, {key: x for key, x in old.items() if key != place})
    assert line.endswith("→ nothing")
    hcl = methods.CATALOGUE["hcl"]
    changed = replace(hcl, defaults=hcl.defaults | {"beta": 1 + 1e-6})
    monkeypatch.setitem(methods.CATALOGUE, "hcl", changed)
    assert len(differences(golden.stored("losses"), golden.flat(golden.of_losses()))) == 7


def test_no_number_in_a_text_has_moved(html):
    pages = golden.of_pages()
    old = {place: x for place, x in golden.stored("inline").items() if place[0] in pages}
    assert differences(old, golden.flat(pages)) == []
