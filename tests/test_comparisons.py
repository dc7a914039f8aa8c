"""Paired differences, their two targets, families, equivalence and power."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect
from hnlib.training import records

seeds = st.integers(0, 10**6)
quick = settings(max_examples=12)


def bits(n=4, m=200, seed=0, gain=0.1):
    """Which images two methods of n seeds get right, bool [2, n, m], with effects of both."""
    rng = np.random.default_rng(seed)
    item, own = rng.normal(size=m), 0.3 * rng.normal(size=(2, 1, m))
    noise = 0.5 * rng.normal(size=(2, n, m)) + 0.2 * rng.normal(size=(2, n, 1))
    return item + own + noise + gain * np.array([1, 0])[:, None, None] > 0


def frame(right):
    """The table of the runs that got these images right."""
    methods, n, m = np.shape(right)
    table = pd.DataFrame({"seed": [*range(n)] * methods, "test_images": m, "dataset": "digits"})
    rows = right.reshape(-1, m)
    packed = [{"linear": records.pack(torch.tensor(row))} for row in rows]
    names = np.repeat(["hcl", "simclr"], n)
    return table.assign(method=names, linear=rows.mean(1), correct=packed)


def compare(table, ours="hcl", base="simclr", **more):
    groups = (table[table["method"] == name] for name in (ours, base))
    return comparisons.between(*groups, **more)


def test_a_seed_is_paired_on_one_kind_of_processor():
    table = frame(bits())
    table["environment"] = [{"hardware": {"cpu": "A"}}] * len(table)
    assert compare(table) == compare(table.drop(columns="environment"))
    table.at[1, "environment"] = {"hardware": {"cpu": "A", "family": "25", "model": "1"}}
    with pytest.raises(ValueError, match=r"seed 1 ran on A 25/1 for .* and on A for .*; run one"):
        compare(table)
    assert compare(table, mixed=True) == compare(table.drop(columns="environment"))
    for where in ({"cpu": "A"}, {"cpu": "A", "gpu": "G"}):  # nor with another kind of step
        table["environment"] = [{"hardware": where}] * len(table)
        table.at[1, "environment"] = {"hardware": where | {"step": "compiled"}}
        with pytest.raises(ValueError, match=r"seed 1 ran on (A|G), step=compiled for"):
            compare(table)


# --- paired by seed


@quick
@given(seeds, st.integers(3, 8))
def test_on_these_images_it_is_the_paired_t_test(seed, n):
    right = bits(n, seed=seed)
    found = compare(frame(right))
    assume(np.ptp(right.sum(2)[0] * 1.0 - right.sum(2)[1]) > 1)  # below, rounding rules
    plain = stats.ttest_rel(*(100 * right.mean(2)))
    interval = plain.confidence_interval(0.95)
    assert (found.p, found.low, found.high) == pytest.approx((plain.pvalue, *interval))
    assert (found.seeds, found.df, found.target) == (tuple(range(n)), n - 1, "these images")


@pytest.mark.parametrize("target", ["these images", "new images"])
def test_one_seed_resolves_nothing(target):
    found = compare(frame(bits(1, gain=2.0)), target=target)
    assert (found.error, found.p, found.df) == (math.inf, 1.0, 0)
    assert comparisons.verdict(found) == comparisons.verdict(found, 5) == "unresolved"
    assert comparisons.detectable(found) == math.inf


def test_equal_differences_keep_the_error_of_rounding():
    """Two seeds agree to the image more often than two random numbers would: without this, equal
    methods are told apart in up to 12 % of such comparisons."""
    right = bits(2)
    right[:, 1] = right[:, 0]
    found = compare(frame(right))
    assert found.error == pytest.approx(100 / 200 / math.sqrt(12) / math.sqrt(2)) and found.p > 0
    assert compare(frame(right[[0, 0]])).p == 1.0


BASE = frame(bits())


@pytest.mark.parametrize(
    ("table", "more", "message"),
    [
        (BASE, {"target": "all"}, "target must be one of these images, new images, new data sets"),
        (pd.concat([BASE, BASE[:1]]), {}, r"one seed each, got seed \[0, 1, 2, 3, 0\]"),
        (BASE.assign(dataset=list("aaaabbbb")), {}, r"different images: dataset is \['a', 'b'\]"),
        (BASE.assign(linear=0.123456), {"target": "new images"}, "linear is not a share of"),
    ],
)  # fmt: skip
def test_compare_refuses(table, more, message):
    with pytest.raises(ValueError, match=message):
        compare(table, **more)


# --- new images


@quick
@given(seeds, st.integers(2, 6), st.sampled_from([37, 200]))
def test_new_images_add_their_part_and_without_bits_at_most_too_much(seed, n, m):
    table = frame(bits(n, m, seed))
    here, new = compare(table), compare(table, target="new images")
    without = compare(table.drop(columns="correct"), target="new images")
    assert not new.bound and without.bound
    d = np.subtract(*(bits(n, m, seed) * 100.0))  # two seeds share their images alone
    pairs = [np.cov(d[s], d[r])[0, 1] for s, r in itertools.combinations(range(n), 2)]
    assert new.images**2 == pytest.approx(max(np.mean(pairs), 0) / m)
    for narrow, wide in [(here, new), (new, without)]:
        assert wide.difference == narrow.difference and wide.between == narrow.between
        assert wide.error >= narrow.error and wide.p >= narrow.p - 1e-12
        assert wide.low <= narrow.low + 1e-12 and wide.high >= narrow.high - 1e-12


@quick
@given(st.floats(-5, 5), st.floats(0.01, 2), st.integers(1, 11), st.floats(0, 2))
def test_p_and_interval_agree(difference, between, df, images):
    effect = Effect(difference, between, df, "new images", images)
    for alpha in (0.5, 0.05, 0.001):
        half = float(effect.half(alpha))
        assert effect.reach(half) == pytest.approx(alpha, rel=1e-6)
    assert 2 * stats.norm.sf(abs(difference) / effect.error) <= effect.p * (1 + 1e-9)
    assert effect.p <= 2 * stats.t.sf(abs(difference) / effect.error, df) * (1 + 1e-8)
    assert (effect.p > 0.05) == (effect.low <= 0 <= effect.high) or effect.p == pytest.approx(0.05)


# --- families, equivalence, power


def test_a_family_has_holms_p_and_simultaneous_intervals():
    alone = [Effect(x, 0.2, 5, "these images") for x in (0.6, 0.9, 0.55)]
    found = comparisons.family(alone)
    p = [e.p for e in alone]  # .03, .006, .04; Holm .06, .02, .06; Bonferroni .09, .02, .12
    assert [e.p for e in found] == pytest.approx(multipletests(p, method="holm")[1])
    for e, f in zip(alone, found):
        assert f.high - f.difference == pytest.approx(0.2 * stats.t.isf(0.025 / 3, 5))
        assert comparisons.equivalence(f, 2) == pytest.approx(3 * comparisons.equivalence(e, 2))
        assert comparisons.detectable(f) > 1.2 * comparisons.detectable(e)
    assert comparisons.family(alone[:1])[0].p == alone[0].p and comparisons.family([]) == []
    with pytest.raises(ValueError, match="in a family already"):
        comparisons.family(found)


@quick
@given(seeds, st.integers(3, 9), st.floats(0.1, 3))
def test_equivalence_is_two_one_sided_tests(seed, n, margin):
    d = np.random.default_rng(seed).normal(0.3, 0.5, n)
    effect = Effect(d.mean(), d.std(ddof=1) / math.sqrt(n), n - 1, "these images")
    p = comparisons.equivalence(effect, margin)
    assert p == pytest.approx(ttost_paired(d, 0 * d, -margin, margin)[0])
    assert (p <= 0.05) == (abs(effect.difference) + effect.half(0.1) <= margin)


def test_a_verdict_is_one_word_for_an_effect_and_a_margin():
    small, large = Effect(0.3, 0.05, 5, ""), Effect(2, 0.1, 5, "")
    for effect, margin, word, opposite in (
        (small, 0.0, "beats", "loses"),
        (small, 0.25, "leads", "trails"),
        (small, 0.5, "equivalent", "equivalent"),
        (large, 0.5, "beats", "loses"),
    ):
        behind = replace(effect, difference=-effect.difference)
        assert comparisons.verdict(effect, margin) == word
        assert comparisons.verdict(behind, margin) == opposite
    # Holm rejects what the simultaneous interval does not
    edge = comparisons.family(Effect(d, 0.4, 9, "") for d in (1.0, 5.0, 5.0))[0]
    assert edge.low < 0 and comparisons.verdict(edge) == "leads"


@pytest.mark.parametrize("n", [2, 6])
@pytest.mark.parametrize("images", [0.0, 0.2])
def test_detectable_has_the_power_it_names(n, images):
    effect = Effect(9.0, 0.54 / math.sqrt(n), n - 1, "", images)
    rng, size = np.random.default_rng(0), comparisons.detectable(effect)
    seen = np.sqrt(rng.chisquare(n - 1, 40_000) / (n - 1))
    rejected = np.abs(rng.normal(size, effect.error, 40_000)) > effect.half(0.05, seen)
    assert rejected.mean() == pytest.approx(0.8, abs=0.01)
    margin = comparisons.decidable(effect)
    inside = np.abs(rng.normal(0, effect.error, 40_000)) + effect.half(0.1, seen) <= margin
    assert inside.mean() == pytest.approx(0.8, abs=0.01)


# --- cross-validation


@quick
@given(st.integers(1, 4), st.integers(2, 10), seeds)
def test_cross_validated_is_the_t_test_with_a_wider_error(n, folds, seed):
    ours, base = np.random.default_rng(seed).normal(70, 3, (2, n, folds))
    found, share = comparisons.cross_validated(ours, base), 1 / folds
    plain = stats.ttest_rel(ours.ravel(), base.ravel())
    widening = math.sqrt(1 + n * folds * share / (1 - share))  # of the standard error
    assert found.difference == pytest.approx(plain.statistic * found.error / widening)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(plain.statistic) / widening, n * folds - 1))
    assert found.p > plain.pvalue  # the plain test would be refused here


def test_new_data_sets_are_judged_by_the_folds_of_the_seeds_that_both_groups_have():
    tables = np.random.default_rng(0).normal(0.7, 0.03, (2, 4, 10))
    groups = [
        pd.DataFrame({"seed": seeds, "svm": table.mean(1), "svm_folds": [*table]})
        for seeds, table in zip(([3, 1, 2, 4], [4, 3, 2, 0]), tables)
    ]
    found = comparisons.between(*groups, "svm", "new data sets")
    ours, base = 100 * tables[0][[2, 0, 3]], 100 * tables[1][[2, 1, 0]]  # of the seeds 2, 3, 4
    assert found.seeds == (2, 3, 4)
    assert found.error == pytest.approx(comparisons.cross_validated(ours, base).error)
    assert found.error != pytest.approx(comparisons.cross_validated(ours, base[::-1]).error)


@quick
@given(st.integers(1, 4), st.integers(2, 10), st.integers(20, 2000))
def test_equal_scores_of_folds_are_equal_but_for_rounding(n, folds, graphs):
    group = pd.DataFrame({"seed": [*range(n)], "svm": 0.7, "graphs": graphs})
    group["svm_folds"] = [np.full(folds, 0.7)] * n
    found = comparisons.between(group, group, "svm", "new data sets")
    rounding = 100 / (graphs / folds) / math.sqrt(12)
    widening = math.sqrt(1 / (n * folds) + 1 / (folds - 1))
    assert found.difference == 0 and found.error == pytest.approx(rounding * widening)
