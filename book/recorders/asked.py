"""Measure what *Questions people ask* quotes: `python book/recorders/asked.py` writes `asked.csv`.

A bag of words is trained on SciFact at five temperatures, and with a loss that regresses cosines.
Every number is that of one seed. One thread, two minutes.
"""

import itertools
import math

import ledgers
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from hnlib import methods
from hnlib.experiments import evidence
from hnlib.failure_causes import effective_rank
from hnlib.retrieval import metrics
from hnlib.retrieval.config import RetrievalRun
from hnlib.retrieval.task import SEARCHED, Task
from hnlib.texts.evaluation import embed
from hnlib.training.diagnostics import uniformity

TEMPERATURES, SEEDS = (0.02, 0.05, 0.1, 0.2, 0.5), (0, 1)
READ_AT = (25, 50, 100, 200)


class Search:
    """A bag of words on SciFact, and its claims: validation ones, their answers, test ones."""

    def __init__(self, seed: int):
        torch.manual_seed(seed)
        run = RetrievalRun(dataset="scifact", vocabulary=8192, lr=0.1, seed=seed).resolved()
        self.task = Task(run)
        self.model = self.task.model()
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=run.lr)
        self.generator = torch.Generator().manual_seed(seed)
        self.claims = torch.tensor([*self.task.validation])
        self.answers = torch.tensor([next(iter(x)) for x in self.task.validation.values()])
        self.test = self.task.collection.judgements["test"]

    def steps(self, last: int, loss):
        """Train with `loss(views)` and yield the number of the step after each."""
        epochs = (self.task.batches(self.generator) for _ in itertools.count())
        for step, batch in zip(range(1, last + 1), itertools.chain.from_iterable(epochs)):
            self.optimiser.zero_grad()
            loss(self.task.views(batch, self.generator, slice(None))).backward()
            self.optimiser.step()
            yield step

    @torch.no_grad()
    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Return unit embeddings of all queries and all documents."""
        tower, collection = self.model.get_submodule("encoder.towers.0"), self.task.collection
        sizes = [len(collection.texts), len(collection.queries)]
        rows = torch.arange(sum(sizes))
        d, q = normalize(embed(tower, self.task.texts, SEARCHED, rows), dim=1).split(sizes)
        return q, d

    def read(self, temperature: float) -> dict[str, float]:
        """Return what could choose a checkpoint, and the nDCG of test claims."""
        q, d = self.embeddings()
        s = q[self.claims] @ d[self.answers].T

        def losses(size: int, last: int) -> Tensor:
            parts = [s[i : i + size, i : i + size] for i in range(0, last, size)]
            return torch.stack([cross_entropy(x / temperature, torch.arange(size)) for x in parts])

        row = {f"hits in batches of {size}": hits(s, size) for size in (16, 64, 256)}
        row["validation loss"] = float(losses(128, 256).mean())
        row["its deviation over batches of 32"] = float(losses(32, 256).std())
        for name, judged in {"validation nDCG": self.task.validation, "nDCG": self.test}.items():
            row[name] = float(metrics.judged_rankings(q, d, judged)[1]["ndcg"].mean())
        return row


def hits(s: Tensor, size: int) -> float:
    """Return the share of queries whose answer leads within consecutive batches of a size."""
    whole = range(0, len(s) // size * size, size)
    found = [s[i : i + size, i : i + size].argmax(1) == torch.arange(size) for i in whole]
    return float(torch.cat(found).float().mean())


def calibrated(search: Search, q: Tensor, d: Tensor) -> dict[str, float]:
    """Return the cosine of even odds, fitted on validation claims, and how test claims agree."""

    def first_hits(judged):
        score, document = (q[torch.tensor([*judged])] @ d.T).max(1)
        right = [int(one) in answers for one, answers in zip(document, judged.values())]
        return score[:, None], torch.tensor(right)

    fit = LogisticRegression(C=1e6).fit(*first_hits(search.task.validation))
    x, y = first_hits(search.test)
    predicted = torch.from_numpy(fit.predict(x))
    return {
        "cosine of even odds": float(-fit.intercept_[0] / fit.coef_[0, 0]),
        "right where predicted": float(y[predicted].float().mean()),
        "right elsewhere": float(y[~predicted].float().mean()),
    }


def geometry(d: Tensor) -> dict[str, float]:
    """Return what needs no judgement, of documents [n, d]."""
    few = d[torch.randperm(len(d), generator=torch.Generator().manual_seed(0))[:1000]]
    p = torch.linalg.svdvals(d)
    return {
        "uniformity": uniformity(few),
        "RankMe": float(torch.special.entr(p / p.sum()).sum().exp()),
        "effective rank": float(effective_rank(few)),
        "mean cosine": float((few @ few.T).sum() - len(few)) / (len(few) * (len(few) - 1)),
    }


def rounded(search: Search, q: Tensor, d: Tensor) -> dict[str, float]:
    """Return what half precision of the embeddings changes for test claims."""
    ranked, exact = metrics.judged_rankings(q, d, search.test)
    again, rough = metrics.judged_rankings(q.bfloat16().float(), d.bfloat16().float(), search.test)
    moved = (ranked[:, :10] != again[:, :10]).any(1)
    return {
        "nDCG lost to bfloat16": float((exact["ndcg"] - rough["ndcg"]).mean()),
        "lists of ten that bfloat16 changes": float(moved.float().mean()),
    }


def at_temperature(t: float, seed: int) -> dict[str, float]:
    """Train SimCLR at a temperature and return all its numbers."""
    search, method = Search(seed), methods.build("simclr", temperature=t)

    def loss(views):
        return search.task.loss(search.model, method, views, None, lambda x: x)

    rows = [search.read(t) for step in search.steps(READ_AT[-1], loss) if step in READ_AT]
    by_loss = min(rows, key=lambda row: row["validation loss"])
    by_ndcg = max(rows, key=lambda row: row["validation nDCG"])
    q, d = search.embeddings()
    return {
        "nDCG by validation loss": by_loss["nDCG"],
        "nDCG by validation nDCG": by_ndcg["nDCG"],
        "best nDCG": max(row["nDCG"] for row in rows),
        **rows[-1],
        **calibrated(search, q, d),
        **geometry(d),
        **rounded(search, q, d),
    }


def regressed(negatives: bool, seed: int) -> dict[str, float]:
    """Train with cosines as targets, 1 for pairs and 0 for others, and return the geometry."""
    search = Search(seed)

    def loss(views):
        a, b = (normalize(search.model(x), dim=1) for x in views.tokens)
        others = (a * b.roll(1, 0)).sum(1).square().mean() if negatives else 0
        return (1 - (a * b).sum(1)).square().mean() + others

    all(search.steps(100, loss))
    return {f"{name}, after": x for name, x in geometry(search.embeddings()[1]).items()}


def distillation() -> dict[str, float]:
    """Return by which power of t the gradient of a student's divergence falls, by temperature.

    Student and teacher are a search encoder early and late in its training.
    """
    batches = evidence.stages()
    early, late = (torch.from_numpy(batches[f"scifact {x}"]).double() for x in ("early", "late"))
    s, g = early[0] @ early[1].T, late[0] @ late[1].T

    def size(t: float) -> float:
        return float(((s / t).softmax(1) - (g / t).softmax(1)).norm()) / t

    return {f"{t:g}": math.log(size(t) / size(2 * t), 2) for t in (0.02, 2.0)}


def measured() -> bytes:
    """Return all numbers as a CSV."""
    found = {("power of t", "", 0): distillation()}
    for seed in SEEDS:
        found["regression", "pairs alone", seed] = regressed(False, seed)
        found["regression", "pairs and others", seed] = regressed(True, seed)
        for t in TEMPERATURES:
            found["temperature", f"{t:g}", seed] = at_temperature(t, seed)
    rows = [(*key, name, f"{x:.4g}") for key, row in found.items() for name, x in row.items()]
    table = pd.DataFrame(rows, columns=["of", "setting", "seed", "quantity", "value"])
    return table.to_csv(index=False).encode()


if __name__ == "__main__":
    ledgers.record("asked.csv", measured)
