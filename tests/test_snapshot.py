"""The snapshot of recorded numbers is written anew, but no number moves in it without a reason."""

import math
from pathlib import Path
from types import SimpleNamespace

import golden
import pytest
from test_frozen import FROZEN, LINES

from hnlib import experiments
from hnlib.experiments import comparisons, found_records
from hnlib.training import store

EXPERIMENTS, RECORDS = Path("book/results/experiments"), Path("book/results/records")


@pytest.fixture
def snapshot(new_checkout, tmp_path, monkeypatch):
    """Write the snapshot of the frozen experiments once; return its file."""
    texts = {
        path.name: path.read_text().partition("[[predictions]]")[0]
        for path in FROZEN.glob("*.toml")
    }
    new_checkout({str(EXPERIMENTS / name): text for name, text in texts.items()})
    fresh = [one for one in LINES if one["configuration"]["seed"] != 15]
    store.add(fresh, RECORDS)
    monkeypatch.setattr(golden, "FOLDER", tmp_path / "golden")
    monkeypatch.setattr(golden, "of_losses", lambda: {"simclr": {"loss": 2.0}})
    assert write() == 0
    return tmp_path / "golden/experiments.json"


def write(*arguments):
    """Write the snapshot as another process would."""
    golden.ground.cache_clear()
    found_records._found.cache_clear()  # what was found knows what was chosen
    return golden.main([*arguments])


def compared():
    """What the comparing test finds."""
    found = {name: golden.of_experiment(name) for name in experiments.names()}
    return golden.differences(golden.stored("experiments"), golden.flat(found))


def wider(edited):
    """A careless edit: intervals that are too wide."""
    edited.setattr(comparisons, "math", SimpleNamespace(**vars(math) | {"sqrt": lambda x: x}))


def other_choice(edited):
    """Another: the second best is chosen, so other runs are found for the chosen arm."""

    def best(self, pattern, metric, block=""):
        every = self.design.matching(pattern, block)
        means = {x: self.mean(x, "linear_validation", block) for x in every}
        return None if None in means.values() else sorted(means, key=means.get)[-2]

    edited.setattr(experiments.Found, "best", best)


@pytest.mark.parametrize("edit", [wider, other_choice])
def test_a_number_does_not_move_while_file_choosers_and_records_stand(
    snapshot, monkeypatch, capsys, edit
):
    old = snapshot.read_text()
    assert write() == 0 and snapshot.read_text() == old and compared() == []
    with monkeypatch.context() as edited:
        edit(edited)
        assert write() == 1 and snapshot.read_text() == old
        said = capsys.readouterr().out
        assert "confirmed, whole, effects, " in said and "Nothing was written" in said
        assert write(golden.FLAG) == 0 and snapshot.read_text() != old
    assert write() == 1  # nor back


def test_a_loss_does_not_move_without_the_word(snapshot, monkeypatch, capsys):
    monkeypatch.setattr(
        golden, "of_losses", lambda: {"simclr": {"loss": 2.1}, "new": {"loss": 1.0}}
    )
    assert write() == 1 and "simclr, loss: 2.0 → 2.1" in capsys.readouterr().out
    assert write(golden.FLAG) == 0 and write() == 0


@pytest.mark.parametrize("reason", ["records", "file", "superseded", "records of the chooser"])
def test_a_number_moves_with_what_it_rests_on(snapshot, reason):
    old = snapshot.read_text()
    if reason == "file":
        path = EXPERIMENTS / "confirmed.toml"
        path.write_text(path.read_text().replace("temperature = 0.5 }", "temperature = 0.2 }", 1))
    elif reason == "records":
        store.add([one for one in LINES if one["configuration"]["seed"] == 15], RECORDS)
    elif reason == "superseded":
        several = [one for one in store.read(RECORDS) if one["configuration"]["seed"] == 14]
        store.supersede(several[:1], "measured twice", "2026-11-01", RECORDS)
    else:  # without a run of its temperatures nothing is chosen, in neither experiment
        several = [one for one in store.read(RECORDS) if one["configuration"]["seed"] == 0]
        cold = [one for one in several if one["configuration"]["options"] == {"temperature": 0.1}]
        store.supersede(cold, "measured twice", "2026-11-01", RECORDS)
    moved = {line.partition(",")[0] for line in compared()}
    assert moved == {"confirmed"} | ({"grid"} if "chooser" in reason else set())
    assert write() == 0 and snapshot.read_text() != old and compared() == []


def test_an_experiment_may_be_new_and_none_is_lost(snapshot):
    text = (EXPERIMENTS / "confirmed.toml").read_text()
    (EXPERIMENTS / "new.toml").write_text(text)
    assert compared() == [] and write() == 0 and compared() == []
    (EXPERIMENTS / "new.toml").unlink()
    assert {line.partition(",")[0] for line in compared()} == {"new"}


def test_help_writes_nothing(snapshot, capsys):
    old = snapshot.stat().st_mtime_ns
    with pytest.raises(SystemExit, match="0"):
        golden.main(["--help"])
    assert golden.FLAG in capsys.readouterr().out and snapshot.stat().st_mtime_ns == old
