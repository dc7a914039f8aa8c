"""What any version of the null model keeps: declared margins, corrected tasks, seeds that are fresh.

Trials are carried out with invented scores in place of trainings, and their records are read.
"""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from hnlib.experiments import evidence, null
from hnlib.experiments.comparisons import Effect
from hnlib.training.config import Engine, canonical

LOSS = """
import torch

CONFIGURATIONS = [{"t": 0.5}, {"t": 0.2}]


def loss(a, b, t=0.5):
    return torch.nn.functional.cross_entropy(a @ b.T / t, torch.arange(len(a)))
"""
TASK = """
import numpy as np

RATES, STEPS, MARGIN = [0.1, 0.2], 3, 1.75


def train(loss, options, lr, steps, seed):
    return np.random.default_rng([seed, int(100 * lr), len(loss.name)]).normal(0.6, 0.01, 20)
"""
#: What is added to a side's scores on a task, in points: the loss gains on one and loses on another
GAINS = {("ours", "banking"): 1.5, ("ours", "digits"): -1.5, ("labels", "banking"): 3.0}


def invented(task, setting, seed):
    """Scores by query of a training that was never made; a rate and a setting have their level."""
    text = canonical([setting["method"], setting["options"], setting["lr"]])
    own, queries = (np.random.default_rng([*part.encode()]) for part in (text, task))
    luck = np.random.default_rng([seed, *text.encode()])
    method = setting["method"].partition("-")[0]
    side = "labels" if "pairs_only" in setting or method == "scl" else "ours" * (method == "mine")
    level = GAINS.get((side, task), 0.0) + 0.4 * own.random() + luck.normal(0, 0.05)
    return 0.5 + level / 100 + queries.normal(0, 0.05, 30) + luck.normal(0, 0.002, 30)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """trial(target) returns the record and the trainings (task, setting as text, seed), in order."""
    few = replace(null.protocol(), seeds=null.protocol().seeds[:4])
    few = replace(few, blocks={name: one | {"fresh": 5} for name, one in few.blocks.items()})
    stages = {"one": torch.randn(2, 12, 48, generator=torch.Generator().manual_seed(0)).numpy()}
    made = {}

    def run(target, **more):
        if (target, *more) not in made:
            jobs, out = [], tmp_path_factory.mktemp("null")

            def train(self, several):
                jobs.extend((self.name, canonical(setting), seed) for setting, seed in several)
                return [invented(self.name, *one) for one in several]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(null, "protocol", lambda quick=False: few)
                patch.setattr(null, "SPLITS", 2, raising=False)
                patch.setattr(null, "FRESH", 5, raising=False)
                patch.setattr(evidence, "stages", lambda: stages)
                patch.setattr(null.runner, "Engine", lambda **_: Engine())
                patch.setattr(null.Task, "train", train)
                null.null(str(target), out=out, **more)
            (path,) = out.glob("*/record.json")
            made[target, *more] = SimpleNamespace(**json.loads(path.read_text()), jobs=jobs)
        return made[target, *more]

    run.seeds = few.seeds
    return run


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The file of a loss."""
    path = tmp_path_factory.mktemp("mine") / "mine.py"
    path.write_text(LOSS)
    return path


def found(record):
    """Task, margin and effect of each comparison of a record."""
    for name, task in record.tasks.items():
        for effect in task["effects"].values():
            yield name, task["margin"], SimpleNamespace(**effect)


def test_the_margins_are_those_that_the_file_declares(trial, mine):
    blocks = null.protocol().blocks
    declared = {name: block["matters"] for name, block in blocks.items()}
    for target in (mine, "identity"):
        assert {name: margin for name, margin, _ in found(trial(target))} == declared


def test_effects_are_corrected_for_all_tasks_of_the_protocol(trial, mine):
    """Even for those that were left out: a rehearsal does not choose how many it corrects for."""
    several = len(null.protocol().blocks)
    assert several > 1
    for record in (trial(mine), trial("identity"), trial("disguise", tasks=("digits",))):
        for *_, one in found(record):
            p = 2 * stats.t.sf(abs(one.difference) / one.between, one.df)
            assert one.holm == pytest.approx(min(1, several * p))
            half = one.between * stats.t.ppf(1 - 0.025 / several, one.df)
            assert [one.low, one.high] == pytest.approx(
                [one.difference - half, one.difference + half]
            )


def test_a_verdict_follows_from_effect_and_margin(trial, mine):
    words = set()
    for record in map(trial, (mine, "identity", "labels")):
        for _, margin, one in found(record):
            sided = [
                stats.t.sf((margin + s * one.difference) / one.between, one.df) for s in (-1, 1)
            ]
            if one.low > margin or one.high < -margin:
                word = "beats" if one.low > margin else "loses"
            elif one.family * max(sided) <= 0.05:
                word = "equivalent"
            elif one.holm <= 0.05:
                word = "leads" if one.difference > 0 else "trails"
            else:
                word = "unresolved"
            assert one.verdict == word
            words.add(word)
    assert {"beats", "equivalent"} <= words and {"loses", "trails"} & words


@pytest.mark.parametrize(
    ("difference", "error", "word"),
    [
        (0.9, 0.1, "beats"),
        (0.6, 0.1, "leads"),  # perhaps less than the margin
        (0.1, 0.1, "equivalent"),
        (0.1, 0.4, "unresolved"),
        (-0.6, 0.1, "trails"),
        (-0.9, 0.1, "loses"),
    ],
)
def test_each_word_of_a_trial_is_about_its_margin(difference, error, word):
    effect = Effect(difference, error, 15, "these queries", family=2)
    chosen = {"N1": [{"options": {"temperature": 0.1}}]}
    task = {"effects": {"N1": effect}, "margin": 0.5, "profile": "", "chosen": chosen}
    task["fresh"] = {"ours": [[60 + difference]], "N1": [[60.0]]}
    outcome = null.Outcome("mine", "null model", {"digits": task})
    ((*_, said),) = outcome.rows()
    assert said == word and f", {word}" in outcome.sentence


def seeds_by_setting(record, task):
    """The seeds with which each setting was trained, in order."""
    several = {}
    for name, setting, seed in record.jobs:
        if name == task:
            several.setdefault(setting, []).append(seed)
    return several


def test_fresh_seeds_choose_nothing_and_follow_from_the_code(trial, mine):
    record = trial(mine)
    for name, task in record.tasks.items():
        assert not {*task["seeds"]} & {*trial.seeds} and len({*task["seeds"]}) == 5
        several = seeds_by_setting(record, name)
        assert all(seeds[: len(trial.seeds)] == [*trial.seeds] for seeds in several.values())
        rest = {tuple(seeds[len(trial.seeds) :]) for seeds in several.values()}
        assert rest == {(), tuple(task["seeds"])}  # only what was chosen trains on all fresh seeds
    edited = mine.with_name("edited") / "mine.py"
    edited.parent.mkdir()
    edited.write_text(LOSS.replace("0.2", "0.3"))
    for name, task in trial(edited).tasks.items():
        assert not {*task["seeds"]} & {*record.tasks[name]["seeds"]}


def test_what_trains_on_fresh_seeds_was_best_on_those_that_choose(trial, mine):
    """By the mean over them, on each side; what is reported of fresh seeds is of these alone."""
    record = trial(mine)
    for name, task in record.tasks.items():
        several = seeds_by_setting(record, name)
        sides = {}
        for setting, seeds in several.items():
            scores = [invented(name, json.loads(setting), seed).mean() for seed in trial.seeds]
            sides.setdefault(json.loads(setting)["method"], []).append(
                (np.mean(scores), len(seeds) > len(trial.seeds))
            )
        for levels in sides.values():
            fresh = [level for level, chosen in levels if chosen]
            assert fresh and min(fresh) > max(level for level, chosen in levels if not chosen)
        for rows in task["fresh"].values():
            assert all(len(row) == len(task["seeds"]) for row in rows)
        first = task["chosen"]["ours"][0]
        levels = [100 * invented(name, first, seed).mean() for seed in task["seeds"]]
        assert task["fresh"]["ours"][0] == pytest.approx(levels, abs=1e-3)


def test_the_identity_control_is_the_null_model_with_seeds_of_its_own(trial):
    record = trial("identity")
    assert len({*record.jobs}) == len(record.jobs)  # nothing is trained, or counted, twice
    for name, task in record.tasks.items():
        several = seeds_by_setting(record, name)
        chosen = [seed for seed in itertools.chain(*several.values()) if seed in trial.seeds]
        assert len(chosen) == len(several) * len(trial.seeds)
        others = [{*seeds} - {*trial.seeds} - {*task["seeds"]} for seeds in several.values()]
        assert min(map(len, others)) >= len(trial.seeds)
    assert all(abs(one.difference) < margin for _, margin, one in found(record))
    assert any(one.difference != 0 for *_, one in found(record))


def test_a_task_of_ones_own_has_its_own_margin_and_is_one_task(trial, mine, tmp_path):
    path = tmp_path / "task.py"
    path.write_text(TASK)
    record = trial(mine, task=path)
    for _, margin, one in found(record):
        assert margin == 1.75 and one.family == 1
        p = 2 * stats.t.sf(abs(one.difference) / one.between, one.df)
        assert one.holm == pytest.approx(p)


def test_the_null_model_has_its_whole_grid_whatever_the_loss_has(trial, mine):
    """All temperatures at all rates, beside two configurations: fewer would be easier to beat."""
    arms = null.protocol().arms
    for name in trial(mine).tasks:
        grid = {canonical(one) for key, one in arms[name].items() if key.startswith("N1 ")}
        trained = {setting for task, setting, _ in trial(mine).jobs if task == name}
        assert grid <= trained and len(trained - grid) == 2 * len(grid) / 12
