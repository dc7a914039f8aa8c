"""A choice that is repeated: what it measures, and that its interval contains the choosing."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from hnlib import experiments
from hnlib.experiments import compared, selection
from hnlib.experiments.selection import cross_fit
from hnlib.experiments.words import interval


def family(rng, truths, seeds, examples=24):
    """Scores in points [settings, seeds, examples]: truth, a model's luck and an example's."""
    luck = rng.normal(0, 1, (len(truths), seeds, 1))
    own = rng.normal(0, 3, (len(truths), seeds, examples))
    return (np.array(truths)[:, None, None] + luck + own) / 100


def by_loops(ours, base, splits, seeds, best=1):
    """T in points, one split after the other."""
    rng, count, found = np.random.default_rng(0), ours.shape[2], []
    halves = [rng.permutation(count) < count // 2 for _ in range(splits)]
    halves += [~half for half in halves]
    for half, part in itertools.product(halves, itertools.combinations(seeds, 2)):
        others, points = [s for s in seeds if s not in part], []
        for side in (ours, base):
            means = [np.mean([one[s][half].mean() for s in part]) for one in side]
            chosen = np.argsort(means)[::-1][:best]
            points.append(np.mean([side[k][s][~half].mean() for k in chosen for s in others]))
        found.append(100 * (points[0] - points[1]))
    return float(np.mean(found))


@pytest.mark.parametrize("best", [1, 2])
def test_the_choice_is_repeated_as_loops_repeat_it(best):
    rng, splits = np.random.default_rng(1), 5
    ours, base = family(rng, [0, 1, 2], 4), family(rng, [1, 1, 0], 4)
    found = cross_fit(ours, base, splits, best)
    by = functools.partial(by_loops, ours, base, splits, best=best)
    assert found.difference == pytest.approx(by(range(4)), abs=1e-9)
    without = [by([s for s in range(4) if s != left]) for left in range(4)]
    assert found.between**2 == pytest.approx(3 * np.var(without))
    assert np.mean(without) == pytest.approx(found.difference)
    other = by_loops(ours, base, splits, range(4), best + 1)
    assert found.difference != pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize(("seeds", "share"), [(5, 1e-6), (24, 0.1)])
def test_without_a_choice_it_is_the_paired_interval(seeds, share):
    """24 are halved in random ways, nearly as in all, which would take hours."""
    rng = np.random.default_rng(3)
    ours, base = family(rng, [1], seeds), family(rng, [0], seeds)
    low, high = stats.ttest_rel(100 * ours[0].mean(1), 100 * base[0].mean(1)).confidence_interval()
    near = functools.partial(pytest.approx, abs=share * (high - low))
    found = cross_fit(ours, base, splits=1)
    assert (found.low, found.high) == (near(low), near(high))
    assert cross_fit(ours[:, ::2], base[:, ::2], splits=1).low != near(low)  # every other seed


def test_the_interval_contains_the_choosing():
    """The truth is what such a choice gains; fresh runs of the chosen pair know nothing of it."""
    rng, missed, chosen_pairs = np.random.default_rng(9), 0, 0
    for _ in range(80):
        truths = [rng.normal(size=size) for size in (16, 4)]
        ours, base = (family(rng, truth, 16) for truth in truths)
        best = [side[:, :4].mean((1, 2)).argmax() for side in (ours, base)]
        judged = [100 * side[k, 4:].mean(1) for side, k in zip((ours, base), best)]
        low, high = stats.ttest_rel(*judged).confidence_interval()
        for side, k in zip((ours, base), best):  # the others have no fresh runs
            side[np.ix_(np.arange(len(side)) != k, range(4, 16))] = np.nan
        found = cross_fit(ours, base, splits=5)
        half, full = (np.subtract(*(gain(rng, x, *n) for x in truths)) for n in ((2, 12), (4, 24)))
        missed += not found.low <= half <= found.high
        chosen_pairs += not low <= full <= high
    assert missed <= 0.08 * 80 < chosen_pairs


def gain(rng, truths, seeds, examples):
    """Return the mean true score, in points, of what so many seeds and examples choose."""
    deviation = math.sqrt((1 + 9 / examples) / seeds)
    return truths[(truths + deviation * rng.normal(size=(4000, len(truths)))).argmax(1)].mean()


def test_a_seed_that_lacks_a_setting_decides_and_does_not_choose():
    rng = np.random.default_rng(4)
    ours, base = family(rng, [0, 9], 6), family(rng, [0], 6)
    ours[0, 3:] = np.nan
    few, more = cross_fit(ours[:, :3], base[:, :3]), cross_fit(ours, base)
    assert few.df == more.df == 2
    seen = 100 * (ours[1] - base[0]).mean(1)  # the second setting is always chosen
    assert few.difference == pytest.approx(seen[:3].mean())
    # each way to choose with one seed leaves two of the first and all of the others
    weights = np.array([2, 2, 2, 3, 3, 3]) / 15
    assert more.difference == pytest.approx(seen @ weights)


def test_a_seed_that_one_side_lacks_is_left_out_where_no_two_only_decide():
    """Alone it shows no variance, so there would be no degree of freedom; two count."""
    rng = np.random.default_rng(5)
    ours, base = family(rng, [0, 9], 8), family(rng, [0], 8)
    for lacking in (slice(None), 0):  # the last seed has no setting, or one
        few = ours[:, :6].copy()
        few[lacking, 5] = np.nan
        assert vars(cross_fit(few, base[:, :6])) == vars(cross_fit(few[:, :5], base[:, :5]))
    ours[0, 6:] = np.nan
    assert cross_fit(ours, base).df == 1 and cross_fit(ours, base).seeds == (*range(8),)


def test_an_effect_names_the_seeds_that_count(monkeypatch):
    """Not one that is left out because it alone only decides."""
    rng = np.random.default_rng(7)
    ours, base = ([dict(zip(range(10, 15), rng.random((5, 24))))] for _ in range(2))
    ours[0] |= {15: rng.random(24)}
    monkeypatch.setattr(selection, "_scores", lambda found, family, *_: family)
    assert selection._effect(None, ours, base, "", "").seeds == (*range(10, 15),)


def test_where_nobody_can_judge_a_choice_the_others_count():
    """One seed chooses, and the other has one of two settings, each of which some halves choose."""
    rng = np.random.default_rng(6)
    ours, base = rng.random((2, 2, 24)), rng.random((1, 2, 24))
    ours[1, 1] = np.nan
    found = cross_fit(ours, base)
    assert math.isfinite(found.difference) and found.df == 0


def test_a_chosen_arm_stands_for_its_candidates():
    longer = experiments.recorded("images-longer")
    named = selection.effect(longer, "released", "temperature")
    assert (
        named == selection.effect(longer, "released", "t0.*") and named.seeds == longer.design.seeds
    )
    assert named.difference != selection.effect(longer, "released", "t0.2*").difference


def test_a_repeated_choice_stands_beside_the_published(monkeypatch):
    """As it was corrected there, under its own name; a choice of your own has no published twin."""
    monkeypatch.setattr(compared, "MADE", {})
    tuned = experiments.recorded("search-tilts")
    both = selection.effects(tuned, "tilt", "temperature")
    assert [effect.family for effect in both.values()] == [2, 2]
    monkeypatch.setattr(compared, "recorded", lambda name: tuned)
    rows = experiments.beside().reset_index().to_dict("records")
    assert [row["effect, published"] for row in rows] == [*map(interval, both.values())]
    assert [row["effect, here"] for row in rows] == [*map(interval, both.values())]
    assert all(row["comparison"].endswith("tilt − temperature, choice repeated") for row in rows)
    assert not compared.is_recorded(tuned, "tilt", "mine", "ndcg", "static")


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        (np.full((2, 4, 1), 0.5), "need two examples or more, got 1; use comparisons.between"),
        (np.full((2, 4, 6), 87.5), "at most 1, got 87.5; divide percents by 100"),
        (np.full((2, 4, 6), np.nan), "need a seed that has all settings, got 4 that have some"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_one_number_a_run_and_percents_are_refused(scores, says):
    with pytest.raises(ValueError, match=says):
        cross_fit(scores[:1], scores)
