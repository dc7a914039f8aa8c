"""The map over temperature and tilt, on invented runs."""

import numpy as np
import pandas as pd
import pytest

from hnlib.experiments import predictions, sharpness_map

TEMPERATURES, BETAS = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05), (0.0, 1.0, 2.0, 4.0, 8.0)
CELLS = [(t, beta) for t in TEMPERATURES for beta in BETAS]


def invented(accuracy, noise=0.001, start=0):
    """Runs of three seeds of which cell (t, β) has such an accuracy."""
    rng, rows = np.random.default_rng(start), []
    for seed in range(3):
        for t, beta in CELLS:
            value = accuracy(t, beta) + noise * rng.standard_normal()
            rows.append(dict(temperature=t, beta=beta or None, seed=seed, linear=value))
    return pd.DataFrame(rows)


def hill(gamma):
    return 0.6 - 0.02 * np.log(gamma / 10) ** 2


def by_sharpness(t, beta):
    return hill((1 + beta) / t)


def test_a_function_of_gamma_is_explained_and_one_of_temperature_is_not():
    one = sharpness_map.Map(invented(by_sharpness))
    share, low, high = one.share()
    assert 0.97 < low <= share <= high <= 1
    hills = [100 * hill(gamma) for gamma in (2, 10, 60)]
    assert one.curve()([2, 10, 60]) == pytest.approx(hills, abs=0.3)
    two = sharpness_map.Map(invented(lambda t, beta: hill(1 / t)))  # the tilt does nothing
    assert two.share()[2] < 0.8


def test_the_interval_of_a_share_reaches_to_both_sides():
    """The simulated means have the noise of seeds twice: subtracted once, all lie too low."""

    def partly(t, beta):
        return by_sharpness(t, beta) + 0.02 * (t < 0.25)

    several = [sharpness_map.Map(invented(partly, 0.012, seed)).share() for seed in range(3)]
    share, low, high = np.mean(several, 0)
    assert high - share > (share - low) / 2


def test_the_ends_may_carry_what_gamma_explains():
    """On a plateau between γ = 5 and 60 that follows t alone, the share is high and R² is low."""

    def plateau(t, beta):
        return 0.59 + 0.001 * (t < 0.3) if 4.9 < (1 + beta) / t < 60.1 else by_sharpness(t, beta)

    hilly, flat = (sharpness_map.Map(invented(one, noise=1e-4)) for one in (by_sharpness, plateau))
    assert hilly.ends()[1] > 0.99 and flat.ends()[1] < 0.6 and flat.share()[0] > 0.9
    mean, gammas = flat.accuracy().mean(1), flat.gammas
    squares = (mean - mean.mean()) ** 2
    expected = pytest.approx(squares[(gammas < 4.9) | (gammas > 60.1)].sum() / squares.sum())
    assert flat.ends()[0] == expected != flat.ends(low=6.0)[0]


def test_of_few_cells_or_equal_scores_no_share_is_known():
    """Five cells have a curve that goes through them, three a parabola."""
    runs = invented(by_sharpness)
    whole, cells = sharpness_map.Map(runs), runs[["temperature", "beta"]].drop_duplicates()
    assert whole.has_curve and not np.isnan([*whole.share(), *whole.ends()]).any()
    few = sharpness_map.Map(runs.merge(cells.head(5)))
    assert not few.has_curve and np.isnan(few.share()).all()
    sharp = cells[((1 + cells["beta"].fillna(0)) / cells["temperature"]).between(5, 60)]
    for count in (3, 4):
        outside, between = sharpness_map.Map(runs.merge(sharp.head(count))).ends()
        assert outside == 0 and np.isnan(between) == (count == 3)
    same = sharpness_map.Map(runs.assign(linear=0.5))
    assert np.isnan([*same.ends(), *same.share()]).all()


def test_of_cells_that_only_noise_tells_apart_no_share_is_known():
    """And where γ explains next to nothing, the interval ends at none."""
    flat = [sharpness_map.Map(invented(lambda *_: 0.5, 0.01, seed)).share() for seed in range(5)]
    assert np.isnan(flat).all()
    gammas = sorted({(1 + beta) / t for t, beta in CELLS})
    rows = invented(lambda t, beta: 0.5 + 0.02 * (gammas.index((1 + beta) / t) % 2), 0.01, 1)
    share, low, high = sharpness_map.Map(rows).share()
    assert low == 0 < share < high < 0.5


def test_seeds_that_lack_a_cell_do_not_count():
    runs = invented(by_sharpness).drop(len(CELLS) + 7)  # a cell of the second
    here = sharpness_map.Map(runs)
    assert here.seeds == (0, 2) and here.accuracy().shape == (len(CELLS), 2)
    alone = sharpness_map.Map(runs[runs["seed"] == 0])  # its noise is not known
    unknown = predictions.format_share(alone.share())
    assert unknown == "not known" != predictions.format_share(here.share())


def test_a_peak_beyond_the_sharpnesses_tried_is_at_their_end():
    """Elsewhere it is found: see *Other people's tables*."""
    for tried, peak in (((16, 32, 64), 16), ((1, 2, 4), 4)):
        assert sharpness_map.parabola(tried, [hill(g) for g in tried]).peak == pytest.approx(peak)
