"""Numbers derived from frozen records: effects, intervals, p-values, choices, words and verdicts.

Each is computed here a second time from the lines of `frozen/records.jsonl`, by scipy, statsmodels
and loops of numpy, without anything that reads, chooses or compares in `hnlib`. The records are
made up and no script writes them, so what differs is a change of what a comparison means. A kind of
comparison that is new gets arms, lines and a test of its own.
"""

import base64
import functools
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from hnbook import headlines
from hnbook.comparison_tables import OneVariance
from hnbook.headlines import HEADLINES, Headline, formatted
from hnlib import experiments
from hnlib.experiments import comparisons, selection
from hnlib.training import store

FROZEN = Path(__file__).with_name("frozen")
LINES = [json.loads(line) for line in (FROZEN / "records.jsonl").read_text().splitlines()]
GRID, FRESH = (0, 1, 2, 3, 4), (10, 11, 12, 13, 14, 15)  # seeds that choose, and that confirm
NEVER = {"tau_plus": 0.0, "weights_gradient": False}
#: Method and options of each arm
ARMS = {f"t{t} b0": ("simclr", {"temperature": t}) for t in (0.5, 0.2, 0.1)}
TEMPERATURES, CELLS = [*ARMS], [(0.5, 0.0), (0.2, 0.0), (0.1, 0.0)]
for t, beta in itertools.product((0.5, 0.2), (1.0, 3.0)):
    ARMS[f"t{t} b{beta}"] = ("hcl", {"temperature": t, "beta": beta, **NEVER})
    CELLS.append((t, beta))
TILTS = [*ARMS][3:]
ARMS |= {name: (name, {"temperature": 0.2}) for name in ("dcl", "scl")}
ARMS["released"] = ("hcl", {"temperature": 0.5, "beta": 1.0, "tau_plus": 0.1})
ARMS |= {"labels": ARMS["scl"], "t0.5": ARMS["t0.5 b0"]}


# --- the other route


def found(arm, seeds, batch):
    """The records of an arm by seed. What one processor began another made anew, which counts."""
    method, options = ARMS[arm]
    several = {}
    for one in LINES:
        chosen = one["configuration"]
        same = (chosen["method"], chosen["batch_size"]) == (method, batch)
        if same and chosen["seed"] in seeds and options.items() <= chosen["options"].items():
            several[chosen["seed"]] = one
    return several


@functools.cache
def right(arm, metric="linear", seeds=GRID, batch=64):
    """Which images were right, 0 or 1 [seeds, images]."""
    records = found(arm, seeds, batch)
    texts = [records[seed]["correct"][metric] for seed in seeds]
    count = 300 if "validation" in metric else 500
    packed = np.array([[*base64.b64decode(text)] for text in texts], np.uint8)
    return np.unpackbits(packed, axis=1)[:, :count].astype(float)


@functools.cache
def points(arm, metric="linear", seeds=GRID, batch=64):
    """Accuracies in points by seed: those of the metrics, which are rounded."""
    exact = 100 * right(arm, metric, seeds, batch).mean(1)
    kept = [100 * one["metrics"][metric] for _, one in sorted(found(arm, seeds, batch).items())]
    np.testing.assert_allclose(exact, kept, atol=1e-4)
    return exact


def best(arms, batch=64):
    """The arm with the highest mean validation accuracy."""
    return max(arms, key=lambda arm: points(arm, "linear_validation", batch=batch).mean())


def difference(ours, base, metric="linear", seeds=GRID):
    return points(ours, metric, seeds) - points(base, metric, seeds)


def interval(d, family=1):
    """Mean, ends and p of the paired t test, the ends by Bonferroni."""
    plain = stats.ttest_1samp(d, 0)
    ends = plain.confidence_interval(1 - 0.05 / family)
    return d.mean(), ends.low, ends.high, plain.pvalue


def numbers(effect):
    return effect.difference, effect.low, effect.high, effect.p


def text(mean, low, high):
    """An effect as pages print it."""
    ends = [f"{x:+.{2 if abs(x) < 0.05 else 1}f}" for x in (low, high)]
    return f"{mean:+.1f} [{', '.join(ends)}]".replace("-", "−")


def plain(words):
    return words.replace("\u00a0", " ")


def word(d, margin):
    """What the difference shows of a margin."""
    _, low, high, p = interval(d)
    if low > margin or high < -margin:
        return "beats" if low > margin else "loses"
    if margin and ttost_paired(d, np.zeros(len(d)), -margin, margin)[0] <= 0.05:
        return "equivalent"
    return ("leads" if d.mean() > 0 else "trails") if p <= 0.05 else "unresolved"


# --- the comparisons


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkout with the frozen experiments and records."""
    top = tmp_path_factory.mktemp("frozen")
    for name in ("notebooks", "book/results/records", "book/results/experiments"):
        (top / name).mkdir(parents=True)
    (top / "_toc.yml").write_text("root: notebooks/one\n")
    for path in FROZEN.glob("*.toml"):
        (top / "book/results/experiments" / path.name).write_text(path.read_text())
    store.add(LINES, top / "book/results/records")
    return top


@pytest.fixture
def load(folder, monkeypatch):
    for name in ("HNLIB_RECALL", "HNLIB_RECORDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return experiments.recorded


@pytest.fixture
def grid(load):
    return load("grid")


@pytest.fixture
def confirmed(load):
    return load("confirmed")


@pytest.mark.parametrize("metric", ["linear", "knn", "linear_validation"])
def test_paired_by_seed(grid, metric):
    for arm in (*TEMPERATURES[1:], *TILTS, "dcl", "labels"):
        effect = experiments.effect(grid, arm, "t0.5 b0", metric, "whole")
        assert numbers(effect) == pytest.approx(interval(difference(arm, "t0.5 b0", metric)))
        assert (effect.df, effect.seeds) == (4, GRID)


def test_a_gain_over_another_gain_is_an_interaction(grid):
    pairs = ("t0.5 b1.0", "t0.5 b0"), ("t0.2 b1.0", "t0.2 b0")
    d = difference(*pairs[0]) - difference(*pairs[1])
    assert numbers(experiments.effect(grid, *pairs, block="whole")) == pytest.approx(interval(d))


def on_new_images(d):
    """Mean, ends and p for new images, from the differences [seeds, images].

    The seeds share their images alone, so the images' variance is the covariance of two seeds.
    """
    pairs = itertools.combinations(d, 2)
    images = max(np.mean([np.cov(*pair)[0, 1] for pair in pairs]), 0) / d.shape[1]
    n, mean = len(d), d.mean()
    seeds = d.mean(1).var(ddof=1) / n

    def half(alpha):
        t, z = stats.t.ppf(1 - alpha / 2, n - 1), stats.norm.ppf(1 - alpha / 2)
        return math.sqrt(t**2 * seeds + z**2 * images)

    p = optimize.brentq(lambda alpha: half(alpha) - abs(mean), 1e-12, 1)
    return mean, mean - half(0.05), mean + half(0.05), p


@pytest.mark.parametrize("arm", ["t0.2 b0", "t0.5 b1.0", "t0.2 b3.0"])
def test_new_images(grid, arm):
    effect = experiments.effect(grid, arm, "t0.5 b0", block="whole", target="new images")
    assert numbers(effect) == pytest.approx(on_new_images(100 * (right(arm) - right("t0.5 b0"))))


FAMILY = ("t0.2 b0", "t0.5 b1.0", "dcl", "t0.2 b3.0")


def test_a_family_is_corrected_together(grid):
    """Here over the first tilt at 0.2, where Holm, Bonferroni and neither give other p-values."""
    base = "t0.2 b1.0"
    effects = experiments.effects(grid, [(arm, base) for arm in FAMILY], blocks=["whole"])
    alone = [interval(difference(arm, base), len(FAMILY)) for arm in FAMILY]
    adjusted = multipletests([one[3] for one in alone], method="holm")[1]
    for effect, (*ends, p), holm in zip(effects.values(), alone, adjusted, strict=True):
        assert numbers(effect) == pytest.approx((*ends, holm)) and p < holm
    assert len(set(np.round(adjusted / [one[3] for one in alone], 3))) > 1  # not Bonferroni's
    lines = [
        one for one in experiments.lines(grid, base, [base, *FAMILY]) if one["block"] == "whole"
    ]
    for line in lines:
        one = points(line[""])
        assert plain(line["linear"]) == f"{one.mean():.1f} ± {one.std(ddof=1):.1f}"
    printed = {line[""]: plain(line[f"over {base}"]) for line in lines}
    assert printed == {base: ""} | {arm: text(*ends) for arm, (*ends, _) in zip(FAMILY, alone)}


def test_a_pooled_family_has_the_residual_variance_of_the_table(grid):
    """Of least squares on a mean for each arm and each seed; a shift that seeds share is no error."""
    arms = ["t0.5 b0", *FAMILY]
    accuracies = np.array([points(arm) for arm in arms])
    k, n = accuracies.shape
    rows = [
        np.eye(k)[i].tolist() + np.eye(n)[j].tolist()
        for i, j in itertools.product(range(k), range(n))
    ]
    _, squares = _least_squares(np.array(rows), accuracies.ravel())
    df = k * n - np.linalg.matrix_rank(np.array(rows))
    error, means = math.sqrt(2 * squares / df / n), accuracies.mean(1)
    p = 2 * stats.t.sf(abs(means[1:] - means[0]) / error, df)
    half = error * stats.t.ppf(1 - 0.025 / len(FAMILY), df)
    expected = [
        (gain, gain - half, gain + half, holm)
        for gain, holm in zip(means[1:] - means[0], multipletests(p, method="holm")[1])
    ]
    pairs = {arm: (arm, "t0.5 b0") for arm in FAMILY}
    alone = [experiments.effect(grid, *pair, block="whole") for pair in pairs.values()]
    assert (
        [e.df for e in comparisons.family(alone, pooled=True)] == [df] * 4 != [e.df for e in alone]
    )
    for effects in (
        comparisons.family(alone, pooled=True),
        OneVariance(grid, pairs, arms, "whole").effects().values(),
    ):
        assert [*map(numbers, effects)] == [pytest.approx(one) for one in expected]


def _least_squares(design, y):
    """The fit and the sum of its squared residuals."""
    fit = design @ np.linalg.pinv(design) @ y
    return fit, ((y - fit) ** 2).sum()


#: By margin, effects of the grid and what is said of them; each word of the null model is among them
WORDS = [
    ("t0.2 b1.0", "t0.2 b3.0", 0.5, "beats"),
    ("t0.2 b1.0", "t0.2 b3.0", 1.0, "leads"),
    ("t0.5 b1.0", "t0.2 b1.0", 0.5, "loses"),
    ("t0.5 b1.0", "t0.2 b1.0", 0.7, "trails"),
    ("t0.5 b1.0", "t0.2 b1.0", 2.0, "equivalent"),
    ("dcl", "t0.2 b0", 1.0, "unresolved"),
    ("dcl", "t0.2 b0", 2.0, "equivalent"),
    ("t0.2 b0", "t0.2 b1.0", 0.0, "unresolved"),
    ("t0.5 b0", "t0.2 b0", 0.0, "loses"),
]


@pytest.mark.parametrize(("ours", "base", "margin", "expected"), WORDS)
def test_a_word_for_an_effect_and_a_margin(grid, ours, base, margin, expected):
    d, effect = difference(ours, base), experiments.effect(grid, ours, base, block="whole")
    assert comparisons.verdict(effect, margin) == word(d, margin) == expected
    if margin:
        tost = ttost_paired(d, np.zeros(len(d)), -margin, margin)[0]
        assert comparisons.equivalence(effect, margin) == pytest.approx(tost)


def test_equivalent_needs_a_p_of_a_twentieth(confirmed):
    """That of DCL over the chosen temperature within a point is 0.07."""
    d = difference("dcl", best(TEMPERATURES), seeds=FRESH)
    effect, p = (
        experiments.effect(confirmed, "dcl", "temperature", block="whole"),
        ttost_paired(d, 0 * d, -1, 1)[0],
    )
    assert comparisons.equivalence(effect, 1.0) == pytest.approx(p) and 0.05 < p < 0.1
    assert comparisons.verdict(effect, 1.0) == "unresolved" != comparisons.verdict(effect, 1.2)


# --- what is chosen


def test_validation_chooses_once_all_runs_are_there(grid, confirmed):
    chosen = best(TEMPERATURES), best(TILTS)
    assert chosen != (TEMPERATURES[0], TILTS[0])
    test = max(TEMPERATURES, key=lambda arm: points(arm).mean())
    assert test != chosen[0]  # by test images another would be chosen
    assert grid.best("t* b0", "validation", "whole") == chosen[0]
    assert confirmed.candidates("tilt", "whole")[1] == TILTS
    for name, arm in zip(("temperature", "tilt"), chosen):
        run = confirmed.run(name, 10, "whole")
        assert (run.method, run.options | ARMS[arm][1]) == (ARMS[arm][0], run.options)
        mean = points(arm, seeds=FRESH).mean()
        assert 100 * confirmed.mean(name, "linear", "whole") == pytest.approx(mean)
    assert len(found("t0.1 b0", GRID, 128)) == 4 == len(grid.values("t0.1 b0", "linear", "begun"))
    assert grid.best("t* b0", "validation", "begun") is None is grid.run("temperature", 0, "begun")
    assert grid.mean("t0.1 b0", "linear", "begun") is None
    assert grid.mean("t0.2 b0", "linear", "begun") == pytest.approx(
        right("t0.2 b0", batch=128).mean()
    )


def halves(count, splits=400):
    """The random halves of the images, and then their complements [images, halves]."""
    rng = np.random.default_rng(0)
    first = np.array([rng.permutation(count) < count // 2 for _ in range(splits)], float)
    return np.concatenate([first, 1 - first]).T


def judged(ours, base, choosing, deciding):
    """The mean gain of what half of the seeds and images choose, by other seeds and images.

    A side has the means by half [settings, seeds, halves] of the images that choose, of the others,
    and of these for the fresh seeds, which have only the setting with the given number.
    """
    gains, every = [], np.arange(ours[0].shape[2])
    for part in itertools.combinations(choosing, 2):
        others, scores = [seed for seed in choosing if seed not in part], []
        for choose, judge, fresh, settled in (ours, base):
            chosen = choose[:, part].mean(1).argmax(0)
            here = np.array([judge[chosen, seed, every] for seed in others])
            scores.append([*here, *np.where(chosen == settled, fresh[deciding], np.nan)])
        gains.append(np.nanmean(np.subtract(*scores), axis=0))
    return 100 * np.mean(gains)


@functools.cache
def repeated(fresh=()):
    """Difference, ends and p of the tilts over the temperatures, the choice repeated."""
    masks, sides = halves(500), []
    for arms in (TILTS, TEMPERATURES):
        side, settled = np.array([right(arm) for arm in arms]), arms.index(best(arms))
        more = right(arms[settled], seeds=fresh) if fresh else np.zeros((0, 500))
        means = (
            one @ half / 250 for one, half in ((side, masks), (side, 1 - masks), (more, 1 - masks))
        )
        sides.append((*means, settled))
    groups = [*range(len(GRID))], [*range(len(fresh))]
    t, variance = judged(*sides, *groups), 0.0
    for group in filter(None, groups):
        left = [
            judged(*sides, *([x for x in one if one is not group or x != s] for one in groups))
            for s in group
        ]
        variance += (len(group) - 1) * np.var(left)
    df = min(len(GRID), len(fresh) or math.inf) - 1
    half = math.sqrt(variance) * stats.t.ppf(0.975, df)
    return t, t - half, t + half, 2 * stats.t.sf(abs(t) / math.sqrt(variance), df)


def test_a_choice_is_repeated(grid):
    """Half of the seeds and images choose, the others judge; the seeds left out give the error."""
    effect = selection.effect(grid, "t* b[13]*", "t* b0", block="whole")
    assert numbers(effect) == pytest.approx(repeated()) and effect.df == 4


def test_fresh_seeds_judge_what_is_chosen_without_them(confirmed):
    """And a headline is that number."""
    effect = selection.effect(confirmed, "tilt", "temperature", block="whole")
    assert numbers(effect) == pytest.approx(repeated(FRESH)) and effect.df == 4
    given = interval(difference(best(TILTS), best(TEMPERATURES), seeds=FRESH))
    for chosen, expected in ((True, repeated(FRESH)), (False, given)):
        names = "confirmed", "tilt", "temperature", ("whole",)
        headline = Headline("Tilt over temperature", *names, chosen, {})
        assert plain(formatted(headline.effect(block="whole"))) == text(*expected[:3])
    assert text(*given[:3]) != text(*repeated(FRESH)[:3])


def test_a_choice_is_not_repeated_while_a_run_is_missing(grid):
    with pytest.raises(ValueError, match=r"grid lacks runs of 't0\.1 b0'"):
        selection.effect(grid, "t* b0", "t0.5 b0", block="begun")


def test_the_report_of_a_headline_lists_the_runs_among_which_it_chooses(confirmed, monkeypatch):
    """And those that judge, each with its value."""
    names = "confirmed", "tilt", "temperature", ("whole",)
    monkeypatch.setitem(HEADLINES, "frozen", Headline("Tilt over temperature", *names, True, {}))
    monkeypatch.setattr(headlines, "printed", lambda name: HEADLINES[name].effect(block="whole"))
    lines = headlines.report("frozen")
    listed = re.findall(r"^  (.+)  (\d+)  \w+  (\d+\.\d\d)$", "\n".join(lines), re.M)
    expected = []
    for name, arms in (("tilt", TILTS), ("temperature", TEMPERATURES)):
        runs = [(arm, seed, x) for arm in arms for seed, x in zip(GRID, points(arm))]
        runs += [(name, seed, x) for seed, x in zip(FRESH, points(best(arms), seeds=FRESH))]
        expected += [(arm, str(seed), f"{x:.2f}") for arm, seed, x in runs]
    assert listed == expected and plain(lines[-1]) == text(*repeated(FRESH)[:3])
    for arms in (TILTS, TEMPERATURES):
        words = f"  is {best(arms)} of grid, the best of {len(arms)} by linear_validation"
        assert words in lines


# --- predictions


def severity(d, truth, edge, family=1):
    """The probability, at a truth below the edge, that the whole interval lies below it."""
    n, t = len(d), stats.t.ppf(1 - 0.025 / family, len(d) - 1)
    at = (truth - edge) / (d.std(ddof=1) / math.sqrt(n))
    deviation = stats.chi(n - 1, scale=1 / math.sqrt(n - 1))
    return deviation.expect(lambda s: stats.norm.cdf(-t * s - at))


def test_predictions_of_a_family_are_corrected_together_and_read_by_both_readouts(confirmed):
    tilt, temperature = best(TILTS), best(TEMPERATURES)
    pairs = {
        "tilt": (tilt, temperature),
        "temperature": (temperature, "t0.5"),
        "alone": (tilt, "t0.5"),
    }
    rows = {row[""]: row for row in experiments.verdicts(confirmed)}
    for metric, column in (("linear", "decides"), ("knn", "beside")):
        d = [difference(*pair, metric, FRESH) for pair in pairs.values()]
        adjusted = multipletests([interval(one)[3] for one in d], method="holm")[1]
        for name, one, holm in zip(pairs, d, adjusted):
            expected = (*interval(one, 3)[:3], holm) if name != "alone" else interval(one)
            assert numbers(experiments.outcome(confirmed, name, metric)) == pytest.approx(expected)
            assert plain(rows[name][column]) == f"whole {text(*expected[:3])}"
        assert max(adjusted / [interval(one)[3] for one in d]) > 1.9
    d = difference(*pairs["temperature"], seeds=FRESH)
    assert rows["temperature"]["severity"] == f"{severity(d, 0.0, 1.0, 3):.2f} at 0"


def test_a_prediction_may_have_seeds_of_its_own(confirmed):
    (row,) = (row for row in experiments.verdicts(confirmed) if row[""] == "three seeds")
    d = difference(best(TILTS), "t0.5", seeds=FRESH[:3])
    assert plain(row["decides"]) == f"whole {text(*interval(d)[:3])}"
    assert row["severity"] == f"{severity(d, -1.0, 0.0):.2f} at −1"
    assert (
        f"whole {text(*interval(difference(best(TILTS), 't0.5', seeds=FRESH))[:3])}"
        != row["decides"]
    )


def test_what_else_predictions_are_about(grid, confirmed):
    tilt, temperature = best(TILTS), best(TEMPERATURES)
    mean = (points(tilt, seeds=FRESH) + points(temperature, seeds=FRESH)) / 2
    d = mean - points("t0.5", seeds=FRESH)
    assert numbers(experiments.outcome(confirmed, "mean")) == pytest.approx(interval(d))
    pairs = itertools.combinations(("t0.5", "dcl", "released"), 2)
    d = max((difference(*pair, seeds=FRESH) for pair in pairs), key=lambda one: abs(one.mean()))
    assert numbers(experiments.outcome(confirmed, "widest"))[:3] == pytest.approx(
        interval(d, 3)[:3]
    )
    level = experiments.outcome(confirmed, "level")
    assert level.low == pytest.approx(points("t0.5", seeds=FRESH).mean() / 100)
    t, beta = CELLS[[*TEMPERATURES].index(temperature)]
    assert experiments.outcome(grid, "best").low == pytest.approx((1 + beta) / t)


def test_the_share_that_sharpness_explains(grid):
    """Of the variance between cells, seeds' noise subtracted, by a natural spline in log γ.

    Here in its basis of truncated powers (Hastie, Tibshirani and Friedman, 5.2.1).
    """
    table = np.array([points(arm, "knn") for arm in (*TEMPERATURES, *TILTS)])
    x = np.log([(1 + beta) / t for t, beta in CELLS])
    knots = np.quantile(np.unique(x), np.linspace(0, 1, 5))

    def truncated(k):
        cubes = [np.maximum(x - knots[j], 0) ** 3 for j in (k, -1)]
        return (cubes[0] - cubes[1]) / (knots[-1] - knots[k])

    basis = np.stack([np.ones(len(x)), x, *(truncated(k) - truncated(3) for k in range(3))], 1)
    means, (cells, seeds) = table.mean(1), table.shape
    _, lost = _least_squares(basis, means)
    residual = table - means[:, None] - table.mean(0) + table.mean()
    noise = (residual**2).sum() / (cells - 1) / (seeds - 1) / seeds
    spread = cells * means.var() - (cells - 1) * noise
    share = 1 - (lost - (cells - 5) * noise) / spread
    assert (
        experiments.map_of(grid, "whole").share("knn")[0] == pytest.approx(share) and share < 0.995
    )
    assert experiments.outcome(grid, "sharpness", "knn").low == pytest.approx(share)
    assert share != pytest.approx(1 - lost / (cells * means.var()))


def test_verdicts(grid, confirmed):
    """By the numbers that the tests above compute; one line waits for a run."""
    found = {
        row[""]: row["verdict"] for one in (grid, confirmed) for row in experiments.verdicts(one)
    }
    assert found == {
        "DCL": "holds",
        "DCL, whole": "unresolved",  # its interval leaves the range; two one-sided tests would not
        "sharpness": "holds",
        "best": "holds",
        "begun": "open: 5 runs",
        "tilt": "unresolved",
        "temperature": "holds",
        "alone": "holds",
        "three seeds": "holds",
        "kNN": "unresolved",  # uncorrected both would hold
        "dcl": "unresolved",
        "mean": "holds",
        "widest": "holds",
        "level": "holds",
    }
