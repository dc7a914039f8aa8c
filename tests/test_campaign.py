"""The planned runs: what is recorded is not run again, and each group is what was asked for."""

from collections import Counter

import pytest
from scripts import script

from hnlib import methods
from hnlib.book import campaign
from hnlib.training import records


@pytest.fixture(scope="module")
def recorded():
    return records.load_all(records.tracked_folder())


@pytest.mark.slow
def test_what_is_recorded_is_planned_and_not_run_again(recorded, tmp_path):
    planned = {campaign.key_of(run) for run in campaign.campaign()}
    keys = {
        campaign.key(record["configuration"])
        for record in recorded
        if record["configuration"].get("experiment") in ("hardness", "confirmation")
    }
    assert keys and keys <= planned
    assert next(campaign.missing(tmp_path)) == next(campaign.campaign())
    assert not keys & {campaign.key_of(run) for run in campaign.missing()}


def test_the_temperature_was_chosen_on_validation_images(recorded):
    by_key = {campaign.key(record["configuration"]): record["metrics"] for record in recorded}
    total = Counter()
    for run in campaign.grid(campaign.SMALL, campaign.MAP, seed=range(3)):
        if run.method == "simclr":
            accuracy = by_key[campaign.key_of(run)]["linear_validation"]
            total[run.options["temperature"]] += accuracy
    assert max(total, key=total.get) == campaign.CHOSEN


def test_cells_of_equal_gamma_share_it():
    gammas = Counter(round((1 + beta) / t, 9) for t, beta in campaign.EQUAL_GAMMA)
    assert gammas == {5: 2, 10: 4, 20: 2, 30: 2}
    for cells in (campaign.LENGTHENED, campaign.PAIRED):
        pairs = [(1 + beta) / t for t, beta in cells]
        assert pairs[::2] == pytest.approx(pairs[1::2])


def test_sentences_have_whole_blocks_of_a_seed_and_share_the_uniform_row(tmp_path):
    runs = list(campaign.sentences())
    keys = [campaign.key_of(run) for run in runs]
    seeds = Counter({(run.seed, key) for run, key in zip(runs, keys)})
    assert len(set(keys)) == len(seeds) >= 300
    ordered = [run.seed for run in runs if run.train_size]
    assert ordered == sorted(ordered)
    assert next(campaign.missing(tmp_path, "sentences")) == runs[0]
    assert [row for row in methods.CATALOGUE if row in campaign.ON_PAIRS] == [*campaign.ON_PAIRS]
    assert set(keys) <= {campaign.key_of(run) for run in campaign.campaign()}


def test_the_script_trains_what_its_folder_lacks(tmp_path, monkeypatch, capsys):
    main = script("book/results/campaign.py")
    runs = iter([next(campaign.sentences()), None])
    monkeypatch.setattr(main.campaign, "missing", lambda folder, part: runs)
    monkeypatch.setattr(main, "project_root", lambda: tmp_path)
    monkeypatch.setattr("sys.argv", ["campaign.py", "--folder", str(tmp_path)])

    def train(run, checkpoint, **where):
        checkpoint.parent.mkdir()
        checkpoint.touch()
        assert where["record_to"] == tmp_path
        return type("Trained", (), {"metrics": {"sts": 0.5}, "record": {"seconds": 3}})

    monkeypatch.setattr(main, "train", train)
    main.main()
    assert "{'sts': 0.5} 3" in capsys.readouterr().out
