"""Evaluate encoders of sentences by logistic regressions and by rank correlations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hnlib.texts.benchmarks import Benchmark
from hnlib.texts.tokens import Corpus, texts
from hnlib.training import evaluation
from hnlib.training.evaluation import classify, stratified_folds

FOLDS = 10


class EncodedBenchmark:
    r"""A benchmark in the tokens of a corpus, of which each sentence has at most `length`.

    Pairs are classified from $(|u-v|,u\odot v)$. Graded pairs are judged by the rank correlation of
    $\cos(u,v)$, or by `pearson` if there is a training part. A benchmark without a test part uses
    ten folds, the same for all methods of one seed.
    """

    def __init__(self, benchmark: Benchmark, tokenizer, length: int):
        self.benchmark, self.length = benchmark, length
        both = (benchmark.first, benchmark.second)
        self.texts = [texts(benchmark.name, part, tokenizer) for part in both if part is not None]

    def scores(self, encoder: nn.Module, seed: int) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Return the metrics of an encoder, and which examples it got right, bool [N] by metric."""
        from sklearn.metrics import f1_score

        benchmark, (x, *other) = (
            self.benchmark,
            [embed(encoder, text, self.length) for text in self.texts],
        )
        if benchmark.graded and not benchmark.train:
            return {benchmark.name: spearman(x, other[0], benchmark.y)}, {}
        if other:
            x = torch.cat([(x - other[0]).abs(), x * other[0]], 1)
        if benchmark.graded:
            return {benchmark.name: pearson(x, benchmark.y, benchmark.train)}, {}
        y = torch.from_numpy(benchmark.y)
        if benchmark.train:
            every = torch.arange(len(y))
            parts = [(every[: benchmark.train], every[benchmark.train :])]
        else:
            parts = stratified_folds(y, FOLDS, seed)
        predicted, seen = torch.full_like(y, -1), []
        for (_, test), (labels, validation) in zip(parts, classify(x, y, parts, seed)):
            predicted[test] = labels
            seen.append(validation)
        judged = torch.cat([test for _, test in parts]).sort().values
        right = predicted[judged] == y[judged]
        scores = {
            benchmark.name: float(right.double().mean()),
            f"{benchmark.name}_validation": float(np.mean(seen)),
        }
        if benchmark.name == "msrp":
            scores["msrp_f1"] = float(f1_score(y[judged], predicted[judged]))
        return scores, {benchmark.name: right}


def embed(encoder: nn.Module, text: Corpus, length: int, rows: Tensor | None = None) -> Tensor:
    """Return the embeddings $[N,d]$ of all sentences, or of `rows`, in eval mode, on the CPU."""
    rows = torch.arange(len(text)) if rows is None else rows
    return evaluation.embed(encoder, (text.rows(part, length) for part in rows.split(2000))).cpu()


def spearman(x: Tensor, other: Tensor, degrees: np.ndarray) -> float:
    """Return the rank correlation of cosines and degrees; cosines that agree to 1e-6 are equal."""
    from scipy.stats import spearmanr

    cosines = functional.cosine_similarity(x.double(), other.double())
    return float(spearmanr(cosines.numpy().round(6), degrees)[0])


def pearson(x: Tensor, degrees: np.ndarray, train: int) -> float:
    """Return the correlation of the degrees after `train` with ridge regression's predictions.

    SentEval predicts a distribution over five degrees instead. The penalty is chosen on the
    training part alone; features are standardised.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(0, 5, 11)))
    said = model.fit(x[:train].numpy(), degrees[:train]).predict(x[train:].numpy())
    return float(np.corrcoef(said, degrees[train:])[0, 1])
