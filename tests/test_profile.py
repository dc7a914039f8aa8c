"""Any loss on the dial: forces from gradients, and what a profile must and must not say of them."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import SEEDS, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from hnlib import __main__ as cli
from hnlib import methods
from hnlib.contrast import Contrast
from hnlib.experiments import evidence
from hnlib.profile import profile_loss, summary

quick = settings(max_examples=6)
temperatures = st.floats(0.05, 1.0)


def rows(n, dimension, seed):
    drawn = torch.randn(n, dimension, generator=seeded(seed), dtype=torch.float64)
    return functional.normalize(drawn, dim=1)


def drawn(seed=0, noise=0.6, pairs=8):
    """Two views of points around four centres, noisier for an earlier stage of training."""
    sizes = (4, pairs, pairs, pairs)
    centres, base, *shifts = (rows(n, 64, seed + k) for k, n in enumerate(sizes))
    base = functional.normalize(0.5 * centres[torch.arange(pairs) % 4] + base)
    return tuple(functional.normalize(base + noise * shift) for shift in shifts)


def entropy(q, k, t=0.1, back=None):
    """Cross-entropy of each query over the keys, and of each key over the queries if `back`."""
    own = torch.arange(len(q))
    loss = functional.cross_entropy(q @ k.T / t, own)
    return loss if back is None else loss + functional.cross_entropy(k @ q.T / back, own)


# --- forces


@quick
@given(SEEDS, temperatures, st.sampled_from(["simclr", "hcl", "adnce", "dcl", "siglip"]))
def test_forces_are_the_derivatives_by_the_similarities(seed, t, name):
    def derivatives(t):
        contrast = Contrast.from_views(*(x.clone().requires_grad_() for x in drawn(seed)))
        value = methods.build(name, temperature=t).loss(contrast)
        directed = torch.autograd.grad(value, contrast.similarity)[0]
        return directed + directed.T

    found = profile_loss(methods.build(name, temperature=t), *drawn(seed))
    true, near = derivatives(t), derivatives(1.001 * t)
    assert found.residual < 1e-10 and found.asymmetry < 1e-10 and found.scale_free
    torch.testing.assert_close(found.forces, true, rtol=1e-6, atol=1e-12)
    assert (found.forces - near).abs().max() > 1e-5 * true.abs().max()


def test_small_forces_are_as_precise_as_large_ones():
    """A push of e⁻⁵⁰ is none by the gradient in one set of coordinates, where it is rounded away."""
    z1, z2 = drawn(noise=1.2)
    found = profile_loss(lambda q, k: entropy(q, k, 0.01), z1, z2)
    p = (z1 @ z2.T / 0.01).softmax(1) / 0.01 / len(z1)
    push = found.forces[: len(z1), len(z1) :]
    off = ~torch.eye(len(z1), dtype=torch.bool)
    assert p[off].min() < 1e-20 * p.max()
    torch.testing.assert_close(push[off], p[off], rtol=1e-8, atol=0)
    assert found.silent == 0 and abs(found.sharpness - 100) < 1e-5


# --- sharpness


STOPPED = "keys without a gradient"
KINDS = {
    "views": lambda t: methods.build("simclr", temperature=t),
    "one way": lambda t: lambda q, k: entropy(q, k, t),
    "two ways": lambda t: lambda q, k: entropy(q, k, t, t),
    STOPPED: lambda t: lambda q, k: entropy(q, k.detach(), t),
    "of any length": lambda t: (
        lambda q, k: 7 * entropy(functional.normalize(3 * q), functional.normalize(k), t)
    ),
}


@quick
@given(SEEDS, temperatures, st.sampled_from(list(KINDS)))
def test_a_temperature_is_called_one(seed, t, kind):
    found = profile_loss(KINDS[kind](t), *drawn(seed))
    assert found.sharpness == pytest.approx(1 / t, rel=1e-4) and found.r2 > 1 - 1e-6
    assert found.sharpness != pytest.approx(1.01 / t, rel=1e-3)
    assert found.nearest[0].angle < 0.5 and found.scale_free == (kind in ("views", "of any length"))
    assert (found.asymmetry > 0.1) == (kind == STOPPED)
    said = "a gradient is stopped" if kind == STOPPED else "as loud as InfoNCE"
    assert f"{said}: a temperature" in str(found)


@quick
@given(SEEDS, temperatures, st.floats(0, 4))
def test_a_held_tilt_has_the_sharpness_of_its_sum(seed, t, beta):
    def found(beta, through):
        options = dict(temperature=t, beta=beta, tau_plus=0.0, weights_gradient=through)
        return profile_loss(methods.build("hcl", **options), *drawn(seed))

    assert found(beta, False).sharpness == pytest.approx((1 + beta) / t, rel=1e-4)
    assert not found(beta + 0.5, True).verdict.startswith("a temperature")  # the near miss


def test_with_labels_every_other_embedding_of_the_class_is_a_positive():
    z, y = torch.cat(drawn()), torch.arange(16) % 4

    def scl(z, labels):
        contrast = Contrast.from_views(*z.chunk(2), labels[:8]).rescaled()
        return methods.build("scl", temperature=0.2).loss(contrast)

    found = profile_loss(scl, z, y)
    assert found.sharpness == pytest.approx(5, rel=1e-6) and found.nearest[0].angle < 0.1
    assert len(found.loudness) == 4 * 6  # pairs of four
    other = profile_loss(lambda z, y: scl(z, torch.arange(16) // 2), z, y)
    assert other.verdict != found.verdict


# --- what is no function of the similarities of these points


def queued(q, k, queue=rows(20, 64, seed=1)):  # noqa: B008
    scores = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1)
    return functional.cross_entropy(scores / 0.2, torch.zeros(len(q), dtype=torch.long))


class Classified(nn.Linear):
    """ArcFace without its margin: a weight for each class, and a count of the calls."""

    calls = 0

    def forward(self, a, b):
        self.calls += 1
        return functional.cross_entropy(8 * super().forward(a), torch.arange(len(a)))


@pytest.mark.parametrize("loss", [queued, Classified(64, 9)])
def test_other_keys_and_weights_are_seen_in_the_residual(loss):
    """A module is called in float64, and keeps its state."""
    found = profile_loss(loss, *drawn())
    assert getattr(loss, "calls", 0) == 0
    assert found.residual > 0.04 and found.sharpness is None and found.nearest == ()
    assert "not a function of these points' similarities alone" in str(found)
    assert found.latex("mine").count("--") == 6
    found = profile_loss(lambda q, k: queued(q, k, k), *drawn())  # keys among the points
    assert found.residual < 1e-10 and "--" not in found.latex("mine")


# --- loudness and balance


@quick
@given(SEEDS, st.floats(0.1, 0.5), st.sampled_from([0.0, 1.0, 2.5]))
def test_the_nearest_families_are_those_of_the_loss(seed, t, power):
    """Its loudness is found, and the angles are those between gradients of losses."""
    z = drawn(seed, 1.0)
    method = methods.build("focal", temperature=t, loudness=power)
    one, two, three = profile_loss(method, *z).nearest

    def gradient(loss):
        leaves = [x.clone().requires_grad_() for x in z]
        return torch.cat(torch.autograd.grad(loss(*leaves), leaves)).flatten()

    def angle(t):
        other = gradient(methods.build("simclr", temperature=t))
        cosine = functional.cosine_similarity(gradient(method), other, dim=0)
        return math.degrees(math.acos(min(1.0, float(cosine))))

    assert two.angle < 0.5 and two.temperature == pytest.approx(t, rel=0.05)
    assert two.loudness == pytest.approx(power, abs=0.15)
    assert one.angle == pytest.approx(angle(one.temperature), abs=1e-3)
    assert one.angle <= min(angle(one.temperature * x) for x in (0.9, 0.99, 1.01, 1.1)) + 0.02
    assert three.angle <= two.angle + 0.02 <= one.angle + 0.04


@quick
@given(SEEDS, st.booleans())
def test_balance_is_the_mean_slope_of_the_logit_over_that_at_the_answer(seed, linear):
    """Summed over anchors, each weighed by 1 − p; 1 for differences of similarities alone."""
    f = (lambda s: 5 * s) if linear else torch.atanh
    z1, z2 = drawn(seed)
    found = profile_loss(lambda q, k: functional.cross_entropy(f(q @ k.T), torch.arange(8)), z1, z2)
    s = z1 @ z2.T
    p, own = f(s).softmax(1), torch.eye(8, dtype=torch.bool)
    slope = 5 if linear else 1 / (1 - s**2)
    push, pull = (p * slope)[~own].sum(), ((1 - p) * slope)[own].sum()
    assert found.balance == pytest.approx(float(push / pull), rel=1e-6)
    assert (abs(found.balance - 1) < 1e-9) == linear == ("push/pull" not in str(found))
    if linear:  # one less the share of the answer, and not of its square
        torch.testing.assert_close(found.loudness, 1 - p[own], rtol=0.02, atol=1e-9)
        assert (found.loudness / (1 - p[own].square()) - 1).abs().max() > 0.02


# --- silence, and what else a profile shows


@quick
@given(SEEDS, st.floats(0.05, 0.3))
def test_silent_negatives_are_those_that_a_mask_takes(seed, level):
    def masked(q, k):
        s = q @ k.T
        far = (s > level) & ~torch.eye(len(q), dtype=torch.bool)
        return functional.cross_entropy((s / 0.1).masked_fill(far, -torch.inf), torch.arange(8))

    z1, z2 = drawn(seed, 0.4)
    s = (z1 @ z2.T)[~torch.eye(8, dtype=torch.bool)]
    found = profile_loss(masked, z1, z2)
    assert found.silent == pytest.approx(float((s > level).double().mean()))
    assert ("silent" in str(found)) == (found.silent > 0) and found.attracted == 0
    drawn_in = profile_loss(lambda q, k: masked(q, k) - 0.1 * (q @ k.T).mean(), z1, z2)
    assert drawn_in.silent == 0 and drawn_in.attracted >= found.silent


def test_only_so_many_pairs_are_used_as_are_independent_or_asked_for():
    many = drawn(pairs=100)
    assert profile_loss(KINDS["one way"](0.1), *many).points == 64
    assert profile_loss(KINDS["one way"](0.1), *many, pairs=9).points == 18
    y = torch.arange(8).repeat_interleave(25)
    assert profile_loss(lambda z, y: -(z @ z.T).sum(), torch.cat(many), y).points == 64


# --- losses that were once named wrong or unclearly, by what is true of them


def of_nearest(a, b):
    """InfoNCE at t = 0.1 over the two most similar negatives."""
    s = a @ b.T
    rivals = s.masked_fill(torch.eye(len(a), dtype=torch.bool), -torch.inf)
    far = s < rivals.topk(2, 1).values[:, 1:]
    return methods.build("simclr", temperature=0.1).pairs(a, b, excluded=far)


def prototypes(a, b, table=rows(16, 128, seed=5).float()):  # noqa: B008
    return functional.cross_entropy(a @ table.T, torch.arange(len(a)) % 16)


def half_mispaired(a, b):
    half = len(a) // 2
    return entropy(a, torch.cat([b[:half].roll(1, 0), b[half:]]))


def hinge(a, b):
    s = a @ b.T
    return (s - s.diagonal()[:, None] + 0.88).relu().sum()


def mine_bound(a, b):
    """The bound of Belghazi et al. (MINE), whose rivals are those of the whole batch."""
    s = a @ b.T / 0.1
    own = torch.eye(len(a), dtype=torch.bool)
    return s[~own].logsumexp(0) - s.diagonal().mean()


def multi_similarity(a, b, alpha=2.0, beta=20.0, base=0.5):
    """The loss of Wang et al. over all pairs."""
    s, own = a @ b.T, torch.eye(len(a), dtype=torch.bool)
    pull = (-alpha * (s.diagonal() - base)).exp().log1p() / alpha
    push = (beta * (s - base)).exp().masked_fill(own, 0).sum(1).log1p() / beta
    return (pull + push).mean()


def there_and_back(a, b):
    return entropy(a, b, 0.05) + entropy(b, a, 0.2)


SIGLIP = methods.build("siglip", temperature=0.1, bias=-10.0).pairs
DCL = methods.build("dcl", temperature=0.1).pairs
ONE = "a temperature, on these embeddings"
CHOICE = ": a temperature in its choice of negatives, but not in how hard it pushes; sweep γ, not t"
LOST = "every anchor has won, and nothing is left to judge"
# the loss, a recorded batch, γ and what the sentence says
NAMED = [
    (of_nearest, "cifar10 early", 10, "its choice among the negatives that are not"),
    (mine_bound, "scifact middle", 10, "4.4° with loudness (1 − p)^0 at t = 0.0911: a"),
    (multi_similarity, "scifact early", 20, CHOICE),
    (
        there_and_back,
        "cifar10 middle",
        5.67,
        "though near t = 0.0679 on these embeddings; 1/γ is another, so sweep t from 0.0679 to 0.176",
    ),
    (there_and_back, "scifact middle", 5.08, "though near t = 0.196 on these embeddings"),
    (lambda a, b: entropy(a, b, 1e-5), "cifar10 early", None, ", the grid's edge"),
    (lambda a, b: entropy(a.bfloat16(), b.bfloat16()), "scifact late", 10, ONE),
    (prototypes, "cifar10 early", None, "similarities alone (other keys, a te"),  # of float32
    (half_mispaired, "cifar10 late", 10, "far from SimCLR at every t"),
    (SIGLIP, "cifar10 late", 9.96, "nearly a temperature in its choice of negatives, but not in"),
    (hinge, "cifar10 early", None, "a constant push on the negatives that are not silent"),
    (lambda a, b: -(a * b).sum(), "cifar10 early", None, "no negative is pushed"),
    (DCL, "cifar10 late", 10, "a temperature with a loudness of its own, on these embeddings"),
    (methods.build("hcl"), "cifar10 late", None, "on these embeddings; 1/γ is another, so sweep t"),
]


@pytest.mark.parametrize(("loss", "batch", "gamma", "sentence"), NAMED)
def test_what_is_true_of_a_loss_is_said(loss, batch, gamma, sentence):
    """Most of these sentences were once untrue."""
    found = profile_loss(loss, *torch.from_numpy(evidence.stages()[batch]))
    assert sentence in str(found) and ("so sweep" in str(found)) == ("so sweep" in sentence)
    assert gamma is None or found.sharpness == pytest.approx(gamma, rel=1e-3)


@pytest.mark.parametrize("factor", [1e-300, 1e300])
def test_a_constant_factor_does_not_count(factor):
    found = profile_loss(lambda a, b: factor * entropy(a, b), *drawn(noise=1.0))
    assert found.sharpness == pytest.approx(10, rel=1e-6) and found.verdict == ONE


def test_a_summary_gives_the_range_of_sharpness_and_one_verdict():
    both = [profile_loss(KINDS["one way"](t), *drawn()) for t in (0.1, 0.2)]
    changes = "γ = 5.00 to 10.00: a temperature that changes with the batch, on these embeddings"
    assert summary(both) == changes
    free = profile_loss(KINDS["of any length"](0.1), *drawn())
    won = profile_loss(KINDS["one way"](0.005), *drawn(noise=0.1))
    assert summary([free, won]) == f"γ = 10.00: {ONE}; judged on 1 of 2 batches"
    assert summary([won, won]) == str(won) == LOST
    bent = profile_loss(lambda q, k: entropy(q, k, 0.5, 0.05), *drawn(noise=1.0))
    assert summary([free, bent]).partition(": ")[2] == bent.verdict


# --- misuse

Z1, Z2 = drawn()
TWICE = torch.cat([Z1[:1], Z1[:-1]])
NOISE = nn.Dropout()


@pytest.mark.parametrize(
    "loss, a, b, sentence",
    [
        (entropy, Z1, Z2[:, :9], r"embeddings must be .* got \(8, 64\), \(8, 9\)"),
        (entropy, Z1[:3], Z2[:3], "need at least 8 points in at least 8 dimensions, got 6 in 64"),
        (entropy, Z1, torch.cat([Z2] * 8), "give at most 64 queries and keys, got 8 and 64"),
        (entropy, TWICE, Z2, "the points must be linearly independent; give no row twice"),
        (lambda z, y: (z @ z.T).square().sum(), Z1, torch.arange(8), "have a positive and a neg"),
        (lambda a: a.sum(), Z1, Z2, "the loss of float64 embeddings raised TypeError"),
        (lambda a, b: a @ b.T, Z1, Z2, r"loss must return a scalar tensor, got \(8, 8\)"),
        (lambda a, b: a.detach().sum(), Z1, Z2, "no gradient, even with the pairs mixed up; look"),
        (lambda a, b: (0 * (a @ b.T)).sqrt().sum(), Z1, Z2, "must be finite, got 0.0 and nan"),
        (lambda a, b: entropy(NOISE(a), b), Z1, Z2, "another gradient: the loss is random"),
    ],
)
def test_misuse_gets_one_sentence(loss, a, b, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        profile_loss(loss, a, b)
    assert "\n" not in str(caught.value)


# --- the command, and the example

FILE = """
import torch

def loss(q, k):
    return torch.nn.functional.cross_entropy(q @ k.T / 0.25, torch.arange(len(q)))

def labelled(z, labels):  # SupCon
    own = torch.eye(len(z), dtype=torch.bool)
    positives = (labels[:, None] == labels) & ~own
    log_p = (z @ z.T / 0.25).masked_fill(own, -torch.inf).log_softmax(1)
    return -log_p[positives].mean()

half = 0.5
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file with losses; threads and the path are restored."""
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    return str(tmp_path / "mine.py")


def test_the_command_says_it_of_three_stages_of_two_trainings(mine, prints, refuses):
    *lines, last = prints("profile", mine).splitlines()
    assert last.startswith("in short        γ = 4.00: a temperature, on these embeddings")
    assert [" ".join(line.split()[:2]) for line in lines] == [*evidence.stages()]
    assert all("γ = 4.00, 0.0° from SimCLR at t = 0.25" in line for line in lines)
    printed = json.loads(prints("profile", f"{mine}:labelled", "--labels", "--json"))
    for found in printed["batches"].values():  # SimCLR would be 0° from itself
        assert found["sharpness"] == pytest.approx(4) and found["nearest"][0]["angle"] > 1
    assert "it has loss, labelled" in refuses("profile", f"{mine}:half")
    assert "of (z, labels) add --labels" in refuses("profile", f"{mine}:labelled")


def test_the_command_takes_embeddings_and_prints_a_table(mine, tmp_path, prints, refuses):
    np.save(tmp_path / "mine.npy", np.stack(drawn(pairs=20)))
    np.savez(tmp_path / "mine.npz", np.stack(drawn()))
    words = ["profile", mine, "--embeddings", tmp_path / "mine.npy", "--batch"]
    header, *lines = prints(*words, "8", "--latex").splitlines()
    assert header.startswith("loss & ") and header.count("&") == lines[0].count("&")
    named = [["pairs 0–7", "4.00"], ["pairs 8–15", "4.00"]]
    assert [line.split(" & ")[:2] for line in lines] == named
    assert re.search(r"at least 21 pairs .*, got \(2, 20, 64\)", refuses(*words, "21"))
    for file in (mine, tmp_path / "mine.npz"):
        refused = refuses("profile", mine, "--embeddings", file)
        assert f"{Path(file).name} is not a .npy array of numbers" in refused


def test_a_batch_without_a_value_is_named_and_the_others_are_printed(mine, tmp_path, capsys):
    undefined = "return ((q * k).sum(1).min() - 0.1).log() * 0 + torch"
    (tmp_path / "mine.py").write_text(FILE.replace("return torch", undefined, 1))
    assert cli.main(["profile", mine]) == 2
    printed = capsys.readouterr()
    lost = re.findall(r"(\w+ \w+): loss and gradient must be finite, got nan", printed.err)
    assert 0 < len(lost) < 6 and len(printed.out.splitlines()) == 7 - len(lost)
    assert not any(name in printed.out for name in lost)


@pytest.mark.parametrize("command", ["profile", "null"])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"x = 1\nloss = 1 / 0\n", "mine.py, line 2: ZeroDivisionError: division by zero"),
        (b"def loss(:\n", "mine.py, line 1: SyntaxError: "),
        ("# é".encode("latin-1"), "mine.py: SyntaxError: "),
        (b"import sys\nsys.exit(3)", "mine.py, line 2: SystemExit: 3"),
        (b"CONFIGURATIONS = [{}] * 9\ndef loss(a, b): pass", "1 to 8 dictionaries, got 9"),
        (b"class loss:\n def __init__(self, k): pass", "missing 1 required positional argument"),
    ],
)
def test_a_file_that_cannot_be_run_gets_one_sentence(mine, refuses, command, content, sentence):
    Path(mine).write_bytes(content)
    assert sentence in refuses(command, mine)
