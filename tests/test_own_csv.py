"""The recipe of *How we compare* for anybody's table of seeds: paired, the choice repeated, corrected."""

import io
import math
import re

import numpy as np
import pandas as pd
import pytest
from scripts import ROOT

from hnlib.experiments import comparisons, selection


def recipe() -> str:
    page = (ROOT / "notebooks/theory/how-we-compare.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```\{code-cell\} ipython3\n(import pandas.*?)^```", page, re.M | re.S)
    lines = [line for line in code.splitlines() if line and not line.startswith("import")]
    assert len(lines) == 5
    return code


def compared(scores: dict[str, np.ndarray], capsys) -> list:
    """Return what the recipe finds in a table of scores [settings, seeds, queries], in any order."""
    rows = [
        dict(zip(("method", "setting", "seed", "query"), (name, *place)), score=score)
        for name, every in scores.items()
        for place, score in np.ndenumerate(every)
    ]
    table = pd.DataFrame(rows).sample(frac=1, random_state=0)
    names = {"mine": io.StringIO(table.to_csv(index=False)), "selection": selection}
    exec(recipe(), names := names | {"comparisons": comparisons})
    assert capsys.readouterr().out.count("\n") == 2
    return comparisons.family(names["effects"])


def test_one_setting_a_side_is_the_paired_interval_corrected_for_two_methods(capsys):
    rng = np.random.default_rng(1)
    scores = {x: rng.random((1, 6, 20)) for x in ("tilt", "margin", "baseline")}
    found = compared(scores, capsys)
    tables = {
        name: pd.DataFrame({"seed": range(6), "score": every[0].mean(1)})
        for name, every in scores.items()
    }
    pairs = [
        comparisons.between(tables[x], tables["baseline"], "score") for x in ("tilt", "margin")
    ]
    for one, other in zip(found, comparisons.family(pairs), strict=True):
        assert one.difference == pytest.approx(other.difference)
        assert one.high == pytest.approx(other.high) and one.family == 2


def test_a_choice_among_many_equal_settings_is_no_gain(capsys):
    """The best of thirty equal settings looks better by its own scores; the others' do not agree."""
    rng = np.random.default_rng(2)
    hits = {
        x: rng.random((n, 6, 60)) < 0.5 for x, n in (("tilt", 30), ("margin", 1), ("baseline", 1))
    }
    naive = 100 * (hits["tilt"].mean((1, 2)).max() - hits["baseline"].mean())
    many, _ = compared({x: y.astype(float) for x, y in hits.items()}, capsys)
    assert naive > 3 and many.low < 0 < many.high and math.isfinite(many.high)
    assert many.difference < naive / 2
