"""A question of a page: its families, what is pooled, and what the table says."""

import numpy as np
import pandas as pd
import pytest
import torch

from hnbook.comparison_tables import READOUTS, Question, word
from hnlib.experiments import comparisons
from hnlib.training import records


def groups(gains, seeds=(0, 1, 2), images=10_000, noise=0.002):
    """Runs of settings that gain so many points over the first, with noise of their own."""
    rng = np.random.default_rng(0)
    start, found = rng.normal(0.5, 0.01, len(seeds)), []
    for number, gain in enumerate(gains):
        value = start + gain / 100 + rng.normal(0, noise, len(seeds))
        counted = {metric: np.round(value * images) / images for metric in READOUTS}
        names = [f"{number}-{seed}" for seed in seeds]
        found.append(
            pd.DataFrame(dict(record=names, seed=seeds, test_images=images, method="x") | counted)
        )
    return found


def test_pooled_as_the_family_of_all_settings():
    """Against one base it is `comparisons.family(pooled=True)`."""
    base, *others = settings = groups([0, 0, 1, 2])
    pairs = {str(k): (group, base) for k, group in enumerate(others)}
    found = Question(pairs, tuple(settings)).effects("linear")
    alone = [comparisons.between(group, base) for group in others]
    for ours, theirs in zip(found.values(), comparisons.family(alone, pooled=True), strict=True):
        assert ours.p == pytest.approx(theirs.p) and ours.df == theirs.df == 6
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    two = Question({"a": (others[0], others[1])}, tuple(settings)).effects()["a"]
    assert two.between == pytest.approx(found["0"].between) and two.family == 1


def test_verdicts_and_the_table():
    base, same, better = groups([0, 0, 3], noise=0.0002)
    nothing = base.iloc[:0]
    pairs = {"same": (same, base), "better": (better, base), "absent": (nothing, base)}
    asked = Question(pairs, (base, same, better))
    page = repr(asked.show())
    assert page.count("different") >= 2 and "equivalent" in page and "absent" not in page
    assert "The 2 comparisons of a readout" in asked.note() and "3 settings" in asked.note()
    assert "new images" in page
    alike = Question({"same": (same, base)}, (base, same, better))
    assert "new images" not in repr(alike.show())
    assert repr(Question({"absent": (nothing, base)}, (base, same)).show()) == "Not measured."


def test_a_word_that_stands_on_p_alone_says_so():
    """Holm's last step has no correction, Bonferroni's interval the whole one."""
    alike = [comparisons.Effect(d, 0.4, 9, "these images") for d in (1.0, 5.0, 5.0)]
    edge, sure, _ = comparisons.family(alike)
    assert edge.p <= 0.05 and edge.low < 0 < edge.high and sure.low > 0
    assert (word(edge), word(sure)) == ("different, by p alone", "different")
    assert word(comparisons.Effect(0.1, 0.4, 9, "these images")) == "unresolved"


def test_new_images_take_the_bits_where_runs_have_them():
    ours, base = groups([1, 0], images=400)
    rng = np.random.default_rng(1)

    def with_bits(group):
        bits = [rng.permutation(400) < round(400 * share) for share in group.linear]
        packed = [records.pack(torch.tensor(b)) for b in bits]
        return group.assign(correct=[{m: text for m in READOUTS} for text in packed])

    asked = Question({"a": (with_bits(ours), with_bits(base))}, (ours, base))
    assert not asked.effects("linear", "new images")["a"].bound
