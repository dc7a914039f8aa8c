"""What a run is: names that stay true, ranges, recipes, and one line for a new option."""

import dataclasses
import json
import math
import warnings
from typing import Annotated

import pytest
from pydantic import Field

from hnlib import experiments, methods
from hnlib.images.config import ImageRun
from hnlib.training import config, kinds, records, store


def run_of(record):
    """Return the run of a record."""
    return kinds.run_class(record["kind"]).read(record["configuration"])


def test_every_record_reads_into_its_run_and_back_to_its_own_name():
    runs = [one for one in store.read(records.tracked()) if one["kind"] != kinds.MEASUREMENT]
    assert len(runs) >= 14_000
    for record in runs:
        assert run_of(record).name == record["run"]
    for record in runs[:: len(runs) // 60]:
        assert run_of(record).configuration == record["configuration"]
    other = record | {"configuration": record["configuration"] | {"seed": 1234}}
    assert run_of(other).name not in {one["run"] for one in runs}, "negative control"


def test_a_new_option_is_one_line_and_names_only_the_runs_that_use_it():
    @config.dataclass(frozen=True, kw_only=True, config=config.checked)
    class Newer(ImageRun):
        patience: Annotated[int, Field(ge=0)] = 0

    assert Newer(method="hcl").name == ImageRun(method="hcl").name
    assert Newer(patience=3).configuration == ImageRun().configuration | {"patience": 3}
    with pytest.raises(ValueError, match="patience"):
        Newer(patience=-1)


def test_a_new_option_of_a_method_names_only_the_runs_that_use_it(monkeypatch):
    before, entry = ImageRun(method="hcl").name, methods.CATALOGUE["hcl"]
    newer = dataclasses.replace(entry, defaults=entry.defaults | {"margin": 0}, later=("margin",))
    monkeypatch.setitem(methods.CATALOGUE, "hcl", newer)
    assert ImageRun(method="hcl").name == before
    assert ImageRun(method="hcl", options={"margin": 0}).name == before
    assert ImageRun(method="hcl", options={"margin": 1}).name != before


def test_a_method_that_is_an_option_now_keeps_its_name_in_records():
    run = ImageRun(method="unremix", options={"learn": "minimise", "printed": True})
    row = run.configuration
    assert row["method"] == "unremix-printed" and "printed" not in row["options"]
    again = ImageRun.read(row)
    assert (again.method, again.options["printed"], again.configuration) == ("unremix", True, row)
    table = records.frame([{"kind": "images", "configuration": row, "metrics": {"knn": 0.5}}])
    assert (table.method[0], bool(table.printed[0])) == ("unremix-printed", True)
    with pytest.warns(FutureWarning, match="unremix-printed is unremix with the option printed=Tr"):
        old = ImageRun(method="unremix-printed", options={"learn": "minimise"})
    assert old.name == run.name
    assert ImageRun(method="unremix", options={"learn": "minimise"}).name != run.name
    with warnings.catch_warnings(action="error"):  # files of experiments may name it as records do
        runs = {name: run for _, name, run in experiments.load("catalogue-hundred").runs()}
    assert runs["unremix-printed"].options == {"printed": True}


def test_a_run_under_another_name_has_a_configuration_of_its_own():
    run = ImageRun(seed=1)
    before = dict(run.configuration)
    twin = run.renamed("elsewhere", 2)
    assert twin.configuration == before | {"experiment": "elsewhere", "seed": 2} != before
    assert run.configuration == before and run == ImageRun(seed=1)


def test_a_recipe_fills_in_what_is_not_given_and_only_what_the_method_has():
    run = ImageRun(dataset="cifar10", method="adnce", recipe="adnce", batch_size=64).resolved()
    assert (run.epochs, run.batch_size, run.weight_decay) == (400, 64, 1e-6)
    tuned = dict(temperature=0.4, mu=0.7, sigma=0.5)
    assert run.options == methods.CATALOGUE["adnce"].defaults | tuned
    plain = ImageRun(dataset="cifar10", method="simclr", recipe="adnce", options={"temperature": 1})
    assert plain.resolved().options == {"temperature": 1, "hardness_strength": 0.0}
    assert ImageRun(recipe="hcl").resolved().augmentation["blur"] == 0.5
    assert run.resolved() == run


def test_equal_numbers_name_one_record():
    for one, other in [
        (dict(options={"beta": 1}), dict(options={"beta": 1.0})),
        (dict(options={"beta": -0.0}), dict(options={"beta": 0})),
        (dict(schedule={"beta": (1, 0)}), dict(schedule={"beta": [1.0, -0.0]})),
        (dict(protocols=("paper",)), dict(protocols=["paper", "clean"])),
    ]:
        assert ImageRun(method="hcl", **one).name == ImageRun(method="hcl", **other).name
    assert ImageRun(method="hcl", options={"beta": 2}).name != ImageRun(method="hcl").name


def test_an_infinity_and_a_function_survive_the_record():
    run = ImageRun(method="ot-semirelaxed", options={"relaxation": math.inf})
    written = json.loads(config.canonical(run.configuration))
    assert written["options"]["relaxation"] == "inf"
    assert ImageRun.read(written).options["relaxation"] == math.inf
    named = ImageRun(method="ot", options={"cost": json.dumps})
    assert named.configuration["options"]["cost"] == "dumps"


def test_lists_of_numbers_are_canonical_whatever_is_among_them():
    """A list of sound floats is written as one that is walked number by number."""
    assert config.canonical([-0.0, 1.5]) == config.canonical([0.0, 1.5]) == "[0.0,1.5]"
    assert config.canonical([1.0, math.inf, math.nan]) == '[1.0,"inf",null]'
    assert config.canonical([[-0.0], (True, -0.0, 2)]) == "[[0.0],[true,0.0,2]]"
