"""Record what BM25 finds, and how often what it ranks first is a false negative.

`python book/recorders/retrieval_baselines.py` writes `retrieval_baselines.json`: BM25 on SciFact, and for
Banking77 (an intent is known for each text) and Flickr8k (five captions of one photograph) the
share of queries that the first document answers.
"""

import csv

import ledgers
import numpy as np
import pandas as pd
import torch

from hnlib._files import data_folder
from hnlib.retrieval import data, metrics, mining

QUERIES = 1000  # of the texts whose class is known


def bm25() -> dict[str, float]:
    """Return the scores of BM25 on the test claims of SciFact, in percent."""
    collection = data.load("scifact")
    test = collection.judgements["test"]
    scores = mining.BM25(collection.documents).scores([collection.queries[q] for q in test])
    ranked = scores.sort(dim=1, descending=True, stable=True).indices
    found = metrics.evaluate(ranked, list(test.values()))
    return {name: round(100 * float(values.mean()), 3) for name, values in found.items()}


def false_negatives(texts, names) -> float:
    """Return the share of queries, in percent, whose class the first text of BM25 has."""
    texts, numbers = [*texts], torch.from_numpy(np.unique(names, return_inverse=True)[1])
    index, same = mining.BM25(texts), 0
    asked = torch.from_numpy(np.random.default_rng(0).permutation(len(texts))[:QUERIES])
    for part in asked.split(100):
        scores = index.scores([texts[i] for i in part])
        scores[torch.arange(len(part)), part] = -torch.inf
        same += int((numbers[scores.argmax(1)] == numbers[part]).sum())
    return round(100 * same / len(asked), 2)


def main() -> None:
    """Measure and write."""
    folder = data_folder() / "retrieval"
    banking = pd.read_csv(folder / "banking77/train.csv")
    flickr = folder / "flickr8k/Flickr8k.token.txt"
    columns = dict(sep="\t", names=["image", "text"], quoting=csv.QUOTE_NONE)
    captions = pd.read_csv(flickr, **columns).dropna()
    photographs = captions["image"].str.split("#").str[0]
    both = dict(Banking77=false_negatives(banking["text"], banking["category"]))
    both |= dict(Flickr8k=false_negatives(captions["text"], photographs))
    found = {"bm25": {"scifact": bm25()}, "false_negatives": both}
    ledgers.write("retrieval_baselines.json", found)


if __name__ == "__main__":
    main()
