"""The ledger of other people's tables, and how predictions about it are judged."""

import csv
import math

import pandas as pd
import pytest
import torch
from scripts import ROOT

from hnbook import public_tables


def wrong(row: dict) -> bool:
    """Return whether a row lacks its source or its γ is not (1 + β)/t, to its five digits."""
    if not all(row[key] for key in ("source", "where", "data", "network", "score", "how")):
        return True
    if row["gamma"] == "":
        return not row["how"].startswith("none")
    expected = (1 + float(row["beta"] or 0)) / float(row["t"])
    return not math.isclose(float(row["gamma"]), expected, rel_tol=1e-4, abs_tol=1e-12)


def test_every_cell_has_its_source_and_its_sharpness():
    with (ROOT / "book/results/public_tables.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert not [row for row in rows if wrong(row)]
    one = next(row for row in rows if row["beta"])
    assert wrong(one | {"beta": str(float(one["beta"]) + 0.01)}) and wrong(one | {"where": ""})


def test_balance_is_the_power_of_the_mean_in_the_loss_of_their_logs():
    """Push over pull of −s⁺/t + b log mean exp(s/t), whose gradient autograd takes."""
    rows = public_tables.balances()
    assert len(rows) == 8 and rows[["source", "where"]].notna().all(axis=None)
    assert ((rows["balance"] != 1) & (rows["score"] > 0)).all()
    generator = torch.Generator().manual_seed(0)
    for b, t in rows[["balance", "t"]].itertuples(index=False):
        s = torch.rand(9, generator=generator, dtype=torch.float64).requires_grad_()
        loss = -s[0] / t + b * ((s[1:] / t).logsumexp(0) - math.log(8))
        (force,) = torch.autograd.grad(loss, s)
        assert float(-force[1:].sum() / force[0]) == pytest.approx(b)


@pytest.mark.parametrize(
    ("peaks", "word"),
    [((5, 5, 5, 1), "holds"), ((5, 5, 1, 1), "unresolved"), ((5, 1, 1), "refuted"), ((), "open")],
)
def test_a_prediction_is_judged_by_its_share_of_panels(new_checkout, peaks, word):
    lines = ["says,panels,column,low,high", "peak,epochs > 50,peak,3,9"]
    new_checkout({"book/results/public_predictions.csv": "\n".join(lines)})
    panel = dict(plain=3, known=False, held=False, epochs=100.0)
    rows = [panel | dict(peak=float(peak)) for peak in peaks]
    found = pd.DataFrame(rows, columns=[*panel, "peak"])
    (line,) = public_tables.verdicts(found).itertuples()
    assert (line.verdict, line.panels) == (word, len(peaks))


def test_predictions_are_judged_on_panels_that_nobody_had_read(new_checkout):
    """Of three temperatures at least; shifts by a cut had not been read anywhere."""
    lines = [
        "says,panels,column,low,high",
        "peak,epochs > 50,peak,3,9",
        "shift,epochs > 0,shift,0,1",
        "later,held and epochs > 0,peak,3,9",
    ]
    new_checkout({"book/results/public_predictions.csv": "\n".join(lines)})
    panel = dict(plain=3, known=False, held=False, epochs=100.0, peak=5.0, shift=0.5)
    others = [dict(known=True), dict(plain=2), dict(epochs=10.0, peak=99.0), dict(peak=20.0)]
    others += [dict(held=True, peak=peak) for peak in (1.0, 2.0, 4.0)]
    found = pd.DataFrame([panel, *(panel | other for other in others)])
    peak, shift, later = public_tables.verdicts(found).itertuples()
    assert (later.panels, later.inside, later.verdict) == (3, 1, "refuted")
    assert (peak.panels, peak.inside, peak.verdict) == (2, 1, "unresolved")
    assert (shift.panels, shift.inside, shift.verdict) == (4, 4, "holds")


def invented(t, beta, score, **other):
    row = dict(source="A", data="B", network="C", epochs=200.0, known="no", how="1/t", field="text")
    row |= dict(kind="tilted" if beta else "plain", t=t, gamma=(1 + beta) / t, score=score)
    return row | other


def test_points_of_one_curve_are_fitted_and_a_lifted_tilt_is_seen():
    def hill(gamma):
        return 60 - 2 * math.log(gamma / 4) ** 2

    plain = [invented(t, 0, hill(1 / t)) for t in (1, 0.5, 0.2, 0.1)]
    tilt = [invented(0.5, 1, hill(4)), invented(0.5, 3, hill(8))]
    (row,) = public_tables.fits(pd.DataFrame(plain + tilt)).itertuples()
    assert row.peak == pytest.approx(4) and row.offset == pytest.approx(0, abs=1e-9)
    assert row.r2 == pytest.approx(1) and row.shuffled < 0.9 and row.length == "long"
    lifted = [cell | {"score": cell["score"] + 2} for cell in tilt]
    (row,) = public_tables.fits(pd.DataFrame(plain + lifted)).itertuples()
    assert row.offset == pytest.approx(2) and row.gain == pytest.approx(2 + hill(4) - hill(5))


def test_a_panel_is_held_out_whole_and_its_best_score_has_a_neighbour():
    """The second predictions are judged on panels of which nobody had read a single cell."""
    scores = {0.5: 60.0, 0.1: 65.0, 0.05: 64.5, 0.01: 61.0}
    panel = [invented(t, 0, y, data="whole", known="held out") for t, y in scores.items()]
    panel += [invented(t, 0, y, data="part", known="held out") for t, y in scores.items()]
    panel[-1]["known"] = "no"
    panel += [invented(t, 0, y, data="end", known="no") for t, y in scores.items() if t < 0.1]
    panel.append(invented(0.02, 0, 60.0, data="end", known="no"))
    found = public_tables.fits(pd.DataFrame(panel)).set_index("data")
    assert found["held"].to_dict() == dict(whole=True, part=False, end=False)
    assert found["step"].to_dict() == dict(whole=0.5, part=0.5, end=4.5)
    lines = pd.read_csv(ROOT / "book/results/public_predictions.csv")
    second = lines[lines["id"].str[1:].astype(int) > 5]
    assert second["panels"].str.startswith("held and ").all() and len(second) == 5


def test_the_page_says_what_held_out_panels_would_change_of_the_first_predictions():
    """That they do not count was fixed after they were read."""
    found = public_tables.fits(public_tables.cells())
    ours, else_ = (
        public_tables.verdicts(x)["verdict"][:5] for x in (found, found.assign(held=False))
    )
    assert ours[ours != else_].to_dict() == {2: "refuted"} and else_[2] == "unresolved"
    page = (ROOT / "notebooks/experiments/public-tables.md").read_text(encoding="utf-8")
    assert "else the third would be unresolved" in page
