"""Experiments at other parameters, the runner that trains what is not recorded, and its queue."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hnlib import __main__ as cli
from hnlib import experiments, methods
from hnlib.experiments import execution, runner
from hnlib.experiments.runner import Engine
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
    assert "choice: 4 runs, 0 recorded, 4 to train." in said
    assert "main: 2 runs, 0 recorded, 2 to train; more once validation has chosen." in said
    assert experiments.effect(found, "tilt", "plain", block="bag").df == 1
    planned = itertools.chain.from_iterable(one["runs"] for one in records.PLANNED.values())
    assert records.USED and {*planned} >= records.USED
    experiments.train(small, device="cpu")
    assert "4 recorded, 0 to train" in capsys.readouterr().out
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


def test_a_run_takes_the_median_of_what_its_epochs_took_on_a_cpu(checkout):
    """Runs on a GPU, and of other settings, say nothing about it."""
    one = experiments.recorded("choice")
    run = lambda seed, **more: replace(one.run("plain lr0.1", seed, "bag"), epochs=4, **more)  # noqa: E731
    assert runner.seconds(run(5)) is None
    for seed, seconds in enumerate((40.0, 44.0, 80.0)):
        recorded(run(seed), records.tracked(), seconds, ndcg=0.5)
    recorded(run(7), records.tracked(), 0.5, {"cpu": "a processor", "gpu": "H200"}, ndcg=0.5)
    recorded(run(8, encoder="gru"), records.tracked(), 400.0, ndcg=0.5)
    assert runner.seconds(run(5)) == pytest.approx(44)
    assert runner.seconds(replace(run(5), epochs=8, lr=0.7)) == pytest.approx(88)
    assert runner.seconds(run(5, encoder="gru")) == pytest.approx(400)


def test_the_queue_trains_what_was_predicted_first_and_then_what_is_short(checkout, prints):
    bounds = 'holds = { above = 0.0 }\nrefuted = { below = 0.0 }\nmetric = "ndcg_validation"'
    line = f'\n[[predictions]]\nid = "A"\nsays = "A."\ncompare = [["plain lr0.1", "plain lr0.2"]]\n{bounds}\n'
    folder = checkout / "book/results/experiments"
    (folder / "asked.toml").write_text(CHOICE.replace("minutes = 0.1", "minutes = 90") + line)
    (folder / "brief.toml").write_text(CHOICE.replace("minutes = 0.1", "minutes = 0.01"))
    (folder / "main.toml").unlink()
    listed = [line.split(":")[0] for line in prints("queue").splitlines()]
    assert listed == ["asked", "brief", "choice"]


def test_minutes_end_everything_and_the_same_call_goes_on(checkout):
    small = experiments.load("choice", small=True)
    with pytest.raises(ValueError, match="the minutes have passed, and 4 runs of choice"):
        experiments.train(small, device="cpu", minutes=1e-9)
    experiments.train(small, device="cpu", minutes=10)
    assert experiments.plan(small).endswith("0 to train.")


def test_several_experiments_share_their_minutes(checkout, monkeypatch):
    """Each look at the clock takes a second here."""
    looks = itertools.count()
    for module in (runner, execution):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=looks.__next__))
    alone, first, second = (
        experiments.load("choice", small=True, arms=["plain lr0.1"], max_steps=steps)
        for steps in (1, 2, 3)
    )
    experiments.train(alone, minutes=10, device="cpu")
    minutes = (next(looks) + 1) / 60  # enough for one, or for each of them on its own
    with pytest.raises(ValueError, match="the minutes have passed"):
        experiments.train_all([first, second], minutes=minutes, device="cpu")
    found = map(experiments.found, (first, second))
    assert [any(one.missing()) for one in found] == [False, True]


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
    listed = [line.split(":")[0] for line in prints(*queue).splitlines()]
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
