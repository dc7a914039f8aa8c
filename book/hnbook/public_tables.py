"""Other people's tables: the papers', and those on the dial with their curves and verdicts."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hnlib.experiments import evidence
from hnlib.experiments.predictions import Level, judge
from hnlib.experiments.sharpness_map import Parabola, parabola

PANEL = ["source", "data", "network", "epochs"]  # equal in all cells of a panel
KINDS = {"simclr": "plain", "macl": "plain", "hcl": "tilted", "ot": "tilted", "cut": "cut"}


def printed() -> pd.DataFrame:
    """Return the numbers printed in the papers; lines of papers.csv that begin with # are left out.

    `run` is the setting in papers.toml, or the reason why there is none.
    """
    path = evidence.path("papers.csv")
    rows = pd.read_csv(path, comment="#", skipinitialspace=True, dtype=str, keep_default_na=False)
    return rows.assign(value=pd.to_numeric(rows["value"]), spread=pd.to_numeric(rows["spread"]))


def cells() -> pd.DataFrame:
    """Return the ledger, a row for each printed score, with the `kind` of its loss.

    The kind is "plain" for a temperature alone, "tilted", "cut" for the hardest negatives alone, or
    "" for other losses.
    """
    ledger = pd.read_csv(evidence.path("public_tables.csv"))
    return ledger.assign(kind=ledger["method"].map(KINDS).fillna(""))


def balances() -> pd.DataFrame:
    """Return scores of one training at balance 1, `plain`, and at its authors' `balance`."""
    return pd.read_csv(evidence.path("balance_tables.csv"))


def points(panel: pd.DataFrame, *kinds: str) -> pd.DataFrame:
    """Return the cells of these kinds that have a place on a logarithmic axis of γ."""
    return panel.loc[panel["kind"].isin(kinds) & (panel["gamma"] > 0)]


def fitted(panel: pd.DataFrame) -> pd.DataFrame:
    """Return the points that the curve of a panel is fitted to.

    They are its temperatures if there are three of them, else the tilts too.
    """
    plain = points(panel, "plain")
    return plain if len(plain) >= 3 else points(panel, "plain", "tilted")


def curve(panel: pd.DataFrame) -> Parabola:
    """Fit the scores of a panel as a parabola in log γ (see `fitted`)."""
    used = fitted(panel)
    return parabola(used["gamma"], used["score"])


def panels(ledger: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the cells of each panel with at least three sharpnesses."""
    groups = [panel for _, panel in ledger.groupby(PANEL, sort=False, dropna=False)]
    return [panel for panel in groups if len(fitted(panel)["gamma"].unique()) >= 3]


def fits(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each panel with at least three sharpnesses.

    Panels that are `known` had been read before the first predictions; those that are `held` had
    not been read before the second. `best` is the γ of the best temperature tried, `step` its lead
    over the better neighbour, `peak` and `r2` are the curve's, and `shuffled` is the mean r2 over
    random orders of the scores. `offset` and `residual` are the mean and the root mean square of
    the tilted points about the curve, `gain` is the best tilted minus the best plain score,
    `cut_peak` the best 1/t of the curve with the cut, `shift` the logarithm of its ratio to that
    without, and `cut_gain` the best score with the cut, at any t, minus that without.
    """
    rows, rng = [], np.random.default_rng(0)
    for panel in panels(ledger):
        plain, tilted, used = points(panel, "plain"), points(panel, "tilted"), fitted(panel)
        line, top = curve(panel), plain.loc[plain["score"].idxmax()]
        orders = [rng.permutation(used["score"]) for _ in range(50)]
        row = panel[PANEL].iloc[0].to_dict()
        row |= {
            "field": panel["field"].iloc[0],
            "known": (plain["known"] == "yes").any(),
            "held": (plain["known"] == "held out").all(),
            "length": length(row["epochs"]),
            "assumed": panel["how"].str.contains("assumed|default").any(),
            "plain": len(plain),
            "tilted": len(tilted),
            "best": top["gamma"],
            "step": step(plain),
            "range": np.ptp(plain["score"]),
            "peak": line.peak,
            "r2": line.r2,
            "shuffled": np.mean([parabola(used["gamma"], order).r2 for order in orders]),
        }
        if len(tilted):
            above = tilted["score"] - line(tilted["gamma"])
            row |= {"offset": above.mean(), "residual": np.sqrt((above**2).mean())}
            row["gain"] = tilted["score"].max() - top["score"]
        hard = panel[panel["kind"] == "cut"]
        cut = hard[np.isfinite(hard["t"])]
        row["cut"] = len(cut)
        if len(cut):
            row["cut_peak"] = parabola(1 / cut["t"], cut["score"]).peak
            row["shift"] = np.log(row["cut_peak"] / line.peak)
            row["cut_gain"] = hard["score"].max() - top["score"]
        rows.append(row)
    return pd.DataFrame(rows)


def step(plain: pd.DataFrame) -> float:
    """Return the best score minus the better one of its neighbours in γ; NaN for a single one."""
    scores = plain.sort_values("gamma")["score"].to_numpy()
    top = scores.argmax()
    beside = [*scores[max(top - 1, 0) : top], *scores[top + 1 : top + 2]]
    return scores[top] - max(beside, default=np.nan)


def length(epochs: float) -> str:
    """Return "long" from 100 epochs on, "short" up to ten, else ""."""
    return "long" if epochs >= 100 else "short" if epochs <= 10 else ""


def verdicts(found: pd.DataFrame) -> pd.DataFrame:
    """Judge each prediction on the panels of `fits` that it is about.

    These are the panels with three temperatures that nobody had read when it was made: for the
    second predictions those that are `held`, which the first do not see. That was fixed when they
    were transcribed, and the page says what it changes. The cuts had not been read even where the
    temperatures were known. It holds from three quarters of them on and is refuted below half;
    without any it is open.
    """
    lines = pd.read_csv(evidence.path("public_predictions.csv"))
    rows = []
    for line in lines.to_dict("records"):
        unread = found.query("plain >= 3")
        if line["column"] != "shift":
            unread = unread.query("not known")
        if not line["panels"].startswith("held"):
            unread = unread.query("not held")
        inside = unread.query(line["panels"])[line["column"]].between(line["low"], line["high"])
        row = {"says": line["says"], "panels": len(inside), "inside": int(inside.sum())}
        share = Level(f"{inside.sum()} of {len(inside)}", inside.mean(), inside.mean())
        judged = judge({"": share}, {"above": 0.75}, {"below": 0.5})
        rows.append(row | {"verdict": judged if len(inside) else "open"})
    return pd.DataFrame(rows)
