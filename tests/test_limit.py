"""How many documents d dimensions serve: the geometry, the losses, the search, and what is made of the ledger."""

import importlib
import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scripts import ROOT

from hnbook import limit
from hnlib import negatives, objectives
from hnlib.contrast import Contrast


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/recorders")
    return importlib.import_module("limit")


def by_hand(scores, relevant):
    """The margins of queries, document by document."""
    found = []
    for row, good in zip(scores, relevant):
        rest = [score for j, score in enumerate(row) if j not in good]
        found.append(min(row[i] for i in good) - max(rest))
    return found


@pytest.mark.parametrize(("n", "k"), [(4, 1), (6, 2), (7, 3)])
def test_margins_and_subsets_are_those_of_every_query(n, k):
    scores = np.random.default_rng(n).normal(size=(math.comb(n, k), n))
    assert [*map(tuple, limit.subsets(n, k))] == [*itertools.combinations(range(n), k)]
    np.testing.assert_array_equal(
        limit.margins(scores, limit.subsets(n, k)), by_hand(scores, limit.subsets(n, k))
    )


@pytest.mark.parametrize("n", [5, 6, 11, 24])
def test_the_curve_s_query_is_the_polynomial_that_peaks_at_its_two_documents(n):
    """Up to a constant and a scale of each query."""
    q, x = limit.curve(n)
    angle = 2 * np.pi * np.arange(n) / n
    a, b = angle[limit.subsets(n)].T[:, :, None]
    wanted = -(1 - np.cos(angle - a)) * (1 - np.cos(angle - b))
    centred = [one - one.mean(1, keepdims=True) for one in (q @ x.T, wanted)]
    unit = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in centred]
    np.testing.assert_allclose(*unit, atol=1e-12)
    for vectors in (q, x):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)


def losses(s, hit, t, beta, dcl):
    """The loss of each query [queries], by the library or torch; s carries a gradient."""
    contrast = Contrast.from_similarity(s, hit, ~hit)
    scale = float(hit.shape[1] - 2)
    if dcl:
        options = dict(temperature=t, scale=scale, loudness=0.0, reduction="none")
        return objectives.info_nce(contrast, contrast.uniform_log_weights, **options)
    w = negatives.tilted(beta, t, weights_gradient=False)(contrast).exp() * scale
    inner = torch.where(hit, 1.0, w) * (s / t).exp()
    if beta == 0:  # LIMIT's loss is cross-entropy with two equal targets
        return torch.nn.functional.cross_entropy(s / t, hit / 2, reduction="none")
    return inner.sum(1).log() - (s / t)[hit].view(-1, 2).mean(1)


def test_losses_and_gradients_are_those_of_the_library(recorder):
    settings = [(0.1, 0.0, False), (0.05, 4.0, False), (0.1, 0.0, True), (0.4, 1.0, False)]
    relevant = torch.from_numpy(limit.subsets(7))
    hit = torch.zeros(21, 7, dtype=torch.bool).scatter_(1, relevant, True)
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(4, 21, 7, generator=generator, dtype=torch.double).tanh().requires_grad_()
    t, beta, dcl = (torch.tensor(values)[:, None, None] for values in zip(*settings))
    found, pull = recorder.residuals(s.detach(), t.double(), beta.double(), dcl, relevant)
    for i, setting in enumerate(settings):
        each = losses(s[i], hit, *setting)
        (gradient,) = torch.autograd.grad(each.sum(), s)
        torch.testing.assert_close(found[i], each.mean().detach())
        torch.testing.assert_close(pull[i], gradient[i] * setting[0], rtol=1e-6, atol=1e-12)


def test_a_run_does_not_depend_on_those_beside_it(recorder):
    runs = [recorder.Run("fixed", 0.1, 0), recorder.Run("tilt", 0.1, 0, 4.0)]
    runs += [recorder.Run("dcl", 0.1, 1), recorder.Run("annealed", 0.01, 0)]
    together = recorder.train(runs, 6, 3, 100, 0.01)
    for row, run in zip(together, runs):  # but for rounding, which depends on the place in memory
        assert row == pytest.approx(recorder.train([run], 6, 3, 100, 0.01)[0], abs=1e-4)
    assert together[0]["last"] != together[2]["last"]


def test_a_random_start_ends_when_solved_and_a_solution_has_to_be_kept(recorder):
    (found,) = recorder.train([recorder.Run("fixed", 0.1, 0)], 4, 4, 500, 0.01)
    assert found["solved"] and found["step"] < 500 and found["margin"] > 0
    warm, cold = recorder.train([recorder.Run("curve", t, 0) for t in (0.5, 0.01)], 8, 4, 200, 1e-3)
    assert (warm["best"], warm["step"], warm["solved"]) == (1, 0, False) and warm["last"] < 1
    assert cold["solved"] and cold["last"] == 1


def test_an_annealed_run_reaches_its_temperature_half_way(recorder):
    state = recorder.SimpleNamespace(
        goal=torch.tensor([0.02, 0.02]), cooled=torch.tensor([True, False])
    )
    at = [recorder.temperature(state, share).tolist() for share in (0, 0.25, 0.5, 1)]
    assert [one[1] for one in at] == pytest.approx([0.02] * 4)
    assert [one[0] for one in at] == pytest.approx([0.5, 0.1, 0.02, 0.02])


@pytest.mark.parametrize("first", [4, 10, 28])
def test_the_search_finds_the_last_n_that_is_solved(recorder, first):
    for critical in range(3, 46):
        low, high, tried = 3, None, []
        while (n := recorder.proposal(low, high, first, 45)) is not None:
            tried.append(n)
            low, high = (n, high) if n <= critical else (low, n)
        assert low == critical and len(tried) == len({*tried})
        assert critical == 45 or critical + 1 == high


def rows(d, solved, part="fixed", t=0.1):
    """Rows of a ledger: solved[n] has a word for each seed."""
    table = [(n, seed, yes) for n, each in solved.items() for seed, yes in enumerate(each)]
    return [dict(part=part, d=d, t=t, beta=0.0, n=n, seed=s, solved=y) for n, s, y in table]


def test_critical_numbers_are_of_searches_that_have_ended():
    yes, some, no = [True] * 3, [True, False, True], [False] * 3
    ledger = rows(4, {8: yes, 10: some, 9: no}) + rows(5, {14: yes, 18: no}) + rows(6, {45: yes})
    ledger += rows(7, {4: some})
    found = limit.critical(pd.DataFrame(ledger))
    assert [*found[["d", "n", "capped"]].itertuples(index=False, name=None)] == [
        (4, 8, False),
        (6, 45, True),
        (7, 3, False),
    ]
    assert [*limit.critical(pd.DataFrame(ledger), every=False)["n"]] == [10, 45, 4]


PLAN = """
order = [["fixed", 4], ["fixed", 5]]
[[parts]]
name = "fixed"
temperatures = [0.1, 0.02]
[printed]
4 = 10
5 = 14
[[predictions]]
id = "X"
says = "more"
ours = "part == 'fixed' and t < 0.1"
base = "part == 'fixed' and t == 0.1"
dimensions = [4, 5]
by = "ratio"
holds = { above = 1.2 }
refuted = { below = 1.1 }
[[predictions]]
id = "Y"
says = "as printed"
ours = "t == 0.1"
dimensions = [4, 5]
by = "difference"
holds = { inside = [-2, 2] }
refuted = { outside = [-4, 4] }
"""


@pytest.mark.parametrize(
    ("ours", "base", "words"),
    [
        ([12, 17], [10, 14], ["holds", "holds"]),
        ([12, 15], [10, 14], ["refuted", "holds"]),
        ([12, 16], [10, 14], ["unresolved", "holds"]),
        ([12, None], [10, 17], ["open", "unresolved"]),
        ([10, None], [10, 17], ["refuted", "unresolved"]),
        ([12, 24], [10, 20], ["holds", "refuted"]),
    ],
)
def test_a_prediction_holds_in_every_dimension_or_fails_in_one(new_checkout, ours, base, words):
    new_checkout({"book/results/limit.toml": PLAN})
    rows = [dict(part="fixed", t=0.02, d=d, n=n) for d, n in zip((4, 5), ours) if n]
    rows += [dict(part="fixed", t=0.1, d=d, n=n) for d, n in zip((4, 5), base)]
    rows += [dict(part="fixed", t=0.05, d=4, n=1)]  # the best of several settings counts
    assert [line["verdict"] for line in limit.verdicts(pd.DataFrame(rows))] == words


def test_a_dimension_decides_once_all_its_searches_have_ended(new_checkout):
    rows = [dict(part="fixed", t=t, d=d, n=10) for t in (0.1, 0.02) for d in (4, 5)]
    new_checkout({"book/results/limit.toml": PLAN.replace("[0.1, 0.02]", "[0.1, 0.05, 0.02]")})
    assert limit.verdicts(pd.DataFrame(rows))[0]["verdict"] == "open"
    rows += [dict(part="fixed", t=0.05, d=5, n=10)]
    assert limit.verdicts(pd.DataFrame(rows))[0]["verdict"] == "refuted"


def test_the_ledger_has_each_planned_run_once_and_no_other():
    plan, ledger = limit.plan(), limit.runs()
    key = ["part", "d", "n", "t", "beta", "seed"]
    assert not ledger.duplicated(key).any()
    planned = {*limit.settings().itertuples(index=False, name=None)}
    assert {*ledger[["part", "d", "t", "beta"]].itertuples(index=False, name=None)} == planned
    assert len(limit.critical(ledger)) == len(planned), "a search has not ended"
    sizes = ledger.groupby(["part", "d", "n", "t", "beta"])["seed"].agg(set)
    assert all(seeds == {*plan["seeds"]} for seeds in sizes)
    assert (ledger["solved"] == (ledger["last"] == 1)).all()
    assert (ledger["margin"].where(ledger["solved"], -ledger["margin"]) >= 0).all()


def test_the_text_for_limit_s_authors_has_the_numbers_of_the_ledger():
    found = limit.critical(limit.runs())
    text = (ROOT / "book/upstream.txt").read_text("utf-8")
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:3] == "| d"]
    assert [row[0] for row in table] == ["d = 5", "d = 6", "d = 7", "d = 8"]
    for d, row in enumerate(table, 5):
        fixed = [limit.of(found, "fixed", d, t) for t in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)]
        assert [int(x) for x in row[1:]] == [*fixed, limit.printed()[d]]
