"""Seven causes of a loss that falls while the metric falls: each is found, and nothing else is."""

import re

import pytest
import torch
from drawn import SEEDS, seeded
from hypothesis import given, settings
from scripts import ROOT
from torch.nn.functional import normalize

from hnlib import failure_causes, methods
from hnlib.contrast import Contrast

N, D, T = 64, 32, 0.1


def rows(seed, n=N):
    return normalize(torch.randn(n, D, generator=seeded(seed)), dim=1)


def pair(seed=0, noise=1.2):
    """Queries and answers that are near, but not so near that all is won."""
    a = rows(seed)
    return a, normalize(a + noise * rows(seed + 1), dim=1)


def healthy(z1, z2):
    right = torch.eye(N, dtype=torch.bool)
    options = {"positives": right, "before": (z1, z2), "evaluated": (z1, z2)}
    return {"z1": z1, "z2": z2, "temperature": T, **options}


def false_negatives(z1, z2):
    own = torch.eye(N, dtype=torch.bool)
    return {"z1": z1, "z2": torch.cat([z2, z2]), "positives": torch.cat([own, own], 1)}


def silent(z1, z2):
    s = z1 @ z2.T
    far = s > s.diagonal()[:, None] - 0.6
    return healthy(z1, z2) | {"excluded": far.fill_diagonal_(False)}


def moved(z1, z2):
    return healthy(z1, normalize(z2 + rows(9), dim=1)) | {"before": (z1, z2)}


def collapsed(z1, z2):
    near = (torch.cat([torch.full((N, 1), 4.0), z], 1) for z in (z1, z2))
    return healthy(*near) | {"before": (z1, z2)}


BROKEN = {
    "leak": lambda z1, z2: healthy(z1, z2) | {"evaluated": (z1, z2.roll(N // 4, 0))},
    "false negatives": false_negatives,
    "wrong pairing": lambda z1, z2: healthy(z1, z2.roll(1, 0)),
    "collapse": collapsed,
    "learning rate": moved,
    "temperature": lambda z1, z2: healthy(z1, z2) | {"temperature": 0.002},
    "silent anchors": silent,
}


@settings(max_examples=5)
@given(SEEDS)
def test_a_healthy_batch_is_suspected_of_nothing(seed):
    assert failure_causes.triage(**healthy(*pair(seed))).suspects == ()


@pytest.mark.parametrize("cause", failure_causes.CAUSES)
def test_a_broken_batch_is_found(cause):
    assert cause in failure_causes.triage(**BROKEN[cause](*pair())).suspects


def test_numbers_are_those_of_the_loss():
    """The push and the loudness against gradients of InfoNCE, anchors all alike in weight."""
    z1, z2 = pair(3)
    found = failure_causes.triage(z1, z2, torch.ones(N, N, dtype=torch.bool), T).numbers
    c = Contrast.from_pairs(z1, z2)
    s = c.similarity.clone().requires_grad_()
    c = Contrast.from_similarity(s, c.positives, c.admissible, scale=N - 1)
    loss = methods.build("simclr", temperature=T).loss(c, reduction="none").sum()
    g = T * torch.autograd.grad(loss, s)[0]
    loud = -g.diagonal()
    assert found["silent anchors"] == float((loud < 0.1).float().mean())
    push = (g / loud[:, None]).fill_diagonal_(0)
    assert found["temperature"] == pytest.approx(
        float(torch.special.entr(push).sum(1).exp().median()), rel=1e-4
    )
    assert found["false negatives"] == pytest.approx(1)  # all that is pushed is right


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
    assert str(failure_causes.triage(**BROKEN["leak"](*pair()))).startswith("! leak")


def test_a_mistake_is_named():
    for again, got in [((rows(0, 8), rows(1, 8)), r"got \(8, 32\)"), ((), "two tensors")]:
        with pytest.raises(ValueError, match=rf"evaluated must embed .*{got}"):
            failure_causes.triage(*pair(), evaluated=again)


def test_an_answer_that_is_there_twice_is_a_hit():
    z, twice = rows(0), torch.cat([rows(0, N // 2)] * 2)
    assert failure_causes.triage(twice, twice, evaluated=(z, z)).numbers["leak"] == 0


def test_the_effective_rank_is_that_of_the_singular_values():
    """Their fourth powers sum all squared cosines; the control keeps those of rows with themselves."""
    z = rows(3) * torch.linspace(0.1, 1, D)
    n, fourth = N, torch.linalg.svdvals(normalize(z, dim=1).double()).pow(4).sum()
    found = float(failure_causes.effective_rank(z))
    assert found == pytest.approx(float(n * (n - 1) / (fourth - n)), rel=1e-5)
    assert abs(found - float(n * n / fourth)) > 1


def test_a_collapse_is_not_called_a_learning_rate():
    same = torch.ones(N, D)
    found = failure_causes.triage(same, same, before=pair())
    assert found.numbers["learning rate"] == 0 and found.suspects == ("collapse",)
