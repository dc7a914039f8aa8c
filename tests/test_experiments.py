"""An experiment is one file: its arms, its runs, what is chosen, and its verdicts."""

import itertools
from contextlib import suppress
from pathlib import Path

import pytest

from builder.own_data import collection
from hnlib import experiments
from hnlib.experiments import arms as making
from hnlib.experiments import design, execution
from hnlib.training import store

TEXT = """
question = "Which?"
primary = "ndcg"
beside = ["recall100"]
seeds = "3-5"
[fields]
kind = "retrieval"
dataset = "generated"
[blocks]
small = { dimension = 16 }
large = { dimension = 32 }
[templates]
plain = { method = "simclr", options = { temperature = 0.2 } }
tilt = { method = "hcl", options = { temperature = 0.2, beta = 1.0 } }
[[grids]]
name = "{extends} lr{lr}"
over = { extends = ["plain", "tilt"], lr = [0.1, 0.2] }
[[grids]]
name = "{extends} t{temperature}"
blocks = ["small"]
over = { extends = ["tilt"], temperature = [0.1] }
[chosen]
"tilt tuned" = { among = "tilt lr*", by = "ndcg_validation" }
"""


def predicted(name, words):
    """The text of a prediction."""
    bounds = "holds = { above = 0.0 }\nrefuted = { below = 0.0 }"
    head = f'\n[[predictions]]\nid = "{name}"\nsays = "{name}."'
    return f'{head}\n{words}\n{bounds}\nmetric = "ndcg"\n'


FOLDER = Path("book/results")  # of the checkout that `load` makes


def record(run, cpu="a processor", **metrics):
    """Record a run that was never made."""
    one = {"kind": "retrieval", "configuration": run.configuration, "metrics": metrics}
    store.append(one | {"environment": {"hardware": {"cpu": cpu}}}, FOLDER / "records")


@pytest.fixture
def load(new_checkout):
    """Write an experiment and its records, and load it."""
    new_checkout({})

    def write(more="", score=None):
        (FOLDER / "experiments/which.toml").write_text(TEXT + more)
        experiment = experiments.recorded("which")
        for block in experiment.design.blocks if score else ():
            for arm, seed in itertools.product(
                experiment.design.arms[block], experiment.design.seeds
            ):
                found = score(block, arm, seed)
                more = dict(recall100=found, ndcg_validation=found)
                record(experiment.run(arm, seed, block), ndcg=found, **more)
        return experiments.recorded("which")

    return write


def lr(block, arm, seed):
    """Scores in which the tilt gains, and more at the higher rate of the large block."""
    rate = 0.02 * (("0.2" in arm) == (block == "large"))
    gain = 0.05 + 0.001 * seed * (1 + ("0.2" in arm))
    return 0.5 + rate + gain * ("tilt" in arm)


def test_a_block_an_arm_and_a_seed_are_a_run(load):
    experiment = load()
    run = experiment.run("tilt t0.1", 4, "small")
    assert (run.dimension, run.seed, run.method, run.dataset) == (16, 4, "hcl", "generated")
    assert run.options["temperature"] == 0.1 and run.options["beta"] == 1.0
    assert [run.seed for run in experiment.missing()] == [3] * 9 + [4] * 9 + [5] * 9


def test_of_a_metric_that_nobody_measured_the_measured_are_named():
    found = experiments.recorded("search")
    block = next(iter(found.design.blocks))
    with pytest.raises(ValueError, match=r"search has no p10 of '.*'; it has .*mrr, ndcg, "):
        found.values(found.design.names(block)[0], "p10", block)


def test_a_block_of_chosen_arms_alone_has_no_rows_of_arms_that_were_not_chosen():
    """But all columns; the chosen arms have rows where they are named."""
    found = experiments.recorded("labels-tuned")
    none, every = found.rows(), found.rows(names=["SCL"])
    assert len(none) == 0 and [*none.columns] == [*every.columns]
    assert len(every) == len(found.design.seeds)


def test_an_unknown_arm_names_the_nearest(load):
    with pytest.raises(ValueError, match=r"no arm 'tilt lr0\.3'; the nearest is 'tilt lr0\.[12]'"):
        load().run("tilt lr0.3", 3, "large")
    with pytest.raises(ValueError, match="no prediction 'E'; the nearest is"):
        experiments.outcome(load(predicted("D", "")), "E")
    with pytest.raises(ValueError, match="two arms of one name"):
        load('[arms]\n"plain lr0.1" = { extends = "plain", lr = 0.1 }')


def test_a_parameter_keeps_the_blocks_that_have_its_value_or_else_the_first_of_them(load):
    load("[blocks.bare]")
    same = experiments.recorded("which", dimension=32)
    assert [*same.design.blocks] == ["large", "bare"] and "dimension" not in same.design.changed
    assert same.key("plain lr0.1", 3, "large") == load().key("plain lr0.1", 3, "large")
    load("[blocks.bare]")
    other = experiments.recorded("which", dimension=64)
    assert [*other.design.blocks] == ["small", "bare"] and other.design.changed["dimension"] == (
        None,
        64,
    )
    assert {run.dimension for run in other.missing()} == {64}


def test_a_block_is_shown_under_the_name_of_its_data(load):
    load('[blocks.films]\ndataset = "ml-100k"')
    assert experiments.load("which").title("films") == "films"
    given = dict(blocks=["films", "small"])
    changed = experiments.load("which", dataset=collection(FOLDER / "mine"), **given)
    assert [changed.title(block) for block in changed.blocks] == ["mine", "small"]
    assert experiments.load("which", dataset="banking77", **given).title("films") == "Banking77"
    assert experiments.load("which", epochs=2, **given).title("films") == "films"


def test_what_chooses_is_small_and_has_the_blocks_of_what_it_chooses_for(load):
    load('[small]\narms = ["tilt lr0.1"]\nseeds = "3"\nepochs = 9')
    (FOLDER / "experiments/large.toml").write_text(
        'base = "which"\nseeds = "6-9"\ngrids = []\nblocks.large.dimension = 32\n'
        '[chosen.tuned]\namong = "tilt lr*"\nby = "ndcg_validation"\nexperiment = "which"\n'
        '[small]\nepochs = 2\nseeds = "6-7"\n'
    )
    which, arms = experiments.recorded("large", small=True).candidates("tuned", "large")
    assert ([*which.design.blocks], which.design.seeds, arms) == (["large"], (3,), ["tilt lr0.1"])
    assert {run.epochs for run in which.missing()} == {2}
    published, _ = experiments.recorded("large").candidates("tuned", "large")
    assert published is experiments.recorded("which")


def test_what_is_chosen_is_unknown_until_all_runs_are_there_and_differs_by_block(load):
    assert load().run("tilt tuned", 3, "small") is None
    assert experiments.waiting(load(), [["tilt tuned", "plain lr0.1"]]) == 2 * 2 * 3
    experiment = load(score=lr)
    assert experiment.best("tilt lr*", "ndcg_validation", "small") == "tilt lr0.1"
    assert experiment.best("tilt lr*", "ndcg_validation", "large") == "tilt lr0.2"
    assert experiment.run("tilt tuned", 3, "large").lr == 0.2
    assert experiments.waiting(experiment, [["tilt tuned", "plain lr0.1"]]) == 0
    assert not list(experiment.missing())


def test_a_block_is_read_from_the_processor_that_made_all_of_it(load):
    experiment = load()
    arms = list(experiment.design.arms["large"])

    def found_after(arms, score, cpu):
        for arm in arms:
            record(experiment.run(arm, 3, "large"), cpu, ndcg=score)
        which = experiments.recorded("which")
        values = (which.values(arm, "ndcg", "large") for arm in which.design.arms["large"])
        return [seeds[3] for seeds in values if 3 in seeds]

    assert found_after(arms[1:], 0.5, "a processor") == [0.5] * 3
    assert found_after(arms[:2], 0.25, "another") == [0.25, 0.5, 0.5, 0.5]  # the first counts
    assert found_after(arms, 0.75, "a third") == [0.75] * 4
    assert found_after(arms, 0.85, "a fourth") == [0.75] * 4


def test_pairs_are_compared_in_the_blocks_that_have_both_arms(load):
    cold, plain = "tilt t0.1", "plain lr0.1"
    assert experiments.waiting(load(), [(cold, plain)]) == 2 * 3  # the large block has no such arm
    experiment = load(score=lr)
    everywhere = {"higher rate": ("tilt lr0.2", "tilt lr0.1")}
    effects = experiments.effects(experiment, {"cold": (cold, plain)} | everywhere)
    assert list(effects) == ["small cold", "small higher rate", "large higher rate"]
    assert {effect.family for effect in effects.values()} == {3}
    assert list(experiments.effects(experiment, everywhere, blocks=["large"])) == [
        "large higher rate"
    ]


def test_what_a_prediction_may_be_about(load):
    texts = {
        "mean": 'arms = [[["tilt lr0.1", "tilt lr0.2"], "plain lr0.1"]]',
        "widest": 'arms = ["plain lr0.1", "plain lr0.2", "tilt lr0.2"]',
        "chosen": 'arms = "tilt lr*"\nof = "lr"\nby = "ndcg_validation"',
    }
    lines = (
        predicted(name, f'blocks = ["large"]\nstatistic = "{name}"\n{words}')
        for name, words in texts.items()
    )
    experiment = load("".join(lines), lr)
    means = {
        arm: 100 * experiment.mean(arm, "ndcg", "large") for arm in experiment.design.arms["large"]
    }
    both = (means["tilt lr0.1"] + means["tilt lr0.2"]) / 2 - means["plain lr0.1"]
    assert experiments.outcome(experiment, "mean").difference == pytest.approx(both)
    widest = experiments.outcome(experiment, "widest")
    assert abs(widest.difference) == pytest.approx(means["tilt lr0.2"] - means["plain lr0.1"])
    assert widest.family == 3 and experiments.outcome(experiment, "chosen").text == "lr = 0.2"
    assert (
        experiments.outcome(experiment, "chosen", "recall100") == {}
    )  # a choice has no second read-out


def test_a_closed_experiment_is_trained_at_other_parameters_alone(load, monkeypatch):
    begun, missing = [], experiments.Found.missing
    train = lambda runs, **how: begun.extend(runs) or len(runs)  # noqa: E731
    monkeypatch.setattr(execution.runner, "train", train)
    monkeypatch.setattr(experiments.Found, "missing", lambda self: [*missing(self)][len(begun) :])
    experiments.train(load('[small]\nseeds = "3"\n[fits.scifact]\nprimary = "recall100"').design)
    assert experiments.load("which", dataset="scifact").primary == "recall100"
    assert len(begun) == 3 * 9
    begun.clear()
    (FOLDER / "experiments/again.toml").write_text('base = "which"\nclosed = "asked elsewhere"\n')
    closed = experiments.load("again")
    experiments.train(closed)
    plan = experiments.plan(closed, device="cpu")
    assert not begun and plan.left == 0 and "again: asked elsewhere." in str(plan)
    assert ["again", "27", "0", "closed"] in [line.split()[:4] for line in str(plan).splitlines()]
    experiments.train(experiments.load("again", small=True))
    assert len(begun) == 9


def test_gamma_counts_the_tilt_and_the_transport(load):
    """γ = (1 + β)/t, and a plan of entropy ε adds 1/ε."""
    arm = 'transport = { method = "ot", options = { temperature = 0.5, epsilon = 0.1 } }'
    experiment = load(f"[arms]\n{arm}")
    names = ("plain lr0.1", "tilt t0.1", "transport")
    gammas = [experiment.value_of(name, "gamma", "small") for name in names]
    assert gammas == pytest.approx([1 / 0.2, 2 / 0.1, 1 / 0.5 + 1 / 0.1])
    assert experiment.value_of("transport", "epsilon", "small") == 0.1


def test_a_superseded_record_does_not_count_and_the_run_is_missing_until_it_is_made_again(load):
    run, arm = load(score=lr).run("tilt lr0.1", 4, "small"), ("tilt lr0.1", "ndcg", "small")
    before = load().values(*arm)
    several = store.read(FOLDER / "records")
    (wrong,) = [one for one in several if one["configuration"] == run.configuration]
    store.supersede([wrong], "measured at another scale", "2026-03-01", FOLDER / "records")
    experiment = experiments.recorded("which")
    assert experiment.values(*arm) == {seed: before[seed] for seed in (3, 5)}
    assert run in [*experiment.missing()] and experiment.mean(*arm) is None
    assert experiment.best("tilt lr*", "ndcg_validation", "small") is None
    record(run, ndcg=0.75)
    assert experiments.recorded("which").values(*arm) == before | {4: 0.75}


def test_an_arm_is_at_the_edge_of_what_was_tried_or_inside(load):
    """Of both rates each is an edge; with one more on the far side the chosen one is inside."""
    said = "small, tilt tuned, lr = 0.1; large, tilt tuned, lr = 0.2"
    assert experiments.edges(load(score=lr)) == f"Chosen at the edge of what was tried: {said}."
    wider = '[arms]\n"tilt lr0.4" = { extends = "tilt", lr = 0.4, blocks = ["large"] }'
    edges = experiments.edges(load(wider, score=lr))
    assert "small, tilt tuned, lr = 0.1" in edges and "large" not in edges


def test_what_is_told_of_a_changed_design_names_no_arms_that_a_grid_replaced():
    """Those that small keeps are patterns of points that are not run then; one's own are asked for."""
    kept = experiments.load("map", small=True)
    assert "arms = " in execution.told(kept)
    points = {"temperature": [0.1, 0.2], "beta": [0, 1]}
    for arms, named in ({}, False), ({"arms": ["t0.1*", "t0.2 b0"]}, True):
        made = experiments.load("map", small=True, grid=points, **arms)
        words = execution.told(made)
        assert "grid = " in words and ("arms = " in words) == named


def test_each_experiment_says_what_of_its_grid_was_changed():
    """Also those whose small form keeps all arms."""
    tried = 0
    for name in design.names():
        varied = making.varied(experiments.load(name).grids)
        numbers = {k: v for k, v in varied.items() if type(v[0]) in (int, float)}
        for key, values in numbers.items():
            with suppress(ValueError):  # what is refused is not told
                made = experiments.load(name, grid={key: [*values[:2], 3 * max(values)]})
                assert f"grid = {key}=" in execution.told(made)
                tried += 1
    assert tried > 30
