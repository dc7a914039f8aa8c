import pytest
from scripts import script

from hnlib import methods
from hnlib.training import records


@pytest.fixture(scope="module")
def campaign():
    return script("book/results/campaign.py")


def test_what_is_on_record_is_not_run_again(campaign, tmp_path):
    read = records.load_all(records.tracked_folder())
    read = [r for r in read if r["configuration"]["experiment"] in ("hardness", "confirmation")]
    known = {campaign.key(record["configuration"]): record for record in read}
    planned = {campaign.key_of(run) for run in campaign.campaign(known)}
    assert known and known.keys() <= planned
    assert campaign.next_run(tmp_path) == next(campaign.campaign({}))


def test_the_temperature_is_chosen_on_validation_images_once_all_seeds_are_there(campaign):
    runs = [run for seed in range(3) for run in campaign.the_map("cifar10", seed)]
    uniform = [run for run in runs if run["method"] == "simclr"]
    known = {
        campaign.key_of(run): {"metrics": {"linear_validation": -abs(run["temperature"] - 0.2)}}
        for run in uniform
    }
    assert campaign.chosen_temperature(known) == 0.2
    known.pop(campaign.key_of(uniform[-1]))
    assert campaign.chosen_temperature(known) is None


def test_sentences_have_whole_blocks_of_a_seed_and_share_the_uniform_row(campaign, tmp_path):
    runs = list(campaign.sentences())
    keys = [campaign.key_of(run) for run in runs]
    per_seed = {
        seed: {k for k, run in zip(keys, runs) if run["seed"] == seed} for seed in range(10)
    }
    assert len(set(keys)) == sum(map(len, per_seed.values())) and len(set(keys)) >= 300
    seeds = [run["seed"] for run in runs if run["train_size"]]
    assert seeds == sorted(seeds) and campaign.next_run(tmp_path, "sentences") == runs[0]
    assert [row for row in methods.CATALOGUE if row in campaign.ON_PAIRS] == [*campaign.ON_PAIRS]
    assert set(keys) <= {campaign.key_of(run) for run in campaign.campaign({})}
