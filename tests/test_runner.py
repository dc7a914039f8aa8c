"""Experiments at other parameters, the runner that trains what is not recorded, and its queue."""

import io
import itertools
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from hnbook.comparison_tables import OneVariance
from hnlib import __main__ as cli
from hnlib import experiments, methods
from hnlib.experiments import compared, comparisons, execution, plans, runner
from hnlib.experiments.runner import Engine
from hnlib.experiments.words import interval
from hnlib.images.config import ImageRun
from hnlib.notebooks import execute, report
from hnlib.training import records, store

CHOICE = """
question = "Which rate?"
primary = "ndcg_validation"
seeds = "5-9"
minutes = 0.1
[fields]
kind = "retrieval"
dataset = "generated"
max_steps = 2
[blocks]
bag = { batch_size = 16 }
[templates]
plain = { method = "simclr" }
[[grids]]
name = "{extends} lr{lr}"
over = { extends = ["plain"], lr = [0.1, 0.2, 0.5] }
[small]
arms = ["plain lr0.1", "plain lr0.2"]
seeds = "5-6"
"""
MAIN = """
question = "Does the tilt gain?"
primary = "ndcg"
beside = ["recall100"]
seeds = "0-3"
[fields]
kind = "retrieval"
dataset = "scifact"
max_steps = 300
[blocks]
bag = { batch_size = 16 }
other = { batch_size = 32 }
[arms]
tilt = { method = "hcl" }
loose = { method = "simclr", options = { temperature = 1.0 } }
[chosen]
plain = { among = "plain *", by = "ndcg_validation", experiment = "choice", blocks = ["bag"] }
[small]
dataset = "generated"
blocks = ["bag"]
arms = ["tilt", "plain"]
max_steps = 2
seeds = "0-1"
[fits.generated]
lr = 0.3
"""


@pytest.fixture
def checkout(new_checkout, monkeypatch):
    """A checkout of two experiments without records."""
    monkeypatch.setattr(records, "USED", set())
    monkeypatch.setattr(records, "PLANNED", {})
    texts = {"choice": CHOICE, "main": MAIN}
    return new_checkout({f"book/results/experiments/{x}.toml": text for x, text in texts.items()})


def test_a_parameter_changes_runs_and_the_published_value_changes_nothing(checkout):
    published = experiments.load("main")
    same = experiments.load("main", dataset="scifact", seeds="0-3", max_steps=300, lr=None)
    assert same is published
    other = experiments.load("main", dataset="generated", seeds="2", temperature=None)
    assert other.changed == {
        "dataset": ("scifact", "generated"),
        "lr": (None, 0.3),  # fits the data
        "seeds": ((0, 1, 2, 3), (2,)),
    }
    run = experiments.found(other).run("tilt", 2, "bag")
    assert (run.dataset, run.lr, run.seed, run.max_steps) == ("generated", 0.3, 2, 300)
    assert run.experiment == "main-changed"  # nothing was predicted of it
    assert experiments.load("main", arms=["ti*"]).names("bag") == ["tilt"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"datset": "generated"}, "runs of main.toml have no parameter 'datset'; .*'dataset'"),
        ({"seeds": "5-2"}, "seeds must be like"),
        ({"blocks": ["bagg"]}, "'bagg'; the nearest is 'bag'"),
        # its letters would be patterns, and one of them may be a star
        ({"arms": "[ti*]"}, r'arms must be a list, such as \["t0.1\*"\], got \[ti'),
    ],
)
def test_a_parameter_that_fits_nothing_is_named(checkout, parameters, words):
    with pytest.raises(ValueError, match=words):
        experiments.load("main", **parameters)


def test_missing_runs_are_trained_and_then_recalled(checkout, capsys):
    small = experiments.load("main", small=True)
    found = experiments.train(small, device="cpu")
    assert found.design is small and found is experiments.found(small)
    said = capsys.readouterr().out
    assert "dataset = generated, blocks = bag, arms = tilt,plain, max_steps = 2" in said
    table = [line.split() for line in said.splitlines()]
    assert ["choice", "4", "0", "4", "unknown", "–"] in table
    assert ["main", "2", "0", "2", "unknown", "–"] in table
    assert "main: more once validation has chosen plain." in said
    assert experiments.effect(found, "tilt", "plain", block="bag").df == 1
    first, *_ = experiments.load("choice", small=True).names("bag")
    experiments.train(experiments.load("choice", small=True, arms=[first]), device="cpu")
    planned = itertools.chain.from_iterable(one["runs"] for one in records.PLANNED.values())
    assert records.USED and {*planned} >= records.USED  # once for all arms, once for one
    capsys.readouterr()
    experiments.train(small, device="cpu")
    assert "Nothing is left to train." in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"main.toml has no arm 'loose'"):
        experiments.effect(found, "loose", "plain", block="bag")


def sized(run):
    """Return the method of a run whose learning curves show one thing more."""
    method = methods.build(run.method, **run.options)
    method.observe = lambda contrast: {"size": len(contrast.similarity)}
    return method


def test_a_record_without_what_is_watched_does_not_count(checkout):
    one = experiments.load("choice", arms=["plain lr0.1"], seeds="5")
    fields = dict(kind="images", dataset="digits", train_size=200, epochs=1)
    experiments.train(replace(one, fields=fields), device="cpu")
    watching = replace(one, fields=fields, watches="size")
    with pytest.raises(ValueError, match=r"curves of choice show no 'size'; pass train\(\)"):
        experiments.train(watching, device="cpu")
    found = experiments.train(watching, device="cpu", method=sized)
    assert not [*found.missing()]


def test_a_build_trains_no_published_run(checkout, monkeypatch):
    monkeypatch.setenv("HNLIB_RECALL", "1")
    experiments.train(experiments.load("choice"))
    assert not records.default_folder().exists()


def recorded(run, folder, seconds=None, hardware=None, **metrics):
    """Record a run that was never made."""
    one = {"kind": "retrieval", "configuration": run.configuration, "metrics": metrics}
    environment = {"hardware": hardware or {"cpu": "a processor"}}
    store.append(one | {"environment": environment, "seconds": seconds}, folder)


@pytest.mark.parametrize("yours", [True, False])
def test_your_run_is_compared_with_one_that_another_processor_made(checkout, yours):
    """Two tracked runs of a seed are not."""
    design = experiments.load("main", max_steps=7, seeds="0-1")
    for seed, (arm, cpu) in itertools.product(design.seeds, {"loose": "a", "tilt": "b"}.items()):
        run = experiments.found(design).run(arm, seed, "other")
        folder = records.default_folder() if yours and arm == "tilt" else records.tracked()
        recorded(run, folder, hardware={"cpu": cpu}, ndcg=0.5 + 0.01 * (arm == "tilt"))
    asked = experiments.found(design), "tilt", "loose"
    if yours:
        assert experiments.effect(*asked, block="other").difference == pytest.approx(1)
        table = OneVariance(asked[0], {"": asked[1:]}, block="other")
        assert table.effects("ndcg")[""].difference == pytest.approx(1)
    else:
        with pytest.raises(ValueError, match="seed 0 ran on b for ours and on a for the base"):
            experiments.effect(*asked, block="other")


def test_yours_stand_beside_the_published(checkout, monkeypatch):
    """Each comparison once, with its own number of seeds; what was not published has dashes."""
    monkeypatch.setattr(compared, "MADE", {})
    rng = random.Random(0)
    gains = {None: [], 7: []}
    for steps, of_seed in gains.items():
        design = experiments.load("main", max_steps=steps, seeds=None if steps is None else "0-2")
        for seed in design.seeds:
            base, gain = rng.random() / 2, rng.random() / 10
            of_seed.append(100 * gain)
            for arm, score in (("loose", base), ("tilt", base + gain)):
                run = experiments.found(design).run(arm, seed, "other")
                recorded(run, records.tracked(), ndcg=score, recall100=score)
    here = experiments.recorded("main", max_steps=7, seeds="0-2")
    for _ in range(2):
        experiments.effect(here, "tilt", "loose", block="other")
    experiments.effect(here, "loose", "tilt", "recall100", block="other")
    used = {*records.USED}
    first, second = experiments.beside().reset_index().to_dict("records")
    assert used and used == records.USED  # the published runs are quoted alone
    assert (first["comparison"], first["by"]) == ("main other: tilt − loose", "nDCG@10")
    for place, of_seed in (("here", gains[7]), ("published", gains[None])):
        mean = sum(of_seed) / len(of_seed)
        assert first[f"effect, {place}"].startswith(f"{mean:+.1f}")
        assert first[f"seeds, {place}"] == str(len(of_seed))
        assert second[f"effect, {place}"].startswith(f"−{mean:.1f}")
    unpublished = replace(here.design, name="nowhere")
    arguments = "a", ("b", "c"), "ndcg", "other", "these images"
    compared.note(unpublished, {arguments: compared_effect()})
    *_, last = experiments.beside().reset_index().to_dict("records")
    assert last["comparison"] == "nowhere other: a − (b − c)" and last["effect, published"] == "–"
    assert (last["verdict, here"], last["verdict, published"]) == ("beats", "–")


def test_what_a_page_corrects_together_is_corrected_beside_it(checkout, monkeypatch):
    """Here and in the published runs; a later look at one of them alone changes nothing."""
    monkeypatch.setattr(compared, "MADE", {})
    rng = random.Random(1)
    for steps in (None, 7):
        design = experiments.load("main", max_steps=steps)
        for seed, arm in itertools.product(design.seeds, ("loose", "tilt")):
            run = experiments.found(design).run(arm, seed, "other")
            recorded(run, records.tracked(), ndcg=rng.random(), recall100=rng.random())
    pairs = {"one": ("tilt", "loose"), "back": ("loose", "tilt")}
    here, published = (
        experiments.effects(experiments.recorded("main", max_steps=steps), pairs, blocks=["other"])
        for steps in (7, None)
    )
    compared.MADE.clear()
    changed = experiments.recorded("main", max_steps=7)
    experiments.effects(changed, pairs, blocks=["other"])
    alone = experiments.effect(changed, "tilt", "loose", block="other")
    row, _ = experiments.beside().reset_index().to_dict("records")
    assert row["effect, here"] == interval(here["other one"]) != interval(alone)
    assert row["effect, published"] == interval(published["other one"])


def test_beside_names_both_data_sets_where_yours_take_the_place_of_others(monkeypatch):
    arguments = "HCL, β = 10", "InfoGraph", "svm", "MUTAG", "these images"
    for given, where in (({"epochs": 3}, "MUTAG"), ({"dataset": "motifs"}, "(published: MUTAG)")):
        monkeypatch.setattr(compared, "MADE", {})
        compared.note(experiments.load("graphs", **given), {arguments: compared_effect()})
        (row,) = experiments.beside().reset_index().to_dict("records")
        title, _, _ = row["comparison"].partition(": HCL")
        assert title.endswith(where) and title.count("MUTAG") == 1
    monkeypatch.setattr(compared, "MADE", {})  # of one block, which has no name
    alone = "ot", "simclr", "knn", "", "these images"
    compared.note(experiments.load("corrections", dataset="cifar100"), {alone: compared_effect()})
    assert "corrections CIFAR-100 (published: CIFAR-10): ot" in compared.first()


def compared_effect():
    """Return an effect that is above zero."""
    return comparisons.Effect(2.0, 0.1, 5, "these images", seeds=(0, 1))


def test_a_build_counts_tracked_records_alone(checkout, monkeypatch):
    """What this machine recorded and nobody added counts elsewhere, and at other parameters."""
    run = experiments.recorded("choice").run("plain lr0.1", 5, "bag")
    changed = experiments.recorded("choice", max_steps=1).run("plain lr0.1", 5, "bag")
    for one in (run, changed):
        recorded(one, records.default_folder(), ndcg_validation=0.5)

    def values(**parameters):
        return experiments.recorded("choice", **parameters).values(
            "plain lr0.1", "ndcg_validation", "bag"
        )

    assert values() == values(max_steps=1) == {5: 0.5}
    monkeypatch.setenv("HNLIB_RECALL", "1")
    assert values() == {} and values(max_steps=1) == {5: 0.5}
    assert run in [*experiments.recorded("choice").missing()]
    recorded(run, records.tracked(), ndcg_validation=0.25)
    assert values() == {5: 0.25}


def test_what_the_reader_gives_comes_before_what_fits_the_data(checkout):
    fitting = experiments.recorded("main", dataset="generated").run("tilt", 0, "bag")
    chosen = experiments.recorded("main", dataset="generated", lr=0.7).run("tilt", 0, "bag")
    small = experiments.recorded("main", small=True, max_steps=5).run("tilt", 0, "bag")
    assert (fitting.lr, chosen.lr, small.lr, small.max_steps) == (0.3, 0.7, 0.3, 5)


GPU = {"cpu": "a processor", "gpu": "H200"}


def test_a_run_takes_the_median_of_what_its_epochs_took_on_such_a_device(checkout):
    """Of this machine, if it made one; runs on another device, or of other settings, do not count."""
    one, cpu = experiments.recorded("choice"), {"cpu": "a processor"}
    run = lambda seed, **more: replace(one.run("plain lr0.1", seed, "bag"), epochs=4, **more)  # noqa: E731
    seconds = lambda run, hardware=cpu: plans.cost(run, hardware).seconds  # noqa: E731
    assert plans.cost(run(5), cpu) == (None, None, None)
    for seed, took in enumerate((40.0, 44.0, 80.0)):
        recorded(run(seed), records.tracked(), took, ndcg=0.5)
    recorded(run(7), records.tracked(), 0.5, GPU, ndcg=0.5)
    recorded(run(8, encoder="gru"), records.tracked(), 400.0, ndcg=0.5)
    recorded(run(9), records.default_folder(), 20.0, {"cpu": "another one"}, ndcg=0.5)
    assert seconds(run(5)) == pytest.approx(44) and seconds(run(5), GPU) == pytest.approx(0.5)
    assert seconds(replace(run(5), epochs=8, lr=0.7)) == pytest.approx(88)
    assert seconds(run(5, encoder="gru")) == pytest.approx(400)
    assert plans.cost(run(5), {"cpu": "another one"}) == (20.0, None, "this machine")
    assert plans.cost(run(5), {"cpu": "a third"}).machine == "a processor, 1 thread"
    assert seconds(run(5), {"cpu": "a third"}) == pytest.approx(42)  # and no GPU


def test_an_epoch_of_twice_the_images_takes_twice_as_long(checkout):
    """The whole of a data set has no number, so it says nothing of a part."""
    image = lambda size, **more: ImageRun(train_size=size, epochs=2, **more)  # noqa: E731
    recorded(image(100), records.tracked(), 10.0, knn=0.5)
    cost = lambda run: plans.cost(run, {"cpu": "a processor"}).seconds  # noqa: E731
    assert [cost(image(size)) for size in (100, 200, None)] == [10.0, 20.0, None]
    recorded(image(200, seed=1), records.tracked(), 12.0, knn=0.5)
    assert cost(image(200)) == 12.0  # what was measured at this size is not computed


def test_runs_of_one_setting_are_looked_up_once_and_others_are_not_taken_for_them(
    checkout, monkeypatch
):
    cpu, image = {"cpu": "a processor"}, lambda **more: ImageRun(**{"epochs": 2} | more)
    for size, took in ((100, 10.0), (200, 12.0)):
        recorded(image(train_size=size), records.tracked(), took, knn=0.5)
    sizes = [dict(train_size=n, epochs=e) for n in (100, 200, 400) for e in (2, 3)]
    runs = [image(seed=seed, **more) for seed in range(3) for more in sizes]
    singly, asked, look_up = [plans.cost(run, cpu) for run in runs], [], plans.cost
    monkeypatch.setattr(plans, "cost", lambda run, *more: asked.append(run) or look_up(run, *more))
    assert plans.costs(runs, cpu) == singly and len(asked) == len(sizes)
    assert len({one.seconds for one in singly}) > 3


@pytest.mark.parametrize("place", ["metrics", "environment"])
def test_memory_is_the_peak_at_the_same_batch_size(checkout, place):
    run = lambda batch, seed: ImageRun(train_size=100, batch_size=batch, seed=seed)  # noqa: E731
    for seed, (batch, peak) in enumerate([(32, 5), (32, 7), (64, 90)]):
        one = {"kind": "images", "configuration": run(batch, seed).configuration, "seconds": 1.0}
        metrics, environment = {"knn": 0.5}, {"hardware": {"cpu": "a processor"}}
        if place == "metrics":
            metrics["peak_memory_mb"] = peak
        else:
            environment["peak_memory"] = peak * 2**20
        store.append(one | {"metrics": metrics, "environment": environment}, records.tracked())
    cost = lambda batch: plans.cost(run(batch, 9), {"cpu": "a processor"}).memory  # noqa: E731
    assert [cost(32), cost(64), cost(128)] == [7 * 2**20, 90 * 2**20, None]


def test_a_plan_counts_what_is_shared_once_and_adds_up(checkout):
    """What is unknown is not taken for nothing, and what is closed is not trained."""
    one = experiments.load("choice", max_steps=1)
    runs = [*experiments.found(one).missing()]
    closed = replace(experiments.load("choice", max_steps=2), closed="nobody trains it")
    plan = experiments.plan(one, one, closed, device="cpu", engine=Engine(engine="processes"))
    assert [len(row.left) for row in plan.rows] == [len(runs), len(runs)]
    assert plan.left == len(runs) and "2 processes" in str(plan) and "time unknown" in str(plan)
    assert "choice: nobody trains it." in str(plan)
    here = records.environment()["hardware"]
    recorded(replace(runs[0], seed=99), records.default_folder(), 60.0, here, ndcg=0.5)
    again = str(experiments.plan(one, device="cpu", engine=Engine(engine="processes")))
    assert f"time about {len(runs) / 2:.1f} min" in again and "this machine" in again


@pytest.mark.parametrize(("seeds", "told"), [(1, True), ("4-4", True), (2, False), (None, False)])
def test_a_plan_of_one_seed_says_that_nothing_has_an_interval(checkout, seeds, told):
    plan = str(experiments.plan(experiments.load("choice", seeds=seeds), device="cpu"))
    assert ("One seed, so no bar and no interval, whatever captions say: choice." in plan) == told


@pytest.mark.slow
def test_one_seed_of_graphs_has_the_interval_of_its_folds():
    plans = [str(experiments.plan(experiments.load(x, seeds=1))) for x in ("graphs", "corrections")]
    assert ["One seed, so" in plan for plan in plans] == [False, True]


def test_a_plan_says_which_recorded_models_are_trained_anew(checkout, monkeypatch):
    """Records have scores; a page that asks for models trains those that were not kept."""
    monkeypatch.setenv("HNLIB_PLAN", "1")
    one = experiments.load("choice", max_steps=1, seeds="4-5")
    first, second, *_ = experiments.found(one).missing()
    for run in (first, second):
        recorded(run, records.tracked(), ndcg=0.5)
    kept = runner.kept(second)
    kept.parent.mkdir(parents=True)
    kept.touch()
    said = "\nModels trained anew, because those recorded were not kept: 1."
    for keep in (True, False):
        with pytest.raises(execution.Planned) as planned:
            experiments.train(one, device="cpu", keep=keep)
        assert (said in str(planned.value)) == keep


def write_page(page, cells):
    """Write a page of these cells, the first its parameters, into a checkout; return its text."""
    page.parent.mkdir(exist_ok=True)
    head = (
        "---\njupytext:\n  text_representation:\n    extension: .md\n    format_name: myst\n---\n\n"
    )
    tags = [":tags: [parameters]\n\n"] + [""] * len(cells)
    text = "\n\n".join(f"```{{code-cell}} ipython3\n{t}{c}\n```" for t, c in zip(tags, cells))
    page.write_text(head + text)
    (page.parents[1] / "_toc.yml").touch()
    execute.root.cache_clear()
    return text


def test_a_page_says_what_it_would_train_and_trains_nothing(checkout, monkeypatch, prints):
    page = checkout / "notebooks/page.md"
    cells = [
        "small = False",
        "from hnlib import experiments\nloaded = experiments.load('main', small=small)",
    ]
    cells += ["experiments.train(loaded, device='cpu')", "raise SystemExit('after the training')"]
    text = write_page(page, cells)
    said = prints("run", str(page), "--plan", "-p", "small", "True")
    assert ["main", "2", "0", "2", "unknown", "–"] in [line.split() for line in said.splitlines()]
    assert not records.default_folder().exists() and "HNLIB_PLAN" not in os.environ
    page.write_text(text.replace("experiments.train", "print"))
    assert prints("run", str(page), "--plan") == f"{page} trains nothing.\n"
    execute.root.cache_clear()


@pytest.mark.parametrize("how", ["-p lr x", "--grid lr=0.1,x", "--grid lr=0.1,x --dry-run"])
def test_a_value_that_the_experiment_refuses_is_one_sentence_before_anything_runs(
    checkout, monkeypatch, refuses, how
):
    """A page that trains no experiment takes any value, and no page is asked about its own."""
    asked = []
    monkeypatch.setattr(execute, "execute", lambda *a, **k: asked.append(a[2]) or 1.0)
    monkeypatch.setattr(report, "of_run", lambda *_: "")
    page = checkout / "notebooks/page.md"
    cells = ["lr = None", "from hnlib import experiments\nprint(lr)"]
    cells += ["one = experiments.load('main', lr=lr)", "experiments.train(one, device='cpu')"]
    write_page(page, cells)
    words = ["run", str(page), *how.split()]
    assert refuses(*words).startswith("hnlib: lr must be a valid number") and not asked
    assert cli.main(["run", str(page), *how.replace("x", "0.2").split()]) == 0
    assert cli.main(["run", str(page)]) == 0
    write_page(page, ["lr = None", "raise ValueError(lr)"])
    assert cli.main(words) == 0
    assert len(asked) == (1 if "dry" in how else 5 if "grid" in how else 3)
    write_page(page, [*cells[:2], "get_ipython()", *cells[2:]])  # there is none here
    assert cli.main(words) == 0


def test_the_queue_trains_what_was_predicted_first_and_then_what_is_short(checkout, prints):
    bounds = 'holds = { above = 0.0 }\nrefuted = { below = 0.0 }\nmetric = "ndcg_validation"'
    line = f'\n[[predictions]]\nid = "A"\nsays = "A."\ncompare = [["plain lr0.1", "plain lr0.2"]]\n{bounds}\n'
    folder = checkout / "book/results/experiments"
    (folder / "asked.toml").write_text(CHOICE.replace("minutes = 0.1", "minutes = 90") + line)
    (folder / "brief.toml").write_text(CHOICE.replace("minutes = 0.1", "minutes = 0.01"))
    (folder / "main.toml").unlink()
    listed = [line.split()[0] for line in prints("queue").splitlines()]
    assert listed[1:4] == ["asked", "brief", "choice"]


def test_data_that_are_missing_are_missed_before_anything_is_trained(checkout, monkeypatch):
    """Those of a later experiment, or beside which one searches, too; runs that are recorded need none."""
    monkeypatch.setenv("HNLIB_DATA", str(checkout / "data"))
    here, transfer = (
        experiments.load("choice", small=True, **x) for x in ({}, {"transfer": ["med"]})
    )
    for later in (experiments.load("choice", small=True, dataset="scifact"), transfer):
        with pytest.raises(
            ValueError, match=r"retrieval/(scifact|med) cannot be read .* put files"
        ):
            experiments.train_all([here, later], device="cpu")
        assert not records.default_folder().exists()
    for *_, run in transfer.runs():
        for seed in transfer.seeds:
            recorded(replace(run, seed=seed), records.default_folder(), 1.0, {}, ndcg=0.5)
    assert experiments.train_all([here, transfer], device="cpu")


def test_minutes_end_everything_and_the_same_call_goes_on(checkout):
    small = experiments.load("choice", small=True)
    with pytest.raises(ValueError, match="minutes have passed: 0 of 2 seeds are whole, and 4 runs"):
        experiments.train(small, device="cpu", minutes=1e-9)
    experiments.train(small, device="cpu", minutes=10)
    assert experiments.plan(small, device="cpu").left == 0


def test_several_experiments_share_their_minutes(checkout, monkeypatch):
    """Each look at the clock takes a second here."""
    looks = itertools.count()
    for module in (runner, execution):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=looks.__next__))
    alone, first, second = (
        experiments.load("choice", small=True, arms=["plain lr0.1"], seeds=1, max_steps=steps)
        for steps in (1, 2, 3)
    )
    experiments.train(alone, minutes=10, device="cpu")
    minutes = (next(looks) + 1) / 60  # enough for one, or for each of them on its own
    with pytest.raises(ValueError, match="the minutes have passed"):
        experiments.train_all([first, second], minutes=minutes, device="cpu")
    found = map(experiments.found, (first, second))
    assert [any(one.missing()) for one in found] == [False, True]


def test_a_night_answers_with_whole_seeds(checkout, monkeypatch, capsys):
    """Each look at the clock takes a second here."""
    path = checkout / "book/results/experiments/main.toml"
    here = MAIN.replace('"0-3"', '"5-8"').replace('"0-1"', "2")
    path.write_text('after = ["choice"]\n' + here)
    looks = itertools.count()
    small = [experiments.load(name, small=True) for name in ("choice", "main")]
    assert [one.seeds for one in small] == [(5, 6), (7, 8)]
    for module in (runner, execution):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=looks.__next__))
    execution.train_all([one.first(1) for one in small], minutes=10, device="cpu")
    capsys.readouterr()  # whose plan says it, too
    whole = experiments.train_all(small, minutes=1 / 60, device="cpu")
    assert [one.design.seeds for one in whole] == [(5,), (7,)]
    every = store.read(records.default_folder())
    assert {one["configuration"]["seed"] for one in every} == {5, 7}
    said = capsys.readouterr().out
    assert "minutes have passed: 1 of 2 seeds are whole, and 3 runs are left" in said
    assert "a further hour makes it 2; the same call goes on from there" in said
    assert "One seed, so no bar and no interval, whatever captions say: choice, main." in said
    experiments.train(small[0], device="cpu")  # of which nothing is left to cut
    whole = experiments.train_all(small, minutes=1 / 60, device="cpu")
    assert [one.design.seeds for one in whole] == [(5, 6), (7,)]
    whole = experiments.train_all(small, minutes=10, device="cpu")
    assert [one.design for one in whole] == small


def test_minutes_train_no_run_of_a_closed_experiment(checkout):
    path = checkout / "book/results/experiments/choice.toml"
    path.write_text('closed = "enough is known"\n' + CHOICE)
    found = experiments.train(experiments.load("choice"), minutes=10, device="cpu")
    assert any(found.missing()) and not store.read(records.default_folder())


def scores(folder):
    """What each run scored."""
    return {one["run"]: one["metrics"]["ndcg_validation"] for one in store.read(folder)}


def test_processes_record_what_one_process_records(checkout, tmp_path):
    runs = [*experiments.recorded("choice", small=True, max_steps=1).missing()]
    here, there = tmp_path / "one" / "here", tmp_path / "two" / "there"
    assert runner.train(runs, device="cpu", record_to=here) == 4
    engine, ended = Engine(engine="processes", workers=2), []
    broken = replace(runs[0], dataset="folder:nowhere")
    where = dict(device="cpu", record_to=there, engine=engine, leave_out=(ValueError,))
    done = runner.train([broken, *runs], **where, finished=lambda *one: ended.append(one))
    assert done == 4 and [run for run, outcome in ended if isinstance(outcome, ValueError)] == [
        broken
    ]
    assert scores(here) == scores(there) and len(scores(here)) == 4
    assert not [*tmp_path.rglob("*.pt")]  # nothing is unfinished


def test_processes_record_what_ends_after_the_minutes(checkout, monkeypatch):
    """One is cut, and the one beside it ends."""

    def spread(function, jobs, engine):
        (cut, _), *rest = jobs
        yield (cut, None), runner.OutOfTime()
        yield from ((job, function(job)) for job in rest[:1])
        yield from ((job, runner.OutOfTime()) for job in rest[1:])

    monkeypatch.setattr(runner, "spread", spread)
    runs = [*experiments.recorded("choice", small=True, max_steps=1).missing()]
    assert runner.train(runs, device="cpu", minutes=10, engine="processes") == 1
    (record,) = store.read(records.default_folder())
    assert records.key(record["configuration"]) == records.key(runs[1].configuration)


def test_a_page_may_name_its_engine_or_give_its_fields():
    for given in ("processes", {"engine": "processes"}, Engine(engine="processes")):
        assert Engine.of(given) == Engine(engine="processes")
    assert Engine.of(None) == Engine() and Engine(engine="ray", gpus=0.5).chosen == {
        "engine": "ray",
        "gpus": 0.5,
    }
    with pytest.raises(ValueError, match="workers"):
        Engine.of({"engine": "processes", "workers": 0})


@pytest.mark.parametrize(
    "how",
    [{"minutes": 0}, {"minutes": "ten"}, {"device": "gpu"}, {"engine": "procs"}, {"engine": 2}],
)
def test_what_cannot_be_carried_out_is_refused_before_it_is_planned(checkout, monkeypatch, how):
    """No minutes would be as many as it takes."""
    monkeypatch.setattr(execution, "plan", lambda *designs, **how: 1 / 0)
    ((name, value),) = how.items()
    with pytest.raises(ValueError, match=f"^{name} must [^\n]*{value!r}$"):
        experiments.train(experiments.load("choice"), **how)
    with pytest.raises(ZeroDivisionError):
        experiments.train(experiments.load("choice"), device="cpu", minutes=1, engine="processes")


@pytest.mark.slow
def test_a_worker_that_was_killed_is_told_with_what_needs_less_memory():
    one = Engine(engine="processes", workers=1)
    ((job, error),) = runner.spread(os._exit, [9], one)
    assert job == 9 and isinstance(error, OSError) and "smaller batch_size" in str(error)
    assert [*runner.spread(abs, [-3], one)] == [(-3, 3)]


def named_device(job):
    """Say which GPU a worker has; for a while, so that the other one gets a job, too."""
    time.sleep(1)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("seen", "used"), [(["3", "GPU-7"], {"3", "GPU-7"}), (["5"], {"5"}), ([], {None})]
)
def test_each_process_has_a_gpu_of_its_own(monkeypatch, seen, used):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(runner, "visible_devices", lambda: seen)
    done = runner.spread(named_device, range(4), Engine(engine="processes", workers=2))
    assert {device for _, device in done} == used


@pytest.mark.parametrize(
    ("named", "count", "seen"), [(None, 2, ["0", "1"]), ("4,7,9", 2, ["4", "7"]), (None, 0, [])]
)
def test_gpus_are_named_as_the_environment_names_them(monkeypatch, named, count, seen):
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert runner.visible_devices() == seen


def visible(job):
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("has", "asked", "device", "gpus"),
    [
        (2, None, "auto", 1),
        (0, None, "auto", 0),
        (2, 0.5, "auto", 0.5),
        (2, 0, "auto", 0),
        (2, None, "cpu", 0),
    ],
)
def test_a_job_of_ray_has_a_gpu_where_the_cluster_has_any(monkeypatch, has, asked, device, gpus):
    """Unless another share is asked for, or the CPU."""
    told = {}

    def remote(**how):
        told.update(how)
        return lambda call: SimpleNamespace(remote=lambda job: (call, job))

    ray = ModuleType("ray")
    ray.init = ray.shutdown = lambda *_, **__: None
    ray.cluster_resources = lambda: {"CPU": 4, "GPU": has}
    ray.remote, ray.wait = remote, lambda jobs: (jobs[:1], jobs[1:])
    ray.get = lambda task: task[0](task[1])
    ray.exceptions = ModuleType("ray.exceptions")
    ray.exceptions.RayError = OSError
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", ray.exceptions)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    spread, seen = runner.spread, []
    monkeypatch.setattr(
        runner, "spread", lambda _, jobs, engine: seen.extend(spread(visible, [1], engine)) or ()
    )
    runner.train([], device=device, engine={"engine": "ray", "gpus": asked})
    assert told["num_gpus"] == gpus and seen == [(1, "3" if gpus else "")]


@pytest.fixture(scope="module")
def two_nodes():
    """Ray on this machine, as two machines of one core each."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    node = dict(num_cpus=1, object_store_memory=100 * 2**20)
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield Engine(engine="ray", address=cluster.address)
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_a_cluster_gives_a_job_again_whose_worker_was_killed(two_nodes, tmp_path):
    def killed_once(marker):
        """Die as a worker does whose machine is taken away, but not the second time."""
        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    jobs = [str(tmp_path / name) for name in "ab"]
    assert dict(runner.spread(killed_once, jobs, two_nodes)) == dict.fromkeys(jobs, "done")


@pytest.mark.slow
def test_a_run_that_the_minutes_cut_on_a_cluster_goes_on_from_there(two_nodes, tmp_path):
    """Here, as on the cluster; what ends there is recorded as it is here."""
    long = ImageRun(train_size=200, epochs=1_000_000, batch_size=64, evaluate_size=50)
    folder, short = tmp_path / "there" / "results", replace(long, epochs=1)

    def epochs_after(engine, before):
        """Return how many epochs a run has that is cut, in ever more minutes, for a slow start."""
        for minutes in (0.1, 0.4, 1.6):
            how = dict(device="cpu", record_to=folder, minutes=minutes, engine=engine)
            assert runner.train([long], **how) == 0
            if (path := runner.unfinished(long, folder)).exists():
                content = path.read_bytes()[:-32]  # without its digest
                epoch = torch.load(io.BytesIO(content), weights_only=True)["epoch"]
                if epoch > before:
                    return epoch
        return before

    first = epochs_after(two_nodes, 0)
    second = epochs_after(two_nodes, first)
    assert 0 < first < second < epochs_after("here", second)
    here = tmp_path / "here" / "results"
    assert runner.train([short], device="cpu", record_to=folder, engine=two_nodes) == 1
    runner.train([short], device="cpu", record_to=here)
    (one,), (other,) = store.read(folder), store.read(here)
    assert one["run"] == other["run"] and one["metrics"]["knn"] == other["metrics"]["knn"]


def test_the_queue_plans_and_trains_and_goes_on_after_a_failure(
    checkout, monkeypatch, capsys, prints
):
    def train(one, minutes, **how):
        trained.append(one.name)
        if one.name == "choice":
            raise ValueError("no such data")
        measured = {"kind": "measurement", "configuration": {"experiment": one.name}, "metrics": {}}
        store.append(measured, records.default_folder())

    trained, queue = [], ["queue", "--device", "cpu"]
    listed = [line.split()[0] for line in prints(*queue).splitlines()][1:3]
    assert listed == ["main", "choice"]
    monkeypatch.setattr(experiments, "train", train)
    assert cli.main([*queue, "--run"]) == 0 and trained == listed
    assert capsys.readouterr().out == "choice: no such data\n"
    assert cli.main([*queue, "--run", "--only", "ch*"]) == 1  # nothing was recorded
    assert cli.main([*queue, "--run", "--minutes", "1e-9"]) == 1 and len(trained) == 3


def test_experiments_of_a_queue_share_its_minutes(checkout, monkeypatch, prints):
    """The second gets what the first has left; each takes four."""
    now, given = [0.0], []

    def train(one, minutes, **how):
        given.append(minutes)
        now[0] += 4 * 60
        store.append(
            {"kind": "measurement", "configuration": {"experiment": one.name}, "metrics": {}},
            records.default_folder(),
        )

    monkeypatch.setattr(experiments, "train", train)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    prints("queue", "--device", "cpu", "--run", "--minutes", "10")
    assert given == [10, 6]
