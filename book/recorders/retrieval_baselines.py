"""Record what BM25 finds, and how often what it ranks first is a false negative.

`python book/recorders/retrieval_baselines.py` writes `retrieval_baselines.json`: BM25 on SciFact, and for
Banking77 (an intent is known for each text) and Flickr8k (five captions of one photograph) the share
of queries that the first document answers, by BM25, and on Banking77 by static embeddings
trained on pairs of texts that answer each other.
"""

import csv

import ledgers
import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from hnlib._files import data_folder
from hnlib.retrieval import data, encoders, metrics, mining
from hnlib.retrieval.config import RetrievalRun
from hnlib.sentences import data as sentences
from hnlib.training.train import train

QUERIES = 1000  # of the texts whose class is known


def bm25() -> dict[str, float]:
    """Return the scores of BM25 on the test claims of SciFact, in percent."""
    collection = data.load("scifact")
    test = collection.judgements["test"]
    scores = mining.BM25(collection.documents).scores([collection.queries[q] for q in test])
    ranked = scores.sort(dim=1, descending=True, stable=True).indices
    found = metrics.evaluate(ranked, list(test.values()))
    return {name: round(100 * float(values.mean()), 3) for name, values in found.items()}


def trained(texts, numbers):
    """Train the static embeddings on disjoint pairs of texts of one class, as on SciFact."""
    order = np.random.default_rng(0).permutation(len(texts))
    order = order[np.argsort(numbers[order], kind="stable")]
    pairs = [pair for pair in zip(order[::2], order[1::2]) if np.ptp(numbers[[*pair]]) == 0]
    judged = {i: {int(answer): 1.0} for i, (_, answer) in enumerate(pairs)}
    test = dict([judged.popitem()])  # nobody looks at its score
    queries, titles = [texts[query] for query, _ in pairs], [""] * len(texts)
    own = data.collection("pairs", titles, texts, queries, {"train": judged, "test": test})
    fields = dict(pairs="judged", lr=0.01, epochs=3, max_steps=100)
    options = {"temperature": 0.05}
    run = RetrievalRun(encoder="static", method="simclr", options=options, **fields)
    (weights,) = train(run, dataset=own, progress=False).encoder.parameters()
    return weights.detach()


def answering(classes, search):
    """Return the share of queries, in percent, whose class the first text of `search` has."""
    numbers, same = torch.from_numpy(classes), 0
    asked = torch.from_numpy(np.random.default_rng(0).permutation(len(classes))[:QUERIES])
    for part in asked.split(100):
        scores = search(part)
        scores[torch.arange(len(part)), part] = -torch.inf
        same += int((numbers[scores.argmax(1)] == numbers[part]).sum())
    return round(100 * same / len(asked), 2)


def false_negatives(texts, names, train=False):
    """Return `answering` of BM25 and, if wanted, of embeddings that were trained on the texts."""
    texts, classes = [*texts], np.unique(names, return_inverse=True)[1]
    index = mining.BM25(texts)
    found = {"bm25": answering(classes, lambda part: index.scores([texts[i] for i in part]))}
    if train:
        ids, ends = sentences.encode(encoders.static_tokenizer(), texts)
        bags = functional.embedding_bag(ids.long(), trained(texts, classes), ends[:-1])
        units = functional.normalize(bags, dim=1)
        found["trained"] = answering(classes, lambda part: units[part] @ units.T)
    return found


def main() -> None:
    """Measure and write."""
    folder = data_folder() / "retrieval"
    banking = pd.read_csv(folder / "banking77/train.csv")
    flickr = folder / "flickr8k/Flickr8k.token.txt"
    captions = pd.read_csv(flickr, sep="\t", names=["image", "text"], quoting=csv.QUOTE_NONE)
    captions = captions.dropna()
    photographs = captions["image"].str.split("#").str[0]
    both = {
        "Banking77": false_negatives(banking["text"], banking["category"], train=True),
        "Flickr8k": false_negatives(captions["text"], photographs),
    }
    found = {"bm25": {"scifact": bm25()}, "false_negatives": both}
    ledgers.write("retrieval_baselines.json", found)


if __name__ == "__main__":
    main()
