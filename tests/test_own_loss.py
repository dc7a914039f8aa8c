"""A loss of the reader's own, from a file: its configurations are arms, and runs with keys."""

import os
import re
import shutil
from pathlib import Path

import pytest

from hnbook import tables
from hnlib import experiments
from hnlib.training import records

PUBLIC = Path(__file__).resolve().parents[1] / "examples/losses"
EXPERIMENTS = Path(__file__).resolve().parents[1] / "book/results/experiments"
LOSS = """
from pathlib import Path

import torch

Path(__file__).with_name("executed").write_text("by a reader")
CONFIGURATIONS = [dict(temperature=0.2), dict(temperature=0.5)]


def loss(a, b, temperature):
    return torch.nn.functional.cross_entropy(a @ b.T / temperature, torch.arange(len(a)))
"""
FEW = dict(dataset="digits", epochs=1, train_size=120, validation=60, batch_size=32, seeds="0")
ARMS = "my_loss temperature=0.2", "my_loss temperature=0.5"


@pytest.fixture
def file(new_checkout):
    """The file of a loss, beside two experiments."""
    names = ("map", "equal-gamma", "search")
    texts = {x: (EXPERIMENTS / f"{x}.toml").read_text() for x in names}
    top = new_checkout({f"book/results/experiments/{x}.toml": t for x, t in texts.items()})
    path = top / "my_loss.py"
    path.write_text(LOSS)
    return path


def planned(**more):
    """The map at one temperature, with arms of your own."""
    return experiments.load("map", arms=["t0.5 b0"], **FEW | more)


def test_configurations_of_a_file_are_arms_beside_the_grid(file):
    design = experiments.load("map", loss=str(file), grid={"temperature": [0.1, 0.3]})
    assert {"t0.1 b0", "t0.3 b0", *ARMS} <= {*design.names("CIFAR-10")}
    assert [one for one in design.names("CIFAR-100") if one in ARMS] == [*ARMS]
    method = design.run(design.fixed(ARMS[0], "CIFAR-10"), 0, "CIFAR-10").method
    assert re.fullmatch(r"my_loss-[0-9a-f]{8}", method)
    first, second = experiments.load_all(["map", "equal-gamma"], loss=str(file))
    assert {*ARMS} < {*first.names("CIFAR-10")} and not second.changed
    with pytest.raises(ValueError, match=r"add has 'my_loss temperature=0.2', which is an arm"):
        experiments.load("map", loss=str(file), add={ARMS[0]: {"method": "dcl"}})


def test_in_search_a_loss_sees_pairs_alone(file):
    """It has no place for the mask of other answers; methods of the catalogue have it."""
    design = experiments.load("search", loss=str(file))
    block, seed = next(iter(design.blocks)), design.seeds[0]
    mine, usual = (design.run(design.fixed(x, block), seed, block) for x in (ARMS[0], "t0.1"))
    assert mine.pairs_only and not usual.pairs_only
    pictures = planned(loss=str(file))
    assert not pictures.run(pictures.fixed(ARMS[0], "CIFAR-10"), 0, "CIFAR-10").pairs_only


def test_what_is_no_loss_is_refused_before_anything_is_read_or_trained(file):
    file.write_text("CONFIGURATIONS = 3")
    with pytest.raises(ValueError, match=r"CONFIGURATIONS of .*my_loss.py must be a list of 1 to"):
        planned(loss=str(file))
    file.write_text(LOSS.replace("def loss(a, b, ", "def loss(a, b, labels, "))
    with pytest.raises(ValueError, match="a loss gets the embeddings a and b of pairs"):
        planned(loss=str(file))
    with pytest.raises(ValueError, match=r"loss must be a Python file, .*, got 3"):
        planned(loss=3)
    with pytest.raises(ValueError, match=r"nowhere.py: FileNotFoundError"):
        planned(loss="nowhere.py")


@pytest.mark.slow
def test_a_run_of_a_file_is_recorded_recalled_and_another_once_the_file_is_edited(file, capsys):
    design = planned(loss=str(file))
    found = experiments.train(design, device="cpu")
    assert not [*found.missing()] and experiments.effect(
        found, ARMS[0], "t0.5 b0", block="CIFAR-10"
    )
    (record,) = found.replicates(ARMS[0], 0, "CIFAR-10")
    assert record["configuration"]["options"] == {"temperature": 0.2}
    assert found.values(ARMS[0], "linear", "CIFAR-10") != found.values(
        ARMS[1], "linear", "CIFAR-10"
    )
    capsys.readouterr()
    experiments.train(planned(loss=str(file)), device="cpu")
    assert "Nothing is left to train." in capsys.readouterr().out
    there = file.rename(file.parent / "book/my_loss.py")  # the place does not count
    assert experiments.plan(planned(loss=str(there)), device="cpu").left == 0
    there.write_text(LOSS + "\n# edited\n")
    edited = planned(loss=str(there))
    assert experiments.plan(edited, device="cpu").left == 2
    there.write_text(LOSS + "\n# edited again\n")
    with pytest.raises(ValueError, match=r"my_loss.py was edited after its runs were planned"):
        experiments.train(edited, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["amplifier", "colpali_filter", "dual_scale"])
def test_a_table_of_public_losses_has_the_sharpness_of_their_profile(file, name, prints):
    """The command profiles the first of a file's configurations; a temperature has 1/t."""
    shutil.copy(EXPERIMENTS.parent / "stages.npz", file.parent / "book/results")
    public = (PUBLIC / f"{name}.py").read_text("utf-8")
    public += "\n\nCONFIGURATIONS = CONFIGURATIONS[::3]\n"  # a profile takes seconds
    file.write_text(public)
    found = experiments.train(planned(loss=str(file), blocks=["CIFAR-10"]), device="cpu")
    base, *rows = tables.added(found, "t* b0").frame.to_dict("records")
    assert (base[""], base["γ"], base["learning rate"]) == ("t0.5 b0", "2.00", "0.001")
    assert len(rows) == 2 and all(one[""].startswith("my_loss ") for one in rows)
    measured = []
    for i in range(len(rows)):  # the arms go by their names
        file.write_text(f"{public}CONFIGURATIONS = CONFIGURATIONS[{i}:]\n")
        *_, told = prints("profile", file).splitlines()
        said = re.search(r"γ = (.*?):", told)  # none if the loss weighs by more than similarity
        measured.append(said[1] if said else "")
    assert sorted(row["γ"] for row in rows) == sorted(measured) and "2.00" not in measured


def test_a_file_is_executed_because_it_was_named_and_never_because_a_record_names_it(file):
    """Reading the record of such a run, its table and its plan leaves the file alone."""
    executed = file.with_name("executed")
    planned()
    assert not executed.exists()
    design = planned(loss=str(file))
    assert executed.exists()
    executed.unlink()
    found = experiments.found(design)
    run = found.run(ARMS[0], 0, "CIFAR-10")
    assert type(run).read(run.configuration) == run.resolved()
    assert records.key(run.configuration) in found.planned()
    assert experiments.plan(design, device="cpu").left and experiments.lines(found) == []
    assert not executed.exists() and os.path.exists(file)
