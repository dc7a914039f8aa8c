"""What a run is: names that stay true, checks, recipes, and one line for a new option."""

import copy
import dataclasses
import inspect
import json
import math
import pickle
import subprocess
import sys

import pytest

from hnlib import methods
from hnlib.training import config, records
from hnlib.training.config import GraphRun, ImageRun, Measurement, SentenceRun, option

ON_RECORD = sorted(records.tracked_folder().glob("*.json"))


def test_every_record_reads_into_its_run_and_back_to_its_own_name():
    kinds = {ImageRun: 0, GraphRun: 0, SentenceRun: 0, Measurement: 0}
    for path in ON_RECORD:
        run = config.read(json.loads(path.read_text())["configuration"])
        kinds[type(run)] += 1
        assert run.name == path.stem
    assert kinds[ImageRun] >= 207 and kinds[GraphRun] >= 725 and kinds[Measurement] >= 24


def test_what_is_recorded_is_what_was_recorded():
    for path in ON_RECORD[:: len(ON_RECORD) // 60]:
        chosen = json.loads(path.read_text())["configuration"]
        assert config.read(chosen).configuration == chosen


def test_a_new_option_is_one_line_and_names_only_the_runs_that_use_it():
    @dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
    class Newer(ImageRun):
        patience: int = option(0, "epochs without a gain before training ends", least=0)

    old, new = ImageRun(method="hcl"), Newer(method="hcl")
    assert new.name == old.name and Newer(method="hcl", patience=3).name != old.name
    assert Newer(patience=3).configuration == ImageRun().configuration | {"patience": 3}
    assert Newer(patience=3).changed() == {"patience": 3} and new.row()["patience"] == 0
    assert config.split(Newer, {"patience": 3})[0].patience == 3
    assert config.signature(Newer).parameters["patience"].default == 0
    with pytest.raises(ValueError, match="patience=-1 must be at least 0"):
        Newer(patience=-1)


def test_a_new_option_of_a_method_names_only_the_runs_that_use_it(monkeypatch):
    before = ImageRun(method="hcl").name
    entry = dataclasses.replace(methods.CATALOGUE["hcl"], later={"margin": 0.0})
    monkeypatch.setitem(methods.CATALOGUE, "hcl", entry)
    assert ImageRun(method="hcl").name == before
    assert ImageRun(method="hcl", options={"margin": 0.0}).name == before
    changed = ImageRun(method="hcl", options={"margin": 0.5})
    assert changed.name != before and changed.changed_options() == {"margin": 0.5}


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(epochs=-1), "epochs=-1 must be at least 0"),
        (dict(epochs=2.5), "epochs=2.5 must be a whole number"),
        (dict(epochs="3"), "epochs='3' must be a whole number"),
        (dict(batch_size=1), "batch_size=1 must be at least 2"),
        (dict(lr=0.0), r"lr=0.0 must lie in \(0, inf\)"),
        (dict(lr=math.nan), "lr=nan must be a number"),
        (dict(lr=math.inf), "lr=inf must lie in"),
        (dict(lr=True), "lr=True must be a number"),
        (dict(weight_decay=-1.0), "weight_decay=-1.0 must be at least 0"),
        (dict(seed=-1), "seed=-1"),
        (dict(max_steps=0), "max_steps=0 must be at least 1"),
        (dict(queue=-1), "queue=-1"),
        (dict(validation=-1), "validation=-1"),
        (dict(evaluate_size=1), "evaluate_size=1 must be at least 2"),
        (dict(momentum=1.0), r"momentum=1.0 must lie in \[0, 1\)"),
        (dict(momentum=-0.1), r"momentum=-0.1 must lie in \[0, 1\)"),
        (dict(recipe="slow"), "unknown recipe 'slow'; known: book, hcl, hcl-ot"),
        (dict(lr_schedule="steps"), "unknown lr_schedule 'steps'; known: constant, cosine"),
        (dict(precision="3-true"), "unknown precision '3-true'; known: 32-true, bf16-mixed"),
        (dict(protocols=("clean", "dirty")), "unknown protocol 'dirty'; known: clean, paper"),
        (dict(compile="yes"), "compile='yes' must be True or False"),
        (dict(dataset=3), "dataset=3 must be str"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(change, message):
    with pytest.raises(ValueError, match=message) as refusal:
        ImageRun(**change)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(framework="deepwalk"), "unknown framework 'deepwalk'; known: infograph, graphcl"),
        (dict(labels="some"), "unknown label 'some'; known: fold, all"),
        (dict(layers=0), "layers=0 must be at least 1"),
        (dict(hidden=0), "hidden=0"),
        (dict(folds=1), "folds=1 must be at least 2"),
    ],
)
def test_bad_values_of_graph_runs(change, message):
    with pytest.raises(ValueError, match=message):
        GraphRun(**change)


def test_executions_are_checked_too():
    with pytest.raises(ValueError, match="evaluate_every=-1 must be at least 0"):
        config.Execution(evaluate_every=-1)
    with pytest.raises(ValueError, match="evaluate_at=-1 must be at least 0"):
        config.Execution(evaluate_at=(1, -1))
    assert str(config.Execution(checkpoint="a/b.pt").checkpoint.name) == "b.pt"


def test_a_recipe_fills_in_what_is_not_given_and_only_what_the_method_has():
    run = ImageRun(dataset="cifar10", method="adnce", recipe="adnce", batch_size=64).resolved()
    assert (run.epochs, run.batch_size, run.weight_decay) == (400, 64, 1e-6)
    assert run.options == methods.CATALOGUE["adnce"].options | dict(
        temperature=0.4, mu=0.7, sigma=0.5
    )
    plain = ImageRun(dataset="cifar10", method="simclr", recipe="adnce", options={"temperature": 1})
    assert plain.resolved().options == {"temperature": 1, "hardness_strength": 0.0}
    assert ImageRun(recipe="fast").resolved().lr_schedule == "cosine"
    assert ImageRun().resolved().lr_schedule == "constant" and ImageRun().resolved().epochs == 30
    assert ImageRun(recipe="hcl").resolved().augmentation["blur"] == 0.5
    assert ImageRun(recipe="hcl", dataset="stl10").resolved().augmentation["size"] == 32
    assert ImageRun().resolved(channels=1).augmentation["rotation"] == 15.0
    assert run.resolved() == run


def test_no_method_trains_nothing():
    with pytest.raises(ValueError, match=r"method=None trains nothing; name a method \(simclr, "):
        ImageRun(method=None).resolved()
    assert ImageRun(method=None, epochs=0).resolved().options == {}
    assert GraphRun(method=None, epochs=0).resolved().labels is None


def test_labels_are_of_methods_that_learn_from_them():
    pytest.importorskip("torch_geometric")
    assert GraphRun(method="hcl", labels="all").resolved().labels is None
    assert GraphRun(method="scl").resolved().labels == "fold"
    assert GraphRun(method="scl", labels="all").changed() == {"labels": "all"}


def test_runs_are_equal_if_their_records_have_one_name():
    given = ImageRun(method="hcl", options={"beta": 1.0}, epochs=30, batch_size=256)
    left = ImageRun(method="hcl")
    assert given == left and len({given, left}) == 1
    assert given != ImageRun(method="hcl", seed=1) and given != ImageRun(method="hcl", queue=8)
    assert GraphRun() != GraphRun(layers=4)
    assert ImageRun(protocols="paper") == ImageRun(protocols=["paper", "clean"])
    assert pickle.loads(pickle.dumps(given)) == given == copy.deepcopy(given)
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.seed = 2


def test_what_is_unusual_about_a_run():
    assert ImageRun(method="hcl", epochs=3, seed=1, train_size=10).changed() == {}
    run = ImageRun(recipe="fast", lr=1e-3, schedule={"beta": (1, 0)}, queue=16, method="hcl")
    assert run.changed() == dict(recipe="fast", lr=1e-3, schedule="beta=1.0:0.0", queue=16)
    assert ImageRun(recipe="fast").changed() == {"recipe": "fast"}  # its cosine is its own
    assert ImageRun(augmentation="hcl").changed() == {"augmentation": "hcl"}
    assert ImageRun(recipe="hcl", augmentation="hcl").changed() == {"recipe": "hcl"}
    assert ImageRun(dataset="cifar10", augmentation="simclr").changed() == {}
    assert ImageRun(augmentation="simclr").changed(channels=1) == {"augmentation": "simclr"}
    assert ImageRun(method="hcl", options={"beta": 2.0}).changed_options() == {"beta": 2.0}
    assert ImageRun(method="Own-1234", options={"a": 1}).changed_options() == {"a": 1}
    row = ImageRun(dataset="cifar10", train_size=10, queue=8, method="hcl").row()
    assert row["title"] == "cifar10, 10 images, small-cnn, 30 epochs, queue 8"
    assert row["beta"] == 1.0 and row["options"] == "" and row["momentum"] == 0.999


def test_keywords_become_a_run_and_how_it_is_carried_out():
    run, execution = config.split(ImageRun, dict(method="hcl", beta=2.0, seed=1, device="cpu"))
    assert (run.options, run.seed, execution.device) == ({"beta": 2.0}, 1, "cpu")
    same, _ = config.split(ImageRun, dict(method="hcl", options={"beta": 2.0}, seed=1))
    assert same == run
    names = list(config.signature(ImageRun).parameters)
    assert names[:2] == ["dataset", "method"] and names[-1] == "method_options"
    assert not {"dataset_digest", "projector", "options"} & set(names)
    assert inspect.signature(config.option).parameters["named"].default is False


def test_what_no_run_has_is_refused():
    with pytest.raises(ValueError, match="names patience, which no ImageRun has"):
        config.read({"dataset": "digits", "patience": 3})


def test_functions_are_recorded_by_their_names_or_refused():
    def cost(contrast):
        return 1 - contrast.similarity

    run = ImageRun(method="ot", options={"cost": cost})
    with pytest.raises(ValueError, match=r"<locals>.cost has no name by which"):
        run.refuse_unnamed()
    named = ImageRun(method="ot", options={"cost": json.dumps})
    named.refuse_unnamed()
    assert named.configuration["options"]["cost"] == "dumps"
    with pytest.raises(ValueError, match="<lambda> has no name"):
        ImageRun(method="ot", options={"cost": lambda c: c}).refuse_unnamed()


def test_an_infinity_survives_the_record():
    run = ImageRun(method="ot-semirelaxed", options={"relaxation": math.inf})
    told = json.loads(config.canonical(run.configuration))
    assert told["options"]["relaxation"] == "inf"
    assert config.read(told) == run and config.read(told).options["relaxation"] == math.inf


def test_reading_records_does_not_wait_for_torch():
    code = "import sys, hnlib.training.records as r; r.load_all('.'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
