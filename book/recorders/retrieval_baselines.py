"""Record baselines of retrieval, and how many false negatives stand at which rank.

`python book/recorders/retrieval_baselines.py` writes `retrieval_baselines.json`: BM25 on the
collections in BEIR's layout, the most liked films on MovieLens, and for Banking77 (an intent is
known for each text) and Flickr8k (five captions of one photograph) the share of the documents at
each rank that answer the query, by BM25 and by the static embeddings, as they are and trained on
pairs of texts that answer each other.
"""

import csv
import json

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from hnlib._files import data_folder, project_root, write_atomically
from hnlib.retrieval import data, encoders, metrics, mining
from hnlib.retrieval.config import RetrievalRun
from hnlib.sentences import data as sentences
from hnlib.training.train import train

COLLECTIONS = ("scifact", "cranfield", "cisi", "med", "npl")
QUERIES = 1000  # of the texts whose class is known


def mean(scores):
    """The means over queries, in percent."""
    return {name: round(100 * float(values.mean()), 3) for name, values in scores.items()}


def bm25(collection):
    """Search the test part by BM25."""
    test = collection.judgements["test"]
    scores = mining.BM25(collection.documents).scores([collection.queries[q] for q in test])
    ranked = scores.sort(dim=1, descending=True, stable=True).indices
    return mean(metrics.evaluate(ranked, list(test.values())))


def most_liked(collection):
    """Recommend the films with the most likes."""
    train, dev = collection.split()
    test = collection.judgements["test"]
    liked = torch.tensor([film for films in train.values() for film in films])
    counts = liked.bincount(minlength=len(collection.texts))
    seen = {user: {**train.get(user, {}), **dev.get(user, {})} for user in test}
    one = torch.ones(len(collection.queries), 1)
    ranked, scores = metrics.judged_rankings(one, counts[:, None].float(), test, seen)
    return mean(scores) | {k: 100 * v for k, v in metrics.tail_share(ranked, counts).items()}


def banking(folder):
    """The texts and their intents."""
    rows = pd.read_csv(folder / "banking77/train.csv")
    return rows["text"].tolist(), rows["category"].tolist()


def flickr(folder):
    """The captions and their photographs."""
    path, names = folder / "flickr8k/Flickr8k.token.txt", ["image", "text"]
    rows = pd.read_csv(path, sep="\t", names=names, quoting=csv.QUOTE_NONE).dropna()
    return rows["text"].tolist(), rows["image"].str.split("#").str[0].tolist()


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


def by_rank(texts, classes, depth=100):
    """Return the share of the texts at each rank that have the query's class."""
    classes = np.unique(classes, return_inverse=True)[1]
    numbers, index = torch.from_numpy(classes), mining.BM25(texts)
    asked = torch.from_numpy(np.random.default_rng(0).permutation(len(texts))[:QUERIES])
    ids, ends = sentences.encode(encoders.static_tokenizer(), texts)

    def shares(search):
        same = torch.zeros(depth)
        for part in asked.split(100):
            scores = search(part)
            scores[torch.arange(len(part)), part] = -torch.inf
            ranked = scores.topk(depth, dim=1).indices
            same += (numbers[ranked] == numbers[part][:, None]).sum(0)
        return [round(x, 2) for x in (100 * same / len(asked)).tolist()]

    found = {"bm25": shares(lambda part: index.scores([texts[i] for i in part]))}
    embeddings = {"static": encoders.static_embeddings(), "trained": trained(texts, classes)}
    for name, weights in embeddings.items():
        bags = functional.embedding_bag(ids.long(), weights, ends[:-1])
        units = functional.normalize(bags, dim=1)
        found[name] = shares(lambda part, units=units: units[part] @ units.T)
    return found


def main() -> None:
    """Measure and write."""
    folder = data_folder() / "retrieval"
    found = {
        "bm25": {name: bm25(data.load(name)) for name in COLLECTIONS},
        "most_liked": most_liked(data.load("ml-100k")),
        "false_negatives": {
            "Banking77": by_rank(*banking(folder)),
            "Flickr8k": by_rank(*flickr(folder)),
        },
    }
    path = project_root() / "book" / "results" / "retrieval_baselines.json"
    write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
