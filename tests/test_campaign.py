"""The planned runs: what is recorded is not run again, and each group is what was asked for."""

from collections import Counter

import pytest

from hnlib import methods
from hnlib.book import campaign


def test_what_is_recorded_is_not_run_again(monkeypatch):
    waiting = list(campaign.missing())
    monkeypatch.setattr(campaign.records, "by_key", dict)
    assert len(waiting) < len(list(campaign.missing()))


def test_cells_of_equal_gamma_share_it():
    gammas = Counter(round((1 + beta) / t, 9) for t, beta in campaign.EQUAL_GAMMA)
    assert gammas == {5: 2, 10: 4, 20: 2, 30: 2}
    for cells in (campaign.LENGTHENED, campaign.PAIRED):
        pairs = [(1 + beta) / t for t, beta in cells]
        assert pairs[::2] == pytest.approx(pairs[1::2])


def test_sentences_have_whole_blocks_of_a_seed_and_share_the_uniform_row():
    runs = list(campaign.sentences())
    keys = [campaign.records.key(run.configuration) for run in runs]
    seeds = Counter({(run.seed, key) for run, key in zip(runs, keys)})
    assert len(set(keys)) == len(seeds) >= 300
    ordered = [run.seed for run in runs if run.train_size]
    assert ordered == sorted(ordered)
    assert [row for row in methods.CATALOGUE if row in campaign.ON_PAIRS] == [*campaign.ON_PAIRS]
