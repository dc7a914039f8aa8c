"""The printed numbers and their runs."""

import shlex
from dataclasses import replace

import pytest

from builder import paper_numbers
from hnbook import public_tables
from hnlib import commands
from hnlib.training import kinds, records

CELLS = paper_numbers.cells()
PRINTED = ("temperature", "beta", "tau_plus", "mu", "sigma", "epochs", "lr", "weight_decay")


def test_every_printed_number_has_a_run_or_a_reason_and_every_setting_is_used():
    for cell in CELLS:
        assert (cell.run is None) == bool(cell.reason)
        assert cell.run is not None or cell.reason.startswith(paper_numbers.REASONS), cell.reason
    used = {row["run"] for row in public_tables.printed().to_dict("records")}
    assert paper_numbers.settings().keys() <= used


def disagreements(note: dict, run, ours: str) -> list[str]:
    """Return what the row prints, or names as ours, and its run does not have."""
    run = run.resolved()
    chosen = dict(epochs=run.epochs, lr=run.lr, weight_decay=run.weight_decay) | run.options
    stated = dict(part.split("=") for part in ours.split(", ") if part) | note
    wrong = [n for n in PRINTED if n in stated and n in chosen and float(stated[n]) != chosen[n]]
    if "eps" in note:  # the released cost of images has no factor ½
        scale = 1 if run.kind == "graphs" else 2
        wrong += ["eps"] * (float(note["eps"]) != scale * chosen["epsilon"])
    return wrong


def test_runs_have_the_printed_values_and_name_ours():
    notes = [paper_numbers.parse_note(note) for note in public_tables.printed()["note"]]
    for cell, note in zip(CELLS, notes, strict=True):
        if cell.run is not None:
            assert not disagreements(note, cell.run, cell.ours), cell
    cell, note = next((c, n) for c, n in zip(CELLS, notes) if c.run and "beta" in n)
    assert disagreements(note | {"beta": "77"}, cell.run, cell.ours)
    assert disagreements(note, cell.run, "temperature=0.7")


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_the_command_of_a_cell_trains_its_run(kind, monkeypatch):
    asked = []
    monkeypatch.setattr(commands, "_describe", lambda run, file: asked.append(run))
    cells = {paper_numbers.command(c.run): c for c in CELLS if c.run and c.run.kind == kind}
    for command in cells:
        commands.app([*shlex.split(command)[1:], "--dry-run"])
    assert [paper_numbers.key(run) for run in asked] == [cell.key for cell in cells.values()]


def test_ours_stands_beside_the_printed_number_with_its_interval():
    """Whatever the seed and the precision of our runs."""
    cell = next(c for c in CELLS if (c.paper, c.row) == ("hcl", "Debiased"))
    made = []
    for seed, accuracy in enumerate((0.53, 0.54, 0.55)):
        run = replace(cell.run, seed=seed, precision="bf16-mixed").resolved()
        metrics = dict(linear=accuracy, linear_paper=accuracy - 0.1)
        made.append(dict(kind=run.kind, configuration=run.configuration, metrics=metrics))
    parts = paper_numbers.parts(records.frame(made))
    images = sum(c.run is not None and c.run.kind == "images" for c in CELLS)
    alike = sum(c.key == cell.key for c in CELLS)
    assert parts["images"].startswith(f"{images - alike} of the {images} ")
    assert paper_numbers.parts(records.frame([]))["images"].startswith(f"all {images} ")
    text = parts["printed"]
    (line,) = [part for part in text.split("* -") if "(3 seeds" in part]
    assert "53.7" in line and "as released 44.0\u00a0±\u00a01.0" in line
    assert "54.0\u00a0±\u00a01.0" in line and "+0.3 \\[−2.2,\u00a0+2.8\\]" in line
