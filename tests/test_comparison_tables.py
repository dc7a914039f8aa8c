"""Comparisons that share one variance."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from hnbook.comparison_tables import READOUTS, OneVariance
from hnlib import experiments
from hnlib.experiments import compared, comparisons
from hnlib.experiments.words import DASH, interval, where


def groups(gains):
    """Runs of three seeds that gain so many points over the first, with noise of their own."""
    rng = np.random.default_rng(0)
    start, found = rng.normal(0.5, 0.01, 3), []
    for number, gain in enumerate(gains):
        value = np.round(start + gain / 100 + rng.normal(0, 0.002, 3), 4)
        about = dict(record=[f"{number}-{x}" for x in range(3)], seed=range(3), test_images=10_000)
        found.append(pd.DataFrame(about | dict.fromkeys(READOUTS, value)))
    return found


def recorded(arms):
    """Return what stands for the records of arms."""
    design = SimpleNamespace(name="table", blocks={"": {}}, mixed=True, changed={})
    design.names, design.title = lambda block: [*arms], lambda block: block
    return SimpleNamespace(design=design, group=lambda arm, block: arms[arm])


@pytest.fixture(autouse=True)
def nothing_compared(monkeypatch):
    monkeypatch.setattr(compared, "MADE", {})


def test_pooled_as_the_family_of_all_settings():
    """Against one base it is `comparisons.family(pooled=True)`; an absent group is left out."""
    base, *others = settings = groups([0, 0, 1, 2])
    arms = {str(k): group for k, group in enumerate(settings)} | {"absent": base.iloc[:0]}
    runs = recorded(arms)
    pairs = {arm: (arm, "0") for arm in ("1", "2", "3", "absent", "unknown")}
    found = OneVariance(runs, pairs, "0123").effects("linear")
    alone = [comparisons.between(group, base) for group in others]
    for ours, theirs in zip(found.values(), comparisons.family(alone, pooled=True), strict=True):
        assert ours.df == theirs.df == 6 and ours.between != pytest.approx(alone[0].between)
        for name in ("p", "low", "high"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name))
    runs = recorded({arm: group.iloc[:1] for arm, group in arms.items()})  # a page at one seed
    few = OneVariance(runs, pairs, "0123").effects("linear")
    assert len(few) == 3 and all(x.df == 0 for x in few.values())


@pytest.mark.parametrize("pool", [None, "012"])
def test_yours_stand_beside_the_published(pool, monkeypatch):
    """With the variance of all published arms, by default; a pool that is named keeps its arms."""
    here, published = groups([0, 0, 1]), groups([0, 2, -1, 5])
    of_page = {str(k): rows.iloc[:2] for k, rows in enumerate(here)} | {"mine": here[2].iloc[:2]}
    of_book = {str(k): rows for k, rows in enumerate(published)}
    monkeypatch.setattr(compared, "names", lambda: ["table"])
    monkeypatch.setattr(compared, "recorded", lambda name: recorded(of_book))
    pairs = {"one": ("1", "0"), "two": ("2", "1"), "own": ("mine", "0")}
    book = {words: pairs[words] for words in ("one", "two")}
    theirs = OneVariance(recorded(of_book), book, pool).effects("knn")
    near = OneVariance(recorded(of_book), book, "0123" if pool else "012").effects("knn")
    compared.MADE.clear()
    ours = OneVariance(recorded(of_page), pairs, pool).effects("knn")
    rows = experiments.beside().to_dict("records")
    assert [row["effect, here"] for row in rows] == [*map(interval, ours.values())]
    assert [row["effect, published"] for row in rows] == [*map(interval, theirs.values()), DASH]
    assert [*map(interval, theirs.values())] != [*map(interval, near.values())]


@pytest.mark.parametrize("missing", [1, 3])
def test_what_not_all_published_runs_measured_has_a_dash(missing, monkeypatch):
    """A column of the records is empty where other data have other read-outs."""
    base, gain = groups([0, 1])
    partly = gain.assign(knn=[np.nan] * missing + [0.5] * (3 - missing))
    monkeypatch.setattr(compared, "names", lambda: ["table"])
    monkeypatch.setattr(compared, "recorded", lambda name: recorded({"0": base, "1": partly}))
    arguments = [("1", "0", metric, "", "these images") for metric in ("knn", "linear")]
    for one, effect in compared.family(recorded({"0": base, "1": gain}), arguments).items():
        compared.note(recorded({}).design, {one: effect})
    knn, linear = experiments.beside()["effect, published"]
    assert knn == DASH != linear


def test_one_run_is_a_run():
    made = {"configuration": {}, "environment": {}, "metrics": {}}
    assert where([made]).startswith("1 run, ") and where([made] * 2).startswith("2 runs, ")


def test_a_page_without_comparisons_says_so():
    assert "compares no two arms" in experiments.beside().data
