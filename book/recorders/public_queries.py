"""Record differences of other people's settings with an interval over their test queries.

`python book/recorders/public_queries.py FOLDER` reads the per-query scores of
github.com/deepanshu-s18/blair-dual-encoder-retrieval at b3ea3f8, checked out in a folder, and
writes `public_queries.json`: nDCG@10 in points, ours minus base, query by query, with a normal
95 % interval that takes each training as given.
"""

import sys
from pathlib import Path

import ledgers
import pandas as pd

COMMIT = "github.com/deepanshu-s18/blair-dual-encoder-retrieval b3ea3f8"
PAIRS = {
    "t = 0.01 − 0.05": ("biencoder_tau0.01", "biencoder"),
    "t = 0.01 − 0.05, second seed": ("biencoder_tau0.01", "biencoder_seed123"),
    "t = 0.01 − 0.05, third seed": ("biencoder_tau0.01", "biencoder_seed456"),
    "negatives mined by BM25 − none": ("dual_hardneg", "dual"),
}


def measured(folder: Path) -> dict:
    """Return the differences by name."""

    def scores(name: str) -> pd.Series:
        rows = pd.read_parquet(folder / f"results/{name}/per_query_metrics.parquet")
        return 100 * rows["ndcg@10"]

    found = {}
    for name, (ours, base) in PAIRS.items():
        gains = scores(ours) - scores(base)
        mean, error = float(gains.mean()), float(gains.std() / len(gains) ** 0.5)
        low, high = (round(mean + z * error, 3) for z in (-1.96, 1.96))
        found[name] = {
            "queries": len(gains),
            "difference": round(mean, 3),
            "low": low,
            "high": high,
        }
    return {"source": COMMIT, "metric": "nDCG@10", "differences": found}


if __name__ == "__main__":
    ledgers.record("public_queries.json", lambda: measured(Path(sys.argv[1])))
