"""How many documents d dimensions can serve: free vectors, their margins, and the verdicts."""

from __future__ import annotations

import itertools
import math
import tomllib
from types import SimpleNamespace

import numpy as np
import pandas as pd

from hnlib.experiments import evidence, predictions

K = 2  # relevant documents of a query


def subsets(n: int, k: int = K) -> np.ndarray:
    """Return the relevant documents of each query, [C(n, k), k]: all subsets."""
    return np.array([*itertools.combinations(range(n), k)])


def margins(scores: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """Return each query's worst relevant minus best irrelevant score.

    `scores` is [queries, n] and `relevant` [queries, k] names the relevant documents.
    """
    hit = np.zeros(scores.shape, bool)
    np.put_along_axis(hit, relevant, True, 1)
    worst = np.where(hit, scores, np.inf).min(1)
    return worst - np.where(hit, -np.inf, scores).max(1)


def curve(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit queries [C(n, 2), 4] and documents [n, 4] on the trigonometric moment curve.

    The query of a and b is the direction of -(1 - cos(x - a))(1 - cos(x - b)), a trigonometric
    polynomial of x, without its constant.
    """
    angle = 2 * np.pi * np.arange(n) / n
    documents = np.stack([f(m * angle) for m in (1, 2) for f in (np.cos, np.sin)], 1)
    a, b = angle[subsets(n)].T
    q = [np.cos(a) + np.cos(b), np.sin(a) + np.sin(b), -np.cos(a + b) / 2, -np.sin(a + b) / 2]
    q = np.stack(q, 1)
    return q / np.linalg.norm(q, axis=1, keepdims=True), documents / math.sqrt(2)


def plan() -> dict:
    """Return what was to be run and predicted, from `limit.toml`."""
    return tomllib.loads(evidence.path("limit.toml").read_text(encoding="utf-8"))


def runs() -> pd.DataFrame:
    """Return the ledger, a row for each training; `solved` says whether it counts as a success."""
    return pd.read_csv(evidence.path("limit.csv"))


def critical(ledger: pd.DataFrame, every: bool = True) -> pd.DataFrame:
    """Return the critical number of documents `n` of each part, d, t and β whose search has ended.

    It is the largest tried that all seeds solved, and one more was tried and not solved by all;
    with `every` false, the largest that any seed solved. `capped` says that no more was tried.
    """
    most, rows = plan()["most"], []
    for key, group in ledger.groupby(["part", "d", "t", "beta"]):
        solved = group.groupby("n")["solved"].agg(["all", "any"])
        low = max(solved.index[solved["all"]], default=K + 1)  # pyright: ignore[reportCallIssue]
        if low < most and not (low + 1 in solved.index and not solved["all"][low + 1]):  # pyright: ignore[reportGeneralTypeIssues]
            continue
        n = low if every else max(solved.index[solved["any"]], default=K + 1)  # pyright: ignore[reportCallIssue]
        rows.append(dict(zip(("part", "d", "t", "beta"), key)) | dict(n=n, capped=n == most))  # pyright: ignore[reportCallIssue]
    return pd.DataFrame(rows, columns=["part", "d", "t", "beta", "n", "capped"])


def of(found: pd.DataFrame, part: str, d: int, t: float, beta: float = 0.0) -> int | None:
    """Return one critical number, or None if its search has not ended."""
    rows = found.query("part == @part and d == @d and t == @t and beta == @beta")["n"]
    return None if rows.empty else int(rows.iloc[0])


def settings() -> pd.DataFrame:
    """Return the planned settings, a row for each part, d, t and β."""
    whole = plan()
    parts = {part["name"]: part for part in whole["parts"]}
    rows = [
        dict(part=name, d=d, t=t, beta=beta)
        for name, d in whole["order"]
        for t in parts[name]["temperatures"]
        for beta in parts[name].get("betas", [0.0])
    ]
    return pd.DataFrame(rows)


def best(found: pd.DataFrame, where: str) -> pd.Series:
    """Return the largest critical number by d among the rows that a query selects.

    A dimension is left out until the searches of all its planned settings have ended.
    """
    n = found.query(where).groupby("d")["n"].agg(["max", "size"])
    due = settings().query(where).groupby("d").size().reindex(n.index)
    return n.loc[n["size"] >= due, "max"]


def verdicts(found: pd.DataFrame) -> list[dict]:
    """Judge each prediction: what is predicted of `ours` against `base`, in each dimension.

    A prediction without the runs of one of its dimensions is open, unless another refutes it.
    """
    rows = []
    for line in plan()["predictions"]:
        ours = best(found, line["ours"])
        base = best(found, line["base"]) if "base" in line else printed()
        value = ours / base if line["by"] == "ratio" else ours - base
        value = value.reindex(line["dimensions"])
        numbers = {f"d = {d}": SimpleNamespace(low=x, high=x, df=1) for d, x in value.items()}
        judged = predictions.judge(numbers, line["holds"], line["refuted"])
        form = "{:.2f}" if line["by"] == "ratio" else "{:+.0f}"
        text = ", ".join(form.format(x).replace("-", "−") for x in value.dropna())
        verdict = "open" if value.isna().any() and judged != "refuted" else judged
        rows.append({"": line["id"], "prediction": line["says"], "found": text, "verdict": verdict})
    return rows


def printed() -> pd.Series:
    """Return the critical numbers that LIMIT prints (Table 6), by d."""
    return pd.Series({int(d): n for d, n in plan()["printed"].items()}, name="n")
