"""Measure what *Questions people ask* quotes: `python book/recorders/asked.py` writes `asked.csv`.

A bag of words is trained on SciFact at five temperatures, and with a loss that regresses cosines.
Every number is that of one seed. One thread, two minutes.
"""

import csv
import io
import itertools
import math
from pathlib import Path

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from hnlib import methods
from hnlib._files import write_atomically
from hnlib.experiments import evidence
from hnlib.failure_causes import effective_rank
from hnlib.retrieval import metrics
from hnlib.retrieval.config import RetrievalRun
from hnlib.retrieval.task import SEARCHED, Task
from hnlib.sentences.evaluation import embed
from hnlib.training.diagnostics import alignment, uniformity

TEMPERATURES, SEEDS = (0.02, 0.05, 0.1, 0.2, 0.5), (0, 1)
READ_AT = (25, 50, 100, 200)
BATCHES = (16, 64, 256)  # of an evaluation within batches
SELECTORS = {  # which checkpoint a number chooses: the one where it is highest
    "the last": lambda row: row["step"],
    "validation loss": lambda row: -row["validation loss"],
    "hits in batches of 64": lambda row: row["hits in batches of 64"],
    "validation nDCG": lambda row: row["validation nDCG"],
}


def rankme(z: Tensor) -> float:
    """Return exp of the entropy of the normalised singular values of rows [n, d]."""
    p = torch.linalg.svdvals(z)
    return float(torch.special.entr(p / p.sum()).sum().exp())


class Search:
    """A bag of words on SciFact, and what validation and test claims say of it."""

    def __init__(self, temperature: float, seed: int):
        torch.manual_seed(seed)
        self.run = RetrievalRun(dataset="scifact", vocabulary=8192, lr=0.1, seed=seed).resolved()
        self.temperature, self.task = temperature, Task(self.run)
        self.model = self.task.model()
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=self.run.lr)
        self.generator = torch.Generator().manual_seed(seed)
        self.asked = torch.tensor([*self.task.validation])
        answers = [next(iter(judged)) for judged in self.task.validation.values()]
        self.answers = torch.tensor(answers)

    def steps(self, last: int, loss):
        """Train with `loss(views)` and yield the number of the step after each."""
        epochs = (self.task.batches(self.generator) for _ in itertools.count())
        for step, batch in zip(range(1, last + 1), itertools.chain.from_iterable(epochs)):
            self.optimiser.zero_grad()
            loss(self.task.views(batch, self.generator, slice(None))).backward()
            self.optimiser.step()
            yield step

    def contrast(self, views) -> Tensor:
        """Return InfoNCE of a batch at this temperature."""
        method = methods.build("simclr", temperature=self.temperature)
        return self.task.loss(self.model, method, views, None, lambda x: x)

    def regress(self, negatives: bool):
        """Return `regression` of the embeddings of a batch."""
        return lambda views: regression(*map(self.model, views.tokens), negatives=negatives)

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Return unit embeddings of all queries and all documents."""
        tower = self.model.get_submodule("encoder.towers.0")
        texts = (self.task.queries, self.task.documents)
        q, d = (normalize(embed(tower, text, SEARCHED), dim=1) for text in texts)
        return q, d

    def ndcg(self, q: Tensor, d: Tensor, judged) -> Tensor:
        """Return nDCG@10 of each judged query."""
        return metrics.judged_rankings(q, d, judged)[1]["ndcg"]

    @torch.no_grad()
    def read(self) -> dict[str, float]:
        """Return what could choose a checkpoint, and the nDCG of test claims."""
        q, d = self.embeddings()
        s = q[self.asked] @ d[self.answers].T
        row = {f"hits in batches of {size}": hits(s, size) for size in BATCHES}
        parts = [s[i : i + 128, i : i + 128] for i in range(0, len(s), 128)]
        losses = [cross_entropy(x / self.temperature, torch.arange(len(x))) for x in parts]
        few = [s[i : i + 32, i : i + 32] for i in range(0, 256, 32)]
        few = [cross_entropy(x / self.temperature, torch.arange(32)) for x in few]
        row["validation loss"] = float(losses[0] + losses[1]) / 2
        row["its deviation over batches of 32"] = float(torch.stack(few).std())
        row["validation nDCG"] = float(self.ndcg(q, d, self.task.validation).mean())
        row["nDCG"] = float(self.ndcg(q, d, self.task.collection.judgements["test"]).mean())
        return row


def regression(a: Tensor, b: Tensor, negatives: bool) -> Tensor:
    """Return the squared distance of cosines from 1 for pairs and, if wanted, from 0 for others."""
    a, b = (normalize(z, dim=1) for z in (a, b))
    others = (a * b.roll(1, 0)).sum(1).square().mean() if negatives else 0
    return (1 - (a * b).sum(1)).square().mean() + others


def hits(s: Tensor, size: int) -> float:
    """Return the share of queries whose answer leads within consecutive batches of a size."""
    whole = range(0, len(s) // size * size, size)
    found = [s[i : i + size, i : i + size].argmax(1) == torch.arange(size) for i in whole]
    return float(torch.cat(found).float().mean())


def first_hits(search: Search, q: Tensor, d: Tensor, judged) -> tuple[Tensor, Tensor]:
    """Return the cosine of each query's first document, and whether it is right."""
    score, document = (q[torch.tensor([*judged])] @ d.T).max(1)
    right = [int(one) in answers for one, answers in zip(document, judged.values())]
    return score[:, None], torch.tensor(right)


def calibrated(search: Search, q: Tensor, d: Tensor) -> dict[str, float]:
    """Return the cosine of even odds, fitted on validation claims, and how test claims agree."""
    x, y = first_hits(search, q, d, search.task.validation)
    fit = LogisticRegression(C=1e6).fit(x, y)
    x, y = first_hits(search, q, d, search.task.collection.judgements["test"])
    p = torch.from_numpy(fit.predict_proba(x)[:, 1])
    return {
        "cosine of even odds": float(-fit.intercept_[0] / fit.coef_[0, 0]),
        "first documents that are right": float(y.float().mean()),
        "predicted": float(p.mean()),
        "right where predicted": float(y[p > 0.5].float().mean()),
        "right elsewhere": float(y[p <= 0.5].float().mean()),
        "AUC": float(roc_auc_score(y, x)),
    }


def geometry(search: Search, q: Tensor, d: Tensor) -> dict[str, float]:
    """Return what needs no judgement, of documents and of validation pairs."""
    few = d[torch.randperm(len(d), generator=torch.Generator().manual_seed(0))[:1000]]
    return {
        "alignment": alignment(q[search.asked], d[search.answers]),
        "uniformity": uniformity(few),
        "RankMe": rankme(d),
        "effective rank": float(effective_rank(few)),
        "mean cosine": float((few @ few.T).sum() - len(few)) / (len(few) * (len(few) - 1)),
    }


def rounded(search: Search, q: Tensor, d: Tensor) -> dict[str, float]:
    """Return what half precision of the embeddings changes for test claims."""
    judged = search.task.collection.judgements["test"]
    ranked, exact = metrics.judged_rankings(q, d, judged)
    again, rough = metrics.judged_rankings(q.bfloat16().float(), d.bfloat16().float(), judged)
    moved = (ranked[:, :10] != again[:, :10]).any(1)
    return {
        "nDCG lost to bfloat16": float((exact["ndcg"] - rough["ndcg"]).mean()),
        "lists of ten that bfloat16 changes": float(moved.float().mean()),
    }


def temperatures(temperature: float, seed: int) -> dict[str, float]:
    """Train at a temperature and return all its numbers."""
    search = Search(temperature, seed)
    stops = search.steps(READ_AT[-1], search.contrast)
    rows = [dict(step=step) | search.read() for step in stops if step in READ_AT]
    found = {name: max(rows, key=key)["nDCG"] for name, key in SELECTORS.items()}
    found = {f"nDCG by {name}": value for name, value in found.items()}
    found["best nDCG"] = max(row["nDCG"] for row in rows)
    q, d = search.embeddings()
    least = min(row["validation loss"] for row in rows)
    found |= {"least validation loss": least, **rows[-1]}
    return found | calibrated(search, q, d) | geometry(search, q, d) | rounded(search, q, d)


def regressions(negatives: bool, seed: int) -> dict[str, float]:
    """Train with cosines as targets and return the geometry before and after."""
    search, judged = Search(1.0, seed), {}
    for when in ("before", "after"):
        if when == "after":
            all(search.steps(100, search.regress(negatives)))
        with torch.no_grad():
            q, d = search.embeddings()
            row = geometry(search, q, d)
            row["nDCG"] = float(search.ndcg(q, d, search.task.validation).mean())
        judged |= {f"{name}, {when}": value for name, value in row.items()}
    return judged


def distillation() -> dict[str, float]:
    """Return by which power of t the gradient of a student's divergence falls, by temperature.

    Student and teacher are a search encoder early and late in its training.
    """
    batches = evidence.stages()
    early, late = (torch.from_numpy(batches[f"scifact {x}"]).double() for x in ("early", "late"))
    s, g = early[0] @ early[1].T, late[0] @ late[1].T

    def size(t: float) -> float:
        return float(((s / t).softmax(1) - (g / t).softmax(1)).norm()) / t

    return {f"{t:g}": math.log(size(t) / size(2 * t), 2) for t in (0.02, 0.05, 0.1, 0.5, 1.0, 2.0)}


def main() -> None:
    """Measure and write asked.csv."""
    torch.set_num_threads(1)
    found = [("power of t", "", 0, distillation())]
    for negatives, seed in itertools.product((False, True), SEEDS):
        setting = "pairs and others" if negatives else "pairs alone"
        found.append(("regression", setting, seed, regressions(negatives, seed)))
    for t, seed in itertools.product(TEMPERATURES, SEEDS):
        found.append(("temperature", f"{t:g}", seed, temperatures(t, seed)))
        print(found[-1], flush=True)
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("of", "setting", "seed", "quantity", "value"))
    for of, setting, seed, numbers in found:
        rows.writerows((of, setting, seed, name, f"{x:.4g}") for name, x in numbers.items())
    path = Path(__file__).parents[1] / "results/asked.csv"
    write_atomically(path, text.getvalue().encode())


if __name__ == "__main__":
    main()
