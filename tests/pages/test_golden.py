"""No recorded number moves: experiments, losses and the numbers in texts are as in the snapshot.

What is not in the snapshot yet passes. If a number was meant to move, write the snapshot anew:
`PYTHONPATH=book python tests/golden.py`.
"""

from dataclasses import replace

import golden
import pytest
from golden import experiments, methods

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _tracked_records_alone(monkeypatch):
    monkeypatch.setenv("HNLIB_RECALL", "1")


def test_no_number_of_an_experiment_or_a_loss_has_moved():
    found = {name: golden.of_experiment(name) for name in experiments.names()}
    assert golden.differences(golden.stored("experiments"), golden.flat(found)) == []
    assert golden.differences(golden.stored("losses"), golden.flat(golden.of_losses())) == []


def test_a_number_that_moves_or_is_lost_is_reported(monkeypatch):
    old = golden.stored("experiments")
    place = ("images-long", "", "t0.25", "mean linear")
    (line,) = golden.differences(old, old | {place: old[place] * (1 + 2e-9)})
    assert line.startswith("images-long, , t0.25, mean linear: 0.")
    (line,) = golden.differences(old, {key: x for key, x in old.items() if key != place})
    assert line.endswith("→ nothing")
    hcl = methods.CATALOGUE["hcl"]
    changed = replace(hcl, defaults=hcl.defaults | {"beta": 1 + 1e-6})
    monkeypatch.setitem(methods.CATALOGUE, "hcl", changed)
    assert len(golden.differences(golden.stored("losses"), golden.flat(golden.of_losses()))) == 7


def test_no_number_in_a_text_has_moved(html):
    pages = golden.of_pages()
    old = {place: x for place, x in golden.stored("inline").items() if place[0] in pages}
    assert golden.differences(old, golden.flat(pages)) == []
