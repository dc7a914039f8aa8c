"""The null model: the file of a loss, what is chosen, the words of a verdict, and one whole trial."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from hnbook import losses_on_trial
from hnlib import experiments, methods
from hnlib.experiments import comparisons, evidence, null
from hnlib.experiments.comparisons import Effect, family
from hnlib.profile import profile_loss
from hnlib.training import records, store
from hnlib.training.train import train

FILE = """
from torch import arange
from torch.nn.functional import cross_entropy

CONFIGURATIONS = {configurations}


def loss(a, b, t=0.5):
    return cross_entropy(a @ b.T / t, arange(len(a)))
"""
TINY = """
question = "Which?"
primary = "ndcg"
beside = { ndcg = "recall100" }
seeds = "200-201"
minutes = 0.01
[fields]
kind = "retrieval"
epochs = 1
pairs_only = true
[blocks]
generated = { dataset = "generated", encoder = "bag", dimension = 16, vocabulary = 300 }
[[grids]]
name = "N1 t{temperature} x{max_steps} lr{lr}"
method = "simclr"
over = { temperature = [0.2, 0.5], max_steps = [1], lr = [0.05, 0.1] }
[[grids]]
name = "N2 t{temperature} k{loudness} x{max_steps} lr{lr}"
method = "dcl"
over = { temperature = [0.2], loudness = [0.0, 2.0], max_steps = [1], lr = [0.05, 0.1] }
[chosen]
N1 = { among = "N1 *", by = "validation" }
N2 = { among = "N2 *", by = "validation" }
"""


@pytest.fixture
def file(tmp_path):
    """Write a loss with configurations."""

    def write(configurations="[{'t': 0.5}, {'t': 0.2}]", text=FILE):
        path = tmp_path / "my_loss.py"
        path.write_text(text.format(configurations=configurations))
        return path

    return write


def test_a_loss_is_named_by_its_code(file):
    one = null.read(file())
    assert null.read(file()).name == one.name and one.configurations[0] == {"t": 0.5}
    assert null.read(file("[{'t': 0.4}]")).name != one.name
    assert one.name not in methods.CATALOGUE


@pytest.mark.parametrize(
    ("configurations", "words"),
    [
        ("[]", "1 to 8"),
        ("[{'t': t} for t in range(1, 10)]", "1 to 8"),
        ("[{'t': 0.5}, {'t': 0.5}]", r"CONFIGURATIONS\[1\].*already"),
        ("[{'t': open}]", "numbers and words"),
        ("[{'t': 0.5}, {'u': 0.5}]", r"CONFIGURATIONS\[1\].*'u'"),
        ("[{'t': 0.0}]", "finite scalar"),
    ],
)
def test_a_file_that_is_no_loss_is_refused_in_a_sentence(file, configurations, words):
    with pytest.raises(ValueError, match=words):
        null.read(file(configurations))


@pytest.mark.parametrize("place", ["helper.py", "helper/__init__.py", "helper/scale.py"])
@pytest.mark.parametrize("words", ["import helper", "def late():\n    from helper import scale"])
def test_a_loss_in_several_files_is_refused(file, tmp_path, monkeypatch, place, words):
    monkeypatch.syspath_prepend(tmp_path)  # restores the path
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("scale = 1.0")
    with pytest.raises(ValueError, match=r"my_loss\.py imports helper, a module beside it"):
        null.read(file(text=f"{words}\n{FILE}"))


def test_a_loss_may_be_in_a_checkout(file, tmp_path, monkeypatch):
    """Our package beside it, and an empty folder with the name of an installed one."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hnlib").mkdir()
    (tmp_path / "hnlib/__init__.py").touch()
    (tmp_path / "torch").mkdir()
    assert null.read(file(text=f"from hnlib import methods\n{FILE}"))


def test_a_loss_that_was_edited_on_trial_is_not_recorded_under_its_old_name(file, tiny):
    loss = null.read(file())
    run = replace(tiny, arms=null.arms(loss, tiny)).run("0 x1 lr0.05", 200, "generated")
    path = file("[{'t': 0.4}]")
    with pytest.raises(ValueError, match=r"my_loss\.py was edited while it was on trial"):
        null._method(str(path), loss.name, run)


def test_a_file_without_a_loss_is_refused(file):
    with pytest.raises(ValueError, match="must define loss"):
        null.read(file(text="x = 1"))


def test_a_given_loss_trains_like_the_catalogue(file):
    """The file's InfoNCE is the catalogue's on pairs, and another temperature is not."""
    z1, z2 = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(0))
    given = null.read(file()).method({"t": 0.2})
    ours = methods.build("simclr", temperature=0.2)
    both = (ours.pairs(z1, z2) + ours.pairs(z2, z1)) / 2
    torch.testing.assert_close(given.pairs(z1, z2), ours.pairs(z1, z2))
    torch.testing.assert_close(given(z1, z2), both)
    other = methods.build("simclr", temperature=0.3)
    assert abs(float(given.pairs(z1, z2) - other.pairs(z1, z2))) > 0.01


def effect(difference, error=0.1, values=(), count=4):
    """A difference of ten seeds, corrected over tasks."""
    one = Effect(difference, error, 9, "these images", values=values, seeds=tuple(values and FRESH))
    return family([one] * count)[0]


FRESH = range(10)


@pytest.mark.parametrize(
    ("difference", "error", "words"),
    [
        (2.0, 0.1, "beats"),
        (1.2, 0.1, "leads"),  # above zero, but not above the margin
        (-1.2, 0.1, "trails"),
        (-2.0, 0.1, "loses"),
        (0.1, 0.1, "equivalent"),
        (2.0, 1.0, "unresolved"),
    ],
)
def test_a_loss_beats_the_null_only_above_the_margin(difference, error, words):
    assert null.word(effect(difference, error), 1.0) == words


def test_the_correction_over_tasks_can_take_a_verdict_back():
    assert null.word(effect(1.28, count=1), 1.0) == "beats"
    assert null.word(effect(1.28, count=4), 1.0) != "beats"


def test_a_share_is_told_only_where_there_is_an_effect():
    rng = np.random.default_rng(0)
    whole = tuple(2 + 0.3 * rng.standard_normal(10))
    part = tuple(0.5 * np.array(whole) + 0.1 * rng.standard_normal(10))

    def of(values):
        values = np.array(values)
        error = values.std(ddof=1) / math.sqrt(10)
        return Effect(values.mean(), error, 9, "", values=tuple(values), seeds=tuple(FRESH))

    middle, low, high = null.share(of(part), of(whole))
    assert low < middle < high and abs(middle - 0.5) < 0.1
    # where the interval ends, part − ratio × whole is at the edge of its own interval
    for ratio in (low, high):
        edge = of(np.array(part) - ratio * np.array(whole))
        assert min(abs(edge.low), abs(edge.high)) < 1e-9
    assert null.share(of(part), of(np.array(whole) - 2)) is None


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A protocol of seconds whose choices are recorded: t = 0.2 is the best temperature."""
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setenv("HNLIB_RECORDS", str(runs))
    for name in ("null-1-quick", "losses-on-trial"):
        (tmp_path / f"{name}.toml").write_text(TINY)
    found = evidence.path

    def path(name):
        mine = tmp_path / name.rpartition("/")[2]
        return mine if mine.exists() else found(name)

    monkeypatch.setattr(evidence, "path", path)
    experiments.forget()
    protocol = experiments.load("null-1-quick")
    for arm in protocol.arms["generated"]:
        for seed in protocol.seeds:
            configuration = protocol.run(arm, seed, "generated").configuration
            score = 0.5 + 0.1 * ("t0.2" in arm) + 0.01 * ("lr0.1" in arm)
            metrics = {"ndcg": score, "ndcg_validation": score, "recall100": score}
            one = {"kind": "retrieval", "configuration": configuration, "metrics": metrics}
            hardware = {"hardware": {"cpu": "another processor"}}
            store.append(one | {"environment": hardware, "seconds": 0.5}, runs)
    experiments.forget()
    yield protocol
    experiments.forget()


@pytest.mark.slow
def test_a_trial_ends_with_a_sentence_and_is_resumed(file, tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(null, "FRESH", range(210, 212))
    batch = torch.randn(2, 12, 48, generator=torch.Generator().manual_seed(0))
    profiled = profile_loss(methods.build("simclr").pairs, *batch)
    monkeypatch.setattr(null, "profiles", lambda loss: {"early": profiled})
    path = file("[{'t': 0.5}, {'t': 0.2}]")
    null.null(path, quick=True, processes=1, out=tmp_path / "out")
    said = capsys.readouterr().out
    assert "my_loss, null model 1-quick:" in said and "balance 1" in said
    assert "ten seeds find" in said and "generated, its default over a tuned" in said
    (folder,) = (tmp_path / "out").glob("my_loss-*")
    runs = tmp_path / "out/runs"
    record = json.loads((folder / "record.json").read_text())
    assert record["code"] == path.read_text() and record["sentence"] in said
    # the file's loss at 0.2 is N1 itself: the same runs but for rounding
    assert record["chosen"]["generated"]["N1"]["options"] == {"temperature": 0.2}
    assert (folder / "differences.svg").read_text().startswith("<?xml")
    trained = {one.name: one.stat().st_size for one in runs.glob("*.jsonl")}
    null.null(path, quick=True, processes=1, out=tmp_path / "out")
    assert {x.name: x.stat().st_size for x in runs.glob("*.jsonl")} == trained
    assert capsys.readouterr().out.splitlines()[-2] == said.splitlines()[-2]


def test_a_task_that_the_protocol_lacks_is_refused(file):
    with pytest.raises(ValueError, match="among generated, digits, got films"):
        null.null(file(), quick=True, tasks=("films",))


def test_what_is_compared_is_of_this_processor():
    """Another machine's ten seeds of the null model are run again, not paired with."""
    mine = records.environment(torch.device("cpu"))
    other = {"hardware": mine["hardware"] | {"model": "0", "family": "0"}}
    recorded = {
        "both": [{"environment": other}, {"environment": mine}],
        "other": [{"environment": other}],
    }
    assert null.here(recorded) == {"both": [{"environment": mine}]}


def test_what_two_seeds_differ_by_foretells_what_ten_find(tiny, monkeypatch):
    """What a seed does to all arms cancels; twice the rest is twice the lead over the margin."""

    def leads(scale):
        def values(arm, metric, block):
            rest = scale * ((hash_of(arm) % 7) - 3) / 1000
            return {200: 0.5 + rest, 201: 0.6}

        monkeypatch.setattr(tiny.__class__, "values", lambda self, *one: values(*one))
        return null.foreseen(tiny)["generated"] - null.MARGINS["ndcg"]

    assert leads(0.0) == pytest.approx(0, abs=1e-9)
    assert leads(2.0) == pytest.approx(2 * leads(1.0)) and leads(1.0) > 0


def hash_of(text):
    return sum(map(ord, text))


def test_a_seed_that_diverged_takes_the_verdict(tiny, file):
    """A loss that fails on a fresh seed beats nothing, however far the others lead."""
    ahead = effect(5.0)

    def words(one):
        found = {"N1": {"generated": one}}
        return null.Outcome(null.read(file()), tiny, {}, found, {}, {}).words()["generated"]

    assert words(ahead) == "beats"
    assert words(replace(ahead, unpaired=(213,))) == "diverged"


def test_a_loss_that_always_diverges_is_told_so(tiny, file):
    loss = null.read(file())
    choice = replace(tiny, arms=null.arms(loss, tiny), chosen={}, recorded={})
    with pytest.raises(ValueError, match="every training diverged on generated"):
        null.chosen(loss, choice, "generated")


def test_the_recorded_controls_come_out_as_they_must():
    """On digits; a verdict that changes with the records is looked at."""
    found = {
        (loss, base): losses_on_trial.verdict(loss, "digits", base)
        for loss in losses_on_trial.CONTROLS
        for base in null.NULLS
    }
    assert {found["labels", base] for base in null.NULLS} == {"beats"}
    assert {found["one", base] for base in null.NULLS} == {"loses"}
    rest = {found[loss, base] for loss in ("tilt", "warm") for base in null.NULLS}
    assert not rest & {"beats", "loses", "leads", "trails"}


@pytest.mark.slow
def test_labels_beat_a_temperature_and_a_held_tilt_does_not(tmp_path):
    """Trained anew, 40 steps on digits: four seeds show the direction, ten and longer the verdict."""
    arms = {
        "N1": ("null-1", "N1 t0.1 x40 lr0.002"),
        "labels": ("null-1-losses", "labels-0 x40 lr0.002"),
        "tilt": ("null-1-losses", "tilt-0 x40 lr0.002"),
    }

    def trained(experiment, arm):
        runs = [experiments.load(experiment).run(arm, seed, "digits") for seed in range(900, 904)]
        options = dict(device="cpu", record_to=tmp_path, progress=False)
        return records.frame([train(run, **options).record for run in runs])

    found = {name: trained(*arm) for name, arm in arms.items()}
    gain = {x: comparisons.between(found[x], found["N1"], "knn").difference for x in found}
    assert gain["labels"] > 1 and gain["labels"] > gain["tilt"] + 1, gain
