"""Causes of a loss that falls while the metric falls; *Stuck* finds each of them in a training."""

import re

import pytest
import torch
from drawn import seeded
from scripts import ROOT
from torch.nn.functional import normalize

from hnlib import failure_causes

N, D, T = 64, 32, 0.1


def rows(seed, n=N):
    return normalize(torch.randn(n, D, generator=seeded(seed)), dim=1)


def pair(seed=0):
    """Queries and answers that are near, but not so near that all is won."""
    a = rows(seed)
    return a, normalize(a + 1.2 * rows(seed + 1), dim=1)


def test_the_lines_that_the_page_prints_agree():
    page = (ROOT / "notebooks/stuck.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (q, k), (q0, k0), (q1, k1) = (pair(seed) for seed in (0, 3, 6))
    right = torch.eye(N, dtype=torch.bool) | (torch.rand(N, N, generator=seeded(1)) < 0.1)
    names = {"torch": torch, "q": q, "k": k, "q0": q0, "k0": k0, "q1": q1, "k1": k1}
    printed = {}
    keep = lambda name, value, *_: printed.update({name: value})  # noqa: E731
    names |= {"right": right, "t": T, "print": keep}
    exec(compile(code, "stuck.md", "exec"), names)
    found = failure_causes.triage(q, k, right, T, before=(q0, k0), evaluated=(q1, k1)).numbers
    assert {x: float(value) for x, value in printed.items()} == pytest.approx(found, abs=1e-5)
    assert found["leak"] != 0 and found["wrong pairing"] > 0 and found["silent anchors"] > 0


def test_what_needs_an_argument_says_which():
    lines = str(failure_causes.triage(*pair())).splitlines()
    for line, (_, argument, _, _) in zip(lines, failure_causes.CAUSES.values(), strict=True):
        assert ("unknown without" in line) == bool(argument) and argument in line
    z1, z2 = pair()
    leak = failure_causes.triage(z1, z2, temperature=T, evaluated=(z1, z2.roll(N // 4, 0)))
    assert str(leak).startswith("! leak") and leak.suspects == ("leak",)


def test_a_mistake_is_named():
    with pytest.raises(ValueError, match=r"evaluated must embed .*got \(8, 32\)"):
        failure_causes.triage(*pair(), evaluated=(rows(0, 8), rows(1, 8)))


def test_what_is_excluded_does_not_push():
    z1, z2 = pair()
    far = (z1 @ z2.T - 0.4 > 0).fill_diagonal_(False)
    found, every = (
        failure_causes.triage(z1, z2, temperature=T, excluded=x).numbers["silent anchors"]
        for x in (far, None)
    )
    scores = (z1 @ z2.T / T).masked_fill(far, -torch.inf).softmax(1)
    assert found == float((scores.diagonal() > 0.9).float().mean()) > every


def test_an_answer_that_is_there_twice_is_a_hit():
    z, twice = rows(0), torch.cat([rows(0, N // 2)] * 2)
    assert failure_causes.triage(twice, twice, evaluated=(z, z)).numbers["leak"] == 0


def test_a_collapse_is_not_called_a_learning_rate():
    same = torch.ones(N, D)
    found = failure_causes.triage(same, same, before=pair())
    assert found.numbers["learning rate"] == 0 and found.suspects == ("collapse",)
